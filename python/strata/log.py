"""Logs in DuckDB: the tables of `strata query`, from Python.

    import strata.log

    db = strata.log.connect("log/")
    db.sql("SELECT dst, count(*) FROM packets GROUP BY dst ORDER BY 2 DESC LIMIT 5").df()

The tables `packets` and `flows` are the log's own files, as docs/formats/archive.md
describes them, and nothing is copied.
"""

import json
import re
import warnings
from pathlib import Path

import duckdb

TABLES = ("packets", "flows")


class LogError(RuntimeError):
    """The directory is not a log, or none of it is compacted."""


def files(log: str | Path, kind: str) -> list[str]:
    """The log's files of a kind (`packets`, `flows`, `payload`), oldest first. Raises
    `LogError` if there is no log."""
    log = Path(log)
    if not (log / "manifest.json").exists():
        raise LogError(f"{log}: no log here: name a directory that `strata record -o` made")
    archive = log / "archive.json"
    if not archive.exists():
        return []
    parts = json.loads(archive.read_text())["parts"]
    listed = [file["name"] for part in parts for file in part["files"] if file["kind"] == kind]
    # Files stored elsewhere have a URL for a name, which DuckDB and pyarrow support too.
    return [name.removeprefix("file://") if "://" in name else str(log / name) for name in listed]


def not_compacted(log: str | Path) -> int:
    """How many block files of the log are not in its tables."""
    log = Path(log)
    recordings = json.loads((log / "manifest.json").read_text())["recordings"]
    archive = log / "archive.json"
    gone = json.loads(archive.read_text())["gone"] if archive.exists() else []
    names = {file["name"] for recording in recordings for file in recording["files"]}
    return len(names - {file["name"] for file in gone})


def _literal(name: str) -> str:
    """A file's name for DuckDB's SQL, which takes `*`, `?` and `[` in it for a pattern."""
    plain = re.sub(r"[*?\[]", r"[\g<0>]", name)
    return "'" + plain.replace("'", "''") + "'"


def connect(log: str | Path) -> duckdb.DuckDBPyConnection:
    """A DuckDB connection with the views `packets` and `flows`. Warns if some of the
    log is still in block files; raises `LogError` if all of it is, or it is encrypted."""
    tables = {table: files(log, table) for table in TABLES}
    left = not_compacted(log)
    if not all(tables.values()):
        raise LogError(f"{log}: nothing is compacted yet: run `strata compact {log}`")
    if any(name.endswith(".age") for names in tables.values() for name in names):
        raise LogError(
            f"{log}: the log is encrypted, which DuckDB cannot read: query it with "
            f"`strata query {log} --key FILE`"
        )
    if left:
        warnings.warn(
            f"{log}: {left} block files are not compacted yet, so they are missing here: "
            "run `strata compact`, or query with `strata query`",
            stacklevel=2,
        )
    connection = duckdb.connect()
    for table, names in tables.items():
        paths = ", ".join(_literal(name) for name in names)
        # Files of earlier versions lack columns.
        files_of = f"read_parquet([{paths}], union_by_name = true)"
        connection.execute(f"CREATE VIEW {table} AS SELECT * FROM {files_of}")
    return connection
