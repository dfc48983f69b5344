"""Running a server and a client on two Remora devices of this machine, and telling whether they did their work."""

import atexit
import os
import re
import shutil
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


# Where cargo builds; whole, as programs that are built there ask for that.
TARGET = Path(os.environ.get("CARGO_TARGET_DIR", REPOSITORY / "target")).absolute()


def remora(build="release"):
    """The command, or the end with a line that says how to get it."""
    target = TARGET / build
    for file in ("remora", "libibverbs.so"):
        if not (target / file).exists():
            sys.exit(f"{target / file} is not built: cargo build --release")
    return target / "remora"


def remora_of_racks():
    """The command with its sockets library beside it, of a release build if there is one."""
    for build in ("release", "debug"):
        target = TARGET / build
        if all((target / file).exists() for file in ("remora", "libremora_sockets.so")):
            return target / "remora"
    sys.exit("remora and its sockets library are not built: cargo build --release")


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


def carried(*texts):
    """What `remora exec` said at the end of programs: each link that carried something, and the bytes sent, in words."""
    said = re.findall(r"(?:: |; )(\w+) sent \d+ messages \(([^)]*)\)", "\n".join(texts))
    return ", ".join(sorted({f"{link} {bytes_sent}" for link, bytes_sent in said})) or "no link"


def row(table, name, commands, environment=None, seconds=120, ready=None, says="", alone=False):
    """Runs programs at once, or each when `ready(the one before)` says so, to their end, and adds a row: how long that took,
    which links carried it, what each sent. It passes if all end well, one says `says`, and
    something was carried unless the program is `alone` on its device."""
    start, ends = time.monotonic(), []
    for command in commands:
        if ends and ready:
            ready(ends[-1])
        ends.append(Process(command, environment))
    # The last to start is the first to end.
    codes = [end.wait(seconds) for end in reversed(ends)][::-1]
    links = carried(*(end.text() for end in ends))
    wrong = [f"; {Path(str(end.command[-1])).name} {'hung' if code is None else f'ended with {code}'}: {end.last_lines()}"
             for end, code in zip(ends, codes) if code != 0]
    if not any(says in end.text() for end in ends):
        wrong.append(f"; nobody said {says!r}")
    table.add(name, not wrong and (alone or links != "no link"), f"{time.monotonic() - start:5.1f} s  {links}{''.join(wrong)}")


def place(name):
    """Where what belongs to this name is kept between runs."""
    return TARGET / "interop" / "packages" / name


def once(name, wanted, make):
    """The place of this name, made by `make(place)` unless it is there as `wanted` has it: None and the reason if that fails."""
    directory = place(name)
    stamp = directory / "installed"
    if not stamp.exists() or stamp.read_text() != wanted:
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir(parents=True)
        try:
            make(directory)
        except FileNotFoundError as error:
            return None, f"{error.filename} is not installed"
        except subprocess.CalledProcessError as error:
            said = (error.stderr.strip() or error.stdout.strip()).splitlines()
            return None, next((line.strip() for line in said if "error" in line), said[-1] if said else str(error))
        stamp.write_text(wanted)
    return directory, ""


def quietly(*command, **options):
    """Runs a command that makes something; what it says is in the exception if it fails."""
    subprocess.run([str(word) for word in command], check=True, capture_output=True, text=True, **options)


def mirror():
    """Where this machine's own packages come from: what has its release has the others."""
    said = subprocess.run(["apt-get", "indextargets", "--format", "$(REPO_URI)"], capture_output=True, text=True, check=True)
    places = [place.rstrip("/") for place in said.stdout.split()]
    return next((place for place in places if place.endswith("/debian")), places[0])


def packages(name, wanted):
    """A Python with these packages of its registry, made on first use: "name==version", each with its version. `None`
    and the reason if it cannot be had."""
    def make(directory):
        quietly(sys.executable, "-m", "venv", directory)
        # Without what they depend on: they carry their libraries, and the programs here need no more.
        quietly(directory / "bin" / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps", *wanted)

    made, why = once(name, " ".join(wanted), make)
    return (made / "bin" / "python", "") if made else (None, why)


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
