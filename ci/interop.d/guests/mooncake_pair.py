"""Two Mooncake transfer engines: `mooncake_pair.py server FILE` exposes memory and leaves word of it in FILE, `client
FILE` writes to it."""

import ctypes
import os
import sys
import time

from mooncake.engine import TransferEngine

BYTES = 1 << 20
SECONDS = 60
# Where the two tell each other of their memory: at the device's address, if it was given one, for they may be two machines.
HOST = os.environ.get("REMORA_DEVICE_ADDRESS", "127.0.0.1")


def main():
    role, path = sys.argv[1:]
    engine = TransferEngine()
    assert engine.initialize(HOST, "P2PHANDSHAKE", "rdma", "remora0") == 0, "no engine"
    memory = (ctypes.c_uint8 * BYTES)(*([7] * BYTES if role == "client" else []))
    assert engine.register_memory(ctypes.addressof(memory), BYTES) == 0, "memory cannot be registered"
    end = time.monotonic() + SECONDS
    if role == "server":
        with open(path + ".new", "w") as file:
            file.write(f"{HOST}:{engine.get_rpc_port()} {ctypes.addressof(memory)}")
        os.rename(path + ".new", path)
        # The client writes from the first byte to the last, one transfer after the other.
        while memory[0] != 7 or not os.path.exists(path + ".done"):
            assert time.monotonic() < end, "nothing was written"
            time.sleep(0.01)
        assert bytes(memory) == b"\7" * BYTES, "other bytes than were sent"
    else:
        while not os.path.exists(path):
            assert time.monotonic() < end, "no word of the server"
            time.sleep(0.01)
        with open(path) as file:
            host, address = file.read().split()
        for _ in range(20):
            assert engine.transfer_sync_write(host, ctypes.addressof(memory), int(address), BYTES) == 0
        open(path + ".done", "w").close()
    print(role, "is done", flush=True)


main()
