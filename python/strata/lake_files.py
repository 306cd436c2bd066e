"""Data files of a log as those of an Iceberg table: columns by field id, bounds from footers."""

import hashlib
import json
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.io import FileIO
from pyiceberg.io.pyarrow import (
    compute_statistics_plan,
    data_file_statistics_from_parquet_metadata,
    pyarrow_to_schema,
)
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat, ManifestContent
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.name_mapping import MappedField, NameMapping
from pyiceberg.typedef import Record
from pyiceberg.types import NestedField, StringType

# Columns of the tables that data files do not have: the values of partitions.
PARTITIONS = ("sensor", "hour", "retention")
# The metadata of a column in which pyarrow has its field id.
FIELD_ID = b"PARQUET:field_id"
# Below a table's location: files that `strata lake erase` wrote in place of those of a log.
ERASED = "data/erased"
# The table with the keys of flows: `lake_index.py`.
INDEX = "flow_index"
# pyiceberg would append the same files again, to a table that has them meanwhile; and it merges
# manifests only if it is told to, without which each publication adds one to read. A manifest of
# 1 MiB has some 1,300 files: a plan for an hour reads few others (bench/topics/lake.py).
SETTINGS = {
    "commit.retry.num-retries": "0",
    "commit.manifest-merge.enabled": "true",
    "commit.manifest.target-size-bytes": str(1 << 20),
}


class LakeError(RuntimeError):
    """A log or table is not as it has to be. The text says why, and what to do."""


@dataclass(frozen=True)
class PartFile:
    """A data file of a log, or one that stands for it."""

    url: str
    bytes: int
    hour: str
    retention: str


@contextmanager
def reading(what: str | Path) -> Iterator[None]:
    """Turns errors of reading a log into `LakeError`: they are not the catalog's."""
    try:
        yield
    except (OSError, KeyError, ValueError, zlib.error, pa.ArrowException) as error:
        raise LakeError(
            f"{what}: cannot read this file of the log: {error}; `strata verify` checks the log"
        ) from error


def part_files(log: Path, table: str) -> list[PartFile]:
    """The files of a table of a log, as `archive.json` lists them now."""
    archive = log / "archive.json"
    if not archive.exists():
        raise LakeError(f"{log}: nothing is compacted yet: run `strata compact {log}`")
    found = []
    with reading(archive):
        parts = json.loads(archive.read_text())["parts"]
        files = [
            (file["name"], file["kind"], file["bytes"], part["hour"], part["retention"])
            for part in parts
            for file in part["files"]
        ]
    for name, kind, size, hour, retention in files:
        if kind == table:
            if name.endswith(".age"):
                raise LakeError(
                    f"{log}: the log is encrypted, so no engine can read its files: query it "
                    f"with `strata query {log} --key FILE`"
                )
            # Locations are plain text: nothing in them is escaped.
            url = name if "://" in name else f"file://{log.resolve() / name}"
            if "#" in url or "?" in url:
                raise LakeError(
                    f"{url}: no engine can open a file with # or ? in its path: rename the "
                    "directory"
                )
            found.append(PartFile(url, size, hour, retention))
    return found


def replaced_by(log_id: str, url: str) -> str:
    """The beginning of the name of a file that stands for one of this log, wherever the log is:
    it depends on the last four parts of the path, `TABLE/hour=H/retention=C/P.parquet`."""
    within = "/".join(url.rsplit("/", 4)[-4:])
    return hashlib.sha256(f"{log_id}/{within}".encode()).hexdigest()[:32]


def replaces(file_path: str) -> str | None:
    """What `replaced_by` is of the file for which this one stands; None if for no other."""
    folder, _, name = file_path.rpartition("/")
    return name.split("-")[0] if folder.endswith("/" + ERASED) else None


def is_own(table: Table, file_path: str) -> bool:
    """Whether a data file belongs to the table: other ones are those of logs."""
    return table.name()[-1] == INDEX or replaces(file_path) is not None


def all_files(table: Table) -> list[DataFile]:
    """The data files of the current snapshot, also those without rows, which no scan plans."""
    snapshot = table.current_snapshot()
    if snapshot is None:
        return []
    return [
        entry.data_file
        for manifest in snapshot.manifests(table.io)
        if manifest.content == ManifestContent.DATA
        for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=True)
    ]


