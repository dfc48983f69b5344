"""A server in one rack, and its clients in another: every byte is what it was, and names, ends and errors are as TCP has them.

racks.py serve PORT
racks.py all SERVER PORT OWN OTHER   a line for each test; OTHER is another address of this host
racks.py pull SERVER PORT        "begun" when much has come, and how that ends
racks.py short SERVER PORT COUNT   so many connections, one after the other
racks.py wait PORT SECONDS       listens, and takes connections after that time
racks.py hasty SERVER PORT       waits for a connection no longer than it said
racks.py names SERVER PORT OWN   who is told what the ends are called
racks.py crowd SERVER PORT COUNT   so many connections at once, which stay a moment
racks.py push SERVER PORT BYTES  "half" in the middle, "whole" when the server has compared every byte
"""

import ctypes
import errno
import hashlib
import os
import random
import select
import socket
import struct
import sys
import threading
import time
import traceback


def data(seed, length):
    return random.Random(seed).randbytes(length)


def recv_all(conn):
    parts = []
    while part := conn.recv(70000):
        parts.append(part)
    return b"".join(parts)


def answer(conn, peer):
    what = conn.recv(1)
    if what == b"E":  # echo, until the end or a reset
        try:
            while part := conn.recv(50000):
                conn.sendall(part)
        except ConnectionResetError:
            pass
    elif what == b"N":  # names
        conn.sendall(repr((peer, conn.getpeername(), conn.getsockname()[:2])).encode())
    elif what == b"H":  # hash of all there is
        conn.sendall(hashlib.sha256(recv_all(conn)).hexdigest().encode())
    elif what == b"R":  # a reset amid the bytes
        conn.recv(1000)
        conn.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    elif what == b"Z":  # an end, and a reset after that
        conn.shutdown(socket.SHUT_WR)
        time.sleep(0.2)
        conn.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    elif what == b"A":  # an answer, and an end before all was read, which is a reset
        conn.sendall(data(8, 20_000))
    elif what == b"B":  # names before all has come, and after that
        conn.sendall(repr([(conn.getpeername(), conn.getsockname()), recv_all(conn) and None,
                           (conn.getpeername(), conn.getsockname())]).encode())
    elif what == b"D":  # as many bytes as are asked for, and an end
        conn.sendall(data(9, int(conn.recv(20))))
    elif what == b"F":  # the same as E by a child
        if os.fork() == 0:
            while part := conn.recv(50000):
                conn.sendall(part)
            conn.close()
            os._exit(0)
    elif what == b"S":  # bytes without an end
        try:
            while True:
                conn.sendall(bytes(50_000))
        except OSError:
            pass
    conn.close()


def serve(port):
    listener = socket.create_server(("", port), backlog=64)
    print("ready", flush=True)
    while True:
        conn, peer = listener.accept()
        threading.Thread(target=answer, args=(conn, peer), daemon=True).start()


def connect(server, port, what):
    conn = socket.create_connection((server, port), timeout=60)
    conn.sendall(what)
    return conn


def names(server, port, own):
    conn = connect(server, port, b"N")
    ours, theirs = conn.getsockname(), conn.getpeername()
    assert ours[0] == own and theirs == (server, port), (ours, theirs)
    assert recv_all(conn).decode() == repr((ours, ours, theirs))


def echo(server, port, seed):
    conn = connect(server, port, b"E")
    sent, rng = data(seed, 300_000 + seed), random.Random(seed)
    got = bytearray()

    def send():
        at = 0
        while at < len(sent):
            size = rng.randrange(1, 30_000)
            conn.sendall(sent[at : at + size])
            at += size
        conn.shutdown(socket.SHUT_WR)

    sender = threading.Thread(target=send)
    sender.start()
    while part := conn.recv(rng.randrange(1, 40_000)):
        got += part
    sender.join()
    first = next((at for at, (one, other) in enumerate(zip(got, sent)) if one != other), min(len(got), len(sent)))
    assert bytes(got) == sent, f"{seed}: {len(got)} of {len(sent)} bytes, other ones from {first}"


def at_once(tests):
    errors = []

    def one(test):
        try:
            test()
        except BaseException as e:
            errors.append((traceback.format_exc(), e))

    threads = [threading.Thread(target=one, args=(test,)) for test in tests]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert not errors, errors


def many(server, port):
    at_once([lambda seed=seed: echo(server, port, seed) for seed in range(12)])


def half_closed(server, port):
    conn = connect(server, port, b"H")
    sent = data(5, 1_000_000)
    conn.sendall(sent)
    conn.shutdown(socket.SHUT_WR)
    assert recv_all(conn).decode() == hashlib.sha256(sent).hexdigest()


