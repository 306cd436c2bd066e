"""The CPU budget of `record` while the load steps up and down (Trident Fig. 8).

What the process and its programs in the kernel take is read from /proc, not from Strata."""

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


def watch(pid, seconds):
    """(time, CPU seconds so far) ten times a second."""
    looks, end = [], time.monotonic() + seconds
    while time.monotonic() < end:
        looks.append((time.monotonic(), used(pid)))
        time.sleep(LOOK)
    return looks


def load(context, trace, pps, seconds, pid):
    sender = subprocess.Popen(
        inside(SENDER, "taskset", "-c", SEND_CORE, context.strata, "replay", "-i", SENDING,
               "-r", trace, "--pps", str(pps), "--duration", str(seconds)),
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )
    looks = watch(pid, seconds)
    sender.terminate()
    sender.wait()
    return looks


def cores(looks):
    (t0, c0), (t1, c1) = looks[0], looks[-1]
    return (c1 - c0) / (t1 - t0)


def windows(looks):
    """Cores used over each 10 s that begin 5 s or more after the first look."""
    start, found = looks[0][0], []
    for i, (at, cpu) in enumerate(looks):
        if at - start < SETTLE:
            continue
        later = next((l for l in looks[i:] if l[0] - at >= WINDOW), None)
        if later is None:
            break
        found.append((later[1] - cpu) / (later[0] - at))
    return found


class Recording:
    def __init__(self, context, budget):
        self.log = context.directory / "budget-log"
        remove([self.log])
        command = [context.strata, "record", "-i", RECEIVING, "-o", self.log,
                   "--cpu", f"{budget * 100}%"]
        self.process = subprocess.Popen(
            inside(RECEIVER, "taskset", "-c", CAPTURE_CORE, *command),
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )
        time.sleep(1.5)

    def end(self):
        self.process.send_signal(signal.SIGINT)
        said, _ = self.process.communicate(timeout=60)
        remove([self.log])
        if "in_flight 0" not in said:
            raise RuntimeError(f"the books are not closed: {said[-400:]}")
        return said


def measure(context):
    quick = context.quick
    step = 16.5 if quick else 25
    loads = [0.5, 3.0] if quick else [0.5, 3.0, 1.5, 0.75, 2.0, 1.0, 3.0, 0.5]
    trace = context.generate("budget.pcap", "imix", 50_000)
    with link(threaded=False):
        free = Recording(context, 10.0)
        pid = free.process.pid
        idle = cores(watch(pid, 3))
        probe = 100_000
        loaded = load(context, trace, probe, 12, pid)
        full = cores(loaded[len(loaded) // 3:])
        free.end()
        capacity = probe * (BUDGET - idle) / (full - idle)
        recording = Recording(context, BUDGET)
        disturbance = Disturbance()
        rows, worst = [], 0.0
        for times in loads:
            looks = load(context, trace, int(capacity * times), step, recording.process.pid)
            found = windows(looks)
            least, most = min(found), max(found)
            wanted = min(BUDGET, idle + times * (BUDGET - idle))
            off = max(most - BUDGET, wanted - least)
            worst = max(worst, off)
            rows.append([f"{times:.0%}", f"{least:.2%}", f"{most:.2%}", f"{off * 100:.2f}"])
        share = disturbance.share()
        said = recording.end()
    left_out = [line for line in said.splitlines() if line.startswith("dropped{cpu_budget}")]
    return {
        "title": TITLE,
        "setup": f"A budget of {BUDGET:.0%} of a core; 100 % of the load is what takes it when "
        f"all is captured: {capacity / 1e3:.0f} thousand packets/s of IMIX in 50 000 flows. "
        f"Steps of {step} s; windows of {WINDOW:.0f} s that begin {SETTLE:.0f} s or more after "
        f"a step. Idle, the process takes {idle:.2%}. Others took {share:.1%} of the machine"
        f"{', more than wanted' if share > DISTURBED else ''}. {' '.join(left_out)}.",
        "worst_points": worst * 100,
        "charts": [],
        "tables": [
            {
                "title": f"Cores in use, BPF included; the worst window is {worst * 100:.2f} "
                "points off",
                "columns": ["load", "least window", "greatest window", "points off"],
                "rows": rows,
            },
        ],
    }
