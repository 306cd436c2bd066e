"""`strata lake query`: SQL over chosen files of the tables of many sensors, by DuckDB, which reads
them through the catalog's own access to its store."""

import io
import json
import threading
from collections.abc import Collection
from datetime import UTC, datetime
from typing import Any

import duckdb
from fsspec.spec import AbstractFileSystem
from pyiceberg.io import FileIO
from pyiceberg.manifest import DataFile

from . import lake
from .lake_files import PARTITIONS, LakeError
from .lake_reads import Chosen, Counted, Reads, as_text, planned
from .lake_upkeep import counted, part_of, tables

# Characters of a value that are shown to people.
TEXT_MAX = 64


class _Shared(Counted):
    """A file that threads of DuckDB read at once: each has a place in it, since it seeks and reads
    in two steps."""

    def __init__(self, source: Any, url: str, reads: Reads):
        super().__init__(source, url, reads)
        self._lock = threading.Lock()
        self._places: dict[int, int] = {}

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        with self._lock:
            if whence == io.SEEK_CUR:
                offset += self._places.get(threading.get_ident(), 0)
            elif whence == io.SEEK_END:
                offset += self.source.seek(0, io.SEEK_END) or self.source.tell()
            self._places[threading.get_ident()] = offset
            return offset

    def tell(self) -> int:
        return self._places.get(threading.get_ident(), 0)

    def read(self, size: int = -1) -> bytes:
        with self._lock:
            place = self._places.get(threading.get_ident(), 0)
            self.source.seek(place)
            found = super().read(size)
            self._places[threading.get_ident()] = place + len(found)
            return found


class _Store(AbstractFileSystem):
    """The files of a catalog's store, for DuckDB: `lake://PARTITIONS/NUMBER.parquet`."""

    protocol = "lake"
    cachable = False

    def __init__(self, store: FileIO, reads: Reads):
        super().__init__()
        self.store, self.reads = store, reads
        self.files: dict[str, DataFile] = {}

    def add(self, file: DataFile) -> str:
        """The name of a file, which has its partition as DuckDB reads it from paths."""
        partition = zip(PARTITIONS, part_of(file), strict=True)
        folders = "/".join(f"{name}={value}" for name, value in partition)
        name = f"{folders}/{len(self.files)}.parquet"
        self.files[name] = file
        return f"lake://{name}"

    def _of(self, path: str) -> DataFile:
        return self.files[path.removeprefix("lake://")]

    def info(self, path: str, **_: Any) -> dict[str, Any]:
        return {"name": path, "size": self._of(path).file_size_in_bytes, "type": "file"}

    def glob(self, path: str, **_: Any) -> list[str]:
        return [path.removeprefix("lake://")]

    def created(self, path: str) -> datetime:
        return datetime.fromtimestamp(0, UTC)

    modified = created

    def open(self, path: str, mode: str = "rb", **_: Any) -> Any:
        url = self._of(path).file_path
        return _Shared(self.store.new_input(url).open(), url, self.reads)


def connect(
    catalog_name: str,
    namespace: str,
    *,
    warehouse: str | None = None,
    chosen: Chosen = Chosen(),  # noqa: B008
    kinds: Collection[str] = lake.TABLES,
) -> tuple[duckdb.DuckDBPyConnection, Reads]:
    """A DuckDB connection with the views `packets` and `flows`, or one of them, of the files that
    may have chosen rows, and what is read through it. Conditions on `sensor`, `hour` and
    `retention` choose files too. Raises `LakeError`, or an error of the catalog."""
    opened = lake.catalog(catalog_name, warehouse)
    connection, reads = duckdb.connect(), Reads()
    there = [table for table in tables(opened, namespace) if table.name()[-1] in kinds]
    if not there:
        return connection, reads
    store = _Store(there[0].io, reads)
    connection.register_filesystem(store)
    for table in there:
        kind = table.name()[-1]
        files = planned(table, chosen)
        if not files:
            columns = ", ".join(
                f'NULL::VARCHAR AS "{column.name}"' for column in table.schema().columns
            )
            connection.execute(f"CREATE VIEW {kind} AS SELECT {columns} WHERE false")
            continue
        # If all files have the same columns, DuckDB needs to read only those that SQL chooses.
        are_alike = len({tuple(sorted(file.value_counts or {})) for file in files}) == 1
        paths = ", ".join("'" + store.add(file).replace("'", "''") + "'" for file in files)
        of_files = (
            f"read_parquet([{paths}], hive_partitioning = true, hive_types_autocast = false, "
            f"union_by_name = {'false' if are_alike else 'true'})"
        )
        of_rows = chosen.of_rows(table, kind)
        connection.execute(f"CREATE VIEW {kind} AS SELECT * FROM {of_files} WHERE {of_rows}")
    return connection, reads


def query(
    sql: str,
    catalog_name: str,
    namespace: str,
    *,
    warehouse: str | None = None,
    chosen: Chosen = Chosen(),  # noqa: B008
) -> tuple[list[str], list[tuple[Any, ...]], Reads]:
    """The columns and rows of the result of a statement, and what was read. Raises `LakeError` if
    DuckDB refuses the statement, or an error of the catalog."""
    kinds = [kind for kind in lake.TABLES if kind in sql.lower()]
    connection, reads = connect(
        catalog_name, namespace, warehouse=warehouse, chosen=chosen, kinds=kinds
    )
    try:
        result = connection.execute(sql)
        return [one[0] for one in result.description or ()], result.fetchall(), reads
    except duckdb.Error as error:
        raise LakeError(f"{error}") from error


def printed(columns: list[str], rows: list[tuple[Any, ...]], reads: Reads, as_json: bool) -> str:
    """The result for people, with what was read, or as JSON."""
    if as_json:
        objects = [dict(zip(columns, row, strict=True)) for row in rows]
        return json.dumps(
            {"rows": objects, "files": reads.files, "bytes": reads.bytes}, default=as_text
        )
    texts = [columns] + [[_cell(value) for value in row] for row in rows]
    widths = [max(len(row[at]) for row in texts) for at in range(len(columns))]
    lines = [
        "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip()
        for row in texts
    ]
    lines.append(f"read {reads.bytes:,} bytes of {counted(reads.files, 'file')}")
    return "\n".join(lines)


def _cell(value: Any) -> str:
    text = "NULL" if value is None else as_text(value)
    text = "".join(c if c.isprintable() else "\N{MIDDLE DOT}" for c in text)
    return text if len(text) <= TEXT_MAX else text[: TEXT_MAX - 1] + "\N{HORIZONTAL ELLIPSIS}"
