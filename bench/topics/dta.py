"""Telemetry by DTA: reports into stores on one core, beside a hash map and a cuckoo table, and the
figures of the paper at our sizes."""

import json
import re
import subprocess

from harness import Disturbance, have, median

TITLE = "Telemetry: reports into stores"
# Instructions of these lines of dta_speed are counted.
COUNTED = [
    "Key-Write N=1, packed", "Key-Write N=2, packed", "Key-Increment N=1, packed",
    "Key-Increment N=2, packed", "Postcards B=5, packed", "Append 4 B",
]

# Datagrams of telemetry_receive.
UDP_KINDS = {
    "packed": "100 Key-Writes", "published": "one Key-Write, as published",
    "increment": "100 Key-Increments, N=2", "append": "100 entries of 18 B",
}


def speeds(program, mib, million, rounds):
    """Medians of million reports a second by line, their bars, and of the limit of the memory."""
    rates, bars, limits = {}, {}, []
    for _ in range(rounds):
        command = [program, str(mib), str(million)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        limits.append(float(re.search(r"fetched ahead: ([\d.]+)", done.stdout)[1]))
        for line in done.stdout.splitlines():
            if found := re.match(r"(.+?) +([\d.]+) M/s .*?(?:bar +(\d+))?(?:,|$)", line):
                rates.setdefault(found[1], []).append(float(found[2]))
                bars[found[1]] = int(found[3]) if found[3] else None
    return {name: median(values) for name, values in rates.items()}, bars, median(limits)


def instructions(program, directory):
    """Instructions a report, of the translator and the store."""
    counted = {}
    if not have("valgrind"):
        return counted
    million = 1
    for line in COUNTED:
        out = directory / "callgrind.out"
        subprocess.run(
            ["valgrind", "--tool=callgrind", "--toggle-collect=*translate*",
             f"--callgrind-out-file={out}", program, "64", str(million), line],
            capture_output=True, check=True,
        )
        total = int(re.search(r"^(?:totals|summary): (\d+)", out.read_text(), re.MULTILINE)[1])
        counted[line] = round(total / (million * 1_000_000), 1)
    return counted


def figures(program, million):
    """The points of each figure of the paper."""
    done = subprocess.run([program, str(million)], capture_output=True, text=True, check=True)
    points = {}
    for line in done.stdout.splitlines():
        point = json.loads(line)
        points.setdefault(point.pop("figure"), []).append(point)
    return points


def theory(program, runs):
    """What the long form of the theory's test says: its verdict in two lines, and rows of Figure 13."""
    done = subprocess.run([program, str(runs)], capture_output=True, text=True, check=True)
    verdicts = re.findall(r"^(?:\d+ of \d+ rates|b = 32).*$", done.stdout, re.MULTILINE)
    figure = re.findall(r"^ *([\d.]+) GiB +(\S+) keys: +([\d.]+) %, paper ([\d.]+) %$", done.stdout,
                        re.MULTILINE)
    assert len(verdicts) == 2 and figure, done.stdout
    return verdicts, [[float(gib), int(float(keys)), float(ours), float(paper)]
                      for gib, keys, ours, paper in figure]


def over_udp(program, directory, thousands, rounds):
    """Rows by kind of datagram: reports that the collector took and that a loop of recvmmsg without
    anything else took, M/s, the ratio (medians), and shares of what was sent, in percent. Both are
    fed by a sender on another core, in turns."""
    rows = []
    for kind in UDP_KINDS:
        taken = {"collector": [], "discard": []}
        shares = {mode: [] for mode in taken}
        # The first turn makes the store's memory present, and does not count.
        for turn in range(rounds + 1):
            for mode in taken:
                command = [program, directory / kind, kind, mode, str(thousands)]
                done = subprocess.run(command, capture_output=True, text=True, check=True)
                found = json.loads(done.stdout)
                if turn:
                    taken[mode].append(found["taken_per_second"] / 1e6)
                    shares[mode].append(100 * found["taken"] / found["sent"])
        ratios = [ours / theirs for ours, theirs in zip(*taken.values(), strict=True)]
        rows.append([
            UDP_KINDS[kind], *(round(median(taken[mode]), 2) for mode in taken),
            round(median(ratios), 2), *(round(median(shares[mode]), 1) for mode in taken),
        ])
    return rows


def over_veth(program, directory, thousands, rounds):
    """As over_udp, between two network namespaces, with AF_XDP beside the socket: M reports a second of the
    collector by its socket, by AF_XDP, and of the loop of recvmmsg, and the share of what was sent that AF_XDP took."""
    modes = ["veth-collector", "veth-xdp", "veth-discard"]
    rows = []
    for kind in ["published", "packed"]:
        taken, shares = {mode: [] for mode in modes}, []
        for turn in range(rounds + 1):
            for mode in modes:
                command = [program, directory / kind, kind, mode, str(thousands)]
                done = subprocess.run(command, capture_output=True, text=True, check=True)
                found = json.loads(done.stdout)
                if turn:
                    taken[mode].append(found["taken_per_second"] / 1e6)
                    if mode == "veth-xdp":
                        shares.append(100 * found["taken"] / found["sent"])
        rows.append([UDP_KINDS[kind], *(round(median(taken[mode]), 2) for mode in modes),
                     round(median(shares), 1)])
    return rows


def measure(context):
    speed = context.example("strata-dta", "dta_speed")
    figure = context.example("strata-dta", "dta_figures")
    disturbance = Disturbance()
    mib, million = (64, 1) if context.quick else (1024, 20)
    rates, bars, limit = speeds(speed, mib, million, 1 if context.quick else 5)
    busy = disturbance.share()
    grown = {}
    for size in [64, 256] if context.quick else [64, 512, 4096, 8192]:
        some, _, its_limit = speeds(speed, size, million, 1)
        grown[size] = [its_limit, *(some[name] for name in some if "packed" in name)]
    columns = [name for name in rates if "packed" in name]
    counted = instructions(speed, context.directory)
    receive = context.example("strata-telemetry-run", "telemetry_receive")
    udp = over_udp(receive, context.directory, *((100, 1) if context.quick else (2000, 5)))
    veth = over_veth(receive, context.directory, *((100, 1) if context.quick else (2000, 5)))
    points = figures(figure, 1 if context.quick else 10)
    verdicts, answered = theory(context.example("strata-dta", "dta_theory"),
                                2 if context.quick else 40)
    rows = [
        [name, round(rate, 1), bars[name] or "-", round(rate / limit, 2),
         next((n for line, n in counted.items() if name.startswith(line)), "-")]
        for name, rate in rates.items()
    ]
    loads = sorted({point["load"] for point in points[12]})
    answers = {(point["load"], point["n"]): point for point in points[12]}
    return {
        "title": TITLE,
        "setup": f"{million} million reports in memory, packed datagrams of 100 or published ones "
        f"of one; a store of {mib} MiB in huge pages; one core; others took {busy:.1%} of the "
        f"CPU. The limit, random lines fetched ahead and written, is {limit:.1f} M/s. Monte Carlo "
        f"against equations (1) to (8): {'; '.join(verdicts)}.",
        "figures": {"speeds": rates, "limit": limit, "instructions": counted, "paper": points,
                    "udp": udp, "veth": veth, "theory": verdicts, "answered": answered},
        "tables": [
            {"title": "Reports into stores",
             "columns": ["what", "M/s", "aim", "of the limit", "instructions a report"],
             "rows": rows},
            {"title": "By UDP on loopback (aim: 0.8 of the loop), the sender on another core",
             "columns": ["datagrams of", "collector, M reports/s", "loop of recvmmsg",
                         "ratio", "collector took (%)", "loop took (%)"],
             "rows": udp},
            {"title": "Between two network namespaces (veth), the sender on another core, M reports/s",
             "columns": ["datagrams of", "collector, socket", "collector, AF_XDP", "loop of recvmmsg",
                         "AF_XDP took (%)"],
             "rows": veth},
            {"title": "By size of the store, M/s", "columns": ["MiB", "limit", *columns],
             "rows": [[size, *(round(n, 1) for n in found)] for size, found in grown.items()]},
            {"title": "Keys that answer (%), by load and copies N: found, and of the formula "
             "(Figure 12)",
             "columns": ["load", *(f"N={n}" for n in range(1, 5))],
             "rows": [[load, *(f"{100 * answers[load, n]['answered']:.2f} "
                               f"({100 * answers[load, n]['formula']:.2f})"
                               for n in range(1, 5))] for load in loads]},
            {"title": "Keys that answer (%), of values of 20 B in 2 copies: by the formula, which knows "
             "the load alone, and the paper's points (Figure 13)",
             "columns": ["GiB", "keys", "formula", "paper"], "rows": answered},
            {"title": "Paths of 5 hops that are written whole (Figure 14; the paper: up to 90.5 M "
             "paths/s with a switch)",
             "columns": ["rows of the cache", "other flows", "whole (%)", "M paths/s",
                         "M postcards/s"],
             "rows": [[p["rows"], p["flows"], round(100 * p["whole"], 2), p["mpaths"],
                       p["mpostcards"]] for p in points[14]]},
            {"title": "One list: M entries of 4 B a second, written (Figure 15; the paper: over "
             "1,000 at batches of 16) and read (Figure 16)",
             "columns": ["MiB of the ring", "batch", "written", "read"],
             "rows": [[p["ring_mib"], p["batch"], p["written"], p["read"]] for p in points[15]]},
        ],
        "charts": [],
    }
