"""The CPU budget of `record` while the load steps up and down (Trident Fig. 8).

The CPU time of the process and of its BPF programs is read from /proc, not from Strata."""

import json
import signal
import subprocess
import time
from pathlib import Path

from harness import CORES, DISTURBED, Disturbance, remove
from live import RECEIVER, RECEIVING, SENDER, SENDING, inside, link

TITLE = "CPU budget"
BUDGET = 0.10
LOOK = 0.1
WINDOW = 10.0
SETTLE = 5.0
CAPTURE_CORE, SEND_CORE = "0", str(min(1, CORES - 1))


def used(pid):
    """CPU seconds of a process's threads, and of the BPF programs that it holds."""
    threads = sum(
        int((task / "schedstat").read_text().split()[0])
        for task in Path(f"/proc/{pid}/task").iterdir()
    )
    programs = {}
    for info in Path(f"/proc/{pid}/fdinfo").iterdir():
        lines = dict(
            line.split(":", 1) for line in info.read_text().splitlines() if ":" in line
        )
        if "run_time_ns" in lines:
            programs[lines["prog_id"].strip()] = int(lines["run_time_ns"])
    return (threads + sum(programs.values())) / 1e9


def watch(recording, seconds):
    """(time, CPU seconds so far) ten times a second; once a second with packets sampled out and
    arrived so far."""
    looks, end = [], time.monotonic() + seconds
    while time.monotonic() < end:
        counts = recording.counts() if len(looks) % 10 == 0 else None
        looks.append((time.monotonic(), used(recording.process.pid), counts))
        time.sleep(LOOK)
    return looks


def load(context, trace, pps, seconds, recording):
    sender = subprocess.Popen(
        inside(SENDER, "taskset", "-c", SEND_CORE, context.strata, "replay", "-i", SENDING,
               "-r", trace, "--pps", str(pps), "--duration", str(seconds)),
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )
    looks = watch(recording, seconds)
    sender.terminate()
    sender.wait()
    return looks


def cores(looks):
    (t0, c0, _), (t1, c1, _) = looks[0], looks[-1]
    return (c1 - c0) / (t1 - t0)


def windows(looks):
    """Over each 10 s that start 5 s or more after the first sample: cores used, and the share of
    packets captured, from the samples with counts."""
    start, found = looks[0][0], []
    for i, (at, cpu, counts) in enumerate(looks):
        if at - start < SETTLE or counts is None:
            continue
        later = next((l for l in looks[i:] if l[0] - at >= WINDOW and l[2]), None)
        if later is None:
            break
        (left_before, seen_before), (left, seen) = counts, later[2]
        captured = 1 - (left - left_before) / max(1, seen - seen_before)
        found.append(((later[1] - cpu) / (later[0] - at), captured))
    return found


class Recording:
    def __init__(self, context, budget):
        self.log = context.directory / "budget-log"
        self.strata, self.socket = context.strata, context.directory / "budget-socket"
        remove([self.log])
        command = [context.strata, "record", "-i", RECEIVING, "-o", self.log, "--detail", "none",
                   "--cpu", f"{budget * 100}%", "--socket", self.socket]
        self.process = subprocess.Popen(
            inside(RECEIVER, "taskset", "-c", CAPTURE_CORE, *command),
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )
        time.sleep(1.5)

    def counts(self):
        """Packets sampled out for the budget, and all that arrived."""
        command = ["taskset", "-c", SEND_CORE, self.strata, "status", "--json", "--socket", self.socket]
        said = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)["packets"]
        left = sum(p["packets"] for p in said if p["reason"] == "cpu_budget")
        return left, sum(p["packets"] for p in said)

    def end(self):
        self.process.send_signal(signal.SIGINT)
        said, _ = self.process.communicate(timeout=60)
        remove([self.log])
        if "in_flight 0" not in said:
            raise RuntimeError(f"the accounting is not closed: {said[-400:]}")
        return said


def measure(context):
    quick = context.quick
    step = 17 if quick else 20
    loads = [0.5, 3.0] if quick else [0.5, 3.0, 1.5, 0.75, 2.0, 1.0, 3.0, 0.5]
    trace = context.generate("budget.pcap", "imix", 50_000)
    with link(shared=False):
        free = Recording(context, 10.0)
        idle = cores(watch(free, 3))
        probe = 150_000
        loaded = load(context, trace, probe, 12, free)
        full = cores(loaded[len(loaded) // 3:])
        free.end()
        capacity = probe * (BUDGET - idle) / (full - idle)
        recording = Recording(context, BUDGET)
        disturbance = Disturbance()
        rows, worst = [], 0.0
        for times in loads:
            found = windows(load(context, trace, int(capacity * times), step, recording))
            used_cores = [cores for cores, _ in found]
            # Below the budget is fine if everything is captured.
            below = [BUDGET - cores for cores, captured in found if captured < 0.995]
            off = max([max(used_cores) - BUDGET, 0.0, *below])
            worst = max(worst, off)
            captured = sum(share for _, share in found) / len(found)
            rows.append([f"{times:.0%}", f"{min(used_cores):.2%}", f"{max(used_cores):.2%}",
                         f"{captured:.1%}", f"{off * 100:.2f}"])
        share = disturbance.share()
        said = recording.end()
    left_out = [line for line in said.splitlines() if line.startswith("dropped{cpu_budget}")]
    return {
        "title": TITLE,
        "setup": f"A budget of {BUDGET:.0%} of a core; at 100 % load, capturing "
        f"everything takes exactly the budget: {capacity / 1e3:.0f} thousand packets/s of IMIX in 50 000 flows. "
        f"Steps of {step} s; windows of {WINDOW:.0f} s that start {SETTLE:.0f} s or more after "
        f"a step. Idle, the process takes {idle:.2%}. Others took {share:.1%} of the machine"
        f"{', more than wanted' if share > DISTURBED else ''}. {' '.join(left_out)}.",
        "worst_points": worst * 100,
        "charts": [],
        "tables": [
            {
                "title": f"Cores in use, BPF included; the worst window is {worst * 100:.2f} "
                "points off",
                "columns": ["load", "lowest window", "highest window", "packets captured", "points off"],
                "rows": rows,
            },
        ],
    }
