"""Reading a capture file, one worker, from the page cache to the disk."""

from harness import have, in_turns, median, size, version

TITLE = "Reading a capture file, one worker"


def measure(context):
    """Headers of all packets and whole suspicious ones against peers, and everything against cp; then
    packets of 64 bytes, of which next to everything is kept.

    Ours ends with what it wrote on the disk, so `cp` is followed by fsync(2); other peers leave
    their output in the page cache."""
    directory = context.directory
    packets = 500_000 if context.quick else 2_500_000
    rounds = 2 if context.quick else 5
    trace = context.generate("offline.pcap", "cic-w3", packets)
    cut, copy, same, flows = (directory / n for n in ("cut.pcap", "copy.pcap", "same.pcap", "flows"))
    flows.mkdir(exist_ok=True)

    def record(log, *more, before=()):
        log = directory / log
        return [*before, context.strata, "record", "-r", trace, "-o", log, *more], [log]

    one_core = ["taskset", "-c", "0"]
    ours, log_all, cp = "strata record --detail none", "strata record --mode log-all", "cp and fsync"
    programs = {
        ours: record("headers", "--detail", "none"),
        f"{ours}, one core": record("headers-1", "--detail", "none", before=one_core),
        "strata record": record("default"),
        "strata record, one core": record("default-1", before=one_core),
        log_all: record("all", "--mode", "log-all"),
        cp: (["sh", "-c", f"cp {trace} {same} && sync {same}"], [same]),
        "editcap -F pcap -s 96": (["editcap", "-F", "pcap", "-s", "96", trace, cut], [cut]),
        "tcpdump -r -w": (["tcpdump", "-r", trace, "-w", copy], [copy]),
        "nfpcapd -r": (["sh", "-c", f"mkdir -p {flows}; exec nfpcapd -r {trace} -w {flows}"], [flows]),
        "softflowd -r": (["softflowd", "-d", "-r", trace, "-n", "127.0.0.1:9"], []),
        "capinfos -c": (["capinfos", "-c", trace], []),
    }
    programs = {n: p for n, p in programs.items() if n.startswith("strata") or have(n.split()[0])}
    small_packets = 2 * packets
    small = context.generate("small.pcap", "flood64", small_packets)
    of_small = {
        name: ([small if word == trace else word for word in command], outputs)
        for name, (command, outputs) in programs.items()
        if name in (ours, f"{ours}, one core", "tcpdump -r -w", "editcap -F pcap -s 96")
    }

    def rows_of(seconds, packets):
        best = median(seconds[ours])
        return [
            [name, round(median(times), 3), round(packets / median(times) / 1e6, 2),
             round(median(times) / best, 2), size(programs[name][1])]
            for name, times in seconds.items()
        ]

    seconds, discarded = in_turns(programs, rounds)
    rows = rows_of(seconds, packets)
    small_seconds, more_discarded = in_turns(of_small, rounds)
    columns = ["program", "seconds", "Mpps", "times as long as strata", "bytes written"]
    return {
        "title": TITLE,
        "setup": f"{context.described(trace)}; page cache warm; {rounds} rounds in turns, "
        f"medians; {discarded + more_discarded} runs discarded because of other processes. nfpcapd and "
        "softflowd make flow records, capinfos counts: they write less or nothing.",
        "versions": {n.split()[0]: version(n.split()[0]) for n in programs if not n.startswith("strata")},
        "seconds": {n: [round(t, 4) for t in ts] for n, ts in seconds.items()},
        "small_seconds": {n: [round(t, 4) for t in ts] for n, ts in small_seconds.items()},
        "tables": [
            {"columns": columns, "rows": rows},
            {
                "title": f"Packets of 64 bytes, {small_packets:,} of them",
                "columns": columns,
                "rows": rows_of(small_seconds, small_packets),
            },
        ],
        "charts": [
            {
                "name": "offline",
                "title": "Reading a capture file",
                "unit": "million packets per second",
                "bars": [[row[0], row[2]] for row in rows],
            }
        ],
    }
