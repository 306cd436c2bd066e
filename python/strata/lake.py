"""Logs of many sensors as two Iceberg tables, which any engine reads: nothing is copied or
rewritten, and only footers are read.

    strata publish log/ --catalog http://catalog:8181 --namespace site

Each data file of a log belongs to one sensor, hour and retention class, which are the table's
partitions: columns that no data file has. After each publication, a table has exactly the files
of `archive.json`, in one snapshot: a publication that was killed, or whose fate is unknown, is
made good by the next one, and no file is in a table twice.
"""

import json
import random
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import (
    CommitFailedException,
    CommitStateUnknownException,
    NamespaceAlreadyExistsError,
    NoSuchTableError,
    TableAlreadyExistsError,
)
from pyiceberg.expressions import EqualTo
from pyiceberg.io.pyarrow import (
    compute_statistics_plan,
    data_file_statistics_from_parquet_metadata,
    parquet_path_to_id_mapping,
    pyarrow_to_schema,
)
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.name_mapping import MappedField, NameMapping
from pyiceberg.transforms import IdentityTransform
from pyiceberg.typedef import Record
from pyiceberg.types import NestedField, StringType

from . import log as logs

TABLES = logs.TABLES
# Columns of the tables that data files do not have: the values of partitions.
PARTITIONS = ("sensor", "hour", "retention")
# Their field ids, beyond those of the files' columns.
PARTITION_ID = 1001
# Attempts to commit while other sensors commit too.
ATTEMPTS = 50


class LakeError(RuntimeError):
    """The log cannot be published. The text says why, and what to do."""


@dataclass(frozen=True)
class PartFile:
    """A data file of a log."""

    url: str
    bytes: int
    hour: str
    retention: str


@dataclass(frozen=True)
class Published:
    """What a publication did to a table."""

    table: str
    # Files that the table has of this sensor now, and their rows.
    files: int
    rows: int
    added: int
    removed: int


def catalog(name: str, warehouse: str | None) -> Catalog:
    """The catalog at a URI (`sqlite:///...` or another database of SQLAlchemy, `http(s)://...`
    for REST), or of this name in the configuration of pyiceberg."""
    properties: dict[str, str | None] = {"warehouse": warehouse} if warehouse else {}
    if "://" not in name:
        return load_catalog(name, **properties)
    kind = "rest" if name.startswith(("http://", "https://")) else "sql"
    if kind == "sql" and warehouse is None:
        raise LakeError(
            f"{name}: a catalog in a database needs --warehouse, such as file:///srv/lake"
        )
    return load_catalog("strata", type=kind, uri=name, **properties)


def part_files(log: Path, table: str) -> list[PartFile]:
    """The files of a table of a log, as `archive.json` lists them."""
    # Raises an error if there is no log.
    logs.files(log, table)
    archive = log / "archive.json"
    if not archive.exists():
        raise LakeError(f"{log}: nothing is compacted yet: run `strata compact {log}`")
    found = []
    for part in json.loads(archive.read_text())["parts"]:
        for file in part["files"]:
            if file["kind"] != table:
                continue
            name = file["name"]
            if name.endswith(".age"):
                raise LakeError(
                    f"{log}: the log is encrypted, and no engine could read its files: query it "
                    f"with `strata query {log} --key FILE`"
                )
            # Locations are plain text: nothing in them is escaped.
            url = name if "://" in name else f"file://{log.resolve() / name}"
            found.append(PartFile(url, file["bytes"], part["hour"], part["retention"]))
    return found


def publish(
    log: str | Path,
    catalog_name: str,
    namespace: str,
    sensor: str,
    *,
    warehouse: str | None = None,
    moved: bool = False,
) -> list[Published]:
    """Makes the tables `NAMESPACE.packets` and `NAMESPACE.flows` have exactly the compacted files
    of this log, as those of this sensor; they are created if they are not there.

    With `moved`, the log was in another directory before. Raises `LakeError`, or an error of the
    catalog."""
    log = Path(log)
    wanted = {table: part_files(log, table) for table in TABLES}
    if not any(wanted.values()):
        raise LakeError(f"{log}: nothing is compacted yet: run `strata compact {log}`")
    lake = catalog(catalog_name, warehouse)
    with suppress(NamespaceAlreadyExistsError):
        lake.create_namespace(namespace)
    places = {f"file://{log.resolve()}/"}
    published = []
    for table, files in wanted.items():
        places |= {place_of(file.url, table) for file in files}
        there = _table(lake, f"{namespace}.{table}", files)
        published.append(_synchronise(there, files, sensor, sorted(places), moved))
    return published


def place_of(url: str, table: str) -> str:
    """Where the files of a log are, of one of them."""
    return url.rsplit(f"{table}/hour=", 1)[0]


def _table(lake: Catalog, name: str, files: list[PartFile]) -> Table:
    with suppress(NoSuchTableError):
        return lake.load_table(name)
    if not files:
        raise LakeError(f"{name}: no such table yet, and the log has no files for it")
    schema, mapping = _schema(lake, files[0])
    fields = [
        PartitionField(PARTITION_ID + at, 1000 + at, IdentityTransform(), column)
        for at, column in enumerate(PARTITIONS)
    ]
    try:
        return lake.create_table(
            name,
            schema,
            partition_spec=PartitionSpec(*fields),
            properties={
                "format-version": "2",
                "schema.name-mapping.default": mapping.model_dump_json(),
            },
        )
    except TableAlreadyExistsError:
        # By another sensor, at the same time.
        return lake.load_table(name)


