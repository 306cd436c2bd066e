"""Live capture between two network namespaces, against tcpdump, dumpcap and netsniff-ng, each also as
it cuts packets to 96 bytes: what Strata keeps of most packets is their headers. Beside them a reader
that only counts the packets of a capture ring: no program loses less by that way.

Parts: `a`, the kernel's receive work and the capture share one core: what each program loses at
several rates; `b`, the sender's core does the receive work: the highest rate that each captures
without loss; `c`, the same with frames of 64 bytes. All with 300 thousand flows. Files are written
to the disk. The sender's ceiling is what it sends as fast as it can to an XDP program that drops
everything."""

import itertools
import os
import re
import signal
import subprocess
import sys
import time
from contextlib import contextmanager, nullcontext

from harness import CORES, DISTURBED, Disturbance, HERE, have, median, remove, version

TITLE = "Live capture"
EXCLUSIVE = "strata --exclusive"
# No peer: it does nothing with what it reads.
COUNTING = "counting only"
SENDING, RECEIVING = "st-tr0", "st-tr1"
SENDER, RECEIVER = "st-tr-send", "st-tr-recv"
CAPTURE_CORE, SEND_CORE = "0", str(min(1, CORES - 1))


def quietly(*command):
    return subprocess.run(command, capture_output=True, text=True, check=False)


def must(*command):
    done = quietly(*command)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()}")


def inside(namespace, *command):
    return ["ip", "netns", "exec", namespace, *map(str, command)]


def unmake():
    for namespace in (SENDER, RECEIVER):
        quietly("ip", "netns", "del", namespace)


# Packets a second at which losses on one core are compared.
SHARED_PPS = [500_000, 700_000, 1_000_000]
SHARED_SECONDS, SHARED_ROUNDS = 10, 3
RETRIES = int(os.environ.get("RETRIES", "2"))
# Packets waiting for a core's receive work, as in a network card's ring. The kernel's default,
# 1000, is a millisecond here: less than a virtual machine may be paused for. Many more no longer
# fit its cache.
BACKLOG = "4096"
BACKLOG_KEY = "net.core.netdev_max_backlog"


def keep_reclaim_away():
    """Keeps the kernel's kdamond off the capture's core; yields {pid: cores before}. A virtual
    machine that returns memory to its host runs it every few seconds for a tenth of a
    second, longer than a queue of packets lasts, and that is not what is measured."""
    found = [int(pid) for pid in quietly("pgrep", "^kdamond").stdout.split()]
    before = {pid: os.sched_getaffinity(pid) for pid in found}
    for pid in found:
        os.sched_setaffinity(pid, {int(SEND_CORE)})
    return before


@contextmanager
def link(shared, passing=True):
    """A veth pair between two namespaces. `shared`: the kernel's receive work runs on the
    capture's core, like a card whose interrupts go there, otherwise on the sender's. `passing`:
    with an XDP program that lets packets pass."""
    unmake()
    reclaim = {}
    backlog = quietly("sysctl", "-n", BACKLOG_KEY).stdout.strip()
    try:
        for namespace in (SENDER, RECEIVER):
            must("ip", "netns", "add", namespace)
            must(*inside(namespace, "sysctl", "-qw", "net.ipv6.conf.default.disable_ipv6=1"))
        must("ip", "link", "add", SENDING, "netns", SENDER, "type", "veth",
             "peer", "name", RECEIVING, "netns", RECEIVER)
        must("ip", "-n", SENDER, "link", "set", SENDING, "up")
        must("ip", "-n", RECEIVER, "link", "set", RECEIVING, "up")
        if shared:
            reclaim = keep_reclaim_away()
            must("sysctl", "-qw", f"{BACKLOG_KEY}={BACKLOG}")
            path = f"/sys/class/net/{RECEIVING}/queues/rx-0/rps_cpus"
            mask = f"{1 << int(CAPTURE_CORE):x}"
            must(*inside(RECEIVER, "sh", "-c", f"echo {mask} > {path}"))
        with program("pass") if passing else nullcontext():
            yield
    finally:
        must("sysctl", "-qw", f"{BACKLOG_KEY}={backlog}")
        for pid, cores in reclaim.items():
            os.sched_setaffinity(pid, cores)
        unmake()


