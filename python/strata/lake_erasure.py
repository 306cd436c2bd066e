"""`strata lake erase`: a host's rows leave the tables, the snapshots, and the files that are the
tables' own; with a count by an engine of what is left.

The files of a log belong to its sensor, and stay as they are: in the tables, files without the
host take their place, below the table's location. A publication leaves these in place as long as
the log has the originals.
"""

import hashlib
import ipaddress
import json
import re
import uuid
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyiceberg.expressions import EqualTo, Or
from pyiceberg.manifest import DataFile
from pyiceberg.table import Table
from pyiceberg.types import StringType

from . import lake, lake_merge
from .lake_files import (
    ERASED,
    PARTITIONS,
    LakeError,
    PartFile,
    all_files,
    column_of,
    data_file,
    reading,
    replaced_by,
    replaces,
)
from .lake_upkeep import change, expire_snapshots, merge_manifests, name_of, part_of, tables

ENDS = ("src", "dst")
# JSON lists of addresses, which may be in flows of other hosts.
LISTS = ("dns_answers",)
# Values of a file's metadata that count its rows: they are not those of the rewritten file.
COUNTS = b"strata.counts"
# In a copy's metadata: the file of the log for which it stands, and marks of the erased hosts.
ORIGINAL = b"strata.erased.original"
MARKS = b"strata.erased.hosts"


@dataclass
class Replaced:
    """A file, and what took its place in the table."""

    file: str
    by: str
    rows: int
    rows_erased: int
    # Of other hosts: their answers of DNS that named the host are NULL.
    answers_erased: int


@dataclass
class Erased:
    """What was erased from a table, and what is left."""

    table: str
    files: list[Replaced] = field(default_factory=list)
    # Of the whole table.
    rows_before: int = 0
    rows_after: int = 0
    # Rows with the host that an engine finds afterwards: 0.
    rows_left: int = 0
    # Answers of DNS that name the host and are found afterwards: 0.
    answers_left: int = 0
    # Rows of other hosts with a text that names the host: a PTR query, an HTTP host, a share.
    texts_left: int = 0
    # Entries of removed files in the metadata, whose bounds may be the host: 0.
    entries_left: int = 0
    # Flows whose packets may have addresses that the row lacks, as in tunnels.
    flows_in_doubt: int = 0
    snapshots_expired: int = 0
    # The current one, and those of tags and branches, which still list the originals.
    snapshots_left: int = 0
    files_deleted: int = 0
    # Files of the logs that still have the host.
    in_logs: list[str] = field(default_factory=list)
    # Files whose flows have keys in the index although they left the table: 0. Those that a
    # publication has announced meanwhile count, too.
    keys_in_doubt: int = 0
    index_snapshots_left: int = 0

    @property
    def is_complete(self) -> bool:
        """Whether nothing of the table has the host any more. The logs are not the table's."""
        left = self.rows_left + self.answers_left + self.texts_left + self.entries_left
        snapshots = max(self.snapshots_left, self.index_snapshots_left)
        return left + self.keys_in_doubt == 0 and snapshots <= 1


def address(text: str) -> str:
    """The address as the tables have it."""
    try:
        found = ipaddress.ip_address(text)
    except ValueError as error:
        raise LakeError(f"--host {text!r}: write an IPv4 or IPv6 address") from error
    if "%" in text:
        raise LakeError(f"--host {text!r}: write an IPv4 or IPv6 address, without an interface")
    return str(found)


def erase(
    catalog_name: str, namespace: str, host: str, *, warehouse: str | None = None
) -> list[Erased]:
    """Erases the rows of a host from the tables of a namespace, then all snapshots but the current
    one. Memory: a row group of a file. Raises `LakeError`, or an error of the catalog."""
    host = address(host)
    found = []
    opened = lake.catalog(catalog_name, warehouse)
    for table in tables(opened, namespace):
        done = Erased(name_of(table))
        done.rows_before = _rows(table)
        written: list[str] = []

        def without(
            table: Table, done: Erased = done, written: list[str] = written
        ) -> tuple[list[DataFile], list[DataFile]]:
            if not written:
                return _rewritten(table, host, done, written)
            listed = {file.file_path for file in all_files(table)}
            if listed.issuperset(written):
                # The last commit succeeded, although the catalog did not say so.
                return [], []
            # Another commit was faster: these files are in no snapshot.
            for url in written:
                table.io.delete(url)
            written.clear()
            done.files.clear()
            return _rewritten(table, host, done, written)

        table, _, _ = change(table, without, {lake.ERASURES: "1"})
        # Entries of removed files have their bounds, which may be the host.
        table = merge_manifests(table, 2)
        done.snapshots_expired, done.files_deleted = expire_snapshots(table, None)
        table = table.refresh()
        done.snapshots_left = len(table.snapshots())
        done.rows_after = _rows(table)
        done.rows_left = _rows_with(table, host)
        done.answers_left = _answers_with(table, host)
        done.texts_left = _texts_with(table, host)
        done.entries_left = _entries_of_removed(table)
        done.flows_in_doubt = _flows_in_doubt(table)
        done.in_logs = _originals(table, host)
        if table.name()[-1] == "flows":
            # The keys of the host's flows are those of files that left the table.
            index = lake_merge.tidy(opened, namespace, snapshots_s=None, forget=True)
            if index is not None and index.state is not None:
                done.keys_in_doubt = index.state.gone
                done.index_snapshots_left = index.state.snapshots
        found.append(done)
    return found


