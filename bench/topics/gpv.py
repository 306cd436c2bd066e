"""Grouped packet vectors: what the cache makes of a core link's packets, beside the figures of the
*Flow paper; how fast cache, agent, applications and queries are, beside a hash map of packets,
nfdump and tshark; and, as `gpv:flows`, how well a classifier tells flows apart (Figure 9)."""

import json
import os
import re
import subprocess
from pathlib import Path

from harness import Disturbance, have, median, timed

ROOT = Path(__file__).resolve().parents[2]
FEATURES = ("NetFlow", "Marple", "*Flow")
TITLE = "Grouped packet vectors"
# Table 3, one core, and the framework of section 7.3: millions of vectors a second.
PAPER = {
    "agent, 32-bit tuples": 0.60,
    "profiler": 1.51,
    "classifier": 1.18,
    "debugger, all flagged": 0.16,
    "all six at once": 0.045,
}
# What we want to reach: millions of vectors a second, and ns a packet beyond parsing.
BARS = {
    "agent, 32-bit tuples": 8,
    "profiler": 20,
    "classifier": 15,
    "debugger, all flagged": 3,
    "all six at once": 1,
}
QUERY_BAR, CACHE_BAR_NS = 3, 20
# Sections 7 and 7.1, as stated in words.
PAPER_RATIOS = "under 18 % at 1 MB; 7.1 to 25 % with dynamic buffers, up to 32 MB"


def speeds(program, rounds):
    """Medians by name of (M vectors/s, M tuples/s) or ns per packet, and lines that say how."""
    figures, said = {}, []
    for _ in range(rounds):
        done = subprocess.run([program], capture_output=True, text=True, check=True)
        said = done.stdout.splitlines()
        for line in said:
            if found := re.match(r"(.+?) +([\d.]+) M vectors/s, +([\d.]+) M tuples/s", line):
                figures.setdefault(found[1], []).append((float(found[2]), float(found[3])))
            elif found := re.match(r"(.+?) +([\d.]+) ns/packet", line):
                figures.setdefault(found[1], []).append((float(found[2]),))
    medians = {name: [median(v) for v in zip(*all_)] for name, all_ in figures.items()}
    return medians, said


def instructions(program, directory):
    """Instructions of the cache per packet."""
    if not have("valgrind"):
        return "no valgrind"
    out = directory / "callgrind.out"
    command = [
        "valgrind", "--tool=callgrind", "--toggle-collect=*per_packet_cache*",
        f"--callgrind-out-file={out}", program, "--count",
    ]
    subprocess.run(command, capture_output=True, check=True)
    total = re.search(r"^(?:totals|summary): (\d+)", out.read_text(), re.MULTILINE)[1]
    # Without its symbols the function is not found: nothing is counted then.
    return round(int(total) / 1_000_000, 1) or "no symbols in the example"


