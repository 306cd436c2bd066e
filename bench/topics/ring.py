"""What the kernel's way to a capture costs: packet sockets, against headers that a BPF program copies
into a ring of its own, by tcx or XDP (`header_ring.py`).

The readers only count; the kernel's receive work and the reader share one core. Compared is how
much of the core is left, since losses of virtual machines vary more."""

import os
import signal
import subprocess
import sys
import time
from contextlib import nullcontext, suppress
from pathlib import Path

import live
from harness import HERE, Disturbance, median

TITLE = "Ways from the kernel to a capture"
PPS, SECONDS, ROUNDS = 800_000, 8, 3
WAYS = {
    "packet socket, 96 B (TPACKET_V3)": ["null_reader.py", live.RECEIVING, "96"],
    "packet socket, whole packets": ["null_reader.py", live.RECEIVING, "262144"],
    "ring by tcx, packets pass": ["header_ring.py", live.RECEIVING, "tcx", "pass"],
    "ring by tcx, packets dropped": ["header_ring.py", live.RECEIVING, "tcx", "drop"],
    "ring by XDP, packets pass": ["header_ring.py", live.RECEIVING, "xdp", "pass"],
    "ring by XDP, packets dropped": ["header_ring.py", live.RECEIVING, "xdp", "drop"],
}


def idle_seconds():
    """Of the capture's core."""
    lines = Path("/proc/stat").read_text().splitlines()
    fields = next(line for line in lines if line.startswith(f"cpu{live.CAPTURE_CORE} ")).split()
    return (int(fields[4]) + int(fields[5])) / os.sysconf("SC_CLK_TCK")


def run(context, script, trace, seconds):
    """Nanoseconds of the core per packet that was counted, the share lost, and the disturbance."""
    is_xdp = "xdp" in script
    # XDP programs run where the sender is, unless the receive work is moved.
    with nullcontext() if is_xdp else live.program("pass"):
        reader = subprocess.Popen(
            live.inside(live.RECEIVER, "taskset", "-c", live.CAPTURE_CORE, sys.executable,
                        HERE / script[0], *script[1:]),
            stdout=subprocess.PIPE, text=True)
        try:
            # It says nothing before it ends; a reader that ends now has failed.
            with suppress(subprocess.TimeoutExpired):
                raise RuntimeError(f"{' '.join(script)} ended: {reader.wait(timeout=1.0)}")
            if is_xdp:
                live.receive_on(live.CAPTURE_CORE)
            disturbance, idle, began = Disturbance(), idle_seconds(), time.monotonic()
            offered, _, _ = live.sent_by(context, trace, PPS, seconds)
            busy = time.monotonic() - began - (idle_seconds() - idle)
            share = disturbance.share()
            if is_xdp:
                live.receive_on(None)
            reader.send_signal(signal.SIGINT)
            said, _ = reader.communicate(timeout=30)
        finally:
            reader.kill()
            reader.wait()
    counted = int(said.split()[0])
    return 1e9 * busy / max(counted, 1), max(0.0, 1 - counted / offered), share


def measure(context):
    seconds, rounds = (2, 1) if context.quick else (SECONDS, ROUNDS)
    trace = context.generate("ring788.pcap", "flood788", 300_000, "--payload", "zero")
    found = {way: [] for way in WAYS}
    disturbed = 0.0
    with live.link(shared=True, passing=False):
        for _ in range(rounds):
            for way, script in WAYS.items():
                cost_ns, lost, share = run(context, script, trace, seconds)
                found[way].append((cost_ns, lost))
                disturbed = max(disturbed, share)
                print(f"  {way}: {cost_ns:.0f} ns, lost {lost:.2%}", file=sys.stderr)
    costs = {way: median([cost for cost, _ in runs]) for way, runs in found.items()}
    first = next(iter(costs.values()))
    rows = [[way, round(costs[way]), f"{costs[way] / first:.2f}",
             f"{median([lost for _, lost in runs]):.2%}"] for way, runs in found.items()]
    return {
        "title": TITLE,
        "setup": f"One core for the kernel's receive work and the reader, {PPS / 1e6} Mpps of "
        f"788 B in 300 000 flows, {rounds} runs of {seconds} s in turns; at most {disturbed:.1%} of "
        "the CPU taken by others. By XDP, the receive work is a NAPI thread, else by RPS.",
        "figures": {"ns": costs},
        "tables": [{"columns": ["way", "ns of the core per packet", "of the first", "lost"],
                    "rows": rows}],
        "charts": [],
    }
