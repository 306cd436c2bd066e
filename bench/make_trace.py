"""A capture for benchmarks, made from real flows.

    python make_trace.py LABELLED_DIR OUT.pcap [PACKETS]

Takes the IPv4 flows of mix-train and mix-test, and lays copies of them over one
another: each copy of a flow has addresses of its own and begins at a random time
within the captures' three minutes, so tens of thousands of flows are active at
once. Flows of large packets are copied more often, until packets are about 770
bytes on average, and 1 % of the packets are attacks. Deterministic.
"""

import csv
import random
import struct
import sys
from pathlib import Path

MEAN_BYTES = 770
ATTACK_SHARE = 0.01
SPAN_NS = 170_000_000_000
START_NS = 1_700_000_000_000_000_000


def flows_of(directory):
    """Lists of (ns since the flow began, original length, bytes), and whether
    the flow is an attack."""
    with open(directory / "labels.csv", newline="") as file:
        attack = {int(row["frame"]): row["label"] == "1" for row in csv.DictReader(file)}
    data = (directory / "trace.pcap").read_bytes()
    nano = data[:4] == b"\x4d\x3c\xb2\xa1"
    flows, at, frame = {}, 24, 0
    while at + 16 <= len(data):
        seconds, fraction, captured, length = struct.unpack_from("<IIII", data, at)
        packet = data[at + 16 : at + 16 + captured]
        at, frame = at + 16 + captured, frame + 1
        if len(packet) < 34 or packet[12:14] != b"\x08\x00" or captured != length:
            continue
        header = (packet[14] & 15) * 4
        source, destination = packet[26:30], packet[30:34]
        ports = packet[14 + header : 18 + header] if packet[23] in (6, 17) else b"\0" * 4
        ends = sorted([source + ports[:2], destination + ports[2:]])
        key = (packet[23], *ends, attack[frame])
        time = seconds * 1_000_000_000 + fraction * (1 if nano else 1000)
        flows.setdefault(key, []).append((time, packet))
    return [(key[-1], packets) for key, packets in flows.items()]


def main():
    labelled, out = Path(sys.argv[1]), sys.argv[2]
    wanted = int(sys.argv[3]) if len(sys.argv) > 3 else 2_500_000
    draw = random.Random(1)
    flows = flows_of(labelled / "mix-train") + flows_of(labelled / "mix-test")

    def mean(packets):
        return sum(len(p) for _, p in packets) / len(packets)

    attacks = [p for is_attack, p in flows if is_attack]
    benign = [p for is_attack, p in flows if not is_attack]
    small = [p for p in benign if mean(p) < MEAN_BYTES]
    large = [p for p in benign if mean(p) >= MEAN_BYTES]
    chosen, packets, size, attacked = [], 0, 0, 0
    while packets < wanted:
        if attacked < packets * ATTACK_SHARE:
            flow = draw.choice(attacks)
            attacked += len(flow)
        elif size < packets * MEAN_BYTES:
            flow = draw.choice(large)
        else:
            flow = draw.choice(small)
        span = flow[-1][0] - flow[0][0]
        start = draw.randrange(max(1, SPAN_NS - span))
        copy = len(chosen)
        for index, (time, packet) in enumerate(flow):
            packets, size = packets + 1, size + len(packet)
        chosen.append((start, flow))
    order = []
    for copy, (start, flow) in enumerate(chosen):
        order += [(start + time - flow[0][0], copy, index) for index, (time, _) in enumerate(flow)]
    order.sort()
    with open(out, "wb", buffering=1 << 20) as file:
        file.write(struct.pack("<IHHiIII", 0xA1B23C4D, 2, 4, 0, 0, 262144, 1))
        for time, copy, index in order:
            packet = bytearray(chosen[copy][1][index][1])
            # Both addresses move by the copy's number, so both directions of a
            # copy stay one flow. Checksums are not updated: nothing checks them.
            for at in (26, 30):
                address = int.from_bytes(packet[at : at + 4], "big") ^ (copy * 2654435761 % 2**32)
                packet[at : at + 4] = address.to_bytes(4, "big")
            seconds, ns = divmod(START_NS + time, 1_000_000_000)
            file.write(struct.pack("<IIII", seconds, ns, len(packet), len(packet)))
            file.write(packet)
    print(f"{packets} packets, {size / packets:.0f} bytes on average, {len(chosen)} flows, "
          f"{attacked / packets:.2%} of the packets are attacks")


if __name__ == "__main__":
    main()
