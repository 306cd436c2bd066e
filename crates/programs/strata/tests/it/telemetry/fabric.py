#!/usr/bin/env python3
"""Networks of switches report by INT to a collector; its answers are compared with the truth.

    fabric.py STRATA_BINARY WORKDIR [SEED]

Each scenario simulates a network, sends the reports of its switches by UDP to a collector of its
own (`strata telemetry run`), asks the collector by command line, and compares the answers with what
the simulated packets did. Written from the specifications of P4.org: Telemetry Report Format 1.0
(2018-04-20) and 2.0 (2020-10-08), INT Dataplane Specification 1.0 and 2.1.

An answer that says "whole" equals the truth: nodes, hops, each latency and their sum. Any other
answer has no sum, says why (remarks), gives nodes at their true places only, and no bound above the
truth.

A line is printed per scenario: `ok  NAME  flows N, whole W` or `FAIL NAME: detail`. The exit status
is 1 if any failed. SEED is 1 by default.
"""

import ipaddress
import json
import pathlib
import random
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import time
import zlib
from concurrent.futures import ThreadPoolExecutor

# --------------------------------------------------------------------------------------- encoder

TCP, UDP = 6, 17
ETHERTYPE = {4: 0x0800, 6: 0x86DD}
INT_PORT = 5000  # INT_TBD of INT 2.1, "INT over TCP/UDP": no port is assigned