@contextmanager
def program(action):
    """An XDP program on the receiving end that lets packets pass, or drops them: without any, the
    pair does not take the sender's frames."""
    command = inside(RECEIVER, sys.executable, HERE / "xdp_pass.py", RECEIVING, action)
    held = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        if held.stdout.readline().strip() != "ready":
            raise RuntimeError("the receiving end does not support XDP programs")
        yield
    finally:
        held.kill()
        held.wait()


def receive_on(core):
    """Moves the receive work of an exclusive capture, which is done where the sender is, to a
    thread on this core that is as urgent as interrupts. With None it goes back."""
    path = f"/sys/class/net/{RECEIVING}/threaded"
    if core is None:
        quietly(*inside(RECEIVER, "sh", "-c", f"echo 0 > {path}"))
        return
    must(*inside(RECEIVER, "sh", "-c", f"echo 1 > {path}"))
    threads = quietly("pgrep", f"^napi/{RECEIVING}").stdout.split()
    if not threads:
        raise RuntimeError("this kernel has no threads for receive work")
    for pid in map(int, threads):
        os.sched_setaffinity(pid, {int(core)})
        os.sched_setscheduler(pid, os.SCHED_FIFO, os.sched_param(1))


def sent_by(context, trace, pps, seconds, method="live-frames"):
    """Sends the trace; returns how many packets, in how many seconds, and how many of them were spent
    in the system calls that sent: None if unknown."""
    rate = ["--topspeed"] if pps is None else ["--pps", str(pps)]
    said = subprocess.run(
        inside(SENDER, "taskset", "-c", SEND_CORE, context.strata, "replay", "-i", SENDING,
               "-r", trace, *rate, "--duration", str(seconds), "--method", method),
        capture_output=True, text=True, check=False,
    ).stderr
    found = re.search(r"Actual: ([\d,]+) packets .* sent in ([\d.]+) seconds", said)
    if not found:
        raise RuntimeError(f"no packets were sent: {said.strip()}")
    sending = re.search(r"Sending: ([\d.]+) seconds", said)
    return int(found[1].replace(",", "")), float(found[2]), sending and float(sending[1])


def ceiling(context, trace, seconds):
    """Packets per second that arrive at a dropping XDP program, sent as fast as the sender can."""
    path = f"/sys/class/net/{RECEIVING}/statistics/rx_packets"

    def received():
        return int(quietly(*inside(RECEIVER, "cat", path)).stdout)

    with program("drop"):
        before = received()
        _, took, _ = sent_by(context, trace, None, seconds)
        return (received() - before) / took


def captures(strata, directory):
    """{name: (command, outputs, the pattern of its count)}"""
    log, file = directory / "live-log", directory / "live.pcap"
    counted = r"([\d,]+) packets \("
    typed = [strata, "record", "-i", RECEIVING, "-o", log]
    record = [*typed, "--detail", "none"]
    tcpdump, captured = ["tcpdump", "-i", RECEIVING], r"(\d+) packets captured"
    return {
        "strata": (typed, [log], counted),
        "strata -s 96": ([*typed, "-s", "96"], [log], counted),
        "strata --detail none": (record, [log], counted),
        "strata --mode log-all": ([*record, "--mode", "log-all"], [log], counted),
        "strata --early-cut": ([*record, "--early-cut"], [log], counted),
        EXCLUSIVE: ([*record, "--exclusive"], [log], counted),
        "tcpdump": ([*tcpdump, "-w", file], [file], captured),
        "tcpdump -s 96": ([*tcpdump, "-s", "96", "-w", file], [file], captured),
        "tcpdump -s 96 -B 65536": (
            [*tcpdump, "-s", "96", "-B", "65536", "-w", file], [file], captured),
        "tcpdump -s 96 -w /dev/null": ([*tcpdump, "-s", "96", "-w", "/dev/null"], [], captured),
        "dumpcap": (
            ["dumpcap", "-q", "-i", RECEIVING, "-w", file], [file],
            r"received/dropped on interface '[^']*': (\d+)"),
        "dumpcap -s 96": (
            ["dumpcap", "-q", "-i", RECEIVING, "-s", "96", "-w", file], [file],
            r"received/dropped on interface '[^']*': (\d+)"),
        "netsniff-ng": (
            ["netsniff-ng", "--in", RECEIVING, "--out", file, "--silent"], [file],
            r"(\d+)\s+packets passed filter"),
        COUNTING: (
            [sys.executable, HERE / "null_reader.py", RECEIVING, "96"], [],
            r"(\d+) packets counted"),
    }


