"""What `strata record --detail` keeps of attacks that its model has not seen.

The attacks and sites of `unseen`, but recorded: packets of the attack are merged into the site's
ordinary traffic, and the program records them with a budget of detail. The attack comes at its own
pace, or its flows are spread over the time of the site. Others get as many bytes of payload as it
kept: packets by lot, the first bytes of each flow, and what the built-in model keeps whole without
a budget. These know the whole capture beforehand; a recording decides at once, and keeps its budget
in every minute.
"""

import gzip
import json
import struct
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from . import learning, program
from . import snapshots as snapshots_module
from .folds import first_half
from .snapshots import BENIGN, SnapshotError, Snapshots
from .training import Options, Trainer
from .unseen import (
    BUDGET,
    OWN,
    RELATED,
    REPETITIONS,
    ROWS_MAX,
    SITES,
    TRAINED_ON,
    cases,
    first_bytes,
    kept,
)

BUILT_IN, TRAINED, LEARNT = "built-in", "trained by bytes", "learnt and trained"
RANDOM, FIRST, DEFAULT = "random", "first bytes", "built-in, no budget"
AT_ONCE, SPREAD = "at its own pace", "spread over the time"
NAMES = (RANDOM, FIRST, DEFAULT, BUILT_IN, TRAINED, LEARNT)
# Where in a site's time an attack begins.
BEGINS = 0.25
# Between captures that follow each other.
PAUSE_NS = 1_000_000_000


@dataclass
class Capture:
    """Packets of a file: times, bytes as far as they were captured, and lengths on the wire."""

    ts_ns: np.ndarray
    data: list[bytes]
    wire_len: np.ndarray
    attack: np.ndarray
    snapshots: Snapshots


@dataclass
class Case:
    """An attack at a site: its packets that have a flow, and which of them have payload kept."""

    attack: np.ndarray
    payload: np.ndarray
    flow: np.ndarray
    kept: dict[str, np.ndarray]
    share: dict[str, float]
    """Of the payload, what was kept by each."""


def run(folder: Path, output: Path, jobs: int = 2) -> dict[str, Any]:
    """Writes figures to `output` with the endings .json and .md."""
    with tempfile.TemporaryDirectory(prefix="strata-") as scratch:
        bench = Bench(folder, Path(scratch), jobs)
        figures = bench.judge()
    output.with_suffix(".json").write_text(json.dumps(figures, indent=1) + "\n")
    output.with_suffix(".md").write_text(in_markdown(figures))
    return figures


def packets_of(path: Path) -> tuple[np.ndarray, list[bytes], np.ndarray]:
    """Times in ns, bytes and wire lengths of the packets of a little-endian pcap file."""
    content = path.read_bytes()
    if path.suffix == ".gz":
        content = gzip.decompress(content)
    magic, link = struct.unpack_from("<I16xI", content)
    units = {0xA1B2C3D4: 1_000, 0xA1B23C4D: 1}
    if magic not in units or link != 1:
        raise ValueError(f"{path}: not an Ethernet capture in pcap's little-endian form")
    times, data, lengths, at = [], [], [], 24
    while at + 16 <= len(content):
        seconds, fraction, captured, wire = struct.unpack_from("<IIII", content, at)
        at += 16
        times.append(seconds * 1_000_000_000 + fraction * units[magic])
        data.append(content[at : at + captured])
        lengths.append(max(captured, wire))
        at += captured
    return np.array(times, np.int64), data, np.array(lengths, np.int64)


def write(path: Path, ts_ns: np.ndarray, data: Sequence[bytes], wire_len: np.ndarray) -> None:
    """Writes a pcap file. Packets that were cut are filled up with zeros, so that there is payload
    to keep."""
    with path.open("wb") as file:
        file.write(struct.pack("<IHHiIII", 0xA1B23C4D, 2, 4, 0, 0, 262_144, 1))
        for ts, packet, length in zip(ts_ns, data, wire_len, strict=True):
            seconds, fraction = divmod(int(ts), 1_000_000_000)
            file.write(struct.pack("<IIII", seconds, fraction, length, length))
            file.write(packet.ljust(length, b"\0"))