def arrow_schema(io: FileIO, url: str) -> pa.Schema:
    """The columns of a data file, with their field ids."""
    with reading(url), io.new_input(url).open() as opened:
        return pq.read_schema(opened).remove_metadata()


def field_ids(arrow: pa.Schema) -> dict[str, int]:
    """The field ids of a file's columns, by name; empty for files of versions that wrote none."""
    ids = {}
    for field in arrow:
        if field.metadata and FIELD_ID in field.metadata:
            ids[field.name] = int(field.metadata[FIELD_ID])
    return ids


def without_ids(fields: list[pa.Field]) -> pa.Schema:
    """The same columns, which pyiceberg then maps by name."""
    return pa.schema([pa.field(field.name, field.type, field.nullable) for field in fields])


def table_schema(arrow: pa.Schema) -> tuple[Schema, NameMapping]:
    """Columns of a table of such files, in the order of field ids, since a catalog numbers the
    columns of a new table in their order; those of partitions have the ids between."""
    ids = field_ids(arrow) or {name: at for at, name in enumerate(arrow.names, start=1)}
    free = [at for at in range(1, len(ids) + len(PARTITIONS) + 1) if at not in ids.values()]
    mapping = NameMapping([MappedField(field_id=at, names=[name]) for name, at in ids.items()])
    columns = list(pyarrow_to_schema(without_ids(list(arrow)), name_mapping=mapping).fields)
    columns += [
        NestedField(at, column, StringType(), required=False)
        for at, column in zip(free, PARTITIONS, strict=False)
    ]
    return Schema(*sorted(columns, key=lambda column: column.field_id)), mapping


def widened(table: Table, newest: PartFile) -> Table:
    """The table, with the columns that only later versions of Strata write."""
    arrow = arrow_schema(table.io, newest.url)
    ids = field_ids(arrow)
    there = {column.field_id for column in table.schema().columns}
    names = _names(table)
    new = [
        field
        for field in arrow
        if (ids[field.name] not in there if field.name in ids else field.name not in names)
    ]
    if not new:
        return table
    new.sort(key=lambda field: ids.get(field.name, 0))
    with table.update_schema() as update:
        update.union_by_name(without_ids(new))
    return table.refresh()


def _names(table: Table) -> dict[str, int]:
    """All names of columns, also earlier ones of columns that were renamed, with field ids."""
    mapping = table.name_mapping()
    fields = list(mapping) if mapping else []
    names = {name: field.field_id for field in fields for name in field.names if field.field_id}
    return names | {column.name: column.field_id for column in table.schema().columns}


def column_of(table: Table, name: str) -> NestedField | None:
    """The column of the table that files have under this name: engines may have renamed it."""
    field_id = _names(table).get(name)
    return None if field_id is None else table.schema().find_field(field_id)


def data_file(table: Table, file: PartFile, sensor: str) -> DataFile:
    """A file of a log as one of the table, with its rows and bounds."""
    metadata = table.metadata
    with reading(file.url), table.io.new_input(file.url).open() as opened:
        footer = pq.read_metadata(opened)
    arrow = footer.schema.to_arrow_schema()
    names, own = _names(table), field_ids(arrow)
    new = [name for name in arrow.names if name not in names]
    if new:
        raise LakeError(
            f"{file.url}: has columns that the table lacks ({', '.join(new)}): it was written by "
            "another version of Strata: publish into another --namespace"
        )
    wrong = [name for name, field_id in own.items() if names[name] != field_id]
    if wrong:
        raise LakeError(
            f"{file.url}: has other field ids than the table ({', '.join(wrong)}), so engines "
            "would read wrong columns: the table was made from files of an earlier version of "
            "Strata: publish into another --namespace"
        )
    statistics = data_file_statistics_from_parquet_metadata(
        parquet_metadata=footer,
        stats_columns=compute_statistics_plan(metadata.schema(), metadata.properties),
        parquet_column_mapping={name: names[name] for name in arrow.names},
    )
    values: dict[str, Any] = statistics.to_serialized_dict()
    return DataFile.from_args(
        content=DataFileContent.DATA,
        file_path=file.url,
        file_format=FileFormat.PARQUET,
        partition=Record(sensor, file.hour, file.retention),
        file_size_in_bytes=file.bytes,
        sort_order_id=None,
        spec_id=metadata.default_spec_id,
        equality_ids=None,
        key_metadata=None,
        **values,
    )
