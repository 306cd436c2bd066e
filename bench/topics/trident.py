"""The Trident paper's Table 3 again: what a host pays for exporting headers or packets at 200,000
packets a second, beside tcpdump and softflowd; and what traffic on the captured interface notices.

`Mon` is the CPU time of the capturing process, from /proc. `Copy` is what the copy into the capture costs
the forwarding process: a veth pair copies in the sender's time, so it is the time that the sender spends in
its system calls, less that without a capture. What it costs others shows in the second table."""

import json
import re
import signal
import subprocess
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path

from budget import used
from harness import CORES, Disturbance, have, median, version
from live import RECEIVER, RECEIVING, SENDER, SENDING, inside, link, must, quietly, sent_by

TITLE = "What exporting costs the host (Trident, Table 3)"
PPS = 200_000
CAPTURE_CORE, SEND_CORE = "0", str(min(1, CORES - 1))
# Mon, Copy and Sum in percent of a core, for headers and for packets; of the paper.
PAPER = {
    "64": ((12.23, 11.91, 24.14), (58.32, 9.37, 67.69)),
    "512": ((10.43, 8.72, 19.15), (59.18, 9.83, 69.01)),
    "1024": ((11.38, 14.15, 25.53), (62.69, 13.28, 75.97)),
    "1458": ((12.15, 16.21, 28.36), (100.0, 17.85, 117.85)),
    "mixed": ((14.68, 3.64, 18.32), (55.97, 3.58, 59.55)),
}
PROFILES = {size: f"flood{size}" for size in ("64", "512", "1024", "1458")} | {"mixed": "core-2015"}
ACTIONS = ("header", "payload")
# Mon and Copy at most this share of tcpdump's.
BAR = 0.5
# No capture.
NOTHING = "nothing"
# Takes what is exported: a device whose other end drops it, since it is for another MAC address.
OUT, BEHIND, COLLECTOR = "st-tr-out", "st-tr-end", "192.0.2.10"
SENDER_IP, RECEIVER_IP = "198.51.100.1", "198.51.100.2"


@contextmanager
def host():
    """A veth pair, its receiving end on a host that reaches a collector."""
    with link(shared=False, passing=False):
        must("ip", "-n", RECEIVER, "link", "set", "lo", "up")
        must("ip", "link", "add", OUT, "netns", RECEIVER, "type", "veth",
             "peer", "name", BEHIND, "netns", SENDER)
        must("ip", "-n", SENDER, "link", "set", BEHIND, "up")
        must("ip", "-n", RECEIVER, "addr", "add", "192.0.2.1/24", "dev", OUT)
        must("ip", "-n", RECEIVER, "link", "set", OUT, "up")
        must("ip", "-n", RECEIVER, "neigh", "add", COLLECTOR, "lladdr", "02:00:00:00:00:01",
             "dev", OUT)
        yield


def configuration(context, action):
    path = context.directory / f"{action}.toml"
    path.write_text(
        'default = "drop"\n[[policy]]\nmatch = "ip or ip6"\n'
        f'action = "{action} -> analyser"\n'
        f'[export]\nidentity = 1\n[export.destinations]\nanalyser = "udp://{COLLECTOR}:4740"\n'
    )
    return path


def captures(context):
    """Programs by name; the first three are ours."""
    ours = [context.strata, "record", "-i", RECEIVING, "--socket", context.directory / "socket"]
    found = {
        action: [*ours, "--config", configuration(context, action)]
        for action in ACTIONS
    }
    found["header, -s 128"] = [*found["header"], "-s", "128"]
    if have("tcpdump"):
        found["tcpdump -w /dev/null"] = ["tcpdump", "-n", "-i", RECEIVING, "-w", "/dev/null"]
    if have("softflowd"):
        found["softflowd"] = ["softflowd", "-i", RECEIVING, "-n", f"{COLLECTOR}:2055", "-d",
                              "-c", str(context.directory / "flow.ctl"),
                              "-p", str(context.directory / "flow.pid")]
    return found