def run(context, capture, trace, pps, seconds, shared=False):
    """Share of the packets that were lost, packets sent per second, and the disturbance."""
    if "--exclusive" in capture[0]:
        # It has a program of its own.
        return run_receiver(context, capture, trace, pps, seconds, shared)
    with program("pass"):
        return run_receiver(context, capture, trace, pps, seconds, False)


def run_receiver(context, capture, trace, pps, seconds, moved):
    """`run` with a program on the receiving end, or without; `moved`: the receive work is moved
    to the capture's core."""
    command, outputs, pattern = capture
    remove(outputs)
    # What the previous run wrote must not be flushed during this one.
    os.sync()
    receiver = subprocess.Popen(
        inside(RECEIVER, "taskset", "-c", CAPTURE_CORE, *command),
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )
    try:
        time.sleep(1.5)
        if moved:
            receive_on(CAPTURE_CORE)
        disturbance = Disturbance()
        offered, took, _ = sent_by(context, trace, pps, seconds)
        share = disturbance.share()
        time.sleep(1.0)
        if moved:
            receive_on(None)
        receiver.send_signal(signal.SIGINT)
        said, _ = receiver.communicate(timeout=60)
    finally:
        receiver.kill()
        receiver.wait()
        remove(outputs)
    found = re.search(pattern, said)
    if not found:
        raise RuntimeError(f"{command[0]} does not report how many packets it captured: {said[-300:]}")
    captured = int(found[1].replace(",", ""))
    return max(0.0, 1 - captured / offered), offered / took, share


class Discarded:
    """Runs in which others took too much of the CPU."""

    def __init__(self):
        # Discarded; kept for want of a better one, with what others took.
        self.others, self.kept = 0, []

    def __str__(self):
        text = f"{self.others} runs discarded because of other processes"
        if self.kept:
            text += (f", {len(self.kept)} kept though others took more than {DISTURBED:.0%} of "
                     f"the CPU, {max(self.kept):.1%} at most")
        return text


def undisturbed(context, capture, trace, pps, seconds, discarded, shared=False):
    """Runs until one is undisturbed, RETRIES more times at most; else the least disturbed
    counts."""
    tries = []
    for _ in range(1 if context.quick else 1 + RETRIES):
        loss, rate, share = run(context, capture, trace, pps, seconds, shared)
        tries.append((share, loss, rate))
        if share <= DISTURBED:
            break
    share, loss, rate = min(tries)
    discarded.others += len(tries) - 1
    if share > DISTURBED:
        discarded.kept.append(share)
    return loss, rate


def lossless(context, capture, trace, steps, seconds, discarded):
    """The highest of the rates that is captured without loss, packets per second, by bisection."""
    low, high = 0, len(steps)
    while low < high:
        middle = (low + high) // 2
        loss, rate = undisturbed(context, capture, trace, steps[middle], seconds, discarded)
        reached = rate > steps[middle] * 0.98
        if loss == 0 and reached:
            low = middle + 1
        else:
            high = middle
    return steps[low - 1] if low else 0


def usable(context, programs, trace):
    """Skips the programs that do not work here."""
    for name, capture in list(programs.items()):
        try:
            run(context, capture, trace, 10_000, 1)
        except (RuntimeError, OSError, subprocess.SubprocessError) as error:
            print(f"  skipped: {name}: {error}", file=sys.stderr)
            del programs[name]


def shared_core(context, programs, trace, discarded):
    """Losses by program and rate, {name: {pps: [share]}}; the programs take turns."""
    rates, seconds, rounds = (
        (SHARED_PPS[-1:], 2, 1) if context.quick else (SHARED_PPS, SHARED_SECONDS, SHARED_ROUNDS))
    lost = {name: {pps: [] for pps in rates} for name in programs}
    for pps, _, (name, capture) in itertools.product(rates, range(rounds), programs.items()):
        loss, actual = undisturbed(context, capture, trace, pps, seconds, discarded, shared=True)
        lost[name][pps].append(loss)
        print(f"  shared core: {name}: {loss:.2%} of {actual / 1e6:.2f} Mpps", file=sys.stderr)
    return lost


def peers(found):
    """Of {name: figure} the figures of other programs."""
    return [figure for name, figure in found.items()
            if not name.startswith("strata") and name != COUNTING]


