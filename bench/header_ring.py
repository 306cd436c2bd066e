"""Headers of packets into a ring of a BPF map: what capturing without packet sockets would cost.

    python header_ring.py INTERFACE tcx | xdp  pass | drop

A program at the interface copies length, time and the first 96 bytes of each packet into a
BPF_MAP_TYPE_RINGBUF, without waking anyone, and lets the packet pass or drops it: by tcx, after the
kernel has made a socket buffer of it, or by XDP, before. The reader looks every half millisecond
and only counts. Prints `N packets counted` when it is interrupted.
"""

import ctypes
import mmap
import os
import signal
import socket
import struct
import sys
import threading

from xdp_pass import LINK_CREATE, PROG_LOAD, TYPE_XDP, ATTACH_XDP, bpf

# linux/bpf.h
MAP_CREATE, MAP_TYPE_RINGBUF, PSEUDO_MAP_FD = 0, 27, 1
TYPE_SCHED_CLS, ATTACH_TCX_INGRESS = 3, 46
RESERVE, SUBMIT, TIME, SKB_BYTES, XDP_BYTES, XDP_LENGTH = 131, 132, 208, 26, 189, 188
NO_WAKEUP = 1
ACTIONS = {"xdp": {"drop": 1, "pass": 2}, "tcx": {"drop": 2, "pass": -1}}
# A record: length u32, 0 u32, time u64, bytes. The kernel puts 8 bytes before it.
BYTES = 96
RECORD = 16 + BYTES
RING = 4 << 20
PAGE = mmap.PAGESIZE
LOOK_SECONDS = 0.0005


def instruction(code, to=0, of=0, offset=0, value=0):
    return struct.pack("<BBhi", code, of << 4 | to, offset, value)


def program(kind, action, ring):
    """The instructions."""
    load, mov, mov_value, call, leave = 0x61, 0xBF, 0xB7, 0x85, 0x95
    if kind == "xdp":
        length = [instruction(mov, 1, 6), instruction(call, value=XDP_LENGTH)]
    else:
        # `len` of struct __sk_buff
        length = [instruction(load, 0, 6)]
    kept = [
        instruction(mov, 7, 0),
        *length,
        instruction(0x63, 7, 0),
        instruction(call, value=TIME),
        instruction(0x7B, 7, 0, 8),
        instruction(mov, 1, 6),
        instruction(mov_value, 2),
        instruction(mov, 3, 7),
        instruction(0x07, 3, value=16),
        instruction(mov_value, 4, value=BYTES),
        instruction(call, value=XDP_BYTES if kind == "xdp" else SKB_BYTES),
        instruction(mov, 1, 7),
        instruction(mov_value, 2, value=NO_WAKEUP),
        instruction(call, value=SUBMIT),
    ]
    return b"".join([
        instruction(mov, 6, 1),
        instruction(0x18, 1, PSEUDO_MAP_FD, value=ring), instruction(0),
        instruction(mov_value, 2, value=RECORD),
        instruction(mov_value, 3),
        instruction(call, value=RESERVE),
        # The ring is full.
        instruction(0x15, 0, offset=len(kept)),
        *kept,
        instruction(mov_value, 0, value=ACTIONS[kind][action]),
        instruction(leave),
    ])


def main():
    ifindex, kind, action = socket.if_nametoindex(sys.argv[1]), sys.argv[2], sys.argv[3]
    ring = bpf(MAP_CREATE, struct.pack("<IIIII", MAP_TYPE_RINGBUF, 0, 0, RING, 0))
    text = program(kind, action, ring)
    code, licence = ctypes.create_string_buffer(text), ctypes.create_string_buffer(b"GPL")
    addresses = ctypes.addressof(code), ctypes.addressof(licence)
    of_kind, attach = {"xdp": (TYPE_XDP, ATTACH_XDP),
                       "tcx": (TYPE_SCHED_CLS, ATTACH_TCX_INGRESS)}[kind]
    loaded = bpf(PROG_LOAD, struct.pack("<IIQQ", of_kind, len(text) // 8, *addresses))
    bpf(LINK_CREATE, struct.pack("<IIII", loaded, ifindex, attach, 0) + bytes(48))
    read = mmap.mmap(ring, PAGE, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
    written = mmap.mmap(ring, PAGE + 2 * RING, mmap.MAP_SHARED, mmap.PROT_READ, offset=PAGE)
    stopped = threading.Event()
    signal.signal(signal.SIGINT, lambda *_: stopped.set())
    at = counted = 0
    while not stopped.wait(LOOK_SECONDS):
        (end,) = struct.unpack_from("<Q", written)
        counted += (end - at) // (8 + RECORD)
        at = end
        struct.pack_into("<Q", read, 0, at)
    print(f"{counted} packets counted", flush=True)


if __name__ == "__main__":
    main()
