#!/bin/bash
#SBATCH --job-name=remora
#SBATCH --ntasks=1
#SBATCH --cpus-per-task=1
#SBATCH --mem=2G
#SBATCH --time=25:00:00
# One shard of a run; the array's size is the number of shards. Usage:
#   sbatch --array=0-999 deploy/slurm.sh storm SEED DIR [flags of `remora storm minos`; a day of storms without any]
#   sbatch --array=0-26 deploy/slurm.sh check DIR [flags of `remora check minos`]
# The command is ./remora, or what REMORA names. A shard whose whole result is there already, or a failure that it found, is
# not run again, so that an array that was interrupted can be submitted again as it was.
set -euo pipefail

what=${1:?storm or check}
shift
if [ "$what" = storm ]; then
  seed=${1:?the first seed}
  shift
fi
dir=${1:?the directory for results}
shift
shard=${SLURM_ARRAY_TASK_ID:?submit with --array=0-N}
first=${SLURM_ARRAY_TASK_MIN:-0}
shards=${SLURM_ARRAY_TASK_COUNT:?submit with --array=0-N}
if [ "$first" != 0 ] || [ "${SLURM_ARRAY_TASK_STEP:-1}" != 1 ]; then
  echo "the array has to be 0-N: every index is a shard" >&2
  exit 2
fi

mkdir -p "$dir"
result="$dir/$what-$shard.json"
if [ -e "$result" ] && grep -q -e '"complete":true,"failure"' -e '"complete":false,"failure":"' "$result"; then
  exit 0
fi
case $what in
  storm)
    [ $# -gt 0 ] || set -- --seconds 86400
    exec "${REMORA:-./remora}" storm minos --seed "$seed" --shard "$shard/$shards" --json "$result" "$@"
    ;;
  check) exec "${REMORA:-./remora}" check minos --shard "$shard/$shards" --save "$result" "$@" ;;
  *)
    echo "storm or check, not $what" >&2
    exit 2
    ;;
esac