class Bench:
    """Captures, models and recordings."""

    def __init__(self, folder: Path, scratch: Path, jobs: int):
        self.scratch, self.jobs = scratch, jobs
        self.captures: dict[str, Capture] = {}
        paths = sorted(path.parent for path in folder.glob("*/labels.csv"))
        for path in tqdm(paths, desc="features", disable=None):
            trace = next(t for t in (path / "trace.pcap", path / "trace.pcap.gz") if t.exists())
            self.captures[path.name] = self._read(trace, path / "labels.csv")
        needed = {TRAINED_ON, *OWN, *(n for names in SITES.values() for n in names)}
        if missing := needed - set(self.captures):
            raise ValueError(f"{folder}: no capture {', '.join(sorted(missing))}")
        self.models: dict[tuple[str, ...], Path] = {}

    def _read(self, trace: Path, labels: Path) -> Capture:
        data = self._features(trace, labels)
        ts_ns, packets, wire_len = packets_of(trace)
        attack = np.zeros(len(packets), bool)
        for line in labels.read_text().splitlines()[1:]:
            frame, label = line.split(",")[:2]
            attack[int(frame) - 1] = label != "0"
        return Capture(ts_ns, packets, wire_len, attack, data)

    def _features(self, trace: Path, labels: Path) -> Snapshots:
        file = self.scratch / "features.parquet"
        program.run("features", "-r", trace, "--labels", labels, "-o", file)
        return snapshots_module.load([file])

    def judge(self) -> dict[str, Any]:
        """The figures, for each pace."""
        todo = cases({name: capture.snapshots for name, capture in self.captures.items()})
        figures: dict[str, Any] = {"budget": BUDGET, "paces": {}}
        for pace in (AT_ONCE, SPREAD):
            rows, repeated = [], []
            for name, site, names in tqdm(todo, desc=pace, disable=None):
                if name in names and pace == SPREAD:
                    # It has its time already.
                    continue
                case = self._case(name, names, pace)
                count, of = _flows(case)
                rows.append(
                    {
                        "attack": name,
                        "site": site,
                        "flows": len(count),
                        "kept": {n: _shares(count, k) for n, k in of.items()},
                        "budget": {n: round(s, 4) for n, s in case.share.items()},
                    }
                )
                repeated.append(_bootstrap(count, of))
            figures["paces"][pace] = {
                "rows": rows,
                "macro": {
                    n: np.mean([r["kept"][n] for r in rows], axis=0).round(4).tolist()
                    for n in rows[0]["kept"]
                },
                "differences": _differences(repeated),
            }
        return figures

    def _case(self, name: str, names: Sequence[str], pace: str) -> Case:
        """Records an attack at a site."""
        later = [self._halves(self.captures[n])[1] for n in names]
        if name in names:
            # Together as they were.
            capture = self.captures[name]
            rows = np.flatnonzero(later[0] | capture.attack)
            parts = [(capture, rows, capture.ts_ns[rows] - capture.ts_ns[0])]
        else:
            parts, now = [], 0
            for other, mask in zip(names, later, strict=True):
                capture = self.captures[other]
                rows = np.flatnonzero(mask & ~capture.attack)
                ts_ns = capture.ts_ns[rows] - capture.ts_ns[rows].min() + now
                parts.append((capture, rows, ts_ns))
                now = int(ts_ns.max()) + PAUSE_NS
            capture = self.captures[name]
            rows = np.flatnonzero(capture.attack)
            ts_ns = capture.ts_ns[rows] - capture.ts_ns[rows].min()
            ts_ns += _spread(capture, rows, ts_ns, now) if pace == SPREAD else int(now * BEGINS)
            parts.append((capture, rows, ts_ns))
        trace, labels = self._merged(parts)
        data = self._features(trace, labels)
        related = RELATED.get(name, ())
        arguments = {
            BUILT_IN: ["--detail", f"{BUDGET:.0%}"],
            TRAINED: ["--detail", f"{BUDGET:.0%}", "-m", self._trained(related)],
            LEARNT: ["--detail", f"{BUDGET:.0%}", "-m", self._learnt(names, related)],
            DEFAULT: ["--detail", "none"],
        }
        payload = data.columns["payload_len"].astype(np.int64)
        header = data.columns["wire_len"].astype(np.int64) - payload
        recorded = {
            how: np.clip(self._recorded(trace, more)[data.columns["frame"] - 1] - header, 0, None)
            for how, more in arguments.items()
        }
        chosen = {how: kept_bytes > 0 for how, kept_bytes in recorded.items()}
        share = {how: float(k.sum() / payload.sum()) for how, k in recorded.items()}
        budget = share[BUILT_IN]
        flow = data.columns["flow"]
        chosen[RANDOM] = kept(np.zeros(len(data)), payload, budget)
        chosen[FIRST] = kept(first_bytes(flow, data.columns["in_flow"], payload), payload, budget)
        if share[DEFAULT] > budget:
            chosen[DEFAULT] &= kept(chosen[DEFAULT].astype(float), payload, budget)
        return Case(data.attack, payload, flow, chosen, share)

    def _halves(self, capture: Capture) -> tuple[np.ndarray, np.ndarray]:
        """Packets of a site to learn from, and those to record: the later half of its flows, and
        what has no flow."""
        data = capture.snapshots.where(capture.snapshots.label == BENIGN)
        early = first_half(data.columns["flow"], data.strata(), data.columns["ts_ns"])
        before = np.zeros(len(capture.data), bool)
        before[data.columns["frame"][early] - 1] = True
        return before, ~before & ~capture.attack

    def _merged(self, parts: Sequence[tuple[Capture, np.ndarray, np.ndarray]]) -> tuple[Path, Path]:
        """Writes packets of several captures at these times, and their labels."""
        ts_ns = np.concatenate([times for *_, times in parts])
        order = np.argsort(ts_ns, kind="stable")
        # No two at once, so that they are exported in this order.
        times = np.maximum.accumulate(ts_ns[order] - np.arange(len(order))) + np.arange(len(order))
        data = [capture.data[row] for capture, rows, _ in parts for row in rows]
        wire_len = np.concatenate([capture.wire_len[rows] for capture, rows, _ in parts])
        attack = np.concatenate([capture.attack[rows] for capture, rows, _ in parts])
        trace, labels = self.scratch / "merged.pcap", self.scratch / "merged.csv"
        begin = 1_700_000_000 * 1_000_000_000
        write(trace, times + begin, [data[n] for n in order], wire_len[order])
        lines = [f"{n + 1},{int(a)}" for n, a in enumerate(attack[order])]
        labels.write_text("\n".join(["frame,label", *lines]) + "\n")
        return trace, labels

    def _recorded(self, trace: Path, arguments: Sequence[str | Path]) -> np.ndarray:
        """Bytes of each packet that a recording keeps."""
        with tempfile.TemporaryDirectory(dir=self.scratch) as folder:
            log, out = Path(folder) / "log", Path(folder) / "out.pcap"
            program.run("record", "-r", trace, "-o", log, "--hash-seed", "1", *arguments)
            program.run("export", log, "-w", out)
            _, data, _ = packets_of(out)
        return np.array([len(packet) for packet in data])

    def _trained(self, related: Sequence[str]) -> Path:
        """The options of the built-in model, by bytes, without these sources."""
        key = tuple(related)
        if key not in self.models:
            data = self.captures[TRAINED_ON].snapshots
            data = data.where(~np.array([str(s).startswith(key) for s in data.source]))
            options = Options(
                by_bytes=True, min_leaf=5, shapes=[(8, 64)], jobs=self.jobs, progress=False
            )
            model = Trainer(data, options).train("unseen", "")
            self.models[key] = self.scratch / f"trained-{len(self.models)}.json"
            learning.write(model, self.models[key])
        return self.models[key]

    def _learnt(self, names: Sequence[str], related: Sequence[str]) -> Path:
        """Learnt from the first half of the site, next to half of that model."""
        key = (*names, "", *related)
        if key not in self.models:
            beside = json.loads(self._trained(related).read_text())
            parts = []
            for name in names:
                data = self.captures[name].snapshots
                parts.append(data.where(self._halves(self.captures[name])[0][_frames(data)]))
            columns = {k: np.concatenate([p.columns[k] for p in parts]) for k in parts[0].columns}
            data = Snapshots(columns, parts[0].units, parts[0].settings, [])
            if len(data) > ROWS_MAX:
                rows = np.random.default_rng(1).choice(len(data), ROWS_MAX, replace=False)
                data = data.where(np.sort(rows))
            known = learning.attacks(related)
            try:
                model = learning.learn(data, beside, jobs=self.jobs, progress=False, known=known)
            except SnapshotError:
                # Too little to learn from: users have the other model then.
                model = beside
            self.models[key] = self.scratch / f"learnt-{len(self.models)}.json"
            learning.write(model, self.models[key])
        return self.models[key]


