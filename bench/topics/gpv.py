"""Grouped packet vectors: how fast cache, agent, applications and queries are, beside a hash map of
packets, nfdump and tshark; as `gpv:flows`, how well a classifier tells flows apart (Figure 9); and, as
`gpv:paper`, Figures 6 to 9 and Table 3 of the *Flow paper beside ours. `gpv` and `gpv:paper` take
less than ten minutes each."""

import itertools
import json
import os
import re
import subprocess
from pathlib import Path

from harness import Disturbance, have, median, timed

ROOT = Path(__file__).resolve().parents[2]
FEATURES = ("NetFlow", "Marple", "*Flow")
TITLE = "Grouped packet vectors"
# Table 3: millions of vectors a second, by the number of cores of a Xeon E5-2683 v4.
TABLE_3 = {
    "agent, 32-bit tuples": {1: 0.60, 2: 1.12, 4: 1.85, 8: 3.07, 16: 3.95},
    "profiler": {1: 1.51, 2: 3.02, 4: 5.12, 8: 8.64, 16: 10.06},
    "classifier": {1: 1.18, 2: 2.27, 4: 4.62, 8: 7.98, 16: 11.43},
    "debugger, all flagged": {1: 0.16, 2: 0.29, 4: 0.55, 8: 1.06, 16: 1.37},
}
# The framework of section 7.3, at most.
QUERIES = {"all six at once": 0.045}
PAPER = {**{what: cores[1] for what, cores in TABLE_3.items()}, **QUERIES}
# What we want to reach: millions of vectors a second, and ns a packet beyond parsing.
BARS = {
    "agent, 32-bit tuples": 8,
    "profiler": 20,
    "classifier": 15,
    "debugger, all flagged": 3,
    "all six at once": 1,
}
QUERY_BAR, CACHE_BAR_NS = 3, 20
# What sections 7.1 and 7.2 state in words; the figures themselves have no numbers. Percent, ms.
STATED = {
    "vectors per packet (%), buffers of 4 and 24 packets (Figure 6)": ("7.1", "under 18"),
    "mean time of a vector in the cache (ms)": ("7.1", 640),
    "vectors that are in the cache for over 1 s (%)": ("7.1", 14),
    "vectors that are in the cache for over 5 s (%)": ("7.1", 1.3),
    "most vectors per packet (%) with dynamic buffers (Figure 7)": ("7.1", 25),
    "fewest vectors per packet (%) with dynamic buffers (Figure 7)": ("7.1", 7.1),
    "packets of a record of the agent": ("7.2", 33),
}
# A tool that takes longer is left out.
SECONDS_MAX = 400


def figures_of(said):
    """By name (M vectors/s, M tuples/s) or ns per packet, of the lines of `gpv_speed`."""
    figures = {}
    for line in said:
        if found := re.match(r"(.+?) +([\d.]+) M vectors/s, +([\d.]+) M tuples/s", line):
            figures[found[1]] = (float(found[2]), float(found[3]))
        elif found := re.match(r"(.+?) +([\d.]+) ns/packet", line):
            figures[found[1]] = (float(found[2]),)
    return figures


def speeds(program, rounds):
    """Medians by name of (M vectors/s, M tuples/s) or ns per packet, and lines that say how."""
    figures, said = {}, []
    for _ in range(rounds):
        said = run(program).splitlines()
        for name, values in figures_of(said).items():
            figures.setdefault(name, []).append(values)
    medians = {name: [median(v) for v in zip(*all_)] for name, all_ in figures.items()}
    return medians, said


def together(program, instances):
    """Sums of M vectors/s by name of instances that run at the same time, each with its own vectors,
    as section 7.2 measures several cores."""
    running = [
        subprocess.Popen([program], stdout=subprocess.PIPE, text=True) for _ in range(instances)
    ]
    sums = {}
    for process in running:
        said, _ = process.communicate(timeout=SECONDS_MAX)
        if process.returncode:
            raise RuntimeError(f"{program}: exit status {process.returncode}")
        for name, values in figures_of(said.splitlines()).items():
            sums[name] = sums.get(name, 0) + values[0]
    return sums


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
    """Rows of vectors per packet in percent, medians over seeds; and what the first seed's packets
    are a second."""
    ratios, rates = {}, {}
    for seed in seeds:
        said = run(program, packets, seed)
        for line in said.splitlines()[1:]:
            point = json.loads(line)
            if point["figure"] == "rates":
                rates = rates or point
                continue
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
    return rows, titles, rates


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
            # tshark takes more than a minute.
            rounds = 1 if context.quick or name == "tshark" else 3
            runs = [timed(command, outputs) for _ in range(rounds)]
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


def flows(context, seeds):
    """F1 of classifiers of flows by the features that they see."""
    data = Path(os.environ.get("STRATA_DATA", ROOT / "../shared/data")) / "labelled"
    strata, sets = context.strata, {}
    for folder in sorted(path.parent for path in data.glob("*/labels.csv")):
        trace = next(folder.glob("trace.*"))
        sets[folder.name] = context.directory / f"{folder.name}.csv"
        command = [strata, "gpv", "features", "-r", trace, "--labels", folder / "labels.csv"]
        run(*command, "-o", sets[folder.name])
    train, test = sets.pop("mix-train"), sets.pop("mix-test")
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
    done = subprocess.run(
        list(map(str, command)), capture_output=True, text=True, check=False, timeout=SECONDS_MAX
    )
    if done.returncode:
        raise RuntimeError(f"{' '.join(map(str, command))}: {done.stderr.strip()[-400:]}")
    return done.stdout


