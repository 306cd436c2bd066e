"""The data-plane loop as more and more flows are active: its cost, and packets without a bucket."""

import json
import subprocess
import sys

from harness import DISTURBED, Disturbance

TITLE = "The loop, by number of flows"
FLOWS = {"10 k": "10k", "100 k": "100k", "300 k": "300k", "1 M": "1M", "3 M": "3M", "10 M": "10M"}
# A window of the model. Traces have three, so that the next pass, which begins with the first again,
# begins a window too.
WINDOW_SECONDS = 10
WINDOWS = 3
# So that the table has grown to its largest before what is measured.
WARM = 2
TURNS = 2


def trace_of(context, flows):
    """A trace with at least a packet for each active flow in each window."""
    number = int(float(flows.rstrip("kM")) * {"k": 1_000, "M": 1_000_000}[flows[-1]])
    packets = max(WINDOWS * number, 500_000 if context.quick else 4_000_000)
    rate = packets // (WINDOWS * WINDOW_SECONDS)
    return context.generate(
        f"flows-{flows}.pcap", "cic-w3", packets, "--flows", flows, "-p", str(rate), "-s", "64"
    )


def measure(context):
    program = context.example("strata-pipeline", "loop_speed")
    names = list(FLOWS)[:3] if context.quick else list(FLOWS)
    runs = {name: [] for name in names}
    described, shares = {}, []
    # In turns, from few to many and again.
    for _ in range(1 if context.quick else TURNS):
        for name in names:
            trace = trace_of(context, FLOWS[name])
            described[name] = context.described(trace)
            disturbance = Disturbance()
            done = subprocess.run(
                [program, trace, "models/default.json", "default", "3", f"warm={WARM}"],
                capture_output=True, text=True, check=True,
            )
            shares.append(disturbance.share())
            trace.unlink()
            runs[name].append(json.loads(done.stdout[done.stdout.index("{") :]))
            print(f"  {name} flows: {runs[name][-1]}", file=sys.stderr)
    best = {name: min(all_runs, key=lambda run: run["loop_cpu_ns"]) for name, all_runs in runs.items()}
    base = best[names[0]]["loop_cpu_ns"]
    figures = {
        name: {**run, "cost_over_first": round(run["loop_cpu_ns"] / base, 3)} for name, run in best.items()
    }
    rows = [
        [
            name,
            f"{figure['loop_ns']:.1f}",
            f"{figure['loop_cpu_ns']:.1f}",
            f"{figure['cost_over_first']:.2f}",
            f"{figure['without_bucket']:.2%}",
            f"{figure['table_bytes'] / 2**20:.0f} MiB",
        ]
        for name, figure in figures.items()
    ]
    disturbed = sum(share > DISTURBED for share in shares)
    return {
        "title": TITLE,
        "setup": f"One worker, packets in memory, 64 bytes of each, {WINDOWS} windows of {WINDOW_SECONDS} s; "
        f"measured after {WARM} passes, in which the table of flows has grown. The better of "
        f"{len(shares) // len(names)} turns through all rows, each the median of 3; {disturbed} of "
        f"{len(shares)} runs on a busy machine. Traces: {'; '.join(described.values())}.",
        "figures": figures,
        "tables": [
            {
                "columns": [
                    "flows", "ns per packet", "of CPU time", f"over {names[0]}",
                    "without bucket", "table",
                ],
                "rows": rows,
            }
        ],
        "charts": [],
    }
