"""Block writes to the disk, by number in flight."""

import json
import subprocess

TITLE = "Blocks to the disk"


def measure(context):
    program = context.example("strata-store", "disk_speed")
    size = "128" if context.quick else "1024"
    done = subprocess.run(
        [program, context.directory / "disk", size], capture_output=True, text=True, check=True
    )
    figures = json.loads(done.stdout)
    return {
        "title": TITLE,
        "setup": f"{size} blocks of 1 MiB, sync included; medians of five rounds, the I/O modes in turns.",
        "figures": figures,
        "tables": [{"columns": ["I/O mode", "MB/s"], "rows": [[n, v] for n, v in figures.items()]}],
        "charts": [],
    }
