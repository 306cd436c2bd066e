"""Switch and relay in two network namespaces: the highest rate at which `log-all` of a real
capture arrives whole, by each transport, and the cost of a packet at either end.

From a file, acknowledgements limit the rate, so everything arrives, at the highest rate
possible; each run's export is compared with the input byte by byte. From an interface nothing
limits it: the highest rate without loss is searched."""

import json
import os
import re
import signal
import struct
import subprocess
import sys
import time
from contextlib import contextmanager

import live
from harness import DISTURBED, Disturbance, have, median, remove

TITLE = "Switch and relay"
SWITCH, RELAY = live.RECEIVER, "st-wr-relay"
SWITCH_END, RELAY_END = "st-wr0", "st-wr1"
SWITCH_ADDRESS, RELAY_ADDRESS = "192.0.2.1", "192.0.2.2"
RAW = ["--transport", "raw", "--raw-interface", SWITCH_END]
TRANSPORTS = {
    "RC, UDP sockets": [],
    "UC, UDP sockets": ["--service", "uc"],
    "RC, raw frames": RAW,
    "shared memory": ["--transport", "shared-memory"],
}
# The start of a little-endian pcap file with nanoseconds.
NANOSECONDS = struct.pack("<I", 0xA1B23C4D)
# Without acknowledgements a file is read faster than the receiver can follow.
ACKNOWLEDGED = [name for name in TRANSPORTS if not name.startswith("UC")]


@contextmanager
def wire():
    """A veth pair between the switch's namespace, which exists, and the relay's."""
    live.quietly("ip", "netns", "del", RELAY)
    try:
        live.must("ip", "netns", "add", RELAY)
        live.must("ip", "link", "add", SWITCH_END, "netns", SWITCH, "type", "veth",
                  "peer", "name", RELAY_END, "netns", RELAY)
        for namespace, end, address in (
            (SWITCH, SWITCH_END, SWITCH_ADDRESS), (RELAY, RELAY_END, RELAY_ADDRESS),
        ):
            live.must("ip", "-n", namespace, "addr", "add", f"{address}/24", "dev", end)
            live.must("ip", "-n", namespace, "link", "set", "lo", "up")
            live.must("ip", "-n", namespace, "link", "set", end, "mtu", "9000", "up")
        yield
    finally:
        live.quietly("ip", "netns", "del", RELAY)


def repeated(source, target, laps, longest=1 << 18):
    """A capture repeated one after another in time, without packets that are longer
    than `longest`; nanoseconds, as exports are."""
    data, packets, at = source.read_bytes(), [], 24
    unit = 1 if data.startswith(NANOSECONDS) else 1000
    while at < len(data):
        seconds, fraction, captured, length = struct.unpack_from("<IIII", data, at)
        packets.append((seconds * 10**9 + fraction * unit,
                        struct.pack("<II", captured, length) + data[at + 16 : at + 16 + captured]))
        at += 16 + captured
    packets = [packet for packet in packets if len(packet[1]) - 8 <= longest]
    packets.sort(key=lambda packet: packet[0])
    span = packets[-1][0] - packets[0][0] + 1000
    with target.open("wb") as out:
        out.write(NANOSECONDS + data[4:24])
        for lap in range(laps):
            out.write(b"".join(
                struct.pack("<II", *divmod(time_ns + lap * span, 10**9)) + packet
                for time_ns, packet in packets
            ))
    return len(packets) * laps, sum(len(packet) - 8 for _, packet in packets) * laps


def processor(process):
    """Asks a process to end, and returns the CPU seconds that it took."""
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    return usage.ru_utime + usage.ru_stime


@contextmanager
def relay(context, log):
    """Starts a relay; returns a function that ends it and returns its CPU seconds."""
    remove([log])
    process = subprocess.Popen(
        live.inside(RELAY, context.strata, "relay", "--listen", RELAY_ADDRESS,
                    "--insecure", "-o", log),
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
    )
    try:
        while "ends it" not in (line := process.stderr.readline()):
            if not line:
                raise RuntimeError("the relay does not start")

        def end():
            process.send_signal(signal.SIGINT)
            return processor(process)

        yield end
    finally:
        if process.returncode is None:
            process.kill()
            process.wait()
        process.stderr.close()


