"""Connections of all kinds under `remora rack exec`: every byte is looked at. A line for each part that is right."""
import array, errno, fcntl, hashlib, os, random, select, signal, socket, struct, sys, tempfile, termios, threading, time

SEED = int(sys.argv[2]) if len(sys.argv) > 2 else 1
# Else all are the kernel's, and do the same.
RACK = "LD_PRELOAD" in os.environ


def pair(family=socket.AF_INET):
    address = "127.0.0.1" if family == socket.AF_INET else "::1"
    with socket.socket(family) as listener:
        listener.bind((address, 0))
        listener.listen()
        a = socket.socket(family)
        a.connect(listener.getsockname())
        b, _ = listener.accept()
    return a, b


def warm(a, b, rounds=12):
    """Calls enough that both ends find each other, with bytes under way in both directions."""
    for n in range(rounds):
        for x, y in ((a, b), (b, a)):
            x.sendall(b"%04d" % n)
            assert exactly(y, 4) == b"%04d" % n


def exactly(s, n):
    out = b""
    while len(out) < n:
        part = s.recv(n - len(out))
        if not part:
            raise EOFError(len(out))
        out += part
    return out


def forked(work):
    pid = os.fork()
    if pid == 0:
        try:
            work()
            os._exit(0)
        except BaseException as e:
            print("child:", repr(e), file=sys.stderr)
            os._exit(1)
    return pid


def ended(pid):
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def stream(seed, total):
    r = random.Random(seed)
    block = r.randbytes(65536)
    sent = 0
    while sent < total:
        n = min(r.choice([1, 7, 64, 1000, 4096, 30000, 65536]), total - sent)
        yield block[:n]
        sent += n


def send_stream(s, seed, total):
    h = hashlib.md5()
    for part in stream(seed, total):
        s.sendall(part)
        h.update(part)
    return h.hexdigest()


def recv_stream(s, seed, total):
    h, r, left = hashlib.md5(), random.Random(seed + 99), total
    while left:
        part = s.recv(min(left, r.choice([1, 10, 1000, 100000, 1 << 20])))
        assert part, left
        h.update(part)
        left -= len(part)
    return h.hexdigest()


def check_round_trips():
    for family in (socket.AF_INET, socket.AF_INET6):
        a, b = pair(family)
        warm(a, b, 300)


def check_streams():
    """Both ways at once, between two processes, from the first byte on."""
    a, b = pair()
    total = 12 << 20

    def other():
        a.close()
        got = []
        t = threading.Thread(target=lambda: got.append(recv_stream(b, SEED, total)))
        t.start()
        h = send_stream(b, SEED + 1, total)
        t.join()
        b.sendall((got[0] + h).encode())
        assert b.recv(1) == b""

    pid = forked(other)
    b.close()
    sums = []
    t = threading.Thread(target=lambda: sums.append(send_stream(a, SEED, total)))
    t.start()
    h = recv_stream(a, SEED + 1, total)
    t.join()
    assert exactly(a, 64).decode() == sums[0] + h
    a.close()
    ended(pid)


def check_crowd():
    """Strangers fill the daemon's door and say nothing: who is in the rack is served, and nobody works for them."""
    a, b = busy_pair()
    crowd = []
    for _ in range(200 if RACK else 0):
        s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        s.setblocking(False)
        try:
            s.connect(f"\0remora/rack/{os.geteuid()}")
        except BlockingIOError:
            pass
        crowd.append(s)
    for _ in range(5):
        busy_pair()
    warm(a, b)
    if "REMORA_TEST_DAEMON" in os.environ:
        work = lambda: sum(map(int, open(f"/proc/{os.environ['REMORA_TEST_DAEMON']}/stat").read().rsplit(")")[1].split()[11:13]))
        before = work()
        time.sleep(1)
        assert work() - before < 10, "it works for nobody"
    [s.close() for s in crowd]
    eventually(lambda: busy_pair())


def check_epoll():
    """Non-blocking ends in one loop, level- and edge-triggered, one-shot."""
    for extra in (0, select.EPOLLET, select.EPOLLONESHOT):
        total, ends = 3 << 20, []
        for n in range(5):
            a, b = pair()
            if n % 2:
                warm(a, b)
            ends += [a, b]
        ep = select.epoll()
        state = {}
        for n, s in enumerate(ends):
            s.setblocking(False)
            ep.register(s.fileno(), select.EPOLLIN | select.EPOLLOUT | extra)
            state[s.fileno()] = [s, stream(n, total), b"", hashlib.md5(), total, hashlib.md5()]
        running = set(state)
        while running:
            events = ep.poll(20)
            assert events, "nothing for 20 s: " + str([(fd, st[4]) for fd, st in state.items()])
            for fd, event in events:
                st = state[fd]
                s = st[0]
                while event & select.EPOLLIN and st[4]:
                    try:
                        part = s.recv(50000)
                    except BlockingIOError:
                        break
                    assert part
                    st[5].update(part)
                    st[4] -= len(part)
                    if not extra & select.EPOLLET:
                        break
                while event & select.EPOLLOUT and st[1] is not None:
                    if not st[2]:
                        st[2] = next(st[1], None)
                        if st[2] is None:
                            st[1] = None
                            break
                    try:
                        n = s.send(st[2])
                    except BlockingIOError:
                        break
                    st[3].update(st[2][:n])
                    st[2] = st[2][n:]
                    if not extra & select.EPOLLET:
                        break
                if st[4] == 0 and st[1] is None:
                    running.discard(fd)
                    ep.unregister(fd)
                elif extra & select.EPOLLONESHOT or (st[1] is None and not extra):
                    ep.modify(fd, (select.EPOLLIN | extra) if st[1] is None else (select.EPOLLIN | select.EPOLLOUT | extra))
        for x, y in zip(ends[::2], ends[1::2]):
            for p, q in ((x, y), (y, x)):
                assert state[p.fileno()][3].digest() == state[q.fileno()][5].digest()
            x.close(), y.close()


def check_epoll_empty():
    """One thread sleeps in a loop that has nothing in it when another one puts the first connection there."""
    for n in range(20):
        a, b = pair()
        ep, heard = select.epoll(), []
        t = threading.Thread(target=lambda: heard.extend(ep.poll(20)))
        t.start()
        time.sleep(0.002 * (n % 3))
        ep.register(b.fileno(), select.EPOLLIN)
        a.sendall(b"x")
        t.join()
        assert heard == [(b.fileno(), select.EPOLLIN)], heard
        a.close(), b.close()


def check_epoll_threads():
    """One thread sleeps in the loop while another one changes what it is to hear of."""
    for extra in (0, select.EPOLLONESHOT):
        a, b = pair()
        warm(a, b)
        a.setblocking(False)
        ep, heard, told, over, r = select.epoll(), [], threading.Event(), threading.Event(), random.Random(SEED)
        ep.register(a.fileno(), select.EPOLLIN | extra)

        def loop():
            while not over.is_set():
                for _, event in ep.poll():
                    quiet = event & select.EPOLLOUT and not extra
                    ep.modify(a.fileno(), (select.EPOLLIN if quiet else 0) | extra)
                    heard.append(event)
                    told.set()

        t = threading.Thread(target=loop, daemon=True)
        t.start()
        block = r.randbytes(1 << 16)
        for n in range(40):
            sent = 0
            try:
                while True:
                    sent += a.send(block)
            except BlockingIOError:
                pass
            time.sleep(r.choice([0, 0.0002, 0.003]))
            told.clear()
            if n % 2:
                # There is room before it is asked for.
                assert len(exactly(b, sent)) == sent
                time.sleep(r.choice([0, 0.0002, 0.003]))
            ep.modify(a.fileno(), select.EPOLLIN | select.EPOLLOUT | extra)
            if not n % 2:
                time.sleep(r.choice([0, 0.0002, 0.003]))
                assert len(exactly(b, sent)) == sent
            assert told.wait(20), f"{n}: it hears of no room"
            assert heard[-1] == select.EPOLLOUT, heard[-1]
        told.clear()
        ep.modify(a.fileno(), select.EPOLLIN | extra)
        b.sendall(b"x")
        assert told.wait(20) and heard[-1] == select.EPOLLIN, heard[-1]
        over.set()
        a.recv(1)
        ep.modify(a.fileno(), select.EPOLLIN | select.EPOLLOUT | extra)
        t.join(20)
        assert not t.is_alive()
        a.close(), b.close()


def check_poll_and_select():
    a, b = pair()
    warm(a, b)
    p = select.poll()
    p.register(b, select.POLLIN)
    assert p.poll(10) == [] and select.select([b], [], [], 0.01) == ([], [], [])
    threading.Timer(0.05, a.sendall, (b"hello",)).start()
    assert p.poll(5000) == [(b.fileno(), select.POLLIN)]
    assert select.select([b], [a], [], 5) == ([b], [a], [])
    assert b.recv(2) == b"he" and p.poll(0) and select.select([b], [], [], 0)[0] and b.recv(9) == b"llo"
    a.setblocking(False)
    sent = 0
    while True:
        try:
            sent += a.send(bytes(100000))
        except BlockingIOError:
            break
    assert select.select([], [a], [], 0)[1] == []
    threading.Timer(0.05, exactly, (b, sent)).start()
    assert select.select([], [a], [], 5)[1] == [a]


def check_ends():
    a, b = pair()
    warm(a, b)
    a.sendall(b"last words")
    a.shutdown(socket.SHUT_WR)
    assert exactly(b, 10) == b"last words" and b.recv(1) == b"" and b.recv(1) == b""
    big = os.urandom(3 << 20)
    t = threading.Thread(target=b.sendall, args=(big,))
    t.start()
    assert exactly(a, len(big)) == big
    t.join()
    b.close()
    assert a.recv(1) == b""
    # Closed with data on its way: all arrives, then the end.
    a, b = pair()
    warm(a, b)
    a.sendall(b"x" * 100000)
    a.close()
    assert exactly(b, 100000) and b.recv(1) == b""
    try:
        for _ in range(100):
            b.sendall(b"to nobody")
            time.sleep(0.001)
        raise AssertionError("nobody was there")
    except (BrokenPipeError, ConnectionResetError):
        pass
    # Data that nobody reads: a reset.
    a, b = pair()
    b.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    warm(a, b)
    b.sendall(b"unread")
    a.close()
    try:
        assert b.recv(1) == "a reset"
    except ConnectionResetError:
        pass
    # A sleeping reader hears of the end.
    a, b = pair()
    warm(a, b)
    threading.Timer(0.05, a.close).start()
    assert b.recv(1) == b""
    # shutdown wakes a reader of the same process.
    a, b = pair()
    warm(a, b)
    threading.Timer(0.05, b.shutdown, (socket.SHUT_RDWR,)).start()
    assert b.recv(1) == b""


