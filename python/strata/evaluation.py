"""How good a model is, from the data plane's decisions, packet by packet."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from .snapshots import BENIGN, words

RESAMPLES = 400
# Upper ends of the ranges of a packet's number within its flow.
POSITIONS = (1, 2, 3, 5, 10, 20, 50, 100, 1000)


@dataclass
class Decisions:
    """Labelled packets and the decisions on them; arrays with one entry per packet."""

    label: np.ndarray
    source: np.ndarray
    decided: np.ndarray
    anomaly: np.ndarray
    """Score from 0 to 1."""
    anomalous: np.ndarray
    """Whether the decided class is anomalous."""
    flow: np.ndarray
    in_flow: np.ndarray
    wire_len: np.ndarray
    ts_ns: np.ndarray
    has_bucket: np.ndarray
    summary: dict[str, Any]
    """The program's summary of the whole capture."""

    @property
    def attack(self) -> np.ndarray:
        """Whether the label is not benign."""
        return self.label != BENIGN

    def where(self, rows: np.ndarray) -> "Decisions":
        """The packets of a mask."""
        parts = {k: v[rows] for k, v in vars(self).items() if isinstance(v, np.ndarray)}
        return Decisions(**parts, summary=self.summary)


def load(path: str | Path, model: dict[str, Any]) -> Decisions:
    """Reads the decisions of `strata eval --decisions`; packets without label are
    skipped."""
    table = pq.read_table(path)
    label = words(table["label"])
    decided = words(table["class"])
    bad = {c["name"] for c in model["classes"] if c["anomalous"]} | {"unclassified"}
    decisions = Decisions(
        label=label,
        source=words(table["source"]),
        decided=decided,
        anomaly=table["anomaly"].to_numpy(),
        anomalous=np.isin(decided, sorted(bad)),
        flow=table["flow"].to_numpy(),
        in_flow=table["in_flow"].to_numpy(),
        wire_len=table["wire_len"].to_numpy().astype(float),
        ts_ns=table["ts_ns"].to_numpy(),
        has_bucket=table["has_bucket"].to_numpy(),
        summary=json.loads(pq.read_metadata(path).metadata.get(b"strata.summary", b"{}")),
    )
    return decisions.where(label != "")


def evaluate(
    decisions: str | Path | Decisions,
    model: dict[str, Any] | str | Path,
    report: str | Path | None = None,
    seed: int = 1,
) -> dict[str, Any]:
    """All figures of a model on a labelled capture; with `report`, also as an HTML page
    with the figures as JSON next to it."""
    if not isinstance(model, dict):
        model = json.loads(Path(model).read_text())
    if not isinstance(decisions, Decisions):
        decisions = load(decisions, model)
    if len(decisions.label) == 0:
        raise ValueError("no packet has a label: give --labels")
    figures = judge(decisions, trained=model.get("training", {}).get("sources"), seed=seed)
    figures["model"] = {k: model.get(k) for k in ("name", "description", "window_ns", "training")}
    figures["drift"] = score_drift(decisions, model)
    if report is not None:
        from . import report as pages

        pages.write_evaluation(Path(report), figures)
    return figures


def judge(d: Decisions, trained: list[str] | None = None, seed: int = 1) -> dict[str, Any]:
    """The figures of `evaluate` that need no model."""
    attack, alarm = d.attack, d.anomalous
    hits = int(np.sum(alarm & attack))
    false_alarms = int(np.sum(alarm & ~attack))
    return {
        "packets": len(attack),
        "attack_packets": int(attack.sum()),
        "flows": len(np.unique(d.flow)),
        "accuracy": float(np.mean(alarm == attack)),
        "precision": _ratio(hits, hits + false_alarms),
        "recall": _ratio(hits, int(attack.sum())),
        "f1": _ratio(2 * hits, hits + false_alarms + int(attack.sum())) if attack.any() else None,
        "false_alarm_rate": _ratio(false_alarms, int(np.sum(~attack))),
        "bytes_kept_whole": _ratio(d.wire_len[alarm].sum(), d.wire_len.sum()),
        "packets_kept_whole": float(np.mean(alarm)),
        "without_bucket": float(np.mean(~d.has_bucket)),
        "confusion": confusion(d),
        "sources": sources(d, trained, seed),
        "false_alarms_of": worst_benign(d),
        "positions": positions(d),
        "curve": curve(d.attack, d.anomaly),
        "summary": d.summary,
    }


