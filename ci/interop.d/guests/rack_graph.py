"""PageRank and breadth-first search on a generated graph of ten million edges, over MPI: each rank has a part of the vertices,
and ranks exchange what goes to others' every superstep. Rank 0 does the same alone and compares.

mpirun -n 4 --mca pml ob1 --mca btl tcp,self python3 rack_graph.py [EDGES]
"""

import sys

import numpy as np
from mpi4py import MPI

RANKS = MPI.COMM_WORLD.Get_size()
ME = MPI.COMM_WORLD.Get_rank()
EDGES = int(sys.argv[1]) if len(sys.argv) > 1 else 10_000_000
VERTICES = EDGES // 16
STEPS, DAMPING = 5, 0.85


def generate(part):
    """A part of the edges: from anywhere, to a few vertices often and to most seldom."""
    chance = np.random.default_rng(part)
    count = EDGES // RANKS
    source = chance.integers(0, VERTICES, count)
    target = (VERTICES * chance.random(count) ** 3).astype(np.int64)
    return source, target


def exchange(comm, parts):
    """Gives every rank its array of `parts`; returns what all others have for this one."""
    counts = np.array([len(part) for part in parts], dtype=np.int32)
    come = np.empty_like(counts)
    comm.Alltoall(counts, come)
    out = np.concatenate(parts)
    got = np.empty(come.sum(), dtype=out.dtype)
    begins = lambda of: np.concatenate(([0], np.cumsum(of)[:-1]))
    comm.Alltoallv([out, (counts, begins(counts))], [got, (come, begins(come))])
    return got


def of_others(array, owner):
    return [array[owner == rank] for rank in range(RANKS)]


def pagerank(comm, source, target, degree, mine):
    """Ranks of this one's vertices: `mine` is what vertices those are, `source` are edges that leave them."""
    low, high = mine
    rank = np.full(high - low, 1.0 / VERTICES)
    owner = np.minimum(target * RANKS // VERTICES, RANKS - 1)
    for _ in range(STEPS):
        share = (rank / np.maximum(degree, 1))[source - low]
        to, what = target, share
        if comm is not None:
            to = exchange(comm, of_others(target, owner))
            what = exchange(comm, of_others(share, owner))
        rank = (1 - DAMPING) / VERTICES + DAMPING * np.bincount(to - low, weights=what, minlength=high - low)
    return rank


def search(comm, source, target, mine):
    """How many steps each of this rank's vertices is from vertex 0; -1: none leads there."""
    low, high = mine
    away = np.full(high - low, -1, dtype=np.int64)
    if low == 0:
        away[0] = 0
    order = np.argsort(source, kind="stable")
    source, target = source[order], target[order]
    begins = np.searchsorted(source, np.arange(low, high + 1))
    for step in range(1, 1000):
        front = np.flatnonzero(away == step - 1)
        edges = [np.arange(begins[at], begins[at + 1]) for at in front]
        found = np.unique(target[np.concatenate(edges)]) if edges else np.empty(0, dtype=np.int64)
        if comm is not None:
            owner = np.minimum(found * RANKS // VERTICES, RANKS - 1)
            found = exchange(comm, of_others(found, owner))
        new = np.unique(found - low)
        new = new[away[new] == -1]
        away[new] = step
        more = len(new) if comm is None else comm.allreduce(len(new))
        if more == 0:
            return away
    return away


def main():
    comm = MPI.COMM_WORLD
    bounds = [-(-VERTICES * rank // RANKS) for rank in range(RANKS + 1)]
    mine = (bounds[ME], bounds[ME + 1])
    source, target = generate(ME)
    # Edges go to who has the vertex that they leave.
    owner = np.minimum(source * RANKS // VERTICES, RANKS - 1)
    source, target = exchange(comm, of_others(source, owner)), exchange(comm, of_others(target, owner))
    degree = np.bincount(source - mine[0], minlength=mine[1] - mine[0])
    start = MPI.Wtime()
    ranks = comm.gather(pagerank(comm, source, target, degree, mine))
    middle = MPI.Wtime()
    aways = comm.gather(search(comm, source, target, mine))
    end = MPI.Wtime()
    if ME != 0:
        return
    parts = [generate(part) for part in range(RANKS)]
    source, target = (np.concatenate([part[side] for part in parts]) for side in (0, 1))
    whole = (0, VERTICES)
    alone = pagerank(None, source, target, np.bincount(source, minlength=VERTICES), whole)
    assert np.allclose(np.concatenate(ranks), alone, rtol=1e-9, atol=0), "other ranks than one process has"
    assert np.array_equal(np.concatenate(aways), search(None, source, target, whole)), "other distances"
    print(f"right: {len(source)} edges, PageRank {middle - start:.2f} s, search {end - middle:.2f} s", flush=True)


main()
