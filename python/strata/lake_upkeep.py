"""Upkeep of Iceberg tables of logs: what is in them (`strata lake status`), and what leaves them by
age (`strata lake expire`). Files of logs are never touched here: they belong to their sensors.
"""

import json
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime

from pyiceberg.catalog import Catalog
from pyiceberg.conversions import from_bytes
from pyiceberg.exceptions import (
    CommitFailedException,
    CommitStateUnknownException,
    NoSuchTableError,
    ValidationException,
)
from pyiceberg.manifest import DataFile, ManifestContent
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot

from . import lake
from .lake_files import PARTITIONS, LakeError, PartFile, all_files, column_of, is_own

# Files below this size cost an engine more than they hold.
SMALL_BYTES = 1 << 20
# The column with the time of a table's newest packet.
NEWEST = {"packets": "time", "flows": "last_time"}
ATTEMPTS = 20
_BUSY = f"{{}}: {ATTEMPTS} attempts to commit failed, because others keep committing: try again"
# The property of a table with the number of manifests from which pyiceberg merges them, and the
# number from which `expire` has it merge them.
SMALLEST_MERGE = "commit.manifest.min-count-to-merge"
MERGED_FROM = 10
US_PER_S = 1_000_000
MS_PER_S = 1_000


@dataclass
class Sensor:
    """What a table has of a sensor."""

    sensor: str
    files: int = 0
    small_files: int = 0
    rows: int = 0
    bytes: int = 0
    first_hour: str = ""
    last_hour: str = ""
    # Rows by retention class.
    retention: dict[str, int] = field(default_factory=dict)
    newest_us: int | None = None
    # How long ago the newest packet arrived, by the clock of this machine: negative if the clock of
    # the sensor is ahead of it.
    behind_s: float | None = None


@dataclass
class Status:
    """What is in a table."""

    table: str
    snapshots: int
    manifests: int
    # How long the table keeps each retention class, in seconds; "" is any other class.
    keep_s: dict[str, int]
    sensors: list[Sensor]


@dataclass
class Expired:
    """What has left a table by age."""

    table: str
    files: int
    rows: int
    snapshots: int
    # Files that only expired snapshots had: of metadata, and those that `erase` wrote.
    deleted: int
    snapshots_left: int


def tables(catalog: Catalog, namespace: str) -> list[Table]:
    """The tables of a namespace; raises `LakeError` if there is none."""
    found = []
    for table in lake.TABLES:
        try:
            found.append(catalog.load_table(f"{namespace}.{table}"))
        except NoSuchTableError:
            continue
    if not found:
        raise LakeError(
            f"{namespace}: no tables of Strata in this namespace: `strata publish` makes them"
        )
    return found


def name_of(table: Table) -> str:
    return ".".join(table.name())


def part_of(file: DataFile) -> tuple[str, str, str]:
    """Sensor, hour and retention class of a file."""
    sensor, hour, retention = (str(file.partition[at]) for at in range(len(PARTITIONS)))
    return sensor, hour, retention


def status(
    catalog_name: str, namespace: str, *, warehouse: str | None = None, now_s: float | None = None
) -> list[Status]:
    """What is in the tables of a namespace, by sensor: from manifests alone. Raises `LakeError`,
    or an error of the catalog."""
    now_s = time.time() if now_s is None else now_s
    found = []
    for table in tables(lake.catalog(catalog_name, warehouse), namespace):
        column = column_of(table, NEWEST[table.name()[-1]])
        sensors: dict[str, Sensor] = {}
        for file in all_files(table):
            name, hour, retention = part_of(file)
            one = sensors.setdefault(name, Sensor(name, first_hour=hour, last_hour=hour))
            one.files += 1
            one.small_files += file.file_size_in_bytes < SMALL_BYTES
            one.rows += file.record_count
            one.bytes += file.file_size_in_bytes
            one.first_hour = min(one.first_hour, hour)
            one.last_hour = max(one.last_hour, hour)
            one.retention[retention] = one.retention.get(retention, 0) + file.record_count
            bound = (file.upper_bounds or {}).get(column.field_id) if column else None
            if column and bound is not None:
                newest_us = from_bytes(column.field_type, bound)
                one.newest_us = max(newest_us, one.newest_us or newest_us)
        for one in sensors.values():
            if one.newest_us is not None:
                one.behind_s = round(now_s - one.newest_us / US_PER_S, 3)
        snapshot = table.current_snapshot()
        manifests = len(snapshot.manifests(table.io)) if snapshot else 0
        found.append(
            Status(
                name_of(table),
                len(table.snapshots()),
                manifests,
                lake.kept_s(table),
                sorted(sensors.values(), key=lambda one: one.sensor),
            )
        )
    return found


