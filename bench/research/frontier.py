"""What trees of other kinds, and other numbers of them, would be worth at the same price.

Random forests, boosted trees, and boosted oblivious trees (every node of a level asks the same)
learn from one half of the mix and are judged on the other, over all operating points. The price is
the levels that a packet goes down, which is what the data plane pays for: `bench/results/forest.md`
has the ns. Several seeds, since forests of few trees differ by chance.
"""

import json
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier
from tqdm import tqdm

from strata.model import Bins
from strata.presets import Workshop
from strata.snapshots import Snapshots
from strata.training import FEATURES, macro_f1

TIME_COMPRESSION, WINDOW_MS = 1000.0, 10
# TitanLog's preset on this task: its share of attack packets found, and of right alarms.
PAPER_RECALL, PAPER_PRECISION = 0.731, 0.905

# Ranks of features, whether each packet is an attack, a seed; to the anomaly of ranks.
Fit = Callable[[np.ndarray, np.ndarray, int], Callable[[np.ndarray], np.ndarray]]


def random_forest(trees: int, leaves: int, depth: int) -> Fit:
    """As `strata train` has it."""

    def fit(ranks: np.ndarray, attack: np.ndarray, seed: int) -> Any:
        forest = RandomForestClassifier(
            trees, max_leaf_nodes=leaves, max_depth=depth, random_state=seed, n_jobs=1
        ).fit(ranks, attack)
        return lambda judged: forest.predict_proba(judged)[:, 1]

    return fit


def boosted(trees: int, leaves: int, depth: int, rate: float) -> Fit:
    """Gradient boosting on histograms, whose leaves add up (as LightGBM has it)."""

    def fit(ranks: np.ndarray, attack: np.ndarray, seed: int) -> Any:
        forest = HistGradientBoostingClassifier(
            learning_rate=rate,
            max_iter=trees,
            max_leaf_nodes=leaves,
            max_depth=depth,
            early_stopping=False,
            max_features=0.8,
            random_state=seed,
        ).fit(ranks, attack)
        return lambda judged: forest.predict_proba(judged)[:, 1]

    return fit


def oblivious(trees: int, depth: int, rate: float) -> Fit:
    """Gradient boosting of trees with one threshold a level, so that a leaf is a number of `depth`
    bits."""

    def fit(ranks: np.ndarray, attack: np.ndarray, seed: int) -> Any:
        rng = np.random.default_rng(seed)
        ranks = ranks.astype(np.int64)
        total = np.full(len(ranks), np.log(attack.mean() / (1 - attack.mean())))
        grown = []
        for _ in range(trees):
            share = 1 / (1 + np.exp(-total))
            tree = _oblivious_tree(ranks, share - attack, share * (1 - share), depth, rng)
            splits, values = tree
            grown.append((splits, rate * values))
            total += rate * values[_leaf(ranks, splits)]
        start = float(np.log(attack.mean() / (1 - attack.mean())))

        def anomaly(judged: np.ndarray) -> np.ndarray:
            judged = judged.astype(np.int64)
            added = sum(values[_leaf(judged, splits)] for splits, values in grown)
            return 1 / (1 + np.exp(-(start + added)))

        return anomaly

    return fit


def _leaf(ranks: np.ndarray, splits: Sequence[tuple[int, int]]) -> np.ndarray:
    leaf = np.zeros(len(ranks), np.int64)
    for feature, most in splits:
        leaf = 2 * leaf + (ranks[:, feature] > most)
    return leaf


