"""A Linux guest with the kernel's Soft-RoCE, in a network namespace of its own.

The process that imports this lives in that namespace (see enter()); the guest hangs on a tap device in it, so that
nothing leaves the machine and everything is gone with the process.
"""

import os
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
HOST = "10.77.0.1"
GUEST = "10.77.0.11"
TAP = "rxe0tap"
NEEDED = ["qemu-system-x86_64", "busybox", "cpio", "modprobe", "unshare", "ip", "tcpdump", "tshark"]
PACKAGES = "qemu-system-x86 busybox-static cpio kmod util-linux iproute2 tcpdump tshark perftest rdmacm-utils ibverbs-utils"


def directory():
    """Where the guest's kernel and RAM disk are kept between runs."""
    cache = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(cache) / "remora" / "rxe-guest"


def missing():
    """Programs that are not there."""
    path = os.environ["PATH"] + ":/sbin:/usr/sbin"
    return [program for program in NEEDED if not shutil.which(program, path=path)]


def enter():
    """Build the guest if need be, then run this very command again inside a fresh network namespace."""
    if os.environ.get("REMORA_INTEROP_INSIDE") == str(os.getppid()):
        return
    absent = missing()
    if absent:
        sys.exit(f"not found: {' '.join(absent)}; try: apt-get install -y --no-install-recommends {PACKAGES}")
    subprocess.run([str(HERE.parent / "rxe-guest" / "build"), str(directory())], check=True)
    flags = ["-n"] if os.geteuid() == 0 else ["-rn"]
    env = dict(os.environ, REMORA_INTEROP_INSIDE=str(os.getpid()))
    sys.exit(subprocess.run(["unshare", *flags, sys.executable, *sys.argv], env=env).returncode)


# Seconds in which a guest that lives answers, however busy the machine is.
PATIENCE = 30


class Hung(Exception):
    """The guest's shell does not answer any more."""


