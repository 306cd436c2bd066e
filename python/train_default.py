"""Train the model that ships with Strata from a labelled capture.

    python train_default.py STRATA TRAIN_DIR TEST_DIR OUT.json

STRATA is the program; it makes the features, so training sees what the data
plane sees. A labelled directory holds trace.pcap and labels.csv with the columns
frame, label (1 is an attack) and source. The test directory is only reported on.

The model is conservative: a packet is benign only if the forest is confident.
How confident is chosen on the training capture alone, by cross-validation in
which all packets of one flow stay on one side.
"""

import csv
import io
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
from sklearn.ensemble import RandomForestClassifier
from sklearn.model_selection import StratifiedGroupKFold

WINDOW_MS = 10_000
TREES, DEPTH, SEED = 5, 8, 1
RECALL_WANTED, SCORE_AT_LEAST, FLOWS_AT_LEAST = 0.99, 0.9, 20

# Name and unit, as `strata` knows them. Ports, TTL and TOS are left out: in a
# capture of a few networks they tell hosts apart, not attacks.
PACKET_FEATURES = [
    ("size", "bytes"),
    ("header_len", "bytes"),
    ("payload_len", "bytes"),
    ("protocol", "number"),
    ("tcp_flags", "bits"),
    ("tcp_window", "bytes"),
]
FLOW_FEATURES = [
    ("packets", "packets"),
    ("bytes", "bytes"),
    ("size_min", "bytes"),
    ("size_max", "bytes"),
    ("size_avg", "bytes"),
    ("size_var", "bytes^2"),
    ("ipd_sum", "ns"),
    ("ipd_min", "ns"),
    ("ipd_max", "ns"),
    ("ipd_avg", "ns"),
    ("ipd_var", "us^2"),
    ("forward_bytes", "bytes"),
    ("backward_bytes", "bytes"),
    ("backward_size_max", "bytes"),
    ("window_forward", "bytes"),
    ("window_backward", "bytes"),
]
FEATURES = PACKET_FEATURES + FLOW_FEATURES


def load(strata, directory):
    """Features, labels, sources and flows of a labelled capture, by packet."""
    command = [strata, "features", "-r", str(directory / "trace.pcap")]
    command += ["--window-ms", str(WINDOW_MS), "--hash-seed", "0"]
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    rows = list(csv.DictReader(io.StringIO(text)))
    with open(directory / "labels.csv", newline="") as file:
        labels = {row["frame"]: (int(row["label"]), row["source"]) for row in csv.DictReader(file)}
    values = np.array([[float(row[name]) for name, _ in FEATURES] for row in rows])
    attack = np.array([labels[row["frame"]][0] for row in rows])
    source = np.array([labels[row["frame"]][1] for row in rows])
    flow = np.array([row["flow"] for row in rows])
    return values, attack, source, flow


def weights(attack, source):
    """Each source counts by the root of its packets, both classes alike: the
    floods outnumber everything else."""
    _, inverse, counts = np.unique(source, return_inverse=True, return_counts=True)
    weight = 1.0 / np.sqrt(counts[inverse])
    for label in (0, 1):
        weight[attack == label] /= weight[attack == label].sum()
    return weight * len(attack) / 2


def forest(values, attack, source):
    model = RandomForestClassifier(
        n_estimators=TREES, max_depth=DEPTH, min_samples_leaf=5, random_state=SEED
    )
    return model.fit(values, attack, sample_weight=weights(attack, source))


def benign_scores(values, attack, source, flow):
    """Scores of packets whose flow the forest has not seen."""
    scores = np.zeros(len(attack))
    folds = StratifiedGroupKFold(n_splits=5, shuffle=True, random_state=SEED)
    for train, test in folds.split(values, attack, flow):
        fitted = forest(values[train], attack[train], source[train])
        scores[test] = fitted.predict_proba(values[test])[:, 0]
    return scores


def threshold(scores, attack, source, flow):
    """The least score at which each attack source of the training capture is
    caught as wanted in flows the forest has not seen, but at least
    SCORE_AT_LEAST. Sources of a few flows say nothing about unseen ones."""
    least = SCORE_AT_LEAST
    for name in np.unique(source[attack == 1]):
        here = (source == name) & (attack == 1)
        if len(np.unique(flow[here])) < FLOWS_AT_LEAST:
            continue
        of_source = np.sort(scores[here])
        allowed = int((1 - RECALL_WANTED) * len(of_source))
        least = max(least, float(of_source[len(of_source) - 1 - allowed]) + 1e-4)
    return round(min(least, 0.99), 4)


def tree_json(estimator):
    tree = estimator.tree_
    nodes = []
    for index in range(tree.node_count):
        if tree.children_left[index] < 0:
            shares = tree.value[index][0] / tree.value[index][0].sum()
            benign = round(float(shares[0]), 6)
            nodes.append({"classes": [benign, round(1 - benign, 6)]})
        else:
            nodes.append(
                {
                    "feature": int(tree.feature[index]),
                    "at_most": float(tree.threshold[index]),
                    "left": int(tree.children_left[index]),
                    "right": int(tree.children_right[index]),
                }
            )
    return {"nodes": nodes}


def report(name, benign, attack, source):
    print(f"{name}: attacks kept whole {np.mean(~benign[attack == 1]):.4f}, ", end="")
    print(f"ordinary packets cut to headers {np.mean(benign[attack == 0]):.4f}")
    for each in np.unique(source[attack == 1]):
        print(f"  {each}: kept whole {np.mean(~benign[(source == each) & (attack == 1)]):.4f}")


def main():
    strata, *directories, out = sys.argv[1:]
    train_dir, test_dir = map(Path, directories)
    values, attack, source, flow = load(strata, train_dir)
    packet_count = len(PACKET_FEATURES)
    flow_scores = benign_scores(values, attack, source, flow)
    least = threshold(flow_scores, attack, source, flow)
    flow_forest = forest(values, attack, source)
    packet_forest = forest(values[:, :packet_count], attack, source)

    unseen = f"training capture, flows unseen, benign at {least}"
    report(unseen, flow_scores >= least, attack, source)
    test_values, test_attack, test_source, _ = load(strata, test_dir)
    scores = flow_forest.predict_proba(test_values)[:, 0]
    report("test capture", scores >= least, test_attack, test_source)
    scores = packet_forest.predict_proba(test_values[:, :packet_count])[:, 0]
    report("test capture, packet trees alone", scores >= least, test_attack, test_source)

    model = {
        "format": "strata-model",
        "version": 1,
        "name": "strata-default",
        "description": "Conservative: benign only when confident. Trained on a small mix of "
        "applications, devices and attacks; train your own for your network.",
        "window_ns": WINDOW_MS * 1_000_000,
        "arithmetic": "exact",
        "classes": [
            {"name": "benign", "anomalous": False},
            {"name": "anomalous", "anomalous": True},
        ],
        "features": [{"name": name, "unit": unit} for name, unit in FEATURES],
        "flow_trees": [tree_json(tree) for tree in flow_forest.estimators_],
        "packet_trees": [tree_json(tree) for tree in packet_forest.estimators_],
        "decision": {
            "rules": [{"class": "benign", "score_at_least": least}],
            "otherwise": "anomalous",
        },
        "training": {
            "capture": train_dir.name,
            "packets": len(attack),
            "attack_packets": int(attack.sum()),
            "seed": SEED,
            "script": "python/train_default.py",
        },
    }
    Path(out).write_text(json.dumps(model, indent=1) + "\n")


if __name__ == "__main__":
    main()
