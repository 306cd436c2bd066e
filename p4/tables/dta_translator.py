"""Entries of the tables of dta_translator, for one collector: `dta_translator.py --help`.

The hash of a key of 4 bytes is a product of 128 bits: (key + k0) * (4 + k1). It is the sum of a product for each byte
of the key, which are the entries of the tables key_0 to key_3.
"""

import argparse
import ipaddress
import sys
from pathlib import Path

MASK = (1 << 64) - 1
STEP = 0x9E3779B97F4A7C15


def mix64(z):
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & MASK
    z = (z ^ z >> 27) * 0x94D049BB133111EB & MASK
    return z ^ z >> 31


def hash_keys(seed):
    """The 8 keys of Strata's hash, of a seed of two words."""
    low, high = seed
    turned = (high << 32 | high >> 32) & MASK
    return [mix64((low + (n + 1) * STEP & MASK) ^ turned) for n in range(8)]


def checksum(header):
    """The checksum of an IPv4 header."""
    total = sum(header[at] << 8 | header[at + 1] for at in range(0, len(header), 2))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


def number(text):
    return int(text, 0)


def mac(text):
    return int(text.replace(":", ""), 16)


def main():
    options = argparse.ArgumentParser(description="entries of the tables of dta_translator")
    options.add_argument("--seed", nargs=2, type=number, required=True, help="seed of the store's hash")
    options.add_argument("--slots-log2", type=int, required=True, help="slots of 8 bytes: their number is 2^this")
    options.add_argument("--va", type=number, required=True, help="address of slot 0 at the collector")
    options.add_argument("--rkey", type=number, required=True, help="key of its memory region")
    options.add_argument("--qpn", type=number, required=True, help="its queue pair")
    options.add_argument("--first-psn", type=number, default=0, help="sequence number of the first packet")
    options.add_argument("--from", dest="source", type=ipaddress.IPv4Address, required=True)
    options.add_argument("--to", type=ipaddress.IPv4Address, required=True)
    options.add_argument("--from-port", type=int, default=49152)
    options.add_argument("--from-mac", type=mac, default=0)
    options.add_argument("--to-mac", type=mac, default=0)
    options.add_argument("-o", "--output", type=Path, required=True, help="folder")
    chosen = options.parse_args()
    keys = hash_keys(chosen.seed)
    if keys[0] + (1 << 32) > MASK:
        sys.exit("dta_translator.py: choose another seed: with this one, the sum of key and k0 may pass 2^64")
    if not 1 <= chosen.slots_log2 <= 31:
        sys.exit("dta_translator.py: --slots-log2: 1 to 31 expected")
    factor = 4 + keys[1] & MASK
    chosen.output.mkdir(parents=True, exist_ok=True)
    for place in range(4):
        with open(chosen.output / f"key_{place}.txt", "w") as table:
            for byte in range(256):
                # The term of k0 is in the first table.
                product = ((byte << 8 * place) + (keys[0] if place == 0 else 0)) * factor
                table.write(f"match {byte:#x} action part high {product >> 64:#x} low {product & MASK:#x}\n")
    header = bytes([0x45, 0, 0, 68, 0, 0, 0x40, 0, 64, 17, 0, 0]) + chosen.source.packed + chosen.to.packed
    arguments = {
        "dst_mac": chosen.to_mac,
        "src_mac": chosen.from_mac,
        "src": int(chosen.source),
        "dst": int(chosen.to),
        "checksum": checksum(header),
        "source_port": chosen.from_port,
        "qpn": chosen.qpn,
        "first_psn": chosen.first_psn,
        "rkey": chosen.rkey,
        "va": chosen.va,
        "slot_shift": 32 - chosen.slots_log2,
        "seed": keys[6] ^ keys[7],
    }
    words = " ".join(f"{name} {value:#x}" for name, value in arguments.items())
    (chosen.output / "connection.txt").write_text(f"match 0x0 action connect {words}\n")


if __name__ == "__main__":
    main()
