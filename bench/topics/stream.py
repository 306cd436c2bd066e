"""Streams: recall of records after loss (Figure 4 of ALT, redrawn), hostile payloads, the cost of a
record beside memcpy, appending beside fio's sequential writes, reading from the page cache, and producers at a server
(`stream:producers`: these alone)."""

import json
import os
import re
import socket
import subprocess
import time

from harness import Disturbance, have, median

TITLE = "Streams: recall, cost of a record, appending, reading"
COUNTED = ["append 64", "walk 64", "append 1024", "walk 1024"]


def recall(program, pages, hostile):
    """Points of the figure, and of hostile payloads."""
    command = [program, str(pages), str(hostile)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    points = [json.loads(line) for line in done.stdout.splitlines()]
    return [p for p in points if "hostile" not in p], [p for p in points if "hostile" in p]


def costs(program, mib, rounds):
    """Lines of stream_speed by name: ns, ns of memcpy, ratio, bar."""
    command = [program, str(mib), str(rounds)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    pattern = re.compile(r"(.+?): ([\d.]+) ns, memcpy ([\d.]+) ns, ratio ([\d.]+), bar (.+)")
    found = (pattern.match(line) for line in done.stdout.splitlines())
    return {f[1]: (float(f[2]), float(f[3]), float(f[4]), f[5]) for f in found if f}


def instructions(program, directory):
    """Instructions of an appended and of a walked record."""
    counted = {}
    if not have("valgrind"):
        return counted
    for line in COUNTED:
        out = directory / "callgrind.out"
        what = line.split()[0]
        done = subprocess.run(
            ["valgrind", "--tool=callgrind", f"--toggle-collect=stream_speed::{what}*",
             f"--callgrind-out-file={out}", program, "16", "1", line],
            capture_output=True, text=True, check=True,
        )
        total = int(re.search(r"^(?:totals|summary): (\d+)", out.read_text(), re.MULTILINE)[1])
        counted[line] = round(total / int(done.stdout.split()[0]), 1)
    return counted


def appended(context, records):
    """Bytes a second of `strata stream append --framed`, of 1 KiB records."""
    directory = context.directory / "streams"
    program = context.strata
    subprocess.run(["rm", "-rf", directory], check=True)
    subprocess.run(
        [program, "stream", "create", directory, "x", "--retain", "100GB"], check=True
    )
    source = context.directory / "records.bin"
    if not source.exists() or source.stat().st_size != records * 1028:
        source.write_bytes(((1024).to_bytes(4, "little") + bytes(range(256)) * 4) * records)
    start = time.monotonic()
    with source.open("rb") as stdin:
        subprocess.run(
            [program, "stream", "append", directory, "x", "--framed"],
            stdin=stdin, stdout=subprocess.DEVNULL, check=True,
        )
    return records * 1024 / (time.monotonic() - start)


def tailed(context, records):
    """Bytes a second of `strata stream tail` of what was appended last, from the page cache."""
    directory = context.directory / "streams"
    command = [context.strata, "stream", "tail", directory, "x", "--cursor", "0.0", "--raw"]
    spent = []
    # Blocks are written past the page cache, so the first time they are read from the disk.
    for _ in range(4):
        start = time.monotonic()
        subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
        spent.append(time.monotonic() - start)
    return records * 1024 / median(spent[1:])


def lines_of(producer, count):
    """Lines of 100 bytes with the number of their producer and their own."""
    return b"".join(b"%03d %08d " % (producer, number) + b"x" * 86 + b"\n" for number in range(count))


def unlike(read, producers, lines):
    """Records that are not what the producers sent: lost, duplicated or out of order."""
    expected, wrong = [0] * producers, 0
    for line in read:
        producer, number = int(line[:3]), int(line[4:12])
        wrong += abs(number - expected[producer]) + (len(line) != 100)
        expected[producer] = number + 1
    return wrong + sum(lines - number for number in expected)


def produced(context, producers, lines):
    """Records a second of 100 bytes that producers append to one stream of a server, each a process of its own, until
    the server has confirmed them all; the CPU time of the server, and of all producers, per record, in ns. Fails unless
    the stream has each record once, in its producer's order."""
    directory = context.directory / "produced"
    program = context.strata
    subprocess.run(["rm", "-rf", directory], check=True)
    subprocess.run([program, "stream", "create", directory, "x", "--retain", "100GB"], check=True)
    sources = [context.directory / f"lines-{number}.txt" for number in range(producers)]
    for number, source in enumerate(sources):
        source.write_bytes(lines_of(number, lines))
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    server = subprocess.Popen(
        [program, "stream", "serve", directory, "--listen", address],
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
    )
    try:
        server.stderr.readline()
        start = time.monotonic()
        started = []
        for number, source in enumerate(sources):
            with source.open("rb") as stdin:
                started.append(subprocess.Popen(
                    [program, "stream", "append", f"{address}/x", "--name", f"p{number}"],
                    stdin=stdin, stdout=subprocess.DEVNULL,
                ))
        used = [cpu(producer) for producer in started]
        spent = time.monotonic() - start
    finally:
        server.terminate()
        of_server = cpu(server)
    command = [program, "stream", "tail", directory, "x", "--cursor", "0.0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as tail:
        wrong = unlike(tail.stdout, producers, lines)
    for source in sources:
        source.unlink()
    if tail.returncode != 0 or wrong > 0:
        raise SystemExit(f"{producers} producers: {wrong} records lost, duplicated or out of order")
    records = producers * lines
    return {"producers": producers, "records": records, "a_second": records / spent,
            "server_ns": of_server * 1e9 / records, "producer_ns": sum(used) * 1e9 / records}


def cpu(process):
    """Waits for a process; its CPU time in s."""
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        raise SystemExit(f"{process.args[2]} has failed")
    return usage.ru_utime + usage.ru_stime


def many(context):
    """Records from 1, 10 and 100 producers, and their table."""
    records = 200_000 if context.quick else 5_000_000
    found = [produced(context, producers, records // producers) for producers in (1, 10, 100)]
    table = {
        "title": f"Producers at a server on this machine, {records:,} lines of 100 bytes in all, until confirmed; each "
        "was found once, in its producer's order",
        "columns": ["producers", "records a second", "CPU of the server, ns a record", "of the producers"],
        "rows": [[p["producers"], f"{p['a_second']:,.0f}", round(p["server_ns"]), round(p["producer_ns"])]
                 for p in found],
    }
    return found, table


def written(context, size):
    """Bytes a second of fio: the same O_DIRECT, depth and block size, and a sync at the end."""
    name = context.directory / "fio.bin"
    done = subprocess.run(
        ["fio", "--name=w", f"--filename={name}", "--rw=write", "--bs=256k", "--iodepth=4",
         "--ioengine=io_uring", "--direct=1", f"--size={size}", "--end_fsync=1",
         "--output-format=json"],
        capture_output=True, text=True, check=True,
    )
    name.unlink()
    return json.loads(done.stdout)["jobs"][0]["write"]["bw_bytes"]


def producers(context):
    """The part `stream:producers`."""
    disturbance = Disturbance()
    found, table = many(context)
    return {
        "title": "Streams: many producers at one server",
        "setup": "Server and producers are processes of this machine, over loopback without TLS; others took "
        f"{disturbance.share():.1%} of the CPU.",
        "figures": {"produced": found},
        "tables": [table],
    }


def measure(context):
    if context.part == "producers":
        return producers(context)
    speed = context.example("strata-stream", "stream_speed")
    figure = context.example("strata-stream", "stream_recall")
    disturbance = Disturbance()
    points, hostile = recall(figure, *((4, 2) if context.quick else (60, 250)))
    cost = costs(speed, *((64, 3) if context.quick else (256, 9)))
    counted = instructions(speed, context.directory)
    records = 100_000 if context.quick else 1_000_000
    ours, fio, read = [], [], []
    for _ in range(1 if context.quick else 5):
        ours.append(appended(context, records))
        read.append(tailed(context, records))
        if have("fio"):
            fio.append(written(context, records * 1024))
    found, of_producers = many(context)
    busy = disturbance.share()
    ways = ["none", "redundancy", "alignment", "both", "ours"]
    places = sorted({(p["min"], p["max"], p["burst"], p["loss"]) for p in points})
    at = {(p["min"], p["max"], p["burst"], p["loss"], p["way"]): p for p in points}
    theory = {place: at[(*place, "none")]["theory"] for place in places}
    rates = [["strata stream append, 1 KiB", round(median(ours) / 1e6)],
             ["strata stream tail, 1 KiB, from the page cache", round(median(read) / 1e6)]]
    if fio:
        rates.insert(1, ["fio, 256 KiB, O_DIRECT, depth 4", round(median(fio) / 1e6)])
    return {
        "title": TITLE,
        "setup": f"Pages of 4 MiB, R=3, blocks of 256 KiB; bursts are of 4 records on average; "
        f"speeds in memory on one core; others took {busy:.1%} of the CPU.",
        "figures": {"recall": points, "hostile": hostile, "cost": cost,
                    "instructions": counted, "append": ours, "fio": fio, "tail": read, "produced": found},
        "tables": [
            {"title": "Recall: retrieved of arrived (Figure 4; theory: (1-e^-l)/l of none)",
             "columns": ["bytes", "loss (%)", "bursts", *ways, "theory"],
             "rows": [[f"{p[0]}-{p[1]}", 100 * p[3], "yes" if p[2] else "no",
                       *(f"{at[(*p, way)]['recall']:.4f}" for way in ways),
                       f"{theory[p]:.4f}"] for p in places]},
            {"title": "Payloads that hold heads",
             "columns": ["records", "places searched or passed", "of them written", "invented"],
             "rows": [[p["way"], p["places"], p["records"], p["invented"]] for p in hostile]},
            {"title": "A record in memory",
             "columns": ["what", "ns", "memcpy, ns", "ratio", "bar", "instructions"],
             "rows": [[name, *values, counted.get(name.removesuffix(" B"), "-")]
                      for name, values in cost.items()]},
            {"title": "Appending to a disk and reading, MB/s", "columns": ["what", "MB/s"], "rows": rates},
            of_producers,
        ],
        "charts": [
            {
                "name": "stream-recall",
                "title": "Recall of records of 1 to 1.5 KiB after loss (Figure 4 of ALT)",
                "unit": "retrieved of arrived",
                "bars": [[f"{'strata' if way == 'ours' else 'ALT, ' + way}, {100 * p[3]:g} % lost",
                          round(at[(*p, way)]["recall"], 4)]
                         for p in places if p[0] != p[1] and not p[2] for way in ways],
            },
        ],
    }