def _originals(table: Table, host: str) -> list[str]:
    """The files of logs from which this host was erased, now or earlier, and whose copies are in
    the table: they have the host as long as the log has them."""
    mark, found = _mark(table, host), []
    for file in all_files(table):
        if replaces(file.file_path) is None:
            continue
        with reading(file.file_path), table.io.new_input(file.file_path).open() as opened:
            about = pq.read_schema(opened).metadata or {}
        if ORIGINAL in about and mark in _marks(about):
            found.append(about[ORIGINAL].decode())
    return sorted(found)


def _marks(about: dict[bytes, bytes]) -> list[str]:
    return about.get(MARKS, b"").decode().split()


def _mark(table: Table, host: str) -> str:
    """What tells later that this host was erased from a file, without its address: as slow to
    compute as a password's hash (RFC 7914), so that trying all addresses of IPv4 takes years."""
    salt = table.metadata.table_uuid.bytes
    return hashlib.scrypt(host.encode(), salt=salt, n=1 << 14, r=8, p=1, dklen=16).hex()


def _rows(table: Table) -> int:
    return sum(file.record_count for file in all_files(table))


def _rows_with(table: Table, host: str) -> int:
    """As an engine counts them."""
    if table.current_snapshot() is None:
        return 0
    source, target = _columns(table, ENDS)
    ends = Or(EqualTo(source, host), EqualTo(target, host))
    return table.scan(row_filter=ends, selected_fields=(source, target)).to_arrow().num_rows


def _columns(table: Table, names: tuple[str, ...]) -> tuple[str, ...]:
    """The names in the table of columns that files have under these names, as far as there are
    any."""
    found = (column_of(table, name) for name in names)
    return tuple(column.name for column in found if column is not None)


def _answers_with(table: Table, host: str) -> int:
    names = _columns(table, LISTS)
    if not names or table.current_snapshot() is None:
        return 0
    batches = table.scan(selected_fields=names).to_arrow_batch_reader()
    columns = (column for batch in batches for column in batch.columns)
    return sum(pc.sum(_names_host(column, host)).as_py() or 0 for column in columns)


def _texts_with(table: Table, host: str) -> int:
    ends = _columns(table, ENDS)
    names = tuple(
        column.name
        for column in table.schema().columns
        if isinstance(column.field_type, StringType) and column.name not in (*ends, *PARTITIONS)
    )
    if not names or table.current_snapshot() is None:
        return 0
    pattern, found = _pattern(host), 0
    for batch in table.scan(selected_fields=names).to_arrow_batch_reader():
        is_named = pa.array([False] * batch.num_rows)
        for column in batch.columns:
            named = pc.match_substring_regex(column, pattern, ignore_case=True)
            is_named = pc.or_(is_named, pc.fill_null(named, False))
        found += pc.sum(is_named).as_py() or 0
    return found


def _pattern(host: str) -> str:
    """The address or its name for PTR queries, but no part of a longer address. Spellings of IPv6
    other than the usual one are not found."""
    of = ipaddress.ip_address(host)
    name = rf"(^|[^0-9a-f.]){re.escape(of.reverse_pointer)}($|[^0-9a-z-])"
    if of.version == 4:
        return rf"(^|[^0-9.]){re.escape(host)}($|[^0-9.]|\.($|[^0-9]))|{name}"
    return rf"(^|[^0-9a-f:]){re.escape(host)}($|[^0-9a-f:])|{name}"


def _entries_of_removed(table: Table) -> int:
    snapshot = table.current_snapshot()
    manifests = snapshot.manifests(table.io) if snapshot else []
    return sum(manifest.deleted_files_count or 0 for manifest in manifests)


def _flows_in_doubt(table: Table) -> int:
    columns = _columns(table, ("hides_addresses",))
    if not columns or table.current_snapshot() is None:
        return 0
    return table.scan(row_filter=EqualTo(columns[0], True), selected_fields=columns).count()


def _rewritten(
    table: Table, host: str, done: Erased, written: list[str]
) -> tuple[list[DataFile], list[DataFile]]:
    """The files that have the host, and those to take their place."""
    added, removed, mark = [], [], _mark(table, host)
    for file in all_files(table):
        sensor, hour, retention = part_of(file)
        with ExitStack() as stack:
            with reading(file.file_path):
                opened = stack.enter_context(table.io.new_input(file.file_path).open())
                source = pq.ParquetFile(opened)
                if not _has(source, host):
                    continue
            log_id = table.properties.get(lake.LOG_OF + sensor)
            if log_id is None:
                raise LakeError(
                    f"{name_of(table)}: it is unknown from which log the files of sensor "
                    f"'{sensor}' are, so a publication would bring the host back: publish the log "
                    "first"
                )
            key = replaces(file.file_path) or replaced_by(log_id, file.file_path)
            location = table.location().rstrip("/")
            url = f"{location}/{ERASED}/{key}-{uuid.uuid4().hex}.parquet"
            written.append(url)
            rows, answers = _write_without(table, source, host, mark, (file.file_path, url))
        size = len(table.io.new_input(url))
        done.files.append(Replaced(file.file_path, url, file.record_count, rows, answers))
        added.append(data_file(table, PartFile(url, size, hour, retention), sensor))
        removed.append(file)
    return added, removed


