"""A model of what is ordinary at a site, from its own traffic, without labels.

Trees tell the traffic apart from packets that never were: each of their features is either that of
another packet of the same traffic, or drawn from its whole range; and from a sample of attacks
elsewhere. So a leaf says how much of the traffic is like that, against how much would be by chance.
Ordinary packets count by the payload that keeping them would cost, so that a score is unusualness
per byte.

Shares of leaves are additive, so trees of a labelled model can stand next to these in one file: the
score is then the mean of both. Half of each, so that a packet costs what it did before.
"""

import csv
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.ensemble import HistGradientBoostingClassifier, IsolationForest, RandomForestClassifier
from tqdm import tqdm

from . import known as known_module
from .model import PACKET_LEVEL, Bins, dumps, tree_json
from .snapshots import BENIGN, SnapshotError, Snapshots
from .training import DEPTH, FEATURES

UNUSUAL = "unusual"
# A service is what a site has, so its port is a feature here.
LEARNT = (*FEATURES, "lower_port")
TREES, LEAVES = 8, 64
# Next to a labelled model, of which as many stay: together they fit in a key of 64 bits, with which
# the data plane is fastest.
TREES_BESIDE = 4
# What the sample of attacks was seen in.
ATTACKS = Path(__file__).parent / "data" / "attacks.csv"
ATTACKS_WINDOW_NS = 10_000_000_000
# The least traffic from which anything can be learnt.
PACKETS_MIN, FLOWS_MIN = 1000, 50
# A service of fewer flows is known only as far as it resembles others.
SERVICE_FLOWS_MIN = 20
# No flow counts for more than this share, however much it transfers: neither a backup nor somebody
# who wants a kind of traffic to be learnt.
FLOW_SHARE_MAX = 0.02
# Bytes that keeping a packet costs besides its payload.
PACKET_COST = 10.0
# Of scores, between what is ordinary and what is called unusual.
MARGIN = 0.01
# Parts of the capture in time, each judged by trees of the others.
PARTS = 4
# The largest packets and counters that the made-up packets may have.
LARGEST = {"ipd": 1e10, "var": 1e12, "bytes": 1e8, "port": 65535.0, "flags": 255.0}

Scorer = Callable[[np.ndarray], np.ndarray]


@dataclass
class Options:
    """How to learn."""

    alarm: float = 0.01
    """The share of ordinary payload that may be called unusual."""
    seed: int = 1
    jobs: int = 2
    progress: bool = True
    known: np.ndarray | None = None
    """Attacks to tell the traffic apart from; the sample of this package, if not given."""


def ordinary(data: Snapshots) -> tuple[Snapshots, int]:
    """The packets to learn from, and how many are left out as they have an alert or are near one.
    Without any label, all are ordinary."""
    if not (data.label != "").any():
        return data, 0
    keep = data.label == BENIGN
    return data.where(keep), int(np.sum(~keep))


def weights(data: Snapshots) -> np.ndarray:
    """What each packet counts: its payload, with a bound for each flow. Adds up to 1."""
    cost = data.columns["payload_len"].astype(float) + PACKET_COST
    _, flow = np.unique(data.columns["flow"], return_inverse=True)
    share = np.bincount(flow, cost) / cost.sum()
    # With fewer flows than that, all count the same.
    most = max(FLOW_SHARE_MAX, 1 / len(share))
    factor = np.minimum(1, most / share)
    cost *= factor[flow]
    return cost / cost.sum()


def chance(values: np.ndarray, features: Sequence[str], count: int, seed: int) -> np.ndarray:
    """Packets that never were."""
    rng = np.random.default_rng(seed)
    columns = []
    for name, column in zip(features, values.T, strict=True):
        real = rng.choice(column, count)
        largest = next((most for part, most in LARGEST.items() if part in name), 65535.0)
        largest = max(largest, float(column.max()))
        anywhere = np.floor(np.expm1(rng.uniform(0, np.log1p(largest), count)))
        columns.append(np.where(rng.random(count) < 0.5, real, anywhere))
    return np.column_stack(columns)


