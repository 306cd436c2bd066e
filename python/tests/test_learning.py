import json

import numpy as np
import pytest

from strata import known, learning
from strata.main import main
from strata.snapshots import SnapshotError, Snapshots
from strata.training import Options, Trainer

UNITS = dict.fromkeys(learning.LEARNT, "number")
SETTINGS = {
    "strata.window_ns": "10000000000",
    "strata.arithmetic": '"exact"',
    "strata.buckets": '"voting"',
}


def site(flows=200, seed=1, port=502, label=""):
    """Flows of 10 packets to one service, over an hour."""
    rng = np.random.default_rng(seed)
    count = flows * 10
    columns = {name: rng.integers(0, 50, count).astype(float) for name in learning.LEARNT}
    columns["lower_port"] = np.full(count, float(port))
    columns["protocol"] = np.full(count, 6.0)
    columns["payload_len"] = rng.integers(20, 60, count).astype(float)
    columns["size"] = columns["payload_len"] + 54
    columns |= {
        "frame": np.arange(1, count + 1, dtype=np.uint64),
        "ts_ns": (np.arange(count) * (3_600_000_000_000 // count)).astype(np.uint64),
        "flow": np.repeat(np.arange(flows, dtype=np.uint64) + seed * 100_000, 10),
        "in_flow": np.tile(np.arange(1, 11, dtype=np.uint64), flows),
        "has_bucket": np.ones(count, bool),
        "wire_len": columns["size"].astype(np.uint64),
        "label": np.full(count, label),
        "source": np.full(count, label),
    }
    return Snapshots(columns, UNITS, SETTINGS, ["site"])


def joined(*parts):
    columns = {k: np.concatenate([p.columns[k] for p in parts]) for k in parts[0].columns}
    return Snapshots(columns, UNITS, SETTINGS, ["site"])


def test_what_a_site_does_is_ordinary_and_other_services_are_not():
    model = learning.learn(site(), jobs=1, progress=False)
    assert model == learning.learn(site(), jobs=1, progress=False)
    point = model["training"]["learnt"]["score_at_least"]
    assert np.mean(learning.anomaly(model, site(seed=2)) >= point) < 0.05
    other = site(seed=3, port=445)
    other.columns["payload_len"] += 1000
    other.columns["size"] += 1000
    assert np.mean(learning.anomaly(model, other) >= point) > 0.9
    assert model["training"]["learnt"]["problems"] == []
    assert model["training"]["learnt"]["largest_services"] == {"6/502": 200}


def test_what_is_under_alarm_is_not_learnt():
    clean, attacks = site(label="benign"), site(seed=3, port=445, label="anomalous")
    near = site(seed=4, port=446)
    model = learning.learn(joined(clean, attacks, near), jobs=1, progress=False)
    assert model["flow_trees"] == learning.learn(clean, jobs=1, progress=False)["flow_trees"]
    assert model["training"]["learnt"]["excluded_near_alerts"] == 4000


def test_no_flow_outweighs_the_rest():
    data = site()
    data.columns["payload_len"][:10] = 1e6
    weight = learning.weights(data)
    assert np.isclose(weight.sum(), 1)
    # Before the others are scaled up, its share is 2 %.
    assert weight[:10].sum() < 0.999
    plain = data.columns["payload_len"] + learning.PACKET_COST
    assert plain[:10].sum() / plain.sum() > 0.99


def test_half_of_a_labelled_model_stays():
    labelled = site(seed=5, label="attack")
    labelled.columns["payload_len"] += 700
    data = joined(site(label="benign"), labelled)
    options = {"jobs": 1, "progress": False, "shapes": ((8, 64),)}
    beside = Trainer(data, Options(**options)).train("labelled", "")
    model = learning.learn(site(seed=6), beside, jobs=1, progress=False)
    assert [c["name"] for c in model["classes"]] == ["benign", "attack", "unusual"]
    assert len(model["flow_trees"]) == len(model["packet_trees"]) == 8
    kept = model["flow_trees"][4:]
    for tree, before in zip(kept, beside["flow_trees"][:4], strict=True):
        for node, old in zip(tree["nodes"], before["nodes"], strict=True):
            assert node == old or node["classes"] == [*old["classes"], 0.0]
    both = learning.anomaly(model, labelled)
    own = learning.anomaly({**model, "flow_trees": model["flow_trees"][:4]}, labelled)
    others = learning.anomaly({**beside, "flow_trees": beside["flow_trees"][:4]}, labelled)
    assert np.allclose(both, (own + others) / 2)
    with pytest.raises(SnapshotError, match="windows of 10 ms"):
        learning.learn(site(), {**beside, "window_ns": 10_000_000}, progress=False)


def test_too_little_is_refused_and_little_is_said(tmp_path, capsys):
    with pytest.raises(SnapshotError, match="500 packets of 50 flows"):
        learning.learn(site(flows=50).where(np.arange(500)), progress=False)
    short = site()
    short.columns["ts_ns"] //= 100
    model = learning.learn(short, jobs=1, progress=False)
    assert "36 s of traffic" in learning.as_text(model["training"]["learnt"])
    (tmp_path / "text").write_text("text")
    with pytest.raises(SystemExit, match="cannot read"):
        main(["learn", str(tmp_path / "text"), "-o", str(tmp_path / "m.json")])


def test_pairs_are_written_as_they_are_read():
    rng = np.random.default_rng(1)
    trees, columns = [], []
    for leaves in (2, 3, 9):
        nodes = [{"feature": 0}] * (leaves - 1) + [{"classes": [1.0]}] * leaves
        trees.append({"nodes": nodes})
        columns.append(rng.integers(leaves - 1, 2 * leaves - 1, 12))
    nodes = np.column_stack(columns)
    written = known.texts(trees, nodes)
    numbers = np.column_stack(
        [known.numbered(c, t["nodes"]) for c, t in zip(columns, trees, strict=True)]
    )
    pairs = [(0, 1), (0, 2), (1, 2)]
    counts = (2, 3, 9)
    assert len(written) == 3
    for text, (one, other) in zip(written, pairs, strict=True):
        digits = -(-counts[other] // 4)
        assert len(text) == counts[one] * digits
        for row in range(counts[one]):
            for column in range(counts[other]):
                digit = int(text[row * digits + column // 4], 16)
                met = any((n[one], n[other]) == (row, column) for n in numbers)
                assert bool(digit >> (column % 4) & 1) == met
    met = known.pairs(numbers)
    for one, other in zip(known.read(written, counts), met, strict=True):
        # Leaves that no packet reached are not in `pairs`.
        assert np.array_equal(one[: other.shape[0], : other.shape[1]], other)
        assert one.sum() == other.sum()
    assert (known.doubt(met, numbers) == 0).all()
    for leaves in np.ndindex(2, 3, 9):
        unmet = sum(
            not any((n[a], n[b]) == (leaves[a], leaves[b]) for n in numbers) for a, b in pairs
        )
        assert known.doubt(met, np.array([leaves]))[0] == unmet / 3


def test_a_trained_model_says_what_it_knows():
    data = joined(site(label="benign"), site(seed=3, port=445, label="attack"))
    options = {"jobs": 1, "progress": False, "shapes": ((4, 8),), "by_bytes": True}
    model = Trainer(data, Options(**options)).train("m", "")
    assert len(model["known"]["flow_trees"]) == 6
    assert model["known"]["decides"] is False
    careful = Trainer(data, Options(**options, conservative=0.9)).train("m", "")
    assert careful["known"]["decides"] is True
    assert json.dumps(model)


def test_doubt_of_a_model_file_is_that_of_its_leaves():
    data = joined(site(label="benign"), site(seed=3, port=445, label="attack"))
    options = {"jobs": 1, "progress": False, "shapes": ((4, 8),)}
    model = Trainer(data, Options(**options)).train("m", "")
    assert (learning.doubt(model, data) == 0).all()
    other = site(seed=9)
    for name in ("packets", "bytes", "size"):
        other.columns[name] = other.columns[name] * 40
    assert 0 <= learning.doubt(model, other).min() <= learning.doubt(model, other).max() <= 1
