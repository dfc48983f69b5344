"""Collectives, windows and atomics of an MPI library, each result checked."""

import sys
import threading

from mpi4py import MPI


def main():
    # A hang is a failure too.
    watch = threading.Timer(120, lambda: MPI.COMM_WORLD.Abort(9))
    watch.daemon = True
    watch.start()
    world = MPI.COMM_WORLD
    rank, size = world.rank, world.size
    for count in (1, 1_000, 1_000_000):
        mine = bytearray([rank + 1]) * count
        got = bytearray(count)
        world.Sendrecv(mine, (rank + 1) % size, recvbuf=got, source=(rank - 1) % size)
        assert got == bytearray([(rank - 1) % size + 1]) * count, f"ring of {count} bytes"
        every = bytearray(count * size)
        world.Allgather(mine, every)
        assert every == b"".join(bytes([other + 1]) * count for other in range(size)), f"all of {count} bytes"
    assert world.allreduce(rank) == size * (size - 1) // 2
    window = MPI.Win.Allocate(8_000, 8, comm=world)
    window.Fence()
    # It belongs to the library until the fence.
    mine = bytearray([rank + 1]) * 8_000
    window.Put(mine, (rank + 1) % size)
    window.Fence()
    assert bytes(window.tomemory()) == bytes([(rank - 1) % size + 1]) * 8_000, "window"
    window.tomemory()[:] = bytes(8_000)
    world.Barrier()
    one, before = memoryview(bytearray(8)).cast("q"), memoryview(bytearray(8)).cast("q")
    one[0] = 1
    for _ in range(50):
        window.Lock(0)
        window.Fetch_and_op([one, MPI.INT64_T], [before, MPI.INT64_T], 0)
        window.Unlock(0)
    world.Barrier()
    if rank == 0:
        window.Lock(0)
        assert memoryview(window.tomemory()).cast("B").cast("q")[0] == 50 * size, "atomics"
        window.Unlock(0)
        print("checked", MPI.Get_library_version().split("\n")[0])
    window.Free()
    watch.cancel()


sys.exit(main())
