"""Entries of the table of starflow: where vectors are sent. `starflow.py --help`."""

import argparse
import ipaddress
from pathlib import Path

from dta_translator import checksum, mac

# Bytes of IPv4, UDP and a vector's header, of a tuple, and tuples of a buffer.
HEADERS = 20 + 8 + 24
TUPLE = 4
NARROW = 4


def main():
    options = argparse.ArgumentParser(description="entries of the table of starflow")
    options.add_argument("--from", dest="source", type=ipaddress.IPv4Address, required=True)
    options.add_argument("--to", type=ipaddress.IPv4Address, required=True, help="address of the agent")
    options.add_argument("--from-port", type=int, default=49152)
    options.add_argument("--to-port", type=int, required=True)
    options.add_argument("--from-mac", type=mac, default=0)
    options.add_argument("--to-mac", type=mac, default=0)
    options.add_argument("-o", "--output", type=Path, required=True, help="folder")
    chosen = options.parse_args()
    chosen.output.mkdir(parents=True, exist_ok=True)
    lines = ""
    for count in range(1, NARROW + 1):
        length = HEADERS + count * TUPLE
        header = bytes([0x45, 0, 0, length, 0, 0, 0x40, 0, 64, 17, 0, 0]) + chosen.source.packed + chosen.to.packed
        lines += (
            f"match {count} action export dst_mac {chosen.to_mac:#x} src_mac {chosen.from_mac:#x}"
            f" src {int(chosen.source):#x} dst {int(chosen.to):#x} checksum {checksum(header):#x}"
            f" source_port {chosen.from_port} destination_port {chosen.to_port}\n"
        )
    (chosen.output / "exporter.txt").write_text(lines)


if __name__ == "__main__":
    main()
