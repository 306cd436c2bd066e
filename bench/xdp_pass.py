"""Holds an XDP program that passes everything on an interface, or drops it, until it is killed.

    python xdp_pass.py IF [pass | drop]

A veth pair accepts XDP frames only if the receiving end has NAPI, which comes with an
XDP program or with GRO; GRO costs the receiver more than the packets are worth.
"""

import ctypes
import os
import signal
import socket
import struct
import sys

PROG_LOAD, LINK_CREATE = 5, 28
TYPE_XDP, ATTACH_XDP = 6, 37
ACTIONS = {"drop": 1, "pass": 2}
NR_BPF = {"x86_64": 321, "aarch64": 280}


def bpf(command, attributes):
    libc = ctypes.CDLL(None, use_errno=True)
    buffer = ctypes.create_string_buffer(attributes, len(attributes))
    done = libc.syscall(NR_BPF[os.uname().machine], command, buffer, len(attributes))
    if done < 0:
        sys.exit(f"xdp_pass.py: bpf: {os.strerror(ctypes.get_errno())}")
    return done


def main():
    ifindex = socket.if_nametoindex(sys.argv[1])
    action = ACTIONS[sys.argv[2] if len(sys.argv) > 2 else "pass"]
    # r0 = action; exit
    code = ctypes.create_string_buffer(struct.pack("<BBhiBBhi", 0xB7, 0, 0, action, 0x95, 0, 0, 0))
    licence = ctypes.create_string_buffer(b"GPL")
    addresses = ctypes.addressof(code), ctypes.addressof(licence)
    program = bpf(PROG_LOAD, struct.pack("<IIQQ", TYPE_XDP, 2, *addresses))
    bpf(LINK_CREATE, struct.pack("<IIII", program, ifindex, ATTACH_XDP, 0))
    print("ready", flush=True)
    signal.pause()


if __name__ == "__main__":
    main()
