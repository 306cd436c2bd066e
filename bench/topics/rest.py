"""The log at rest: its size, and the speed of compaction, searches and aggregates."""

import json
import os
import shutil
import subprocess
import time
from pathlib import Path

from harness import CORES, DISTURBED, Disturbance, have, in_turns, median, remove, size

TITLE = "The log at rest"
ROOT = Path(__file__).resolve().parents[2]
DATA = Path(os.environ.get("STRATA_DATA", ROOT.parent / "shared" / "data"))
PYTHON = ROOT / "python" / ".venv" / "bin" / "python"
# One thread; the file system's cache warm, as for a second query.
AGGREGATES = """
import sys, time, duckdb
db = duckdb.connect()
db.execute("SET threads = 1")
for sql in ("SELECT class, count(*), sum(wire_bytes) FROM '%s' GROUP BY 1",
            "SELECT dst_port, count(*), sum(wire_bytes) FROM '%s' GROUP BY 1"):
    sql = sql % (sys.argv[1] + "/packets/**/*.parquet")
    best = None
    for _ in range(4):
        started = time.perf_counter()
        db.sql(sql).fetchall()
        seconds = time.perf_counter() - started
        best = seconds if best is None else min(best, seconds)
    print(best)
"""


def run(*command):
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(map(str, command))}: {done.stderr.strip()[-400:]}")
    return done.stdout


def drop_caches():
    os.sync()
    Path("/proc/sys/vm/drop_caches").write_text("3")


def linked(log, copy):
    """A copy of a log with hard links: compaction deletes files, but never changes them."""
    shutil.copytree(log, copy, copy_function=os.link)
    for name in ("manifest.json", "archive.json", "lock", "compaction", "readers"):
        if (copy / name).exists():
            (copy / name).unlink()
            shutil.copy2(log / name, copy / name)
    return copy


def weight(context, at_rest, captured, cold):
    """The size of the log, and of each column."""
    report = json.loads(run(at_rest, "weigh", cold))
    packets = report["packets"]
    rows = [["cic-w2, true labels as classes", packets, report["bytes"],
             f"{report['bytes'] / captured:.2%}", round(report["bytes"] / packets, 2)]]
    trace = DATA / "labelled" / "mix-test" / "trace.pcap"
    if trace.exists():
        log = context.directory / "mix"
        run(context.strata, "record", "-r", trace, "-o", log, "--detail", "none")
        run(context.strata, "compact", log)
        mix = json.loads(run(at_rest, "weigh", log))
        beside = mix["bytes"] - mix["files"].get("payload", 0)
        rows.append(["mix-test, default model", mix["packets"], mix["bytes"],
                     f"{mix['bytes'] / trace.stat().st_size:.2%}", round(mix["bytes"] / mix["packets"], 2)])
        rows.append(["mix-test, without payload", mix["packets"], beside,
                     f"{beside / trace.stat().st_size:.2%}", round(beside / mix["packets"], 2)])
    columns = [
        [table, name, taken, round(taken / packets, 3)]
        for table, entries in report["columns"].items()
        for name, taken in sorted(entries, key=lambda entry: -entry[1])
        if taken / packets >= 0.005
    ]
    return rows, columns, report


def compaction(context, hot, packets, rounds):
    """Million packets a second on one core, and on all, in turns."""
    log = context.directory / "again"
    ways = {"one core": ["taskset", "-c", "1"], "all cores": []}
    seconds = {way: [] for way in ways}
    for _ in range(rounds):
        for way, cores in ways.items():
            remove([log])
            linked(hot, log)
            disturbance, started = Disturbance(), time.perf_counter()
            run(*cores, context.strata, "compact", log)
            wall = time.perf_counter() - started
            print(f"  compaction, {way}: {wall:.2f} s, others {disturbance.share():.1%}")
            seconds[way].append(wall)
    return [packets / median(seconds[way]) / 1e6 for way in ways]


