"""Logs with compacted files, made without the program: a few columns, as archive.md has them."""

import json
import random
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

BEGAN = datetime(2026, 1, 31, 12, tzinfo=UTC)
TIME = pa.timestamp("us", "UTC")
# With the field ids that follow from the order.
COLUMNS = {
    "packets": [
        ("time", TIME, False),
        ("time_ns", pa.int16(), False),
        ("src", pa.string(), True),
        ("dst", pa.string(), True),
        ("wire_bytes", pa.int64(), False),
    ],
    "flows": [
        ("last_time", TIME, False),
        ("src", pa.string(), True),
        ("dst", pa.string(), True),
        ("dns_answers", pa.string(), True),
        ("hides_addresses", pa.bool_(), False),
    ],
}


def schema(kind, with_ids=True, columns=None):
    fields = []
    for at, (name, of, optional) in enumerate(columns or COLUMNS[kind], start=1):
        about = {b"PARQUET:field_id": str(at).encode()} if with_ids else None
        fields.append(pa.field(name, of, optional, about))
    return pa.schema(fields, {b"strata.counts": b"{}", b"strata.part": b"1"})


def address(chance):
    return f"10.0.0.{chance.randrange(1, 30)}"


def rows(kind, began, count, chance):
    """Rows of an hour, in the order of the columns."""
    for _ in range(count):
        time = began + timedelta(microseconds=chance.randrange(3_600_000_000))
        ends = address(chance), address(chance)
        if kind == "packets":
            yield time, chance.randrange(1000), *ends, chance.randrange(60, 1500)
        else:
            answers = json.dumps([address(chance) for _ in range(chance.randrange(3))])
            yield time, *ends, chance.choice([None, answers]), chance.random() < 0.1


def log(place: Path, seed=1, hours=3, count=100, with_ids=True, began=BEGAN) -> Path:
    """A log with a part for each hour and of two retention classes."""
    chance = random.Random(seed)
    parts = []
    for at in range(2 * hours):
        hour = began + timedelta(hours=at // 2)
        retention = ("benign", "anomalous")[at % 2]
        files = []
        for kind in COLUMNS:
            name = f"{kind}/hour={hour:%Y-%m-%dT%H}/retention={retention}/{at + 1:08}.parquet"
            path = place / name
            path.parent.mkdir(parents=True, exist_ok=True)
            values = zip(*rows(kind, hour, count, chance), strict=True)
            of = schema(kind, with_ids)
            table = pa.table([pa.array(v, f.type) for v, f in zip(values, of, strict=True)], of)
            pq.write_table(table, path, row_group_size=count // 2, compression="zstd")
            files.append({"name": name, "kind": kind, "bytes": path.stat().st_size})
        parts.append({"hour": f"{hour:%Y-%m-%dT%H}", "retention": retention, "files": files})
    recording = {"started_ns": 1, "hash_seed": [seed], "files": []}
    (place / "manifest.json").write_text(json.dumps({"recordings": [recording]}))
    (place / "archive.json").write_text(json.dumps({"parts": parts, "gone": []}))
    return place


def without(made: Path, is_gone) -> None:
    """Removes parts from a log, as `prune` does."""
    archive = made / "archive.json"
    content = json.loads(archive.read_text())
    content["parts"] = [part for part in content["parts"] if not is_gone(part)]
    new = made / "new.json"
    new.write_text(json.dumps(content))
    new.rename(archive)


def moved(made: Path, to: Path) -> None:
    """Moves the files of a log, as `strata move` does: their names are URLs then."""
    archive = made / "archive.json"
    content = json.loads(archive.read_text())
    for part in content["parts"]:
        for file in part["files"]:
            there = to / file["name"]
            there.parent.mkdir(parents=True, exist_ok=True)
            (made / file["name"]).rename(there)
            file["name"] = f"file://{there}"
    archive.write_text(json.dumps(content))
