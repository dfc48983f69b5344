//! PyTorch's EmbeddingBag with one thread, over a table of the same size and the same requests.

use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use super::catalogue::Catalogue;
use crate::StudyError;
use crate::peers::installed;

/// Requests that it gets at a time.
const BATCH: usize = 64;
/// How long it may take to be found, and to load its table.
const START: Duration = Duration::from_secs(60);

/// Reads the requests' items and where each request begins; prints requests a second, a line for each round.
const PROGRAM: &str = r#"
import sys, time
import torch
directory, rows, dim, seconds, rounds, batch = sys.argv[1], *map(float, sys.argv[2:])
rows, dim, rounds, batch = int(rows), int(dim), int(rounds), int(batch)
torch.set_num_threads(1)
def load(name):
    with open(directory + "/" + name, "rb") as file:
        return torch.frombuffer(bytearray(file.read()), dtype=torch.int64)
items, starts = load("items"), load("starts")
table = torch.ones(rows, dim)
bag = torch.nn.EmbeddingBag.from_pretrained(table, mode="sum", include_last_offset=True)
batches = []
for first in range(0, len(starts) - 1, batch):
    offsets = starts[first:first + batch + 1]
    batches.append((items[offsets[0]:offsets[-1]], offsets - offsets[0]))
with torch.no_grad():
    sums = bag(*batches[0])
    assert torch.equal(sums[:, 0], (batches[0][1][1:] - batches[0][1][:-1]).float())
    for _ in range(rounds):
        start, done, at = time.perf_counter(), 0, 0
        while time.perf_counter() - start < seconds:
            bag(*batches[at])
            done += len(batches[at][1]) - 1
            at = (at + 1) % len(batches)
        print(done / (time.perf_counter() - start), flush=True)
"#;

/// A Python that has PyTorch, if there is one: what `python3` is, or the system's.
pub fn python() -> Option<PathBuf> {
    let has_torch = |python: &PathBuf| {
        let torch = "import importlib.util as u, sys; sys.exit(u.find_spec('torch') is None)";
        let asked = Command::new(python).args(["-c", torch]).stdin(Stdio::null()).output();
        asked.is_ok_and(|asked| asked.status.success())
    };
    let found = installed("python3").into_iter().chain([PathBuf::from("/usr/bin/python3")]);
    found.filter(|python| python.is_file()).find(has_torch)
}

/// Requests a second of each round.
pub fn measure(
    python: &Path,
    catalogue: &Catalogue,
    (time, rounds): (Duration, usize),
    going: &mut dyn FnMut() -> bool,
) -> Result<Vec<f64>, StudyError> {
    let failed = |what: &dyn std::fmt::Display| StudyError::Failed(format!("PyTorch: {what}"));
    let directory = tempfile::tempdir().map_err(|e| failed(&e))?;
    let (mut items, mut starts) = (Vec::new(), vec![0i64]);
    for request in &catalogue.requests {
        let text = request.text.split(' ').filter_map(|item| item.parse::<i64>().ok());
        items.extend(text);
        starts.push(items.len() as i64);
    }
    for (name, numbers) in [("items", &items), ("starts", &starts)] {
        let bytes: Vec<u8> = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
        std::fs::write(directory.path().join(name), bytes).map_err(|e| failed(&e))?;
    }
    let mut child = Command::new(python)
        .args(["-"])
        .arg(directory.path())
        .args([catalogue.table.items().to_string(), catalogue.rows.dim.to_string()])
        .args([time.as_secs_f64().to_string(), rounds.to_string(), BATCH.to_string()])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        // Ctrl-C is for this process, which ends it.
        .process_group(0)
        .spawn()
        .map_err(|e| failed(&e))?;
    if let Some(mut program) = child.stdin.take() {
        // One that ends before it has read all says why below.
        let _ = program.write_all(PROGRAM.as_bytes());
    }
    let end = Instant::now() + START + time * rounds as u32;
    while child.try_wait().map_err(|e| failed(&e))?.is_none() {
        let stopped = !going();
        if stopped || Instant::now() > end {
            let _ = child.kill();
            let _ = child.wait();
            return Err(if stopped { StudyError::Interrupted } else { failed(&"it does not end") });
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    let output = child.wait_with_output().map_err(|e| failed(&e))?;
    let said = String::from_utf8_lossy(&output.stderr);
    if !output.status.success() {
        return Err(failed(&said.lines().last().unwrap_or("it fails")));
    }
    let rates = String::from_utf8_lossy(&output.stdout).lines().map(str::parse).collect::<Result<Vec<f64>, _>>();
    rates.map_err(|e| failed(&e))
}
