"""Entries of the table of dta_reporter: whose packets are reported. `dta_reporter.py --help`."""

import argparse
import ipaddress
from pathlib import Path

from dta_translator import checksum, mac

# Bytes of IPv4, UDP and a Key-Write.
LENGTH = 20 + 8 + 11


def watched(text):
    """A network and the number of copies: `10.0.0.0/8=2`."""
    network, copies = text.rsplit("=", 1)
    if not 1 <= int(copies) <= 4:
        raise argparse.ArgumentTypeError("1 to 4 copies")
    return ipaddress.IPv4Network(network), int(copies)


def main():
    options = argparse.ArgumentParser(description="entries of the table of dta_reporter")
    options.add_argument("--watch", type=watched, action="append", required=True, metavar="NETWORK=COPIES",
                         help="sources, and the redundancy of their reports; the longest prefix counts")
    options.add_argument("--from", dest="source", type=ipaddress.IPv4Address, required=True)
    options.add_argument("--to", type=ipaddress.IPv4Address, required=True, help="address of the collector")
    options.add_argument("--from-port", type=int, default=49152)
    options.add_argument("--from-mac", type=mac, default=0)
    options.add_argument("--to-mac", type=mac, default=0)
    options.add_argument("-o", "--output", type=Path, required=True, help="folder")
    chosen = options.parse_args()
    chosen.output.mkdir(parents=True, exist_ok=True)
    header = bytes([0x45, 0, 0, LENGTH, 0, 0, 0x40, 0, 64, 17, 0, 0]) + chosen.source.packed + chosen.to.packed
    lines = ""
    for network, copies in chosen.watch:
        # The lowest number wins.
        lines += (
            f"match {int(network.network_address):#x}/{int(network.netmask):#x} priority {32 - network.prefixlen}"
            f" action report redundancy {copies} dst_mac {chosen.to_mac:#x} src_mac {chosen.from_mac:#x}"
            f" src {int(chosen.source):#x} dst {int(chosen.to):#x} checksum {checksum(header):#x}"
            f" source_port {chosen.from_port}\n"
        )
    (chosen.output / "watch.txt").write_text(lines)


if __name__ == "__main__":
    main()
