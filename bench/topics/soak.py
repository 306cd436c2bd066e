"""Capture at half of the highest lossless rate for a long time: MINUTES (60).

Nothing lost, memory flat, and every byte of the log as it was written. The log is kept small by
`strata prune` meanwhile, as in practice."""

import os
import re
import signal
import subprocess
import time

import live
from harness import Disturbance, remove

TITLE = "A long capture"
LOG_BYTES_MAX = "4G"


def resident_kib(pid):
    with open(f"/proc/{pid}/status") as lines:
        return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS"))


def half_of_lossless(context, trace):
    programs = {"strata": live.captures(context.strata, context.directory)["strata"]}
    steps = [n * 100_000 for n in range(2, 82, 4)]
    with live.link(shared=False, passing=False):
        live.usable(context, programs, trace)
        return live.lossless(context, programs["strata"], trace, steps, 5, live.Discarded()) // 2


def measure(context):
    minutes = float(os.environ.get("MINUTES", "0.5" if context.quick else "60"))
    trace = context.generate("soak.pcap", "flood788", 300_000, "--payload", "zero")
    pps = int(os.environ.get("PPS", "0")) or half_of_lossless(context, trace)
    log = context.directory / "soak-log"
    with live.link(shared=False):
        disturbance = Disturbance()
        record = subprocess.Popen(
            live.inside(live.RECEIVER, "taskset", "-c", live.CAPTURE_CORE, context.strata,
                        "record", "-i", live.RECEIVING, "-o", log, "--detail", "none"),
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )
        time.sleep(2)
        send = subprocess.Popen(
            live.inside(live.SENDER, "taskset", "-c", live.SEND_CORE, context.strata, "replay",
                        "-i", live.SENDING, "-r", trace, "--pps", pps, "--duration",
                        int(minutes * 60), "--method", "live-frames"),
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        )
        try:
            resident, pruned = [], time.monotonic()
            while send.poll() is None:
                time.sleep(2)
                resident.append(resident_kib(record.pid))
                if time.monotonic() - pruned > 20:
                    pruned = time.monotonic()
                    subprocess.run(
                        [context.strata, "prune", log, "--max-size", LOG_BYTES_MAX],
                        capture_output=True, check=False,
                    )
            sent = send.stderr.read()
            share = disturbance.share()
            time.sleep(1)
            record.send_signal(signal.SIGINT)
            said, _ = record.communicate(timeout=120)
        finally:
            for process in (record, send):
                process.kill()
                process.wait()
    offered = int(re.search(r"Actual: ([\d,]+) packets", sent)[1].replace(",", ""))
    seen = int(re.search(r"([\d,]+) packets \(", said)[1].replace(",", ""))
    logged = int(re.search(r"\+ logged (\d+)", said)[1])
    verified = subprocess.run(
        [context.strata, "verify", log], capture_output=True, text=True, check=False
    )
    remove([log])
    # The first samples precede the use of every buffer.
    settled = resident[len(resident) // 10 :] or resident
    rows = [
        ["minutes", minutes],
        ["packets per second", pps],
        ["packets sent", offered],
        ["packets lost", offered - seen],
        ["packets seen but not logged", seen - logged],
        ["resident memory, MiB, minimum and maximum", f"{min(settled) >> 10} to {max(settled) >> 10}"],
        ["log verified", "yes" if verified.returncode == 0 else verified.stderr.strip()[-200:]],
        ["CPU taken by others", f"{share:.1%}"],
    ]
    return {
        "title": TITLE,
        "setup": "788 B, payloads of zeros, 300 000 flows, two cores, at half of the highest rate "
        "without loss.",
        "figures": {str(name): value for name, value in rows},
        "tables": [{"columns": ["figure", "value"], "rows": rows}],
        "charts": [],
    }
