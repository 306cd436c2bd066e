"""The traffic classifier of *Flow (section 6.2): a forest over features of flows, trained on
what `strata gpv features` writes, and judged against what flow records and compiled queries
can measure (Figure 9)."""

import csv
import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.ensemble import RandomForestClassifier
from sklearn.metrics import f1_score, recall_score
from sklearn.model_selection import StratifiedKFold

# In the order of `strata_gpv::application::FLOW_FEATURES`.
FLOW = (
    *(f"size_{n}" for n in range(1, 9)),
    *("size_mean", "size_sd", "delay_us_mean", "delay_us_sd"),
)
NETFLOW = ("duration_us", "bytes", "packets")
MARPLE = (*NETFLOW, "size_mean", "size_max")
SETS = {"NetFlow": NETFLOW, "Marple": MARPLE, "*Flow": FLOW}

TREES, LEAVES, DEPTH = 8, 256, 12
# Classes of fewer flows cannot be judged.
FLOWS_MIN = 20


class FlowsError(ValueError):
    """A file is not one of `strata gpv features`, or has too little to learn from."""


def read(paths: Sequence[str | Path], by: str) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Columns by name, and the class of each flow: its `label` or its `source`."""
    columns: dict[str, list[float]] = {name: [] for name in {*NETFLOW, *MARPLE, *FLOW}}
    classes = []
    for path in paths:
        with open(path, newline="") as file:
            rows = csv.DictReader(file)
            missing = {by, *columns} - set(rows.fieldnames or ())
            if missing:
                raise FlowsError(
                    f"{path}: no column {', '.join(sorted(missing))}: "
                    "was it written by `strata gpv features`?"
                )
            for row in rows:
                # Flows without a label teach nothing.
                if not row[by]:
                    continue
                classes.append(row[by])
                for name, values in columns.items():
                    try:
                        values.append(float(row[name]))
                    except (TypeError, ValueError):
                        raise FlowsError(
                            f"{path}, line {rows.line_num}: {name} is no number"
                        ) from None
    arrays = {name: np.asarray(values, dtype=np.float32) for name, values in columns.items()}
    return arrays, np.asarray(classes)


def _matrix(columns: dict[str, np.ndarray], names: Sequence[str]) -> np.ndarray:
    return np.column_stack([columns[name] for name in names])


def _forest(seed: int, jobs: int) -> RandomForestClassifier:
    return RandomForestClassifier(
        n_estimators=TREES,
        max_leaf_nodes=LEAVES,
        max_depth=DEPTH,
        class_weight="balanced",
        random_state=seed,
        n_jobs=jobs,
    )


def judge(
    train: tuple[dict[str, np.ndarray], np.ndarray],
    test: tuple[dict[str, np.ndarray], np.ndarray] | None,
    *,
    seed: int = 1,
    jobs: int = 2,
) -> dict[str, Any]:
    """F1 and recall by class and on average, for each set of features: of unseen flows of
    `test`, else of five folds of `train`."""
    columns, classes = train
    flows = Counter(classes.tolist())
    names = sorted(name for name, count in flows.items() if count >= FLOWS_MIN)
    if len(names) < 2:
        raise FlowsError(f"fewer than two classes have {FLOWS_MIN} flows: label more flows")
    kept = np.isin(classes, names)
    judged: dict[str, dict[str, dict[str, float]]] = {"f1": {}, "recall": {}}
    for title, features in SETS.items():
        x, y = _matrix(columns, features)[kept], classes[kept]
        if test is not None:
            seen = np.isin(test[1], names)
            if not seen.any():
                raise FlowsError("the test flows have none of the trained classes")
            truth = test[1][seen]
            forest = _forest(seed, jobs).fit(x, y)
            predicted = forest.predict(_matrix(test[0], features)[seen])
        else:
            truth, predicted = y, np.empty_like(y)
            folds = StratifiedKFold(5, shuffle=True, random_state=seed)
            for learned, unseen in folds.split(x, y):
                forest = _forest(seed, jobs).fit(x[learned], y[learned])
                predicted[unseen] = forest.predict(x[unseen])
        present = [name for name in names if (truth == name).any()]
        for what, score in (("f1", f1_score), ("recall", recall_score)):
            each = score(truth, predicted, labels=present, average=None, zero_division=0)
            judged[what][title] = dict(zip(present, map(float, each), strict=True))
    means = {
        f"mean_{what}": {title: float(np.mean(list(each.values()))) for title, each in of.items()}
        for what, of in judged.items()
    }
    return {"classes": {name: flows[name] for name in names}, **judged, **means}


def text(forest: RandomForestClassifier) -> str:
    """The forest as `strata_gpv::application::Forest` reads it."""
    lines = ["strata-flow-forest 1", f"features {' '.join(FLOW)}"]
    lines += [f"class {name}" for name in forest.classes_]
    for estimator in forest.estimators_:
        tree = estimator.tree_
        lines.append("tree")
        for node in range(tree.node_count):
            left, right = tree.children_left[node], tree.children_right[node]
            if left < 0:
                shares = tree.value[node][0] / tree.value[node][0].sum()
                lines.append("leaf " + " ".join(f"{share:.6f}" for share in shares))
                continue
            # Features are of 32 bits: the largest such number that is not above the threshold.
            at_most = np.float32(tree.threshold[node])
            if at_most > tree.threshold[node]:
                at_most = np.nextafter(at_most, np.float32(-np.inf))
            lines.append(f"split {FLOW[tree.feature[node]]} {at_most!s} {left} {right}")
    return "\n".join(lines) + "\n"


def train(
    paths: Sequence[str | Path],
    output: str | Path | None,
    *,
    test: Sequence[str | Path] = (),
    by: str = "label",
    seed: int = 1,
    jobs: int = 2,
) -> dict[str, Any]:
    """Judges the three sets of features, and writes a forest of *Flow's to `output`."""
    learned = read(paths, by)
    judged = judge(learned, read(test, by) if test else None, seed=seed, jobs=jobs)
    if output is not None:
        kept = np.isin(learned[1], list(judged["classes"]))
        forest = _forest(seed, jobs).fit(_matrix(learned[0], FLOW)[kept], learned[1][kept])
        Path(output).write_text(text(forest))
    return judged


def printed(judged: dict[str, Any], as_json: bool) -> str:
    """What `strata gpv train` prints."""
    if as_json:
        return json.dumps(judged, indent=1)
    width = max(len("average recall"), *map(len, judged["classes"]))
    flows = judged["classes"]
    rows = [" ".join([f"{'F1':{width}}", f"{'flows':>8}", *(f"{title:>8}" for title in SETS)])]
    for name in next(iter(judged["f1"].values())):
        values = [f"{judged['f1'][title][name]:8.3f}" for title in SETS]
        rows.append(" ".join([f"{name:{width}}", f"{flows[name]:8,}", *values]))
    for what, name in (("mean_f1", "average"), ("mean_recall", "average recall")):
        means = [f"{judged[what][title]:8.3f}" for title in SETS]
        rows.append(" ".join([f"{name:{width}}", " " * 8, *means]))
    return "\n".join(rows)
