"""Instructions per packet of the loop, worker and writer together, by callgrind.

callgrind knows no AVX-512, so it counts the forest's AVX2 path. What is counted is one pass
over the packets: a run with three passes less one with two."""

import json
import re
import subprocess

from harness import have

TITLE = "Instructions per packet"
VARIANTS = {
    "default mode": [],
    "log-all": ["log-all"],
    "default, look-back 64 MiB": ["default", "1", f"look-back={64 << 20}"],
    "default, first 4 KiB of flows": ["default", "1", "first-bytes=4096"],
}


def counted(program, trace, arguments, passes, directory):
    command = [
        "valgrind", "--tool=callgrind", f"--callgrind-out-file={directory}/callgrind.out",
        program, trace, "models/default.json", *arguments, f"passes={passes}",
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    packets = json.loads(done.stdout[done.stdout.index("{") :])["packets"]
    found = re.search(r"Collected : (\d+)", done.stderr)
    return int(found[1]), packets


def measure(context):
    if not have("valgrind"):
        raise RuntimeError("valgrind is not installed")
    trace = context.generate("count.pcap", "cic-w3", 100_000, "--flows", "20k")
    program = context.example("strata-pipeline", "loop_speed")
    figures = {}
    for name, arguments in VARIANTS.items():
        more, packets = counted(program, trace, arguments, 3, context.directory)
        less, _ = counted(program, trace, arguments, 2, context.directory)
        figures[name] = round((more - less) / packets, 1)
    return {
        "title": TITLE,
        "setup": f"{context.described(trace)}; the AVX2 path, worker and writer together. "
        "A rise of 5 % wants an explanation.",
        "figures": figures,
        "tables": [{"columns": ["what", "instructions per packet"],
                    "rows": [[n, v] for n, v in figures.items()]}],
        "charts": [],
    }
