"""A switch with the published program of the *Flow paper, written from its parser and its control
program, and what `strata` says of the frames that it exports: `frames.py STRATA DIR`."""

import csv
import io
import random
import struct
import subprocess
import sys
from collections import Counter
from pathlib import Path

STRATA, DIR = sys.argv[1], Path(sys.argv[2])
FULL, SHORT, ROLLED = 0x081A, 0x081B, 100
# A little before the low 32 bits of ns wrap, which they do at 1,700,000,000.4 s.
BEGIN_NS = ((1_700_000_000 * 10**9 >> 32) + 1 << 32) - 150_000_000


class Switch:
    """The cache in registers: an entry of each array is one slot."""

    def __init__(self, narrow, total, slots, blocks, word):
        self.narrow, self.total, self.slots, self.word = narrow, total, slots, word
        self.key = [None] * slots
        self.next_id = [0] * slots
        self.start = [0] * slots
        self.short = [[0] * 4 for _ in range(slots)]
        self.pointer = [0] * slots
        # Block 0 is the one that a flow without a block writes to.
        self.free = list(range(1, blocks + 1))
        self.long = [[0] * 24 for _ in range(blocks + 1)]
        self.held = [[] for _ in range(slots)]
        self.random = random.Random(5)
        self.frames, self.exported = [], []

    def packet(self, at_ns, key, size, high, ip):
        slot = hash(key) % self.slots
        matches, before = self.key[slot] == key, self.next_id[slot]
        old = self.key[slot]
        if matches:
            number = before
            is_last = number in (self.total - 1, self.total - 1 + ROLLED)
            self.next_id[slot] = ROLLED if is_last else number + 1
        else:
            self.key[slot], number, self.next_id[slot] = key, 0, 1
        if matches and number == self.narrow:
            self.pointer[slot] = self.free.pop() if self.free else 0
        pointer = self.pointer[slot]
        # Read before it is written, as a register of the switch is.
        short, long = list(self.short[slot]), list(self.long[pointer])
        exported = None
        if not matches and old is not None:
            index = before % ROLLED if before > ROLLED else before
            if before == ROLLED:
                index = self.total
            if not pointer:
                exported = SHORT, (index - 1) % self.narrow + 1
            else:
                exported = FULL, index
        elif matches and number:
            if not pointer and (number % ROLLED) % self.narrow == 0:
                exported = SHORT, self.narrow
            elif pointer and number == ROLLED:
                exported = FULL, self.total
        if exported:
            self.export(at_ns, old, slot, exported, short, long, ip)
        if exported or not matches:
            self.start[slot], self.held[slot] = at_ns, []
        if not matches:
            if pointer:
                self.free.append(pointer)
            self.pointer[slot] = pointer = 0
        word = self.word(at_ns - self.start[slot], size, high)
        index = number % ROLLED
        if index < self.narrow or not pointer:
            self.short[slot][index % self.narrow] = word
        else:
            self.long[pointer][index - self.narrow] = word
        self.held[slot].append((at_ns, size, high))

    def export(self, at_ns, key, slot, exported, short, long, ip):
        ether_type, count = exported
        assert count == len(self.held[slot]), (exported, len(self.held[slot]))
        source, destination, ports, protocol = key
        noise = lambda words: [self.random.getrandbits(32) for _ in words]
        # What no packet wrote may be anything.
        short[self.narrow:] = noise(short[self.narrow:])
        frame = self.random.randbytes(12) + struct.pack(
            ">HHHIIIIHB", ether_type, 0x0800, self.pointer[slot], source, destination, ports,
            self.start[slot] & 0xFFFF_FFFF, count, protocol,
        ) + struct.pack(">4I", *short)
        if ether_type == FULL:
            frame += struct.pack(">24I", *long)
        # The switch takes 3 us.
        self.frames.append((at_ns + 3000, frame + ip))
        for packet in self.held[slot]:
            self.exported.append((key, self.start[slot], at_ns + 3000, *packet))


def traffic(switch):
    """Packets of a few busy flows among many that are not."""
    source = random.Random(41)
    at_ns = BEGIN_NS
    for _ in range(6000):
        at_ns += source.randrange(1000, 100_000)
        flow = source.randrange(4) if source.random() < 0.7 else source.randrange(4, 60)
        protocol = 6 if flow % 3 else 17
        key = (0x0A000001 + flow, 0xC0000201, (1024 + flow) << 16 | 443, protocol)
        size = source.choice([40, 576, 1500, source.randrange(40, 1500)])
        header = struct.pack(">BBHHHBBHII", 0x45, 0, size, 1, 0, 64, protocol, 0, key[0], key[1])
        ip = header + struct.pack(">I", key[2]) + source.randbytes(24)
        switch.packet(at_ns, key, size, source.random() < 0.1, ip)
    return switch


def capture(path, frames):
    """A capture file with times in ns, as tcpdump writes it."""
    with open(path, "wb") as file:
        file.write(struct.pack("<IHHiIII", 0xA1B23C4D, 2, 4, 0, 0, 65535, 1))
        for at_ns, frame in frames:
            seconds, ns = divmod(at_ns, 10**9)
            file.write(struct.pack("<IIII", seconds, ns, len(frame), len(frame)) + frame)
    return str(path)


