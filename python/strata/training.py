"""From labelled snapshots to a model that the data plane loads.

TitanLog §IV-B trains on snapshots taken as each packet arrives, with more weight on
attacks. Here trees, leaves and the operating point are chosen on packets of flows that
the forest has not seen: all packets of a flow are on one side of every fold.
"""

import json
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import sklearn
from sklearn.ensemble import RandomForestClassifier
from tqdm import tqdm

from . import folds as folds_module
from . import known as known_module
from . import snapshots as snapshots_module
from . import verdict as verdict_module
from .evaluation import Decisions, evaluate
from .model import PACKET_LEVEL, Bins, dumps, stretch, tree_json
from .snapshots import BENIGN, Named, SnapshotError, Snapshots

# Ports, TTL and the rest of the type of service tell the hosts of a capture apart, not attacks;
# name them if you train on much traffic.
FEATURES = (
    *("size", "header_len", "payload_len", "protocol", "tcp_flags", "tcp_window", "ecn"),
    *("packets", "bytes", "size_min", "size_max", "size_avg", "size_var"),
    *("ipd_sum", "ipd_min", "ipd_max", "ipd_avg", "ipd_var"),
    *("forward_bytes", "backward_bytes", "backward_size_min", "backward_size_max"),
    *("backward_header_bytes", "window_forward", "window_backward", "backward"),
)
# Each default feature is in one group.
GROUPS = {
    "lengths of the packet": ("size", "header_len", "payload_len"),
    "protocol": ("protocol",),
    "TCP flags": ("tcp_flags",),
    "TCP window of the packet": ("tcp_window",),
    "ECN": ("ecn",),
    "counts of the flow": ("packets", "bytes"),
    "sizes of the flow": ("size_min", "size_max", "size_avg"),
    "delays": ("ipd_sum", "ipd_min", "ipd_max", "ipd_avg"),
    "variances": ("size_var", "ipd_var"),
    "directional": (
        *("forward_bytes", "backward_bytes", "backward_size_min", "backward_size_max"),
        *("backward_header_bytes", "backward"),
    ),
    "initial windows": ("window_forward", "window_backward"),
}
# Bytes that keeping a packet costs besides its payload.
PACKET_COST = 10.0
# The least score per doubt: as in crates/path/classify/src/verdict.rs.
DOUBT_WEIGHT = 0.5
# Trees and leaves per tree that are tried, from cheap to expensive, and how deep they may be: as
# much as the batch evaluation can do at line rate. Shallow trees are also better on flows they have
# not seen.
SHAPES = ((8, 64), (16, 64))
DEPTH = 8
# A source of fewer flows does not decide on shapes and operating points.
FLOWS_MIN = 20
# A cheaper shape is chosen if it is this close to the best.
CLOSE_ENOUGH = 0.005
# Operating points whose F1 is this close to the best are as good.
PLATEAU_F1 = 0.02
# The lowest operating point: a score of 0 is that of leaves without attacks, and scores have steps.
POINT_MIN = 1e-4
# Trees, leaves per tree, depth.
Shape = tuple[int, int, int | None]


@dataclass
class Options:
    """How to train. Costs are of one packet."""

    features: Sequence[str] = FEATURES
    shapes: Sequence[tuple[int, int]] = SHAPES
    """Trees and leaves per tree to choose from, from cheap to expensive."""
    depths: Sequence[int | None] = (DEPTH,)
    """Depths of a tree to choose from, from cheap to expensive."""
    choose_features: bool = False
    """Drop groups of features without which cross-validation is no worse. It sees one
    capture: what tells its hosts apart helps there and not elsewhere, so name no such
    features."""
    min_leaf: int = 1
    attack_weight: float = 1.0
    """Weight of an attack packet in training (TitanLog §IV-B)."""
    class_weights: Mapping[str, float] = field(default_factory=dict)
    even_sources: bool = False
    """Sources count by the root of their packets, attacks as much as the rest."""
    by_bytes: bool = False
    """Benign packets count by their payload, which is what keeping them costs: for a model whose
    scores a budget of bytes is spent on. Small sources count more, as with `even_sources`."""
    miss_cost: float = 1.0
    false_alarm_cost: float = 1.0
    target_recall: float | None = None
    """At least this, for each attack source: the lower bound where there are flows enough to show
    it, else the recall itself; sources of very few flows are judged, but do not set the point."""
    max_kept_whole: float | None = None
    """Share of all bytes."""
    min_precision: float | None = None
    """Of the verdict; does not set the operating point."""
    min_f1: float | None = None
    """The mean over attack sources; of the verdict, like `min_precision`."""
    confidence: float = 0.95
    """Of bounds, one-sided."""
    conservative: float | None = None
    """Benign only with at least this score; everything else unknown."""
    point: float | None = None
    """The anomaly score from which a packet is anomalous, instead of choosing one."""
    folds: int = 5
    bins: int = 255
    seed: int = 1
    jobs: int = 2
    progress: bool = True