def attacks(without: Sequence[str] = ()) -> np.ndarray:
    """The sample of attacks, with the features of `LEARNT`, but for sources that begin with one of
    these words."""
    with ATTACKS.open(newline="") as file:
        rows = [r for r in csv.DictReader(file) if not r["source"].startswith(tuple(without))]
    return np.array([[float(r[name]) for name in LEARNT] for r in rows]).reshape(-1, len(LEARNT))


def _apart(
    values: np.ndarray,
    weight: np.ndarray,
    features: Sequence[str],
    seed: int,
    known: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rows of both kinds, which kind each is of, and weights: made-up packets and known attacks
    count the same."""
    made_up = chance(values, features, len(values), seed)
    other = np.full(len(made_up), 1 / len(made_up))
    if known is not None and len(known):
        made_up = np.vstack([made_up, known[:, [LEARNT.index(f) for f in features]]])
        other = np.concatenate([other / 2, np.full(len(known), 0.5 / len(known))])
    rows = np.vstack([values, made_up])
    kind = np.repeat([0, 1], (len(values), len(made_up)))
    return rows, kind, np.concatenate([weight, other])


def forest(
    values: np.ndarray,
    weight: np.ndarray,
    features: Sequence[str],
    options: Options,
    trees: int = TREES,
    known: np.ndarray | None = None,
) -> tuple[RandomForestClassifier, Bins]:
    """Trees whose share of class 1 is how unusual a packet is."""
    rows, kind, weight = _apart(values, weight, features, options.seed, known)
    bins = Bins(rows)
    grown = RandomForestClassifier(
        trees,
        max_leaf_nodes=LEAVES,
        max_depth=DEPTH,
        random_state=options.seed,
        n_jobs=options.jobs,
    )
    return grown.fit(bins.ranks(rows), kind, weight * len(rows)), bins


def _isolation(values: np.ndarray, weight: np.ndarray) -> Scorer:
    rng = np.random.default_rng(1)
    rows = values[rng.choice(len(values), min(len(values), 20_000), p=weight)]
    trees = IsolationForest(n_estimators=TREES, max_samples=256, random_state=1).fit(rows)
    return lambda judged: -trees.score_samples(judged)


def _density(values: np.ndarray, weight: np.ndarray) -> Scorer:
    trees, bins = forest(values, weight, LEARNT, Options())
    return lambda judged: trees.predict_proba(bins.ranks(judged))[:, 1]


def _boosted(values: np.ndarray, weight: np.ndarray) -> Scorer:
    rows, kind, weight = _apart(values, weight, LEARNT, 1)
    trees = HistGradientBoostingClassifier(
        max_iter=TREES, max_leaf_nodes=LEAVES, max_depth=DEPTH, learning_rate=0.5, random_state=1
    )
    return trees.fit(rows, kind, weight * len(rows)).decision_function


KINDS: dict[str, Callable[[np.ndarray, np.ndarray], Scorer]] = {
    "isolation forest": _isolation,
    "density forest": _density,
    "boosted density": _boosted,
}
"""Kinds of trees that were compared, all of the same size. Models have density forests, which also
know attacks."""


def _known(data: Snapshots, options: Options) -> np.ndarray | None:
    """Attacks elsewhere, if this traffic was seen in windows of the same length."""
    if options.known is not None:
        return options.known
    if int(data.settings["strata.window_ns"]) != ATTACKS_WINDOW_NS:
        return None
    return attacks()


def learn(
    data: Snapshots, beside: dict[str, Any] | None = None, name: str = "site", **options: Any
) -> dict[str, Any]:
    """A model of the ordinary packets of `data`, with half of the trees of the model `beside` next
    to its own. Raises `SnapshotError` if there is too little, or if that model sees packets another
    way."""
    chosen = Options(**options)
    data, excluded = ordinary(data)
    flows = len(np.unique(data.columns["flow"])) if len(data) else 0
    if len(data) < PACKETS_MIN or flows < FLOWS_MIN:
        raise SnapshotError(
            f"too little ordinary traffic: {len(data):,} packets of {flows:,} flows, at least "
            f"{PACKETS_MIN:,} of {FLOWS_MIN} are needed: capture longer, or at a busier time"
        )
    _check_beside(data, beside)
    features = list(LEARNT)
    if beside is not None:
        features = [f["name"] for f in beside["features"]]
        features += [f for f in LEARNT if f not in features]
    own_count = TREES if beside is None else TREES_BESIDE
    weight = weights(data)
    unseen = _unseen(data, weight, beside, chosen)
    classes = [{"name": BENIGN, "anomalous": False}]
    if beside is not None:
        classes = [dict(c) for c in beside["classes"]]
    classes.append({"name": UNUSUAL, "anomalous": True})
    trees = {}
    for level, of_level in (
        ("flow_trees", LEARNT),
        ("packet_trees", tuple(f for f in LEARNT if f in PACKET_LEVEL)),
    ):
        own = _trees(data, weight, of_level, features, classes, chosen, own_count)
        trees[level] = own + _extended(beside, level)
    model = {
        "format": "strata-model",
        "version": 1,
        "name": name,
        "description": "What is ordinary at a site, learnt from its traffic without labels.",
        "window_ns": int(data.settings["strata.window_ns"]),
        "arithmetic": json.loads(data.settings["strata.arithmetic"]),
        "buckets": json.loads(data.settings["strata.buckets"]),
        "classes": classes,
        "features": [{"name": f, "unit": data.units[f]} for f in features],
        **trees,
    }
    # Trees that have seen everything score slightly differently, which matters if most scores are
    # equal.
    final = _point(anomaly(model, data), weight, chosen.alarm)
    point = min(1.0, max(_point(unseen, weight, chosen.alarm), final) + MARGIN)
    model["decision"] = _decision(classes, point)
    model["training"] = {
        "learnt": _learnt(data, excluded, unseen, weight, point, chosen),
        "beside": None if beside is None else beside["name"],
        "snapshots": data.names,
        "seed": chosen.seed,
    }
    return model


def _check_beside(data: Snapshots, beside: dict[str, Any] | None) -> None:
    if beside is None:
        return
    window = int(data.settings["strata.window_ns"])
    if beside["window_ns"] != window:
        raise SnapshotError(
            f"the other model (--model) has windows of {beside['window_ns'] / 1e6:g} ms, this "
            f"traffic was seen in windows of {window / 1e6:g} ms: name another model, or write the "
            "features with `strata features --window-ms`"
        )
    if any(c["name"] == UNUSUAL for c in beside["classes"]):
        raise SnapshotError(
            f"the other model (--model) was learnt too: it has the class '{UNUSUAL}': name a model "
            "trained on labels"
        )
    if sum(not c["anomalous"] for c in beside["classes"]) == 0:
        raise SnapshotError("the other model (--model) has no class of ordinary traffic")


def _ordinary_class(classes: Sequence[dict[str, Any]]) -> int:
    return next(i for i, c in enumerate(classes) if not c["anomalous"])


def _trees(
    data: Snapshots,
    weight: np.ndarray,
    of_level: Sequence[str],
    features: Sequence[str],
    classes: Sequence[dict[str, Any]],
    options: Options,
    count: int,
) -> list[dict[str, Any]]:
    known = _known(data, options)
    trained, bins = forest(data.values(of_level), weight, of_level, options, count, known)
    columns = [features.index(f) for f in of_level]
    trees = []
    for tree in trained.estimators_:
        shares = tree.tree_.value[:, 0, :]
        unusual = shares[:, 1] / shares.sum(axis=1)
        rows = np.zeros((len(unusual), len(classes)))
        rows[:, _ordinary_class(classes)] = 1 - unusual
        rows[:, -1] = unusual
        trees.append(tree_json(tree.tree_, bins, columns, rows))
    return trees


def _extended(beside: dict[str, Any] | None, level: str) -> list[dict[str, Any]]:
    """Trees of another model, whose leaves know the new class."""
    if beside is None:
        return []
    return [
        {
            "nodes": [
                {"classes": [*n["classes"], 0.0]} if "classes" in n else dict(n)
                for n in tree["nodes"]
            ]
        }
        for tree in half(beside, level)
    ]


def half(model: dict[str, Any], level: str) -> list[dict[str, Any]]:
    """The trees of a labelled model that stay. Those of a random forest differ by chance only, so
    the first ones are as good as others."""
    # A model without flow trees uses those of packets.
    return (model[level] or model["packet_trees"])[:TREES_BESIDE]


def _decision(classes: Sequence[dict[str, Any]], point: float) -> dict[str, Any]:
    """Ordinary below the point; else the class with most of the rest, as rules can say it."""
    names = [c["name"] for c in classes]
    benign = names[_ordinary_class(classes)]
    rules = [{"class": benign, "score_at_least": round(min(1.0, 1 - point + 1e-5), 6)}]
    others = [c["name"] for c in classes if c["anomalous"] and c["name"] != UNUSUAL]
    for level in (0.5, 0.4, 0.3, 0.2):
        rules += [{"class": c, "score_at_least": level} for c in others]
    return {"rules": rules, "otherwise": UNUSUAL}


def walk(tree: dict[str, Any], values: np.ndarray) -> np.ndarray:
    """The node of a tree in a model file that each row reaches."""
    nodes = tree["nodes"]
    feature = np.array([n.get("feature", -1) for n in nodes])
    at_most = np.array([n.get("at_most", 0.0) for n in nodes])
    children = np.array([(n.get("right", 0), n.get("left", 0)) for n in nodes])
    at = np.zeros(len(values), int)
    rows = np.arange(len(values))
    while (splits := feature[at] >= 0).any():
        left = values[rows, np.maximum(feature[at], 0)] <= at_most[at]
        at = np.where(splits, children[at, left.astype(int)], at)
    return at


def anomaly(model: dict[str, Any], data: Snapshots) -> np.ndarray:
    """The anomaly score that flow trees give each packet, as the data plane has it but for steps of
    1/65535, and without doubt (`known`)."""
    values = data.values([f["name"] for f in model["features"]])
    anomalous = np.array([c["anomalous"] for c in model["classes"]])
    trees = model["flow_trees"] or model["packet_trees"]
    total = np.zeros(len(values))
    for tree in trees:
        none = np.zeros(len(anomalous))
        leaf = np.array([n.get("classes", none) for n in tree["nodes"]])[:, anomalous].sum(axis=1)
        total += leaf[walk(tree, values)]
    return total / len(trees)


def doubt(model: dict[str, Any], data: Snapshots) -> np.ndarray:
    """How unlike the training of the model each packet is, if the model says so."""
    texts = model.get("known", {}).get("flow_trees", [])
    values = data.values([f["name"] for f in model["features"]])
    trees = [tree["nodes"] for tree in model["flow_trees"]]
    nodes = [walk(tree, values) for tree in model["flow_trees"]]
    leaves = [known_module.numbered(n, t) for n, t in zip(nodes, trees, strict=True)]
    counts = [sum("classes" in node for node in tree) for tree in trees]
    met = known_module.read(texts, counts)
    return known_module.doubt(met, np.column_stack(leaves))


def _unseen(
    data: Snapshots, weight: np.ndarray, beside: dict[str, Any] | None, options: Options
) -> np.ndarray:
    """The score of each packet from trees that have learnt from other parts of the time, with the
    share that the model beside has in it. Packets of one flow may be in two parts: what a site
    goes on doing is ordinary."""
    values = data.values(LEARNT)
    order = np.argsort(data.columns["ts_ns"], kind="stable")
    part = np.empty(len(data), int)
    part[order] = np.arange(len(data)) * PARTS // len(data)
    scores = np.zeros(len(data))
    count = TREES if beside is None else TREES_BESIDE
    known = _known(data, options)
    for n in tqdm(range(PARTS), desc="learning", disable=None if options.progress else True):
        here = part == n
        rest = weight[~here] / weight[~here].sum()
        trees, bins = forest(values[~here], rest, LEARNT, options, count, known)
        scores[here] = trees.predict_proba(bins.ranks(values[here]))[:, 1]
    if beside is None:
        return scores
    others = half(beside, "flow_trees")
    labelled = anomaly({**beside, "flow_trees": others}, data)
    return (count * scores + len(others) * labelled) / (count + len(others))


def _point(scores: np.ndarray, weight: np.ndarray, alarm: float) -> float:
    """The score that this share of ordinary payload reaches."""
    order = np.argsort(-scores, kind="stable")
    above = np.cumsum(weight[order])
    return float(np.nextafter(scores[order[np.searchsorted(above, alarm)]], 2))


def _learnt(
    data: Snapshots,
    excluded: int,
    unseen: np.ndarray,
    weight: np.ndarray,
    point: float,
    options: Options,
) -> dict[str, Any]:
    """What was learnt from, and whether it was enough."""
    columns = data.columns
    seconds = float(np.ptp(columns["ts_ns"].astype(np.int64))) / 1e9
    service = columns["protocol"].astype(int) * 65536 + columns["lower_port"].astype(int)
    flows_of = {}
    for number in np.unique(service):
        flows = len(np.unique(columns["flow"][service == number]))
        flows_of[f"{number // 65536}/{number % 65536}"] = flows
    known = {k: v for k, v in flows_of.items() if v >= SERVICE_FLOWS_MIN}
    largest = sorted(known.items(), key=lambda kv: -kv[1])[:20]
    # How much the parts of the time differ in what they call unusual.
    order = np.argsort(columns["ts_ns"], kind="stable")
    shares = [
        float(weight[rows][unseen[rows] >= point].sum() / weight[rows].sum())
        for rows in np.array_split(order, PARTS)
    ]
    problems = []
    if seconds < 600:
        problems.append(
            f"{seconds:.0f} s of traffic: what is ordinary at other times will look unusual; "
            "capture at least an hour, better a week"
        )
    if not known:
        problems.append(f"no service has {SERVICE_FLOWS_MIN} flows: capture longer")
    if max(shares) > 5 * options.alarm:
        problems.append(
            f"the traffic changes: {max(shares):.1%} of the payload in one quarter of the time "
            f"looks unusual, {options.alarm:.1%} on average: capture longer"
        )
    return {
        "packets": len(data),
        "flows": len(np.unique(columns["flow"])),
        "hours": round(seconds / 3600, 3),
        "excluded_near_alerts": excluded,
        "services": len(flows_of),
        "services_known": len(known),
        "largest_services": dict(largest),
        "score_at_least": round(point, 4),
        "unusual_by_part": [round(s, 4) for s in shares],
        "problems": problems,
    }


def as_text(learnt: dict[str, Any]) -> str:
    """What was learnt, for people."""
    lines = [
        f"Learnt from {learnt['packets']:,} packets of {learnt['flows']:,} flows in "
        f"{learnt['hours']:g} hours; {learnt['services_known']} of {learnt['services']} services "
        f"have the {SERVICE_FLOWS_MIN} flows that are needed to know a service."
    ]
    if learnt["excluded_near_alerts"]:
        lines.append(
            f"{learnt['excluded_near_alerts']:,} packets left out, because they are under an alert "
            "or near one."
        )
    names = ", ".join(f"{k} ({v:,})" for k, v in learnt["largest_services"].items())
    if names:
        lines.append(f"Services known, as protocol/port (flows): {names}.")
    parts = ", ".join(f"{s:.1%}" for s in learnt["unusual_by_part"])
    lines.append(f"Unusual payload by quarter of the time, judged by the other quarters: {parts}.")
    lines += [f"Too little: {problem}." for problem in learnt["problems"]]
    if not learnt["problems"]:
        lines.append("Enough: the model is of use.")
    return "\n".join(lines)


def write(model: dict[str, Any], path: str | Path) -> None:
    """Writes a model file."""
    Path(path).write_text(dumps(model))
