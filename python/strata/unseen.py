"""What a budget of detail is spent on, by models that have not seen the attack.

Each labelled capture's attacks are judged within the ordinary traffic of a site: that of the same
capture if there is enough, else that of each of several others, where addresses and times of the
two play no part. Of the payload, a tenth is kept, highest scores first, and among equal scores by
lot.
"""

import json
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.metrics import roc_auc_score
from tqdm import tqdm

from . import learning, program
from . import snapshots as snapshots_module
from .folds import first_half
from .snapshots import BENIGN, Snapshots
from .training import DOUBT_WEIGHT, Options, Trainer

BUDGET = 0.1
TRAINED_ON = "mix-train"
# Captures with ordinary traffic of the hosts that are attacked.
OWN = ("dns-tunnel", "rat-c2", "infected-hosts", "westermo-right", "mix-test")
SITES = {
    "office": ("mix-test", "everyday-benign", "youtube"),
    "industrial": ("ot-benign",),
    "IoT": ("iot-week",),
    "mobile core": ("mobile-core",),
}
# Sources of the training capture that are the same attack, by the beginning of their names.
RELATED = {
    "cic2019-synflood": ("cic2019-synflood",),
    "cic2019-webddos": ("cic2019-webddos",),
    "westermo-right": ("westermo",),
}
ROWS_MAX = 30_000
REPETITIONS = 300
POISON = (0.01, 0.1)
SHIPPED, DOUBTING = "shipped, no doubt", "shipped"
BY_BYTES, ALONE, BOTH = "trained by bytes", "learnt alone", "learnt and trained"
WITH_SHIPPED = "learnt and shipped"
RANDOM, FIRST = "random", "first bytes"


@dataclass
class Site:
    """Ordinary traffic: what was learnt from, and what comes later."""

    before: Snapshots
    after: Snapshots
    weight: np.ndarray
    kinds: dict[str, learning.Scorer]
    learnt: dict[tuple[str, ...], learning.Scorer] = field(default_factory=dict)
    """By the attacks that it may not know."""


@dataclass
class Case:
    """An attack at a site."""

    name: str
    site: str
    attack: np.ndarray
    payload: np.ndarray
    flow: np.ndarray
    scores: dict[str, np.ndarray]


def run(folder: Path, output: Path, shipped: Path, jobs: int = 2) -> dict[str, Any]:
    """Writes figures to `output` with the endings .json and .md. `shipped` is the model that the
    program has built in, which has seen some of the attacks."""
    with tempfile.TemporaryDirectory(prefix="strata-") as scratch:
        captures = _captures(folder, Path(scratch))
        figures = _judge(captures, json.loads(shipped.read_text()), jobs)
    figures["captures"] = sorted(captures)
    output.with_suffix(".json").write_text(json.dumps(figures, indent=1) + "\n")
    output.with_suffix(".md").write_text(in_markdown(figures))
    return figures


def _captures(folder: Path, scratch: Path) -> dict[str, Snapshots]:
    found = {}
    paths = sorted(path.parent for path in folder.glob("*/labels.csv"))
    for path in tqdm(paths, desc="features", disable=None):
        trace = next(t for t in (path / "trace.pcap", path / "trace.pcap.gz") if t.exists())
        file = scratch / f"{path.name}.parquet"
        program.run("features", "-r", trace, "--labels", path / "labels.csv", "-o", file)
        found[path.name] = snapshots_module.load([file])
    missing = {TRAINED_ON, *OWN, *(n for names in SITES.values() for n in names)} - set(found)
    if missing:
        raise ValueError(f"{folder}: no capture {', '.join(sorted(missing))}")
    return found


def _judge(captures: dict[str, Snapshots], shipped: dict[str, Any], jobs: int) -> dict[str, Any]:
    rows, kinds, repeated = [], {kind: [] for kind in learning.KINDS}, []
    todo = cases(captures)
    sites: dict[tuple[str, ...], Site] = {}
    models: dict[tuple[str, ...], dict[str, Any]] = {}
    for name, site_name, names in tqdm(todo, desc="attacks", disable=None):
        if names not in sites:
            sites[names] = _site([captures[n] for n in names])
        related = RELATED.get(name, ())
        if related not in models:
            models[related] = _trained(captures[TRAINED_ON], related, jobs)
        case = _case(
            name, site_name, captures[name], sites[names], models[related], related, shipped
        )
        rows.append(_row(case))
        repeated.append(_bootstrap(case))
        for kind, area in _areas(case, sites[names], captures[name]).items():
            kinds[kind].append(area)
    return {
        "budget": BUDGET,
        "rows": rows,
        "macro": _macro(rows),
        "differences": _differences(repeated),
        "kinds": {kind: round(float(np.mean(areas)), 3) for kind, areas in kinds.items()},
    }


