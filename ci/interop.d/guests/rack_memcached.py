"""Many connections to a memcached at once, each with values of its own, which are compared: rack_memcached.py PORT"""

import random
import socket
import sys
import threading

CONNECTIONS, ROUNDS = 16, 300


def client(number, wrong):
    rng = random.Random(number)
    kept = {}
    try:
        with socket.create_connection(("127.0.0.1", int(sys.argv[1]))) as s, s.makefile("rb") as replies:
            for _ in range(ROUNDS):
                key = b"key-%d-%d" % (number, rng.randrange(50))
                kept[key] = rng.randbytes(rng.choice([1, 10, 100, 1000, 30_000]))
                s.sendall(b"set %s 0 0 %d\r\n%s\r\n" % (key, len(kept[key]), kept[key]))
                assert replies.readline() == b"STORED\r\n"
                keys = rng.sample(sorted(kept), min(len(kept), 5))
                s.sendall(b"get %s\r\n" % b" ".join(keys))
                for key in keys:
                    assert replies.readline() == b"VALUE %s 0 %d\r\n" % (key, len(kept[key]))
                    assert replies.read(len(kept[key]) + 2) == kept[key] + b"\r\n", key
                assert replies.readline() == b"END\r\n"
    except BaseException as error:
        wrong.append((number, repr(error)))


wrong = []
threads = [threading.Thread(target=client, args=(number, wrong)) for number in range(CONNECTIONS)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
print(wrong or "right")