def beside(context, hot, rounds):
    """Seconds of a recording on one core, alone and while the other one compacts."""
    trace = context.generate("w2.pcap", "cic-w2", 500_000 if context.quick else 1_500_000)
    log, other = context.directory / "recorded", context.directory / "again"
    record = ["taskset", "-c", "0", context.strata, "record", "-r", trace, "-o", log,
              "--detail", "none"]
    times = {"alone": [], "beside": []}
    for _ in range(rounds):
        for name, kept in times.items():
            remove([log, other])
            linked(hot, other)
            os.sync()
            busy = None
            if name == "beside":
                busy = subprocess.Popen(["taskset", "-c", "1", context.strata, "compact", other],
                                        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
                time.sleep(0.3)
            started = time.perf_counter()
            run(*record)
            kept.append(time.perf_counter() - started)
            if busy:
                still = busy.poll() is None
                busy.terminate()
                busy.wait()
                if not still:
                    kept.pop()
    remove([log, other, trace])
    return {name: median(kept) for name, kept in times.items() if kept}


def a_flow(context, cold):
    """A TCP flow from the middle of the log, as a filter."""
    rows = subprocess.Popen([context.strata, "export", cold, "-F", "json", "-w", "-"],
                            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    best = None
    for number, line in enumerate(rows.stdout):
        flow = json.loads(line)
        packets = flow["packets"] + flow["reverse_packets"]
        if flow.get("protocol") == 6 and 100 <= packets <= 5_000 and ":" not in flow["src"]:
            best = flow
        if number > 200_000 and best:
            break
    rows.kill()
    rows.wait()
    return (f"tcp and host {best['src']} and host {best['dst']} and port {best['src_port']} "
            f"and port {best['dst_port']}")


def finding(context, hot, cold, packets, rounds):
    """Seconds to all packets of one flow, caches dropped before each run."""
    headers, found = context.directory / "headers.pcap", context.directory / "found.pcap"
    run(context.strata, "export", hot, "-F", "pcap", "-w", headers)
    wanted = a_flow(context, cold)
    export = lambda log: [context.strata, "export", log, "-F", "pcap", "-w", found, wanted]
    programs = {
        "strata, compacted": export(cold),
        "strata, block files": export(hot),
        "tcpdump -r of the headers": ["tcpdump", "-r", headers, "-w", found, wanted],
    }
    times, sizes = {name: [] for name in programs}, set()
    for _ in range(rounds):
        for name, command in programs.items():
            drop_caches()
            started = time.perf_counter()
            run(*command)
            times[name].append(time.perf_counter() - started)
            counted = run("capinfos", "-cM", found) if have("capinfos") else ""
            sizes.add(counted.strip().split("\n")[-1])
    if len(sizes) > 1:
        raise RuntimeError(f"not the same packets: {sizes}")
    remove([headers, found])
    peer = median(times["tcpdump -r of the headers"])
    return wanted, sizes, [
        [name, round(median(kept), 3), round(peer / median(kept), 1)] for name, kept in times.items()
    ]


def exporting(context, hot, cold, packets):
    """Microseconds a packet of an export of all packets, the file system's cache warm, on one core."""
    headers, out = context.directory / "headers.pcap", context.directory / "out"
    run(context.strata, "export", hot, "-F", "pcap", "-w", headers)
    export = lambda log: ["taskset", "-c", "1", context.strata, "export", log, "-F", "pcapng", "-w", out]
    programs = {
        "strata, block files": (export(hot), [out]),
        "strata, compacted": (export(cold), [out]),
        "tcpdump -r -w of the headers, without classes": (
            ["taskset", "-c", "1", "tcpdump", "-r", headers, "-w", out], [out]),
    }
    seconds, _ = in_turns(programs, 3)
    remove([headers, out])
    return [[name, round(median(kept) / packets * 1e6, 3)] for name, kept in seconds.items()]


def aggregates(context, hot, cold, packets):
    """Million rows a second and core, by DuckDB and by strata-sql where that is built."""
    rows = []
    if PYTHON.exists():
        seconds = [float(text) for text in run(PYTHON, "-c", AGGREGATES, cold).split()]
        rows += [
            [f"DuckDB, by {what}", round(packets / taken / 1e6, 1)]
            for what, taken in zip(("class", "dst_port"), seconds)
        ]
    program = context.strata.parent / "strata-sql"
    if program.exists():
        sql = "SELECT %s, count(*), sum(wire_bytes) FROM packets GROUP BY 1"
        ask = lambda log, what: ["taskset", "-c", "1", program, log, sql % what, "--format", "csv"]
        programs = {
            f"strata-sql, {tier}, by {what}": (ask(log, what), [])
            for tier, log in (("compacted", cold), ("block files", hot))
            for what in ("class", "dst_port")
        }
        seconds, _ = in_turns(programs, 3)
        rows += [[name, round(packets / median(kept) / 1e6, 1)] for name, kept in seconds.items()]
    return rows


def measure(context):
    directory = context.directory
    packets = 2_000_000 if context.quick else 20_000_000
    rounds = 1 if context.quick else 3
    at_rest = context.example("strata-archive", "at_rest")
    hot, cold = directory / "hot", directory / "cold"
    captured = json.loads(run(at_rest, "record", hot, "cic-w2", packets))["captured_bytes"]
    rate, rate_of_all = compaction(context, hot, packets, rounds)
    (directory / "again").rename(cold)
    rows, columns, report = weight(context, at_rest, captured, cold)
    verified = run(context.strata, "verify", cold).strip()
    slowed = beside(context, hot, 1 + 2 * rounds)
    wanted, found, times = finding(context, hot, cold, packets, rounds)
    exported = exporting(context, hot, cold, packets)
    asked = aggregates(context, hot, cold, packets)
    return {
        "title": TITLE,
        "setup": f"{packets:,} packets of cic-w2, {captured:,} bytes captured, attacks kept whole and "
        f"the rest as headers, by their true labels: {size([hot / 'blocks']):,} bytes of block "
        f"files. Compaction on one core: {rate:.2f} million packets a second, on all {CORES}: "
        f"{rate_of_all:.2f}. Recording alongside "
        f"it on the other core takes {slowed['beside'] / slowed['alone'] - 1:+.1%} time "
        f"(medians {slowed['alone']:.2f} and {slowed['beside']:.2f} s). Searches with caches dropped, "
        f"for `{wanted}`. {verified}",
        "figures": {"compaction_mpps": round(rate, 2), "compaction_mpps_all_cores": round(rate_of_all, 2),
                    "recording_seconds": slowed, "weight": report},
        "tables": [
            {"title": "Size", "columns": ["log", "packets", "bytes", "of the captured", "per packet"], "rows": rows},
            {"title": "All packets of one flow", "columns": ["program", "seconds", "times as fast as tcpdump"], "rows": times},
            {"title": "Export of all packets as pcapng, one core", "columns": ["program", "us per packet"], "rows": exported},
            {"title": "Aggregates over all packets, one core", "columns": ["engine", "million rows per second"], "rows": asked},
            {"title": "Columns of cic-w2 from 0.005 bytes per packet on", "columns": ["table", "column", "bytes", "per packet"], "rows": columns},
        ],
        "charts": [],
    }