def expire(
    catalog_name: str,
    namespace: str,
    *,
    warehouse: str | None = None,
    keep_s: dict[str, int] | None = None,
    snapshots_s: int,
    now_s: float | None = None,
) -> list[Expired]:
    """Removes whole files from the tables whose packets are all older than `keep_s` says of their
    retention class ("": of any other class), which is also what publications add from then on;
    None leaves that as it is. Then removes snapshots older than `snapshots_s`, except the current
    one and those of tags and branches, with the files that only they had. Raises `LakeError`, or
    an error of the catalog."""
    now_s = time.time() if now_s is None else now_s
    found = []
    for table in tables(lake.catalog(catalog_name, warehouse), namespace):
        if keep_s is not None:
            kept = {lake.KEEP: json.dumps(keep_s, sort_keys=True)}
            if table.properties.get(lake.KEEP) != kept[lake.KEEP]:
                with table.transaction() as transaction:
                    transaction.set_properties(kept)
                table = table.refresh()

        def old(table: Table) -> tuple[list[DataFile], list[DataFile]]:
            return [], [file for file in all_files(table) if _is_old(table, file, now_s)]

        table, _, removed = change(table, old)
        table = merge_manifests(table, MERGED_FROM)
        snapshots, deleted = expire_snapshots(table, now_s - snapshots_s)
        table = table.refresh()
        rows = sum(file.record_count for file in removed)
        left = len(table.snapshots())
        found.append(Expired(name_of(table), len(removed), rows, snapshots, deleted, left))
    return found


def _is_old(table: Table, file: DataFile, now_s: float) -> bool:
    _, hour, retention = part_of(file)
    of_log = PartFile(file.file_path, file.file_size_in_bytes, hour, retention)
    return lake.is_expired(table, of_log, now_s)


Change = Callable[[Table], tuple[list[DataFile], list[DataFile]]]


def change(
    table: Table, wanted: Change, properties: dict[str, str] | None = None
) -> tuple[Table, list[DataFile], list[DataFile]]:
    """Adds and removes files in one snapshot, as `wanted` says of the table's state; says so again
    if others commit meanwhile. Returns what was added and removed."""
    for attempt in range(ATTEMPTS):
        added, removed = wanted(table)
        if not added and not removed:
            return table, [], []
        try:
            lake.commit(table, added, removed, properties or {}, [])
            return table.refresh(), added, removed
        except (CommitFailedException, CommitStateUnknownException, ValidationException):
            time.sleep(0.05 * (attempt + 1))
            table = table.refresh()
    raise LakeError(_BUSY.format(name_of(table)))


def merge_manifests(table: Table, at_least: int) -> Table:
    """Writes the manifests of the current snapshot anew, up to 1 MiB together in one, if there are
    that many: fewer to read for a plan, and without entries of files that were removed."""
    for attempt in range(ATTEMPTS):
        snapshot = table.current_snapshot()
        if snapshot is None or len(snapshot.manifests(table.io)) < at_least:
            return table
        smallest = table.properties.get(SMALLEST_MERGE)
        try:
            with table.transaction() as transaction:
                transaction.set_properties({**lake.SETTINGS, SMALLEST_MERGE: "1"})
                with transaction.update_snapshot().merge_append():
                    pass
                if smallest is None:
                    transaction.remove_properties(SMALLEST_MERGE)
                else:
                    transaction.set_properties({SMALLEST_MERGE: smallest})
            return table.refresh()
        except (CommitFailedException, CommitStateUnknownException):
            time.sleep(0.05 * (attempt + 1))
            table = table.refresh()
    raise LakeError(_BUSY.format(name_of(table)))


