"""How sketches and presets do on links of 100, 200 and 400 Gb/s, in simulated time.

The five days of CIC-IDS2017 as TitanLog's Table IV counts them, from `strata generate`, and real
attacks: a labelled capture in parallel streams, as TitanLog §VIII-E replays its own. Flows contend
for buckets as they would on the link. Models are trained on one half of each day at 100 Gb/s, all
days together, or on one capture of the pair. They are judged on the other, whose flows are others,
at all rates. The layout is that of TitanLog's Tables V and VIII (errors of sketches), VI and IX
(the classifier).
"""

import json
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import compute
from tqdm import tqdm

from strata import program
from strata import snapshots as snapshots_module
from strata.model import dumps
from strata.presets import PRESETS
from strata.snapshots import BENIGN, Snapshots

from . import links_report
from .kept import packets_of

WINDOW_MS = 35
# TitanLog Table IV, at 100 Gb/s: flows active at a time, packets per second.
DAYS = {
    "W1": (33_356, 15_214_000),
    "W2": (30_865, 14_694_000),
    "W3": (32_711, 14_418_000),
    "W4": (58_638, 15_856_000),
    "W5": (295_509, 15_986_000),
}
RATES = {100: 1, 200: 2, 400: 4}
TRAINED_AT = 100
# The captures that are trained on and judged, and how many streams of them are 100 Gb/s: so that
# they last for a window.
MIX, STREAMS = "mix", 23
OURS, PAPER = "strata", "titanlog-paper"
JUDGED = (PAPER, "titanlog-p4", "netbeacon-like", OURS)
# Ours with the table of flows that a recording starts with, and with the trees for packets whose
# flow has no bucket.
LARGE, LARGE_MEMORY = "strata, 128 MiB", "128MiB"
ALONE = "strata, packet trees alone"
# The others are judged at the lowest rate only, as TitanLog judges NetBeacon.
AT_ALL_RATES = (PAPER, OURS, LARGE)
# What is trained on together.
TOGETHER = (tuple(DAYS), (MIX,))
Models = dict[str, dict[str, Any]]
# Rows to train on, of each day.
ROWS_MAX = 20_000
# Bytes of a packet that are written: its headers.
SNAPLEN = 128


@dataclass(frozen=True)
class Half:
    """A labelled capture, and how much faster than its timestamps it is."""

    trace: Path
    labels: Path
    time_compression: float = 1.0

    def arguments(self) -> list[str]:
        """That name it."""
        faster = ["--time-compression", repr(self.time_compression)]
        return ["-r", str(self.trace), "--labels", str(self.labels), *faster]


def run(
    folder: Path, output: Path, rates: Sequence[int] = tuple(RATES), jobs: int = 2
) -> dict[str, Any]:
    """Writes figures to `output` with the endings .json and .md."""
    figures: dict[str, Any] = {"window_ms": WINDOW_MS, "rates": {}}
    with tempfile.TemporaryDirectory(prefix="strata-") as scratch:
        slowest = Link(folder, Path(scratch), TRAINED_AT)
        models = [slowest.models(days, jobs) for days in TOGETHER]
        for rate in tqdm(rates, desc="Gb/s", disable=None):
            figures["rates"][str(rate)] = Link(folder, Path(scratch), rate).judge(models)
    output.with_suffix(".json").write_text(json.dumps(figures, indent=1) + "\n")
    output.with_suffix(".md").write_text(links_report.in_markdown(figures))
    return figures