def ratio(figure, of):
    """A ratio as text."""
    return f"{figure / of:.2f}" if of else "-"


def mpps(rate):
    return f"{rate / 1e6:.2f}"


def shared_cell(losses):
    """Median and range."""
    return f"{median(losses):.2%} ({min(losses):.2%} to {max(losses):.2%})"


def two_core_rows(found, top):
    """The rows of the highest rates without loss; `top` is the sender's ceiling, and what a
    dropping XDP program receives."""
    best = max(peers(found), default=None)
    return [[name, pps / 1e6, ratio(pps, best), ratio(pps, top), mpps(top)]
            for name, pps in found.items()]


def measure(context):
    quick = context.quick
    parts = context.part or "abc"
    seconds = 2 if quick else 20
    steps = [n * 100_000 for n in (range(2, 42, 8) if quick else range(1, 82))]
    programs = captures(context.strata, context.directory)
    programs = {n: c for n, c in programs.items()
                if n.startswith("strata") or n == COUNTING or have(n.split()[0])}
    if wanted := os.environ.get("PROGRAMS"):
        programs = {name: programs[name] for name in wanted.split(",")}
    discarded, tables, charts, more = Discarded(), [], [], {}
    full = context.generate("live788.pcap", "flood788", 300_000, "--payload", "zero")
    with link(shared=False, passing=False):
        usable(context, programs, full)
        top = ceiling(context, full, seconds)
        print(f"  sender's ceiling: {mpps(top)} Mpps", file=sys.stderr)
    if "a" in parts:
        with link(shared=True, passing=False):
            lost = shared_core(context, programs, full, discarded)
        more["lost_shared"] = {"lost": lost, "ceiling_pps": top}
        rates = list(next(iter(lost.values())))
        tables.append({
            "title": "One core for the kernel's receive work and the capture, 788 B, packets lost "
            f"by rate: median of the runs (range). The sender's ceiling is {mpps(top)} Mpps",
            "columns": ["program", *(f"{mpps(pps)} Mpps" for pps in rates)],
            "rows": [[name, *map(shared_cell, by_rate.values())] for name, by_rate in lost.items()],
        })
        charts.append({
            "name": "live-loss-a",
            "title": f"Packets lost at {mpps(rates[-1])} Mpps of 788 B, one core",
            "unit": "percent",
            "bars": [[n, round(100 * median(by_rate[rates[-1]]), 2)]
                     for n, by_rate in lost.items()],
        })
    for part, size in (("b", 788), ("c", 64)):
        if part not in parts:
            continue
        trace = full if size == 788 else context.generate(
            "live64.pcap", "flood64", 300_000, "--payload", "zero")
        found = {}
        with link(shared=False, passing=False):
            # Right before what is compared with it.
            top = ceiling(context, trace, seconds)
            for name, capture in programs.items():
                found[name] = lossless(context, capture, trace, steps, seconds, discarded)
                print(f"  two cores: {name}: {found[name] / 1e6:.1f} Mpps", file=sys.stderr)
        more[f"lossless_pps_{size}"] = found
        more[f"ceiling_pps_{size}"] = top
        tables.append({
            "title": f"Two cores: the highest rate of {size} B without loss, "
            f"in steps of {(steps[1] - steps[0]) / 1e6} Mpps",
            "columns": ["program", "Mpps", "of the best peer's", "of what a dropping XDP program "
                        "receives", "sender's ceiling, Mpps"],
            "rows": two_core_rows(found, top),
        })
        charts.append({
            "name": f"live-lossless-{size}",
            "title": f"Greatest rate without loss, {size} B, two cores",
            "unit": "million packets per second",
            "bars": [[n, pps / 1e6] for n, pps in found.items()],
        })
    return {
        "title": TITLE,
        "setup": "Two network namespaces, XDP live frames with payloads of zeros, 300 000 "
        f"flows, runs of {seconds} s (on one core {SHARED_SECONDS} s), files on the disk; "
        f"{discarded}. "
        "Packets that overflow the receiving end of the veth pair count as lost. On one core, the "
        "receive work of an exclusive capture is a NAPI thread there with real-time priority, as "
        "urgent as interrupts; others receive by RPS. The sender's ceiling is what an XDP program "
        "that drops everything receives from it.",
        "versions": {n: version(n) for n in programs if " " not in n and n != "strata"},
        **more,
        "tables": tables,
        "charts": charts,
    }
