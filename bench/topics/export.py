"""Exported headers: packets in a datagram and bytes of a packet, beside the Trident paper's
algorithm, the entropy of the fields, gzip and zstd; how fast, and instructions."""

import json
import re
import subprocess

from harness import Disturbance, have, median

TITLE = "Compression of exported headers"
# Packets in a datagram of 1,500 bytes; times the paper's algorithm; ns a packet.
BARS = {"w3": 45, "w3 in trains of 3": 60}
PAPER_BAR, COMPRESS_BAR_NS, DECOMPRESS_BAR_NS = 1.3, 15, 20
PAPER_RATIO = 45
COUNTED = 100_000


def instructions(program, directory, function, *more):
    """Instructions per packet."""
    if not have("valgrind"):
        return "no valgrind"
    out = directory / "callgrind.out"
    command = [
        "valgrind", "--tool=callgrind", f"--toggle-collect=*{function}*",
        f"--callgrind-out-file={out}", program, "--count", *more,
    ]
    subprocess.run(command, capture_output=True, check=True)
    total = re.search(r"^(?:totals|summary): (\d+)", out.read_text(), re.MULTILINE)[1]
    return round(int(total) / COUNTED, 1)


def compressors(program, directory):
    """Bytes per packet of general compressors, over all headers at once and with all history."""
    raw = directory / "headers.raw"
    subprocess.run([program, "--raw", raw], check=True)
    rows = []
    for name, command in {"gzip -6": ["gzip", "-6"], "zstd -3": ["zstd", "-3", "-q"],
                          "zstd -19": ["zstd", "-19", "-q"]}.items():
        if have(command[0]):
            with raw.open("rb") as source:
                done = subprocess.run([*command, "-c"], stdin=source, capture_output=True, check=True)
            rows.append([name, round(len(done.stdout) / 1_000_000, 2)])
    return rows


def measure(context):
    program = context.example("strata-exporter", "export_speed")
    disturbance = Disturbance()
    rounds = []
    for _ in range(1 if context.quick else 3):
        command = [program, "100000" if context.quick else "1000000"]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        rounds.append([json.loads(line) for line in done.stdout.splitlines()])
    busy = disturbance.share()
    figures, rows, speeds, entropies = {}, [], [], []
    for lines in zip(*rounds):
        line, name = lines[0], lines[0]["traffic"]
        ns = {what: round(median([one[what] for one in lines]), 1)
              for what in ("compress_ns", "decompress_ns")}
        figures[name] = {**line, **ns}
        ours, paper = line["per_datagram"], line["paper_per_datagram"]
        rows.append([name, line["raw_bytes"], line["bytes"], line["entropy_bytes"], ours,
                     BARS.get(name, "-"), paper, round(ours / paper, 2), PAPER_BAR])
        speeds.append([name, ns["compress_ns"], COMPRESS_BAR_NS, ns["decompress_ns"],
                       DECOMPRESS_BAR_NS])
        entropies.append([name, *line["entropy_bits"].values()])
    counted = {what: [instructions(program, context.directory, function, *more)
                      for more in ((), ("trains",))]
               for what, function in (("compress", "write_headers"), ("decompress", "read_headers"))}
    figures["instructions"] = counted
    general = compressors(program, context.directory)
    names = list(rounds[0][0]["entropy_bits"])
    return {
        "title": TITLE,
        "setup": f"{int(rounds[0][0]['packets']):,} headers of `strata generate --profile cic-w3` and "
                 "core-2015, into UDP datagrams of 1,472 bytes; the paper's algorithm with 48 bytes of "
                 f"metadata in each; it states {PAPER_RATIO}:1 on its own traces. "
                 f"{counted['compress'][0]} instructions per packet compress w3 and "
                 f"{counted['decompress'][0]} decompress it, in trains {counted['compress'][1]} and "
                 f"{counted['decompress'][1]}. Others took {100 * busy:.0f} % of the machine "
                 "meanwhile.",
        "figures": figures,
        "tables": [
            {"title": "Packets in a datagram",
             "columns": ["headers", "bytes", "compressed", "entropy of fields", "packets in a datagram",
                         "bar", "by the paper's algorithm", "times it", "bar"],
             "rows": rows},
            {"title": "ns per packet",
             "columns": ["headers", "compress", "bar", "decompress", "bar"], "rows": speeds},
            {"title": "Bytes per packet of w3 by general compressors, not in datagrams",
             "columns": ["compressor", "bytes"], "rows": general},
            {"title": "Entropy of fields, bits per packet", "columns": ["headers", *names],
             "rows": entropies},
        ],
        "charts": [],
    }
