"""Iceberg tables of many sensors. Without a part: planning a query, by pyiceberg, on generated
metadata, as `strata publish` commits it. `lake:find`: finding a flow among published logs."""

import statistics
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "python"))

import lake_finding
import pyarrow as pa
from pyiceberg.conversions import to_bytes
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.transforms import IdentityTransform
from pyiceberg.typedef import Record
from strata import lake, lake_upkeep
from strata.lake_files import PARTITIONS, table_schema

TITLE = "Planning over tables of many sensors"
SENSORS = 50
CLASSES = ("benign", "anomalous")
BEGAN = datetime(2026, 1, 1, tzinfo=UTC)
# Columns with bounds, as in `packets`.
INTS, TEXTS = 37, 6
RUNS = 5
HOURS_A_COMMIT = 10


def columns():
    fields = [("time", pa.timestamp("us", "UTC"))]
    fields += [(f"int_{at}", pa.int64()) for at in range(INTS)]
    fields += [(f"text_{at}", pa.string()) for at in range(TEXTS)]
    return [
        pa.field(name, of, True, {b"PARQUET:field_id": str(at).encode()})
        for at, (name, of) in enumerate(fields, start=1)
    ]


def table_of(directory, hours):
    """A table with a file for each sensor, hour and class; a commit has some hours of all."""
    catalog = lake.catalog(f"sqlite:///{directory}/lake.db", f"file://{directory}/lake")
    catalog.create_namespace("site")
    schema, mapping = table_schema(pa.schema(columns()))
    fields = [
        PartitionField(schema.find_field(name).field_id, 1000 + at, IdentityTransform(), name)
        for at, name in enumerate(PARTITIONS)
    ]
    properties = {"schema.name-mapping.default": mapping.model_dump_json(), **lake.SETTINGS}
    table = catalog.create_table(
        "site.packets", schema, partition_spec=PartitionSpec(*fields), properties=properties
    )
    for first in range(0, hours, HOURS_A_COMMIT):
        added = [
            data_file(table.schema(), sensor, BEGAN + timedelta(hours=hour), retention)
            for hour in range(first, min(first + HOURS_A_COMMIT, hours))
            for sensor in range(SENSORS)
            for retention in CLASSES
        ]
        lake.commit(table, added, [], {}, [])
        table = table.refresh()
    return table


def data_file(schema, sensor, hour, retention):
    name = f"hour={hour:%Y-%m-%dT%H}/retention={retention}/{sensor:08}.parquet"
    lower, upper, counts = {}, {}, {}
    for column in schema.columns:
        of = column.field_type
        if column.name in PARTITIONS:
            continue
        counts[column.field_id] = 500_000
        if column.name == "time":
            micros = int(hour.timestamp() * 1_000_000)
            bounds = micros, micros + 3_599_999_999
        elif column.name.startswith("int"):
            bounds = 60, 1500
        else:
            bounds = "10.0.0.1", "192.168.7.14"
        lower[column.field_id], upper[column.field_id] = (to_bytes(of, one) for one in bounds)
    return DataFile.from_args(
        content=DataFileContent.DATA,
        file_path=f"s3://traffic/edge{sensor}/packets/{name}",
        file_format=FileFormat.PARQUET,
        partition=Record(f"edge{sensor}", f"{hour:%Y-%m-%dT%H}", retention),
        file_size_in_bytes=20_000_000,
        record_count=500_000,
        column_sizes=counts,
        value_counts=counts,
        null_value_counts=dict.fromkeys(counts, 0),
        nan_value_counts={},
        lower_bounds=lower,
        upper_bounds=upper,
        split_offsets=[4],
        sort_order_id=None,
        spec_id=0,
        equality_ids=None,
        key_metadata=None,
    )


def planned(table, row_filter):
    """Files of a plan, and the median time to make it, with metadata read again each time."""
    took = []
    for _ in range(RUNS):
        began = time.perf_counter()
        files = sum(1 for _ in table.refresh().scan(row_filter=row_filter).plan_files())
        took.append(time.perf_counter() - began)
    return files, statistics.median(took)


def measure(context):
    if context.part == "find":
        return lake_finding.measure(context)
    hours = 50 if context.quick else 500
    table = table_of(context.directory, hours)
    day = BEGAN + timedelta(hours=hours // 2)
    until = day + timedelta(hours=24)
    filters = {
        "all files": AlwaysTrue(),
        "a day": f"hour >= '{day:%Y-%m-%dT%H}' AND hour < '{until:%Y-%m-%dT%H}'",
        "an hour of a sensor": f"hour = '{day:%Y-%m-%dT%H}' AND sensor = 'edge7'",
        "anomalous of a sensor": "retention = 'anomalous' AND sensor = 'edge7'",
        "a minute, by time": f"time >= '{day.isoformat()}' AND time < "
        f"'{(day + timedelta(minutes=1)).isoformat()}'",
    }
    figures, rows = [], []
    for state in ("as published", "after strata lake expire"):
        manifests = len(table.current_snapshot().manifests(table.io))
        for name, row_filter in filters.items():
            files, seconds = planned(table, row_filter)
            figures.append({"state": state, "manifests": manifests, "plan": name, "files": files,
                            "seconds": seconds})
            rows.append([state, manifests, name, files, f"{seconds:.2f}"])
        table = lake_upkeep.merge_manifests(table, 2)
    total = hours * SENSORS * len(CLASSES)
    return {
        "title": TITLE,
        "setup": f"{total:,} files ({SENSORS} sensors, {hours} hours, {len(CLASSES)} classes), "
        f"with bounds of {1 + INTS + TEXTS} columns, published {HOURS_A_COMMIT} hours at a time; a "
        f"catalog in SQLite, metadata on a disk; median of {RUNS} plans by pyiceberg, which reads "
        "the metadata again for each.",
        "figures": figures,
        "tables": [{"columns": ["state", "manifests", "plan", "files", "s"], "rows": rows}],
        "charts": [],
    }