def strata(*words, status=0, feed=None):
    done = subprocess.run([STRATA, *words], capture_output=True, stdin=feed, check=False)
    said = done.stderr.decode()
    assert done.returncode == status, (words, done.returncode, said)
    return done.stdout.decode(), said


def address(number):
    return ".".join(str(byte) for byte in struct.pack(">I", number))


def named(key):
    source, destination, ports, protocol = key
    return [address(source), address(destination), str(ports >> 16), str(ports & 0xFFFF), str(protocol)]


def rows(text, *names):
    return Counter(tuple(row[name] for name in names) for row in csv.DictReader(io.StringIO(text)))


def ok(what):
    print("ok", what)


FLOW = ("srcip", "dstip", "srcport", "dstport", "proto")
ALL = "R = map(T, [at, len, high], [tin, pkt_len, high_queue]);"
SIZES = "R = map(T, [at, len], [tin, pkt_len]);"
ANY = ("--groups-max", "100000", "--rows-max", "100000", "-F", "csv")

# Section 6.2: a delta of 20 bits in us, a size of 11, a flag; Table 2: buffers of 4 and 24.
switch = traffic(Switch(4, 28, 16, 3, lambda delta, size, high: delta // 1000 << 12 | size << 1 | high))
kinds = Counter(frame[12:14] for _, frame in switch.frames)
assert len(kinds) == 2 and min(kinds.values()) > 50, kinds
assert len({frame[30:34] > b"\x80" for _, frame in switch.frames}) == 2, "the clock wraps"
others = [(BEGIN_NS, bytes(12) + b"\x88\xcc" + bytes(40)), (BEGIN_NS, bytes(12) + b"\x08\x00E" + bytes(60))]
file = capture(DIR / "paper.pcap", others + switch.frames)
expected = Counter(
    (*named(key), str(start + (at - start) // 1000 * 1000), str(size), str(int(high)))
    for key, start, _, at, size, high in switch.exported
)
assert len(expected) > 3000
text, said = strata("ask", "--vectors", file, "--frames", "paper", ALL, *ANY)
assert rows(text, *FLOW, "at", "len", "high") == expected, (len(expected), text[:400], said)
ok("packets of the paper's tuples")

with open(file, "rb") as feed:
    text, _ = strata("ask", "--vectors", "-", "--frames", "paper", ALL, *ANY, feed=feed)
assert rows(text, *FLOW, "at", "len", "high") == expected
ok("by a pipe")

text, _ = strata("gpv", "profile", file, "--frames", "paper", "-F", "csv")
hosts = Counter(address(key[0]) for key, *_ in switch.exported)
assert rows(text, "host", "packets") == Counter((host, str(count)) for host, count in hosts.items()), text
ok("an application")

# Frames that are cut, empty, longer than buffers, or of other packets; the others are answered.
full = next(frame for _, frame in switch.frames if frame[12:14] == b"\x08\x1a" and frame[35] > 20)
short = next(frame for _, frame in switch.frames if frame[12:14] == b"\x08\x1b")
damaged = [
    full[:100], short[:30], short[:34] + bytes(2) + short[36:], short[:35] + b"\x05" + short[36:],
    full[:35] + b"\x1d" + full[36:], short[:14] + b"\x86\xdd" + short[16:],
]
mixed = capture(DIR / "damaged.pcap", switch.frames + [(BEGIN_NS, frame) for frame in damaged])
text, said = strata("ask", "--vectors", mixed, "--frames", "paper", ALL, *ANY, status=1)
assert rows(text, *FLOW, "at", "len", "high") == expected
assert "6 records could not be read: their packets are missing" in said, said
assert "a frame at " in said and "truncated words at byte 97 of 100" in said, said
ok("damaged frames are counted")

# As published: buffers of 2 and 6, the total length of IPv4 in each word.
switch = traffic(Switch(2, 8, 16, 3, lambda _, size, __: size))
file = capture(DIR / "published.pcap", switch.frames)
expected = Counter(
    (*named(key), str(exported), str(size)) for key, _, exported, _, size, _ in switch.exported
)
text, _ = strata("ask", "--vectors", file, "--frames", "published", SIZES, *ANY)
assert rows(text, *FLOW, "at", "len") == expected, (len(expected), text[:400])
ok("packets of the published program's words")

said = strata("ask", "--vectors", file, "--frames", "published", ALL, *ANY, status=2)[1]
assert "high_queue" in said and "do not carry it" in said, said
file = capture(DIR / "others.pcap", others)
said = strata("ask", "--vectors", file, "--frames", "paper", SIZES, status=1)[1]
assert "not grouped packet vectors: no frame has the EtherType 0x081a" in said, said
said = strata("gpv", "profile", "udp://127.0.0.1:0", "--frames", "paper", status=2)[1]
assert "--frames applies only to a capture file" in said, said
ok("what cannot be read is refused")