def same(context, log, trace):
    """Whether the export of a log has the packets of the trace, byte by byte."""
    out = context.directory / "wire-export.pcap"
    subprocess.run([context.strata, "export", log, "-F", "pcap", "-w", out],
                   check=True, capture_output=True)
    try:
        with out.open("rb") as ours, trace.open("rb") as theirs:
            # The file header's snap length and the like come from the input.
            ours.seek(24), theirs.seek(24)
            while True:
                a, b = ours.read(1 << 20), theirs.read(1 << 20)
                if a != b:
                    return False
                if not a:
                    return True
    finally:
        remove([out])


def from_file(context, name, trace, log):
    """Seconds, CPU seconds of switch and relay, and the disturbance, of a run whose export is
    the input."""
    command = live.inside(SWITCH, context.strata, "switch", "--relay", RELAY_ADDRESS, "--insecure",
                          "--mode", "log-all", "-r", trace, *TRANSPORTS[name])
    with relay(context, log) as end:
        disturbance, started = Disturbance(), time.monotonic()
        switch = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        said = switch.stdout.read()
        seconds, at_switch = time.monotonic() - started, processor(switch)
        share, at_relay = disturbance.share(), end()
    if switch.returncode != 0 or " 0 lost;" not in said:
        raise RuntimeError(f"{name}: {said.strip()[-400:]}")
    if not same(context, log, trace):
        raise RuntimeError(f"{name}: the export is not the input")
    return seconds, at_switch, at_relay, share


def from_interface(context, name, trace, pps, seconds, log):
    """Share of the packets that were lost, the rate, and the disturbance."""
    command = live.inside(SWITCH, context.strata, "switch", "--relay", RELAY_ADDRESS, "--insecure",
                          "--mode", "log-all", "-i", live.RECEIVING, *TRANSPORTS[name])
    with relay(context, log) as end:
        switch = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        try:
            time.sleep(1.5)
            disturbance = Disturbance()
            sent = subprocess.run(
                live.inside(live.SENDER, context.strata, "replay", "-i", live.SENDING, "-r", trace,
                            "--pps", str(pps), "--duration", str(seconds), "--method", "live-frames"),
                capture_output=True, text=True, check=False,
            ).stderr
            share = disturbance.share()
            time.sleep(0.5)
            switch.send_signal(signal.SIGINT)
            said, _ = switch.communicate(timeout=60)
        finally:
            switch.kill()
            switch.wait()
        end()
    actual = re.search(r"Actual: ([\d,]+) packets", sent)
    if not actual:
        raise RuntimeError(f"no packets were sent: {sent.strip()}")
    offered = int(actual[1].replace(",", ""))
    arrived = subprocess.run(
        [context.strata, "export", log, "-F", "pcap", "-w", "-"],
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=True,
    ).stderr
    got = int(re.search(r"([\d,]+) packets exported", arrived)[1].replace(",", ""))
    return max(0.0, 1 - got / offered), offered / seconds, share


def lossless(context, name, trace, steps, seconds, log, discarded):
    """The highest of the rates at which everything is exported, by bisection."""
    low, high = 0, len(steps)
    while low < high:
        middle = (low + high) // 2
        for _ in range(3):
            loss, rate, share = from_interface(context, name, trace, steps[middle], seconds, log)
            if share <= DISTURBED:
                break
            discarded.append(share)
        if loss == 0 and rate > steps[middle] * 0.98:
            low = middle + 1
        else:
            high = middle
    return steps[low - 1] if low else 0


def limit(context, seconds):
    """Gb/s that one end sends and the other receives without any other work."""
    program = context.example("strata-roce", "wire_limit")
    found = {}
    for name, more in (("UDP sockets", []), ("raw frames", [SWITCH_END])):
        receiver = subprocess.Popen(
            live.inside(RELAY, program, "receive", RELAY_ADDRESS), stdout=subprocess.PIPE, text=True)
        try:
            receiver.stdout.readline()
            subprocess.run(
                live.inside(SWITCH, program, "send", SWITCH_ADDRESS, RELAY_ADDRESS, str(seconds), *more),
                check=True, capture_output=True,
            )
            said, _ = receiver.communicate(timeout=30)
        finally:
            receiver.kill()
            receiver.wait()
        found[name] = float(said.split()[0])
        print(f"  the wire alone, {name}: {found[name]:.1f} Gb/s", file=sys.stderr)
    return found