def cases(captures: dict[str, Snapshots]) -> list[tuple[str, str, tuple[str, ...]]]:
    cases = [(name, "its own", (name,)) for name in OWN]
    for name, data in captures.items():
        if name not in (*OWN, TRAINED_ON) and data.attack.any():
            cases += [(name, site, names) for site, names in SITES.items()]
    return cases


def _site(captures: Sequence[Snapshots]) -> Site:
    halves: tuple[list[Snapshots], list[Snapshots]] = ([], [])
    for data in captures:
        data = data.where(data.label == BENIGN)
        early = first_half(data.columns["flow"], data.strata(), data.columns["ts_ns"])
        halves[0].append(data.where(early))
        halves[1].append(data.where(~early))
    before, after = (_joined(half) for half in halves)
    if len(before) > ROWS_MAX:
        rows = np.random.default_rng(1).choice(len(before), ROWS_MAX, replace=False)
        before = before.where(np.sort(rows))
    weight = learning.weights(before)
    values = before.values(learning.LEARNT)
    kinds = {name: kind(values, weight) for name, kind in learning.KINDS.items()}
    return Site(before, after, weight, kinds)


def _joined(parts: Sequence[Snapshots]) -> Snapshots:
    columns = {k: np.concatenate([p.columns[k] for p in parts]) for k in parts[0].columns}
    return Snapshots(columns, parts[0].units, parts[0].settings, [])


def _trained(data: Snapshots, related: Sequence[str], jobs: int) -> dict[str, Any]:
    """Trees of the options of the shipped model, which have not seen these sources."""
    data = data.where(~np.array([str(s).startswith(tuple(related)) for s in data.source]))
    trainer = Trainer(data, Options(by_bytes=True, min_leaf=5, jobs=jobs, progress=False))
    columns = list(range(len(trainer.features)))
    trees, _ = trainer.trees(columns, (8, 64, 8), 0.5, 0.5)
    classes = [{"name": c, "anomalous": c != BENIGN} for c in trainer.classes]
    features = [{"name": f} for f in trainer.features]
    return {"classes": classes, "features": features, "flow_trees": trees}


def _case(
    name: str,
    site_name: str,
    capture: Snapshots,
    site: Site,
    trained: dict[str, Any],
    related: Sequence[str],
    shipped: dict[str, Any],
) -> Case:
    attacks = capture.where(capture.attack)
    both = _joined([site.after, attacks])
    payload = both.columns["payload_len"].astype(float)
    flow = both.columns["flow"]
    known = learning.attacks(related)
    values = both.values(learning.LEARNT)

    def learnt(trees: int, before: np.ndarray, weight: np.ndarray) -> learning.Scorer:
        grown, bins = learning.forest(
            before, weight, learning.LEARNT, learning.Options(), trees, known
        )
        return lambda judged: grown.predict_proba(bins.ranks(judged))[:, 1]

    before = site.before.values(learning.LEARNT)
    half = {**trained, "flow_trees": trained["flow_trees"][: learning.TREES_BESIDE]}
    labelled = learning.anomaly(half, both)
    scores = {
        RANDOM: np.zeros(len(both)),
        FIRST: first_bytes(flow, both.columns["in_flow"], payload),
    }
    plain, doubt = learning.anomaly(shipped, both), learning.doubt(shipped, both)
    scores[SHIPPED], scores[DOUBTING] = plain, np.maximum(plain, doubt * DOUBT_WEIGHT)
    scores[BY_BYTES] = learning.anomaly(trained, both)
    key = tuple(related)
    if key not in site.learnt:
        site.learnt[key] = learnt(learning.TREES, before, site.weight)
        site.learnt[(*key, BOTH)] = learnt(learning.TREES_BESIDE, before, site.weight)
    scores[ALONE] = site.learnt[key](values)
    own = site.learnt[(*key, BOTH)](values)
    of_shipped = {**shipped, "flow_trees": learning.half(shipped, "flow_trees")}
    scores[WITH_SHIPPED] = learning.anomaly(of_shipped, both) + own
    scores[BOTH] = labelled + own
    for share in POISON:
        bad = learning.weights(attacks) * share
        rows = np.vstack([before, attacks.values(learning.LEARNT)])
        weight = np.concatenate([site.weight * (1 - share), bad])
        scores[_poisoned(share)] = labelled + learnt(learning.TREES_BESIDE, rows, weight)(values)
    attack = np.repeat([False, True], (len(site.after), len(attacks)))
    return Case(name, site_name, attack, payload, flow, scores)


def _poisoned(share: float) -> str:
    return f"{BOTH}, {share:.0%} poisoned"


def first_bytes(flow: np.ndarray, in_flow: np.ndarray, payload: np.ndarray) -> np.ndarray:
    """The higher, the fewer bytes of the flow come before."""
    order = np.lexsort((in_flow, flow))
    before = np.cumsum(payload[order]) - payload[order]
    starts = np.flatnonzero(np.r_[True, flow[order][1:] != flow[order][:-1]])
    lengths = np.diff(np.r_[starts, len(order)])
    score = np.empty(len(order))
    score[order] = np.repeat(before[starts], lengths) - before
    return score


