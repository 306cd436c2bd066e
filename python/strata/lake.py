"""Logs of many sensors as two Iceberg tables, which any engine reads: nothing is copied or
rewritten, and only footers are read, and Community IDs for an index of flows.

    strata publish log/ --catalog http://catalog:8181 --namespace site

Each data file of a log belongs to one sensor, hour and retention class, which are the table's
partitions: columns that no data file has. After each publication, a table has exactly the files
of `archive.json`, in one snapshot: a publication that was killed, or whose fate is unknown, is
made good by the next one, and no file is in a table twice.
"""

import hashlib
import json
import random
import re
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import (
    CommitFailedException,
    CommitStateUnknownException,
    NamespaceAlreadyExistsError,
    NoSuchTableError,
    TableAlreadyExistsError,
    ValidationException,
)
from pyiceberg.expressions import And, EqualTo, In, NotEqualTo, Or
from pyiceberg.manifest import DataFile
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.table import Table
from pyiceberg.transforms import IdentityTransform
from sqlalchemy.exc import DatabaseError, IntegrityError

from . import lake_index
from . import log as logs
from .lake_files import (
    PARTITIONS,
    SETTINGS,
    LakeError,
    PartFile,
    all_files,
    arrow_schema,
    data_file,
    part_files,
    reading,
    replaced_by,
    replaces,
    table_schema,
    widened,
)

TABLES = logs.TABLES
# Attempts to commit while other sensors commit too.
ATTEMPTS = 50
# The property of a table that holds the identity of a sensor's log begins with this.
LOG_OF = "strata.log."
# The property of a table with what `strata lake expire` keeps, and that of one from which
# `strata lake erase` has removed a host.
KEEP = "strata.keep"
ERASURES = "strata.erasures"
# The retention class of flows that a policy protects.
PROTECTED = "protected"
# Letters, digits, '.', '_' and '-', up to this length; see `check_sensor`.
SENSOR_LENGTH = 128
SENSOR = re.compile(rf"[A-Za-z0-9][A-Za-z0-9._-]{{0,{SENSOR_LENGTH - 1}}}")


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
    try:
        return load_catalog("strata", type=kind, uri=name, **properties)
    except DatabaseError:
        # Another sensor may have created the catalog's own tables at the same time.
        time.sleep(0.1)
        return load_catalog("strata", type=kind, uri=name, **properties)


def check_sensor(name: str) -> None:
    """Raises `LakeError` if a sensor cannot have this name."""
    if not SENSOR.fullmatch(name) or ".." in name:
        raise LakeError(
            f"--sensor {name!r}: not a name of a sensor: 1 to {SENSOR_LENGTH} letters (a to z), "
            "digits, dots, dashes and underscores, beginning with a letter or digit, without '..'"
        )


def identity(log: Path) -> str:
    """What tells this log from all others, wherever it is."""
    # Raises an error if there is no log.
    logs.files(log, "packets")
    manifest = log / "manifest.json"
    with reading(manifest):
        recordings = json.loads(manifest.read_text())["recordings"]
    if not recordings:
        raise LakeError(f"{log}: nothing was recorded yet")
    first = recordings[0]
    of = json.dumps([first["started_ns"], first["hash_seed"]])
    return hashlib.sha256(of.encode()).hexdigest()[:32]


def publish(
    log: str | Path,
    catalog_name: str,
    namespace: str,
    sensor: str,
    *,
    warehouse: str | None = None,
    replace: bool = False,
) -> list[Published]:
    """Makes the tables `NAMESPACE.packets` and `NAMESPACE.flows` have exactly the compacted files
    of this log, as those of this sensor; they are created if they are not there.

    With `replace`, the log takes the place of another one of this sensor; and a sensor as which
    the log was published before is renamed to this one. Raises `LakeError`, or an error of the
    catalog."""
    check_sensor(sensor)
    log = Path(log)
    log_id = identity(log)
    first = {table: part_files(log, table) for table in TABLES}
    lake = catalog(catalog_name, warehouse)
    # The second: of a database, if another sensor creates it at the same time.
    with suppress(NamespaceAlreadyExistsError, IntegrityError):
        lake.create_namespace(namespace)
    published = []
    for table in TABLES:
        name = f"{namespace}.{table}"
        there = _table(lake, name, first[table])
        if there is None:
            raise LakeError(f"{log}: nothing is compacted yet: run `strata compact {log}`")

        def before(added: list[PartFile], table: str = table) -> None:
            if table == "flows":
                lake_index.cover(lake, namespace, sensor, added)

        published.append(_synchronise(there, log, table, sensor, log_id, replace, before))
    return published


