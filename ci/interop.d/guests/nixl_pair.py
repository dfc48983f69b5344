"""Two NIXL agents: `nixl_pair.py server FILE` exposes memory and leaves word of it in FILE, `client FILE` writes to it."""

import base64
import ctypes
import json
import os
import sys
import time
import types

# Older releases name PyTorch's types; here nothing is of them.
try:
    import torch  # noqa: F401
except ImportError:
    torch = types.ModuleType("torch")
    torch.__getattr__ = lambda name: type(name, (), {})
    sys.modules["torch"] = torch

from nixl_cu12._api import nixl_agent, nixl_agent_config

BYTES = 1 << 20
SECONDS = 60


def until(what, done):
    end = time.monotonic() + SECONDS
    while not (found := done()):
        if time.monotonic() > end:
            sys.exit(f"{what}: not in {SECONDS} s")
        time.sleep(0.01)
    return found


def main():
    role, path = sys.argv[1:]
    agent = nixl_agent(role, nixl_agent_config(backends=["UCX"]))
    memory = (ctypes.c_uint8 * BYTES)(*([7] * BYTES if role == "client" else []))
    place = [(ctypes.addressof(memory), BYTES, 0)]
    agent.register_memory([(*place[0], "")], "DRAM")
    descriptors = agent.get_xfer_descs(place, "DRAM")
    if role == "server":
        word = {"agent": agent.get_agent_metadata(), "memory": agent.get_serialized_descs(descriptors)}
        with open(path + ".new", "w") as file:
            json.dump({name: base64.b64encode(value).decode() for name, value in word.items()}, file)
        os.rename(path + ".new", path)
        until("the client's notice", agent.get_new_notifs)
        assert bytes(memory) == b"\7" * BYTES, "other bytes than were sent"
    else:
        until("the server's word", lambda: os.path.exists(path))
        with open(path) as file:
            word = {name: base64.b64decode(value) for name, value in json.load(file).items()}
        name = agent.add_remote_agent(word["agent"])
        remote = agent.deserialize_descs(word["memory"])
        transfer = agent.initialize_xfer("WRITE", descriptors, remote, name, b"written")
        state = agent.transfer(transfer)
        assert state != "ERR"
        until("the end of the transfer", lambda: agent.check_xfer_state(transfer) == "DONE")
    print(role, "is done")


main()