def train(
    snapshots: str | Path | Sequence[str | Path | Named] | Snapshots,
    output: str | Path | None = None,
    *,
    name: str = "strata",
    description: str = "",
    report: str | Path | None = None,
    **options: Any,
) -> dict[str, Any]:
    """Trains a model on Parquet files of `strata features` and writes it if `output` is
    given. Options as `Options` has them. Returns the model as its file has it. Raises
    `SnapshotError` if the snapshots are not usable. Memory: some 200 bytes per packet.
    `report` is a page about the forests of the folds, evaluated on flows that they have not
    seen."""
    if isinstance(snapshots, str | Path):
        snapshots = [snapshots]
    if not isinstance(snapshots, Snapshots):
        snapshots = snapshots_module.load(snapshots)
    trainer = Trainer(snapshots, Options(**options))
    model = trainer.train(name, description)
    if output is not None:
        Path(output).write_text(dumps(model))
    if report is not None:
        evaluate(trainer.unseen(), model, report, seed=trainer.options.seed)
    return model


class Trainer:
    """One run over some snapshots."""

    def __init__(self, snapshots: Snapshots, options: Options):
        self.options = options
        self.data = snapshots
        missing = [name for name in options.features if name not in snapshots.columns]
        if missing:
            raise SnapshotError(f"no feature {', '.join(missing)}: not in the snapshots")
        others = sorted(set(np.unique(snapshots.label)) - {BENIGN})
        if not others or not (~snapshots.attack).any():
            raise SnapshotError("the labels must have benign packets and others")
        self.classes = [BENIGN, *others]
        self.target = np.searchsorted(np.array(others), snapshots.label)
        self.target = np.where(snapshots.attack, self.target + 1, 0)
        self.features = tuple(options.features)
        self.values = snapshots.values(self.features)
        self.weights = self._weights()
        flow = snapshots.columns["flow"]
        count = max(2, min(self.options.folds, len(np.unique(flow))))
        self.fold_of = folds_module.assign(flow, snapshots.strata(), count, self.options.seed)
        self.known_folds = np.unique(self.fold_of)
        self.decisive = self._decisive()
        # On unseen flows, once trained.
        self.scores, self.point = np.zeros(len(snapshots)), 1.0
        self.doubt = np.zeros(len(snapshots))

    def _decisive(self) -> np.ndarray:
        """Attack sources of flows enough to choose shapes and operating points by; all, if none
        has. What others score in cross-validation is chance."""
        attack, flow = self.data.attack, self.data.columns["flow"]
        names = np.unique(self.data.source[attack])
        flows = [len(np.unique(flow[attack & (self.data.source == name)])) for name in names]
        enough = np.array(flows) >= FLOWS_MIN
        return names[enough] if enough.any() else names

    def unseen(self) -> Decisions:
        """The decisions of the folds' forests on flows that they have not seen."""
        columns, alarm = self.data.columns, self.scores >= self.point
        return Decisions(
            label=self.data.label,
            source=self.data.source,
            decided=np.where(alarm, "anomalous", BENIGN),
            anomaly=self.scores,
            anomalous=alarm,
            flow=columns["flow"],
            in_flow=columns["in_flow"],
            wire_len=columns["wire_len"].astype(float),
            ts_ns=columns["ts_ns"],
            has_bucket=columns["has_bucket"],
            summary={},
        )

    def verdict(self) -> dict[str, Any]:
        """How the folds' forests do on flows that they have not seen, against the requirements."""
        options, columns = self.options, self.data.columns
        seen = verdict_module.Unseen(
            attack=self.data.attack,
            alarm=self.scores >= self.point,
            source=self.data.source,
            label=self.data.label,
            flow=columns["flow"],
            wire_len=columns["wire_len"].astype(float),
        )
        asked = verdict_module.Asked(
            recall=options.target_recall,
            precision=options.min_precision,
            f1=options.min_f1,
            kept_whole=options.max_kept_whole,
            confidence=options.confidence,
        )
        return verdict_module.judge(seen, asked)

    def _weights(self) -> np.ndarray:
        weights = np.ones(len(self.data))
        attack = self.data.attack
        if self.options.even_sources or self.options.by_bytes:
            _, inverse = np.unique(self.data.source, return_inverse=True)
            if self.options.by_bytes:
                cost = self.data.columns["payload_len"].astype(float) + PACKET_COST
                weights = np.where(attack, 1.0, cost)
            weights = weights / np.sqrt(np.bincount(inverse, weights)[inverse])
            for side in (attack, ~attack):
                weights[side] *= len(attack) / 2 / weights[side].sum()
        weights[attack] *= self.options.attack_weight
        for name, weight in self.options.class_weights.items():
            if name not in self.classes:
                raise SnapshotError(f"no class '{name}'; there are {', '.join(self.classes)}")
            weights[self.data.label == name] *= weight
        return weights

    def forest(self, shape: Shape, seed: int = 0) -> RandomForestClassifier:
        """An untrained forest."""
        trees, leaves, depth = shape
        return RandomForestClassifier(
            trees,
            max_leaf_nodes=leaves,
            max_depth=depth,
            min_samples_leaf=self.options.min_leaf,
            random_state=self.options.seed + seed,
            n_jobs=self.options.jobs,
        )

    @cached_property
    def folds(self) -> list[tuple[np.ndarray, np.ndarray]]:
        """Pairs of rows; a flow is on one side only. None if there is only one flow."""
        if len(self.known_folds) < 2:
            return []
        sides = (self.fold_of == fold for fold in self.known_folds)
        return [(np.flatnonzero(~test), np.flatnonzero(test)) for test in sides]

    def out_of_fold(self, values: np.ndarray, shape: Shape, progress: tqdm) -> np.ndarray:
        """The anomaly score of each packet from forests that have not seen its flow; `doubt` is
        then how unlike their training it is. Where models are conservative, doubt is in the
        score."""
        scores = np.zeros(len(self.data))
        self.doubt = np.zeros(len(self.data))
        for train, test in self.folds:
            bins = Bins(values[train], self.options.bins)
            forest = self.forest(shape)
            ranks = bins.ranks(values[train]), bins.ranks(values[test])
            forest.fit(ranks[0], self.target[train], self.weights[train])
            shares = forest.predict_proba(ranks[1])
            met = known_module.pairs(forest.apply(ranks[0]))
            self.doubt[test] = known_module.doubt(met, forest.apply(ranks[1]))
            # A side with a single benign flow leaves the other without any.
            benign = np.flatnonzero(forest.classes_ == 0)
            scores[test] = 1 - shares[:, benign].sum(axis=1)
            progress.update()
        if self.options.conservative is not None:
            scores = 1 - (1 - scores) * (1 - self.doubt)
        return scores

    def train(self, name: str, description: str) -> dict[str, Any]:
        """The model."""
        options = self.options
        if not self.packet_columns():
            raise SnapshotError(
                "no packet-level feature is left, but packets whose flow has no bucket need one"
            )
        shapes = [(*shape, depth) for shape in options.shapes for depth in options.depths]
        steps = len(self.folds) * (len(shapes) + 1)
        with tqdm(
            total=steps, desc="cross-validation", disable=None if options.progress else True
        ) as bar:
            tried = []
            for shape in shapes:
                scores = self.out_of_fold(self.values, shape, bar)
                tried.append((shape, scores, self.quality(scores), self.doubt))
            best = max(quality for _, _, quality, _ in tried)
            shape, scores, _, self.doubt = next(t for t in tried if t[2] >= best - CLOSE_ENOUGH)
            if options.choose_features:
                scores = self.leave_out_features(shape, scores, bar)
            doubt = self.doubt
            packet = self.packet_columns()
            packet_scores = self.out_of_fold(self.values[:, packet], shape, bar)
        point = self.operating_point(scores)
        self.scores, self.point, self.doubt = scores, point, doubt
        verdict = self.verdict()
        packet_point = self.operating_point(packet_scores)
        verdict["without_bucket_macro_f1"] = round(
            macro_f1(self.data.attack, self.data.source, packet_scores >= packet_point), 4
        )
        flow_trees, flow_known = self.trees(list(range(len(self.features))), shape, point, point)
        packet_trees, packet_known = self.trees(packet, shape, packet_point, point)
        units = self.data.units
        classes = [{"name": c, "anomalous": c != BENIGN} for c in self.classes]
        decision = self.decision(point)
        if options.conservative is not None:
            classes.append({"name": "unknown", "anomalous": True})
            for tree in (*flow_trees, *packet_trees):
                for node in tree["nodes"]:
                    if "classes" in node:
                        node["classes"].append(0.0)
        settings = self.data.settings
        arithmetic, buckets = settings["strata.arithmetic"], settings["strata.buckets"]
        return {
            "format": "strata-model",
            "version": 1,
            "name": name,
            "description": description,
            "window_ns": int(settings["strata.window_ns"]),
            "arithmetic": json.loads(arithmetic),
            "buckets": json.loads(buckets),
            "classes": classes,
            "features": [{"name": f, "unit": units[f]} for f in self.features],
            "flow_trees": flow_trees,
            "packet_trees": packet_trees,
            "decision": decision,
            "known": {
                "flow_trees": flow_known,
                "packet_trees": packet_known,
                "decides": options.conservative is not None,
            },
            "distributions": self.distributions(self.raised(scores)),
            "training": {
                "snapshots": self.data.names,
                "packets": len(self.data),
                "attack_packets": int(self.data.attack.sum()),
                "flows": len(np.unique(self.data.columns["flow"])),
                "sources": sorted({str(s) for s in self.data.source[self.data.attack]}),
                "seed": options.seed,
                "shape": {"trees": shape[0], "leaves": shape[1], "depth": shape[2]},
                "tried": [
                    {"trees": t, "leaves": n, "depth": d, "quality": round(float(q), 4)}
                    for (t, n, d), _, q, _ in tried
                ],
                "anomaly_score_at_least": round(point, 4),
                "labels": self.data.labels(),
                "folds": len(self.folds),
                "verdict": verdict,
                "options": {
                    k: _plain(v)
                    for k, v in vars(options).items()
                    if k not in ("progress", "jobs", "features", "shapes", "depths")
                },
                "versions": {
                    "python": platform.python_version(),
                    "numpy": np.__version__,
                    "scikit-learn": sklearn.__version__,
                },
            },
        }

    def packet_columns(self) -> list[int]:
        """Columns that a packet has without its flow."""
        return [i for i, name in enumerate(self.features) if name in PACKET_LEVEL]

    def leave_out_features(self, shape: Shape, scores: np.ndarray, bar: tqdm) -> np.ndarray:
        """Drops one group of features after another as long as that makes the results on unseen
        flows no worse; the anomaly scores with the remaining ones."""
        doubt = self.doubt
        while True:
            tried = []
            for group in (*GROUPS.values(), *((f,) for f in self.features if f not in FEATURES)):
                stay = [i for i, name in enumerate(self.features) if name not in group]
                if len(stay) == len(self.features) or not set(stay) & set(self.packet_columns()):
                    continue
                bar.total += len(self.folds)
                without = self.out_of_fold(self.values[:, stay], shape, bar)
                tried.append((self.quality(without), stay, without, self.doubt))
            if not tried:
                self.doubt = doubt
                return scores
            quality, stay, without, of_these = max(tried, key=lambda attempt: attempt[0])
            if quality < self.quality(scores):
                self.doubt = doubt
                return scores
            self.features = tuple(self.features[i] for i in stay)
            self.values, scores = self.values[:, stay], without
            doubt = of_these

    def quality(self, scores: np.ndarray) -> float:
        """Macro-average over attack sources of F1 at the operating point; each source
        against all benign packets."""
        alarm = scores >= self.operating_point(scores)
        return macro_f1(self.data.attack, self.data.source, alarm, self.decisive)

    def operating_point(self, scores: np.ndarray) -> float:
        """The anomaly score from which on a packet is anomalous."""
        options = self.options
        if options.point is not None:
            return options.point
        if options.conservative is not None:
            return 1 - options.conservative
        if options.target_recall is not None:
            return self._point_of_recall(scores, options.target_recall)
        if options.max_kept_whole is not None:
            return self._point_of_kept(scores, options.max_kept_whole)
        candidates = np.unique(np.round(np.linspace(0.02, 0.98, 97), 2))
        everywhere = np.ones(len(scores), bool)
        costs = np.array([self._cost(scores >= point, everywhere) for point in candidates])
        # The cost on unseen traffic varies from fold to fold: points within one standard error of
        # the best are as good.
        best = candidates[int(np.argmin(costs))]
        parts = [self._cost(scores >= best, self.fold_of == fold) for fold in self.known_folds]
        error = float(np.nanstd(parts) / np.sqrt(len(parts)))
        if options.miss_cost == options.false_alarm_cost:
            # F1 has a plateau. A link has far more ordinary traffic than a capture, of more kinds:
            # the end with the fewest false alarms.
            return float(candidates[costs <= costs.min() + max(error, PLATEAU_F1)][-1])
        near = candidates[costs <= costs.min() + error]
        return float(near[len(near) // 2])

    def _cost(self, alarm: np.ndarray, rows: np.ndarray) -> float:
        """Of the packets of `rows`; smaller is better. NaN without attacks."""
        options, attack = self.options, self.data.attack[rows]
        alarm = alarm[rows]
        if not attack.any():
            return float("nan")
        if options.miss_cost == options.false_alarm_cost:
            return -macro_f1(attack, self.data.source[rows], alarm, self.decisive)
        missed = np.mean(self.weights[rows][attack] * ~alarm[attack])
        alarms = np.mean(alarm[~attack]) if not attack.all() else 0.0
        return float(options.miss_cost * missed + options.false_alarm_cost * alarms)

    def _point_of_kept(self, scores: np.ndarray, most: float) -> float:
        """The lowest score from which on at most this share of bytes is kept whole: its upper
        bound, where there are flows enough."""
        wire_len = self.data.columns["wire_len"].astype(float)
        flows = verdict_module.effective_flows(self.data.columns["flow"], wire_len)
        least = verdict_module.needed(1 - most, flows, self.options.confidence)
        if least is not None:
            most = 1 - least
        order = np.argsort(-scores, kind="stable")
        kept = np.cumsum(wire_len[order])
        allowed = min(int(np.searchsorted(kept, most * kept[-1], "right")), len(order) - 1)
        # Packets of one score are kept or not kept together.
        return max(float(np.nextafter(scores[order[allowed]], 2)), POINT_MIN)

    def _point_of_recall(self, scores: np.ndarray, target: float) -> float:
        attack, source, flow = self.data.attack, self.data.source, self.data.columns["flow"]
        enough = [
            attack & (source == name)
            for name in self.decisive
            if len(np.unique(flow[attack & (source == name)])) >= FLOWS_MIN
        ]
        points = [self._point_of(scores, here, target) for here in enough or [attack]]
        return max(min(points), POINT_MIN)

    def _point_of(self, scores: np.ndarray, here: np.ndarray, target: float) -> float:
        """The highest score from which on the target is met, with a margin for other flows if
        there are enough to know it."""
        flows = verdict_module.effective_flows(self.data.columns["flow"][here])
        share = verdict_module.needed(target, flows, self.options.confidence)
        ordered = np.sort(scores[here])
        misses = int((1 - (target if share is None else share)) * len(ordered) + 1e-9)
        return float(ordered[misses])

    def trees(
        self, columns: list[int], shape: Shape, own: float, common: float
    ) -> tuple[list[dict[str, Any]], list[str]]:
        """The trees of a forest over these features, trained on all packets, and which of their
        leaves packets reached together."""
        values = self.values[:, columns]
        bins = Bins(values, self.options.bins)
        ranks = bins.ranks(values)
        forest = self.forest(shape).fit(ranks, self.target, self.weights)
        trees = []
        for estimator in forest.estimators_:
            shares = estimator.tree_.value[:, 0, :]
            shares = shares / shares.sum(axis=1, keepdims=True)
            if own != common:
                shares = stretch(shares, own, common, 0)
            trees.append(tree_json(estimator.tree_, bins, columns, shares))
        return trees, known_module.texts(trees, forest.apply(ranks))

    def raised(self, scores: np.ndarray) -> np.ndarray:
        """Anomaly scores as the data plane has them: raised by doubt."""
        if self.options.conservative is not None:
            return scores
        return np.maximum(scores, self.doubt * DOUBT_WEIGHT)

    def decision(self, point: float) -> dict[str, Any]:
        """Benign if the anomaly score is below the point; else the attack with the
        largest score, as closely as ordered rules can express it."""
        # Scores are steps of 1/65535: some margin for rounding.
        benign = min(1.0, 1 - point + 1e-5)
        rules = [{"class": BENIGN, "score_at_least": round(benign, 6)}]
        others = self.classes[1:]
        if self.options.conservative is not None:
            least = self.options.conservative
            rules += [{"class": c, "score_at_least": least} for c in others]
            return {"rules": rules, "otherwise": "unknown"}
        if len(others) > 1:
            for level in (0.5, 0.4, 0.3, 0.25, 0.2, 0.15, 0.1):
                rules += [{"class": c, "score_at_least": level} for c in others]
        counts = [np.sum(self.data.label == c) for c in others]
        return {"rules": rules, "otherwise": others[int(np.argmax(counts))]}

    def distributions(self, scores: np.ndarray) -> dict[str, Any]:
        """The distributions with which `record` compares the traffic: per feature the share of
        packets up to each of at most 9 edges and above; of the anomaly score in ten steps."""
        features = []
        for index, name in enumerate(self.features):
            column = self.values[:, index]
            edges = np.unique(np.quantile(column, np.arange(1, 10) / 10, method="lower"))
            counts = np.bincount(np.searchsorted(edges, column), minlength=len(edges) + 1)
            shares = [round(float(c), 5) for c in counts / len(column)]
            features.append({"name": name, "edges": edges.tolist(), "shares": shares})
        counts, _ = np.histogram(scores, bins=10, range=(0, 1))
        return {
            "features": features,
            "scores": [round(float(c), 5) for c in counts / len(scores)],
        }


def macro_f1(
    attack: np.ndarray,
    source: np.ndarray,
    alarm: np.ndarray,
    names: np.ndarray | None = None,
) -> float:
    """The mean over attack sources (those named, if one of them is there) of F1, each against all
    benign packets."""
    false_alarms = int(np.sum(alarm & ~attack))
    values = []
    there = np.unique(source[attack])
    chosen = there if names is None else there[np.isin(there, names)]
    for name in chosen if len(chosen) else there:
        caught = alarm[attack & (source == name)]
        hits = int(caught.sum())
        values.append(2 * hits / (hits + len(caught) + false_alarms) if hits else 0.0)
    return float(np.mean(values))


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    return list(value) if isinstance(value, tuple) else value