def _table(lake: Catalog, name: str, files: list[PartFile]) -> Table | None:
    """The table, created if there are files for it."""
    with suppress(NoSuchTableError):
        return lake.load_table(name)
    if not files:
        return None
    # The newest file: older ones lack columns.
    newest = files[-1].url
    schema, mapping = table_schema(arrow_schema(lake._load_file_io({}, newest), newest))
    fields = [
        PartitionField(schema.find_field(column).field_id, 1000 + at, IdentityTransform(), column)
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
                **SETTINGS,
            },
        )
    except TableAlreadyExistsError:
        # By another sensor, at the same time.
        return lake.load_table(name)


def _synchronise(
    table: Table,
    log: Path,
    kind: str,
    sensor: str,
    log_id: str,
    replace: bool,
    before_commit: Callable[[list[PartFile]], None],
) -> Published:
    """Gives the table the files of this log as those of the sensor, all in one snapshot, unless
    it has them. Files to add are told to `before_commit`, also if the commit then fails."""
    name = ".".join(table.name())
    mine = LOG_OF + sensor
    if any(table.properties.get(key) != value for key, value in SETTINGS.items()):
        with table.transaction() as transaction:
            transaction.set_properties(SETTINGS)
        table = table.refresh()
    made: dict[PartFile, DataFile] = {}
    told: set[PartFile] = set()
    for attempt in range(ATTEMPTS):
        before = table.properties.get(mine)
        if before not in (None, log_id) and not replace:
            raise LakeError(
                f"{name}: another log is published as sensor '{sensor}' there: give this one "
                "another --sensor, or --replace if it takes the place of that one"
            )
        there = Counter()
        listed = {}
        for file in _files_of(table, sensor):
            there[file.file_path] += 1
            listed[file.file_path] = file
        # Read after the table: a publication of an earlier state cannot be committed over a later.
        of_log = [file for file in part_files(log, kind) if not is_expired(table, file)]
        stand_ins = _stand_ins(table, sensor, log_id, of_log)
        wanted = {file.url: file for file in (stand_ins.get(one.url, one) for one in of_log)}
        others, elsewhere = _elsewhere(table, sensor, log_id, wanted)
        if others and not replace:
            raise LakeError(_is_elsewhere(name, sensor, others))
        # Files are deleted by path, whatever their sensor.
        twice = {file.file_path for file in elsewhere}
        kept = {
            url
            for url, file in wanted.items()
            if there[url] == 1
            and listed[url].file_size_in_bytes == file.bytes
            and before == log_id
            and url not in twice
        }
        added = [file for url, file in wanted.items() if url not in kept]
        removed = [file for url, file in listed.items() if url not in kept] + elsewhere
        renamed = [key for other in others if table.properties.get(key := LOG_OF + other) == log_id]
        if not added and not removed and not renamed and before == log_id:
            return _published(table, sensor, 0, 0)
        try:
            if added:
                table = widened(table, added[-1])
            for file in added:
                if file not in made:
                    made[file] = data_file(table, file, sensor)
        except (CommitFailedException, CommitStateUnknownException):
            # Another one has changed the columns.
            table = table.refresh()
            continue
        except LakeError:
            if set(added) <= {*part_files(log, kind), *stand_ins.values()}:
                raise
            # Compaction or `prune` has deleted the file meanwhile.
            continue
        if added and set(added) != told:
            before_commit(added)
            told = set(added)
        try:
            commit(table, [made[file] for file in added], removed, {mine: log_id}, renamed)
            return _published(table, sensor, len(added), len(removed))
        except (CommitFailedException, CommitStateUnknownException, ValidationException):
            # Another one was faster, or it is not known: the table now says what is left to do.
            time.sleep(random.uniform(0, 0.05 * min(attempt + 1, 20)))
            table = table.refresh()
    raise LakeError(
        f"{name}: {ATTEMPTS} attempts to commit failed, because others keep committing: try again"
    )


