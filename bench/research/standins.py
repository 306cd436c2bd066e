"""Traffic for which there is no capture that may be used: a slow industrial protocol, and messages
of small devices, each with attacks. Made up from a seed.

Lengths of messages are those of the protocols (Modbus over TCP: Modbus Messaging on TCP/IP V1.0b,
3.1.3; MQTT 3.1.1, 2.2 and 3.1 to 3.12). Periods, numbers of devices and paces of attacks are ours,
so these show how models do on traffic of this shape, not on a certain site.
"""

import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

BEGIN_S = 1_700_000_000.0
BENIGN = "0"
SYN, ACK, PSH, FIN, RST = 2, 16, 8, 1, 4
SERVICES = {"modbus": 502, "http": 80, "mqtt": 1883}
# Of the largest payload of a packet.
SEGMENT = 1448


@dataclass
class Packet:
    """A packet of a capture."""

    time: float
    data: bytes
    source: str
    """Of the attack; empty for ordinary traffic."""


@dataclass
class Wire:
    """Packets of many conversations."""

    rng: np.random.Generator
    packets: list[Packet] = field(default_factory=list)
    port: int = 32768

    def next_port(self) -> int:
        """A client's port that was not used lately."""
        self.port = 32768 + (self.port - 32767) % 28000
        return self.port


def address(number: int) -> bytes:
    """An address of the site, from the number of a host."""
    return bytes([10, 20, number >> 8, number & 255])


def checksum(data: bytes) -> int:
    """The checksum of an IPv4 header (RFC 1071)."""
    total = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


class Conversation:
    """One TCP connection."""

    def __init__(self, wire: Wire, client: int, server: int, port: int, time: float, source: str):
        self.wire, self.time, self.source = wire, time, source
        ends = (address(client), wire.next_port()), (address(server), port)
        self.ends = ends
        self.next = [int(n) for n in wire.rng.integers(1 << 31, size=2)]
        self.delay = float(wire.rng.uniform(0.0005, 0.01))
        self._put(0, SYN)
        self._put(1, SYN | ACK)
        self._put(0, ACK)

    def _put(self, side: int, flags: int, payload: bytes = b"") -> None:
        (own, own_port), (other, other_port) = self.ends[side], self.ends[1 - side]
        seen = self.next[1 - side] if flags & ACK else 0
        window = (64240, 8192)[side]
        tcp = struct.pack(
            "!HHIIBBHHH", own_port, other_port, self.next[side], seen, 5 << 4, flags, window, 0, 0
        )
        length = 20 + len(tcp) + len(payload)
        number = int(self.wire.rng.integers(1 << 16))
        head = struct.pack("!BBHHHBBH", 0x45, 0, length, number, 0x4000, 64, 6, 0) + own + other
        head = head[:10] + struct.pack("!H", checksum(head)) + head[12:]
        link = b"\2\0" + own + b"\2\0" + other + b"\x08\0"
        data = (link + head + tcp + payload).ljust(60, b"\0")
        self.wire.packets.append(Packet(self.time, data, self.source))
        self.next[side] = (self.next[side] + len(payload) + bool(flags & (SYN | FIN))) % (1 << 32)
        self.time += self.delay * float(self.wire.rng.uniform(0.8, 1.4))

    def send(self, side: int, size: int) -> None:
        """Sends this many bytes, which are acknowledged."""
        for start in range(0, size, SEGMENT):
            payload = self.wire.rng.bytes(min(SEGMENT, size - start))
            self._put(side, ACK | PSH, payload)
        self._put(1 - side, ACK)

    def exchange(self, request: int, response: int) -> None:
        """A request whose response acknowledges it."""
        self._put(0, ACK | PSH, self.wire.rng.bytes(request))
        self.send(1, response)

    def wait(self, seconds: float) -> None:
        self.time += max(0.0, seconds)

    def close(self) -> None:
        self._put(0, FIN | ACK)
        self._put(1, FIN | ACK)
        self._put(0, ACK)


