"""Snapshots: the features of each packet at the moment it arrived, and its label."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

BENIGN = "benign"
# Columns that are not features.
LEADING = ("frame", "ts_ns", "flow", "in_flow", "has_bucket", "wire_len", "label", "source")


class SnapshotError(ValueError):
    """The file was not written by `strata features -o FILE.parquet`, or is not usable."""


@dataclass
class Snapshots:
    """Rows of one or more captures; all arrays have one entry per row."""

    columns: dict[str, np.ndarray]
    units: dict[str, str]
    """By feature."""
    settings: dict[str, str]
    """Window (ns), arithmetic and buckets of the sketches, as a model has them."""
    names: list[str]
    """Of the files."""

    def __len__(self) -> int:
        return len(self.columns["frame"])

    @property
    def label(self) -> np.ndarray:
        """Names of classes."""
        return self.columns["label"]

    @property
    def source(self) -> np.ndarray:
        """Where the packets came from."""
        return self.columns["source"]

    @property
    def attack(self) -> np.ndarray:
        """Whether the class is not benign."""
        return self.label != BENIGN

    @property
    def features(self) -> list[str]:
        """All features in the file."""
        return [name for name in self.columns if name not in LEADING]

    def values(self, features: Sequence[str]) -> np.ndarray:
        """Rows by features, float64."""
        return np.column_stack([self.columns[name].astype(np.float64) for name in features])

    def where(self, rows: np.ndarray) -> "Snapshots":
        """The rows of a mask or of indices."""
        columns = {name: column[rows] for name, column in self.columns.items()}
        return Snapshots(columns, self.units, self.settings, self.names)


def words(column: pa.ChunkedArray, missing: str = "") -> np.ndarray:
    """A text column as an array of `str`."""
    return np.array([missing if word is None else word for word in column.to_pylist()])


def load(paths: Sequence[str | Path]) -> Snapshots:
    """Reads labelled snapshots; rows without label are skipped. Raises `SnapshotError`
    if a file is something else, has no labels, or was made with another window."""
    parts, settings, units = [], None, {}
    for number, path in enumerate(paths):
        try:
            table = pq.read_table(path)
        except (OSError, pa.ArrowInvalid) as error:
            raise SnapshotError(f"{path}: cannot read: {error}") from error
        about = {k.decode(): v.decode() for k, v in (table.schema.metadata or {}).items()}
        here = {k: v for k, v in about.items() if k.startswith("strata.")}
        if "strata.window_ns" not in here or "label" not in table.column_names:
            raise SnapshotError(f"{path}: was not made by `strata features -o FILE.parquet`")
        if settings is not None and here != settings:
            raise SnapshotError(f"{path}: made with {here}, but the files before with {settings}")
        settings = here
        columns: dict[str, Any] = {}
        for field in table.schema:
            column = table[field.name]
            is_word = pa.types.is_dictionary(field.type)
            columns[field.name] = words(column) if is_word else column.to_numpy()
            units[field.name] = (field.metadata or {}).get(b"unit", b"").decode()
        # Flows of different captures are different flows.
        columns["flow"] = columns["flow"] ^ np.uint64(number * 0x9E3779B97F4A7C15 % 2**64)
        parts.append(columns)
    if settings is None:
        raise SnapshotError("no snapshots given")
    merged = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    rows = merged["label"] != ""
    if not rows.any():
        raise SnapshotError(f"{paths[0]}: no packet has a label; give --labels to strata features")
    all_rows = Snapshots(merged, units, settings, [Path(path).name for path in paths])
    return all_rows.where(rows)
