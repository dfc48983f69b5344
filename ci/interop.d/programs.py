"""Running a server and a client on two Remora devices of this machine, and telling whether they did their work."""

import atexit
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent.parent
NEEDED = {"ib_write_lat": "perftest", "ibv_rc_pingpong": "ibverbs-utils", "ucx_perftest": "ucx-utils",
          "fi_pingpong": "libfabric-bin", "rping": "rdmacm-utils"}


def remora(build="release"):
    """The command, or the end with a line that says how to get it."""
    target = Path(os.environ.get("CARGO_TARGET_DIR", REPOSITORY / "target")) / build
    for file in ("remora", "libibverbs.so"):
        if not (target / file).exists():
            sys.exit(f"{target / file} is not built: cargo build --release")
    return target / "remora"


def exists(program):
    return any(os.access(Path(d) / program, os.X_OK) for d in os.environ["PATH"].split(":"))


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


RUNNING = set()


def end_all():
    for process in list(RUNNING):
        process.end()


# Ending the suite ends what it started.
atexit.register(end_all)
signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))


class Process:
    """One program with its output in a file, in a process group of its own so that it ends with what it started."""

    def __init__(self, command, environment=None):
        self.out = tempfile.TemporaryFile(mode="w+", errors="replace")
        self.command = [str(word) for word in command]
        self.process = subprocess.Popen(self.command, stdin=subprocess.DEVNULL, stdout=self.out,
                                        stderr=subprocess.STDOUT, start_new_session=True,
                                        env={**os.environ, **(environment or {})})
        RUNNING.add(self)

    def ended(self, seconds):
        """Its exit status, or None if it still runs then."""
        try:
            code = self.process.wait(seconds)
            RUNNING.discard(self)
            return code
        except subprocess.TimeoutExpired:
            return None

    def wait(self, seconds):
        """Its exit status, or None if it did not end in time and was killed."""
        code = self.ended(seconds)
        if code is None:
            self.end()
        return code

    def end(self, how=signal.SIGKILL):
        try:
            os.killpg(self.process.pid, how)
        except ProcessLookupError:
            pass
        if how == signal.SIGKILL:
            self.process.wait()
            RUNNING.discard(self)

    def text(self):
        self.out.flush()
        self.out.seek(0)
        return self.out.read()

    def last_lines(self, count=3):
        """The last lines that speak of an error, or else just the last ones."""
        lines = [line.strip() for line in self.text().splitlines() if line.strip() and set(line.strip()) != {"-"}]
        errors = [line for line in lines if any(word in line.lower() for word in ("error", "fail", "unable", "couldn't"))]
        return " | ".join((errors or lines)[-count:])


def listening(port, process, seconds=10):
    """Waits until somebody listens on the TCP port."""
    end = time.monotonic() + seconds
    while time.monotonic() < end and process.process.poll() is None:
        for table in ("/proc/net/tcp", "/proc/net/tcp6"):
            # Number, own address and port, the peer's, state: 0A is LISTEN.
            rows = [line.split() for line in Path(table).read_text().splitlines()]
            if any(row[1].endswith(f":{port:04X}") and row[3] == "0A" for row in rows):
                return True
        time.sleep(0.02)
    return False


def pair(server, client, port, seconds, listens=True):
    """Runs both to their end: (passed, what went wrong)."""
    first = Process(server)
    if listens:
        listening(port, first)
    else:
        time.sleep(0.6)
    second = Process(client)
    ended = second.wait(seconds)
    also = first.wait(10 if ended == 0 else 2)
    if ended == 0 and also == 0:
        return True, ""
    what = [f"{name} {'hung' if code is None else f'ended with {code}'}: {process.last_lines()}"
            for name, code, process in (("client", ended, second), ("server", also, first)) if code != 0]
    return False, "; ".join(what)


# What a case comes to when one program left before the other had all that it waits for, as it may on any stack.
LEFT = "left"


class Table:
    """Prints one line a case as it ends, counts, and says at the end what failed."""

    def __init__(self, title):
        self.rows = []
        self.started = time.monotonic()
        print(title)

    def add(self, name, passed, note=""):
        """`passed`: whether, None for a case that was not run, or LEFT."""
        word = passed if passed == LEFT else {True: "ok", False: "FAILED", None: "skipped"}[passed]
        self.rows.append((name, word, note))
        print(f"  {name:<58} {word:<8} {note[:160]}", flush=True)

    def finish(self):
        count = {word: sum(1 for row in self.rows if row[1] == word) for word in ("ok", "FAILED", LEFT, "skipped")}
        for word in ("skipped", LEFT, "FAILED"):
            for name, _, note in (row for row in self.rows if row[1] == word):
                print(f"{word}: {name}: {note}")
        seconds = time.monotonic() - self.started
        left = f"{count[LEFT]} left, " if count[LEFT] else ""
        print(f"{count['ok']} passed, {count['FAILED']} failed, {left}{count['skipped']} skipped in {seconds:.0f} s")
        return 1 if count["FAILED"] else 0