def kept(score: np.ndarray, payload: np.ndarray, share: float) -> np.ndarray:
    """Which packets are kept whole of a budget, highest scores first."""
    lot = np.random.default_rng(1).random(len(score))
    order = np.lexsort((lot, -score))
    spent = np.cumsum(payload[order])
    chosen = np.zeros(len(score), bool)
    chosen[order[spent <= share * spent[-1]]] = True
    return chosen & (payload > 0)


def _flows(case: Case) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Of each attack flow, the packets with payload, and how many of these are kept."""
    here = case.attack & (case.payload > 0)
    _, flow = np.unique(case.flow[here], return_inverse=True)
    count = np.bincount(flow)
    return count, {
        name: np.bincount(flow, kept(score, case.payload, BUDGET)[here])
        for name, score in case.scores.items()
    }


def _row(case: Case) -> dict[str, Any]:
    count, of = _flows(case)
    shares = {
        name: [round(float(k.sum() / count.sum()), 4), round(float(np.mean(k > 0)), 4)]
        for name, k in of.items()
    }
    return {"attack": case.name, "site": case.site, "flows": len(count), "kept": shares}


def _bootstrap(case: Case) -> dict[str, np.ndarray]:
    """The shares of packets and of flows, of as many flows drawn anew each time."""
    count, of = _flows(case)
    rng = np.random.default_rng(1)
    drawn = rng.multinomial(len(count), np.full(len(count), 1 / len(count)), REPETITIONS)
    packets = drawn @ count
    return {
        name: np.column_stack([drawn @ k / packets, drawn @ (k > 0) / len(count)])
        for name, k in of.items()
    }


def _areas(case: Case, site: Site, capture: Snapshots) -> dict[str, float]:
    """The area under ROC of each kind of trees, on packets with payload."""
    attacks = capture.where(capture.attack)
    values = _joined([site.after, attacks]).values(learning.LEARNT)
    here = case.payload > 0
    return {
        kind: float(roc_auc_score(case.attack[here], score(values[here])))
        for kind, score in site.kinds.items()
    }


def _macro(rows: Sequence[dict[str, Any]]) -> dict[str, list[float]]:
    return {
        name: np.mean([r["kept"][name] for r in rows], axis=0).round(4).tolist()
        for name in rows[0]["kept"]
    }


def _differences(repeated: Sequence[dict[str, np.ndarray]]) -> dict[str, Any]:
    """The macro averages of models less those of others: mean and 95 % of the repetitions."""
    mean = {name: np.mean([r[name] for r in repeated], axis=0) for name in repeated[0]}
    found = {}
    for model in (DOUBTING, BY_BYTES, ALONE, WITH_SHIPPED, BOTH):
        for other in (RANDOM, FIRST, SHIPPED, BY_BYTES):
            if other in mean and other != model:
                low, middle, high = np.quantile(mean[model] - mean[other], (0.025, 0.5, 0.975), 0)
                values = np.column_stack([middle, low, high]).round(4).tolist()
                found[f"{model} - {other}"] = {"packets": values[0], "flows": values[1]}
    return found


def in_markdown(figures: dict[str, Any]) -> str:
    """The figures as tables."""
    names = list(figures["macro"])
    lines = [
        "# What models keep of attacks that they have not seen",
        "",
        "`make unseen`. Share of attack packets / of attack flows of which payload is kept, of "
        f"{figures['budget']:.0%} of all payload, in percent. Models have not seen the attacks, "
        "but for those of mix-test; the shipped one has seen some of cic2019 and westermo too.",
        "",
        "| attack | site | " + " | ".join(names) + " |",
        "|---|---|" + "---:|" * len(names),
    ]
    for row in [*figures["rows"], {"attack": "**mean**", "site": "", "kept": figures["macro"]}]:
        cells = [f"{100 * p:.0f} / {100 * f:.0f}" for p, f in (row["kept"][n] for n in names)]
        lines.append(f"| {row['attack']} | {row['site']} | " + " | ".join(cells) + " |")
    lines += [
        "",
        "Differences of means in percentage points, and 95 % of a paired bootstrap over flows:",
        "",
        "| | packets | flows |",
        "|---|---:|---:|",
    ]
    for name, found in figures["differences"].items():
        cells = [
            f"{100 * m:+.1f} ({100 * low:+.1f} to {100 * high:+.1f})"
            for m, low, high in (found["packets"], found["flows"])
        ]
        lines.append(f"| {name} | {cells[0]} | {cells[1]} |")
    lines += ["", "Mean area under ROC of trees that learnt from ordinary packets alone:", ""]
    lines += [f"- {kind}: {area:.3f}" for kind, area in figures["kinds"].items()]
    return "\n".join(lines) + "\n"