class Guest:
    """One running guest; `mtu` is the Ethernet's, `console` a file for what its kernel says. With `files` this machine's
    files are in its /host, to be read."""

    def __init__(self, mtu, console, files=False):
        run = lambda *words: subprocess.run(words, check=True)
        run("ip", "link", "set", "lo", "up")
        run("ip", "tuntap", "add", "dev", TAP, "mode", "tap")
        # A wire that loses nothing by itself: a program here sends faster than an emulated machine takes in.
        run("ip", "link", "set", TAP, "mtu", str(mtu), "txqueuelen", "20000", "up")
        run("ip", "addr", "add", f"{HOST}/24", "dev", TAP)
        self.log = console
        self.log.touch()
        # The virtual NIC must offer the large MTU, or the guest drops large frames.
        offer = f",host_mtu={mtu}" if mtu > 1500 else ""
        kernel = directory()
        append = ("console=ttyS0 quiet loglevel=4 panic=-1 mitigations=off nokaslr no_timer_check tsc=reliable "
                  f"clocksource=tsc rxe.ip={GUEST} rxe.mtu={mtu}")
        self.qemu = subprocess.Popen(
            ["qemu-system-x86_64", "-M", "q35", "-accel", "tcg,thread=multi,tb-size=128", "-cpu", "max,la57=off",
             "-m", "1024" if files else "384", "-nodefaults", "-no-user-config", "-display", "none", "-no-reboot",
             "-serial", f"file:{self.log}", "-kernel", str(kernel / "vmlinux"),
             "-initrd", str(kernel / "initramfs.gz"), "-append", append,
             "-netdev", f"tap,id=n0,ifname={TAP},script=no,downscript=no",
             "-device", f"virtio-net-pci,netdev=n0,mac=52:54:00:77:00:11,romfile={offer}",
             "-device", "virtio-rng-pci",
             *(["-virtfs", "local,path=/,mount_tag=host,security_model=none,readonly=on,multidevs=remap"] if files else [])],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        deadline = time.monotonic() + 120
        while "RXE-READY" not in self.log.read_text(errors="replace"):
            if self.qemu.poll() is not None or time.monotonic() > deadline:
                why = self.qemu.stderr.read().decode() if self.qemu.poll() is not None else "no answer in 120 s"
                self.stop()
                raise Hung(f"it did not come up: {why}; its kernel said last: {self.last_line()}")
            time.sleep(0.1)

    def start(self, command):
        """Start a command in the guest."""
        return Running(command)

    def run(self, command):
        """Run a short command in the guest; its output. A failing command raises, and so does a guest that hangs."""
        code, output = self.start(command).wait(PATIENCE)
        if code is None:
            raise Hung(f"{command} takes more than {PATIENCE} s")
        if code:
            raise RuntimeError(f"in the guest: {command}: {output}")
        return output

    def answers(self):
        """Whether its shell does anything within PATIENCE."""
        try:
            return self.qemu.poll() is None and self.start("echo here").wait(PATIENCE) == (0, "here")
        except Hung:
            return False

    def state(self):
        """What can be said of a guest that does not answer: its machine, its processor, its network, its kernel."""
        if self.qemu.poll() is not None:
            return f"its machine ended with {self.qemu.returncode}; its kernel said last: {self.last_line()}"
        ticks = lambda: sum(map(int, Path(f"/proc/{self.qemu.pid}/stat").read_text().rsplit(")", 1)[1].split()[11:13]))
        before, began = ticks(), time.monotonic()
        ping = subprocess.run(["busybox", "ping", "-c", "3", "-W", "3", GUEST], stdout=subprocess.DEVNULL, check=False)
        busy = (ticks() - before) / os.sysconf("SC_CLK_TCK") / (time.monotonic() - began)
        return (f"no answer from its shell in {PATIENCE} s; it {'answers' if ping.returncode == 0 else 'does not answer'} "
                f"a ping; {busy:.0%} of a core used; its kernel said last: {self.last_line()}")

    def last_line(self):
        lines = self.log.read_text(errors="replace").strip().splitlines()
        return lines[-1] if lines else "nothing"

    def loss(self, percent):
        """Lose packets that arrive at the guest from now on: what leaves it is lost by our own lossy link."""
        self.run("/usr/bin/tc qdisc del dev eth0 ingress 2>/dev/null; true")
        if percent:
            self.run("set -e; modprobe ifb numifbs=1; modprobe act_mirred; modprobe sch_ingress; modprobe cls_matchall\n"
                     "/usr/bin/ip link show ifb0 >/dev/null 2>&1 || /usr/bin/ip link add ifb0 type ifb\n"
                     "/usr/bin/ip link set ifb0 up\n"
                     "/usr/bin/tc qdisc add dev eth0 ingress\n"
                     "/usr/bin/tc filter add dev eth0 parent ffff: matchall action mirred egress redirect dev ifb0\n"
                     f"/usr/bin/tc qdisc replace dev ifb0 root netem loss {percent}% limit 10000")

    def stop(self):
        """End the guest and its network."""
        self.qemu.kill()
        self.qemu.wait()
        subprocess.run(["ip", "link", "del", TAP], check=False)


class Running:
    """A command that runs in the guest."""

    def __init__(self, command):
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                self.socket = socket.create_connection((GUEST, 2323), max(1, deadline - time.monotonic()))
                break
            except OSError as error:
                if time.monotonic() > deadline:
                    raise Hung(f"its shell takes no connection in {PATIENCE} s ({error})") from error
                time.sleep(0.2)
        self.data = b""
        self.socket.sendall(f"exec 2>&1\n{command}\nr=$?; echo; echo RC=$r\nexit\n".encode())

    def wait(self, timeout):
        """(exit code, output); the code is None if it still runs after the timeout, when it can be waited for again."""
        deadline = time.monotonic() + timeout
        while True:
            self.socket.settimeout(max(0.01, deadline - time.monotonic()))
            try:
                more = self.socket.recv(65536)
            except OSError:
                return None, self.data.decode("latin1")
            if not more:
                break
            self.data += more
        body, _, code = self.data.decode("latin1").rpartition("\nRC=")
        return (int(code) if code.strip().isdigit() else 1), body.strip("\n")