class Link:
    """Traffic of a rate, in files that take turns."""

    def __init__(self, folder: Path, scratch: Path, rate: int):
        self.folder, self.scratch = folder, scratch
        self.rate, self.times = rate, RATES[rate]

    def judge(self, models: Sequence[Models]) -> dict[str, Any]:
        """What each model makes of each day, and of the capture."""
        found = {}
        for days, of in zip(TOGETHER, models, strict=True):
            for day in tqdm(days, desc="judged", leave=False, disable=None):
                found[day] = self._judged(day, of)
        return found

    def _judged(self, day: str, models: Models) -> dict[str, Any]:
        half, found = self._half(day, 2), {}
        for name, model in models.items():
            if self.rate != TRAINED_AT and name not in AT_ALL_RATES:
                continue
            # Presets have operating points of their own: ours at the other's recall, too.
            recall = found[PAPER]["recall"] if name == OURS else None
            found[name] = self._decided(half, name, model, recall)
        return found

    def _half(self, day: str, number: int) -> Half:
        """The first half of a day is trained on, the second judged."""
        half = Half(self.scratch / "link.pcap", self.scratch / "link.csv")
        if day == MIX:
            folder = self.folder / f"{MIX}-{'train' if number == 1 else 'test'}"
            seconds, count = in_parallel(folder, STREAMS * self.times, half)
            return Half(half.trace, half.labels, seconds / (8 * count / (self.rate * 1e9)))
        flows, pace = (of * self.times for of in DAYS[day])
        packets = int(pace * WINDOW_MS / 1000)
        load = ["--profile", f"cic-{day.lower()}", "-s", str(SNAPLEN), "--seed", str(number)]
        load += ["--flows", str(flows), "-p", str(pace), "-c", str(packets)]
        program.run("generate", "-o", half.trace, *load, "--labels", half.labels)
        return half

    def models(self, days: Sequence[str], jobs: int) -> Models:
        """Models of the first halves of these days."""
        parts: dict[tuple[str, ...], list[Snapshots]] = {}
        for number, day in enumerate(days):
            half, file = self._half(day, 1), self.scratch / "link.parquet"
            for flags in dict.fromkeys(PRESETS[name].flags for name in JUDGED):
                window = ["--window-ms", str(WINDOW_MS)]
                program.run("features", *half.arguments(), *window, *flags, "-o", file)
                parts.setdefault(flags, []).append(_sample(file, number))
        models: Models = {}
        for name in JUDGED:
            preset = PRESETS[name]
            assert preset.train is not None
            models[name] = preset.train(_joined(parts[preset.flags]), 1, jobs)
        ours = models[OURS]
        known = {**ours["known"], "flow_trees": []}
        return {**models, LARGE: ours, ALONE: {**ours, "flow_trees": [], "known": known}}

    def _decided(
        self, half: Half, name: str, model: dict[str, Any], recall: float | None
    ) -> dict[str, Any]:
        """What the data plane makes of a capture, and would at this recall."""
        file, decisions = self.scratch / "model.json", self.scratch / "decisions.parquet"
        file.write_text(dumps(model))
        memory = ["--memory", LARGE_MEMORY] if name == LARGE else []
        program.run("eval", "-m", file, *half.arguments(), *memory, "--decisions", decisions)
        table = pq.read_table(decisions, columns=["label", "class", "anomaly", "has_bucket"])
        bad = [c["name"] for c in model["classes"] if c["anomalous"]]
        summary = json.loads(pq.read_metadata(decisions).metadata[b"strata.summary"])
        attack = ~_is_one_of(table["label"], [BENIGN])
        alarm, has_bucket = _is_one_of(table["class"], bad), table["has_bucket"].to_numpy()
        at_recall = {}
        if recall:
            at_recall["at_recall"] = at_this(recall, attack, table["anomaly"].to_numpy())
        return {
            **figures_of(attack, alarm, has_bucket),
            **at_recall,
            "errors": summary["average_relative_errors"],
            "flows_max": summary["flows_max"],
            "packets": len(table),
        }


