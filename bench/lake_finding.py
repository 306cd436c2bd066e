"""Finding a flow in the tables of many sensors: with the index by flow, and by the footers and Bloom
filters of all files, as DuckDB reads them."""

import random
import shutil
import statistics
import subprocess
import time

import duckdb
import numpy as np
import pyarrow.parquet as pq
from strata import lake, lake_find, lake_index, lake_merge, lake_sql, log
from strata.lake_reads import Chosen, Reads, open_counted

TITLE = "Finding a flow in tables of many sensors"
# A log has two parts, of the classes benign and anomalous.
LOGS, PACKETS_A_LOG = 50, 4_000_000
QUICK_LOGS, QUICK_PACKETS_A_LOG = 5, 20_000
SOUGHT = 20
# Index files to merge, and keys of each.
MERGED, KEYS_MERGED = 8, 1_000_000
# Sizes of index files: keys, files that have them, row groups of each.
SIZES = ((10_000, 48, 1), (100_000, 48, 4), (1_000_000, 240, 8), (10_000_000, 2_400, 8))


def logs_of(context, sensors, packets):
    """A published log for each sensor, of the same hours and other flows."""
    site = f"sqlite:///{context.directory}/lake.db", f"file://{context.directory}/lake"
    logs, seconds = {}, []
    for at in range(sensors):
        made = context.directory / f"log{at}"
        # All of it in some minutes, so that a log has few hours.
        trace = context.generate(
            f"{at}.pcap", "cic-w3", packets, "--pps", str(packets // 600), "--seed", str(at + 1)
        )
        for command in (["record", "-r", trace, "-o", made, "--quiet"], ["compact", made, "--quiet"]):
            subprocess.run([context.strata, *command], check=True, capture_output=True)
        trace.unlink()
        began = time.perf_counter()
        lake.publish(made, site[0], "site", f"edge{at}", warehouse=site[1])
        seconds.append(time.perf_counter() - began)
        logs[f"edge{at}"] = made
    return site, logs, seconds


def searched(site, flow):
    """The flow's rows, and what DuckDB reads for them without the index."""
    sql = f"SELECT count(*), sum(packets + reverse_packets) FROM flows WHERE community_id = '{flow}'"
    began = time.perf_counter()
    _, [found], reads = lake_sql.query(sql, *site_of(site), chosen=Chosen())
    return found, reads.requests, reads.bytes, time.perf_counter() - began


def found(site, flow):
    """The same with the index, and where the payload is."""
    began = time.perf_counter()
    one = lake_find.find(site[0], "site", [flow], warehouse=site[1])
    seconds = time.perf_counter() - began
    packets = sum(row.row["packets"] + row.row["reverse_packets"] for row in one.rows)
    requests = one.index.requests + one.flows.requests + one.packets.requests
    return (len(one.rows), packets), requests, one.bytes_read, seconds


def site_of(site):
    return site[0], "site"


def sizes(directory):
    """Index files of random keys: bytes, and what a look-up reads of them."""
    place = directory / "sizes"
    place.mkdir()
    opened = lake.catalog(f"sqlite:///{place}/lake.db", f"file://{place}/lake")
    opened.create_namespace("site")
    index = lake_index.table(opened, "site", create=True)
    chance, rows = np.random.default_rng(1), []
    for keys, files, groups in SIZES:
        entries = np.zeros(keys, lake_index.ENTRY)
        for name, below in (("key", lake_index.KEYS), ("file", files), ("row_group", groups)):
            entries[name] = chance.integers(0, below, keys)
        entries = lake_index.sorted_entries([entries])
        new = lake_index.IndexFile(index, "2026-01-31", f"{keys}", keys, (0, lake_index.KEYS - 1))
        new.append(entries)
        counts = np.bincount(entries["file"], minlength=files)
        written = new.close(
            lake_index.Covered(
                f"edge{at % 50}",
                f"s3://traffic/edge{at % 50}/flows/hour=2026-01-31T{at // 50 % 24:02}/retention="
                f"{'benign' if at % 2 else 'anomalous'}/{at // 7:08}.parquet",
                int(chance.integers(1 << 20, 1 << 24)),
                int(count),
            )
            for at, count in enumerate(counts)
        )
        footer = pq.read_metadata(written.file_path.removeprefix("file://"))
        of_list = len(footer.metadata[lake_index.COVERS])
        reads = Reads()
        with open_counted(index.io, written.file_path, reads) as parquet:
            lake_index.covers(parquet)
            there = lake_index.look_up(parquet, {int(entries["key"][keys // 3])})
        if not there:
            raise RuntimeError("a look-up did not find its key")
        rows.append([
            keys, files, f"{written.file_size_in_bytes / keys:.2f}", f"{of_list / files:.1f}",
            f"{(footer.serialized_size - of_list) / footer.num_row_groups:.0f}",
            footer.num_row_groups, f"{reads.bytes:,}", reads.requests,
        ])
    # Files of a day, merged.
    runs, live = [], set()
    for at in range(MERGED):
        entries = np.zeros(KEYS_MERGED, lake_index.ENTRY)
        entries["key"] = chance.integers(0, lake_index.KEYS, KEYS_MERGED)
        new = lake_index.IndexFile(index, "2026-01-31", f"part{at}", KEYS_MERGED, (0, lake_index.KEYS - 1))
        new.append(lake_index.sorted_entries([entries]))
        covers = [lake_index.Covered("edge", f"s3://traffic/{at}.parquet", 1, KEYS_MERGED)]
        live.add(covers[0].file)
        runs.append(lake_merge.Run("2026-01-31", [new.close(covers)], [covers]))
    began = time.process_time()
    lake_merge.merged(index, "2026-01-31", runs, live)
    merged_per_s = MERGED * KEYS_MERGED / (time.process_time() - began)
    shutil.rmtree(place)
    return rows, merged_per_s


def measure(context):
    of_sizes, merged_per_s = sizes(context.directory)
    sensors, packets = (QUICK_LOGS, QUICK_PACKETS_A_LOG) if context.quick else (LOGS, PACKETS_A_LOG)
    site, logs, published = logs_of(context, sensors, packets)
    files = [name for made in logs.values() for name in log.files(made, "flows")]
    rows = duckdb.sql(
        f"SELECT community_id FROM read_parquet({files}) WHERE community_id IS NOT NULL "
        f"GROUP BY 1 ORDER BY hash(community_id) LIMIT {SOUGHT}"
    ).fetchall()
    sought = [one for (one,) in rows]
    random.Random(1).shuffle(sought)
    opened = lake.catalog(*site)
    data = {
        kind: sum(file.file_size_in_bytes for file in lake.all_files(opened.load_table(f"site.{kind}")))
        for kind in lake.TABLES
    }
    total = sum(data.values())
    figures, table = [], []

    def row(name, how):
        runs = [how(site, flow) for flow in sought]
        requests, size, seconds = (
            statistics.median(run[at] for run in runs) for at in (1, 2, 3)
        )
        figures.append(
            {"search": name, "requests": requests, "bytes": size, "seconds": seconds,
             "seconds_max": max(run[3] for run in runs)}
        )
        table.append(
            [name, f"{requests:.0f}", f"{size:,.0f}", f"{100 * size / total:.3f}", f"{seconds:.3f}",
             f"{figures[-1]['seconds_max']:.3f}"]
        )
        return [run[0] for run in runs]

    without = row("Bloom filters of all files (DuckDB)", searched)
    before = row("index, as published", found)
    began = time.perf_counter()
    now_s = time.time()
    done = lake_merge.tidy(opened, "site", snapshots_s=0, now_s=now_s)
    merging = time.perf_counter() - began
    after = row("index, merged", found)
    if not without == before == after:
        raise RuntimeError("the searches found different rows")
    state = done.state
    return {
        "title": TITLE,
        "setup": f"{sensors} sensors, each with a log of {packets:,} packets of the profile cic-w3: "
        f"{state.of_files:,} files of flows ({data['flows']:,} bytes) and as many of packets "
        f"({data['packets']:,} bytes); {SOUGHT} flows, each searched once, in turn; files and a "
        "catalog in SQLite on the local disk, in the page cache. The share is of all these bytes. "
        f"The index has {state.entries:,} keys in {state.bytes:,} bytes "
        f"({state.bytes / state.entries:.2f} each; "
        f"{100 * state.bytes / data['flows']:.1f} % of the files of flows); merging it took "
        f"{merging:.1f} s; merging {MERGED} files of {KEYS_MERGED:,} random keys handles "
        f"{merged_per_s / 1e6:.1f} million keys a second of CPU time. A publication took {statistics.median(published):.2f} s (median).",
        "figures": {"searches": figures, "entries": state.entries, "index_bytes": state.bytes,
                    "data_bytes": data, "merge_s": merging, "merged_keys_per_s": merged_per_s, "publish_s": published},
        "tables": [
            {"columns": ["search", "reads", "bytes", "share (%)", "s (median)", "s (max)"],
             "rows": table},
            {"title": "An index file of random keys, and a look-up in it",
             "columns": ["keys", "files of flows", "bytes per key", "bytes per listed file",
                         "bytes per row group in the footer", "row groups", "bytes of a look-up",
                         "reads"],
             "rows": of_sizes},
        ],
        "charts": [],
    }