def check_killed():
    """What a process wrote before it was killed arrives; who waits for it hears of its end."""
    for sleeping in (0, 0.05):
        a, b = pair()
        warm(a, b)

        def other():
            a.close()
            b.sendall(b"y" * 200000)
            time.sleep(sleeping)
            os.kill(os.getpid(), signal.SIGKILL)

        pid = os.fork()
        if pid == 0:
            other()
        b.close()
        assert exactly(a, 200000) == b"y" * 200000
        try:
            assert a.recv(1) == b""
        except ConnectionResetError:
            pass
        os.waitpid(pid, 0)


def check_killed_unheard():
    """The same for who lacks room, and has left bytes in the kernel before the end: it does not work while it waits."""
    for how in ("send", "epoll", "poll", "select"):
        a, b = pair()

        def other():
            a.close()
            for _ in range(40):
                b.send(b"x")
                exactly(b, 1)
            time.sleep(0.3)
            os.kill(os.getpid(), signal.SIGKILL)

        pid = os.fork()
        if pid == 0:
            other()
        b.close()
        for _ in range(40):
            a.send(b"y")
            time.sleep(0.002)
        before = time.process_time()
        if how != "send":
            a.setblocking(False)
            full(a)
            ep, p = select.epoll(), select.poll()
            ep.register(a, select.EPOLLOUT)
            p.register(a, select.POLLOUT)
            waits = {"epoll": lambda: ep.poll(10), "poll": lambda: p.poll(10_000)}
            assert waits.get(how, lambda: select.select([], [a], [], 10)[1])(), how
        signal.alarm(10)
        try:
            for _ in range(2):
                a.sendall(bytes(8 << 20))
            raise AssertionError(how + ": nobody took it")
        except (BrokenPipeError, ConnectionResetError):
            pass
        signal.alarm(0)
        assert time.process_time() - before < 0.15, (how, "it works while it waits")
        os.waitpid(pid, 0)


def check_fork():
    """Parent and child share a connection; then one of them has it alone."""
    a, b = pair()
    warm(a, b)

    def child():
        b.sendall(b"from the child")
        assert exactly(b, 5) == b"child"

    pid = forked(child)
    assert exactly(a, 14) == b"from the child"
    a.sendall(b"child")
    ended(pid)
    b.sendall(b"from the parent")
    assert exactly(a, 15) == b"from the parent"
    b.close()
    assert a.recv(1) == b""
    # A server that forks for each connection.
    a, b = pair()
    pid = forked(lambda: (a.close(), [b.sendall(exactly(b, 4)) for _ in range(500)]))
    b.close()
    for n in range(500):
        a.sendall(b"%04d" % n)
        assert exactly(a, 4) == b"%04d" % n
    ended(pid)
    assert a.recv(1) == b""


def check_silent_gate():
    """A gate to another rack that says nothing does not hold up who does not wait."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        listener.bind(f"\0remora/rack/{os.geteuid()}/gate")
    except OSError:
        return
    listener.listen(8)
    with socket.socket() as s:
        s.setblocking(False)
        begin = time.monotonic()
        assert s.connect_ex(("192.0.2.1", 9)) in (errno.EINPROGRESS, errno.ENETUNREACH, errno.EHOSTUNREACH, errno.EACCES, errno.EPERM)
        assert time.monotonic() - begin < 4
    listener.settimeout(0.1)
    if RACK:
        listener.accept()


def check_children_that_leave():
    """Children that end, or become another program, without closing what they had are none who have it."""
    for leaves in (lambda: os._exit(0), lambda: os.execv("/bin/sleep", ["sleep", "30"]), lambda: os.kill(os.getpid(), signal.SIGKILL)):
        a, b = pair()
        pid = forked(leaves)

        def alone_again():
            warm(a, b, 30)
            return not RACK or is_ringed(a, b) and is_ringed(b, a)

        eventually(alone_again)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def check_ends_without_close():
    """A process that has read everything and ends without closing what it had ends as one that has closed it."""
    for leaves in (lambda: os._exit(0), lambda: os.execv("/bin/true", ["true"]), lambda: os.kill(os.getpid(), signal.SIGKILL)):
        for waits in (False, True):
            a, b = pair()
            warm(a, b, 30)

            def other():
                a.close()
                # Told of what comes next, and reads it without having been told.
                assert select.select([b], [], [], 0.01)[0] == []
                b.sendall(b"go")
                time.sleep(0.05)
                exactly(b, 1)
                leaves()

            pid = forked(other)
            b.close()
            assert exactly(a, 2) == b"go"
            a.sendall(b"x")
            if not waits:
                os.waitpid(pid, 0)
            assert a.recv(1) == b""
            try:
                while True:
                    a.sendall(b"x")
                    time.sleep(0.01)
            except BrokenPipeError:
                pass
            if waits:
                os.waitpid(pid, 0)
    # Who has not, or is to, resets.
    for resets in (False, True):
        a, b = pair()
        warm(a, b, 30)

        def other():
            a.close()
            if resets:
                b.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            b.sendall(b"go")
            select.select([b], [], [])
            if resets:
                exactly(b, 1)
            os._exit(0)

        pid = forked(other)
        b.close()
        assert exactly(a, 2) == b"go"
        time.sleep(0.01)
        a.sendall(b"x")
        try:
            raise AssertionError(a.recv(1))
        except ConnectionResetError:
            pass
        os.waitpid(pid, 0)


def check_fork_in_vain():
    """A fork that comes to nothing leaves connections as they were."""
    import ctypes

    def child():
        # Where the first process of a namespace has ended there are no others.
        if ctypes.CDLL(None).unshare(0x20000000) != 0:
            return
        if os.fork() == 0:
            os._exit(0)
        os.wait()
        a, b = busy_pair()
        b.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for _ in range(3):
            fails(errno.ENOMEM, os.fork)
        warm(a, b)
        b.sendall(b"unread")
        a.close()
        fails(errno.ECONNRESET, b.recv, 1)

    ended(forked(child))


def check_fork_threads():
    """A process forks while its threads make and close connections: nobody waits for what was left locked."""
    over, rounds = threading.Event(), []

    def work():
        while not over.is_set():
            a, b = pair()
            warm(a, b, 3)
            with select.epoll() as ep:
                ep.register(a, select.EPOLLIN)
                copy = os.dup(ep.fileno())
            os.close(copy)
            a.close(), b.close()
            rounds.append(1)

    threads = [threading.Thread(target=work, daemon=True) for _ in range(8)]
    [t.start() for t in threads]

    def child():
        a, b = pair()
        warm(a, b, 3)
        a.close()
        assert b.recv(1) == b""

    for n in range(200):
        before = len(rounds)
        pid, end = forked(child), time.time() + 10
        while (done := os.waitpid(pid, os.WNOHANG)) == (0, 0):
            assert time.time() < end, (n, "the child")
            time.sleep(0.001)
        assert done[1] == 0, (n, done)
        while len(rounds) < before + 4:
            assert time.time() < end, (n, "the parent")
            time.sleep(0.001)
    over.set()
    [t.join(10) for t in threads]
    assert not any(t.is_alive() for t in threads)


def check_descriptors():
    a, b = pair()
    warm(a, b)
    c = b.dup()
    b.close()
    a.sendall(b"dup")
    assert exactly(c, 3) == b"dup"
    fd = os.dup2(c.fileno(), 200)
    c.close()
    os.write(fd, b"dup2")
    assert exactly(a, 4) == b"dup2"
    assert fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_NONBLOCK == 0
    os.set_blocking(fd, False)
    try:
        os.read(fd, 1)
        raise AssertionError("nothing was there")
    except BlockingIOError:
        pass
    a.sendall(b"count")
    for _ in range(1000):
        n = array.array("i", [0])
        fcntl.ioctl(fd, termios.FIONREAD, n)
        if n[0] == 5:
            break
        time.sleep(0.001)
    assert n[0] == 5 and os.read(fd, 9) == b"count"
    os.close(fd)
    assert a.recv(1) == b""
    # The number is a file's now, which nobody takes for a connection.
    with tempfile.TemporaryFile() as f:
        os.dup2(f.fileno(), 200)
        os.write(200, b"file")
        assert os.pread(200, 9, 0) == b"file"
        os.close(200)


def check_calls():
    a, b = pair()
    warm(a, b)
    assert a.sendmsg([b"one", b"two", b"three"]) == 11
    buffers = [bytearray(4), bytearray(4), bytearray(8)]
    got, ancillary, flags, _ = b.recvmsg_into(buffers, 100)
    assert (got, ancillary, flags, bytes(buffers[0] + buffers[1] + buffers[2][:3])) == (11, [], 0, b"onetwothree")
    a.sendall(b"peek")
    assert b.recv(4, socket.MSG_PEEK) == b"peek" and b.recv(2) == b"pe" and b.recv(9) == b"ek"
    a.sendall(b"wait")
    threading.Timer(0.03, a.sendall, (b"all" * 10,)).start()
    assert b.recv(34, socket.MSG_WAITALL | socket.MSG_PEEK) == b"wait" + b"all" * 10
    assert b.recv(34, socket.MSG_WAITALL) == b"wait" + b"all" * 10
    try:
        b.recv(1, socket.MSG_DONTWAIT)
        raise AssertionError("nothing was there")
    except BlockingIOError:
        pass
    b.settimeout(0.02)
    try:
        b.recv(1)
        raise AssertionError("nothing was there")
    except TimeoutError:
        pass
    b.settimeout(None)
    b.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", 0, 20000))
    try:
        b.recv(1)
        raise AssertionError("nothing was there")
    except BlockingIOError:
        pass
    b.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", 0, 0))
    assert a.getpeername() == b.getsockname() and a.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == 0
    a.send(b"!", socket.MSG_OOB)
    for _ in range(1000):
        try:
            assert b.recv(1, socket.MSG_OOB) == b"!"
            break
        except OSError:
            time.sleep(0.001)
    else:
        raise AssertionError("no urgent byte")
    a.sendall(b"after")
    assert exactly(b, 5) == b"after"


def check_files():
    data = random.Random(SEED).randbytes(5_000_003)
    with tempfile.NamedTemporaryFile() as f:
        f.write(data)
        f.flush()
        for ready in (0, 12):
            a, b = pair()
            warm(a, b, ready)
            got = []
            t = threading.Thread(target=lambda: got.append(exactly(b, len(data))))
            t.start()
            fd, at = os.open(f.name, os.O_RDONLY), 0
            while at < len(data):
                at += os.sendfile(a.fileno(), fd, at, 1 << 20)
            t.join()
            assert got[0] == data
            os.close(fd)
            if hasattr(os, "splice"):
                r, w = os.pipe()
                a.sendall(b"spliced" * 1000)
                moved = b""
                while len(moved) < 7000:
                    n = os.splice(b.fileno(), w, 7000 - len(moved))
                    assert n > 0
                    moved += os.read(r, n)
                assert moved == b"spliced" * 1000
                os.write(w, b"back")
                assert os.splice(r, a.fileno(), 4) == 4 and exactly(b, 4) == b"back"


def check_idle():
    """Nobody works while nothing happens, in whatever call it waits."""
    import resource

    def limited(s):
        s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", 60, 0))
        s.recv(1)

    def polled(s):
        p = select.poll()
        p.register(s, select.POLLIN)
        p.poll()

    def epolled(s):
        with select.epoll() as ep:
            ep.register(s, select.EPOLLIN)
            ep.poll()

    pairs, threads = [], []
    for wait in (lambda s: s.recv(1), limited, polled, lambda s: select.select([s], [], []), epolled):
        a, b = busy_pair()
        threads.append(threading.Thread(target=wait, args=(b,)))
        threads[-1].start()
        pairs.append((a, b))
    time.sleep(0.1)
    before = resource.getrusage(resource.RUSAGE_SELF)
    time.sleep(2)
    after = resource.getrusage(resource.RUSAGE_SELF)
    for (a, _), t in zip(pairs, threads):
        a.sendall(b"x")
        t.join()
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    assert used < 0.01 and after.ru_nvcsw - before.ru_nvcsw < 20, (used, after.ru_nvcsw - before.ru_nvcsw)


def sandbox():
    """From here on the kernel kills this process for calls that sandboxed servers forbid themselves."""
    import ctypes, platform
    numbers = {"x86_64": (44, 45, 46, 47, 24, 41, 42, 52, 54, 55, 72, 200, 290, 449),
               "aarch64": (206, 207, 211, 212, 124, 198, 203, 205, 208, 209, 25, 130, 19, 449)}[platform.machine()]
    load, same, give = 0x20, 0x15, 0x06
    code = [(load, 0, 0, 0)]
    code += [(same, len(numbers) - n, 0, number) for n, number in enumerate(numbers)]
    code += [(give, 0, 0, 0x7fff0000), (give, 0, 0, 0x80000000)]
    raw = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *line) for line in code))

    class Program(ctypes.Structure):
        _fields_ = [("len", ctypes.c_ushort), ("filter", ctypes.c_void_p)]

    program, libc = Program(len(code), ctypes.addressof(raw)), ctypes.CDLL(None)
    assert libc.prctl(38, 1, 0, 0, 0) == 0
    if SEED % 2:
        assert libc.prctl(22, 2, ctypes.byref(program), 0, 0) == 0
    else:
        # As libseccomp does it.
        assert libc.syscall(317 if platform.machine() == "x86_64" else 277, 1, 0, ctypes.byref(program)) == 0


def check_sandboxes():
    """A server that forbids itself most calls, before, while and after its connection changes over."""
    for calls in (0, 4, 5, 6, 7, 8, 9, 10, 11, 12, 40):
        a, b = pair()
        fd = b.detach()

        def server():
            a.close()
            ep = select.epoll()
            ep.register(fd, select.EPOLLIN)
            for n in range(400):
                if n == calls:
                    sandbox()
                got = b""
                while len(got) < 1000:
                    got += os.read(fd, 1000 - len(got))
                while got:
                    got = got[os.write(fd, got):]
                if n % 50 == 49:
                    select.select([fd], [], [])
                if n % 50 == 19:
                    assert ep.poll() == [(fd, select.EPOLLIN)]
            assert os.read(fd, 1) == b""

        pid = forked(server)
        os.close(fd)
        for n in range(400):
            time.sleep(0.002 if n % 20 == 19 else 0)
            message = b"%04d" % n * 250
            a.sendall(message)
            assert exactly(a, 1000) == message, n
            if n % 50 == 49:
                time.sleep(0.001)
        a.close()
        ended(pid)


def check_epoll_inside():
    """An epoll that is waited for itself: by another one, by `poll` and by `select`, before and after it has a connection."""
    for how in ("epoll", "late", "poll", "select"):
        a, b = pair()
        b.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        inner, outer, polled = select.epoll(), select.epoll(), select.poll()
        if how == "late":
            outer.register(inner, select.EPOLLIN)
        warm(a, b, 30 if how != "poll" else 3)
        inner.register(b, select.EPOLLIN)
        if how == "epoll":
            outer.register(inner, select.EPOLLIN)
        polled.register(inner, select.POLLIN)
        wait = {"poll": lambda s: polled.poll(1000 * s), "select": lambda s: select.select([inner], [], [], s)[0]}
        wait = wait.get(how, outer.poll)

        def server():
            a.close()
            n = 0
            while True:
                assert wait(10), (how, n)
                for fd, events in inner.poll(0):
                    # Sometimes only a part: what is left is told of again.
                    data = b.recv(3 if n % 3 else 100)
                    if not data:
                        return
                    b.sendall(data)
                    n += 1

        pid = forked(server)
        b.close()
        for n in range(400):
            if n % 40 == 39:
                time.sleep(0.003)
            a.sendall(b"%08d" % n)
            assert exactly(a, 8) == b"%08d" % n
        a.close()
        ended(pid)
    # What another thread puts there while one sleeps.
    a, b = pair()
    warm(a, b, 30)
    inner, outer = select.epoll(), select.epoll()
    outer.register(inner, select.EPOLLIN)
    found = []
    t = threading.Thread(target=lambda: found.append(outer.poll(10)))
    t.start()
    time.sleep(0.1)
    inner.register(b, select.EPOLLIN)
    time.sleep(0.1)
    a.sendall(b"x")
    t.join()
    assert found[0] == [(inner.fileno(), select.EPOLLIN)] and inner.poll(0) == [(b.fileno(), select.EPOLLIN)]
    assert b.recv(9) == b"x" and inner.poll(0) == []


def check_strangers():
    """A peer that is not in the rack: the kernel's connection."""
    a, b = pair()
    env = {k: v for k, v in os.environ.items() if k != "LD_PRELOAD"}
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        code = "import socket,sys; s=socket.create_connection(('127.0.0.1',int(sys.argv[1])))\n" \
               "for _ in range(200): s.sendall(s.recv(100))"
        pid = os.posix_spawn(sys.executable, [sys.executable, "-c", code, str(listener.getsockname()[1])], env)
        s, _ = listener.accept()
    for n in range(200):
        s.sendall(b"%04d" % n)
        assert exactly(s, 4) == b"%04d" % n
    s.close()
    ended(pid)