def instructions(context, trace):
    """Instructions per packet of the switch's second thread, from a worker's block to messages."""
    program = context.example("strata-relay", "switch_speed")
    out = context.directory / "wire-callgrind.out"

    def counted(*more):
        command = ["valgrind", "--tool=callgrind", f"--callgrind-out-file={out}", program, trace, *more]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        total = re.search(r"Collected : (\d+)", done.stderr)
        return int(total[1]), json.loads(done.stdout)["packets"]

    rows = []
    for name, path in (("shared memory", []), ("RDMA, without the socket", ["rdma"])):
        (sent, packets), (filled, _) = counted(*path), counted(*path, "fill")
        rows.append([name, round((sent - filled) / packets)])
    remove([out])
    return rows


def measure(context):
    quick = context.quick
    rounds, laps, seconds = (1, 50, 2) if quick else (3, 50, 4)
    steps = [n * 100_000 for n in range(2, 42, 4 if quick else 1)]
    source = context.capture()
    trace, log = context.directory / "wire.pcap", context.directory / "wire-log"
    packets, kept = repeated(source, trace, laps)
    runs, discarded, highest = {name: [] for name in ACKNOWLEDGED}, [], {}
    with live.link(shared=False), wire():
        alone = limit(context, 2 if quick else 5)
        for _ in range(rounds):
            for name in ACKNOWLEDGED:
                for _ in range(3):
                    run = from_file(context, name, trace, log)
                    if run[3] <= DISTURBED:
                        break
                    discarded.append(run[3])
                runs[name].append(run)
                print(f"  {name}: {packets / run[0] / 1e6:.2f} Mpps", file=sys.stderr)
        # What an interface receives; offloading had merged packets into longer ones.
        repeated(source, trace, 1, longest=1514)
        for name in TRANSPORTS:
            highest[name] = lossless(context, name, trace, steps, seconds, log, discarded)
            print(f"  {name}, from an interface: {highest[name] / 1e6:.1f} Mpps", file=sys.stderr)
    local = context.directory / "wire-local"
    files = []
    for name in ACKNOWLEDGED:
        took, at_switch, at_relay = (median([run[n] for run in runs[name]]) for n in range(3))
        files.append([name, round(packets / took / 1e6, 2), round(kept * 8 / took / 1e9, 2),
                      round(at_switch / packets * 1e9), round(at_relay / packets * 1e9)])
    remove([local, log, trace])
    # One lap; counts do not depend on other processes.
    per_packet = instructions(context, source) if have("valgrind") else []
    return {
        "title": TITLE,
        "setup": f"Two namespaces, a veth pair of MTU 9000, `{source.name}` of {source.parent.name} "
        f"{laps} times: {packets:,} packets, {kept / packets:.0f} B on average. `log-all`; the log "
        f"on the disk. Medians of {rounds} rounds in turns; {len(discarded)} runs discarded because of "
        "other processes.",
        "runs": runs,
        "tables": [
            {
                "title": "The wire alone: RDMA packets of 4096 B from one end to the other",
                "columns": ["transport", "Gb/s"],
                "rows": [[name, round(rate, 1)] for name, rate in alone.items()],
            },
            {
                "title": "From a file, the relay's export equal to it byte by byte",
                "columns": ["transport", "Mpps", "Gb/s of packets", "CPU ns per packet at the switch",
                            "at the relay"],
                "rows": files,
            },
            {
                "title": "From a worker's block to messages: instructions per packet at the switch, by "
                "callgrind",
                "columns": ["path", "instructions"],
                "rows": per_packet,
            },
            {
                "title": "From an interface, the sender on the same cores: the highest rate at which "
                f"the relay exports every packet, in steps of {(steps[1] - steps[0]) / 1e6} Mpps",
                "columns": ["transport", "Mpps"],
                "rows": [[name, rate / 1e6] for name, rate in highest.items()],
            },
        ],
        "charts": [
            {
                "name": "wire-file",
                "title": "Switch to relay from a file, lossless",
                "unit": "million packets per second",
                "bars": [[name, rate] for name, rate, *_ in files],
            },
        ],
    }