def _ratio(part: float, whole: float) -> float | None:
    """`None` if the whole is zero: null in JSON."""
    return float(part) / float(whole) if whole else None


def confusion(d: Decisions) -> dict[str, dict[str, int]]:
    """Packets by label, then by decided class."""
    return {
        str(label): {
            str(c): int(np.sum((d.label == label) & (d.decided == c))) for c in np.unique(d.decided)
        }
        for label in np.unique(d.label)
    }


def sources(d: Decisions, trained: list[str] | None, seed: int) -> list[dict[str, Any]]:
    """Each attack source against all benign packets, with 95 % intervals by drawing
    flows with replacement. Last, the macro-averages: all sources, and those that
    training knew."""
    rng = np.random.default_rng(seed)
    _, flow = np.unique(d.flow, return_inverse=True)
    count = int(flow.max()) + 1
    draws = rng.poisson(1.0, (RESAMPLES, count)).astype(np.float32)

    def drawn(mask: np.ndarray) -> np.ndarray:
        """Packets of a mask in the capture and in each drawing."""
        per_flow = np.bincount(flow[mask], minlength=count).astype(np.float32)
        return np.concatenate([[per_flow.sum()], draws @ per_flow])

    attack, alarm = d.attack, d.anomalous
    false_alarms = drawn(alarm & ~attack)
    rows, f1s = [], {}
    for name in np.unique(d.source[attack]):
        here = attack & (d.source == name)
        hits, packets = drawn(here & alarm), drawn(here)
        with np.errstate(divide="ignore", invalid="ignore"):
            recall = np.nan_to_num(hits / packets)
            precision = np.nan_to_num(hits / (hits + false_alarms))
            f1 = np.nan_to_num(2 * hits / (hits + false_alarms + packets))
        f1s[str(name)] = f1
        first = first_caught(d, here)
        rows.append(
            {
                "source": str(name),
                "seen_in_training": None if trained is None else str(name) in trained,
                "packets": int(packets[0]),
                "flows": len(np.unique(d.flow[here])),
                "recall": _interval(recall),
                "precision": _interval(precision),
                "f1": _interval(f1),
                "average_precision": average_precision(d, here),
                **first,
            }
        )
    groups = {"all attack sources": list(f1s)}
    if trained is not None:
        groups["sources known from training"] = [n for n in f1s if n in trained]
        groups["sources unseen in training"] = [n for n in f1s if n not in trained]
    for group, members in groups.items():
        if members:
            mean = np.mean([f1s[name] for name in members], axis=0)
            rows.append({"source": group, "macro": True, "f1": _interval(mean)})
    return rows


def _interval(values: np.ndarray) -> list[float]:
    """The value in the capture, and the range of 95 % of the drawings."""
    low, high = np.quantile(values[1:], [0.025, 0.975])
    return [round(float(v), 4) for v in (values[0], low, high)]


def first_caught(d: Decisions, here: np.ndarray) -> dict[str, Any]:
    """In how many of its flows an attack is detected at all, and by which packet."""
    flows = np.unique(d.flow[here])
    caught = here & d.anomalous
    order = np.argsort(d.in_flow[caught], kind="stable")
    _, first = np.unique(d.flow[caught][order], return_index=True)
    at = d.in_flow[caught][order][first]
    return {
        "flows_caught": _ratio(len(first), len(flows)),
        "first_caught_at": float(np.median(at)) if len(at) else None,
    }