def _oblivious_tree(
    ranks: np.ndarray,
    gradient: np.ndarray,
    curvature: np.ndarray,
    depth: int,
    rng: np.random.Generator,
    ridge: float = 3.0,
) -> tuple[list[tuple[int, int]], np.ndarray]:
    """Level by level the split that gains most over all nodes (Newton's gain), of four in five
    features; the values of its leaves."""
    splits: list[tuple[int, int]] = []
    bins = int(ranks.max()) + 1
    tried = rng.permutation(ranks.shape[1])[: max(1, ranks.shape[1] * 4 // 5)]
    for level in range(depth):
        node = _leaf(ranks, splits)
        best = (-np.inf, 0, 0)
        for feature in tried:
            place = node * bins + ranks[:, feature]
            size = (1 << level) * bins
            left = [
                np.bincount(place, of, size).reshape(-1, bins).cumsum(axis=1)
                for of in (gradient, curvature)
            ]
            right = [of[:, -1:] - of for of in left]
            gain = sum(g**2 / (h + ridge) for g, h in (left, right)).sum(axis=0)
            most = int(np.argmax(gain))
            best = max(best, (float(gain[most]), int(feature), most))
        splits.append(best[1:])
    leaf = _leaf(ranks, splits)
    sums = [np.bincount(leaf, of, 1 << depth) for of in (gradient, curvature)]
    return splits, -sums[0] / (sums[1] + ridge)


@dataclass(frozen=True)
class Candidate:
    """Trees to judge."""

    kind: str
    trees: int
    leaves: int
    depth: int
    fit: Fit


def _candidates() -> list[Candidate]:
    return [
        *(
            Candidate("random forest", trees, leaves, depth, random_forest(trees, leaves, depth))
            for trees, leaves, depth in ((3, 64, 7), (8, 64, 8), (16, 64, 8), (32, 64, 8))
        ),
        *(
            Candidate("boosted", trees, leaves, depth, boosted(trees, leaves, depth, rate))
            for trees, leaves, depth, rate in ((8, 64, 8, 0.3), (16, 64, 8, 0.2))
        ),
        *(
            Candidate("oblivious", trees, 1 << depth, depth, oblivious(trees, depth, rate))
            for trees, depth, rate in ((8, 6, 0.5), (16, 6, 0.3), (32, 6, 0.2))
        ),
    ]


def run(folder: Path, output: Path, seeds: int = 3) -> dict[str, Any]:
    """Writes figures to `output` with the endings .json and .md."""
    with tempfile.TemporaryDirectory(prefix="strata-") as scratch:
        workshop = Workshop(Path(scratch), TIME_COMPRESSION, WINDOW_MS)
        train, test = (workshop.snapshots(folder / n, ()) for n in ("mix-train", "mix-test"))
    rows = []
    for candidate in tqdm(_candidates(), desc="frontier"):
        judged = [judge(candidate.fit, train, test, seed) for seed in range(1, seeds + 1)]
        keys = judged[0]
        rows.append(
            {
                "kind": candidate.kind,
                "trees": candidate.trees,
                "leaves": candidate.leaves,
                "depth": candidate.depth,
                **{
                    key: [round(float(f([j[key] for j in judged])), 4) for f in (np.mean, np.std)]
                    for key in keys
                },
            }
        )
    figures = {
        "time_compression": TIME_COMPRESSION,
        "window_ms": WINDOW_MS,
        "seeds": seeds,
        "paper": {"recall": PAPER_RECALL, "precision": PAPER_PRECISION},
        "rows": rows,
    }
    output.with_suffix(".json").write_text(json.dumps(figures, indent=1) + "\n")
    output.with_suffix(".md").write_text(in_markdown(figures))
    return figures


def judge(fit: Fit, train: Snapshots, test: Snapshots, seed: int) -> dict[str, float]:
    """F1 of the sources that are in training too, at the score that is best for it; recall and
    precision of all attack packets, each where the other is the paper's."""
    values = train.values(FEATURES)
    bins = Bins(values)
    fitted = fit(bins.ranks(values), train.attack, seed)
    found = fitted(bins.ranks(test.values(FEATURES)))
    names = np.intersect1d(test.source[test.attack], train.source[train.attack])
    # Numbers are compared faster than names.
    _, source = np.unique(test.source, return_inverse=True)
    numbers = np.unique(source[np.isin(test.source, names)])

    def f1(least: float) -> float:
        return macro_f1(test.attack, source, found >= least, numbers)

    return {
        "f1_at_best": max(f1(least) for least in np.quantile(found, np.linspace(0, 1, 200))),
        "recall_at_paper_precision": _recall_at(test.attack, found, PAPER_PRECISION),
        "precision_at_paper_recall": _precision_at(test.attack, found, PAPER_RECALL),
    }


def _recall_at(attack: np.ndarray, score: np.ndarray, precision: float) -> float:
    """The largest recall at which precision is at least this."""
    order = np.argsort(-score, kind="stable")
    hits = np.cumsum(attack[order])
    # After the last packet of each score.
    ends = np.flatnonzero(np.diff(-score[order], append=np.inf) > 0)
    good = ends[hits[ends] / (ends + 1) >= precision]
    return float(hits[good[-1]] / attack.sum()) if len(good) else 0.0


def _precision_at(attack: np.ndarray, score: np.ndarray, recall: float) -> float:
    """The precision at the highest score from which on at least this share is found."""
    order = np.argsort(-score, kind="stable")
    hits = np.cumsum(attack[order])
    first = min(int(np.searchsorted(hits, recall * attack.sum())), len(order) - 1)
    # Packets of one score are found together.
    last = int(np.searchsorted(-score[order], -score[order][first], "right"))
    return float(hits[last - 1] / last)


def in_markdown(figures: dict[str, Any]) -> str:
    """The figures as a table."""
    paper = figures["paper"]
    lines = [
        "# Trees of other kinds, at the same price",
        "",
        f"`make frontier`. Trained on mix-train, judged on mix-test; time compression "
        f"{figures['time_compression']:g}, windows of {figures['window_ms']} ms; mean and standard "
        f"deviation over {figures['seeds']} seeds. *Levels*: trees times depth, the most that a "
        "packet goes down. *F1*: the mean over attack sources known from training, at the score "
        "that is best for it on mix-test, so that only the trees are compared and not how an "
        "operating point is chosen. *Recall* of all attack packets at the precision of the preset "
        f"titanlog-paper ({paper['precision']:g}), and *precision* at its recall "
        f"({paper['recall']:g}).",
        "",
        "| kind | trees x leaves | depth | levels | F1 | recall | precision |",
        "|---|---|---:|---:|---:|---:|---:|",
    ]
    for row in figures["rows"]:
        keys = ("f1_at_best", "recall_at_paper_precision", "precision_at_paper_recall")
        cells = [
            row["kind"],
            f"{row['trees']} x {row['leaves']}",
            str(row["depth"]),
            str(row["trees"] * row["depth"]),
            *(f"{mean:.3f} ± {deviation:.3f}" for mean, deviation in (row[k] for k in keys)),
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"