def _elsewhere(
    table: Table, sensor: str, log_id: str, wanted: dict[str, PartFile]
) -> tuple[list[str], list[DataFile]]:
    """Other sensors to which this log or any of its files belongs, and these files: those of
    sensors whose log it is, and of others those that the log has now."""
    ids = table.properties.items()
    keys = [key for key, value in ids if key.startswith(LOG_OF) and value == log_id]
    others = {key.removeprefix(LOG_OF) for key in keys} - {sensor}
    listed: Iterable[DataFile] = ()
    if ERASURES in table.properties:
        listed = (file for file in all_files(table) if _sensor_of(file) != sensor)
    elif table.current_snapshot() is not None and (others or wanted):
        hours = {file.hour for file in wanted.values()}
        theirs = Or(In("sensor", others), In("hour", hours))
        scan = table.scan(row_filter=And(NotEqualTo("sensor", sensor), theirs))
        listed = (task.file for task in scan.plan_files())
    found = [file for file in listed if _sensor_of(file) in others or file.file_path in wanted]
    return sorted(others | {_sensor_of(file) for file in found}), found


def _stand_ins(
    table: Table, sensor: str, log_id: str, of_log: list[PartFile]
) -> dict[str, PartFile]:
    """The files that `strata lake erase` wrote in place of files of this log, by the URLs of
    those: as long as the log has these, they are not in the table again."""
    if ERASURES not in table.properties:
        return {}
    ids = table.properties.items()
    keys = [key for key, value in ids if key.startswith(LOG_OF) and value == log_id]
    replaced = {replaced_by(log_id, file.url): file for file in of_log}
    found = {}
    for name in {sensor, *(key.removeprefix(LOG_OF) for key in keys)}:
        for file in _files_of(table, name):
            original = replaced.get(replaces(file.file_path) or "")
            if original is not None:
                found[original.url] = PartFile(
                    file.file_path, file.file_size_in_bytes, original.hour, original.retention
                )
    return found


def kept_s(table: Table) -> dict[str, int]:
    """How long the table keeps each retention class, in seconds; "" is any other class."""
    return json.loads(table.properties.get(KEEP, "{}"))


def is_expired(table: Table, file: PartFile, now_s: float | None = None) -> bool:
    """Whether all packets of the file are older than the table keeps those of its class: those
    of an hour arrived before its end. Protected ones stay unless their class has a limit."""
    kept = kept_s(table)
    limit_s = kept.get(file.retention)
    if limit_s is None and file.retention != PROTECTED:
        limit_s = kept.get("")
    if limit_s is None:
        return False
    began = datetime.strptime(file.hour, "%Y-%m-%dT%H").replace(tzinfo=UTC)
    return began.timestamp() + 3600 + limit_s < (time.time() if now_s is None else now_s)


def _sensor_of(file: DataFile) -> str:
    return str(file.partition[PARTITIONS.index("sensor")])


def _is_elsewhere(table: str, sensor: str, others: list[str]) -> str:
    names = " and ".join(f"'{other}'" for other in others)
    many = "s" if len(others) > 1 else ""
    return (
        f"{table}: this log, or a copy of it, is published there as sensor{many} {names}: as "
        f"'{sensor}' too, its rows would be counted twice: give --sensor {others[0]}, or --replace "
        f"to rename the sensor{many} to '{sensor}'"
    )


def commit(
    table: Table,
    added: list[DataFile],
    removed: list[DataFile],
    properties: dict[str, str],
    forgotten: list[str],
) -> None:
    """Changes files and properties in one snapshot; raises an error of the catalog if another one
    was committed since the table was read."""
    with table.transaction() as transaction:
        transaction.set_properties(properties)
        if forgotten:
            transaction.remove_properties(*forgotten)
        if not added and not removed:
            return
        update = transaction.update_snapshot()
        with update.overwrite() if removed else update.merge_append() as snapshot:
            if removed:
                # All manifests with their files: of two files with one path, pyiceberg would look
                # for the partition of one.
                sensors = {_sensor_of(file) for file in removed}
                snapshot.delete_by_predicate(In("sensor", sensors))
            for file in added:
                snapshot.append_data_file(file)
            for file in removed:
                snapshot.delete_data_file(file)


def _files_of(table: Table, sensor: str) -> Iterator[DataFile]:
    if table.current_snapshot() is None:
        return
    if ERASURES in table.properties:
        yield from (file for file in all_files(table) if _sensor_of(file) == sensor)
        return
    for task in table.scan(row_filter=EqualTo("sensor", sensor)).plan_files():
        yield task.file


def _published(table: Table, sensor: str, added: int, removed: int) -> Published:
    files = list(_files_of(table.refresh(), sensor))
    rows = sum(file.record_count for file in files)
    return Published(".".join(table.name()), len(files), rows, added, removed)


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
