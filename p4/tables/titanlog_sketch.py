"""Entries of the tables of titanlog_sketch: squares by the four leading bits of the root (TitanLog §IV-A).

`titanlog_sketch.py -o FOLDER`
"""

import argparse
from pathlib import Path


def entries(bits, action):
    """A ternary entry for each number below 16, and for each four leading bits of longer numbers up to `bits` bits."""
    full = (1 << bits) - 1
    rows = [(root, full, root * root) for root in range(16)]
    for dropped in range(1, bits - 3):
        for leading in range(8, 16):
            # The middle of the numbers with these leading bits.
            middle = (leading << dropped) + (1 << dropped - 1)
            rows.append((leading << dropped, full & ~((1 << dropped) - 1), middle * middle))
    # Keys of 64 bits: all bits above are 0.
    above = ~full & (1 << 64) - 1
    return "".join(
        f"match {value:#x}/{mask | above:#x} priority 0 action {action} square {square:#x}\n"
        for value, mask, square in rows
    )


def main():
    options = argparse.ArgumentParser(description="entries of the tables of titanlog_sketch")
    options.add_argument("-o", "--output", type=Path, required=True, help="folder")
    folder = options.parse_args().output
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "square_size.txt").write_text(entries(16, "set_size_square"))
    (folder / "square_delay.txt").write_text(entries(24, "set_delay_square"))


if __name__ == "__main__":
    main()
