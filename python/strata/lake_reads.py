"""Reading the tables of many sensors: files chosen by partitions and bounds, and a count of what is
read of them."""

import io
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow.parquet as pq
from pyiceberg.expressions import (
    AlwaysTrue,
    And,
    BooleanExpression,
    EqualTo,
    GreaterThanOrEqual,
    LessThan,
)
from pyiceberg.io import FileIO
from pyiceberg.manifest import DataFile
from pyiceberg.table import Table

from .lake_files import all_files, column_of, reading

# Columns of time: of the first and the last packet of a row.
SPANS = {"packets": ("time", "time"), "flows": ("first_time", "last_time")}


@dataclass
class Reads:
    """What was read of some files. Threads may share it."""

    urls: set[str] = field(default_factory=set)
    bytes: int = 0
    requests: int = 0
    _lock: Any = field(default_factory=threading.Lock, repr=False)

    def add(self, size: int) -> None:
        with self._lock:
            self.bytes += size
            self.requests += 1

    def opened(self, url: str) -> None:
        with self._lock:
            self.urls.add(url)

    @property
    def files(self) -> int:
        return len(self.urls)


class Counted(io.RawIOBase):
    """A file whose reads are counted."""

    def __init__(self, source: Any, url: str, reads: Reads):
        self.source, self.reads = source, reads
        reads.opened(url)

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self.source.seek(offset, whence)
        return self.source.tell()

    def tell(self) -> int:
        return self.source.tell()

    def read(self, size: int = -1) -> bytes:
        found = self.source.read() if size is None or size < 0 else self.source.read(size)
        self.reads.add(len(found))
        return bytes(found)

    def readinto(self, to: Any) -> int:
        found = self.read(len(to))
        to[: len(found)] = found
        return len(found)

    def close(self) -> None:
        if not self.closed:
            self.source.close()
        super().close()


@contextmanager
def open_counted(store: FileIO, url: str, reads: Reads) -> Iterator[pq.ParquetFile]:
    with reading(url), Counted(store.new_input(url).open(), url, reads) as opened:
        yield pq.ParquetFile(opened, page_checksum_verification=True)


@dataclass(frozen=True)
class Chosen:
    """Which rows: of times from one on and before another, of a sensor."""

    from_us: int | None = None
    to_us: int | None = None
    sensor: str | None = None

    def of_files(self, table: Table, kind: str) -> BooleanExpression:
        """What files have that may have such rows, by partitions and bounds."""
        found: BooleanExpression = AlwaysTrue()
        if self.sensor is not None:
            found = And(found, EqualTo("sensor", self.sensor))
        first, last = (column_of(table, name) for name in SPANS[kind])
        if self.from_us is not None:
            # A run's hour is that of its first packet; it ends with the hour.
            began = time_of(self.from_us) - timedelta(hours=1)
            found = And(found, GreaterThanOrEqual("hour", f"{began:%Y-%m-%dT%H}"))
            if last is not None:
                found = And(found, GreaterThanOrEqual(last.name, time_of(self.from_us).isoformat()))
        # Not by the hour: late packets are in a later one.
        if self.to_us is not None and first is not None:
            found = And(found, LessThan(first.name, time_of(self.to_us).isoformat()))
        return found

    def of_rows(self, table: Table, kind: str) -> str:
        """The same of rows, in SQL, with the names of columns in files."""
        first, last = SPANS[kind]
        conditions = ["true"]
        if self.from_us is not None and column_of(table, last) is not None:
            conditions.append(f"{last} >= make_timestamptz({self.from_us})")
        if self.to_us is not None and column_of(table, first) is not None:
            conditions.append(f"{first} < make_timestamptz({self.to_us})")
        return " AND ".join(conditions)


def time_of(us: int) -> datetime:
    return datetime.fromtimestamp(0, UTC) + timedelta(microseconds=us)


def planned(table: Table, chosen: Chosen) -> list[DataFile]:
    """The files that may have chosen rows, by partitions and bounds."""
    if table.current_snapshot() is None:
        return []
    if chosen == Chosen():
        return [file for file in all_files(table) if file.record_count]
    scan = table.scan(row_filter=chosen.of_files(table, table.name()[-1]))
    return [task.file for task in scan.plan_files()]


def as_text(value: Any) -> str:
    return value.isoformat() if isinstance(value, datetime) else str(value)