def curves(program, packets, seeds):
    """Rows of vectors per packet in percent, medians over seeds."""
    ratios = {}
    for seed in seeds:
        command = [program, str(packets), str(seed)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        for line in done.stdout.splitlines()[1:]:
            point = json.loads(line)
            key = (point["figure"], point["memory"], point["length"])
            column = (point["buffers"], point["ways"])
            ratios.setdefault(key, {}).setdefault(column, []).append(100 * point["ratio"])
    columns = [(b, w) for b in ("Fixed", "Shorter", "Dynamic") for w in (1, 8)]
    rows = {"memory": [], "length": []}
    for (figure, memory, length), values in ratios.items():
        first = f"{memory / 2**20:g} MiB" if figure == "memory" else str(length)
        cells = [round(median(values[c]), 1) if c in values else "-" for c in columns]
        rows[figure].append([first, *cells])
    names = ["static", "static, tuned length", "dynamic"]
    titles = [f"{name}, {way}" for name in names for way in ("collision", "8-way LRU")]
    return rows, titles


def peers(context):
    """Seconds per million packets of tools that count packets and bytes of each flow."""
    packets = 200_000 if context.quick else 2_000_000
    trace = context.generate("core.pcap", "core-2015", packets, "-s", "96")
    query = "def sums([n, b], [pkt_len]): n = n + 1; b = b + pkt_len\n" \
        "r = groupby(T, [srcip, dstip, srcport, dstport, proto], sums);"
    folder = context.directory / "nfcapd"
    commands = {
        "strata ask": ([context.strata, "ask", "-r", trace, query, "--groups-max", "1000000",
                        "--memory-max", "1GiB", "-F", "csv", "-w",
                        context.directory / "ask.csv"], [context.directory / "ask.csv"]),
        "nfpcapd": (["nfpcapd", "-r", trace, "-w", folder], []),
        "tshark": (["tshark", "-q", "-r", trace, "-z", "conv,tcp", "-z", "conv,udp"], []),
    }
    rows = []
    for name, (command, outputs) in commands.items():
        if name != "strata ask" and not have(name):
            continue
        folder.mkdir(exist_ok=True)
        try:
            runs = [timed(command, outputs) for _ in range(1 if context.quick else 3)]
        except RuntimeError as error:
            print(f"  skipped: {name}: {error}")
            continue
        seconds = median([wall for wall, _ in runs])
        rows.append([name, round(seconds, 2), round(1e9 * seconds / packets, 1)])
    return rows, packets


def bar(name):
    """What a row of vectors per second has to reach."""
    if name in BARS:
        return BARS[name]
    return "-" if name.startswith("agent") else QUERY_BAR


def flows(context):
    """F1 of classifiers of flows by the features that they see."""
    data = Path(os.environ.get("STRATA_DATA", ROOT / "../shared/data")) / "labelled"
    strata, sets = context.strata, {}
    for folder in sorted(path.parent for path in data.glob("*/labels.csv")):
        trace = next(folder.glob("trace.*"))
        sets[folder.name] = context.directory / f"{folder.name}.csv"
        command = [strata, "gpv", "features", "-r", trace, "--labels", folder / "labels.csv"]
        run(*command, "-o", sets[folder.name])
    train, test = sets.pop("mix-train"), sets.pop("mix-test")
    seeds = [1] if context.quick else [1, 2, 3]
    rows = []
    for title, options in [
        ("sources of the training mix", [train, "--class-column", "source"]),
        ("sources of the other captures", [*sets.values(), "--class-column", "source"]),
        ("attacks of the training mix", [train]),
        ("attacks of the other captures", sets.values()),
        ("attacks of the test mix, trained on the training mix", [train, "--test", test]),
    ]:
        judged = [
            json.loads(run(strata, "gpv", "train", "--json", "--seed", seed, *options))
            for seed in seeds
        ]
        means = {
            what: [round(median([one[what][of] for one in judged]), 3) for of in FEATURES]
            for what in ("mean_f1", "mean_recall")
        }
        classes = judged[0]["classes"]
        rows.append([title, len(classes), sum(classes.values()), *means["mean_f1"],
                     *means["mean_recall"]])
    titles = [f"{what}, {of}" for what in ("F1", "recall") for of in FEATURES]
    return {
        "title": "A classifier of flows (Figure 9 of the *Flow paper)",
        "setup": f"Flows of {len(sets) + 2} labelled captures, one direction each, by `strata gpv "
        "features` and `strata gpv train`: eight trees over what NetFlow records have (duration, "
        "bytes, packets), what a compiled Marple query adds (mean and largest size), and what "
        "vectors have (sizes of the first 8 packets, mean and deviation of sizes and delays). Mean "
        f"over classes of at least 20 flows, median of {len(seeds)} seeds; five folds where no other "
        "captures are named, so flows of one host may be on both sides.",
        "figures": {"rows": rows},
        "tables": [{"title": "Mean over classes", "columns": ["told apart", "classes", "flows", *titles],
                    "rows": rows}],
        "charts": [],
    }


def run(*command):
    """What a command prints."""
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(map(str, command))}: {done.stderr.strip()[-400:]}")
    return done.stdout


def measure(context):
    if context.part == "flows":
        return flows(context)
    os.environ.pop("SEED", None)
    speed = context.example("strata-gpv", "gpv_speed")
    disturbance = Disturbance()
    figures, said = speeds(speed, 1 if context.quick else 3)
    counted = instructions(speed, context.directory)
    busy = disturbance.share()
    curve = context.example("strata-gpv", "gpv_curves")
    seeds = [1] if context.quick else [1, 2, 3]
    rows, columns = curves(curve, 1_000_000 if context.quick else 4_000_000, seeds)
    per_packet = [
        [n, v[0], CACHE_BAR_NS if n.startswith("cache") else "-"]
        for n, v in figures.items() if len(v) == 1
    ]
    per_vector = [
        [n, round(v[0], 2), round(v[1], 1), bar(n), PAPER.get(n, "-")]
        for n, v in figures.items() if len(v) == 2
    ]
    per_flow, flow_packets = peers(context)
    means = "; ".join(re.sub(" +", " ", line) for line in said if "tuples each" in line)
    return {
        "title": TITLE,
        "setup": f"{said[0]} of `core-2015`, one core, 16,384 slots of 4 tuples and 4,096 wide "
        f"buffers of 24; {means}. Instructions of the cache per packet (callgrind, 32-bit "
        f"tuples): {counted}. Others took {100 * busy:.0f} % of the machine meanwhile. The paper's "
        f"ratios: {PAPER_RATIOS}. Its speeds are of a Xeon E5-2683 v4.",
        "figures": {"speeds": figures, "instructions": counted},
        "tables": [
            {"title": "Beyond parsing", "columns": ["what", "ns per packet", "bar: at most"],
             "rows": per_packet},
            {"title": "Per core", "columns": ["what", "M vectors/s", "M tuples/s", "bar: at least",
                                              "*Flow paper"],
             "rows": per_vector},
            {"title": f"Packets and bytes of each flow of {flow_packets:,} packets, from a file",
             "columns": ["program", "seconds", "ns per packet"], "rows": per_flow},
            {"title": "Vectors per packet (%) by memory, vectors of 28 tuples (Figure 7)",
             "columns": ["memory", *columns], "rows": rows["memory"]},
            {"title": "Vectors per packet (%) by length of vectors, 1 MiB (Figure 8)",
             "columns": ["tuples", *columns], "rows": rows["length"]},
        ],
        "charts": [],
    }
