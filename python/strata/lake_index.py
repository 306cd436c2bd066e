"""An index by flow above the files of `flows`: sorted keys, and the files and row groups that have
them, in a third Iceberg table, `flow_index`.

A search for a flow would otherwise read the footer and the Bloom filters of every file of its time:
a Community ID is a hash, so no bound of a column excludes a file. A key is the first 48 bits of the
Community ID's digest. Each index file says which files it covers. So an answer never depends on
the index: a file that none covers is searched itself, and entries of files that left the table
count for nothing.

A publication adds its entries before its files. `strata lake expire` merges the entries of a day
once it ended, and those of a month, so that few files are read.
"""

import base64
import hashlib
import json
import random
import time
import uuid
import zlib
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyiceberg.catalog import Catalog
from pyiceberg.conversions import from_bytes, to_bytes
from pyiceberg.exceptions import (
    CommitFailedException,
    CommitStateUnknownException,
    NoSuchTableError,
    TableAlreadyExistsError,
    ValidationException,
)
from pyiceberg.expressions import In
from pyiceberg.io import FileIO
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.transforms import IdentityTransform
from pyiceberg.typedef import Record
from pyiceberg.types import IntegerType, LongType, NestedField, StringType

from .lake_files import FIELD_ID, INDEX, SETTINGS, LakeError, PartFile, all_files, reading

ATTEMPTS = 50
# Threads that wait for an object store.
READERS = 16
# The column of `flows` whose values are found.
ID = "community_id"
ID_LEN = len("1:") + 28
# 8 characters of base64: of 10^9 flows of a day, one in 280,000 look-ups finds a wrong one, which
# the file itself then refutes.
KEY_CHARACTERS = 8
KEYS = 1 << (6 * KEY_CHARACTERS)
ALPHABET = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
# The files that an index file covers, in its metadata.
COVERS = b"strata.files"
KEY_FIELD = 1
COLUMNS = (("key", pa.int64()), ("file", pa.int32()), ("row_group", pa.int32()))
# A look-up reads a footer with about 250 bytes per row group, and a row group with about 6 bytes
# per entry: together least if a row group has this many times the root of the entries.
ROOTS_A_GROUP = 6.5
GROUP_ROWS = (4_096, 262_144)

ENTRY = np.dtype([("key", np.int64), ("file", np.int32), ("row_group", np.int32)])


@dataclass(frozen=True)
class Covered:
    """A file of `flows` that an index file has the keys of."""

    sensor: str
    url: str
    bytes: int
    # Entries of this file in the index file.
    entries: int = 0

    @property
    def file(self) -> tuple[str, str, int]:
        """What tells the file from all others, also from a later one in its place."""
        return self.sensor, self.url, self.bytes


def key_of(community_id: str) -> int:
    """The key of a flow. Raises `LakeError` if this is no Community ID of version 1."""
    return int(_keys(pa.array([community_id]), community_id)[0])


def _keys(ids: pa.Array, of: str) -> np.ndarray:
    """The keys of Community IDs, of which none is NULL."""
    # An array that is part of another one has that one's buffers.
    texts = pc.utf8_slice_codeunits(ids, 2, 2 + KEY_CHARACTERS).cast(pa.string())
    are_ids = pc.and_(pc.starts_with(ids, "1:"), pc.equal(pc.binary_length(ids), ID_LEN))
    values = np.full(256, 255, np.int64)
    values[np.frombuffer(ALPHABET, np.uint8)] = np.arange(64)
    found = np.zeros(len(ids), np.int64)
    if pc.all(are_ids).as_py() and len(ids):
        _, _, data = texts.buffers()
        digits = values[np.frombuffer(data, np.uint8, len(ids) * KEY_CHARACTERS)]
        if digits.max() < 64:
            for digit in digits.reshape(-1, KEY_CHARACTERS).T:
                found = (found << 6) | digit
            return found
    elif not len(ids):
        return found
    raise LakeError(f"{of}: not a Community ID of version 1: they are 1: and 28 characters")


def entries_of(io: FileIO, url: str, number: int) -> np.ndarray:
    """The entries of a file of `flows`, which has this number in its index file: one for each flow
    and row group."""
    found = []
    with reading(url), io.new_input(url).open() as opened:
        parquet = pq.ParquetFile(opened)
        if ID not in parquet.schema_arrow.names:
            return np.zeros(0, ENTRY)
        for group in range(parquet.num_row_groups):
            ids = parquet.read_row_group(group, columns=[ID])[ID].combine_chunks()
            keys = np.unique(_keys(ids.drop_null(), url))
            of_group = np.zeros(len(keys), ENTRY)
            of_group["key"], of_group["file"], of_group["row_group"] = keys, number, group
            found.append(of_group)
    return np.concatenate(found) if found else np.zeros(0, ENTRY)


