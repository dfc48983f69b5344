"""Counts words with dask.distributed: a scheduler and four worker processes that talk over TCP."""

import random
from collections import Counter

from dask.distributed import Client, LocalCluster


def text(part):
    chance = random.Random(part)
    return [f"word{min(int(chance.paretovariate(0.8)), 5000)}" for _ in range(50_000)]


def count(part):
    return Counter(text(part))


def reduce(counts, part, parts):
    """The sums of a part of the words."""
    total = Counter()
    for words in counts:
        total.update({word: n for word, n in words.items() if int(word.removeprefix("word")) % parts == part})
    return total


if __name__ == "__main__":
    with LocalCluster(n_workers=4, threads_per_worker=1, processes=True, dashboard_address=None, protocol="tcp",
                      host="127.0.0.1") as cluster, Client(cluster) as client:
        counts = client.map(count, range(24))
        # Every reducer wants a part of what every mapper has: workers fetch from each other.
        sums = client.gather([client.submit(reduce, counts, part, 4) for part in range(4)])
    got, want = sum(sums, Counter()), sum(map(count, range(24)), Counter())
    assert got == want and sum(got.values()) == 24 * 50_000, "other words were counted"
    print("right")