def refused(server, port):
    for blocking in (True, False):
        conn = socket.socket()
        conn.setblocking(blocking)
        error = conn.connect_ex((server, port + 1))
        if error == errno.EINPROGRESS:
            assert select.select([], [conn], [], 60)[1]
            error = conn.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        assert error == errno.ECONNREFUSED, error


def reset(server, port):
    conn = connect(server, port, b"R")
    try:
        while True:
            conn.sendall(b"x" * 10_000)
    except (ConnectionResetError, BrokenPipeError):
        return


def reset_after_end(server, port):
    conn = connect(server, port, b"Z")
    assert conn.recv(1) == b""
    poll = select.poll()
    poll.register(conn, 0)
    assert poll.poll(5_000), "nobody tells of the reset"


def without_blocking(server, port):
    conn = socket.socket(socket.AF_INET6)
    conn.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    conn.setblocking(False)
    conn.connect_ex((f"::ffff:{server}", port))
    poll = select.poll()
    poll.register(conn, select.POLLOUT)
    assert poll.poll(60_000), "it does not connect"
    assert conn.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == 0
    assert conn.getpeername()[:2] == (f"::ffff:{server}", port), conn.getpeername()
    conn.send(b"E")
    sent, at, got = data(6, 200_000), 0, bytearray()
    poll.modify(conn, select.POLLIN | select.POLLOUT)
    while len(got) < len(sent):
        (_, events) = poll.poll(60_000)[0]
        if events & select.POLLOUT and at < len(sent):
            at += conn.send(sent[at : at + 20_000])
            if at == len(sent):
                poll.modify(conn, select.POLLIN)
        if events & select.POLLIN:
            got += conn.recv(33_333)
    assert bytes(got) == sent


def answered(server, port):
    """What was sent before a reset comes before it."""
    for _ in range(30):
        conn = connect(server, port, b"A" + bytes(1000))
        got = bytearray()
        try:
            while part := conn.recv(7000):
                got += part
        except ConnectionResetError:
            pass
        assert bytes(got) == data(8, 20_000), len(got)


def bound(server, port, other):
    """Who binds an address of its own has that one."""
    for late in (False, True):  # whether the port is chosen when it connects (IP_BIND_ADDRESS_NO_PORT)
        conn = socket.socket()
        conn.setsockopt(socket.IPPROTO_IP, 24, int(late))
        conn.bind((other, 0))
        conn.connect((server, port))
        conn.sendall(b"N")
        ours = conn.getsockname()
        assert ours[0] == other, ours
        assert recv_all(conn).decode() == repr((ours, ours, conn.getpeername()))


def much(server, port):
    """What turns out to have much to carry goes another way amid its bytes, wherever they end."""
    rng = random.Random(11)

    def there(length):
        conn = connect(server, port, b"H")
        sent, at = data(length, length), 0
        while at < length:
            at += conn.send(sent[at : at + rng.randrange(1, 200_000)])
        conn.shutdown(socket.SHUT_WR)
        assert recv_all(conn).decode() == hashlib.sha256(sent).hexdigest(), length

    def back(length):
        conn = connect(server, port, b"D")
        conn.sendall(b"%d" % length)
        got = recv_all(conn)
        assert got == data(9, length), (len(got), length)

    for _ in range(8):
        lengths = [rng.randrange(200_000, 3_000_000) for _ in range(6)]
        at_once([lambda n=n, to=to: to(n) for n in lengths for to in (there, back)])


def much_both_ways(server, port):
    """The same, with an echo, by who waits in each way there is, and by a child of the server's."""
    sent = data(10, 8_000_000)

    def by_threads(what):
        conn, got = connect(server, port, what), bytearray()

        def send():
            for at in range(0, len(sent), 150_000):
                conn.sendall(sent[at : at + 150_000])
            conn.shutdown(socket.SHUT_WR)

        sender = threading.Thread(target=send)
        sender.start()
        while part := conn.recv(200_000):
            got += part
        sender.join()
        assert got == sent, (what, len(got))

    def by_epoll(extra):
        conn, got, at = connect(server, port, b"E"), bytearray(), 0
        conn.setblocking(False)
        epoll = select.epoll()
        epoll.register(conn, select.EPOLLIN | select.EPOLLOUT | extra)
        while len(got) < len(sent):
            assert epoll.poll(60), (extra, len(got), at)
            try:
                while at < len(sent):
                    at += conn.send(sent[at : at + 150_000])
                    if not extra:
                        break
            except BlockingIOError:
                pass
            if at == len(sent) and not extra:
                epoll.modify(conn, select.EPOLLIN)
            try:
                while True:
                    got += conn.recv(200_000)
                    if not extra or len(got) == len(sent):
                        break
            except BlockingIOError:
                pass
        assert got == sent, (extra, len(got))

    at_once([lambda: by_threads(b"E"), lambda: by_threads(b"F"), lambda: by_epoll(0), lambda: by_epoll(select.EPOLLET)])