def _spread(capture: Capture, rows: np.ndarray, ts_ns: np.ndarray, within: int) -> np.ndarray:
    """How much later each packet comes, so that flows begin at any time within a site's."""
    flow = np.zeros(len(capture.data), np.uint64)
    flow[_frames(capture.snapshots)] = capture.snapshots.columns["flow"]
    _, flow = np.unique(flow[rows], return_inverse=True)
    begin = np.full(flow.max() + 1, np.iinfo(np.int64).max)
    np.minimum.at(begin, flow, ts_ns)
    anywhere = np.random.default_rng(1).integers(0, within, len(begin))
    return (anywhere - begin)[flow]


def _frames(data: Snapshots) -> np.ndarray:
    return data.columns["frame"].astype(np.int64) - 1


def _flows(case: Case) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Of each attack flow, the packets with payload, and how many of these are kept."""
    here = case.attack & (case.payload > 0)
    _, flow = np.unique(case.flow[here], return_inverse=True)
    kept_of = {
        n: np.bincount(flow, k[here], minlength=flow.max() + 1) for n, k in case.kept.items()
    }
    return np.bincount(flow), kept_of


def _shares(count: np.ndarray, of: np.ndarray) -> list[float]:
    return [round(float(of.sum() / count.sum()), 4), round(float(np.mean(of > 0)), 4)]


def _bootstrap(count: np.ndarray, of: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The shares of packets and of flows, of as many flows drawn anew each time."""
    rng = np.random.default_rng(1)
    drawn = rng.multinomial(len(count), np.full(len(count), 1 / len(count)), REPETITIONS)
    packets = drawn @ count
    return {
        name: np.column_stack([drawn @ k / packets, drawn @ (k > 0) / len(count)])
        for name, k in of.items()
    }


