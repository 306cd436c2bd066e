"""Instructions per packet of the loop, of its worker and of its writer thread, by callgrind.

callgrind does not support AVX-512, so it counts the forest's AVX2 path. Counted is one pass
over the packets: a run with three passes minus one with two."""

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


# Threads of `loop_speed` in the order of their start: main reads the trace.
WORKER, WRITER = 3, 2


def counted(program, trace, arguments, passes, directory):
    """Instructions of worker and writer, and packets of one pass."""
    out = directory / "callgrind.out"
    command = [
        "valgrind", "--tool=callgrind", "--separate-threads=yes", f"--callgrind-out-file={out}",
        program, trace, "models/default.json", *arguments, f"passes={passes}",
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    packets = json.loads(done.stdout[done.stdout.index("{") :])["packets"]
    totals = []
    for thread in WORKER, WRITER:
        text = out.with_name(f"{out.name}-{thread:02}").read_text()
        totals.append(int(re.search(r"^totals: (\d+)", text, re.MULTILINE)[1]))
    return totals, packets


def measure(context):
    if not have("valgrind"):
        raise RuntimeError("valgrind is not installed")
    trace = context.generate("count.pcap", "cic-w3", 100_000, "--flows", "20k")
    program = context.example("strata-pipeline", "loop_speed")
    figures = {}
    for name, arguments in VARIANTS.items():
        more, packets = counted(program, trace, arguments, 3, context.directory)
        less, _ = counted(program, trace, arguments, 2, context.directory)
        worker, writer = ((m - l) / packets for m, l in zip(more, less))
        figures[name] = {"worker": round(worker, 1), "writer": round(writer, 1)}
    return {
        "title": TITLE,
        "setup": f"{context.described(trace)}; the AVX2 path. A rise of 5 % needs an explanation.",
        "figures": figures,
        "tables": [{"columns": ["what", "of the worker", "of its writer thread"],
                    "rows": [[n, v["worker"], v["writer"]] for n, v in figures.items()]}],
        "charts": [],
    }