def _named_in(rows: pa.Table, host: str) -> dict[str, pa.Array]:
    """Rows whose lists of addresses have the host, by column."""
    return {name: _names_host(rows[name], host) for name in LISTS if name in rows.column_names}


def _names_host(lists: pa.Array | pa.ChunkedArray, host: str) -> pa.Array:
    return pc.fill_null(pc.match_substring(lists, json.dumps(host)), False)


def _of_host(rows: pa.Table, host: str) -> pa.Array:
    """Whether the host is an end of each row's packets."""
    source, target = (pc.fill_null(pc.equal(rows[end], host), False) for end in ENDS)
    return pc.or_(source, target)


def _has(source: pq.ParquetFile, host: str) -> bool:
    names = [name for name in (*ENDS, *LISTS) if name in source.schema_arrow.names]
    for group in range(source.num_row_groups):
        rows = source.read_row_group(group, columns=names)
        masks = [_of_host(rows, host), *_named_in(rows, host).values()]
        if any(pc.any(mask).as_py() for mask in masks):
            return True
    return False


def _write_without(
    table: Table, source: pq.ParquetFile, host: str, mark: str, urls: tuple[str, str]
) -> tuple[int, int]:
    """Writes the rows of the first file without the host, as the second, with its mark. Returns
    the number of rows left out, and of answers that named the host."""
    url, copy = urls
    schema = source.schema_arrow
    about = {key: value for key, value in (schema.metadata or {}).items() if key != COUNTS}
    if replaces(url) is None:
        about[ORIGINAL] = url.encode()
    about[MARKS] = " ".join([*_marks(about), mark]).encode()
    schema = schema.with_metadata(about)
    erased = answers = 0
    with (
        table.io.new_output(copy).create() as opened,
        pq.ParquetWriter(opened, schema, compression="zstd") as to,
    ):
        for group in range(source.num_row_groups):
            with reading(url):
                rows = source.read_row_group(group)
            kept = rows.filter(pc.invert(_of_host(rows, host)))
            erased += rows.num_rows - kept.num_rows
            for name, named in _named_in(kept, host).items():
                answers += pc.sum(named).as_py() or 0
                values = pc.if_else(named, pa.scalar(None, kept[name].type), kept[name])
                at = kept.column_names.index(name)
                kept = kept.set_column(at, schema.field(name), values)
            to.write_table(kept.cast(schema))
    return erased, answers


def printed(host: str, found: list[Erased], as_json: bool) -> str:
    """The proof, for people or as JSON."""
    if as_json:
        complete = all(one.is_complete for one in found)
        tables = [asdict(one) for one in found]
        return json.dumps({"host": address(host), "complete": complete, "tables": tables})
    lines = []
    for one in found:
        erased = sum(file.rows_erased for file in one.files)
        answers = sum(file.answers_erased for file in one.files)
        lines.append(
            f"{one.table}: {erased:,} rows of {address(host)} erased, in {len(one.files):,} files "
            f"that others replace: {one.rows_before:,} rows before, {one.rows_after:,} after, "
            f"{one.rows_left:,} with the host"
        )
        if answers or one.answers_left:
            lines.append(
                f"  {answers:,} answers of DNS to others named it: they are NULL now; "
                f"{one.answers_left:,} are left"
            )
        lines += [
            f"  {file.file}: {file.rows_erased:,} of {file.rows:,} rows; now {file.by}"
            for file in one.files
        ]
        lines.append(
            f"  {one.snapshots_expired:,} snapshots expired, {one.snapshots_left:,} left; "
            f"{one.files_deleted:,} of their files deleted"
        )
        if one.snapshots_left > 1:
            lines.append("  tags or branches keep snapshots, in which the rows still are")
        if one.entries_left:
            lines.append(
                f"  {one.entries_left:,} entries of removed files are left in the metadata: their "
                "bounds may be the host's address; run the command again"
            )
        if one.keys_in_doubt or one.index_snapshots_left > 1:
            lines.append(
                f"  the index has keys of {one.keys_in_doubt:,} files that are not in the table, "
                f"and {one.index_snapshots_left:,} snapshots: run the command again"
            )
        if one.flows_in_doubt:
            lines.append(
                f"  {one.flows_in_doubt:,} flows may have further addresses, which their rows lack"
            )
        if one.texts_left:
            lines.append(
                f"  {one.texts_left:,} rows of other hosts name it in a text, such as a PTR query, "
                "an HTTP host or a share: these texts stay"
            )
        if one.in_logs:
            lines.append(
                f"  {len(one.in_logs):,} files of the sensors' logs still have the host, until "
                "`strata prune` deletes them there"
            )
    return "\n".join(lines)
