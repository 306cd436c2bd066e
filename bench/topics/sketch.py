"""Errors of the sketch's features, against exact flow tables, as more and more flows are
active in a window (TitanLog Tables V and VIII)."""

import json
import subprocess

import pyarrow.parquet as parquet

TITLE = "The sketch against exact flow tables"
WINDOW_MS = 35
# Multiples of the profile's flows: flows active at a time, packets per second.
LOADS = {1: [], 2: ["--flows", "600k", "-p", "32M"], 4: ["--flows", "1200k", "-p", "64M"]}
FEATURES = {
    "bytes": "sum of sizes",
    "size_max": "largest",
    "size_min": "smallest",
    "size_avg": "average",
    "size_var": "variance",
}
# The worst of five traces, at 100, 200 and 400 Gb/s.
TITANLOG = {
    "bytes": ["3e-2", "3e-2", "6e-2"],
    "size_max": ["1e-3", "5e-3", "2e-2"],
    "size_min": ["1e-2", "8e-2", "4.2e-1"],
    "size_avg": ["1e-3", "5e-3", "3e-2"],
    "size_var": ["28", "27", "16"],
}


def measure(context):
    packets = 1_000_000 if context.quick else 4_000_000
    runs, traces = [], []
    for times, load in LOADS.items():
        trace = context.generate("sketch.pcap", "cic-w5", packets, "-s", "64", *load)
        traces.append(context.described(trace))
        decisions = context.directory / "decisions.parquet"
        subprocess.run(
            [context.strata, "eval", "-r", trace, "--window-ms", str(WINDOW_MS),
             "--decisions", decisions],
            capture_output=True, check=True,
        )
        summary = json.loads(parquet.read_metadata(decisions).metadata[b"strata.summary"])
        runs.append({"times": times, **summary})
        trace.unlink()
    rows = []
    for feature, name in FEATURES.items():
        row = [name]
        for run, theirs in zip(runs, TITANLOG[feature], strict=True):
            row += [f"{run['average_relative_errors'][feature]:.1e}", theirs]
        rows.append(row)
    without = [f"{run['without_bucket'] / run['frames']:.1%}" for run in runs]
    rows.append(["packets without bucket", without[0], "not stated", without[1], "", without[2], ""])
    columns = ["feature"]
    for run, rate in zip(runs, ("100", "200", "400"), strict=True):
        columns += [f"{run['flows_max']:,} flows", f"TitanLog, {rate} Gb/s"]
    return {
        "title": TITLE,
        "setup": "Average relative error over the packets whose flow has a bucket, in 2 x 2^16 "
        f"buckets and windows of {WINDOW_MS} ms; flows: the most in one window. TitanLog's are "
        "the worst of its five traces (Tables V and VIII). Traces, one per load: "
        f"{'; '.join(traces)}.",
        "figures": runs,
        "tables": [{"columns": columns, "rows": rows}],
        "charts": [],
    }
