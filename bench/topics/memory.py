"""The data-plane loop on packets in memory, compared with memcpy of the same packets."""

import json
import subprocess

from harness import DISTURBED, Disturbance

TITLE = "The loop, packets in memory"


def measure(context):
    packets = 500_000 if context.quick else 2_800_000
    trace = context.generate("memory.pcap", "cic-w3", packets, "--flows", "300k")
    program = context.example("strata-pipeline", "loop_speed")
    for attempt in range(1 if context.quick else 4):
        disturbance = Disturbance()
        done = subprocess.run([program, trace], capture_output=True, text=True, check=True)
        share = disturbance.share()
        if share <= DISTURBED:
            break
    figures = json.loads(done.stdout[done.stdout.index("{") :])
    rows = [[name, json.dumps(value)] for name, value in figures.items()]
    return {
        "title": TITLE,
        "setup": f"{context.described(trace)}; one core; {share:.1%} of the CPU taken by others, "
        f"{attempt} attempts discarded.",
        "figures": figures,
        "tables": [{"columns": ["figure", "value"], "rows": rows}],
        "charts": [],
    }
