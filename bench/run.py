"""Figures against peers, interleaved in one run: `make bench`.

    python run.py --strata PROGRAM --labelled DIR [--rounds N] [--packets N] [--dir DIR]

Makes a capture of real flows (make_trace.py), reads it into the page cache, and
lets each program read it and write to the same directory, in turns. Prints
medians and ratios, and writes bench/results/offline.json and offline.md.
"""

import argparse
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent


def machine():
    """What the figures were measured on."""
    model = "unknown"
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = line.split(":", 1)[1].strip()
            break
    return {"cpu": model, "cores": os.cpu_count(), "kernel": platform.release()}


def busy_seconds():
    """CPU time that all processes and the host took, in seconds."""
    fields = [int(f) for f in Path("/proc/stat").read_text().split("\n")[0].split()[1:]]
    idle = fields[3] + fields[4]
    return (sum(fields[:8]) - idle) / os.sysconf("SC_CLK_TCK")


def run(command, outputs):
    """Wall seconds, and CPU seconds that others took meanwhile."""
    for output in outputs:
        if output.is_dir():
            shutil.rmtree(output)
        elif output.exists():
            output.unlink()
    os.sync()
    before, started = busy_seconds(), time.monotonic()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    wall = time.monotonic() - started
    if status != 0:
        sys.exit(f"{' '.join(map(str, command))} failed")
    others = max(0.0, busy_seconds() - before - usage.ru_utime - usage.ru_stime)
    return wall, others / (wall * os.cpu_count())


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--strata", required=True, type=Path)
    parser.add_argument("--labelled", required=True, type=Path)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--packets", type=int, default=2_500_000)
    parser.add_argument("--dir", type=Path, help="where to write; a temporary directory by default")
    arguments = parser.parse_args()

    directory = Path(tempfile.mkdtemp(prefix="strata-bench-", dir=arguments.dir))
    try:
        trace = directory / "trace.pcap"
        made = subprocess.run(
            [sys.executable, HERE / "make_trace.py", arguments.labelled, trace, str(arguments.packets)],
            check=True, capture_output=True, text=True,
        ).stdout.strip()
        print(made)
        packets = int(made.split()[0])
        log, cut = directory / "log", directory / "cut.pcap"
        programs = {
            "strata record (default mode)": ([arguments.strata, "record", "-r", trace, "-o", log], [log]),
            "editcap -F pcap -s 96": (["editcap", "-F", "pcap", "-s", "96", trace, cut], [cut]),
        }
        for command, outputs in programs.values():
            run(command, outputs)
        walls = {name: [] for name in programs}
        disturbed = 0.0
        for _ in range(arguments.rounds):
            for name, (command, outputs) in programs.items():
                wall, others = run(command, outputs)
                walls[name].append(wall)
                disturbed = max(disturbed, others)
        written = {
            name: sum(
                f.stat().st_size
                for o in outputs
                for f in ([o] if o.is_file() else o.rglob("*"))
                if f.is_file()
            )
            for name, (_, outputs) in programs.items()
        }
    finally:
        shutil.rmtree(directory)

    ours, theirs = programs
    rounds = [b / a for a, b in zip(walls[ours], walls[theirs])]
    result = {
        "command": "make bench",
        "machine": machine(),
        "trace": made,
        "rounds": arguments.rounds,
        "largest_share_of_cpu_of_others": round(disturbed, 3),
        "programs": {
            name: {
                "median_seconds": round(statistics.median(times), 3),
                "median_mpps": round(packets / statistics.median(times) / 1e6, 2),
                "seconds": [round(t, 3) for t in times],
                "bytes_written": written[name],
            }
            for name, times in walls.items()
        },
        "ratio_of_medians": round(statistics.median(walls[theirs]) / statistics.median(walls[ours]), 2),
        "ratio_per_round": [round(r, 2) for r in rounds],
    }
    lines = [
        "# Reading a capture file, one worker",
        "",
        f"`make bench` on {result['machine']['cpu']}, {result['machine']['cores']} cores; {made}; "
        f"page cache warm, {arguments.rounds} rounds in turns.",
        "",
        "| program | median s | million packets/s | bytes written |",
        "|---|---|---|---|",
    ]
    for name, row in result["programs"].items():
        lines.append(f"| {name} | {row['median_seconds']} | {row['median_mpps']} | {row['bytes_written']:,} |")
    lines += [
        "",
        f"strata is {result['ratio_of_medians']} times as fast as editcap (per round "
        f"{min(rounds):.2f} to {max(rounds):.2f}). Other processes took at most "
        f"{disturbed:.0%} of the CPU during a run.",
    ]
    results = HERE / "results"
    results.mkdir(exist_ok=True)
    (results / "offline.json").write_text(json.dumps(result, indent=1) + "\n")
    (results / "offline.md").write_text("\n".join(lines) + "\n")
    print("\n".join(lines[2:]))


if __name__ == "__main__":
    main()
