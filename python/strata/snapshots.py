"""Snapshots: the features of each packet at the moment it arrived, and its label."""

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import field as dataclass_field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

BENIGN = "benign"
# See `Snapshots.counts`.
COUNTS = (
    *("unlabelled", "near_alert", "without_flow", "repeated", "double"),
    *("logged", "cut", "not_logged"),
)
# Columns that are not features.
LEADING = ("frame", "ts_ns", "flow", "in_flow", "has_bucket", "wire_len", "label", "source")


class SnapshotError(ValueError):
    """The file was not written by `strata features -o FILE.parquet`, or is not usable."""


@dataclass(frozen=True)
class Named:
    """A file with another name in messages and models than its path, as if it is in memory."""

    path: str
    name: str

    def __fspath__(self) -> str:
        return self.path

    def __str__(self) -> str:
        return self.name


@dataclass
class Snapshots:
    """Rows of one or more captures; all arrays have one entry per row."""

    columns: dict[str, np.ndarray]
    units: dict[str, str]
    """By feature."""
    settings: dict[str, str]
    """Window (ns), arithmetic and buckets of the flow table, as a model has them."""
    names: list[str]
    """Of the files."""
    counts: dict[str, int] = dataclass_field(default_factory=dict)
    """Of packets and labels that are not rows: `unlabelled`, some `near_alert`, `without_flow`,
    `repeated` lines of label files, `double` packets that several files have; of packets that come
    from logs: `logged`, `cut` after the headers, `not_logged`."""

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

    def strata(self) -> np.ndarray:
        """Class and source of each row, in a word."""
        return np.char.add(np.char.add(self.label, "\n"), self.source)

    def where(self, rows: np.ndarray) -> "Snapshots":
        """The rows of a mask or of indices."""
        columns = {name: column[rows] for name, column in self.columns.items()}
        return Snapshots(columns, self.units, self.settings, self.names, self.counts)

    def labels(self) -> dict[str, Any]:
        """Packets and flows by class, what has no label, and flows with packets of several
        classes."""
        flow = self.columns["flow"]
        classes = {}
        for name in np.unique(self.label):
            here = self.label == name
            classes[str(name)] = {
                "packets": int(here.sum()),
                "flows": len(np.unique(flow[here])),
            }
        flows = sum(row["flows"] for row in classes.values())
        _, number = np.unique(flow, return_inverse=True)
        _, kind = np.unique(self.label, return_inverse=True)
        pairs = np.unique(number * len(classes) + kind) // len(classes)
        mixed = int(np.sum(np.bincount(pairs) > 1))
        assert flows == len(pairs)
        return {"classes": classes, "mixed_flows": mixed, **self.counts}


def words(column: pa.ChunkedArray, missing: str = "") -> np.ndarray:
    """A text column as an array of `str`."""
    return np.array([missing if word is None else word for word in column.to_pylist()])


def _numbers(path: str | Path | Named, name: str, column: pa.ChunkedArray) -> np.ndarray:
    """A column of numbers. The program writes finite ones only: no tree can split others, and no
    model file can hold them."""
    values = column.to_numpy()
    if values.dtype.kind == "O" or column.null_count:
        raise SnapshotError(f"{path}: column {name}: has values that are no numbers")
    if values.dtype.kind == "f" and not (finite := np.isfinite(values)).all():
        row = int(np.argmin(finite))
        raise SnapshotError(
            f"{path}: column {name}: row {row + 1} is {values[row]}, as are "
            f"{np.sum(~finite) - 1} others; `strata features` writes finite numbers only"
        )
    return values


def load(paths: Sequence[str | Path | Named], *, unlabelled: bool = False) -> Snapshots:
    """Reads labelled snapshots; rows without label are skipped unless `unlabelled`, and so are
    packets that an earlier file has. The same addresses and ports in several files are one flow: a
    capture may be in several files. Raises `SnapshotError` if a file is something else, has no
    labels, or was made with another window, or if files contradict each other."""
    parts, settings, units = [], None, {}
    counts = dict.fromkeys(COUNTS, 0)
    for path in paths:
        try:
            table = pq.read_table(os.fspath(path))
        except (OSError, pa.ArrowInvalid) as error:
            raise SnapshotError(f"{path}: cannot read: {error}") from error
        about = {k.decode(): v.decode() for k, v in (table.schema.metadata or {}).items()}
        here = {k: v for k, v in about.items() if k.startswith("strata.")}
        # Counts are known at the end of a file.
        told = pq.read_metadata(os.fspath(path)).metadata.get(b"strata.labels", b"{}")
        here.pop("strata.labels", None)
        told = json.loads(told)
        for name, count in {**told, **(told.get("of_logs") or {})}.items():
            # Rows tell the others.
            if name in COUNTS and name != "unlabelled":
                # Null without labels.
                counts[name] += count or 0
        if "strata.window_ns" not in here or "label" not in table.column_names:
            raise SnapshotError(f"{path}: was not made by `strata features -o FILE.parquet`")
        if settings is not None and here != settings:
            raise SnapshotError(f"{path}: made with {here}, but the files before with {settings}")
        settings = here
        columns: dict[str, Any] = {}
        for field in table.schema:
            column = table[field.name]
            is_word = pa.types.is_dictionary(field.type)
            columns[field.name] = words(column) if is_word else _numbers(path, field.name, column)
            units[field.name] = (field.metadata or {}).get(b"unit", b"").decode()
        parts.append(columns)
    if settings is None:
        raise SnapshotError("no snapshots given")
    merged = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    number = np.repeat(np.arange(len(parts)), [len(part["frame"]) for part in parts])
    rows = merged["label"] != ""
    if unlabelled:
        rows = np.ones(len(rows), bool)
    counts["unlabelled"] = int(np.sum(~rows))
    if not rows.any() and not unlabelled:
        raise SnapshotError(f"{paths[0]}: no packet has a label; give --labels to strata features")
    names = [Path(str(path)).name for path in paths]
    labelled = Snapshots(merged, units, settings, names, counts).where(rows)
    first = _first_of(labelled)
    double = first != np.arange(len(first))
    counts["double"] = int(double.sum())
    contradicts = np.flatnonzero(labelled.label != labelled.label[first])
    if len(contradicts):
        here, there = contradicts[0], first[contradicts[0]]
        files = number[rows]
        raise SnapshotError(
            f"{paths[files[here]]}: packet {labelled.columns['frame'][here]} is "
            f"'{labelled.label[here]}', but '{labelled.label[there]}' as packet "
            f"{labelled.columns['frame'][there]} of {paths[files[there]]}; {len(contradicts)} "
            "packets contradict each other: leave one of the files out, or correct its labels"
        )
    return labelled.where(~double)


def _first_of(data: Snapshots) -> np.ndarray:
    """For each row the first row with the same packet."""
    packet = np.zeros(len(data), np.uint64)
    for name in ("ts_ns", "flow", "in_flow", "wire_len"):
        # A 64-bit hash of the four: odd factors and shifts mix them.
        packet ^= data.columns[name].astype(np.uint64)
        packet *= np.uint64(0x9E3779B97F4A7C15)
        packet ^= packet >> np.uint64(29)
    _, first, inverse = np.unique(packet, return_index=True, return_inverse=True)
    return first[inverse]