@contextmanager
def capturing(command):
    """A program that captures; `None` for no program."""
    if command is None:
        yield None
        return
    with tempfile.NamedTemporaryFile(mode="w") as said:
        process = subprocess.Popen(
            inside(RECEIVER, "taskset", "-c", CAPTURE_CORE, *command),
            stdout=said, stderr=subprocess.STDOUT,
        )
        said = Path(said.name)
        try:
            wait_until_capturing(process, said)
            yield process
        finally:
            end(process)
            process.said = said.read_text()


def end(process):
    """softflowd may take minutes for its flows. What a program that is killed would have said is unknown."""
    process.send_signal(signal.SIGINT)
    try:
        process.wait(timeout=10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def wait_until_capturing(process, said):
    """Until it says that it captures. Its socket is there earlier, while memory for packets is not: the first
    program that fills 256 MiB in a virtual machine takes longer than all others."""
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        text = said.read_text()
        if process.poll() is not None:
            raise RuntimeError(f"{process.args[-1]} ended: {text[-400:]}")
        if re.search(r"(capturing|listening) on|starting data collection", text):
            return
        time.sleep(0.02)
    raise RuntimeError(f"{process.args[-1]} does not capture after 20 s: {text[-400:]}")


def run(context, command, trace, seconds):
    """Percent of a core that the process used; percent of the time that the sender spent sending;
    packets per second; percent of them that the process says it took."""
    with capturing(command) as process:
        own, started = used(process.pid) if process else 0, time.monotonic()
        packets, took, sending = sent_by(context, trace, PPS, seconds, "sendmmsg")
        wall = time.monotonic() - started
        if process is None:
            return 0, 100 * sending / took, packets / took, 0
        own = used(process.pid) - own
    found = re.search(r"([\d,]+) packets captured|\): ([\d,]+) packets in", process.said)
    taken = int((found[1] or found[2]).replace(",", "")) if found else 0
    return 100 * own / wall, 100 * sending / took, packets / took, 100 * taken / packets


def table3(context, seconds, rounds):
    """{size: {program: (Mon, Copy, packets per second, percent of them taken)}}"""
    found = {}
    programs = {NOTHING: None, **captures(context)}
    for size, profile in PROFILES.items():
        trace = context.generate(f"table3-{size}.pcap", profile, 100_000)
        runs = {name: [] for name in programs}
        for _ in range(rounds):
            for name, command in programs.items():
                runs[name].append(run(context, command, trace, seconds))
        # Against the sender of the same round: what else the machine does is alike for both.
        alone = [sending for _, sending, *_ in runs.pop(NOTHING)]
        found[size] = {
            name: [median(column) for column in zip(*(
                (mon, sending - without, *rest)
                for (mon, sending, *rest), without in zip(rows, alone)
            ))]
            for name, rows in runs.items()
        }
    return found


def throughput(seconds):
    """Gb/s of a TCP connection over the captured interface."""
    server = subprocess.Popen(
        inside(RECEIVER, "taskset", "-c", CAPTURE_CORE, "iperf3", "-s", "-1"),
        stdout=subprocess.PIPE, text=True,
    )
    try:
        client = inside(SENDER, "taskset", "-c", SEND_CORE, "iperf3", "-J", "-c", RECEIVER_IP,
                        "-t", seconds)
        # The server listens within a moment.
        for _ in range(50):
            done = quietly(*client)
            end = json.loads(done.stdout or "{}").get("end", {})
            if "sum_received" in end:
                return end["sum_received"]["bits_per_second"] / 1e9
            time.sleep(0.1)
        raise RuntimeError(f"iperf3: {done.stdout[-300:]}")
    finally:
        server.kill()
        server.wait()


def latency(seconds):
    """Round trips of UDP over the captured interface: us on average, of the 99th percentile."""
    server = subprocess.Popen(
        inside(RECEIVER, "taskset", "-c", CAPTURE_CORE, "sockperf", "server", "-i", RECEIVER_IP),
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )
    try:
        # It says when it listens only to a terminal.
        deadline = time.monotonic() + 10
        while RECEIVER_IP not in quietly(*inside(RECEIVER, "ss", "-uln")).stdout:
            if time.monotonic() > deadline:
                raise RuntimeError("sockperf does not listen after 10 s")
            time.sleep(0.05)
        said = quietly(*inside(SENDER, "taskset", "-c", SEND_CORE, "sockperf", "ping-pong", "-i",
                               RECEIVER_IP, "-t", seconds, "--full-rtt")).stdout
    finally:
        server.kill()
        server.wait()
    found = [line.split("=")[-1].split()[0] for line in said.splitlines()
             if "avg-rtt=" in line or "percentile 99.000" in line]
    if len(found) < 2:
        raise RuntimeError(f"sockperf: {said[-300:]}")
    # The average is among others on its line.
    average = said.split("avg-rtt=")[1].split()[0]
    return float(average), float(found[-1])


def interference(context, seconds, rounds):
    """Rows: what connections over the captured interface reach without and with a capture."""
    ends = ((SENDER, SENDING, SENDER_IP), (RECEIVER, RECEIVING, RECEIVER_IP))
    for namespace, device, address in ends:
        must("ip", "-n", namespace, "addr", "add", f"{address}/24", "dev", device)
    programs = {NOTHING: None, **captures(context)}
    programs.pop("softflowd", None)
    rows = []
    for name, command in programs.items():
        found = []
        for _ in range(rounds):
            with capturing(command):
                row = [round(throughput(seconds), 2) if have("iperf3") else None]
                row += latency(seconds) if have("sockperf") else (None, None)
                found.append(row)
        rows.append([name, *(
            "not installed" if column[0] is None else round(median(column), 2)
            for column in zip(*found)
        )])
    return rows


def table_rows(found):
    rows = []
    for size, programs in found.items():
        peer = programs.get("tcpdump -w /dev/null")
        for name, (mon, copy, pps, taken) in programs.items():
            of_peer = round((mon + copy) / sum(peer[:2]), 2) if peer else "no tcpdump"
            action = name.split(",")[0]
            paper = PAPER[size][ACTIONS.index(action)] if action in ACTIONS else None
            rows.append([size, name, round(mon, 1), round(copy, 1), round(mon + copy, 1), of_peer,
                         BAR if paper else "-",
                         " + ".join(map(str, paper[:2])) if paper else "-", round(pps),
                         round(taken, 1) if taken else "-"])
    return rows


def measure(context):
    seconds, rounds = 3, 1 if context.quick else 3
    disturbance = Disturbance()
    with host():
        found = table3(context, seconds, rounds)
        between = interference(context, seconds, rounds)
    share = disturbance.share()
    peers = ", ".join(version(name) for name in ("tcpdump", "iperf3", "sockperf") if have(name))
    return {
        "title": TITLE,
        "setup": f"{PPS:,} packets a second over a veth pair, sent from core {SEND_CORE}, captured on "
                 f"core {CAPTURE_CORE}; headers and packets of everything to a collector behind a device "
                 f"that drops them, nothing logged. Percent of a core, medians of {rounds} runs of "
                 f"{seconds} s each; Copy is what the sender's system calls take longer than without a "
                 f"capture. {peers}. Others took {100 * share:.0f} % of the machine meanwhile.",
        "figures": {"table3": found, "interference": between, "others": share},
        "tables": [
            {"title": "CPU", "columns": ["bytes", "program", "Mon %", "Copy %", "Sum %", "of tcpdump's", "bar",
                                          "the paper's Mon + Copy %", "packets a second", "of them taken %"],
             "rows": table_rows(found)},
            {"title": "Connections over the captured interface",
             "columns": ["capture", "TCP Gb/s", "UDP round trip us", "its 99th percentile us"],
             "rows": between},
        ],
        "charts": [],
    }
