import numpy as np
from research import ablation

from strata.snapshots import Snapshots

FEATURES = ("size", "tcp_flags", "packets")
HEAD = {"capture": "x", "time_compression": 1.0, "window_ms": 10}
UNITS = {"size": "bytes", "tcp_flags": "bits", "packets": "packets"}
SETTINGS = {
    "strata.window_ns": "10000000",
    "strata.arithmetic": '"exact"',
    "strata.buckets": '"voting"',
}


def snapshots():
    """400 flows of 5 packets; one of four is an attack with small packets."""
    rng = np.random.default_rng(3)
    flow = np.repeat(np.arange(400, dtype=np.uint64), 5)
    attack = flow % 4 == 0
    count = len(flow)
    label = np.where(attack, np.where(flow % 8 == 0, "scan", "flood"), "benign")
    columns = {
        "frame": np.arange(1, count + 1, dtype=np.uint64),
        "ts_ns": np.arange(count, dtype=np.uint64) * 1000,
        "flow": flow,
        "in_flow": np.tile(np.arange(1, 6, dtype=np.uint64), 400),
        "has_bucket": np.ones(count, bool),
        "wire_len": np.full(count, 100, np.uint64),
        "label": label,
        "source": label,
        "size": np.where(
            attack, rng.integers(40, 200, count), rng.integers(150, 1500, count)
        ).astype(float),
        "tcp_flags": rng.integers(0, 64, count).astype(float),
        "packets": np.tile(np.arange(1, 6), 400).astype(float),
    }
    return Snapshots(columns, UNITS, SETTINGS, ["x"])


def test_ablation_finds_the_group_that_decides(monkeypatch):
    data = snapshots()
    groups = {"size": ("size",), "flags": ("tcp_flags",), "counts": ("packets",)}
    monkeypatch.setattr(ablation, "FEATURES", FEATURES)
    monkeypatch.setattr(ablation, "LEFT_OUT", ())
    monkeypatch.setattr(ablation, "GROUPS", groups)
    figures = ablation.ablate(data, seeds=(1, 2), jobs=1, progress=False)
    bought = {row["without"]: row["bought"] for row in figures["rows"]}
    assert bought["all"] == 0
    assert bought["size"] > 0.3
    # The others are dice.
    assert abs(bought["flags"]) < 0.1
    assert abs(bought["counts"]) < 0.1
    assert "| size | `size` |" in ablation.in_markdown({**HEAD, **figures}, "make")