def bits(*fields):
    """Packs (width, value) pairs from the most significant bit on."""
    number = length = 0
    for width, value in fields:
        if not 0 <= value < 1 << width:
            raise ValueError(f"{value} does not fit {width} bits")
        number, length = number << width | value, length + width
    return number.to_bytes(length // 8, "big")


def words(data):
    """The number of words of four bytes."""
    if len(data) % 4:
        raise ValueError(f"{len(data)} bytes are not whole words")
    return len(data) // 4


def internet_checksum(data):
    """RFC 1071."""
    data += bytes(len(data) % 2)
    total = sum(struct.unpack(f">{len(data) // 2}H", data))
    while total > 0xFFFF:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


def ethernet(ip_packet):
    to, sender = bytes.fromhex("02000000ab01"), bytes.fromhex("02000000cd02")
    return to + sender + struct.pack(">H", ETHERTYPE[ip_packet[0] >> 4]) + ip_packet


def ip(source, destination, protocol, ttl, dscp, body):
    """A packet of IPv4 (RFC 791) or IPv6 (RFC 8200), as the addresses are."""
    if source.version == 6:
        first = bits((4, 6), (6, dscp), (2, 0), (20, 0x4321), (16, len(body)), (8, protocol))
        return first + bits((8, ttl)) + source.packed + destination.packed + body
    # Version, words, DSCP, ECN, length; identification, "do not fragment", offset, TTL, protocol.
    before = bits((4, 4), (4, 5), (6, dscp), (2, 0), (16, 20 + len(body)),
                  (16, 0), (3, 0b010), (13, 0), (8, ttl), (8, protocol))
    addresses = source.packed + destination.packed
    return before + bits((16, internet_checksum(before + bytes(2) + addresses))) + addresses + body


def transport(flow, port, body):
    """The flow's TCP segment (RFC 9293) or UDP datagram (RFC 768) to a port, with its checksum."""
    if flow.protocol == TCP:
        # Kind 8 of RFC 7323, behind two bytes of padding.
        options = b"\x01\x01" + struct.pack(">BBII", 8, 10, 77, 66) if flow.timestamps else b""
        head = bits((16, flow.sport), (16, port), (32, flow.sport * 9973), (32, 1),
                    (4, 5 + words(options)), (4, 0), (8, 0x18), (16, 502))
        rest = bits((16, 0)) + options + body  # urgent pointer
    else:
        head = bits((16, flow.sport), (16, port), (16, 8 + len(body)))
        rest = body
    length = len(head) + 2 + len(rest)
    pseudo = flow.source.packed + flow.destination.packed + bits((32, length), (32, flow.protocol))
    checksum = internet_checksum(pseudo + head + bytes(2) + rest)
    if flow.protocol == UDP and not checksum:
        checksum = 0xFFFF
    return head + struct.pack(">H", checksum) + rest


PAYLOAD_LENGTH = 200
PAYLOAD = (b"A payload of the application, which no switch reads. " * 4)[:PAYLOAD_LENGTH]


def packet(flow, ttl, inserted=b"", port=None, dscp=None):
    """An IP packet of the flow, with what INT inserted behind the header of TCP or UDP."""
    body = transport(flow, flow.dport if port is None else port, inserted + PAYLOAD)
    marks = flow.dscp if dscp is None else dscp
    return ip(flow.source, flow.destination, flow.protocol, ttl, marks, body)


def cut(data, least):
    """The beginning of a packet, `least` bytes at least, in whole words: zeros if it is shorter."""
    length = (least + 3) // 4 * 4
    return data[:length].ljust(length, b"\0")


def set_bits(bitmap):
    """The numbers of the bits that are set in a bitmap of 16, counted from the highest."""
    return [bit for bit in range(16) if bitmap >> (15 - bit) & 1]


class Metadata:
    """What a node knows of a packet's passage, by the bits of the instruction bitmap."""

    def __init__(self, rng, node, latency):
        self.node, self.latency = node, latency
        self.entry, self.exit = rng.randrange(1, 48), rng.randrange(1, 48)
        self.queue, self.depth = rng.randrange(8), rng.randrange(1, 9000)
        self.arrived = 1_700_000_000_000_000_000 + rng.randrange(10**12)
        self.utilization = rng.randrange(100)

    def encoded(self, bitmap, version):
        """The metadata of the bits in an Instruction Bitmap, of which bit 0 is the highest.

        INT 2.1, "INT-MD Metadata Header Format", and INT 1.0, 4.7. RepMdBits of TR 2.0 has the same
        bits 1 to 8, and no bit 0.
        """
        clock = 64 if version == 2 else 32  # bits of a time: 64 since INT 2.0
        arrived, left = self.arrived % (1 << clock), (self.arrived + self.latency) % (1 << clock)
        fields = {
            0: struct.pack(">I", self.node),
            1: struct.pack(">HH", self.entry, self.exit),  # interfaces of level 1
            2: struct.pack(">I", self.latency),
            3: bits((8, self.queue), (24, self.depth)),
            4: bits((clock, arrived)),
            5: bits((clock, left)),
            6: struct.pack(">II", self.entry + 1000, self.exit + 1000),  # interfaces of level 2
            7: struct.pack(">I", self.utilization),
            8: bits((8, 1), (24, self.depth + 5)),  # buffer, since INT 2.0
            15: struct.pack(">I", 0x5A5AA5A5),  # checksum complement, the last one
        }
        return b"".join(fields[bit] for bit in set_bits(bitmap))


def group_header(switch, number):
    """TR 2.0, "Telemetry Report Group Header"."""
    return bits((4, 2), (6, switch.unit), (22, number % (1 << 22)), (32, switch.node))


def individual_report(main, inner_type, inner, metadata=b"", congested=False):
    """TR 2.0, "Individual Report Header", of a tracked flow (F).

    `main` is RepMdBits, or None for a report of type 0, "inner only".
    """
    # "Individual Report Main Contents for RepType 1": RepMdBits, and no domain-specific metadata.
    fixed = b"" if main is None else bits((16, main), (16, 0), (16, 0), (16, 0))
    contents = fixed + metadata + inner
    length = min(words(contents), 0xFF)  # 0xFF: up to the end of the datagram
    return bits((4, 0 if main is None else 1), (4, inner_type), (8, length), (8, words(metadata)),
                (1, 0), (1, congested), (1, 1), (1, 0), (4, 0)) + contents  # D, Q, F, I


def inner_contents(style, ip_packet, least):
    """InType and Individual Report Inner Contents: the beginning of the packet.

    `least` counts from the packet's IP header.
    """
    version = ip_packet[0] >> 4
    if style == "ethernet":
        return 3, cut(ethernet(ip_packet), 14 + least)
    start = cut(ip_packet, least)
    if style == "ip":
        return {4: 4, 6: 5}[version], start
    # "Individual Report Inner Contents for InType 1": a TLV of type 2 (IPv4) or 3 (IPv6), reserved,
    # length in words, template.
    return 1, bits((4, {4: 2, 6: 3}[version]), (4, 0), (8, words(start)), (16, 0)) + start


def report_1_0(switch, number, ethernet_frame):
    """TR 1.0, 3.2, "Telemetry Report Header", without optional metadata; then Ethernet."""
    length = 4  # words of this header
    # Version, length, NProt, RepMdBits, reserved, D, Q, F, hw_id; switch, number, ingress time.
    return bits((4, 1), (4, length), (3, 0), (6, 0), (6, 0), (1, 0), (1, 0), (1, 1),
                (6, switch.unit), (32, switch.node), (32, number % (1 << 32)),
                (32, 123456789)) + ethernet_frame


class Stack:
    """An INT-MD header with its stack, as source and transit switches write it."""

    def __init__(self, version, bitmap, hops):
        self.version, self.bitmap, self.remaining = version, bitmap, hops
        self.exceeded = self.too_long = False
        self.entries = []  # the newest first

    def push(self, metadata, fits=True):
        """Sets E if no hop remains, M if the packet would be longer than the MTU."""
        if not self.remaining:
            self.exceeded = True
        elif not fits:
            self.too_long = True
        else:
            self.entries.insert(0, metadata.encoded(self.bitmap, self.version))
            self.remaining -= 1

    def encoded(self, next_protocol, last):
        """Shim header of TCP/UDP, metadata header and stack.

        `last` is the end of the shim: the original port, or the original DSCP.
        """
        wide = (4, 5, 6) if self.version == 2 else (6,)  # metadata of two words
        hop_length = sum(2 if bit in wide else 1 for bit in set_bits(self.bitmap))
        stack = b"".join(self.entries)
        length = 2 + (self.version == 2) + words(stack)  # of header and stack
        flags = (1, self.exceeded), (1, self.too_long)
        if self.version == 2:
            # INT 2.1, "INT over TCP/UDP": type 1 (MD), NPT, reserved, length without the shim.
            shim = bits((4, 1), (2, next_protocol), (2, 0), (8, length), (16, last))
            # "INT-MD Metadata Header Format": version, D, E, M, reserved, Hop ML, remaining hops;
            # instructions, domain; domain's instructions and flags.
            header = bits((4, 2), (1, 0), *flags, (12, 0), (5, hop_length), (8, self.remaining),
                          (16, self.bitmap), (16, 0), (16, 0), (16, 0))
        else:
            # INT 1.0, 4.6.1: type 1 (hop by hop), reserved, length with the shim, DSCP, reserved.
            shim = bits((8, 1), (8, 0), (8, 1 + length), (8, last))
            # 4.7: version, Rep, C, E, M, reserved, Hop ML, remaining hops; instructions, reserved.
            header = bits((4, 1), (2, 0), (1, 0), *flags, (10, 0), (5, hop_length),
                          (8, self.remaining), (16, self.bitmap), (16, 0))
        return shim + header + stack


# ---------------------------------------------------------------------------------------- fabric

TTLS = (64, 128, 255)


class Switch:
    """A switch: its id, how it numbers its reports, and what and how it reports for itself."""

    def __init__(self, node, index):
        self.node, self.unit = node, index * 5 % 64
        self.number = 0
        self.report_bits = (0x7000, 0x7C00, 0x2180, 0x6600)[index % 4]  # bit 2, latency, in each
        self.style = ("ethernet", "ip", "tlv")[index % 3]


class Flow:
    """A flow, the nodes that it passes, and the latency of its packets at each."""

    def __init__(self, rng, hosts, protocol, sport, dport):
        (self.source, self.source_switch), (self.destination, self.last_switch) = hosts
        self.protocol, self.sport, self.dport = protocol, sport, dport
        self.first_ttl = 64
        self.dscp = 0
        self.timestamps = protocol == TCP and sport % 3 == 0
        self.path = []  # switches
        self.latencies = []
        self.lasting = {}  # latency by node
        self.rng = rng

    def take(self, path):
        """Lets the packets from now on pass these switches."""
        self.path = path
        for switch in path:
            self.lasting.setdefault(switch.node, self.rng.randrange(200, 5000))
        self.latencies = [self.lasting[switch.node] for switch in path]

    def text(self):
        """As the collector's command line has it."""
        form = "[{}]:{}" if self.source.version == 6 else "{}:{}"
        ends = form.format(self.source, self.sport), form.format(self.destination, self.dport)
        return f"{ends[0]} > {ends[1]} {'tcp' if self.protocol == TCP else 'udp'}"

    def truth(self):
        return [(switch.node, latency) for switch, latency in zip(self.path, self.latencies)]

    def passages(self):
        """The metadata of a packet at each switch."""
        return [Metadata(self.rng, *hop) for hop in self.truth()]


def addresses(*parts):
    """The IPv4 and the IPv6 address of a host."""
    four = ipaddress.IPv4Address("10." + ".".join(str(part) for part in parts))
    six = ipaddress.IPv6Address("fd00:10::" + ":".join(f"{part:x}" for part in parts))
    return {4: four, 6: six}


class FatTree:
    """Four pods of two edge and two aggregation switches, four core switches, and 16 hosts.

    Packets go up no further than they have to; the hash of the flow chooses among equal paths.
    """

    routed = True

    def __init__(self, nodes):
        self.switches = [Switch(node, index) for index, node in enumerate(nodes)]
        self.edges = [self.switches[2 * pod:2 * pod + 2] for pod in range(4)]
        self.aggregations = [self.switches[8 + 2 * pod:10 + 2 * pod] for pod in range(4)]
        self.cores = [self.switches[16:18], self.switches[18:20]]  # by place of the aggregation
        self.hosts = [(addresses(pod, edge, 2 + host), (pod, edge))
                      for pod in range(4) for edge in range(2) for host in range(2)]

    def paths(self, flow):
        """All equal paths from the flow's source to its destination."""
        (pod, edge), (last_pod, last_edge) = flow.source_switch, flow.last_switch
        first, last = self.edges[pod][edge], self.edges[last_pod][last_edge]
        if first is last:
            return [[first]]
        if pod == last_pod:
            return [[first, between, last] for between in self.aggregations[pod]]
        up, down = self.aggregations[pod], self.aggregations[last_pod]
        return [[first, up[place], core, down[place], last]
                for place in range(2) for core in self.cores[place]]


class Line:
    """Switches in a line, with three hosts at each of the ends given, or at every switch."""

    def __init__(self, nodes, routed=False, ends=None):
        self.routed = routed
        self.switches = [Switch(node, index) for index, node in enumerate(nodes)]
        places = range(len(nodes)) if ends is None else ends
        self.hosts = [(addresses(9, place, 10 + host), place)
                      for place in places for host in range(3)]

    def paths(self, flow):
        start, end = flow.source_switch, flow.last_switch
        if start <= end:
            return [self.switches[start:end + 1]]
        return [self.switches[end:start + 1][::-1]]


def flows_of(rng, net, count, lengths, protocols=(TCP, UDP), six=5):
    """Flows whose paths have these lengths in turn; every `six`-th one is of IPv6 (0: none)."""
    made = []
    while len(made) < count:
        number = len(made)
        ends = rng.sample(range(len(net.hosts)), 2)
        version = 6 if six and number % six == six - 1 else 4
        hosts = [(net.hosts[end][0][version], net.hosts[end][1]) for end in ends]
        protocol = protocols[number // len(lengths) % len(protocols)]
        dport = rng.choice((443, 80, 8443) if protocol == TCP else (9999, 443, 4433))
        flow = Flow(rng, hosts, protocol, 10000 + number, dport)
        paths = net.paths(flow)
        if len(paths[0]) != lengths[number % len(lengths)]:
            continue
        flow.first_ttl = TTLS[ends[0] % 3]
        flow.take(paths[zlib.crc32(flow.text().encode()) % len(paths)])
        made.append(flow)
    return made


def ttl_at(net, flow, place, routed_first=False):
    """The TTL of the packet that the switch at this place clones, before or after routing it."""
    return flow.first_ttl - (place + routed_first if net.routed else 0)


def xd_reports(net, flow, routed_first=False, congested=()):
    """INT-XD: (switch, individual report) of each switch that a packet of the flow passes."""
    reports = []
    for place, (switch, passage) in enumerate(zip(flow.path, flow.passages())):
        whole = packet(flow, ttl_at(net, flow, place, routed_first))
        inner = inner_contents(switch.style, whole, 80 + 4 * place)
        metadata = passage.encoded(switch.report_bits, 2)
        marked = switch.node in congested
        report = individual_report(switch.report_bits, *inner, metadata, marked)
        reports.append((switch, report))
    return reports


INSTRUCTIONS = (0xF000, 0xA000, 0xAC00, 0xFF80, 0xE001)  # bits 0, node, and 2, latency, in each


def md_report(net, flow, hops=16, tight=(), latencies=None):
    """INT-MD 2.1: (sink, individual report) of a packet of the flow.

    Every switch but the sink pushes its metadata, the sink adds its own to the report. `hops` is
    the first Remaining Hop Count; at the places `tight`, the metadata do not fit the MTU.
    """
    bitmap = INSTRUCTIONS[flow.sport % len(INSTRUCTIONS)]
    stack = Stack(2, bitmap, hops)
    passages = flow.passages()
    for passage, latency in zip(passages, latencies or flow.latencies):
        passage.latency = latency
    for place, passage in enumerate(passages[:-1]):
        stack.push(passage, place not in tight)
    if flow.protocol == UDP:
        inserted = stack.encoded(1, flow.dport)  # NPT 1: the payload of UDP follows
        marks = {"port": INT_PORT}
    else:
        inserted = stack.encoded(0, flow.dscp << 2)
        marks = {"dscp": 0x17}
    sink = flow.path[-1]
    whole = packet(flow, ttl_at(net, flow, len(flow.path) - 1), inserted=inserted, **marks)
    inner = inner_contents(sink.style, whole, len(whole) - PAYLOAD_LENGTH + 12)
    # The sink clears bit 15, the complement; its id is in the group header instead of bit 0.
    own = bitmap & 0x7F80
    return sink, individual_report(own, *inner, passages[-1].encoded(own, 2))


def md_report_1_0(net, flow, number):
    """INT-MD 1.0 in Telemetry Report 1.0: the stack has an entry of the sink as well."""
    stack = Stack(1, (0xF000, 0xA000, 0xBC00, 0xE100)[flow.sport % 4], 16)
    for passage in flow.passages():
        stack.push(passage)
    inserted = stack.encoded(0, flow.dscp << 2)
    whole = packet(flow, ttl_at(net, flow, len(flow.path) - 1), inserted=inserted, dscp=0x20)
    return report_1_0(flow.path[-1], number, ethernet(whole)[:-PAYLOAD_LENGTH + 20])


# ------------------------------------------------------------------------------------- collector


def free_port():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def waiting_bytes(port):
    """The bytes that wait in the socket of this UDP port, if the system says so."""
    try:
        lines = pathlib.Path("/proc/net/udp").read_text().splitlines()[1:]
    except OSError:
        return 0
    for line in lines:
        fields = line.split()
        if fields[1].endswith(f":{port:04X}"):
            return int(fields[4].split(":")[1], 16)
    return 0


class Wire:
    """Sends the datagrams of all switches to the collector, and loses some of them.

    `revealed` is the number of lost datagrams that a later one of the same switch shows to be
    missing; a datagram before the first one that arrives is never shown.
    """

    def __init__(self, port, per_datagram=1):
        self.port, self.per_datagram = port, per_datagram
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.connect(("127.0.0.1", port))
        self.sent = self.lost = self.revealed = 0
        self.unseen = {}  # datagrams lost since the last one that arrived, by node
        self.held = {}  # reports that wait for more of their switch

    def datagram(self, switch, encode, lost=False):
        """Numbers a datagram of the switch and sends it, or only numbers it."""
        number, switch.number = switch.number, switch.number + 1
        if lost:
            self.lost += 1
            if switch.node in self.unseen:
                self.unseen[switch.node] += 1
            return
        self.revealed += self.unseen.get(switch.node, 0)
        self.unseen[switch.node] = 0
        self.socket.send(encode(number))
        self.sent += 1
        if self.sent % 50 == 0:
            end = time.monotonic() + 2
            time.sleep(0.001)
            while waiting_bytes(self.port) > 32768 and time.monotonic() < end:
                time.sleep(0.001)

    def report(self, switch, report, lost=False):
        """Sends an individual report of version 2.0, with others of the same switch if they may."""
        held = self.held.setdefault(switch.node, [])
        held.append(report)
        if len(held) >= self.per_datagram:
            self.send_held(switch, lost)

    def send_held(self, switch, lost=False):
        reports = self.held.pop(switch.node, [])
        if reports:
            self.datagram(switch, lambda number: group_header(switch, number) + b"".join(reports),
                          lost)

    def restart(self, switch):
        """The switch counts from 0 again."""
        switch.number = 0
        self.unseen.pop(switch.node, None)


class Failure(Exception):
    pass


class Trial:
    """A scenario's collector, and what is wrong with its answers."""

    def __init__(self, strata, workdir, name, seed):
        self.strata, self.workdir, self.name = strata, workdir, name
        self.rng = random.Random(f"{seed} {name}")
        self.store = workdir / f"{name}.store"
        self.process = self.wire = None
        self.wrong = []
        self.flows = self.whole = self.unknown = 0

    def nodes(self, count):
        return self.rng.sample(range(1, 65536), count)

    def command(self, *arguments):
        return subprocess.run([self.strata, "telemetry", *arguments], stdin=subprocess.DEVNULL,
                              capture_output=True, text=True, timeout=20)

    def start(self, table=None, options=(), per_datagram=1):
        """Starts a collector; at other ports if these were taken meanwhile."""
        options = list(options)
        if table is not None:
            file = self.workdir / f"{self.name}.toml"
            file.write_text(table)
            options += ["--table", str(file)]
        for _ in range(3):
            shutil.rmtree(self.store, ignore_errors=True)
            port = free_port()
            with open(self.workdir / f"{self.name}.log", "w") as log:
                self.process = subprocess.Popen(
                    [self.strata, "telemetry", "run", "-o", str(self.store),
                     "--store-memory", "16MiB", "--listen", f"127.0.0.1:{free_port()}",
                     "--int", f"127.0.0.1:{port}", *options],
                    stdin=subprocess.DEVNULL, stdout=log, stderr=log)
            end = time.monotonic() + 10
            while self.process.poll() is None and time.monotonic() < end:
                if self.command("status", str(self.store)).returncode == 0:
                    self.wire = Wire(port, per_datagram)
                    return
                time.sleep(0.05)
            self.stop()
        log = (self.workdir / f"{self.name}.log").read_text().strip()
        raise Failure(f"the collector does not start: {log[-300:]}")

    def stop(self):
        process, self.process = self.process, None
        if process is None:
            return
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
        try:
            code = process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            code = "none, 10 s after SIGINT"
        if self.wire is not None:
            self.wire.socket.close()
            if code != 0:
                self.wrong.append(f"the collector's exit status is {code}")

    def settle(self):
        """Waits until all datagrams are counted and their rows are written."""
        time.sleep(0.5)
        end = time.monotonic() + 5
        while True:
            answer = self.command("status", str(self.store), "--json")
            status = json.loads(answer.stdout) if answer.returncode == 0 else {"int": {}}
            counts = status["int"]
            done = (counts.get("datagrams") == self.wire.sent
                    and counts.get("missing") == self.wire.revealed)
            if done or time.monotonic() > end:
                break
            time.sleep(0.1)
        expected = {"datagrams": self.wire.sent, "missing": self.wire.revealed, "refused": 0}
        for name, number in expected.items():
            if counts.get(name) != number:
                self.wrong.append(f"int.{name} is {counts.get(name)}, not {number} "
                                  f"(socket drops: {status.get('socket_drops')})")

    def ask(self, flows):
        """(flow, answer) of each; the answer is None if the collector knows no path."""
        def path(flow):
            answer = self.command("path", str(self.store), flow.text(), "--json")
            if answer.returncode == 1:
                return flow, None
            if answer.returncode:
                raise Failure(f"path {flow.text()}: {answer.stderr.strip()[-200:]}")
            return flow, json.loads(answer.stdout)
        with ThreadPoolExecutor(4) as pool:
            answers = list(pool.map(path, flows))
        for _, answer in answers:
            self.flows += 1
            self.whole += answer is not None and answer.get("whole") is True
            self.unknown += answer is None
        return answers

    def compare(self, flow, answer, **rule):
        self.wrong += [f"{flow.text()}: {fault}" for fault in judged(flow.truth(), answer, **rule)]

    def line(self):
        if self.wrong:
            more = f" (and {len(self.wrong) - 3} more)" if len(self.wrong) > 3 else ""
            detail = " ".join("; ".join(self.wrong[:3]).split())  # without line ends
            return f"FAIL {self.name}: {detail}{more}"
        unknown = f", unknown {self.unknown}" if self.unknown else ""
        return f"ok  {self.name}  flows {self.flows}, whole {self.whole}{unknown}"


def judged(truth, answer, whole=None, places="exact", present=()):
    """What is wrong with an answer.

    `whole`: what the answer has to say; None if both are allowed, when true.
    `places`: what holds for the nodes of an answer that is not whole. "exact": each is at its true
    place; "order": they are nodes of the path in their order; "free": nothing, nor for the bounds.
    `present`: places whose nodes have to be in the answer, and without which it may be unknown.
    """
    if answer is None:
        return ["the path is not known"] if present or whole else []
    try:
        return list(faults(truth, answer, whole, places, present))
    except (KeyError, TypeError) as error:
        return [f"the answer is not of the agreed form ({error!r}): {json.dumps(answer)[:200]}"]


def faults(truth, answer, whole, places, present):
    nodes, latencies = [node for node, _ in truth], [latency for _, latency in truth]
    hops = [(hop["node"], hop["latency"]) for hop in answer["hops"]]
    if answer["whole"] not in (True, False) or whole not in (None, answer["whole"]):
        yield f"whole is {answer['whole']}, remarks {answer['remarks']}"
    if answer["whole"]:
        if hops != truth:
            yield f"whole, but the hops are {hops}, not {truth}"
        if answer["latency"] != sum(latencies):
            yield f"whole, but the latency is {answer['latency']}, not {sum(latencies)}"
    else:
        if answer["latency"] is not None:
            yield f"not whole, but the latency is {answer['latency']}"
        if not answer["remarks"]:
            yield "not whole, but without a remark"
        if places == "free":
            return
        if places == "exact":
            for place, (node, latency) in enumerate(hops):
                true_hop = truth[place] if place < len(truth) else (None, None)
                if node is None:
                    continue
                if node != true_hop[0] or latency not in (None, true_hop[1]):
                    yield f"hop {place + 1} is {node}, {latency}, not {true_hop}"
        else:
            rest = iter(nodes)
            if not all(node in rest for node, _ in hops if node is not None):
                yield f"the nodes of {hops} are not in the order of {nodes}"
        if (answer["latency_at_least"] or 0) > sum(latencies):
            yield f"the latency is at least {answer['latency_at_least']}, not {sum(latencies)}"
        if (answer["hops_at_least"] or 0) > len(truth):
            yield f"there are {answer['hops_at_least']} hops at least, not {len(truth)}"
    if answer["hops_in_all"] not in (None, len(truth)):
        yield f"there are {answer['hops_in_all']} hops in all, not {len(truth)}"
    for place in present:
        if place >= len(hops) or hops[place][0] != nodes[place]:
            yield f"hop {place + 1} is not {nodes[place]}: {hops}"


# ------------------------------------------------------------------------------------- scenarios

SCENARIOS = []


def scenario(function):
    SCENARIOS.append(function)
    return function


def mixed(rng, packets):
    """The reports of these packets, eight packets at a time on their way at once."""
    packets = [list(reports) for reports in packets]
    rng.shuffle(packets)
    under_way = []
    while packets or under_way:
        while packets and len(under_way) < 8:
            under_way.append(packets.pop())
        chosen = rng.choice(under_way)
        if chosen:
            yield chosen.pop(0)
        else:
            under_way.remove(chosen)


def send_xd(trial, net, flows, packets=3, **cloned):
    """Sends the reports of some packets of each flow, with those of other flows between."""
    all_packets = [xd_reports(net, flow, **cloned) for flow in flows for _ in range(packets)]
    for switch, report in mixed(trial.rng, all_packets):
        trial.wire.report(switch, report)
    for switch in net.switches:
        trial.wire.send_held(switch)


def every_place(flow):
    return range(len(flow.path))


@scenario
def xd_cloned_before_routing(trial):
    """INT-XD; the first switch sees the host's TTL. A fourth of the flows loses a hop's reports."""
    net = FatTree(trial.nodes(20))
    trial.start()
    flows = flows_of(trial.rng, net, 40, (1, 3, 5))
    losing = {flow: trial.rng.randrange(len(flow.path)) for flow in flows[3::4]}
    send_xd(trial, net, [flow for flow in flows if flow not in losing])
    for flow, place in losing.items():
        for _ in range(3):
            for at, (switch, report) in enumerate(xd_reports(net, flow)):
                trial.wire.report(switch, report, lost=at == place)
    trial.settle()
    for flow, answer in trial.ask(flows):
        present = [place for place in every_place(flow) if place != losing.get(flow)]
        trial.compare(flow, answer, whole=False, present=present)


@scenario
def xd_cloned_after_routing_with_table(trial):
    """INT-XD; the first switch reports TTL 63, which the table says.

    The places of flows from hosts that start with 128 or 255 are not compared, since the table does
    not mention their TTL. Up to three reports are in a datagram.
    """
    net = FatTree(trial.nodes(20))
    trial.start(table="first-ttl = 63\n", per_datagram=3)
    flows = flows_of(trial.rng, net, 40, (1, 3, 5))
    for flow in flows[:30]:
        flow.first_ttl = 64
    send_xd(trial, net, flows, routed_first=True)
    trial.settle()
    for flow, answer in trial.ask(flows):
        if flow.first_ttl == 64:
            trial.compare(flow, answer, whole=False, present=every_place(flow))
        else:
            trial.compare(flow, answer, whole=False, places="free")


@scenario
def xd_cloned_after_routing_without_table(trial):
    """INT-XD; the first switch reports TTL 63, so places are one off; no answer may be whole."""
    net = FatTree(trial.nodes(20))
    trial.start()
    flows = flows_of(trial.rng, net, 40, (1, 3, 5))
    send_xd(trial, net, flows, routed_first=True)
    trial.settle()
    for flow, answer in trial.ask(flows):
        trial.compare(flow, answer, whole=False, places="free")


@scenario
def xd_layer_2_without_table(trial):
    """INT-XD; no switch lowers the TTL, so all hops seem to be the first one."""
    net = Line(trial.nodes(4))
    trial.start()
    flows = flows_of(trial.rng, net, 40, (2, 3, 4))
    send_xd(trial, net, flows)
    trial.settle()
    for flow, answer in trial.ask(flows):
        trial.compare(flow, answer, whole=False, places="free")


@scenario
def xd_layer_2_by_arrival(trial):
    """INT-XD; no switch lowers the TTL, but the reports of a packet arrive in its order."""
    net = Line(trial.nodes(4))
    trial.start(table='hop-from = "arrival"\n')
    flows = flows_of(trial.rng, net, 40, (2, 3, 4))
    for _ in range(3):
        for flow in flows:
            for switch, report in xd_reports(net, flow):
                trial.wire.report(switch, report)
    trial.settle()
    for flow, answer in trial.ask(flows):
        trial.compare(flow, answer, whole=False, present=every_place(flow))


def send_md(trial, net, flows, packets=3):
    for flow in flows * packets:
        trial.wire.report(*md_report(net, flow))


@scenario
def md_in_udp(trial):
    """INT-MD 2.1 behind UDP port 5000; the sink adds its metadata to the report.

    A flow that passes a single switch has nothing embedded: that switch reports it as in INT-XD.
    """
    net = FatTree(trial.nodes(20))
    trial.start()
    flows = flows_of(trial.rng, net, 40, (1, 3, 5, 5), protocols=(UDP,))
    embedded = [flow for flow in flows if len(flow.path) > 1]
    send_md(trial, net, embedded)
    send_xd(trial, net, [flow for flow in flows if len(flow.path) == 1])
    trial.settle()
    for flow, answer in trial.ask(flows):
        trial.compare(flow, answer, whole=True if flow in embedded else None,
                      present=every_place(flow))


@scenario
def md_in_tcp(trial):
    """INT-MD 2.1 behind TCP, also with options, marked by a DSCP that no table names."""
    net = FatTree(trial.nodes(20))
    trial.start()
    flows = flows_of(trial.rng, net, 40, (3, 5), protocols=(TCP,))
    for flow in flows:
        flow.dscp = trial.rng.choice((0, 0, 10, 46))
    send_md(trial, net, flows)
    trial.settle()
    for flow, answer in trial.ask(flows):
        trial.compare(flow, answer)
    if trial.whole < 0.9 * len(flows):
        trial.wrong.append(f"{trial.whole} of {len(flows)} answers are whole, fewer than 90 %")


@scenario
def md_1_0_with_sink(trial):
    """INT-MD 1.0 behind UDP, marked by DSCP 0x20, in reports of version 1.0.

    The sink pushes its metadata on the stack as the others do, and reports the packet then.
    """
    net = FatTree(trial.nodes(20))
    trial.start()
    flows = flows_of(trial.rng, net, 40, (1, 3, 5), protocols=(UDP,), six=0)
    for flow in flows * 3:
        trial.wire.datagram(flow.path[-1], lambda number: md_report_1_0(net, flow, number))
    trial.settle()
    for flow, answer in trial.ask(flows):
        trial.compare(flow, answer, whole=True)


@scenario
def md_longer_than_a_row(trial):
    """INT-MD 2.1 with seven hops in a store of five."""
    net = Line(trial.nodes(7), routed=True, ends=(0, 6))
    trial.start(options=["--hops", "5"])
    flows = flows_of(trial.rng, net, 40, (7,), protocols=(UDP,))
    send_md(trial, net, flows)
    trial.settle()
    for flow, answer in trial.ask(flows):
        trial.compare(flow, answer, whole=False)
        if answer is None:
            trial.wrong.append(f"{flow.text()}: the path is not known")
            continue
        known = [hop["node"] for hop in answer["hops"] if hop["node"] is not None]
        if len(known) != 5 or answer.get("hops_in_all") != 7:
            trial.wrong.append(f"{flow.text()}: {len(known)} nodes of {answer.get('hops_in_all')}"
                               " hops in all, not 5 of 7")


@scenario
def xd_large_node_ids(trial):
    """INT-XD; the ids of the nodes are loopback addresses."""
    net = FatTree([0x0A0A0001 + index for index in range(12)]
                  + [0xC0A80101 + 256 * index for index in range(4)]
                  + [0x01000001, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFE])
    trial.start()
    flows = flows_of(trial.rng, net, 40, (1, 3, 5))
    send_xd(trial, net, flows)
    trial.settle()
    for flow, answer in trial.ask(flows):
        trial.compare(flow, answer, whole=False, present=every_place(flow))


@scenario
def xd_lost_reports(trial):
    """INT-XD; a tenth of the reports is lost, but not the first and the last one of a switch.

    Some switches begin shortly before their numbers of 22 bits begin again.
    """
    net = FatTree(trial.nodes(20))
    trial.start()
    for switch in net.switches[::3]:
        switch.number = (1 << 22) - trial.rng.randrange(3, 12)
    flows = flows_of(trial.rng, net, 40, (1, 3, 5))
    packets = [[(flow, *report) for report in xd_reports(net, flow)]
               for flow in flows for _ in range(4)]
    reports = list(mixed(trial.rng, packets))
    first, last = {}, {}
    for index, (_, switch, _) in enumerate(reports):
        first.setdefault(switch.node, index)
        last[switch.node] = index
    kept = {*first.values(), *last.values()}
    heard = set()
    for index, (flow, switch, report) in enumerate(reports):
        lost = index not in kept and trial.rng.random() < 0.1
        trial.wire.report(switch, report, lost)
        if not lost:
            heard.add(flow)
    if not trial.wire.lost or trial.wire.revealed != trial.wire.lost:
        raise Failure(f"{trial.wire.lost} lost, {trial.wire.revealed} revealed")
    trial.settle()
    for flow, answer in trial.ask(flows):
        trial.compare(flow, answer, whole=False)


@scenario
def xd_restarted_nodes(trial):
    """INT-XD; four switches lose 50 reports each, which shows, and later count from 0 again."""
    net = FatTree(trial.nodes(20))
    trial.start()
    flows = flows_of(trial.rng, net, 40, (3, 5))
    packets = 12
    counts = {switch: packets * sum(switch in flow.path for flow in flows)
              for switch in net.switches}
    restarting = sorted(counts, key=lambda switch: (-counts[switch], switch.node))[:4]
    # Two lose 50 reports here and there, two a run of 50; never the first or the last one.
    losses = {}
    for place, switch in enumerate(restarting):
        inside = range(1, counts[switch] - 1)
        start = trial.rng.randrange(1, counts[switch] - 51)
        run = range(start, start + 50)
        losses[switch] = set(trial.rng.sample(inside, 50) if place % 2 else run)
    for _ in range(packets):
        for flow in flows:
            for switch, report in xd_reports(net, flow):
                lost = switch.number in losses.get(switch, ())
                trial.wire.report(switch, report, lost)
    if trial.wire.revealed != 200:
        raise Failure(f"{trial.wire.revealed} losses revealed, not 200")
    time.sleep(0.5)  # the switches are down
    for switch in restarting:
        trial.wire.restart(switch)
    send_xd(trial, net, flows, packets)
    trial.settle()
    for flow, answer in trial.ask(flows):
        trial.compare(flow, answer, whole=False)


def rerouted(rng, net, flow, kind):
    """The path that the flow took before: an equal one, a longer, or a shorter one."""
    new = flow.path
    others = [switch for switch in net.switches if switch not in new]
    if kind == "longer":
        return [new[0], *rng.sample(others, 3), new[-1]]
    if kind == "shorter":
        return [new[0], rng.choice(others), new[-1]]
    return rng.choice([path for path in net.paths(flow) if path != new])


@scenario
def rerouted_flows(trial):
    """INT-MD and INT-XD; half of the flows take another path a second later.

    Before, they took an equal path, or a detour of five switches instead of three, or a shortcut of
    three instead of five. The tree has no such links, which the collector does not know.
    """
    net = FatTree(trial.nodes(20))
    trial.start()
    flows = flows_of(trial.rng, net, 40, (3, 5), protocols=(UDP, TCP))
    moved = {}
    for index, flow in enumerate(flows):
        if index // 4 % 2:
            kind = ("longer" if len(flow.path) == 3 else "shorter") if index // 8 % 2 else "equal"
            moved[flow] = flow.path
            flow.take(rerouted(trial.rng, net, flow, kind))
    embedding = [flow for flow in flows if flow.protocol == UDP]
    reporting = [flow for flow in flows if flow.protocol == TCP]
    send_md(trial, net, embedding, packets=1)
    send_xd(trial, net, reporting, packets=1)
    time.sleep(1)
    for flow, path in moved.items():
        flow.take(path)
    send_md(trial, net, embedding, packets=1)
    send_xd(trial, net, reporting, packets=1)
    trial.settle()
    for flow, answer in trial.ask(flows):
        places = "free" if flow in moved else "exact"
        if flow.protocol == TCP:
            trial.compare(flow, answer, whole=False, places=places)
        else:
            whole = None if flow in moved else True
            trial.compare(flow, answer, whole=whole, places=places)


@scenario
def md_flags(trial):
    """INT-MD 2.1 with E, too few remaining hops, or M, too small an MTU somewhere.

    A collector cannot know where hops are missing: nodes are compared by their order.
    """
    net = FatTree(trial.nodes(20))
    trial.start()
    flows = flows_of(trial.rng, net, 40, (3, 5), protocols=(UDP,))
    for index, flow in enumerate(flows):
        pushing = len(flow.path) - 1
        hops, tight = 16, ()
        if index // 2 % 2:
            hops = trial.rng.randrange(1, pushing)
        else:
            tight = trial.rng.sample(range(pushing), trial.rng.randrange(1, pushing + 1))
        for _ in range(3):
            trial.wire.report(*md_report(net, flow, hops, tight))
    trial.settle()
    for flow, answer in trial.ask(flows):
        trial.compare(flow, answer, whole=False, places="order")


@scenario
def md_loops(trial):
    """INT-MD 2.1 of packets that pass a switch twice, with another latency; half of them do not."""
    net = FatTree(trial.nodes(20))
    trial.start()
    flows = flows_of(trial.rng, net, 40, (5,), protocols=(UDP,))
    looping = set(flows[::2])
    for index, flow in enumerate(flows):
        latencies = None
        if flow in looping:
            first, second, third, fourth, last = flow.path
            flow.take(([first, second, third, second, last], [first, second, first, fourth, last],
                       [first, last, second, third, last])[index // 2 % 3])
            latencies = [latency + 7 * place for place, latency in enumerate(flow.latencies)]
        for _ in range(3):
            trial.wire.report(*md_report(net, flow, latencies=latencies))
    trial.settle()
    for flow, answer in trial.ask(flows):
        if flow not in looping:
            trial.compare(flow, answer, whole=True)
        elif answer is not None and answer["latency"] is not None:
            trial.wrong.append(f"{flow.text()}: the latency of a loop is {answer['latency']}")


@scenario
def congested_flows(trial):
    """INT-XD; some flows meet a full queue (Q) at one node. All are of IPv4."""
    net = FatTree(trial.nodes(20))
    trial.start()
    flows = flows_of(trial.rng, net, 40, (1, 3, 5), six=0)
    full = {flow: trial.rng.choice(flow.path).node for flow in trial.rng.sample(flows, 12)}
    packets = [xd_reports(net, flow, congested=[full[flow]] if flow in full and turn == 1 else ())
               for flow in flows for turn in range(3)]
    for switch, report in mixed(trial.rng, packets):
        trial.wire.report(switch, report)
    trial.settle()
    for flow, answer in trial.ask(flows):
        trial.compare(flow, answer, whole=False)
    answer = trial.command("flows", str(trial.store), "--json")
    if answer.returncode:
        raise Failure(f"flows: exit status {answer.returncode}, {answer.stderr.strip()[-200:]}")
    named = {re.sub(r"\s+", " ", flow["flow"]): flow["nodes"]
             for flow in json.loads(answer.stdout)["flows"]}
    expected = {flow.text(): node for flow, node in full.items()}
    for flow in sorted(expected.keys() | named.keys()):
        if flow not in named:
            trial.wrong.append(f"{flow} met congestion at {expected[flow]}, and is not named")
        elif flow not in expected:
            trial.wrong.append(f"{flow} is named ({named[flow]}), and met no congestion")
        elif expected[flow] not in named[flow]:
            trial.wrong.append(f"{flow} met congestion at {expected[flow]}, not {named[flow]}")


@scenario
def xd_many_flows_at_once(trial):
    """INT-XD of 2,000 flows: the first hops of all, then the second ones, and so on.

    500 of the flows are asked for, since a process per flow takes a while.
    """
    net = FatTree(trial.nodes(20))
    trial.start()
    flows = flows_of(trial.rng, net, 2000, (1, 3, 5, 5))
    packets = [xd_reports(net, flow) for flow in flows]
    for place in range(5):
        for reports in packets:
            if place < len(reports):
                trial.wire.report(*reports[place])
    trial.settle()
    complete = 0
    asked = trial.ask(trial.rng.sample(flows, 500))
    for flow, answer in asked:
        trial.compare(flow, answer, whole=False)
        nodes = [hop["node"] for hop in answer["hops"]] if answer else []
        complete += nodes[:len(flow.path)] == [switch.node for switch in flow.path]
    if complete < 0.95 * len(asked):
        trial.wrong.append(f"{complete} of {len(asked)} flows have all nodes, fewer than 95 %")


ALONE = {xd_many_flows_at_once}  # not beside other scenarios


def run(function, strata, workdir, seed):
    trial = Trial(strata, workdir, function.__name__.replace("_", "-"), seed)
    try:
        function(trial)
    except Exception as error:  # of this scenario; the others are run
        trial.wrong.insert(0, str(error) if isinstance(error, Failure) else repr(error))
    finally:
        trial.stop()
    return trial.line()


def main(arguments):
    if len(arguments) not in (2, 3):
        sys.exit(__doc__.split("\n\n")[1].strip())
    strata = str(pathlib.Path(arguments[0]).resolve())
    workdir = pathlib.Path(arguments[1]).resolve()
    workdir.mkdir(parents=True, exist_ok=True)
    seed = int(arguments[2]) if len(arguments) > 2 else 1
    failed = False
    # Scenarios mostly wait, so four of them run at a time.
    for functions, threads in (([f for f in SCENARIOS if f not in ALONE], 4), (ALONE, 1)):
        with ThreadPoolExecutor(threads) as pool:
            for line in pool.map(lambda function: run(function, strata, workdir, seed), functions):
                print(line, flush=True)
                failed |= line.startswith("FAIL")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