def average_precision(d: Decisions, here: np.ndarray) -> float:
    """The area under the curve of precision over recall of a source against all benign
    packets."""
    from sklearn.metrics import average_precision_score

    rows = here | ~d.attack
    return round(float(average_precision_score(here[rows], d.anomaly[rows])), 4)


def precision_at(d: Decisions, here: np.ndarray, recall: float) -> float:
    """The best precision of a source against all benign packets with a recall of at
    least this, over all operating points."""
    scores = np.sort(d.anomaly[here])[::-1]
    benign = np.sort(d.anomaly[~d.attack])
    least = int(np.ceil(recall * len(scores) - 1e-9))
    best = 0.0
    for point in np.unique(scores[max(least, 1) - 1 :]):
        hits = np.sum(scores >= point)
        alarms = len(benign) - np.searchsorted(benign, point, "left")
        best = max(best, hits / (hits + alarms))
    return float(best)


def curve(attack: np.ndarray, scores: np.ndarray) -> list[list[float]]:
    """Points (recall, precision, score) of the whole, from high scores to low."""
    order = np.argsort(-scores, kind="stable")
    hits = np.cumsum(attack[order])
    ends = np.flatnonzero(np.diff(scores[order], append=-1))
    if len(ends) > 200:
        ends = ends[np.unique(np.linspace(0, len(ends) - 1, 200).astype(int))]
    total = max(int(attack.sum()), 1)
    points = [
        (hits[end] / total, hits[end] / (end + 1), scores[order][end]) for end in ends.tolist()
    ]
    return [[round(float(v), 5) for v in point] for point in points]


def positions(d: Decisions) -> list[dict[str, Any]]:
    """By the packet's number within its flow: the detections and false alarms."""
    rows, low = [], 0
    for high in (*POSITIONS, None):
        here = d.in_flow > low
        if high is not None:
            here &= d.in_flow <= high
        attack, benign = here & d.attack, here & ~d.attack
        if here.any():
            rows.append(
                {
                    "from": low + 1,
                    "to": high,
                    "attack_packets": int(attack.sum()),
                    "recall": _ratio(np.sum(d.anomalous & attack), attack.sum()),
                    "benign_packets": int(benign.sum()),
                    "false_alarm_rate": _ratio(np.sum(d.anomalous & benign), benign.sum()),
                }
            )
        low = high or low
    return rows


def worst_benign(d: Decisions, count: int = 8) -> list[dict[str, Any]]:
    """The benign sources with most false alarms."""
    alarms = d.anomalous & ~d.attack
    names, counts = np.unique(d.source[alarms], return_counts=True)
    order = np.argsort(-counts)[:count]
    return [
        {
            "source": str(names[i]),
            "false_alarms": int(counts[i]),
            "rate": _ratio(counts[i], np.sum(~d.attack & (d.source == names[i]))),
        }
        for i in order
    ]


def score_drift(d: Decisions, model: dict[str, Any]) -> dict[str, Any] | None:
    """How far the scores are from those in training: population stability index; above
    0.25 the model no longer fits the traffic."""
    expected = model.get("distributions", {}).get("scores")
    if not expected:
        return None
    counts, _ = np.histogram(d.anomaly, bins=len(expected), range=(0, 1))
    shares = counts / max(counts.sum(), 1)
    return {
        "scores_expected": expected,
        "scores": [round(float(s), 5) for s in shares],
        "stability_index": round(stability_index(np.array(expected), shares), 4),
    }


def stability_index(expected: np.ndarray, found: np.ndarray) -> float:
    """Sum of (found - expected) * ln(found / expected); shares below 1e-4 count as that."""
    expected, found = np.maximum(expected, 1e-4), np.maximum(found, 1e-4)
    return float(np.sum((found - expected) * np.log(found / expected)))
