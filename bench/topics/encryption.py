"""The cost of encryption at rest and of an object tier: the same log clear, encrypted, and encrypted in
an object store, in turns."""

import os
import socket
import subprocess
import time

from harness import Disturbance, median, remove, size
from rest import ROOT, a_flow, drop_caches, linked, run

TITLE = "Encryption at rest, and the object tier"
SERVER = ROOT / "target" / "tools" / "versitygw"


def compaction(context, hot, public, rounds):
    """Seconds to compact on one core, clear and encrypted; leaves a log of each."""
    logs = {"clear": context.directory / "clear", "encrypted": context.directory / "encrypted"}
    seconds = {name: [] for name in logs}
    for _ in range(rounds):
        for name, log in logs.items():
            remove([log])
            linked(hot, log)
            to = ["--encrypt-to", public] if name == "encrypted" else []
            disturbance, started = Disturbance(), time.perf_counter()
            run("taskset", "-c", "1", context.strata, "compact", log, *to)
            wall = time.perf_counter() - started
            print(f"  compaction, {name}: {wall:.2f} s, others {disturbance.share():.1%}")
            seconds[name].append(wall)
    return logs, {name: median(kept) for name, kept in seconds.items()}


def in_turns(context, logs, rounds, *arguments):
    """Seconds of an export of each log, caches dropped before each; the same bytes."""
    found = context.directory / "found.pcap"
    seconds, contents = {name: [] for name in logs}, set()
    for _ in range(rounds):
        for name, log in logs.items():
            drop_caches()
            started = time.perf_counter()
            run("taskset", "-c", "1", context.strata, "export", log, "-F", "pcap", "-w", found,
                *arguments)
            seconds[name].append(time.perf_counter() - started)
            contents.add(found.stat().st_size)
    if len(contents) > 1:
        raise RuntimeError(f"not the same packets: {contents}")
    remove([found])
    return {name: median(kept) for name, kept in seconds.items()}


class Store:
    """An S3 server on this machine, for programs started within the block."""

    def __init__(self, directory):
        self.directory = directory / "store"
        for name in ("objects/traffic", "about"):
            (self.directory / name).mkdir(parents=True)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        os.environ.update(AWS_ENDPOINT_URL=f"http://127.0.0.1:{port}", AWS_REGION="us-east-1",
                          AWS_ACCESS_KEY_ID="somebody", AWS_SECRET_ACCESS_KEY="secret")
        self.process = subprocess.Popen(
            [SERVER, "--port", f"127.0.0.1:{port}", "--access", "somebody", "--secret", "secret",
             "--quiet", "posix", "--sidecar", self.directory / "about", self.directory / "objects"],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        until = time.monotonic() + 20
        while socket.socket().connect_ex(("127.0.0.1", port)) and time.monotonic() < until:
            time.sleep(0.05)

    def stop(self):
        self.process.kill()
        self.process.wait()


def measure(context):
    directory = context.directory
    packets = 1_000_000 if context.quick else 5_000_000
    rounds = 1 if context.quick else 3
    hot, key = directory / "hot", directory / "one.key"
    at_rest = context.example("strata-archive", "at_rest")
    run(at_rest, "record", hot, "cic-w2", packets)
    public = run(context.strata, "key", "new", key).strip()
    os.environ["STRATA_KEY"] = str(key)
    logs, compacted = compaction(context, hot, public, rounds)
    bytes_of = {name: size([log / kind for kind in ("packets", "flows", "payload", "meta")])
                for name, log in logs.items()}
    wanted = a_flow(context, logs["clear"])
    store = None
    if SERVER.exists():
        store = Store(directory)
        logs["encrypted, in a store"] = directory / "in-store"
        linked(logs["encrypted"], logs["encrypted, in a store"])
        started = time.perf_counter()
        run(context.strata, "move", logs["encrypted, in a store"], "s3://traffic/bench")
        moved = time.perf_counter() - started
    flow = in_turns(context, logs, 2 * rounds - 1, wanted)
    everything = in_turns(context, logs, rounds)
    if store:
        store.stop()
    rows = []
    for what, seconds in (("compaction, one core", compacted), ("all packets of one flow", flow),
                          ("all packets", everything)):
        rows += [[what, name, round(taken, 3), round(taken / seconds["clear"], 2)]
                 for name, taken in seconds.items()]
    more = bytes_of["encrypted"] / bytes_of["clear"] - 1
    text = (f"{packets:,} packets of cic-w2, compacted to {bytes_of['clear']:,} bytes, encrypted "
            f"{more:+.3%}. Caches dropped before each search. The store is versitygw on this machine, "
            f"with the same disk")
    text += f"; to move the log there, and read it back, took {moved:.2f} s." if store else ": not installed."
    return {
        "title": TITLE,
        "setup": text,
        "figures": {"compaction": compacted, "flow": flow, "all": everything},
        "tables": [{"title": "Seconds, in turns", "columns": ["what", "log", "seconds", "times the clear one"],
                    "rows": rows}],
        "charts": [],
    }
