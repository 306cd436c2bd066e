"""Entries of the table of alt_buffer: the memory of each page. `alt_buffer.py --help`."""

import argparse
import ipaddress
from pathlib import Path

from dta_translator import checksum, mac, number

# Bytes of IPv4, UDP, BTH, RETH, a record, and the ICRC.
LENGTH = 20 + 8 + 12 + 16 + 80 + 4


def main():
    options = argparse.ArgumentParser(description="entries of the table of alt_buffer")
    options.add_argument("--page", nargs=2, type=number, action="append", required=True, metavar=("VA", "MAGIC"),
                         help="address of a page and its record_magic; up to 4, in the order in which they are used")
    options.add_argument("--rkey", type=number, required=True, help="key of the memory region")
    options.add_argument("--qpn", type=number, required=True, help="queue pair of the collector")
    options.add_argument("--first-psn", type=number, default=0, help="sequence number of the first packet")
    options.add_argument("--from", dest="source", type=ipaddress.IPv4Address, required=True)
    options.add_argument("--to", type=ipaddress.IPv4Address, required=True)
    options.add_argument("--from-port", type=int, default=49152)
    options.add_argument("--from-mac", type=mac, default=0)
    options.add_argument("--to-mac", type=mac, default=0)
    options.add_argument("-o", "--output", type=Path, required=True, help="folder")
    chosen = options.parse_args()
    if len(chosen.page) > 4:
        options.error("--page: at most 4")
    chosen.output.mkdir(parents=True, exist_ok=True)
    header = bytes([0x45, 0, 0, LENGTH, 0, 0, 0x40, 0, 64, 17, 0, 0]) + chosen.source.packed + chosen.to.packed
    lines = ""
    for page, (va, magic) in enumerate(chosen.page):
        lines += (
            f"match {page} action write_to dst_mac {chosen.to_mac:#x} src_mac {chosen.from_mac:#x}"
            f" src {int(chosen.source):#x} dst {int(chosen.to):#x} checksum {checksum(header):#x}"
            f" source_port {chosen.from_port} qpn {chosen.qpn:#x} first_psn {chosen.first_psn:#x}"
            f" rkey {chosen.rkey:#x} va {va:#x} magic {magic:#x}\n"
        )
    (chosen.output / "buffer.txt").write_text(lines)


if __name__ == "__main__":
    main()
