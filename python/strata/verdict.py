"""Whether a model meets the requirements, on flows that its forests have not seen.

Packets of a flow are alike, so a flow counts as one observation, however long it is: shares of
packets have the certainty of as many observations as there are flows of equal size (Kish's
effective sample size, Survey Sampling, 1965), and their bounds are those of Clopper and Pearson
(Biometrika 26, 1934).
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.stats import beta

# A source whose recall is lower is named, whatever the requirements.
RECALL_USEFUL = 0.5
# By how much the share of attacks with an alarm exceeds that of benign traffic, at least.
BETTER_USEFUL = 0.1
# A larger share of false alarms is named, whatever the requirements.
FALSE_ALARMS_USEFUL = 0.5


def effective_flows(flow: np.ndarray, weight: np.ndarray | None = None) -> float:
    """How many flows of equal size say as much as these packets; 0 without packets."""
    if len(flow) == 0:
        return 0.0
    _, flow = np.unique(flow, return_inverse=True)
    sizes = np.bincount(flow, weights=weight).astype(float)
    squares = float(np.sum(sizes**2))
    return float(np.sum(sizes)) ** 2 / squares if squares else 0.0


def at_least(share: float, flows: float, confidence: float) -> float:
    """The lower bound of a share seen in this many flows."""
    if flows <= 0 or share <= 0:
        return 0.0
    hits = share * flows
    return float(beta.ppf(1 - confidence, hits, flows - hits + 1))


def at_most(share: float, flows: float, confidence: float) -> float:
    """The upper bound of a share seen in this many flows."""
    return 1 - at_least(1 - share, flows, confidence)


def needed(target: float, flows: float, confidence: float) -> float | None:
    """The smallest share seen in this many flows whose lower bound meets the target; `None` if
    they are too few to show it even if nothing is missed."""
    if at_least(1.0, flows, confidence) < target:
        return None
    low, high = target, 1.0
    for _ in range(40):
        middle = (low + high) / 2
        if at_least(middle, flows, confidence) >= target:
            high = middle
        else:
            low = middle
    return high


def flows_needed(target: float, confidence: float) -> int:
    """How many flows of equal size show a share of at least the target if nothing is missed."""
    return math.ceil(math.log(1 - confidence) / math.log(target))


@dataclass
class Unseen:
    """Labelled packets and what forests that have not seen their flows decided."""

    attack: np.ndarray
    alarm: np.ndarray
    source: np.ndarray
    label: np.ndarray
    flow: np.ndarray
    wire_len: np.ndarray


@dataclass
class Asked:
    """What a model has to do; `None` is not required."""

    recall: float | None = None
    """Of the packets of each attack source."""
    precision: float | None = None
    """Of the packets that are called attacks."""
    f1: float | None = None
    """The mean over attack sources, each against all benign packets."""
    kept_whole: float | None = None
    """Share of all bytes at most."""
    confidence: float = 0.95


def judge(seen: Unseen, asked: Asked) -> dict[str, Any]:
    """Figures per attack source and together, and the verdict: `met`, `findings` (what is wrong
    or not certain) and `advice`."""
    false_alarms = int(np.sum(seen.alarm & ~seen.attack))
    sources = []
    for name in np.unique(seen.source[seen.attack]):
        here = seen.attack & (seen.source == name)
        sources.append({"source": str(name), **_figures(seen, here, false_alarms, asked)})
    together = _figures(seen, seen.attack, false_alarms, asked)
    together["macro_f1"] = _round(np.mean([row["f1"] for row in sources])) if sources else 0.0
    benign = ~seen.attack
    kept = float(seen.wire_len[seen.alarm].sum() / max(seen.wire_len.sum(), 1))
    result = {
        "confidence": asked.confidence,
        "sources": sources,
        "together": together,
        "false_alarm_rate": _round(np.mean(seen.alarm[benign])) if benign.any() else None,
        "bytes_kept_whole": _round(kept),
    }
    verdict = _Verdict()
    _of_use(seen, asked.confidence, verdict)
    _recall(result, asked, verdict)
    if asked.precision is not None and together["precision"] < asked.precision:
        verdict.missed(
            f"precision {together['precision']:.3f}, asked for {asked.precision:g}",
            "raise --false-alarm-cost, or lower --target-recall",
        )
    if asked.f1 is not None and together["macro_f1"] < asked.f1:
        verdict.missed(
            f"mean F1 of the sources {together['macro_f1']:.3f}, asked for {asked.f1:g}",
            "try more leaves (--shape 16x128), or label more flows of the sources with a low F1",
        )
    if asked.kept_whole is not None:
        _kept(seen, kept, asked, verdict)
    return {**result, "met": verdict.met, "findings": verdict.findings, "advice": verdict.advice}


class _Verdict:
    def __init__(self) -> None:
        self.met = True
        self.findings: list[str] = []
        self.advice: list[str] = []

    def missed(self, finding: str, advice: str) -> None:
        self.met = False
        self.said(finding, advice)

    def said(self, finding: str, advice: str) -> None:
        self.findings.append(finding)
        if advice not in self.advice:
            self.advice.append(advice)


def _round(value: Any) -> float:
    return round(float(value), 4)


def _figures(seen: Unseen, here: np.ndarray, false_alarms: int, asked: Asked) -> dict[str, Any]:
    packets, hits = int(here.sum()), int(np.sum(here & seen.alarm))
    flow = seen.flow[here]
    effective = effective_flows(flow)
    recall = hits / packets if packets else 0.0
    return {
        "packets": packets,
        "flows": len(np.unique(flow)),
        "effective_flows": round(effective, 1),
        "recall": _round(recall),
        # Rounded down: a bound is not to say more than it knows.
        "recall_at_least": math.floor(at_least(recall, effective, asked.confidence) * 1e4) / 1e4,
        "precision": _round(hits / (hits + false_alarms)) if hits else 0.0,
        "f1": _round(2 * hits / (hits + packets + false_alarms)) if hits else 0.0,
    }


def _of_use(seen: Unseen, confidence: float, verdict: _Verdict) -> None:
    """A model has to tell attacks from the rest: of attacks, by packets and by flows, it alarms on
    a larger share than of benign traffic, and for one of the two this is certain."""
    for kind, rows in (("attacks", seen.attack), ("benign traffic", ~seen.attack)):
        flows = len(np.unique(seen.flow[rows]))
        if flows < 2:
            verdict.missed(
                f"{kind}: {flows} flow, so no model can be tested on a flow it has not seen",
                f"label more flows of {kind}, at least {flows_needed(0.5, confidence)}",
            )
            return
    caught, wrong = _shares(seen, seen.attack), _shares(seen, ~seen.attack)
    pairs = list(zip(caught, wrong, strict=True))
    better = min(hit - alarm for (hit, _), (alarm, _) in pairs)
    certain = max(
        at_least(hit, flows, confidence) - at_most(alarm, others, confidence)
        for (hit, flows), (alarm, others) in pairs
    )
    said = (
        f"alarms on {caught[0][0]:.1%} of the attack packets ({caught[1][0]:.1%} by flows) and on "
        f"{wrong[0][0]:.1%} of the benign ones ({wrong[1][0]:.1%})"
    )
    if better < BETTER_USEFUL or certain <= 0:
        how = "hardly better than chance" if better < BETTER_USEFUL else "too few flows to tell"
        verdict.missed(
            f"{how}: {said}",
            "check that the labels belong to this capture (clock, UTC offset, addresses), and "
            "label more flows, attacks and ordinary ones",
        )
    elif wrong[0][0] > FALSE_ALARMS_USEFUL:
        verdict.said(said, "raise --false-alarm-cost, or label more ordinary flows")


def _shares(seen: Unseen, rows: np.ndarray) -> list[tuple[float, float]]:
    """The share of packets with an alarm and the number of flows that it rests on: by packets,
    and with flows of equal weight."""
    _, flow, sizes = np.unique(seen.flow[rows], return_inverse=True, return_counts=True)
    alarms = np.bincount(flow, weights=seen.alarm[rows], minlength=len(sizes))
    return [
        (float(np.mean(seen.alarm[rows])), effective_flows(flow)),
        (float(np.mean(alarms / sizes)), float(len(sizes))),
    ]


def _recall(result: dict[str, Any], asked: Asked, verdict: _Verdict) -> None:
    shown = 0
    rows = result["sources"]
    for row in rows:
        name, recall, flows = row["source"], row["recall"], row["flows"]
        one = "flow" if flows == 1 else "flows"
        if asked.recall is None:
            if recall < RECALL_USEFUL:
                verdict.said(
                    f"{name}: misses most of it (recall {recall:.3f}, {flows} {one})",
                    _more(row, RECALL_USEFUL, asked),
                )
            continue
        row["verdict"] = _of_recall(row, asked)
        if row["verdict"] == "missed":
            verdict.missed(
                f"{name}: recall {recall:.3f} (at least {row['recall_at_least']:.3f}), asked for "
                f"{asked.recall:g}; {flows} {one}",
                _more(row, asked.recall, asked),
            )
        elif row["verdict"] == "too few flows":
            verdict.said(
                f"{name}: recall {recall:.3f}, but {flows} {one} show only "
                f"{row['recall_at_least']:.3f}",
                _more(row, asked.recall, asked),
            )
        else:
            shown += 1
    if asked.recall is not None and rows and shown == 0:
        together = result["together"]
        if together["recall_at_least"] < asked.recall:
            verdict.missed(
                f"a recall of {asked.recall:g} is shown for no source",
                _more(together, asked.recall, asked),
            )


def _of_recall(row: dict[str, Any], asked: Asked) -> str:
    if row["recall_at_least"] >= math.floor(asked.recall * 1e4) / 1e4:
        return "met"
    attainable = needed(asked.recall, row["effective_flows"], asked.confidence) is not None
    if row["recall"] < asked.recall or attainable:
        return "missed"
    return "too few flows"


def _more(row: dict[str, Any], target: float, asked: Asked) -> str:
    least = flows_needed(target, asked.confidence)
    if row["effective_flows"] < least:
        return (
            f"a recall of {target:g} takes at least {least} flows of similar size of a source: "
            "label more flows, or give similar sources one name"
        )
    return (
        "raise --attack-weight or --class-weight, try more leaves (--shape 16x128), or ask for less"
    )


def _kept(seen: Unseen, kept: float, asked: Asked, verdict: _Verdict) -> None:
    flows = effective_flows(seen.flow, seen.wire_len)
    bound = at_most(kept, flows, asked.confidence)
    said = (
        f"keeps {kept:.1%} of bytes whole (at most {bound:.1%}), asked for {asked.kept_whole:.1%}"
    )
    if kept > asked.kept_whole:
        verdict.missed(said, "ask for more bytes, or label more flows")
    elif bound > asked.kept_whole:
        verdict.said(
            f"{said}: a few large flows have most of the bytes", "label more of the large flows"
        )
