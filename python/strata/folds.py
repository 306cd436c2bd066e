"""Folds of cross-validation, flow by flow."""

import numpy as np


def assign(flow: np.ndarray, strata: np.ndarray, count: int, seed: int) -> np.ndarray:
    """The fold of each packet. All packets of a flow are in one fold; the flows of each stratum
    (such as a class of a source) are spread as evenly as their sizes allow, so that whatever has
    two flows is on both sides of a fold. A flow is of the stratum of most of its packets."""
    kind_of, packets, flow = _strata_of_flows(flow, strata)
    flows, kinds = len(kind_of), int(kind_of.max()) + 1
    rng = np.random.default_rng(seed)
    fold_of, total = np.zeros(flows, int), np.zeros(count, int)
    for kind in range(kinds):
        members = rng.permutation(np.flatnonzero(kind_of == kind))
        # Large flows first: the small ones fill up.
        members = members[np.argsort(-packets[members], kind="stable")]
        held, own = np.zeros(count, int), np.zeros(count, int)
        for member in members:
            # As many flows in each fold, then as many packets.
            fold = min(range(count), key=lambda f: (own[f], held[f], total[f], f))
            fold_of[member] = fold
            own[fold] += 1
            held[fold] += packets[member]
            total[fold] += packets[member]
    return fold_of[flow]


def first_half(flow: np.ndarray, strata: np.ndarray, ts_ns: np.ndarray) -> np.ndarray:
    """A mask of the packets of the first half of each stratum's flows, by the time at which they
    begin. A flow is on one side only; the only flow of a stratum is in the second half."""
    kind_of, _, flow = _strata_of_flows(flow, strata)
    begin = np.full(len(kind_of), np.iinfo(np.uint64).max, np.uint64)
    np.minimum.at(begin, flow, ts_ns.astype(np.uint64))
    is_first = np.zeros(len(kind_of), bool)
    for kind in range(int(kind_of.max()) + 1):
        members = np.flatnonzero(kind_of == kind)
        members = members[np.argsort(begin[members], kind="stable")]
        is_first[members[: len(members) // 2]] = True
    return is_first[flow]


def _strata_of_flows(
    flow: np.ndarray, strata: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Per flow the stratum of most of its packets and their number; per packet its flow's
    index."""
    _, flow = np.unique(flow, return_inverse=True)
    _, strata = np.unique(strata, return_inverse=True)
    flows, kinds = int(flow.max()) + 1, int(strata.max()) + 1
    # Pairs of flow and stratum, the most frequent one of each flow last.
    pairs, counts = np.unique(flow * kinds + strata, return_counts=True)
    order = np.lexsort((counts, pairs // kinds))
    kind_of = np.zeros(flows, int)
    kind_of[(pairs // kinds)[order]] = (pairs % kinds)[order]
    return kind_of, np.bincount(flow, minlength=flows), flow