def table(lake: Catalog, namespace: str, *, create: bool) -> Table | None:
    """The table of the index; None if it is not there."""
    name = f"{namespace}.{INDEX}"
    with suppress(NoSuchTableError):
        return lake.load_table(name)
    if not create:
        return None
    types = {pa.int64(): LongType(), pa.int32(): IntegerType()}
    fields = [
        NestedField(at, column, types[of], required=True)
        for at, (column, of) in enumerate(COLUMNS, start=1)
    ]
    period = NestedField(len(fields) + 1, "period", StringType(), required=False)
    spec = PartitionSpec(PartitionField(period.field_id, 1000, IdentityTransform(), "period"))
    try:
        return lake.create_table(
            name,
            Schema(*fields, period),
            partition_spec=spec,
            properties={"format-version": "2", **SETTINGS},
        )
    except TableAlreadyExistsError:
        # By another sensor, at the same time.
        return lake.load_table(name)


class IndexFile:
    """An index file that is being written, in the order of keys."""

    def __init__(self, index: Table, period: str, name: str, entries: int, keys: tuple[int, int]):
        """With about this many entries. `keys`: the first and the last key that it would have."""
        self.period, self.keys, self.entries = period, keys, 0
        self.index = index
        self.url = f"{index.location().rstrip('/')}/data/{period}/{name}.parquet"
        least, most = GROUP_ROWS
        self.group_rows = max(least, min(most, round(ROOTS_A_GROUP * entries**0.5)))
        fields = [
            pa.field(name, of, False, {FIELD_ID: str(at).encode()})
            for at, (name, of) in enumerate(COLUMNS, start=1)
        ]
        self.schema = pa.schema(fields)
        self.to = index.io.new_output(self.url).create()
        self.writer = pq.ParquetWriter(
            self.to,
            self.schema,
            compression="zstd",
            use_dictionary=["file", "row_group"],
            column_encoding={"key": "DELTA_BINARY_PACKED"},
            write_statistics=["key"],
            write_page_checksum=True,
            store_schema=False,
        )

    def append(self, entries: np.ndarray) -> None:
        """Writes sorted entries."""
        if not len(entries):
            return
        columns = [pa.array(entries[name], of) for name, of in COLUMNS]
        rows = pa.table(columns, self.schema)
        self.writer.write_table(rows, row_group_size=self.group_rows)
        self.entries += len(entries)

    def close(self, covers: Iterable[Covered]) -> DataFile:
        """Ends the file, with the list of the files that it covers."""
        rows = [[one.sensor, one.url, one.bytes, one.entries] for one in covers]
        packed = base64.b64encode(zlib.compress(json.dumps(rows).encode(), 9))
        self.writer.add_key_value_metadata({COVERS.decode(): packed.decode()})
        self.writer.close()
        self.to.close()
        low, high = ({KEY_FIELD: to_bytes(LongType(), key)} for key in self.keys)
        return DataFile.from_args(
            content=DataFileContent.DATA,
            file_path=self.url,
            file_format=FileFormat.PARQUET,
            partition=Record(self.period),
            file_size_in_bytes=len(self.index.io.new_input(self.url)),
            record_count=self.entries,
            column_sizes={},
            value_counts={},
            null_value_counts={},
            nan_value_counts={},
            lower_bounds=low,
            upper_bounds=high,
            split_offsets=None,
            sort_order_id=None,
            spec_id=self.index.metadata.default_spec_id,
            equality_ids=None,
            key_metadata=None,
        )


def sorted_entries(parts: list[np.ndarray]) -> np.ndarray:
    """All entries in order, each once."""
    entries = np.concatenate(parts) if parts else np.zeros(0, ENTRY)
    if not len(entries):
        return entries
    # Stable, which is fast for parts that are sorted.
    entries = entries[np.argsort(entries["key"], kind="stable")]
    is_same = entries["key"][1:] == entries["key"][:-1]
    if not is_same.any():
        return entries
    # Those of equal keys are few.
    tied = np.flatnonzero(np.append(is_same, False) | np.append(False, is_same))
    of_tied = entries[tied]
    entries[tied] = of_tied[np.lexsort([of_tied[name] for name in ("row_group", "file", "key")])]
    for name in ("file", "row_group"):
        is_same &= entries[name][1:] == entries[name][:-1]
    return entries[np.append(True, ~is_same)]


def written(index: Table, period: str, name: str, files: list[tuple[str, PartFile]]) -> DataFile:
    """Writes an index file of these files, each with its sensor. Memory: 16 bytes for each flow."""
    parts = [entries_of(index.io, file.url, at) for at, (_, file) in enumerate(files)]
    entries = sorted_entries(parts)
    new = IndexFile(index, period, name, len(entries), (0, KEYS - 1))
    new.append(entries)
    return new.close(
        Covered(sensor, file.url, file.bytes, len(part))
        for (sensor, file), part in zip(files, parts, strict=True)
    )


