"""Upkeep of the index by flow, as `strata lake expire` does it: entries of files that no
publication announced, merges by day and month, and entries of files that left the table.
"""

import json
import time
import uuid
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from itertools import pairwise

import numpy as np
import pyarrow.parquet as pq
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.manifest import DataFile
from pyiceberg.table import Table

from . import lake_index
from .lake_files import PARTITIONS, PartFile, all_files, reading
from .lake_index import ENTRY, KEYS, Covered, IndexFile
from .lake_upkeep import MERGED_FROM, expire_snapshots, merge_manifests, name_of

# Entries in memory, and in an index file, of which a period may have several by ranges of keys.
ENTRIES_AT_ONCE = 4 << 20
ENTRIES_A_FILE = 64 << 20
# Files that an index file of a month covers, at most: their list is read at each look-up.
FILES_A_MONTH = 100_000
# The share of entries from which those of files that left the table are dropped.
DEAD_SHARE = 0.5
# Index files of a day that has not ended, from which they are merged.
MERGED_DURING_DAY = 8


@dataclass
class State:
    """The index, and how much of the table it covers."""

    table: str
    files: int
    bytes: int
    entries: int
    # Files of `flows` that it covers, of all of them.
    covered: int
    of_files: int
    # Files that it lists, but that are no longer in the table.
    gone: int
    snapshots: int


@dataclass
class Tidied:
    """What upkeep did to the index."""

    covered: int = 0
    written: int = 0
    removed: int = 0
    snapshots: int = 0
    deleted: int = 0
    state: State | None = None


@dataclass
class Run:
    """Index files that were written together, by ranges of keys."""

    period: str
    files: list[DataFile] = field(default_factory=list)
    # The files of `flows` that each of them covers: none if it is lost or damaged.
    covers: list[list[Covered]] = field(default_factory=list)


def _flows(lake: Catalog, namespace: str) -> Table | None:
    try:
        return lake.load_table(f"{namespace}.flows")
    except NoSuchTableError:
        return None


def _live(flows: Table) -> dict[tuple[str, str, int], PartFile]:
    """The files of the table, by what tells them from others."""
    found = {}
    for file in all_files(flows):
        sensor, hour, retention = (str(file.partition[at]) for at in range(len(PARTITIONS)))
        of_log = PartFile(file.file_path, file.file_size_in_bytes, hour, retention)
        found[sensor, of_log.url, of_log.bytes] = of_log
    return found


def state(lake: Catalog, namespace: str) -> State | None:
    """The state of the index; None if there is none. Reads the footers of its files."""
    flows, index = _flows(lake, namespace), lake_index.table(lake, namespace, create=False)
    if flows is None or index is None:
        return None
    files = all_files(index)
    listed = {one.file for covers in lake_index.covered_by(index, files) for one in covers}
    live = _live(flows)
    return State(
        name_of(index),
        len(files),
        sum(file.file_size_in_bytes for file in files),
        sum(file.record_count for file in files),
        len(listed & live.keys()),
        len(live),
        len(listed - live.keys()),
        len(index.snapshots()),
    )


def tidy(
    lake: Catalog,
    namespace: str,
    *,
    snapshots_s: float | None,
    now_s: float | None = None,
    forget: bool = False,
) -> Tidied | None:
    """Gives the index what it lacks, merges what may be merged, and removes snapshots older than
    `snapshots_s`, with their files; None: all but the current one. With `forget`, no entry of a
    file that left the table stays. None if there is no table of flows.

    Memory: 16 bytes for each of some 4 million entries, or for each flow of a file."""
    now = datetime.fromtimestamp(time.time() if now_s is None else now_s, UTC)
    flows = _flows(lake, namespace)
    if flows is None:
        return None
    done = Tidied()
    index = lake_index.table(lake, namespace, create=True)
    assert index is not None
    files = all_files(index)
    listed = {one.file for covers in lake_index.covered_by(index, files) for one in covers}
    missing: dict[tuple[str, str], list[PartFile]] = {}
    for identity, file in _live(flows).items():
        if identity not in listed:
            missing.setdefault((identity[0], lake_index.day_of(file.hour)), []).append(file)
            done.covered += 1
    for (sensor, _), of_sensor in missing.items():
        # Also in place of a lost index file of the same files.
        lake_index.cover(lake, namespace, sensor, of_sensor, uuid.uuid4().hex)
    index = index.refresh()
    # After the index was read: files that a publication has announced are not in the table yet.
    runs = _runs(index)
    live = set(_live(flows.refresh()))
    for period, of_period in _by_target(runs, now).items():
        if not _is_due(period, of_period, live, now, forget):
            continue
        old = [file for run in of_period for file in run.files]
        new = merged(index, period, of_period, live)
        paths = {file.file_path for file in old}

        def replaced(
            index: Table, new: list[DataFile] = new, paths: set[str] = paths
        ) -> tuple[list[DataFile], list[DataFile]]:
            there = [file for file in all_files(index) if file.file_path in paths]
            return (new, there) if len(there) == len(paths) else ([], [])

        index = lake_index.change(index, replaced)
        is_there = {file.file_path for file in all_files(index)}
        if new and new[0].file_path not in is_there:
            # Another upkeep was faster.
            for file in new:
                index.io.delete(file.file_path)
            continue
        done.written += len(new)
        done.removed += len(old)
    index = merge_manifests(index, 2 if forget else MERGED_FROM)
    before_s = None if snapshots_s is None else now.timestamp() - snapshots_s
    done.snapshots, done.deleted = expire_snapshots(index, before_s)
    done.state = state(lake, namespace)
    return done