def in_parallel(folder: Path, streams: int, half: Half) -> tuple[float, int]:
    """Writes `streams` streams of a capture at once, which differ in the second byte of each
    address; its seconds, and the bytes of all."""
    ts_ns, data, wire_len = packets_of(folder / "trace.pcap")
    lengths = np.minimum([len(packet) for packet in data], SNAPLEN)
    # One row per packet: pcap's header of a packet, and its bytes.
    rows = np.zeros((len(data), 16 + SNAPLEN), np.uint8)
    seconds, fraction = np.divmod(ts_ns, 1_000_000_000)
    rows[:, :16] = np.column_stack([seconds, fraction, lengths, wire_len]).astype("<u4").view("u1")
    for row, packet, length in zip(rows[:, 16:], data, lengths, strict=True):
        row[:length] = np.frombuffer(packet, np.uint8, length)
    addresses = [_second_bytes(row) for row in rows[:, 16:]]
    with half.trace.open("wb") as file:
        file.write(np.array([0xA1B23C4D, 2 | 4 << 16, 0, 0, SNAPLEN, 1], "<u4").tobytes())
        numbers = np.arange(streams, dtype=np.uint8)
        for row, length, places in zip(rows, lengths, addresses, strict=True):
            copies = np.tile(row[: 16 + length], (streams, 1))
            for place in places:
                copies[:, 16 + place] ^= numbers
            file.write(copies.tobytes())
    labels = [line.split(",", 1)[1] for line in (folder / "labels.csv").read_text().splitlines()]
    with half.labels.open("w") as file:
        file.write(f"frame,{labels[0]}\n")
        for frame, label in enumerate(labels[1:]):
            copies = range(frame * streams + 1, (frame + 1) * streams + 1)
            file.write("".join(f"{copy},{label}\n" for copy in copies))
    return float(ts_ns[-1] - ts_ns[0]) / 1e9, int(wire_len.sum()) * streams


def _second_bytes(frame: np.ndarray) -> tuple[int, ...]:
    """Where the second bytes of an Ethernet frame's IP addresses are."""
    at, kind = 14, int(frame[12]) << 8 | int(frame[13])
    while kind in (0x8100, 0x88A8):
        at, kind = at + 4, int(frame[at + 2]) << 8 | int(frame[at + 3])
    return {0x0800: (at + 13, at + 17), 0x86DD: (at + 9, at + 25)}.get(kind, ())


def _sample(file: Path, day: int) -> Snapshots:
    """Packets by lot, from after the first half, when buckets are contended; of days that have the
    same addresses, flows are told apart."""
    whole = pq.ParquetFile(file)
    later = np.arange(whole.metadata.num_rows // 2, whole.metadata.num_rows)
    chosen = np.random.default_rng(1).choice(later, min(ROWS_MAX, len(later)), replace=False)
    parts, at = [], 0
    for batch in whole.iter_batches():
        here = np.sort(chosen[(chosen >= at) & (chosen < at + len(batch))]) - at
        parts.append(batch.take(pa.array(here)))
        at += len(batch)
    chosen_rows = pa.Table.from_batches(parts).unify_dictionaries()
    # Batches do not have the settings of the file.
    pq.write_table(chosen_rows.replace_schema_metadata(whole.schema_arrow.metadata), file)
    sample = snapshots_module.load([file])
    flow = sample.columns["flow"]
    sample.columns["flow"] = flow ^ (np.uint64(day) << np.uint64(61))
    return sample


def _joined(parts: Sequence[Snapshots]) -> Snapshots:
    columns = {k: np.concatenate([part.columns[k] for part in parts]) for k in parts[0].columns}
    return Snapshots(columns, parts[0].units, parts[0].settings, [])


def _is_one_of(column: pa.ChunkedArray, words: Sequence[str]) -> np.ndarray:
    """Which rows of a column of words have one of these."""
    return compute.is_in(column, value_set=pa.array(words, column.type.value_type)).to_numpy()


def figures_of(attack: np.ndarray, alarm: np.ndarray, has_bucket: np.ndarray) -> dict[str, Any]:
    """Accuracy, precision and recall, in all and of packets without a bucket; `None` where there is
    nothing to divide by."""
    without = ~has_bucket
    return {
        **_rates(attack, alarm),
        "without_bucket": round(float(np.mean(without)), 4),
        "of_those": _rates(attack[without], alarm[without]),
    }


def at_this(recall: float, attack: np.ndarray, score: np.ndarray) -> dict[str, float | None]:
    """The same, if alarms begin at the highest score that finds this share of attacks."""
    scores = np.sort(score[attack])[::-1]
    least = scores[max(int(np.ceil(recall * len(scores))), 1) - 1]
    return _rates(attack, score >= least)


def _rates(attack: np.ndarray, alarm: np.ndarray) -> dict[str, float | None]:
    hits = int(np.sum(attack & alarm))

    def share(part: int, whole: int) -> float | None:
        return round(part / whole, 4) if whole else None

    return {
        "accuracy": share(int(np.sum(attack == alarm)), len(attack)),
        "precision": share(hits, int(alarm.sum())),
        "recall": share(hits, int(attack.sum())),
    }
