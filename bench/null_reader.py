"""Counts the packets of an interface and does nothing else: `null_reader.py INTERFACE SNAPLEN`.

A capture ring of the kernel (TPACKET_V3, 64 MiB), as libpcap and Strata have it, of which only the
headers of blocks are read: whatever reads packets by that way loses at least what this one loses.
Prints `N packets counted` when it is interrupted.
"""

import ctypes
import mmap
import select
import signal
import socket
import struct
import sys

# linux/if_packet.h, linux/if_ether.h, asm-generic/socket.h
SOL_PACKET, PACKET_RX_RING, PACKET_STATISTICS, PACKET_VERSION = 263, 5, 6, 10
TPACKET_V3, ETH_P_ALL, SO_ATTACH_FILTER, TP_STATUS_USER = 2, 3, 26, 1
BLOCK_BYTES, BLOCKS, FRAME_BYTES, RETIRE_MS = 1 << 20, 64, 2048, 60
# In the header of a block: block_status and num_pkts.
STATUS_AT, PACKETS_AT = 8, 12
# BPF_RET | BPF_K: keep this many bytes of each packet.
RETURN = 0x06


def ring(interface, snaplen):
    """A socket with a ring, and the ring."""
    packets = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
    code = ctypes.create_string_buffer(struct.pack("=HBBI", RETURN, 0, 0, snaplen))
    packets.setsockopt(
        socket.SOL_SOCKET, SO_ATTACH_FILTER, struct.pack("@HP", 1, ctypes.addressof(code)))
    packets.setsockopt(SOL_PACKET, PACKET_VERSION, TPACKET_V3)
    frames = BLOCK_BYTES // FRAME_BYTES * BLOCKS
    packets.setsockopt(
        SOL_PACKET, PACKET_RX_RING,
        struct.pack("=7I", BLOCK_BYTES, BLOCKS, FRAME_BYTES, frames, RETIRE_MS, 0, 0))
    memory = mmap.mmap(packets.fileno(), BLOCK_BYTES * BLOCKS)
    packets.bind((interface, ETH_P_ALL))
    return packets, memory


def main():
    interface, snaplen = sys.argv[1], int(sys.argv[2])
    packets, memory = ring(interface, snaplen)
    stopped = []
    signal.signal(signal.SIGINT, lambda *_: stopped.append(True))
    ready = select.poll()
    ready.register(packets, select.POLLIN)
    counted, block = 0, 0
    while True:
        status_at = block * BLOCK_BYTES + STATUS_AT
        (status,) = struct.unpack_from("=I", memory, status_at)
        if status & TP_STATUS_USER:
            (count,) = struct.unpack_from("=I", memory, block * BLOCK_BYTES + PACKETS_AT)
            counted += count
            struct.pack_into("=I", memory, status_at, 0)
            block = (block + 1) % BLOCKS
        elif stopped and not ready.poll(2 * RETIRE_MS):
            break
        elif not stopped:
            ready.poll(200)
    print(f"{counted} packets counted", flush=True)


if __name__ == "__main__":
    main()