def relays():
    """Processes that pass bytes on for programs that this process, or a child of its, has become."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            of = [open(f"/proc/{pid}/{what}").read() for what in ("comm", "environ")]
        except OSError:
            continue
        if of == ["remora-relay\n", open("/proc/self/environ").read()]:
            found.append(int(pid))
    return found


def eventually(what):
    end = time.time() + 10
    while not what():
        assert time.time() < end
        time.sleep(0.01)


def echoed(a, rounds=30, end=True):
    """Somebody sends back what `a` sends, line by line, and more than any buffer holds."""
    for n in range(rounds):
        a.sendall(b"line %d\n" % n)
        assert exactly(a, len(b"line %d\n" % n)) == b"line %d\n" % n
    if end:
        data = random.Random(SEED).randbytes(3 << 20).replace(b"\n", b"x") + b"\n"
        got = []
        t = threading.Thread(target=lambda: got.append(exactly(a, len(data))))
        t.start()
        a.sendall(data)
        a.shutdown(socket.SHUT_WR)
        t.join()
        assert got[0] == data
        assert a.recv(1) == b""


BASH = "while IFS= read -r l; do echo \"$l\"; done"


def check_inherited():
    """A program is started with a connection that whoever starts it keeps: both go on with it, one after the other."""
    import subprocess
    echo = "import socket, sys\ns = socket.socket(fileno=int(sys.argv[1]))\nfor _ in range(60): s.sendall(s.recv(4))\ns.detach()"
    for family in (socket.AF_INET, socket.AF_INET6):
        a, b = pair(family)
        program = subprocess.Popen([sys.executable, "-c", echo, str(b.fileno())], pass_fds=[b.fileno()])
        for n in range(60):
            a.sendall(b"%04d" % n)
            assert exactly(a, 4) == b"%04d" % n
        assert program.wait(10) == 0
        warm(a, b, 60)
        b.close()
        assert a.recv(1) == b""


def check_exec_standard():
    """Programs that are started with a connection as their standard input and output, by `exec` and by `vfork`."""
    import subprocess
    for family in (socket.AF_INET, socket.AF_INET6):
        for program in (["cat"], [sys.executable, "-c", "import sys\nfor l in sys.stdin: print(l, end='', flush=True)"]):
            a, b = pair(family)
            warm(a, b, 60)

            def server():
                a.close()
                os.dup2(b.fileno(), 0)
                os.dup2(b.fileno(), 1)
                os.execvp(program[0], program)

            pid = forked(server)
            b.close()
            echoed(a)
            a.close()
            ended(pid)

            a, b = pair(family)
            warm(a, b, 60)
            child = subprocess.Popen(program, stdin=b, stdout=b)
            b.close()
            echoed(a)
            assert child.wait() == 0
    # The C library's own reads and writes, in a program that is not told of rings, and one that has made the connection.
    a, b = pair()
    warm(a, b, 60)
    child = subprocess.Popen(["bash", "--norc", "-c", BASH], stdin=b, stdout=b, env={"PATH": os.environ["PATH"]})
    b.close()
    echoed(a, end=False)
    a.shutdown(socket.SHUT_WR)
    assert child.wait() == 0 and a.recv(1) == b""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        code = "exec 3<>/dev/tcp/127.0.0.1/%d; while read -r l <&3; do echo \"$l\" >&3; done" % listener.getsockname()[1]
        child = subprocess.Popen(["bash", "--norc", "-c", code])
        a, _ = listener.accept()
    echoed(a, 300, end=False)
    a.close()
    assert child.wait() == 0
    eventually(lambda: not relays())


def check_exec_shared():
    """A child that only writes leaves what comes to its parent, which goes on when it has ended."""
    import subprocess
    a, b = pair()
    warm(a, b, 60)
    for n in range(5):
        child = subprocess.Popen(["sh", "-c", "sleep 0.1; echo from child"], stdout=b, stderr=b)
        a.sendall(b"to parent")
        assert exactly(b, 9) == b"to parent" and exactly(a, 11) == b"from child\n" and child.wait() == 0
        warm(a, b, 3)
    # The other way round: standard output before input.
    child = subprocess.Popen(["sh", "-c", "read l; echo $l"], stdout=b, stdin=b)
    a.sendall(b"for child\n")
    assert exactly(a, 10) == b"for child\n" and child.wait() == 0
    eventually(lambda: not relays())
    warm(a, b, 3)
    b.close()
    assert a.recv(1) == b""


def check_exec_named():
    """Descriptors that a program is told of, and keeps by itself."""
    import subprocess
    code = "import socket, sys\ns = socket.socket(fileno=int(sys.argv[1]))\n" \
           "while True:\n    d = s.recv(1 << 16)\n    if not d: break\n    s.sendall(d)"
    a, b = pair()
    warm(a, b, 60)
    child = subprocess.Popen([sys.executable, "-c", code, str(b.fileno())], pass_fds=[b.fileno()])
    b.close()
    echoed(a)
    assert child.wait() == 0
    for early in (True, False):
        a, b = pair()
        if early:
            b.set_inheritable(True)
        warm(a, b, 60)
        assert b.get_inheritable() == early

        def server():
            a.close()
            if not early:
                b.set_inheritable(True)
            os.execv(sys.executable, [sys.executable, "-c", code, str(b.fileno())])

        pid = forked(server)
        b.close()
        echoed(a)
        ended(pid)
    # One that is left open by chance costs nothing, and nobody takes from it.
    a, b = pair()
    fcntl.fcntl(b.fileno(), fcntl.F_SETFD, 0)
    c, d = pair()
    warm(a, b, 60)
    warm(c, d)
    child = subprocess.Popen(["sleep", "0.2"], close_fds=False)
    warm(c, d)
    assert child.wait() == 0
    # By actions of `posix_spawn`, and past a Unix socket.
    for extra in ([], [(os.POSIX_SPAWN_DUP2, d.fileno(), 2)]):
        actions = [(os.POSIX_SPAWN_DUP2, d.fileno(), 1), (os.POSIX_SPAWN_DUP2, d.fileno(), 0)] + extra
        pid = os.posix_spawnp("sh", ["sh", "-c", "read l; echo $l"], os.environ, file_actions=actions)
        c.sendall(b"spawned\n")
        assert exactly(c, 8) == b"spawned\n"
        ended(pid)
        eventually(lambda: not relays())
        warm(c, d)
    one, other = socket.socketpair(socket.AF_UNIX)

    def receiver():
        for s in (c, d, one):
            s.close()
        _, fds, _, _ = socket.recv_fds(other, 10, 1)
        s = socket.socket(fileno=fds[0])
        while data := s.recv(1 << 16):
            s.sendall(data)

    pid = forked(receiver)
    socket.send_fds(one, [b"here"], [d.fileno()])
    d.close()
    echoed(c)
    ended(pid)
    eventually(lambda: not relays())


def check_exec_ends():
    """A program, its relay or its peer is killed: the others hear of it. One that ends a direction hears the other."""
    import subprocess
    a, b = pair()
    warm(a, b, 60)
    child = subprocess.Popen(["sleep", "100"], stdin=b, stdout=b)
    b.close()
    a.sendall(b"never read")
    time.sleep(0.2)
    child.kill()
    child.wait()
    try:
        assert a.recv(1) == b""
    except ConnectionResetError:
        pass
    # What passes on between the two. A busy daemon may come too late for a connection: then there is none.
    for _ in range(50 if RACK else 0):
        a, b = pair()
        warm(a, b, 200)
        child = subprocess.Popen(["cat"], stdin=b, stdout=b)
        b.close()
        echoed(a, end=False)
        if found := relays():
            [relay] = found
            os.kill(relay, signal.SIGKILL)
            assert child.wait(10) == 0 and a.recv(1) == b""
            break
        a.close()
        assert child.wait(10) == 0
    else:
        assert not RACK, "no relay"
    # One that says all that it has, and hears the rest.
    a, b = pair()
    warm(a, b, 60)
    code = "import socket\ns = socket.socket(fileno=0)\ns.sendall(b'all')\ns.shutdown(socket.SHUT_WR)\n" \
           "assert s.recv(9) == b'rest' and s.recv(9) == b''"
    child = subprocess.Popen([sys.executable, "-c", code], stdin=b)
    b.close()
    assert exactly(a, 3) == b"all" and a.recv(1) == b""
    a.sendall(b"rest")
    a.close()
    assert child.wait(10) == 0
    a, b = pair()

    def peer():
        b.close()
        warm_one(a)
        os.kill(os.getpid(), signal.SIGKILL)

    def warm_one(s):
        for n in range(30):
            s.sendall(b"x")
            exactly(s, 1)

    pid = forked(peer)
    a.close()
    for n in range(30):
        b.sendall(exactly(b, 1))
    child = subprocess.Popen(["cat"], stdin=b, stdout=b)
    b.close()
    os.waitpid(pid, 0)
    assert child.wait(10) == 0
    eventually(lambda: not relays())


def full(s, block=bytes(1 << 16)):
    """Sends until there is no room; returns how much that was."""
    sent = 0
    try:
        while True:
            sent += s.send(block)
    except BlockingIOError:
        return sent


def check_epoll_copies():
    """An epoll by several descriptors: what is registered by one is told to who waits by another, also when one is closed."""
    def numbers(ep):
        yield os.dup(ep)
        yield os.dup2(ep, 210)
        yield fcntl.fcntl(ep, fcntl.F_DUPFD, 220)

    for rounds in (0, 30):
        for registers in (0, 1):
            for early in (True, False):
                for which in range(3):
                    a, b = pair()
                    warm(a, b, rounds)
                    original = select.epoll()
                    if not early:
                        # It has been one of those that the library knows.
                        original.register(a, select.EPOLLIN)
                    for at, number in enumerate(numbers(original.fileno())):
                        if at == which:
                            copy = select.epoll.fromfd(number)
                        else:
                            os.close(number)
                    one, other = (original, copy) if registers == 0 else (copy, original)
                    one.register(b, select.EPOLLIN)
                    for n in range(20):
                        threading.Timer(0.002, a.sendall, (b"x",)).start()
                        by = (other, one)[n % 2]
                        assert by.poll(10) == [(b.fileno(), select.EPOLLIN)], (n, rounds, registers, which)
                        assert b.recv(1) == b"x" and by.poll(0) == [], n
                    other.modify(b, select.EPOLLIN | select.EPOLLOUT)
                    assert one.poll(10) == [(b.fileno(), select.EPOLLOUT)]
                    other.modify(b, select.EPOLLIN)
                    # The number that it was registered by is another file's then.
                    (r, w), closed = os.pipe(), one.fileno()
                    one.close()
                    os.dup2(r, closed)
                    warm(a, b)
                    for n in range(10):
                        threading.Timer(0.002, a.sendall, (b"x",)).start()
                        assert other.poll(10) == [(b.fileno(), select.EPOLLIN)], n
                        assert b.recv(1) == b"x" and other.poll(0) == [], n
                    other.unregister(b)
                    a.sendall(b"x")
                    assert other.poll(0.01) == []
                    for fd in (r, w, closed):
                        os.close(fd)
                    other.close(), a.close(), b.close()


def check_epoll_again():
    """Who is told of changes only, and registers anew, is told again of what is there: of the kernel's bytes and the ring's."""
    events = select.EPOLLIN | select.EPOLLET
    for kind in ("plain", "before", "ringed"):
        for how in ("modify", "register"):
            a, b = pair()
            if kind == "ringed":
                warm(a, b, 30)
            for _ in range(40 if kind == "before" else 1):
                a.send(b"x")
                b.send(b"y")
                assert a.recv(1) == b"y"
                time.sleep(0.002)
            ep = select.epoll()
            ep.register(b, events)
            for n in range(4):
                assert ep.poll(5) == [(b.fileno(), select.EPOLLIN)], (kind, how, n)
                assert ep.poll(0.01) == [], (kind, how, n)
                if how == "modify":
                    ep.modify(b, events)
                else:
                    ep.unregister(b)
                    ep.register(b, events)
            a.close(), b.close()


def check_epoll_workers():
    """As tokio does it: one thread waits by a copy for changes only, others read and take a short read for the last one."""
    ep = select.epoll()
    copy = select.epoll.fromfd(os.dup(ep.fileno()))
    ends, over = {}, threading.Event()

    class End:
        def __init__(self, s):
            s.setblocking(False)
            self.s, self.tick, self.told, self.lock, self.left = s, 0, threading.Event(), threading.Lock(), b""
            ends[s.fileno()] = self
            copy.register(s, select.EPOLLIN | select.EPOLLOUT | select.EPOLLRDHUP | select.EPOLLET)

        def exactly(self, n):
            while len(self.left) < n:
                assert self.told.wait(10), "nothing is told"
                tick = self.tick
                try:
                    self.left += self.s.recv(100_000)
                except BlockingIOError:
                    pass
                with self.lock:
                    if self.tick == tick:
                        self.told.clear()
            data, self.left = self.left[:n], self.left[n:]
            return data

    def driver():
        while not over.is_set():
            for fd, event in ep.poll(0.5):
                if event & select.EPOLLIN:
                    end = ends[fd]
                    with end.lock:
                        end.tick += 1
                        end.told.set()

    wrong = []

    def worker(end, first):
        try:
            for n in range(1500):
                if first:
                    end.s.send(b"%04d" % n * (1 + n % 40))
                assert end.exactly(4 * (1 + n % 40)) == b"%04d" % n * (1 + n % 40)
                if not first:
                    end.s.send(b"%04d" % n * (1 + n % 40))
        except BaseException as e:
            wrong.append((n, first, repr(e)))

    pairs = [pair() for _ in range(4)]
    threads = [threading.Thread(target=driver)]
    threads += [threading.Thread(target=worker, args=(End(s), n == 0)) for p in pairs for n, s in enumerate(p)]
    [t.start() for t in threads]
    [t.join() for t in threads[1:]]
    over.set()
    threads[0].join()
    assert not wrong, wrong
    # A read takes what the kernel has and what the ring has, as far as there is room.
    for room in (100, 40):
        a, b = pair()
        for n in range(40):
            b.send(b"%d" % (n % 10))
            a.send(b"y")
            b.recv(1)
            time.sleep(0.002)
        assert a.recv(room) == b"0123456789" * 4
        a.close(), b.close()


def check_epoll_paused():
    """Who reads nothing, so that bytes stay in the kernel before any bell, hears of room all the same."""
    for half_closed in (False, True):
        for extra in (0, select.EPOLLET, select.EPOLLONESHOT, select.EPOLLIN | select.EPOLLET):
            a, b = pair()
            for n in range(40):
                if not half_closed or n < 8:
                    b.send(b"x")
                a.send(b"y")
                if half_closed and n == 8:
                    b.shutdown(socket.SHUT_WR)
                assert b.recv(1) == b"y"
                time.sleep(0.002)
            a.setblocking(False)
            sent = full(a)
            with select.epoll() as ep:
                ep.register(a, select.EPOLLOUT | extra)
                told = [event for _, event in ep.poll(0.05)]
                assert told in ([], [select.EPOLLIN]), told
                t = threading.Timer(0.1, exactly, (b, sent))
                t.start()
                told = 0
                for _ in range(2):
                    for fd, event in ep.poll(5) if not told & select.EPOLLOUT else ():
                        assert fd == a.fileno()
                        told |= event
                assert told & ~select.EPOLLIN == select.EPOLLOUT, (half_closed, extra, told)
            t.join()
            a.close(), b.close()


def check_epoll_full():
    """Who is told of changes only hears of room that was lacking before the direction changed over, or while it sleeps."""
    a, b = pair()
    a.setblocking(False)
    ep = select.epoll()
    ep.register(a, select.EPOLLIN | select.EPOLLOUT | select.EPOLLET)

    def drain():
        b.recv(1)
        time.sleep(1)
        b.settimeout(3)
        try:
            while b.recv(1 << 20):
                pass
        except (TimeoutError, ConnectionResetError):
            pass

    t = threading.Thread(target=drain)
    t.start()
    time.sleep(0.1)
    for _ in range(40):
        b.send(b"x")
        ep.poll(1)
        a.recv(9)
        time.sleep(0.002)
    full(a)
    events = ep.poll(5)
    assert events and events[0][1] & select.EPOLLOUT, events
    a.close()
    t.join()
    b.close()
    # A thread that sleeps already when another one finds no room.
    for n in range(20):
        a, b = pair()
        warm(a, b, 30)
        a.setblocking(False)
        ep = select.epoll()
        ep.register(a, select.EPOLLIN | select.EPOLLOUT | select.EPOLLET)
        assert ep.poll(5) == [(a.fileno(), select.EPOLLOUT)]
        heard = []
        t = threading.Thread(target=lambda: heard.extend(ep.poll(5)))
        t.start()
        time.sleep(0.001 * (n % 12))
        sent = full(a)
        time.sleep(0.001 * (n % 5))
        exactly(b, sent)
        t.join()
        assert heard == [(a.fileno(), select.EPOLLOUT)], (n, heard)
        a.close(), b.close()


def check_resets():
    """A connection that is reset does not end as one that was closed."""
    import ctypes
    for rounds in (0, 30):
        for waits in (False, True):
            a, b = pair()
            warm(a, b, rounds)
            a.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            if waits:
                threading.Timer(0.05, a.close).start()
            else:
                a.sendall(b"half of it")
                assert b.recv(10) == b"half of it"
                a.close()
            try:
                raise AssertionError(b.recv(1))
            except ConnectionResetError:
                pass
            assert b.recv(1) == b""
    # One that gives up while its threads wait, as a gate does.
    libc = ctypes.CDLL(None, use_errno=True)
    for rounds in (0, 30):
        a, b = pair()
        warm(a, b, rounds)
        a.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        ended = []

        def waits(work):
            try:
                ended.append(work())
            except OSError as e:
                ended.append(e)

        threads = [threading.Thread(target=waits, args=(work,)) for work in (lambda: a.recv(1), lambda: full(a))]
        [t.start() for t in threads]
        time.sleep(0.1)
        assert libc.connect(a.fileno(), struct.pack("H14x", socket.AF_UNSPEC), 16) == 0
        [t.join(10) for t in threads]
        # An error is told once.
        assert len(ended) == 2 and any(isinstance(e, OSError) for e in ended), ended
        a.close()
        try:
            while b.recv(1 << 20):
                pass
            raise AssertionError("it ended")
        except ConnectionResetError:
            pass
    # As any other, one whose time to linger is not over at once.
    a, b = pair()
    warm(a, b, 30)
    a.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 5))
    a.sendall(b"all of it")
    a.close()
    assert exactly(b, 9) == b"all of it" and b.recv(1) == b""


def check_endings():
    """What is told of a connection whose directions have both ended, or that was reset, and of reads of nothing."""
    import ctypes
    libc = ctypes.CDLL(None, use_errno=True)
    # Both have ended: that is told whether anybody asks for it or not, and not before.
    for events in (0, select.POLLIN):
        a, b = busy_pair()
        polled, level, edge = select.poll(), select.epoll(), select.epoll()
        polled.register(b, events)
        level.register(b, events)
        edge.register(b, events | select.EPOLLET)
        ways = {"poll": lambda t: polled.poll(1000 * t), "epoll": level.poll, "edge": edge.poll}
        a.shutdown(socket.SHUT_WR)
        if events:
            eventually(lambda: ways["poll"](1))
        for name, way in ways.items():
            assert not any(told & select.POLLHUP for _, told in way(0.02)), name
        later(b.shutdown, socket.SHUT_WR)
        for name in ("poll", "epoll"):
            # Who watches for nothing else is told by the other end's answer.
            time.sleep(0.1)
            told = dict(ways[name](5)).get(b.fileno(), 0)
            assert told & select.POLLHUP and bool(told & select.POLLIN) == bool(events), (name, told)
        assert dict(edge.poll(1)).get(b.fileno(), 0) & select.EPOLLHUP
        assert edge.poll(0.02) == []
    # Each half by itself.
    for halves in ((socket.SHUT_RD, socket.SHUT_WR), (socket.SHUT_WR, socket.SHUT_RD)):
        a, b = busy_pair()
        for half in halves:
            assert not waits_of(b, 0)["poll"](0) and not any(told & select.EPOLLHUP for _, told in waits_of(b, 0)["epoll"](0))
            b.shutdown(half)
        assert waits_of(b, 0)["poll"](1)[0][1] & select.POLLHUP and waits_of(b, 0)["epoll"](1)[0][1] & select.EPOLLHUP
    # Once both have ended there is nothing to reset, whatever was not read.
    for linger in (False, True):
        a, b = busy_pair()
        a.sendall(b"unread")
        a.shutdown(socket.SHUT_WR)
        b.shutdown(socket.SHUT_WR)
        assert a.recv(1) == b""
        if linger:
            b.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        b.close()
        time.sleep(0.01)
        assert not waits_of(a)["poll"](0)[0][1] & select.POLLERR and a.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == 0
    # Why it ended is told once, to whoever asks first.
    for first in ("option", "read"):
        a, b = busy_pair()
        polled, level = select.poll(), select.epoll()
        polled.register(b, select.POLLIN)
        level.register(b, select.EPOLLIN)
        a.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        a.close()
        for way in (lambda: polled.poll(1000), lambda: level.poll(1), lambda: polled.poll(0), lambda: level.poll(0)):
            assert way()[0][1] & (select.POLLERR | select.POLLHUP | select.POLLIN) == select.POLLERR | select.POLLHUP | select.POLLIN
        why = lambda: b.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if first == "option":
            assert why() == errno.ECONNRESET
        else:
            fails(errno.ECONNRESET, b.recv, 1)
        assert why() == 0 and b.recv(1) == b"" and not polled.poll(0)[0][1] & select.POLLERR
        assert not level.poll(0)[0][1] & select.EPOLLERR
    # A read of no bytes, from a socket and as from a file.
    a, b = busy_pair()

    def nothing(flags=socket.MSG_DONTWAIT):
        got = libc.recv(b.fileno(), None, 0, flags)
        return got if got >= 0 else -ctypes.get_errno()

    assert nothing() == -errno.EAGAIN and os.read(b.fileno(), 0) == b""
    for rounds in range(12):
        x, y = pair()
        warm(x, y, rounds)
        y.setblocking(False)
        for _ in range(3):
            assert os.read(y.fileno(), 0) == b"" and nothing() == -errno.EAGAIN, rounds
    later(a.sendall, b"more")
    assert nothing(0) == 0 and nothing() == 0 and exactly(b, 4) == b"more" and nothing() == -errno.EAGAIN
    a.shutdown(socket.SHUT_WR)
    eventually(lambda: nothing() == 0)


def check_options():
    """Options that say when bytes leave are what the program has said."""
    for early in (False, True):
        a, b = pair()
        if early:
            a.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        make_busy(a, b)
        for option, first in ((socket.TCP_NODELAY, early), (socket.TCP_CORK, False)):
            is_set = lambda: a.getsockopt(socket.IPPROTO_TCP, option)
            assert is_set() == first, option
            for value in (1, 0, 7, 0):
                a.setsockopt(socket.IPPROTO_TCP, option, value)
                assert is_set() == (value != 0)
            fails(errno.EINVAL, a.setsockopt, socket.IPPROTO_TCP, option, b"ab")


def check_select_beyond():
    """More descriptors than there may be are asked for: nobody reads what the program has not got."""
    import ctypes, mmap
    libc = ctypes.CDLL(None, use_errno=True)
    room = next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("FDSize"))
    size = max(room // 8, 128)
    pages = mmap.mmap(-1, 2 * mmap.PAGESIZE)
    start = ctypes.addressof(ctypes.c_char.from_buffer(pages))
    assert libc.mprotect(ctypes.c_void_p(start + mmap.PAGESIZE), mmap.PAGESIZE, 0) == 0
    at = mmap.PAGESIZE - size
    a, b = busy_pair()
    for rings in (True, False):
        s = b if rings else os.pipe()[0]
        fd = s.fileno() if rings else s
        pages[at:mmap.PAGESIZE] = bytes(size)
        pages[at + fd // 8] = 1 << fd % 8
        now = struct.pack("ll", 0, 0)
        assert libc.select(1 << 20, ctypes.c_void_p(start + at), None, None, now) == 0, ctypes.get_errno()


def check_rings_of_the_kernel():
    """What goes by a ring of the kernel's is not seen here: a program that has one keeps the kernel's connections."""
    import ctypes

    def child():
        libc = ctypes.CDLL(None, use_errno=True)
        before, beside = pair(), busy_pair()
        ring = libc.syscall(425, 4, ctypes.create_string_buffer(120))
        if ring < 0 or not RACK:
            return
        for a, b in (before, pair()):
            warm(a, b, 200)
            assert not is_ringed(a, b)
        warm(*beside)

    if os.uname().machine == "x86_64":
        ended(forked(child))


def check_deaf():
    """Who wants to hear no more goes on sending, and hears of it when nobody takes that any more."""
    for rounds in (0, 30):
        a, b = pair()
        warm(a, b, rounds)
        a.shutdown(socket.SHUT_RD)
        assert a.recv(1) == b""
        block, got = os.urandom(4 << 20), []
        t = threading.Thread(target=lambda: [got.append(exactly(b, 1 << 20)) or time.sleep(0.02) for _ in range(4)])
        t.start()
        a.sendall(block)
        t.join()
        assert b"".join(got) == block
        before = time.process_time()
        t = threading.Timer(0.3, exactly, (b, 4 << 20))
        t.start()
        a.sendall(block)
        t.join()
        assert time.process_time() - before < 0.2, "it works while it waits"
        a.close(), b.close()
    # One that dies instead.
    a, b = pair()
    warm(a, b, 30)

    def other():
        a.close()
        time.sleep(0.2)
        os.kill(os.getpid(), signal.SIGKILL)

    pid = forked(other)
    b.close()
    a.shutdown(socket.SHUT_RD)
    try:
        a.sendall(os.urandom(8 << 20))
        raise AssertionError("nobody took it")
    except (BrokenPipeError, ConnectionResetError):
        pass
    os.waitpid(pid, 0)


def check_discard():
    """Bytes that are received into nothing."""
    import ctypes
    libc = ctypes.CDLL(None, use_errno=True)
    libc.recv.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    libc.recv.restype = ctypes.c_ssize_t
    for rounds in (0, 30):
        a, b = pair()
        warm(a, b, rounds)
        a.sendall(b"0123456789")
        eventually(lambda: len(b.recv(99, socket.MSG_PEEK)) == 10)
        trunc = socket.MSG_TRUNC
        assert libc.recv(b.fileno(), None, 99, trunc | socket.MSG_PEEK) == 10
        assert libc.recv(b.fileno(), None, 4, trunc) == 4
        assert libc.recv(b.fileno(), None, 3, trunc | socket.MSG_WAITALL) == 3
        assert b.recv(9) == b"789"
        assert libc.recv(b.fileno(), None, 9, trunc | socket.MSG_DONTWAIT) == -1
        assert ctypes.get_errno() == errno.EAGAIN
        # Nothing is written where there is room, either.
        a.sendall(b"abc")
        eventually(lambda: len(b.recv(99, socket.MSG_PEEK)) == 3)
        room = ctypes.create_string_buffer(b"***", 3)
        assert libc.recv(b.fileno(), ctypes.addressof(room), 3, trunc) == 3 and room.raw == b"***"
        a.close()
        assert libc.recv(b.fileno(), None, 9, trunc) == 0


def is_ringed(a, b):
    """Whether bytes go past the kernel, which counts what it is given to send."""
    count = lambda: struct.unpack_from("Q", a.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256), 200)[0]
    before = count()
    a.sendall(bytes(100))
    exactly(b, 100)
    return count() < before + 100


def busy_pair(family=socket.AF_INET):
    """One whose directions have both changed over, if this process is in a rack."""
    a, b = pair(family)
    make_busy(a, b)
    return a, b


def make_busy(a, b):
    warm(a, b, 30)
    if RACK:
        # Later where many have ended soon.
        eventually(lambda: is_ringed(a, b) and is_ringed(b, a))


def waits_of(s, events=select.POLLIN):
    """Ways to wait for a socket: each says whether it was told of something within so many seconds."""
    polled, level, edge = select.poll(), select.epoll(), select.epoll()
    polled.register(s, events)
    level.register(s, events)
    edge.register(s, events | select.EPOLLET)
    sets = [[s] if events & event else [] for event in (select.POLLIN, select.POLLOUT, select.POLLPRI)]
    return {"poll": lambda seconds: polled.poll(1000 * seconds), "select": lambda seconds: any(select.select(*sets, seconds)),
            "epoll": level.poll, "edge": edge.poll}


def later(work, *arguments, seconds=0.05):
    t = threading.Timer(seconds, work, arguments)
    t.start()
    return t


def fails(number, work, *arguments):
    try:
        work(*arguments)
    except OSError as e:
        assert e.errno == number, e
    else:
        raise AssertionError(f"no {errno.errorcode[number]}")


def check_low_mark():
    """Who wants to be told of so many bytes is not told of fewer."""
    for how in ("poll", "select", "epoll", "edge"):
        a, b = busy_pair()
        wait = waits_of(b)[how]
        b.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 10)
        assert b.getsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT) == 10
        for sleeps in (False, True):
            a.sendall(b"12345")
            assert not wait(0.05), how
            if sleeps:
                later(a.sendall, b"67890")
            else:
                a.sendall(b"67890")
            assert wait(5), how
            assert b.recv(99) == b"1234567890"
        # A read waits for as many, though not for more than it has room for, and takes what there is if it is not to wait.
        a.sendall(b"12345")
        t = later(a.sendall, b"67890")
        assert b.recv(99, socket.MSG_PEEK) == b"1234567890" and b.recv(99) == b"1234567890"
        t.join()
        a.sendall(b"abcde")
        assert exactly(b, 3) == b"abc" and b.recv(99, socket.MSG_DONTWAIT) == b"de"
        # Of the end it is told in any case.
        a.sendall(b"abc")
        assert not wait(0.05), how
        a.close()
        assert wait(5) and b.recv(99) == b"abc" and b.recv(9) == b"", how


def at_mark(s):
    mark = array.array("i", [0])
    fcntl.ioctl(s, 0x8905, mark)
    return mark[0] == 1


def check_urgent():
    """A byte that is urgent stands where it was sent, or apart, as the receiver will have it."""
    for inline in (False, True):
        for how in ("poll", "select", "epoll"):
            a, b = busy_pair()
            wait = waits_of(b, select.POLLPRI)[how]
            heard = []
            signal.signal(signal.SIGURG, lambda *_: heard.append(1))
            fcntl.fcntl(b, fcntl.F_SETOWN, os.getpid())
            b.setsockopt(socket.SOL_SOCKET, socket.SO_OOBINLINE, inline)
            assert not wait(0)
            for n in range(3):
                a.sendall(b"ab")
                later(a.send, b"x!", socket.MSG_OOB) if n else a.send(b"x!", socket.MSG_OOB)
                assert wait(5), (inline, how)
                assert heard, "no signal"
                a.sendall(b"cd")
                eventually(lambda: wait(0))
                assert not at_mark(b) and b.recv(99, socket.MSG_PEEK) == b"abx"
                assert b.recv(99, socket.MSG_WAITALL) == b"abx" and at_mark(b) and wait(0)
                if inline:
                    fails(errno.EINVAL, b.recv, 1, socket.MSG_OOB)
                    assert b.recv(99) == b"!cd"
                else:
                    assert b.recv(1, socket.MSG_OOB | socket.MSG_PEEK) == b"!" and b.recv(1, socket.MSG_OOB) == b"!"
                    assert not wait(0) and at_mark(b)
                    fails(errno.EINVAL, b.recv, 1, socket.MSG_OOB)
                    assert b.recv(99, socket.MSG_PEEK) == b"cd" and b.recv(99) == b"cd"
                assert not wait(0) and not at_mark(b)
                fails(errno.EINVAL, b.recv, 1, socket.MSG_OOB)
            # One that was passed by is no more; what comes behind it is.
            a.send(b"!", socket.MSG_OOB)
            a.sendall(b"ef")
            eventually(lambda: at_mark(b))
            assert exactly(b, 2 + inline) == (b"!ef" if inline else b"ef") and not wait(0)
            fails(errno.EINVAL, b.recv, 1, socket.MSG_OOB)
            # One that is left is unread, but for who has taken it as any other.
            a.send(b"!", socket.MSG_OOB)
            eventually(lambda: at_mark(b))
            assert b.recv(9, 0 if inline else socket.MSG_OOB) == b"!"
            b.close()
            if inline:
                assert a.recv(1) == b""
            else:
                fails(errno.ECONNRESET, a.recv, 1)
    signal.signal(signal.SIGURG, signal.SIG_DFL)
    # As one end sends while another one turns busy.
    for calls in range(4, 14):
        a, b = pair()
        for n in range(30):
            if n == calls:
                a.send(b"!", socket.MSG_OOB)
                eventually(lambda: at_mark(b))
                assert b.recv(1, socket.MSG_OOB) == b"!"
            for x, y in ((a, b), (b, a)):
                x.sendall(b"%04d" % n)
                assert exactly(y, 4) == b"%04d" % n, (calls, n)
        a.close()
        assert b.recv(1) == b""


def check_signals_of_input():
    """A program that is told of bytes by signals alone."""
    for early in (False, True):
        a, b = pair() if early else busy_pair()
        heard = []
        signal.signal(signal.SIGIO, lambda *_: heard.append(1))
        fcntl.fcntl(b, fcntl.F_SETOWN, os.getpid())
        fcntl.fcntl(b, fcntl.F_SETFL, os.O_ASYNC | os.O_NONBLOCK)
        if early:
            b.setblocking(True)
            make_busy(a, b)
            b.setblocking(False)
        for n in range(60):
            heard.clear()
            a.sendall(b"%04d" % n)
            eventually(lambda: heard)
            # Sometimes more comes before what has come is read: that is told of, too.
            if n % 3:
                heard.clear()
                a.sendall(b"more")
                eventually(lambda: heard)
                assert b.recv(99) == b"%04dmore" % n
            else:
                assert b.recv(99) == b"%04d" % n
            fails(errno.EAGAIN, b.recv, 9)
        # Of room as well, where there was none.
        sent = full(b)
        heard.clear()
        exactly(a, sent)
        eventually(lambda: heard)
        heard.clear()
        a.close()
        eventually(lambda: heard)
        assert b.recv(1) == b""
        # No more, once that is not wanted.
        a, b = busy_pair()
        fcntl.fcntl(b, fcntl.F_SETOWN, os.getpid())
        fcntl.ioctl(b, 0x5452, array.array("i", [1]))
        fcntl.ioctl(b, 0x5452, array.array("i", [0]))
        heard.clear()
        a.sendall(b"quiet")
        assert exactly(b, 5) == b"quiet" and not heard
    signal.signal(signal.SIGIO, signal.SIG_DFL)


ZERO_COPY, MSG_ZERO_COPY = 60, 0x4000000


def told_of_copies(s):
    """What the error queue says: level and kind of a note, its origin and code, and the first and last send that it is of."""
    _, notes, flags, _ = s.recvmsg(0, 200, socket.MSG_ERRQUEUE | socket.MSG_DONTWAIT)
    assert flags == socket.MSG_ERRQUEUE and len(notes) == 1, (notes, flags)
    level, kind, data = notes[0]
    number, origin, type_, code, _, first, last = struct.unpack_from("IBBBBII", data)
    assert (number, type_) == (0, 0)
    return len(data), level, kind, origin, code, first, last


def told_soon(s):
    end = time.time() + 10
    while True:
        try:
            return told_of_copies(s)
        except BlockingIOError:
            assert time.time() < end, "no note"


def check_zero_copy():
    """Sends without a copy are sends with one here, and who asks for notes of when their bytes are free again gets these."""
    data = random.Random(SEED).randbytes(100_000)
    for family, first in ((socket.AF_INET, (32, 0, 11)), (socket.AF_INET6, (44, 41, 25))):
        # The second one is asked for before the connection turns busy, and has sent so already.
        for early in (False, True):
            a, b = pair(family)
            sent, known = 0, 0

            def send(more=0):
                nonlocal sent
                t = threading.Thread(target=lambda: got.append(exactly(b, len(data))))
                got = []
                t.start()
                at = 0
                while at < len(data):
                    at += a.send(data[at:], MSG_ZERO_COPY | more)
                    sent += 1
                t.join()
                assert got[0] == data

            def told(wait=None):
                nonlocal known
                while known < sent:
                    assert wait is None or wait(5), "no note"
                    *kind, start, end = told_soon(a)
                    assert tuple(kind) == (*first, 5, 1) and start == known and end >= start, (kind, start, end, known)
                    known = end + 1
                assert known == sent
                fails(errno.EAGAIN, told_of_copies, a)

            if early:
                a.setsockopt(socket.SOL_SOCKET, ZERO_COPY, 1)
                send()
            make_busy(a, b)
            if not early:
                # Nobody has asked for notes.
                a.send(b"x", MSG_ZERO_COPY)
                assert exactly(b, 1) == b"x"
                fails(errno.EAGAIN, told_of_copies, a)
                a.setsockopt(socket.SOL_SOCKET, ZERO_COPY, 1)
            assert a.getsockopt(socket.SOL_SOCKET, ZERO_COPY) == 1
            for how in ("poll", "select", "epoll", "edge"):
                wait = waits_of(a)[how]
                told()
                assert not wait(0), how
                send()
                if how in ("poll", "epoll"):
                    # Again and again until they are taken.
                    eventually(lambda: wait(0))
                    assert [wait(1) for _ in range(3)] == [[(a.fileno(), select.POLLERR)]] * 3
                told(wait)
                assert not wait(0), how
                # Who sleeps already hears of them.
                t = later(send)
                assert wait(5), how
                t.join()
                told()
                a.sendall(b"plain")
                assert exactly(b, 5) == b"plain" and not wait(0)
            # What is refused is no send.
            a.setblocking(False)
            full(a)
            fails(errno.EAGAIN, a.send, b"x", MSG_ZERO_COPY)
            fails(errno.EAGAIN, told_of_copies, a)
            a.close(), b.close()
    # Each send has a note, and many have one together.
    a, b = busy_pair()
    a.setsockopt(socket.SOL_SOCKET, ZERO_COPY, 1)
    for _ in range(500):
        assert a.send(b"x", MSG_ZERO_COPY) == 1
        assert exactly(b, 1) == b"x"
    known, notes = 0, 0
    while known < 500:
        *_, start, end = told_soon(a)
        assert start == known
        known, notes = end + 1, notes + 1
    assert known == 500 and notes < 100, (known, notes)


class CLibrary:
    """The C library's calls, which nobody begins again after a signal."""

    def __init__(self):
        import ctypes
        self.ctypes, self.libc = ctypes, ctypes.CDLL(None, use_errno=True)

    def __getattr__(self, name):
        call = getattr(self.libc, name)
        call.restype = self.ctypes.c_ssize_t if name in ("recv", "send") else self.ctypes.c_int

        def checked(*arguments):
            done = call(*arguments)
            if done < 0:
                raise OSError(self.ctypes.get_errno(), name)
            return done

        return checked

    def mask(self, *signals):
        return self.ctypes.c_uint64(sum(1 << signal - 1 for signal in signals))