def paper(context):
    """Figures 6 to 9 and Table 3 of the paper beside ours."""
    os.environ.pop("SEED", None)
    speed = context.example("strata-gpv", "gpv_speed")
    curve = context.example("strata-gpv", "gpv_curves")
    cores = len(os.sched_getaffinity(0))
    counts = [count for count in next(iter(TABLE_3.values())) if count <= cores]
    disturbance = Disturbance()
    figures, said = speeds(speed, 1)
    sums = {count: together(speed, count) for count in counts if count > 1}
    sums[1] = {name: values[0] for name, values in figures.items() if len(values) == 2}
    busy = disturbance.share()
    table_3 = [
        [count, *itertools.chain(*(
            (round(sums[count][what], 2) if count in sums else "-", of[count])
            for what, of in TABLE_3.items()
        ))]
        for count in next(iter(TABLE_3.values()))
    ]
    packets = 1_000_000 if context.quick else 4_000_000
    rows, columns, rates = curves(curve, packets, [1] if context.quick else [1, 2])
    records = next(line for line in said if line.startswith("records of the agent"))
    dynamic = [row[columns.index("dynamic, collision") + 1] for row in rows["memory"]]
    ours = [
        round(100 * rates["ratio"], 1), rates["mean_ms"], round(100 * rates["over_1_s"], 1),
        round(100 * rates["over_5_s"], 1), max(dynamic), min(dynamic),
        float(re.search(r"([\d.]+) tuples", records)[1]),
    ]
    classified = flows(context, [1])["tables"][0]
    recall = [classified["columns"].index(f"recall, {of}") for of in FEATURES]
    return {
        "title": "Figures 6 to 9 and Table 3 of the *Flow paper",
        "setup": f"{packets:,} packets of the profile `core-2015`, which has the published statistics of the "
        "paper's traces (1.5 billion packets each, not public); 16,384 slots of 4 packets and 4,096 "
        "wide buffers of 24. Our cache ends a vector when a packet comes more than 1.05 s after its "
        "start, since the time would not fit into 20 bits. Figures 7 and 8: median of the seeds. Others "
        f"took {100 * busy:.0f} % of the machine while speeds were measured. The paper's speeds are of "
        "a Xeon E5-2683 v4 with 16 cores; with several cores, each has an instance with vectors of its "
        "own, as in the paper. Figures 6 to 9 are drawings: the paper's numbers are those of its text.",
        "figures": {"rates": rates, "sums": sums},
        "tables": [
            {"title": "What the paper states", "columns": ["what", "section", "*Flow paper", "Strata"],
             "rows": [[what, *stated, mine]
                      for (what, stated), mine in zip(STATED.items(), ours, strict=True)]},
            {"title": "Packets and vectors a second (Figure 6)",
             "columns": ["what", "least", "mean", "most"],
             "rows": [[what, *rates[what]] for what in ("packets", "vectors")]},
            {"title": "Vectors per packet (%) by memory, vectors of 28 packets (Figure 7)",
             "columns": ["memory", *columns], "rows": rows["memory"]},
            {"title": "Vectors per packet (%) by length of vectors, 1 MiB (Figure 8)",
             "columns": ["packets", *columns], "rows": rows["length"]},
            {"title": "Millions of vectors a second by cores (Table 3)",
             "columns": ["cores", *itertools.chain(*((what, f"{what}, paper") for what in TABLE_3))],
             "rows": table_3},
            {"title": "Recall of a classifier of flows (Figure 9, in which *Flow is best)",
             "columns": ["distinguished", *FEATURES],
             "rows": [[row[0], *(row[at] for at in recall)] for row in classified["rows"]]},
        ],
        "charts": [],
    }


def measure(context):
    if context.part == "flows":
        return flows(context, [1] if context.quick else [1, 2, 3])
    if context.part == "paper":
        return paper(context)
    os.environ.pop("SEED", None)
    speed = context.example("strata-gpv", "gpv_speed")
    disturbance = Disturbance()
    figures, said = speeds(speed, 1 if context.quick else 3)
    counted = instructions(speed, context.directory)
    busy = disturbance.share()
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
        "speeds are of a Xeon E5-2683 v4.",
        "figures": {"speeds": figures, "instructions": counted},
        "tables": [
            {"title": "Beyond parsing", "columns": ["what", "ns per packet", "bar: at most"],
             "rows": per_packet},
            {"title": "Per core", "columns": ["what", "M vectors/s", "M tuples/s", "bar: at least",
                                              "*Flow paper"],
             "rows": per_vector},
            {"title": f"Packets and bytes of each flow of {flow_packets:,} packets, from a file",
             "columns": ["program", "seconds", "ns per packet"], "rows": per_flow},
        ],
        "charts": [],
    }