def names_of_much(server, port):
    """Names, options and copies are what they were."""
    conn = connect(server, port, b"B")
    copy, ours, theirs = conn.dup(), conn.getsockname(), conn.getpeername()
    conn.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for turn in range(100):
        (conn, copy)[turn % 2].sendall(bytes(100_000))
    assert [at.getsockname() for at in (conn, copy)] == [ours] * 2 and copy.getpeername() == theirs
    assert copy.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
    conn.shutdown(socket.SHUT_WR)
    assert recv_all(copy).decode() == repr([(ours, theirs), None, (ours, theirs)])


def unread(server, port):
    """Who reads nothing holds up nobody else."""
    conn = connect(server, port, b"E")
    conn.setblocking(False)
    sent = 0
    while select.select([], [conn], [], 0.5)[1]:
        sent += conn.send(bytes(100_000))
    echo(server, port, 3)
    conn.setblocking(True)
    while sent > 0:
        sent -= len(conn.recv(100_000))


def again(server, port):
    """A socket that is connected anew has another peer."""
    conn = connect(server, port, b"E")
    ctypes.CDLL(None, use_errno=True).connect(conn.fileno(), bytes(16), 16)  # AF_UNSPEC
    near = socket.create_server(("127.0.0.1", 0))
    conn.connect(near.getsockname())
    assert conn.getpeername() == near.getsockname(), conn.getpeername()
    assert conn.getsockname() == near.accept()[1]


def handed(server, port):
    """A connection that becomes standard input is the same one."""
    conn = connect(server, port, b"E")
    for _ in range(50):
        conn.sendall(b"x")
        assert conn.recv(1) == b"x"
    was = conn.getsockname(), conn.getpeername()
    os.dup2(conn.fileno(), 0)
    conn.close()
    conn = socket.socket(fileno=os.dup(0))
    os.close(0)
    assert (conn.getsockname(), conn.getpeername()) == was, (conn.getsockname(), conn.getpeername(), was)


def every(server, port, own, other):
    names(server, port, own)
    print("names")
    for test in (many, half_closed, refused, reset, reset_after_end, without_blocking, answered, much, much_both_ways, names_of_much, unread,
                 again, handed):
        test(server, port)
        print(test.__name__, flush=True)
    bound(server, port, other)
    print("bound")


def push(server, port, length):
    conn = connect(server, port, b"H")
    block, digest, sent = data(7, 1 << 20), hashlib.sha256(), 0
    while sent < length:
        conn.sendall(block)
        digest.update(block)
        sent += len(block)
        if sent >= length // 2 and sent - len(block) < length // 2:
            print("half", flush=True)
    conn.shutdown(socket.SHUT_WR)
    assert recv_all(conn).decode() == digest.hexdigest(), "other bytes have come"
    print("whole", flush=True)


def pull(server, port):
    conn = connect(server, port, b"S")
    # Much: it goes by the gates.
    got = 0
    while got < 20_000_000:
        got += len(conn.recv(1 << 20))
    print("begun", flush=True)
    try:
        while conn.recv(1 << 20):
            pass
        print("end", flush=True)
    except ConnectionResetError:
        print("reset", flush=True)


def short(server, port, count):
    for index in range(count):
        conn = connect(server, port, b"E")
        conn.sendall(b"%d" % index)
        conn.shutdown(socket.SHUT_WR)
        assert recv_all(conn) == b"%d" % index
        conn.close()
    print("done", flush=True)


def wait(port, seconds):
    listener = socket.create_server(("", port), backlog=1)
    print("ready", flush=True)
    time.sleep(seconds)
    conns = []
    while True:
        conns.append(listener.accept())


def hasty(server, port):
    conn, start = socket.socket(), time.monotonic()
    conn.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", 0, 500_000))
    try:
        conn.connect((server, port))
    except BlockingIOError:
        pass
    assert time.monotonic() - start < 1.5, time.monotonic() - start


def crowd(server, port, count):
    """What is made at once, and as patient as connections are."""
    errors = []

    def one():
        try:
            conn = socket.socket()
            conn.connect((server, port))
            conn.sendall(b"E")
            time.sleep(1)
        except OSError as e:
            errors.append(e)

    threads = [threading.Thread(target=one) for _ in range(count)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert not errors, errors
    print("done", flush=True)


what, *words = sys.argv[1:]
words = [int(word) if word.isdigit() else word for word in words]
{"serve": serve, "all": every, "push": push, "pull": pull, "short": short, "wait": wait, "crowd": crowd,
 "names": names, "hasty": hasty}[what](*words)