def check_handlers():
    """Signals that come while a thread sleeps: calls that are to go on do so, others say that they were interrupted."""
    c, heard, me = CLibrary(), [], threading.main_thread().ident
    number = signal.SIGUSR1
    signal.signal(number, lambda *_: heard.append(1))
    a, b = busy_pair()

    def poked(call, seconds=0.05):
        """Again and again: the first one may come before it sleeps."""
        over = threading.Event()

        def poke():
            while not over.wait(seconds):
                signal.pthread_kill(me, number)

        t = threading.Thread(target=poke)
        t.start()
        try:
            return call()
        finally:
            over.set()
            t.join()

    room = c.ctypes.create_string_buffer(1 << 16)
    fds = lambda: (c.ctypes.c_short * 4)(*struct.unpack("hhhh", struct.pack("ihh", b.fileno(), select.POLLIN, 0)))
    bits = lambda: (c.ctypes.c_uint64 * 16)(*[1 << b.fileno() % 64 if n == b.fileno() // 64 else 0 for n in range(16)])
    ep, events = select.epoll(), c.ctypes.create_string_buffer(12 * 4)
    ep.register(b, select.EPOLLIN)
    none, most = c.mask(), b.fileno() + 1
    waits = {
        "poll": lambda: c.poll(fds(), 1, 5000),
        "select": lambda: c.select(most, bits(), None, None, None),
        "epoll_wait": lambda: c.epoll_wait(ep.fileno(), events, 4, 5000),
        "ppoll": lambda: c.ppoll(fds(), 1, None, c.ctypes.byref(none)),
        "pselect": lambda: c.pselect(most, bits(), None, None, None, c.ctypes.byref(none)),
        "epoll_pwait": lambda: c.epoll_pwait(ep.fileno(), events, 4, 5000, c.ctypes.byref(none)),
    }
    block = bytes(1 << 16)
    reads = {"recv": lambda: c.recv(b.fileno(), room, 9, 0), "read": lambda: c.read(b.fileno(), room, 9)}
    # A thread sleeps here first, then there.
    for seconds in (0.0005, 0.003, 0.05):
        for again in (False, True):
            signal.siginterrupt(number, not again)
            for name, call in {**reads, **waits}.items():
                heard.clear()
                if again and name in reads:
                    after = later(a.sendall, b"after", seconds=0.15)
                    assert poked(call, seconds) == 5 and room.raw[:5] == b"after", name
                    after.join()
                else:
                    fails(errno.EINTR, poked, call, seconds)
                eventually(lambda: heard)
    # With one whom another process has as well.
    signal.siginterrupt(number, False)
    r, w = os.pipe()
    pid = forked(lambda: (os.close(w), os.read(r, 1)))
    after = later(a.sendall, b"after", seconds=0.15)
    assert poked(reads["recv"], 0.003) == 5
    after.join()
    os.close(w), os.close(r)
    ended(pid)
    # A time limit: always interrupted.
    b.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", 5, 0))
    for seconds in (0.0005, 0.003, 0.05):
        fails(errno.EINTR, poked, reads["recv"], seconds)
    b.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", 0, 0))
    # Who waits for room, with some of it sent or none.
    for again in (False, True):
        signal.siginterrupt(number, not again)
        a.setblocking(False)
        sent = full(a)
        a.setblocking(True)
        if again:
            after = later(lambda: exactly(b, sent + 9), seconds=0.2)
            assert poked(lambda: c.send(a.fileno(), block, 9, 0)) == 9
            after.join()
        else:
            fails(errno.EINTR, poked, lambda: c.send(a.fileno(), block, 9, 0))
            exactly(b, sent)
    big = bytes(64 << 20)
    sent = poked(lambda: c.send(a.fileno(), big, len(big), 0))
    assert 0 < sent < len(big), sent
    exactly(b, sent)
    # A signal that is blocked comes through while a call waits whose mask lets it, and at no other time.
    for name in ("ppoll", "pselect", "epoll_pwait"):
        signal.pthread_sigmask(signal.SIG_BLOCK, [number])
        heard.clear()
        # Not to the process: a thread that has just been joined may not have ended yet, and takes it.
        signal.pthread_kill(me, number)
        none = c.mask(number)
        t = later(a.sendall, b"x")
        assert waits[name]() == 1 and not heard, name
        t.join()
        none = c.mask()
        assert exactly(b, 1) == b"x"
        fails(errno.EINTR, waits[name])
        assert heard, name
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [number])
    a.close(), b.close()
    signal.signal(number, signal.SIG_DFL)


def check_broken_pipes():
    """Who sends to nobody is told by a signal, unless he does not want to be."""
    heard = []
    before = signal.signal(signal.SIGPIPE, lambda *_: heard.append(1))
    for how in ("closed", "ended"):
        a, b = busy_pair()
        if how == "closed":
            b.close()
        else:
            a.shutdown(socket.SHUT_WR)
        calls = [lambda: a.send(b"x"), lambda: os.write(a.fileno(), b"x"), lambda: os.writev(a.fileno(), [b"x", b"y"]),
                 lambda: a.sendmsg([b"x"])]
        try:
            a.send(b"x", socket.MSG_NOSIGNAL)
        except OSError:
            pass
        eventually(lambda: select.select([], [a], [], 0)[1])
        time.sleep(0.02)
        for call in calls:
            heard.clear()
            fails(errno.EPIPE, call)
            eventually(lambda: heard == [1])
        heard.clear()
        fails(errno.EPIPE, a.send, b"x", socket.MSG_NOSIGNAL)
        assert not heard
        a.close(), b.close()
    # Nobody who does not handle it survives.
    a, b = busy_pair()
    b.close()
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    pid = os.fork()
    if pid == 0:
        for _ in range(100):
            a.send(b"x")
            time.sleep(0.01)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGPIPE
    signal.signal(signal.SIGPIPE, before)


def check_beside():
    """What goes beside bytes is taken or refused as on any connection, and does not come."""
    a, b = busy_pair()
    with tempfile.TemporaryFile() as f:
        fds = array.array("i", [f.fileno(), a.fileno()])
        for level, kind, data in ((socket.SOL_SOCKET, socket.SCM_RIGHTS, fds), (socket.IPPROTO_IPV6, 50, bytes(20))):
            assert a.sendmsg([b"by", b"tes"], [(level, kind, data)]) == 5
            assert b.recvmsg(9, 200) == (b"bytes", [], 0, None)
        for level, kind, data in ((socket.SOL_SOCKET, 99, b"what"), (socket.SOL_SOCKET, socket.SO_MARK, b"1")):
            fails(errno.EINVAL, a.sendmsg, [b"bytes"], [(level, kind, data)])
    warm(a, b)


def check_c_library():
    """What the C library writes and reads by itself, in calls that are seldom used, and by lists of messages."""
    c = CLibrary()
    ctypes = c.ctypes
    a, b = busy_pair()
    b.settimeout(10)
    text = b"7 word 1.5 1 2 3 4 5 6 7 8"
    numbers = [ctypes.c_int(n) for n in range(1, 9)]
    assert c.dprintf(a.fileno(), b"%d %s %.1f" + b" %d" * 8, 7, b"word", ctypes.c_double(1.5), *numbers) == len(text)
    assert exactly(b, len(text)) == text
    block = ctypes.create_string_buffer(b"vector", 6)
    vector = (ctypes.c_uint64 * 2)(ctypes.addressof(block), 6)
    at = ctypes.c_int64
    assert c.pwritev2(a.fileno(), vector, 1, at(-1), 0) == 6 and exactly(b, 6) == b"vector"
    b.sendall(b"rotcev")
    assert c.preadv2(a.fileno(), vector, 1, at(-1), 0) == 6 and block.raw == b"rotcev"
    fails(errno.ESPIPE, c.preadv2, a.fileno(), vector, 1, at(0), 0)
    # A file of the C library's, and the number that it has.
    a.set_inheritable(False)
    a.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", 10, 0))
    libc = c.libc
    libc.fdopen.restype, libc.fgets.restype = ctypes.c_void_p, ctypes.c_char_p
    file = ctypes.c_void_p(libc.fdopen(a.fileno(), b"r+"))
    assert not a.get_inheritable()
    room = ctypes.create_string_buffer(99)
    for n in range(50):
        assert libc.fputs(b"line %d\n" % n, file) >= 0 and libc.fflush(file) == 0
        assert exactly(b, len(b"line %d\n" % n)) == b"line %d\n" % n
        b.sendall(b"answer %d\n" % n)
        assert libc.fgets(room, 99, file) == b"answer %d\n" % n
    a.sendall(b"beside")
    assert exactly(b, 6) == b"beside"
    libc.fclose(file)
    a.detach()
    assert b.recv(1) == b""
    eventually(lambda: not relays())
    # Passed on, in a list of messages.
    a, b = busy_pair()
    u, v = socket.socketpair()
    rights = ctypes.create_string_buffer(struct.pack("QiiI4x", 20, socket.SOL_SOCKET, socket.SCM_RIGHTS, b.fileno()))
    message = ctypes.create_string_buffer(64)
    struct.pack_into("PI4xPQPQi", message, 0, 0, 0, ctypes.addressof(vector), 1, ctypes.addressof(rights), 24, 0)
    assert c.sendmmsg(u.fileno(), message, 1, 0) == 1
    bytes_, fds, _, _ = socket.recv_fds(v, 9, 1)
    b.close()
    passed = socket.socket(fileno=fds[0])
    passed.settimeout(10)
    a.sendall(b"hello")
    assert bytes_ == b"rotcev" and exactly(passed, 5) == b"hello"
    passed.sendall(b"there")
    assert exactly(a, 5) == b"there"
    passed.close()
    assert a.recv(1) == b""
    # What is refused has done nothing.
    a, b = busy_pair()
    fails(errno.EBADF, os.dup2, 999, a.fileno())
    fails(errno.EINVAL, c.dup3, 0, a.fileno(), 1)
    b.sendall(b"still here")
    assert exactly(a, 10) == b"still here"


def check_polls_late():
    """A thread waits while another one's sends bring the connection into the rack: it is told of bytes, not of bells."""
    for how in ("poll", "select"):
        for _ in range(20):
            a, b = pair()
            wait, wrong = waits_of(b)[how], []

            def hear():
                while True:
                    assert wait(10)
                    try:
                        if not b.recv(1, socket.MSG_DONTWAIT):
                            return
                    except BlockingIOError:
                        wrong.append(how)

            t = threading.Thread(target=hear)
            t.start()
            for _ in range(40):
                b.sendall(b"x")
                exactly(a, 1)
                time.sleep(0.0002)
            for _ in range(5):
                a.sendall(b"y")
                time.sleep(0.0005)
            a.close()
            t.join()
            assert not wrong, wrong
            b.close()


def check_counted():
    """How many bytes there are to read, while their way changes."""
    unread = lambda s: struct.unpack("i", fcntl.ioctl(s, termios.FIONREAD, bytes(4)))[0]
    for _ in range(20):
        a, b = pair()
        a.sendall(bytes(4000))
        eventually(lambda: unread(b) == 4000)
        for n in range(40):
            assert b.recv(1, socket.MSG_PEEK) == bytes(1)
            fails(errno.EAGAIN, a.recv, 1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
            time.sleep(0.0001)
            assert unread(b) == 4000, (n, unread(b))
        a.sendall(bytes(10))
        eventually(lambda: unread(b) == 4010)
        assert len(exactly(b, unread(b))) == 4010


def check_deaf_ends():
    """Who wants to hear no more is told of that by all means, and why the connection was reset."""
    a, b = busy_pair()
    level = select.epoll()
    level.register(b, select.EPOLLIN | select.EPOLLRDHUP)
    b.shutdown(socket.SHUT_RD)
    for _ in range(40):
        assert dict(level.poll(1))[b.fileno()] == select.EPOLLIN | select.EPOLLRDHUP
    a, b = busy_pair()
    a.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    a.close()
    eventually(lambda: waits_of(b)["poll"](0))
    fails(errno.ENOTCONN, b.shutdown, socket.SHUT_RDWR)
    fails(errno.ECONNRESET, b.recv, 1)
    assert b.recv(1) == b""


def check_end_amid_waits():
    """Who waits for room hears that another thread has ended the direction."""
    for how in ("send", "poll", "select", "epoll"):
        a, b = busy_pair()
        wait, told = waits_of(a, select.POLLOUT)[how] if how != "send" else None, []
        a.setblocking(False)
        full(a)
        a.setblocking(True)

        def waits():
            if wait:
                told.append(bool(wait(10)))
            fails(errno.EPIPE, a.sendall, b"x")
            told.append("pipe")

        t = threading.Thread(target=waits, daemon=True)
        t.start()
        time.sleep(0.1)
        assert not told
        a.shutdown(socket.SHUT_WR)
        t.join(5)
        assert told == ([True] if wait else []) + ["pipe"], (how, told)


def check_killed_amid_sends():
    """A child that is killed amid a send, of whose end nobody has asked yet, keeps nobody from sending."""
    for n in range(40):
        a, b = busy_pair()
        pid = forked(lambda: [a.sendall(bytes(1 << 19)) for _ in iter(int, 1)])
        t = threading.Thread(target=lambda: [None for _ in iter(lambda: b.recv(1 << 20), b"")], daemon=True)
        t.start()
        time.sleep(0.01 + n * 0.0007)
        os.kill(pid, signal.SIGKILL)
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        signal.alarm(10)
        a.sendall(b"x")
        signal.alarm(0)
        os.waitpid(pid, 0)
        a.shutdown(socket.SHUT_WR)
        t.join(5)
        assert not t.is_alive(), n


def check_connected_again():
    """A socket that is connected to nothing, and then to somebody else."""
    import ctypes
    libc = ctypes.CDLL(None, use_errno=True)
    for taken_out in (None, False, True):
        a, b = busy_pair()
        level = select.epoll()
        if taken_out is not None:
            level.register(a, select.EPOLLIN)
        if taken_out:
            level.unregister(a)
        assert libc.connect(a.fileno(), struct.pack("H14x", socket.AF_UNSPEC), 16) == 0
        fails(errno.ECONNRESET, b.recv, 1)
        begin = time.process_time()
        assert not [told for _, told in level.poll(0.3) if not told & select.EPOLLHUP]
        assert time.process_time() - begin < 0.1, "it works while it waits"
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            listener.listen()
            a.connect(listener.getsockname())
            c, _ = listener.accept()
        warm(a, c, 60)
        c.sendall(b"more")
        assert bool(level.poll(0.1)) == (taken_out is False) and exactly(a, 4) == b"more"
        c.close()
        assert a.recv(1) == b""


def check_exec_closes():
    """What is to be closed when another program begins is, however that was said; a copy of which it was not said stays."""
    import ctypes
    libc = ctypes.CDLL(None, use_errno=True)
    a, b = pair()
    b.set_inheritable(True)
    make_busy(a, b)

    def sleeper():
        a.close()
        assert libc.close_range(b.fileno(), b.fileno(), 4) == 0
        os.execv("/bin/sleep", ["sleep", "30"])

    pid = forked(sleeper)
    b.close()
    a.settimeout(10)
    assert a.recv(1) == b""
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    a, b = busy_pair()

    def copier():
        a.close()
        os.dup2(b.fileno(), 7)
        os.execvp("sh", ["sh", "-c", "exec cat <&7 >&7"])

    pid = forked(copier)
    b.close()
    echoed(a)
    a.close()
    ended(pid)
    eventually(lambda: not relays())


for name, check in sorted(globals().items()):
    if name.startswith("check_") and (len(sys.argv) < 2 or sys.argv[1] == "all" or name in sys.argv[1].split(",")):
        start = time.time()
        check()
        print(name, "%.2f s" % (time.time() - start), flush=True)
