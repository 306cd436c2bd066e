"""Latency of mode changes: from a sensor reading, or a request, to the worker (TitanLog §VI-B).

Strata measures it; the CPU time of its threads is read from /proc."""

import json
import subprocess
import time
from pathlib import Path

from harness import CORES, Disturbance, remove
from live import RECEIVER, RECEIVING, SENDER, SENDING, inside, link

TITLE = "How fast modes change"
CAPTURE_CORE, SEND_CORE = "0", str(min(1, CORES - 1))
# A block that fills runs short of space at once and for a moment, so modes change all the time.
RESTLESS = """[elastic]
blocks_percent = 1.0
confirm_seconds = 0.001
hold_seconds = 0.005
hold_seconds_max = 0.005
"""
QUIET = "[elastic]\nenabled = true\n"


class Recording:
    def __init__(self, context, config):
        self.strata, self.log = context.strata, context.directory / "control-log"
        self.socket, path = context.directory / "control-socket", context.directory / "control.toml"
        path.write_text(config)
        remove([self.log])
        command = [self.strata, "record", "-i", RECEIVING, "-o", self.log, "--mode", "log-all",
                   "--config", path, "--socket", self.socket]
        self.process = subprocess.Popen(
            inside(RECEIVER, "taskset", "-c", CAPTURE_CORE, *command),
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )
        time.sleep(2)

    def ask(self, *arguments):
        command = ["taskset", "-c", SEND_CORE, self.strata, *arguments, "--socket", self.socket]
        return subprocess.run(command, capture_output=True, check=True, text=True).stdout

    def status(self):
        return json.loads(self.ask("status", "--json"))

    def sensors_cpu(self):
        """CPU seconds so far of the thread that reads sensors."""
        for task in Path(f"/proc/{self.process.pid}/task").iterdir():
            if (task / "comm").read_text().strip() == "strata-sensors":
                return int((task / "schedstat").read_text().split()[0]) / 1e9
        raise RuntimeError("there is no thread strata-sensors")

    def end(self):
        self.process.terminate()
        self.process.wait()
        remove([self.log])


def row(name, recording, seconds, cpu):
    said = recording.status()
    changes, wait = said["changes"], said["ring_wait_ms"]
    return [name, f"{changes['count']:,}", f"{changes['median_ms']:.3f}", f"{changes['p99_ms']:.3f}",
            "" if wait is None else f"{wait:.1f}", f"{cpu / seconds:.2%}"]


def idle(context, seconds):
    """Requests modes while no packets arrive."""
    recording = Recording(context, QUIET)
    before, since = recording.sensors_cpu(), time.monotonic()
    time.sleep(seconds)
    cpu, took = recording.sensors_cpu() - before, time.monotonic() - since
    for change in range(100 if context.quick else 1000):
        recording.ask("mode", "set", ["log-partial", "log-all"][change % 2])
    found = row("idle, requested", recording, took, cpu)
    recording.end()
    return found


def loaded(context, trace, pps, seconds):
    """Lets modes change by themselves under load."""
    recording = Recording(context, RESTLESS)
    before, since = recording.sensors_cpu(), time.monotonic()
    subprocess.run(
        inside(SENDER, "taskset", "-c", SEND_CORE, context.strata, "replay", "-i", SENDING,
               "-r", trace, "--pps", str(pps), "--duration", str(seconds)),
        capture_output=True, check=True,
    )
    cpu, took = recording.sensors_cpu() - before, time.monotonic() - since
    found = row(f"{pps:,} packets/s, by sensors", recording, took, cpu)
    recording.end()
    return found


def measure(context):
    seconds = 10 if context.quick else 30
    trace = context.generate("control.pcap", "imix", 50_000)
    disturbance = Disturbance()
    with link(shared=False):
        rows = [idle(context, seconds)]
        rows += [loaded(context, trace, pps, seconds) for pps in (5_000, 50_000, 200_000)]
    return {
        "title": TITLE,
        "setup": "From the reading that leads to another mode, or the request for one, to the "
        "switch of the worker; the latest 1,024 changes. The time that packets wait in the kernel's ring "
        "before a worker takes them comes on top, and is listed separately: the kernel hands over a block of "
        "packets after 10 ms at most (1 ms with --immediate-mode). IMIX in 50,000 flows. "
        f"Others took {disturbance.share():.1%} of the machine.",
        "charts": [],
        "tables": [
            {
                "title": "Milliseconds, and the share of a core for reading sensors",
                "columns": ["load", "changes", "median", "p99", "longest wait in the ring",
                            "sensors' thread"],
                "rows": rows,
            },
        ],
    }
