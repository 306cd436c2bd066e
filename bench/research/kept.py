"""What `strata record --detail` keeps of attacks.

Packets of the attack are merged into a site's ordinary traffic, and the program records them with
a budget of detail. The attack comes at its own pace, or its flows are spread over the time of the
site. Others get as many bytes of payload: packets by lot, the first bytes of each flow, and what
the built-in model keeps whole without a budget. The program also records them from a pipe, as it
records an interface: without knowing what is to come.
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

from strata import program
from strata.snapshots import Snapshots

from . import cases as cases_module
from .cases import BUDGET, FIRST, RANDOM

BUDGETED, DEFAULT = "--detail 10%", "no budget"
PIPED = "--detail 10%, from a pipe"
AT_ONCE, SPREAD = "at its own pace", "spread over the time"
NAMES = (RANDOM, FIRST, DEFAULT, BUDGETED, PIPED)
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
    share: float
    """Of the payload that the budget decided about, what it gave."""
    share_piped: float
    """The same from a pipe."""


def run(folder: Path, output: Path, only: Sequence[str] = ()) -> dict[str, Any]:
    """Writes figures to `output` with the endings .json and .md; of these captures only, if names
    are given."""
    with tempfile.TemporaryDirectory(prefix="strata-") as scratch:
        bench = Bench(folder, Path(scratch), only)
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
    """Captures and recordings."""

    def __init__(self, folder: Path, scratch: Path, only: Sequence[str] = ()):
        self.scratch = scratch
        self.captures: dict[str, Capture] = {}
        for name, trace, labels, data in cases_module.captures(folder, scratch, only):
            ts_ns, packets, wire_len = packets_of(trace)
            attack = np.zeros(len(packets), bool)
            for line in labels.read_text().splitlines()[1:]:
                frame, label = line.split(",")[:2]
                attack[int(frame) - 1] = label != "0"
            self.captures[name] = Capture(ts_ns, packets, wire_len, attack, data)

    def judge(self) -> dict[str, Any]:
        """The figures, for each pace."""
        found = {name: capture.snapshots for name, capture in self.captures.items()}
        todo = cases_module.cases(found)
        figures: dict[str, Any] = {"budget": BUDGET, "paces": {}}
        for pace in (AT_ONCE, SPREAD):
            rows, repeated = [], []
            for name, site, names in tqdm(todo, desc=pace, disable=None):
                if name in names and pace == SPREAD:
                    # It has its time already.
                    continue
                case = self._case(name, names, pace)
                of = _by_flow(case)
                rows.append(
                    {
                        "attack": name,
                        "site": site,
                        "flows": len(of[0]),
                        "kept": cases_module.shares(of),
                        "given": round(case.share, 4),
                        "given_piped": round(case.share_piped, 4),
                    }
                )
                repeated.append(cases_module.bootstrap(of))
            if not rows:
                continue
            figures["paces"][pace] = {
                "rows": rows,
                "macro": cases_module.macro(rows),
                "differences": cases_module.differences(
                    repeated, (BUDGETED,), (RANDOM, FIRST, DEFAULT)
                ),
            }
        return figures

    def _case(self, name: str, names: Sequence[str], pace: str) -> Case:
        """Records an attack at a site."""
        later = [self.halves(self.captures[n])[1] for n in names]
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
        trace, labels = self.merged(parts)
        data = cases_module.features(trace, labels, self.scratch)
        payload = data.columns["payload_len"].astype(np.int64)
        header = data.columns["wire_len"].astype(np.int64) - payload
        recorded = {}
        recorded[BUDGETED], share = self.recorded(trace, f"{BUDGET:.0%}")
        recorded[PIPED], share_piped = self.recorded(trace, f"{BUDGET:.0%}", is_piped=True)
        recorded[DEFAULT], _ = self.recorded(trace, "none")
        frames = data.columns["frame"].astype(np.int64) - 1
        beyond = {how: np.clip(k[frames] - header, 0, None) for how, k in recorded.items()}
        chosen = {how: k > 0 for how, k in beyond.items()}
        budget = float(beyond[BUDGETED].sum() / payload.sum())
        flow = data.columns["flow"]
        chosen[RANDOM] = cases_module.kept(np.zeros(len(data)), payload, budget)
        first = cases_module.first_bytes(flow, data.columns["in_flow"], payload)
        chosen[FIRST] = cases_module.kept(first, payload, budget)
        if beyond[DEFAULT].sum() > budget * payload.sum():
            chosen[DEFAULT] &= cases_module.kept(chosen[DEFAULT].astype(float), payload, budget)
        chosen = {how: chosen[how] for how in NAMES}
        return Case(data.attack, payload, flow, chosen, share, share_piped)

    def halves(self, capture: Capture) -> tuple[np.ndarray, np.ndarray]:
        """Packets of a site to learn from, and those to record: the later half of its flows, and
        what has no flow."""
        early, _ = cases_module.ordinary_halves(capture.snapshots)
        before = np.zeros(len(capture.data), bool)
        before[_frames(early)] = True
        return before, ~before & ~capture.attack

    def merged(self, parts: Sequence[tuple[Capture, np.ndarray, np.ndarray]]) -> tuple[Path, Path]:
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

    def recorded(
        self, trace: Path, budget: str, is_piped: bool = False
    ) -> tuple[np.ndarray, float]:
        """Bytes of each packet that a recording keeps, and what share of the payload that its
        budget decided about was given."""
        with tempfile.TemporaryDirectory(dir=self.scratch) as folder:
            log, out = Path(folder) / "log", Path(folder) / "out.pcap"
            arguments = ["--detail", budget, "--hash-seed", "1"]
            piped = trace.read_bytes() if is_piped else None
            program.run(
                "record", "-r", "-" if is_piped else trace, "-o", log, *arguments, piped=piped
            )
            program.run("export", log, "-w", out)
            _, data, _ = packets_of(out)
            [recording] = json.loads((log / "manifest.json").read_text())["recordings"]
        detail = recording.get("detail")
        share = detail["given_bytes"] / detail["offered_bytes"] if detail else 1.0
        return np.array([len(packet) for packet in data]), share


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


def _by_flow(case: Case) -> cases_module.Kept:
    return cases_module.by_flow(case.attack, case.payload, case.flow, case.kept)


def in_markdown(figures: dict[str, Any]) -> str:
    """The figures as tables."""
    about = (
        "`make kept`. Share of attack packets / of attack flows of which payload is kept, in "
        f"percent, by `strata record` with *{BUDGETED}*. *{RANDOM}*, *{FIRST}* and *{DEFAULT}* "
        "(what the mode keeps whole of the classes of the built-in model, by lot if it is more) "
        "have as many bytes. The last columns are what was given of the payload that the budget "
        "decided about. From a pipe, as from an interface, what is to come is not known: it begins "
        "with nothing saved, and gives less. The built-in model has seen mix-test, and some of "
        "cic2019 and westermo."
    )
    lines = ["# What a recording keeps of attacks", "", about]
    more = {"given": "given", "given_piped": "given, from a pipe"}
    for pace, found in figures["paces"].items():
        lines += ["", f"## The attack {pace}", "", *cases_module.table(found, more)]
    return "\n".join(lines) + "\n"