def cover(
    lake: Catalog, namespace: str, sensor: str, files: Iterable[PartFile], by: str = ""
) -> None:
    """Gives the index the keys of files that a publication is about to add. If this is repeated,
    the index has them once for each value of `by`. Raises `LakeError`, or an error of the
    catalog."""
    index = table(lake, namespace, create=True)
    assert index is not None
    days: dict[str, list[PartFile]] = {}
    for file in files:
        days.setdefault(day_of(file.hour), []).append(file)
    wanted = {}
    for day, of_day in days.items():
        text = json.dumps([by, sorted((file.url, file.bytes) for file in of_day)])
        wanted[f"/{day}/{sensor}-{hashlib.sha256(text.encode()).hexdigest()[:32]}-"] = of_day
    made: dict[str, DataFile] = {}

    def missing(index: Table) -> tuple[list[DataFile], list[DataFile]]:
        there = [file.file_path for file in all_files(index)]
        added = []
        for prefix, of_day in wanted.items():
            if any(prefix in path for path in there):
                continue
            if prefix not in made:
                _, day, name = prefix.split("/")
                of_sensor = [(sensor, file) for file in of_day]
                made[prefix] = written(index, day, name + uuid.uuid4().hex, of_sensor)
            added.append(made[prefix])
        return added, []

    index = change(index, missing)
    there = {file.file_path for file in all_files(index)}
    for file in made.values():
        if file.file_path not in there:
            # Another publication of the same log was faster.
            index.io.delete(file.file_path)


def day_of(hour: str) -> str:
    return hour[: len("2026-01-31")]


def month_of(period: str) -> str:
    return period[: len("2026-01")]


def change(index: Table, wanted: Callable[[Table], tuple[list[DataFile], list[DataFile]]]) -> Table:
    """Adds and removes index files in one snapshot, as `wanted` says of the table's state; says so
    again if others commit meanwhile."""
    for attempt in range(ATTEMPTS):
        added, removed = wanted(index)
        if not added and not removed:
            return index
        try:
            with index.transaction() as transaction:
                update = transaction.update_snapshot()
                with update.overwrite() if removed else update.merge_append() as snapshot:
                    if removed:
                        periods = {str(file.partition[0]) for file in removed}
                        snapshot.delete_by_predicate(In("period", periods))
                    for file in added:
                        snapshot.append_data_file(file)
                    for file in removed:
                        snapshot.delete_data_file(file)
            return index.refresh()
        except (CommitFailedException, CommitStateUnknownException, ValidationException):
            time.sleep(random.uniform(0, 0.05 * min(attempt + 1, 20)))
            index = index.refresh()
    raise LakeError(
        f"{'.'.join(index.name())}: {ATTEMPTS} attempts to commit failed, because others keep "
        "committing: try again"
    )


def keys_of_file(file: DataFile) -> tuple[int, int]:
    """The first and the last key that an index file would have."""
    low, high = (
        from_bytes(LongType(), bounds[KEY_FIELD])
        for bounds in (file.lower_bounds, file.upper_bounds)
    )
    return low, high


def covers(parquet: pq.ParquetFile) -> list[Covered]:
    """The files that an index file covers, in the order of their numbers."""
    packed = (parquet.metadata.metadata or {})[COVERS]
    return [Covered(*row) for row in json.loads(zlib.decompress(base64.b64decode(packed)))]


def covered_by(index: Table, files: list[DataFile]) -> list[list[Covered]]:
    """The files that each of these index files covers: none if it is lost or damaged. Reads their
    footers."""

    def of(file: DataFile) -> list[Covered]:
        try:
            with reading(file.file_path), index.io.new_input(file.file_path).open() as opened:
                return covers(pq.ParquetFile(opened))
        except LakeError:
            return []

    with ThreadPoolExecutor(READERS) as readers:
        return list(readers.map(of, files))


def groups_with(parquet: pq.ParquetFile, low: int, high: int) -> Iterable[int]:
    """The row groups of an index file that may have keys of a range, by their bounds."""
    for group in range(parquet.num_row_groups):
        bounds = parquet.metadata.row_group(group).column(0).statistics
        if bounds.min <= high and low <= bounds.max:
            yield group


def look_up(parquet: pq.ParquetFile, keys: set[int]) -> set[tuple[int, int]]:
    """Numbers of files, and row groups in them, that have one of the keys."""
    found: set[tuple[int, int]] = set()
    for key in keys:
        for group in groups_with(parquet, key, key):
            there = parquet.read_row_group(group, columns=["key"])["key"].to_numpy()
            rows = np.flatnonzero(there == key)
            if len(rows):
                places = parquet.read_row_group(group, columns=["file", "row_group"]).take(rows)
                numbers = (places[name].to_pylist() for name in ("file", "row_group"))
                found.update(zip(*numbers, strict=True))
    return found