def _schema(lake: Catalog, file: PartFile) -> tuple[Schema, NameMapping]:
    """The columns of a data file, with ids in their order, and those of partitions."""
    io = lake._load_file_io({}, file.url)
    with io.new_input(file.url).open() as opened:
        arrow = pq.read_schema(opened).remove_metadata()
    mapping = NameMapping(
        [MappedField(field_id=at, names=[name]) for at, name in enumerate(arrow.names, start=1)]
    )
    columns = pyarrow_to_schema(arrow, name_mapping=mapping).fields
    partitions = [
        NestedField(PARTITION_ID + at, column, StringType(), required=False)
        for at, column in enumerate(PARTITIONS)
    ]
    return Schema(*columns, *partitions), mapping


def _synchronise(
    table: Table, files: list[PartFile], sensor: str, places: list[str], moved: bool
) -> Published:
    """Gives the table the files of this sensor, all in one snapshot, unless it has them."""
    name = ".".join(table.name())
    mine = f"strata.places.{sensor}"
    made: dict[str, DataFile] = {}
    for attempt in range(ATTEMPTS):
        before = json.loads(table.properties.get(mine, "[]"))
        known = set(before) | set(places) if moved or not before else set(before)
        if before and not moved and not set(before) & set(places):
            raise LakeError(
                f"{name}: sensor '{sensor}' publishes a log in {', '.join(before)} there: give "
                "this one another --sensor, or --moved if it is the same log in another place"
            )
        there = {
            file.file_path: file
            for file in _files_of(table, sensor)
            if file.file_path.startswith(tuple(known | set(places)))
        }
        wanted = {file.url: file for file in files}
        added = [file for url, file in wanted.items() if url not in there]
        removed = [file for url, file in there.items() if url not in wanted]
        for file in added:
            if file.url not in made:
                made[file.url] = _data_file(table, file, sensor)
        now = sorted(known | set(places))
        if not added and not removed and now == sorted(before):
            return _published(table, sensor, 0, 0)
        try:
            _commit(table, [made[file.url] for file in added], removed, {mine: json.dumps(now)})
            return _published(table, sensor, len(added), len(removed))
        except (CommitFailedException, CommitStateUnknownException):
            # Another sensor was faster, or nobody knows: what the table has now tells.
            time.sleep(random.uniform(0, 0.05 * min(attempt + 1, 20)))
            table = table.refresh()
    raise LakeError(
        f"{name}: {ATTEMPTS} attempts to commit failed, because others commit all the time"
    )


def _commit(
    table: Table, added: list[DataFile], removed: list[DataFile], properties: dict[str, str]
) -> None:
    with table.transaction() as transaction:
        transaction.set_properties(properties)
        if not added and not removed:
            return
        update = transaction.update_snapshot()
        with update.overwrite() if removed else update.fast_append() as snapshot:
            for file in added:
                snapshot.append_data_file(file)
            for file in removed:
                snapshot.delete_data_file(file)


def _files_of(table: Table, sensor: str) -> Iterator[DataFile]:
    if table.current_snapshot() is None:
        return
    for task in table.scan(row_filter=EqualTo("sensor", sensor)).plan_files():
        yield task.file


def _published(table: Table, sensor: str, added: int, removed: int) -> Published:
    files = list(_files_of(table.refresh(), sensor))
    rows = sum(file.record_count for file in files)
    return Published(".".join(table.name()), len(files), rows, added, removed)


def _data_file(table: Table, file: PartFile, sensor: str) -> DataFile:
    metadata = table.metadata
    with table.io.new_input(file.url).open() as opened:
        footer = pq.read_metadata(opened)
    known = {column.name for column in table.schema().columns}
    new = [name for name in footer.schema.to_arrow_schema().names if name not in known]
    if new:
        raise LakeError(
            f"{file.url}: has columns that the table lacks ({', '.join(new)}): it was written by "
            "another version of Strata: publish into another --namespace"
        )
    statistics = data_file_statistics_from_parquet_metadata(
        parquet_metadata=footer,
        stats_columns=compute_statistics_plan(metadata.schema(), metadata.properties),
        parquet_column_mapping=parquet_path_to_id_mapping(metadata.schema()),
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


def printed(published: Iterable[Published], problem: str | None, as_json: bool) -> str:
    """What was done, for people or as JSON, with what the tables lack."""
    published = list(published)
    if as_json:
        tables = [vars(one) for one in published]
        return json.dumps({"tables": tables, "complete": problem is None, "problem": problem})
    lines = [
        f"{one.table}: {one.files:,} files with {one.rows:,} rows of this sensor; "
        f"{one.added:,} added, {one.removed:,} removed"
        for one in published
    ]
    return "\n".join(lines)


def not_there(log: str | Path, left: int) -> str:
    """What the tables lack of a log."""
    return (
        f"{log}: {left:,} block files are not compacted yet, so they are not in the tables: run "
        f"`strata compact {log}`, and publish again"
    )
