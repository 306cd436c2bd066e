"""Reading a capture file, one worker, from the page cache to the disk."""

from harness import have, in_turns, median, size, version

TITLE = "Reading a capture file, one worker"


def measure(context):
    """Headers of all packets and whole suspicious ones against peers, and everything against cp.

    Ours ends with what it wrote on the disk, so `cp` is followed by fsync(2); other peers leave
    their output in the page cache."""
    directory = context.directory
    packets = 500_000 if context.quick else 2_500_000
    rounds = 2 if context.quick else 5
    trace = context.generate("offline.pcap", "cic-w3", packets)
    log, all_of_it, cut, copy, same, flows = (
        directory / n for n in ("log", "all", "cut.pcap", "copy.pcap", "same.pcap", "flows")
    )
    flows.mkdir(exist_ok=True)
    strata = [context.strata, "record", "-r", trace, "-o", log, "--detail", "none"]
    everything = [context.strata, "record", "--mode", "log-all", "-r", trace, "-o", all_of_it]
    ours, log_all, cp = "strata record", "strata record --mode log-all", "cp and fsync"
    programs = {
        ours: (strata, [log]),
        log_all: (everything, [all_of_it]),
        cp: (["sh", "-c", f"cp {trace} {same} && sync {same}"], [same]),
        "editcap -F pcap -s 96": (["editcap", "-F", "pcap", "-s", "96", trace, cut], [cut]),
        "tcpdump -r -w": (["tcpdump", "-r", trace, "-w", copy], [copy]),
        "nfpcapd -r": (["sh", "-c", f"mkdir -p {flows}; exec nfpcapd -r {trace} -w {flows}"], [flows]),
        "softflowd -r": (["softflowd", "-d", "-r", trace, "-n", "127.0.0.1:9"], []),
        "capinfos -c": (["capinfos", "-c", trace], []),
    }
    programs = {n: p for n, p in programs.items() if n in (ours, log_all) or have(n.split()[0])}
    seconds, discarded = in_turns(programs, rounds)
    best = median(seconds[ours])
    rows = []
    for name, times in seconds.items():
        middle = median(times)
        rate = packets / middle / 1e6
        rows.append(
            [name, round(middle, 3), round(rate, 2), round(middle / best, 2), size(programs[name][1])]
        )
    return {
        "title": TITLE,
        "setup": f"{context.described(trace)}; page cache warm; {rounds} rounds in turns, "
        f"medians; {discarded} runs discarded because of other processes. nfpcapd and "
        "softflowd make flow records, capinfos counts: they write less or nothing.",
        "versions": {n.split()[0]: version(n.split()[0]) for n in programs if n not in (ours, log_all)},
        "seconds": {n: [round(t, 4) for t in ts] for n, ts in seconds.items()},
        "tables": [
            {
                "columns": ["program", "seconds", "Mpps", "times as long as strata", "bytes written"],
                "rows": rows,
            }
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
