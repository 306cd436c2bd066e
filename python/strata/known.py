"""What a forest was trained on: the leaves that packets in training reached together.

As crates/path/classify/src/model/known.rs reads it; the format is in docs/formats/model.md.
"""

from itertools import combinations
from typing import Any

import numpy as np

# Models of more trees or leaves say nothing: the program reads at most as many pairs of leaves.
PAIRS_MAX = 1 << 24


def pairs(leaves: np.ndarray) -> list[np.ndarray]:
    """For each pair of trees, in order, whether two of their leaves were reached together: a matrix
    of leaves by leaves. `leaves` holds for each packet the number of each tree's leaf."""
    counts = leaves.max(axis=0) + 1
    met = []
    for one, other in combinations(range(leaves.shape[1]), 2):
        both = np.zeros((counts[one], counts[other]), bool)
        both[leaves[:, one], leaves[:, other]] = True
        met.append(both)
    return met


def doubt(met: list[np.ndarray], leaves: np.ndarray) -> np.ndarray:
    """The share of pairs of each packet's leaves that were never reached together."""
    if not met:
        return np.zeros(len(leaves))
    unmet = np.zeros(len(leaves))
    for both, (one, other) in zip(met, combinations(range(leaves.shape[1]), 2), strict=True):
        row, column = leaves[:, one], leaves[:, other]
        inside = (row < both.shape[0]) & (column < both.shape[1])
        unmet += ~(inside & both[row * inside, column * inside])
    return unmet / len(met)


def numbered(nodes: np.ndarray, tree: list[dict[str, Any]]) -> np.ndarray:
    """From node numbers of a model file to numbers of leaves."""
    number = np.cumsum([("classes" in node) for node in tree]) - 1
    return number[nodes]


def texts(trees: list[dict[str, Any]], nodes: np.ndarray) -> list[str]:
    """The texts of a model file for trees whose leaves packets in training reached, by node number;
    none, if there are too many leaves."""
    counts = [sum("classes" in node for node in tree["nodes"]) for tree in trees]
    size = sum(one * other for one, other in combinations(counts, 2))
    if size > PAIRS_MAX:
        return []
    leaves = np.column_stack(
        [numbered(column, tree["nodes"]) for column, tree in zip(nodes.T, trees, strict=True)]
    )
    written = []
    for one, other in combinations(range(len(trees)), 2):
        # Whole digits of four bits, the lowest first.
        both = np.zeros((counts[one], -(-counts[other] // 4) * 4), np.uint8)
        both[leaves[:, one], leaves[:, other]] = 1
        digits = both.reshape(counts[one], -1, 4) @ np.array([1, 2, 4, 8], np.uint8)
        written.append("".join("0123456789abcdef"[digit] for digit in digits.ravel()))
    return written


def read(written: list[str], counts: list[int]) -> list[np.ndarray]:
    """What `pairs` gave, from the texts of a model file for trees of `counts` leaves."""
    met = []
    for text, (one, other) in zip(written, combinations(range(len(counts)), 2), strict=False):
        digits = np.array([int(digit, 16) for digit in text]).reshape(counts[one], -1, 1)
        bits = digits >> np.arange(4) & 1
        met.append(bits.reshape(counts[one], -1)[:, : counts[other]].astype(bool))
    return met