def industrial(seed: int = 1) -> list[Packet]:
    """A master that polls 20 controllers every 5 to 20 seconds for 90 minutes, a historian; and an
    intruder who floods controllers with writes, writes now and then, and tries functions."""
    rng = np.random.default_rng(seed)
    wire, end = Wire(rng), BEGIN_S + 5400.0
    plcs = range(256, 276)
    for plc in plcs:
        period, registers = rng.uniform(5, 20), int(rng.integers(4, 60))
        time = BEGIN_S + rng.uniform(0, period)
        while time < end:
            talk = Conversation(wire, 10, plc, SERVICES["modbus"], time, "")
            until = min(end, time + rng.uniform(600, 2400))
            while talk.time < until:
                talk.exchange(12, 9 + 2 * registers)
                talk.wait(rng.normal(period, 0.01) - 4 * talk.delay)
            talk.close()
            time = talk.time + rng.uniform(0.5, 5)
    for time in np.arange(BEGIN_S + 60, end, 300):
        talk = Conversation(wire, 11, 10, SERVICES["http"], time, "")
        talk.exchange(int(rng.integers(150, 400)), int(rng.integers(20_000, 90_000)))
        talk.close()
    for plc in rng.choice(plcs, 8, replace=False):
        time = BEGIN_S + rng.uniform(300, 5000)
        talk = Conversation(wire, 12, int(plc), SERVICES["modbus"], time, "write flood")
        pace = rng.uniform(0.002, 0.02)
        for _ in range(int(rng.integers(300, 900))):
            # Write multiple registers: 13 bytes and the values; the response repeats the address.
            talk.exchange(13 + 2 * int(rng.integers(1, 20)), 12)
            talk.wait(rng.exponential(pace))
        talk.close()
    for time in np.cumsum(rng.uniform(60, 200, 40)) + BEGIN_S:
        plc = int(rng.choice(plcs))
        talk = Conversation(wire, 12, plc, SERVICES["modbus"], float(time), "single writes")
        for _ in range(int(rng.integers(2, 7))):
            talk.exchange(12, 12)
            talk.wait(rng.uniform(1, 6))
        talk.close()
    for plc in plcs:
        time = BEGIN_S + 2000 + rng.uniform(0, 300)
        talk = Conversation(wire, 12, plc, SERVICES["modbus"], time, "functions tried")
        for _ in range(int(rng.integers(20, 60))):
            talk.exchange(int(rng.integers(8, 14)), 9)
            talk.wait(rng.exponential(0.05))
        talk.close()
    return wire.packets


def messages(seed: int = 1) -> list[Packet]:
    """60 devices that publish small messages to a broker for an hour, some of them pictures; and
    somebody who guesses passwords, floods the broker, leaves connections half open, and commands
    bots."""
    rng = np.random.default_rng(seed)
    wire, end, port = Wire(rng), BEGIN_S + 3600.0, SERVICES["mqtt"]

    def device(number: int, size: Callable[[], int], period: float) -> None:
        time = BEGIN_S + rng.uniform(0, 120)
        while time < end:
            talk = Conversation(wire, number, 1, port, time, "")
            talk.exchange(int(rng.integers(40, 90)), 4)
            until = min(end, time + rng.uniform(300, 3000))
            while talk.time < until:
                # PUBLISH with an answer, or at times only a PINGREQ.
                if rng.random() < 0.85:
                    talk.exchange(size(), 4)
                else:
                    talk.exchange(2, 2)
                talk.wait(rng.exponential(period))
            talk.close()
            time = talk.time + rng.exponential(20)

    for number in range(300, 354):
        least = int(rng.integers(20, 120))
        device(number, lambda least=least: least + int(rng.integers(0, 12)), rng.uniform(4, 60))
    for number in range(354, 360):
        device(number, lambda: int(rng.integers(2_000, 12_000)), 240.0)
    for _ in range(150):
        time = BEGIN_S + 1200 + rng.uniform(0, 300)
        talk = Conversation(wire, 700, 1, port, time, "passwords guessed")
        talk.exchange(int(rng.integers(40, 90)), 4)
        talk.close()
    for _ in range(6):
        time = BEGIN_S + rng.uniform(600, 3000)
        talk = Conversation(wire, int(rng.integers(300, 354)), 1, port, time, "publish flood")
        talk.exchange(60, 4)
        for _ in range(int(rng.integers(300, 900))):
            talk.send(0, int(rng.integers(80, 1200)))
            talk.wait(rng.exponential(0.01))
        talk.close()
    for _ in range(120):
        time = BEGIN_S + 2200 + rng.uniform(0, 200)
        talk = Conversation(wire, 701, 1, port, time, "half open")
        talk.send(0, int(rng.integers(3, 12)))
        for _ in range(3):
            talk.wait(rng.uniform(20, 60))
            talk.send(0, 1)
    for number in rng.choice(np.arange(300, 354), 10, replace=False):
        talk = Conversation(wire, int(number), 1, port, BEGIN_S + rng.uniform(60, 900), "bots")
        talk.exchange(60, 4)
        while talk.time < end - 100:
            talk.send(1, int(rng.integers(60, 200)))
            talk.send(0, int(rng.integers(100, 600)))
            talk.wait(rng.uniform(30, 120))
        talk.close()
    return wire.packets


MADE: dict[str, Callable[[], list[Packet]]] = {
    "synthetic-industrial": industrial,
    "synthetic-messages": messages,
}


def write(folder: Path) -> list[Path]:
    """Writes a folder per capture, with trace.pcap and labels.csv, as there are of real ones;
    returns the files of labels."""
    written = []
    for name, make in MADE.items():
        packets = sorted(make(), key=lambda packet: packet.time)
        here = folder / name
        here.mkdir(parents=True)
        with (here / "trace.pcap").open("wb") as trace:
            trace.write(struct.pack("<IHHiIII", 0xA1B23C4D, 2, 4, 0, 0, 262_144, 1))
            for packet in packets:
                seconds, rest = divmod(round(packet.time * 1e9), 1_000_000_000)
                size = len(packet.data)
                trace.write(struct.pack("<IIII", seconds, rest, size, size) + packet.data)
        lines = ["frame,label,source"]
        for frame, packet in enumerate(packets, 1):
            label = "1" if packet.source else BENIGN
            lines.append(f"{frame},{label},{packet.source or name}")
        (here / "labels.csv").write_text("\n".join(lines) + "\n")
        written.append(here / "labels.csv")
    return written