def _runs(index: Table) -> list[Run]:
    """The index files, those that were written together by their common name."""
    files = all_files(index)
    found: dict[str, Run] = {}
    for file, covers in zip(files, lake_index.covered_by(index, files), strict=True):
        name = file.file_path.rsplit("/", 1)[-1].split(".")[0]
        run = found.setdefault(name, Run(str(file.partition[0])))
        run.files.append(file)
        run.covers.append(covers)
    return list(found.values())


def _by_target(runs: list[Run], now: datetime) -> dict[str, list[Run]]:
    """The index files by the period that they will be merged to: a month that has ended and has
    not too many files, or a day."""
    files: dict[str, int] = {}
    for run in runs:
        month = lake_index.month_of(run.period)
        files[month] = files.get(month, 0) + len(run.covers[0])
    found: dict[str, list[Run]] = {}
    for run in runs:
        month = lake_index.month_of(run.period)
        has_ended = month < lake_index.month_of(f"{now:%Y-%m-%d}")
        target = month if has_ended and files[month] <= FILES_A_MONTH else run.period
        found.setdefault(target, []).append(run)
    return found


def _is_due(
    period: str, runs: list[Run], live: set[tuple[str, str, int]], now: datetime, forget: bool
) -> bool:
    if any(not covers for run in runs for covers in run.covers):
        # It is lost or damaged.
        return True
    entries = {True: 0, False: 0}
    is_listed = {True: False, False: False}
    for run in runs:
        for one in (one for covers in run.covers for one in covers):
            entries[one.file in live] += one.entries
            is_listed[one.file in live] = True
    if is_listed[False] and (forget or not is_listed[True]):
        return True
    if entries[False] > DEAD_SHARE * sum(entries.values()):
        return True
    has_ended = period < f"{now:%Y-%m-%d}"
    return len(runs) >= (2 if has_ended else MERGED_DURING_DAY)


def merged(
    index: Table, period: str, runs: list[Run], live: set[tuple[str, str, int]]
) -> list[DataFile]:
    """Writes the entries of these index files anew, without those of files that left the table.
    Returns nothing if none are left."""
    files = {
        one.file: one for run in runs for covers in run.covers for one in covers if one.file in live
    }
    if not files:
        return []
    listed = [files[identity] for identity in sorted(files)]
    numbers = {one.file: number for number, one in enumerate(listed)}
    total = sum(file.record_count for run in runs for file in run.files)
    pieces = max(1, -(-total // ENTRIES_A_FILE))
    name = f"merged-{uuid.uuid4().hex}"
    new = []
    with ExitStack() as stack:
        sources = []
        for run in runs:
            for file, covers in zip(run.files, run.covers, strict=True):
                if not covers:
                    continue
                opened = stack.enter_context(index.io.new_input(file.file_path).open())
                with reading(file.file_path):
                    parquet = pq.ParquetFile(opened)
                number = [numbers.get(one.file, -1) for one in covers]
                sources.append((parquet, np.array(number, np.int32)))
        for piece, (low, high) in enumerate(_ranges(0, KEYS, pieces)):
            to = IndexFile(index, period, f"{name}.{piece}", total // pieces, (low, high - 1))
            counts = np.zeros(len(listed), np.int64)
            for start, end in _ranges(low, high, -(-total // pieces // ENTRIES_AT_ONCE) or 1):
                parts = [_between(*source, start, end) for source in sources]
                entries = lake_index.sorted_entries(parts)
                counts += np.bincount(entries["file"], minlength=len(listed))
                to.append(entries)
            covers = (
                Covered(*one.file, int(count)) for one, count in zip(listed, counts, strict=True)
            )
            new.append(to.close(covers))
    return new


def _ranges(low: int, high: int, number: int) -> Iterator[tuple[int, int]]:
    """As many ranges of keys: a digest is as likely in one as in another of the same length."""
    yield from pairwise(low + (high - low) * at // number for at in range(number + 1))


def _between(parquet: pq.ParquetFile, numbers: np.ndarray, start: int, end: int) -> np.ndarray:
    """The entries of a range, with the new numbers of their files; without those that have none."""
    groups = list(lake_index.groups_with(parquet, start, end - 1))
    rows = parquet.read_row_groups(groups)
    entries = np.zeros(rows.num_rows, ENTRY)
    for name in ENTRY.names or ():
        entries[name] = rows[name].to_numpy()
    entries = entries[(entries["key"] >= start) & (entries["key"] < end)]
    entries["file"] = numbers[entries["file"]]
    return entries[entries["file"] >= 0]


def printed_with(said: str, found: State | Tidied | None) -> str:
    """What another command says, with the index: as further lines, or in its JSON object."""
    if said.startswith("{"):
        whole = json.loads(said)
        return json.dumps({**whole, "index": None if found is None else asdict(found)})
    return "\n".join([said, *_lines(found)])


def _lines(found: State | Tidied | None) -> list[str]:
    if isinstance(found, Tidied):
        return [
            f"the index: {found.covered:,} files of flows added; {found.written:,} files of keys "
            f"written in place of {found.removed:,}; {found.snapshots:,} snapshots expired, "
            f"{found.deleted:,} files of theirs deleted",
            *_lines(found.state),
        ]
    if found is None:
        return []
    lines = [
        f"{found.table}: {found.entries:,} keys of flows in {found.files:,} files, {found.bytes:,} "
        f"bytes; covers {found.covered:,} of {found.of_files:,} files of flows"
    ]
    if found.covered < found.of_files:
        lines.append(
            "  `strata lake expire` adds the others; until then, a search reads each of them"
        )
    return lines
