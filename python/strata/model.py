"""Model files (docs/formats/model.md), from forests of scikit-learn."""

import json
from collections.abc import Sequence
from typing import Any

import numpy as np

# Features of every packet; all others belong to its flow.
PACKET_LEVEL = (
    "size",
    "header_len",
    "payload_len",
    "protocol",
    "source_port",
    "destination_port",
    "lower_port",
    "tcp_flags",
    "tcp_window",
    "ttl",
    "tos",
    "ecn",
)


class Bins:
    """Values as the data plane distinguishes them: by at most `count` thresholds per
    feature, so that a rank among them is a byte. Thresholds are values that occur, so
    they are exact in the feature's own step."""

    def __init__(self, values: np.ndarray, count: int = 255):
        self.edges = [self._edges(column, count) for column in values.T]

    @staticmethod
    def _edges(column: np.ndarray, count: int) -> np.ndarray:
        known = np.unique(column)
        # Values up to an edge go left; the largest value needs none.
        if len(known) - 1 > count:
            shares = np.arange(1, count + 1) / (count + 1)
            known = np.unique(np.quantile(column, shares, method="lower"))
            return known[:count]
        return known[:-1]

    def ranks(self, values: np.ndarray) -> np.ndarray:
        """How many thresholds of its feature are below each value, as float32."""
        ranks = [
            np.searchsorted(edges, column, side="left")
            for edges, column in zip(self.edges, values.T, strict=True)
        ]
        return np.column_stack(ranks).astype(np.float32)

    def at_most(self, feature: int, rank: float) -> float:
        """The threshold in the feature's unit for a rank."""
        return float(self.edges[feature][int(np.floor(rank))])


def stretch(shares: np.ndarray, own: float, common: float, benign: int) -> np.ndarray:
    """Moves a forest's scores so that its operating point `own` becomes `common`, both
    as the anomaly score 1 - share of benign. An affine map, so means keep their order."""
    anomaly = 1 - shares[:, benign]
    if own < common:
        moved = 1 - (1 - anomaly) * (1 - common) / (1 - own)
    else:
        moved = anomaly * common / max(own, 1e-9)
    factor = np.divide(moved, anomaly, out=np.zeros_like(moved), where=anomaly > 0)
    result = shares * factor[:, None]
    attacks = [index for index in range(shares.shape[1]) if index != benign]
    # A leaf without attacks says nothing about which attack it would be.
    spread = np.where(anomaly > 0, 0, moved) / max(len(attacks), 1)
    result[:, attacks] += spread[:, None]
    result[:, benign] = 1 - moved
    return result


def tree_json(
    tree: Any, bins: Bins, columns: Sequence[int], shares: np.ndarray
) -> dict[str, list[dict[str, Any]]]:
    """One tree; `columns` are the model's numbers of the forest's features, `shares` the
    classes' shares by node, adding up to 1."""
    nodes = []
    for index in range(tree.node_count):
        if tree.children_left[index] < 0:
            row = [round(float(share), 6) for share in shares[index]]
            row[0] = round(1 - sum(row[1:]), 6)
            nodes.append({"classes": row})
        else:
            feature = int(tree.feature[index])
            nodes.append(
                {
                    "feature": columns[feature],
                    "at_most": bins.at_most(feature, tree.threshold[index]),
                    "left": int(tree.children_left[index]),
                    "right": int(tree.children_right[index]),
                }
            )
    return {"nodes": nodes}


def dumps(model: dict[str, Any]) -> str:
    """A model as text: a line per node, so that versions can be compared."""
    text = json.dumps({**model, "flow_trees": "F", "packet_trees": "P"}, indent=1)
    for key, mark in (("flow_trees", '"F"'), ("packet_trees", '"P"')):
        trees = []
        for tree in model[key]:
            nodes = ",\n".join("   " + json.dumps(node) for node in tree["nodes"])
            trees.append('  {"nodes": [\n' + nodes + "\n  ]}")
        text = text.replace(f'"{key}": {mark}', f'"{key}": [\n' + ",\n".join(trees) + "\n ]")
    return text + "\n"


def split_json(feature: int, at_most: float, low: dict[str, Any], high: dict[str, Any]) -> Any:
    """A tree whose root sends values up to `at_most` to one tree, others to another."""

    def moved(tree: dict[str, Any], by: int) -> list[dict[str, Any]]:
        nodes = []
        for node in tree["nodes"]:
            node = dict(node)
            for child in ("left", "right"):
                if child in node:
                    node[child] += by
            nodes.append(node)
        return nodes

    left, right = 1, 1 + len(low["nodes"])
    root = {"feature": feature, "at_most": at_most, "left": left, "right": right}
    return {"nodes": [root, *moved(low, left), *moved(high, right)]}
