"""What a look-up over shared memory costs more from Python than from Rust, by turns in one run: `ci/python speed`.

Fails if one GET takes more than 2 us longer, or 1,000 at once more than 1.3 times as long.
"""

import statistics
import sys
import time

import remora

MORE_US, TIMES = 2.0, 1.3
ROUNDS, GETS, BATCH = 41, 2000, 1000


def singles(client, table, keys):
    start = time.perf_counter()
    for key in keys:
        client.get(table, key)
    return time.perf_counter() - start


def batch(client, table, keys):
    start = time.perf_counter()
    client.get_many(table, keys)
    return time.perf_counter() - start


def by_turns(python, rust, count):
    """Medians in microseconds a GET, and of what each round has."""
    rounds = [(python() / count * 1e6, rust() / count * 1e6) for _ in range(ROUNDS)]
    middle = [statistics.median(side) for side in zip(*rounds)]
    return (
        *middle,
        statistics.median(python - rust for python, rust in rounds),
        statistics.median(python / rust for python, rust in rounds),
    )


def main():
    node = remora.Node()
    client = remora.Client(node.address, link="shm")
    records = {f"key-{n:06}": f"value-{n:058}" for n in range(10_000)}
    table = client.load_table(records)
    keys = [f"key-{n * 7919 % 10_000:06}".encode() for n in range(GETS)]
    for key, value in zip(keys[:BATCH], client.get_many(table, keys[:BATCH])):
        assert value == records[key.decode()].encode()
    client._time_gets(table, keys, "nic", False)

    one = by_turns(
        lambda: singles(client, table, keys), lambda: client._time_gets(table, keys, "nic", False), len(keys)
    )
    some = keys[:BATCH]
    many = by_turns(lambda: batch(client, table, some), lambda: client._time_gets(table, some, "nic", True), BATCH)
    client.close()
    node.close()
    print(f"{'GETs of 64 B over shared memory':<34} {'Python':>9} {'Rust':>9} {'more':>9} {'ratio':>6}  at most")
    met = [one[2] <= MORE_US, many[3] <= TIMES]
    for what, (python, rust, more, ratio), goal, is_met in [
        ("one at a time", one, f"{MORE_US:.0f} us more", met[0]),
        (f"{BATCH:,} at once", many, f"{TIMES} x", met[1]),
    ]:
        verdict = "met" if is_met else "missed"
        print(f"{what:<34} {python:>6.2f} us {rust:>6.2f} us {more:>6.2f} us {ratio:>6.2f}  {goal}: {verdict}")
    return 0 if all(met) else 1


sys.exit(main())