def _differences(repeated: Sequence[dict[str, np.ndarray]]) -> dict[str, Any]:
    """The macro averages of models less those of others: median and 95 % of the repetitions."""
    mean = {name: np.mean([r[name] for r in repeated], axis=0) for name in repeated[0]}
    found = {}
    for model in (BUILT_IN, TRAINED, LEARNT):
        for other in (RANDOM, FIRST, DEFAULT, BUILT_IN, TRAINED):
            if other != model and (model, other) != (BUILT_IN, TRAINED):
                low, middle, high = np.quantile(mean[model] - mean[other], (0.025, 0.5, 0.975), 0)
                values = np.column_stack([middle, low, high]).round(4).tolist()
                found[f"{model} - {other}"] = {"packets": values[0], "flows": values[1]}
    return found


def in_markdown(figures: dict[str, Any]) -> str:
    """The figures as tables."""
    names = list(NAMES)
    with_budget = [BUILT_IN, TRAINED, LEARNT]
    about = (
        "`make kept`. Share of attack packets / of attack flows of which payload is kept, in "
        f"percent, by `strata record --detail {figures['budget']:.0%}` with the built-in model, "
        "with one trained by bytes without the attack, and with one learnt from the first half of "
        f"the site next to half of that. *{RANDOM}*, *{FIRST}* and *{DEFAULT}* (what the mode "
        "keeps whole, by lot if it is more) have as many bytes as the built-in model kept, and "
        "know the whole capture. The last columns are what was kept of all payload. Where there "
        "is too little traffic to learn from, the learnt model is the trained one. The built-in "
        "model has seen mix-test, and some of cic2019 and westermo; the others only mix-test's "
        "kinds."
    )
    lines = ["# What a recording keeps of attacks that its model has not seen", "", about]
    for pace, found in figures["paces"].items():
        lines += ["", f"## The attack {pace}", ""]
        lines += _tables(found, names, with_budget)
    return "\n".join(lines) + "\n"


def _tables(found: dict[str, Any], names: list[str], with_budget: list[str]) -> list[str]:
    columns = ["attack", "site", *names, *(f"{n}: of payload" for n in with_budget)]
    lines = ["| " + " | ".join(columns) + " |", "|---|---|" + "---:|" * (len(columns) - 2)]
    for row in [*found["rows"], {"attack": "**mean**", "site": "", "kept": found["macro"]}]:
        cells = [f"{100 * p:.0f} / {100 * f:.0f}" for p, f in (row["kept"][n] for n in names)]
        shares = row.get("budget")
        cells += [f"{100 * shares[n]:.1f} %" if shares else "" for n in with_budget]
        lines.append(f"| {row['attack']} | {row['site']} | " + " | ".join(cells) + " |")
    lines += [
        "",
        "Differences of means in percentage points, and 95 % of a paired bootstrap over flows:",
        "",
        "| | packets | flows |",
        "|---|---:|---:|",
    ]
    for name, difference in found["differences"].items():
        cells = [
            f"{100 * m:+.1f} ({100 * low:+.1f} to {100 * high:+.1f})"
            for m, low, high in (difference["packets"], difference["flows"])
        ]
        lines.append(f"| {name} | {cells[0]} | {cells[1]} |")
    return lines
