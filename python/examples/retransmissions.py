"""Bytes that TCP flows sent again, of what `strata ask` reads: an application over Arrow.

strata ask -r trace.pcap 'S = filter(T, proto == TCP);
    R = map(S, [seq, len], [tcpseq, payload_len]);' -F arrow | python retransmissions.py
"""

import sys
from collections import Counter

import pyarrow.ipc

FLOW = ("srcip", "dstip", "srcport", "dstport")
BITS, HALF = 0xFFFF_FFFF, 1 << 31


def main() -> None:
    """Reads packets in the order of their times, one batch after another."""
    following: dict[tuple, int] = {}
    again: Counter[tuple] = Counter()
    with pyarrow.ipc.open_stream(sys.stdin.buffer) as stream:
        for batch in stream:
            columns = [batch.column(name).to_pylist() for name in (*FLOW, "seq", "len")]
            for *key, seq, length in zip(*columns, strict=True):
                flow = tuple(key)
                behind = (following.get(flow, seq) - seq) & BITS
                if behind < HALF:
                    again[flow] += min(length, behind)
                if behind >= HALF or length >= behind:
                    following[flow] = (seq + length) & BITS
    for flow, count in again.most_common():
        if count:
            print(*flow, count)


if __name__ == "__main__":
    main()
