"""Checks a capture of RoCE v2: every ICRC, computed here and nowhere else, and that tshark decodes every packet."""

import struct
import subprocess
import zlib
from collections import Counter

# The op-code of an RC acknowledgement, the first one of datagrams, and that of SEND ONLY among these.
ACKNOWLEDGE, DATAGRAMS, DATAGRAM = 0x11, 0x60, 0x64
# The connection manager's class of management datagrams, and two of its attributes.
CONNECTIONS, DREQ, DREP = 7, 0x15, 0x16


def packets(path):
    """The frames of a pcap file."""
    data = path.read_bytes()
    if len(data) < 24:
        return
    magic = struct.unpack("<I", data[:4])[0]
    if magic not in (0xA1B2C3D4, 0xA1B23C4D):
        raise ValueError(f"{path} is no little-endian pcap file")
    at = 24
    while at + 16 <= len(data):
        _, _, kept, length = struct.unpack("<IIII", data[at:at + 16])
        yield data[at + 16:at + 16 + kept], length
        at += 16 + kept


def icrc(ip):
    """The invariant CRC of an IPv4 packet that carries RoCE v2 (annex A17): variant fields count as ones."""
    head = bytearray(ip[:-4])
    head[1] = 0xFF                          # type of service
    head[8] = 0xFF                          # time to live
    head[10:12] = b"\xff\xff"               # header checksum
    udp = (ip[0] & 15) * 4
    head[udp + 6:udp + 8] = b"\xff\xff"     # UDP checksum
    head[udp + 8 + 4] = 0xFF                # reserved byte of the BTH
    return zlib.crc32(b"\xff" * 8 + bytes(head)) & 0xFFFFFFFF


def acknowledged(path, host):
    """How many messages `host` has acknowledged: the sum of its queue pairs' highest message sequence numbers."""
    highest = Counter()
    for frame, _ in packets(path):
        ip = frame[14:]
        if len(ip) > 44 and ip[12:16] == bytes(map(int, host.split("."))) and ip[9] == 17 and ip[28] == ACKNOWLEDGE:
            queue_pair = ip[33:36]
            highest[queue_pair] = max(highest[queue_pair], int.from_bytes(ip[41:44], "big"))
    return sum(highest.values())


def repeats_in_vain(path, host):
    """Whether what `host` sent last, the connection manager's messages aside, had been acknowledged long before."""
    source = bytes(map(int, host.split(".")))
    acknowledged_at, last = {}, None
    for number, (frame, _) in enumerate(packets(path)):
        ip = frame[14:]
        if len(ip) < 40 or ip[9] != 17:
            continue
        code, psn = ip[28], bytes(ip[37:40])
        if code == ACKNOWLEDGE and ip[12:16] != source and ip[40] < 0x20:
            acknowledged_at.setdefault(psn, number)
        elif code < DATAGRAMS and code != ACKNOWLEDGE and ip[12:16] == source:
            last = (psn, number)
    return last is not None and acknowledged_at.get(last[0], last[1]) < last[1]


def hung_up_unheard(path, host):
    """Whether `host` sent a DREQ once and never again, and nobody answered."""
    source = bytes(map(int, host.split(".")))
    asked, answered = Counter(), set()
    for frame, _ in packets(path):
        ip = frame[14:]
        # Behind IP, UDP, BTH and DETH; transaction and attribute are at 8 and 16.
        mad = ip[48:]
        if len(mad) < 24 or ip[9] != 17 or ip[28] != DATAGRAM or mad[1] != CONNECTIONS:
            continue
        transaction, attribute = bytes(mad[8:16]), int.from_bytes(mad[16:18], "big")
        if attribute == DREQ and ip[12:16] == source:
            asked[transaction] += 1
        elif attribute == DREP and ip[12:16] != source:
            answered.add(transaction)
    unheard = [times for transaction, times in asked.items() if transaction not in answered]
    return unheard == [1]


def check(path):
    """(number of packets, op-codes counted, list of faults)."""
    opcodes, faults, count = Counter(), [], 0
    for frame, length in packets(path):
        if len(frame) < 14 + 28 or frame[12:14] != b"\x08\x00" or frame[23] != 17:
            continue
        ip = frame[14:14 + struct.unpack(">H", frame[16:18])[0]]
        udp = (ip[0] & 15) * 4
        if struct.unpack(">H", ip[udp + 2:udp + 4])[0] != 4791:
            continue
        count += 1
        if len(frame) < length:
            faults.append(f"packet {count} is cut")
            continue
        opcodes[ip[udp + 8]] += 1
        if struct.unpack("<I", ip[-4:])[0] != icrc(ip):
            faults.append(f"packet {count}: bad ICRC, op-code {ip[udp + 8]:#04x}, from {'.'.join(map(str, ip[12:16]))}")
    # On a connection that the CM made, tshark takes any SEND for RPC over RDMA, also an empty one.
    decoded = subprocess.run(
        ["tshark", "-n", "--disable-protocol", "rpcordma", "-r", str(path), "-Y", "_ws.malformed || (udp.port == 4791 && !infiniband)", "-T", "fields", "-e",
         "frame.number"], capture_output=True, text=True)
    for number in decoded.stdout.split():
        faults.append(f"tshark: frame {number} is malformed")
    if decoded.returncode:
        faults.append(f"tshark: {decoded.stderr.strip().splitlines()[-1] if decoded.stderr else 'failed'}")
    return count, opcodes, faults
