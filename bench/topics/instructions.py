"""Instructions per packet of the loop, of its worker and of its writer thread.

callgrind does not support AVX-512, so it counts the AVX2 path: one pass over the packets, a run
with three passes minus one with two. The worker's AVX-512 path is single-stepped, at the end of the
second pass, where the machine has AVX-512."""

import json
import os
import re
import subprocess
import sys

from harness import have, machine

TITLE = "Instructions per packet"
VARIANTS = {
    "default mode": [],
    "log-all": ["log-all"],
    "default, look-back 64 MiB": ["default", "1", f"look-back={64 << 20}"],
    "default, 10 policies": ["default", "1", "policies=10"],
    "default, first 4 KiB of flows": ["default", "1", "first-bytes=4096"],
    "default, packets cut to 256 B": ["default", "1", "cut=256"],
    "default, detail 0%": ["default", "1", "detail=0%"],
    "default, detail 10%": ["default", "1", "detail=10%"],
    "default, 10 policies, detail 10%": ["default", "1", "policies=10", "detail=10%"],
}


# Threads of `loop_speed` in the order of their start: main reads the trace.
WORKER, WRITER = 3, 2
# Packets that are single-stepped: 16 batches. A step takes 2 us, or 20 in some virtual machines.
STEPPED = 4_096
NO_AVX512 = "not run: no AVX-512"


def on(path):
    """The environment for a data path."""
    return {**os.environ, "STRATA_PATH": path}


def counted(program, trace, arguments, passes, directory):
    """Instructions of worker and writer, and packets of one pass."""
    out = directory / "callgrind.out"
    command = [
        "valgrind", "--tool=callgrind", "--separate-threads=yes", f"--callgrind-out-file={out}",
        program, trace, "models/default.json", *arguments, f"passes={passes}",
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=on("avx2"))
    packets = json.loads(done.stdout[done.stdout.index("{") :])["packets"]
    totals = []
    for thread in WORKER, WRITER:
        text = out.with_name(f"{out.name}-{thread:02}").read_text()
        totals.append(int(re.search(r"^totals: (\d+)", text, re.MULTILINE)[1]))
    return totals, packets


def stepped(stepper, program, trace, arguments, packets):
    """Instructions per packet of the worker's AVX-512 path."""
    if not machine()["avx512"]:
        return NO_AVX512
    command = [stepper, program, trace, "models/default.json", *arguments,
               "passes=2", f"counted={packets}"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=on("avx512"))
    return round(json.loads(done.stdout.splitlines()[-1])["instructions"] / packets, 1)


def measure(context):
    if not have("valgrind"):
        raise RuntimeError("valgrind is not installed")
    trace = context.generate("count.pcap", "cic-w3", 100_000, "--flows", "20k")
    program = context.example("strata-pipeline", "loop_speed")
    stepper = context.example("strata-sys", "count_instructions")
    figures = {}
    for name, arguments in VARIANTS.items():
        more, packets = counted(program, trace, arguments, 3, context.directory)
        less, _ = counted(program, trace, arguments, 2, context.directory)
        worker, writer = ((m - l) / packets for m, l in zip(more, less))
        figures[name] = {"worker": round(worker, 1), "writer": round(writer, 1)}
    for name, arguments in VARIANTS.items():
        packets = STEPPED // 4 if context.quick else STEPPED
        figures[name]["worker_avx512"] = stepped(stepper, program, trace, arguments, packets)
        print(f"  {name}: {figures[name]}", file=sys.stderr)
    return {
        "title": TITLE,
        "setup": f"{context.described(trace)}. AVX2 by callgrind, AVX-512 by single-stepping; "
                 "a rise of 3 % needs an explanation.",
        "figures": figures,
        "tables": [{"columns": ["what", "of the worker, AVX2", "AVX-512", "of its writer thread"],
                    "rows": [[n, v["worker"], v["worker_avx512"], v["writer"]]
                             for n, v in figures.items()]}],
        "charts": [],
    }