def expire_snapshots(table: Table, before_s: float | None) -> tuple[int, int]:
    """Removes the snapshots from before this time, or all, except the current one and those of tags
    and branches, and then the files that only they had. Returns the number of both."""
    had: set[str] = set()
    before: set[int] = set()
    for attempt in range(ATTEMPTS):
        table = table.refresh()
        until_s = before_s
        if until_s is None:
            # The clocks of the sensors may differ.
            newest_ms = max((one.timestamp_ms for one in table.snapshots()), default=0)
            until_s = newest_ms / MS_PER_S + 1
        then = datetime.fromtimestamp(until_s, UTC)
        # Also those of an earlier attempt, which may have succeeded.
        had |= _files_of_snapshots(table, table.snapshots())
        before |= {one.snapshot_id for one in table.snapshots()}
        try:
            table.maintenance.expire_snapshots().older_than(then).commit()
            break
        except (CommitFailedException, CommitStateUnknownException):
            time.sleep(0.05 * (attempt + 1))
    else:
        raise LakeError(_BUSY.format(name_of(table)))
    table = table.refresh()
    left = table.snapshots()
    gone = before - {one.snapshot_id for one in left}
    if not gone:
        return 0, 0
    # Also of snapshots that others have committed meanwhile.
    deleted = had - _files_of_snapshots(table, left)
    for location in deleted:
        with suppress(FileNotFoundError):
            table.io.delete(location)
    return len(gone), len(deleted)


def _files_of_snapshots(table: Table, snapshots: Iterable[Snapshot]) -> set[str]:
    """The files of these snapshots that are the table's: manifests and their lists, and data files
    that are not those of logs."""
    found: set[str] = set()
    for snapshot in snapshots:
        found.add(snapshot.manifest_list)
        for manifest in snapshot.manifests(table.io):
            if manifest.manifest_path in found:
                continue
            found.add(manifest.manifest_path)
            if manifest.content == ManifestContent.DATA:
                entries = manifest.fetch_manifest_entry(table.io, discard_deleted=True)
                paths = (entry.data_file.file_path for entry in entries)
                found.update(path for path in paths if is_own(table, path))
    return found


def printed_status(found: list[Status], as_json: bool) -> str:
    """The status for people, or as JSON."""
    if as_json:
        return json.dumps({"tables": [asdict(one) for one in found]})
    lines = []
    for one in found:
        kept = ", ".join(
            f"{name or 'others'} {_duration(limit)}" for name, limit in one.keep_s.items()
        )
        lines.append(
            f"{one.table}: {counted(one.snapshots, 'snapshot')}, "
            f"{counted(one.manifests, 'manifest')}; keeps {kept or 'what the logs keep'}"
        )
        for sensor in one.sensors:
            files = counted(sensor.files, "file")
            small = f" ({sensor.small_files:,} small)" if sensor.small_files else ""
            lines.append(
                f"  {sensor.sensor}: {sensor.rows:,} rows in {files}{small}, "
                f"{sensor.bytes:,} bytes, {sensor.first_hour} to {sensor.last_hour}"
            )
            lines.append(f"    {_newest(sensor)}")
    return "\n".join(lines)


def _newest(sensor: Sensor) -> str:
    if sensor.behind_s is None:
        return "the time of the newest packet is unknown"
    if sensor.behind_s < 0:
        ahead = _duration(-sensor.behind_s)
        return f"the newest packet is {ahead} in the future: compare the clocks"
    return f"the newest packet arrived {_duration(sensor.behind_s)} ago"


def printed_expired(found: list[Expired], as_json: bool) -> str:
    """What has left the tables, for people or as JSON."""
    if as_json:
        return json.dumps({"tables": [asdict(one) for one in found]})
    return "\n".join(
        f"{one.table}: {counted(one.files, 'file')} with {one.rows:,} rows removed by age; "
        f"{counted(one.snapshots, 'snapshot')} expired, {one.snapshots_left:,} left; "
        f"{counted(one.deleted, 'file')} of theirs deleted"
        for one in found
    )


def counted(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def _duration(seconds: float) -> str:
    for unit, length in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} s"
