import json
import os
import subprocess
import sys
from contextlib import suppress

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from strata import report, training
from strata.evaluation import Decisions, evaluate, judge, precision_at, stability_index
from strata.main import main
from strata.model import Bins, split_json, stretch
from strata.snapshots import SnapshotError, load
from strata.training import GROUPS, Options, Trainer, macro_f1, train

FEATURES = ("size", "tcp_flags", "packets")
HEAD = {"capture": "x", "time_compression": 1.0, "window_ms": 10}


def leaf_of(tree, row):
    """Walks a tree of a model file."""
    at = 0
    nodes = tree["nodes"]
    while "classes" not in nodes[at]:
        node = nodes[at]
        at = node["left"] if row[node["feature"]] <= node["at_most"] else node["right"]
    return np.array(nodes[at]["classes"])


def scores(model, rows):
    return np.array(
        [np.mean([leaf_of(tree, row) for tree in model["flow_trees"]], axis=0) for row in rows]
    )


@pytest.fixture
def snapshots(tmp_path):
    """400 flows of 5 packets; one of four is an attack with small packets."""
    rng = np.random.default_rng(3)
    flow = np.repeat(np.arange(400, dtype=np.uint64), 5)
    attack = flow % 4 == 0
    count = len(flow)
    size = np.where(attack, rng.integers(40, 200, count), rng.integers(150, 1500, count))
    label = np.where(attack, np.where(flow % 8 == 0, "scan", "flood"), "benign")
    columns = {
        "frame": np.arange(1, count + 1, dtype=np.uint64),
        "ts_ns": np.arange(count, dtype=np.uint64) * 1000,
        "flow": flow,
        "in_flow": np.tile(np.arange(1, 6, dtype=np.uint64), 400),
        "has_bucket": np.ones(count, bool),
        "wire_len": size.astype(np.uint64),
        "label": pa.array(label).dictionary_encode(),
        "source": pa.array(label).dictionary_encode(),
        "size": size.astype(np.uint32),
        "tcp_flags": rng.integers(0, 64, count).astype(np.uint32),
        "packets": np.tile(np.arange(1, 6, dtype=np.uint32), 400),
    }
    units = {"size": "bytes", "tcp_flags": "bits", "packets": "packets"}
    table = pa.table(columns)
    fields = [f.with_metadata({"unit": units.get(f.name, "")}) for f in table.schema]
    about = {
        "strata.window_ns": "10000000",
        "strata.arithmetic": '"exact"',
        "strata.buckets": '"voting"',
    }
    path = tmp_path / "snapshots.parquet"
    pq.write_table(table.cast(pa.schema(fields, about)), path)
    return path


def small(**options):
    return {"features": FEATURES, "shapes": ((4, 8),), "jobs": 1, "progress": False, **options}


def test_a_model_separates_what_can_be_separated_and_repeats(snapshots, tmp_path):
    model = train(snapshots, tmp_path / "m.json", **small())
    assert json.loads((tmp_path / "m.json").read_text()) == json.loads(json.dumps(model))
    assert train(snapshots, **small()) == model
    assert [c["name"] for c in model["classes"]] == ["benign", "flood", "scan"]
    data = load([snapshots])
    anomaly = 1 - scores(model, data.values(FEATURES))[:, 0]
    alarm = anomaly >= model["training"]["anomaly_score_at_least"]
    assert macro_f1(data.attack, data.source, alarm) > 0.85
    other = train(snapshots, **small(seed=2))
    assert other["flow_trees"] != model["flow_trees"]


def test_no_flow_is_on_both_sides_of_a_fold(snapshots):
    trainer = Trainer(load([snapshots]), Options(**small()))
    flows = trainer.data.columns["flow"]
    folds = trainer.folds
    assert len(folds) == 5
    for one, other in folds:
        assert not set(flows[one]) & set(flows[other])


def test_each_default_feature_is_in_one_group():
    grouped = [feature for group in GROUPS.values() for feature in group]
    assert sorted(grouped) == sorted(training.FEATURES)


def test_the_best_depth_is_chosen(snapshots):
    model = train(snapshots, **small(depths=(1, 3)))
    assert [tried["depth"] for tried in model["training"]["tried"]] == [1, 3]
    best = max(tried["quality"] for tried in model["training"]["tried"])
    assert model["training"]["shape"]["depth"] == 1
    assert model["training"]["tried"][0]["quality"] >= best - training.CLOSE_ENOUGH


def test_useless_features_are_dropped(snapshots):
    dropped = []
    # What noise adds to a forest of 4 trees is chance.
    for seed in (1, 2, 3, 4):
        model = train(snapshots, **small(choose_features=True, seed=seed))
        names = [feature["name"] for feature in model["features"]]
        assert "size" in names
        dropped += sorted(set(FEATURES) - set(names))
        # Trees and distributions are of the features that stayed.
        used = {n["feature"] for t in model["flow_trees"] for n in t["nodes"] if "feature" in n}
        assert used <= set(range(len(names)))
        assert len(model["distributions"]["features"]) == len(names)
    assert dropped


def test_targets_are_met_on_unseen_flows(snapshots):
    data = load([snapshots])
    trainer = Trainer(data, Options(**small(target_recall=0.95)))
    trainer.train("t", "")
    caught = trainer.unseen().anomalous
    for source in ("flood", "scan"):
        assert caught[data.source == source].mean() >= 0.95
    trainer = Trainer(data, Options(**small(max_kept_whole=0.02)))
    trainer.train("t", "")
    unseen = trainer.unseen()
    assert 0 < unseen.wire_len[unseen.anomalous].sum() <= 0.02 * unseen.wire_len.sum()


def test_costs_move_the_operating_point(snapshots):
    point = {}
    for cost in (0.02, 50.0):
        model = train(snapshots, **small(miss_cost=cost, false_alarm_cost=1.0))
        point[cost] = model["training"]["anomaly_score_at_least"]
    assert point[50.0] < point[0.02]


def test_conservative_says_unknown(snapshots):
    model = train(snapshots, **small(conservative=0.98))
    assert model["decision"]["rules"][0] == {"class": "benign", "score_at_least": 0.98001}
    assert model["decision"]["otherwise"] == "unknown"
    assert model["classes"][-1] == {"name": "unknown", "anomalous": True}


def test_unusable_snapshots_are_named(snapshots, tmp_path):
    with pytest.raises(SnapshotError, match="colour"):
        train(snapshots, **small(features=("size", "colour")))
    with pytest.raises(SnapshotError, match="no class 'x'"):
        train(snapshots, **small(class_weights={"x": 2}))
    (tmp_path / "other.parquet").write_text("text")
    with pytest.raises(SnapshotError, match=r"other\.parquet: cannot read"):
        train(tmp_path / "other.parquet")


def test_ranks_decide_as_values_do():
    rng = np.random.default_rng(1)
    values = rng.integers(0, 10_000, (5000, 1)).astype(float)
    bins = Bins(values, 255)
    assert len(bins.edges[0]) <= 255
    ranks = bins.ranks(values)
    for split in (0.5, 17.5, 200.5):
        threshold = bins.at_most(0, split)
        assert np.array_equal(ranks[:, 0] <= split, values[:, 0] <= threshold)


def test_stretching_moves_the_operating_point_and_keeps_the_order():
    rng = np.random.default_rng(2)
    shares = rng.dirichlet((1, 1, 1), 50)
    for own, common in ((0.3, 0.7), (0.8, 0.4)):
        moved = stretch(shares, own, common, 0)
        assert np.allclose(moved.sum(axis=1), 1)
        assert (moved >= -1e-12).all()
        before, after = 1 - shares[:, 0], 1 - moved[:, 0]
        assert np.array_equal(before >= own, after >= common - 1e-12)
        assert np.array_equal(np.argsort(before), np.argsort(after))


def test_a_split_sends_packets_to_either_tree():
    low = {"nodes": [{"classes": [1.0, 0.0]}]}
    high = {
        "nodes": [
            {"feature": 0, "at_most": 5.0, "left": 1, "right": 2},
            {"classes": [0.5, 0.5]},
            {"classes": [0.0, 1.0]},
        ]
    }
    tree = split_json(1, 9.0, low, high)
    assert leaf_of(tree, (0, 9))[0] == 1.0
    assert leaf_of(tree, (5, 10))[0] == 0.5
    assert leaf_of(tree, (6, 10))[0] == 0.0


def decisions(label, source, anomaly, flow):
    count = len(label)
    anomaly = np.array(anomaly)
    return Decisions(
        label=np.array(label),
        source=np.array(source),
        decided=np.where(anomaly >= 0.5, "anomalous", "benign"),
        anomaly=anomaly,
        anomalous=anomaly >= 0.5,
        flow=np.array(flow),
        in_flow=np.ones(count),
        wire_len=np.full(count, 100.0),
        ts_ns=np.arange(count),
        has_bucket=np.ones(count, bool),
        summary={},
    )


def test_figures_are_those_of_the_definitions():
    d = decisions(
        ["benign"] * 4 + ["anomalous"] * 4,
        ["web"] * 4 + ["scan", "scan", "flood", "flood"],
        [0.1, 0.2, 0.3, 0.9, 0.8, 0.4, 0.95, 0.97],
        [1, 1, 2, 3, 4, 5, 6, 6],
    )
    figures = judge(d, trained=["flood"])
    assert figures["recall"] == 0.75
    assert figures["precision"] == 0.75
    rows = {row["source"]: row for row in figures["sources"]}
    assert rows["scan"]["recall"][0] == 0.5
    assert rows["scan"]["f1"][0] == 0.5  # one hit, one miss, one false alarm
    assert rows["flood"]["f1"][0] == 0.8
    assert rows["all attack sources"]["f1"][0] == 0.65
    assert rows["sources unseen in training"]["f1"][0] == 0.5
    assert rows["scan"]["seen_in_training"] is False
    assert figures["confusion"] == {
        "anomalous": {"anomalous": 3, "benign": 1},
        "benign": {"anomalous": 1, "benign": 3},
    }
    assert judge(d, seed=5) == judge(d, seed=5)
    scan = d.source == "scan"
    # A higher recall may come with a better precision.
    assert precision_at(d, scan, 0.5) == pytest.approx(2 / 3)
    assert precision_at(d, scan, 1.0) == pytest.approx(2 / 3)


def test_the_stability_index_tells_another_distribution():
    same = np.array([0.25, 0.75])
    assert stability_index(same, same) == 0
    assert stability_index(np.array([0.9, 0.1]), np.array([0.1, 0.9])) > 3


def test_without_attacks_recall_is_undefined(tmp_path):
    count = 20
    benign = Decisions(
        label=np.full(count, "benign"),
        source=np.full(count, "office"),
        decided=np.where(np.arange(count) < 3, "anomalous", "benign"),
        anomaly=np.linspace(1, 0, count),
        anomalous=np.arange(count) < 3,
        flow=np.arange(count, dtype=np.uint64),
        in_flow=np.ones(count, np.uint64),
        wire_len=np.full(count, 100.0),
        ts_ns=np.arange(count, dtype=np.uint64),
        has_bucket=np.ones(count, bool),
        summary={},
    )
    model = {"name": "m", "classes": [{"name": "benign", "anomalous": False}], "window_ns": 10**7}
    page = tmp_path / "report.html"
    figures = evaluate(benign, model, page)
    assert figures["recall"] is None and figures["f1"] is None
    assert figures["precision"] == 0.0 and figures["false_alarm_rate"] == 0.15

    def refuse(word):
        raise AssertionError(f"{word} is no JSON")

    beside = json.loads(report.json_path(page).read_text(), parse_constant=refuse)
    assert beside["recall"] is None and beside["attack_packets"] == 0
    assert "no attack packets: recall undefined" in report.as_text(figures)
    text = page.read_text()
    assert "undefined" in text
    # Plots have the colours of the page, which may be dark.
    styles, plots = text.split("</style>", 1)
    assert "prefers-color-scheme: dark" in styles
    assert report.INK not in plots and "currentColor" in plots


def test_logs_have_neither_progress_bars_nor_warnings_of_libraries(snapshots, tmp_path):
    names = ",".join(FEATURES)
    script = (
        "import sys, warnings; from strata.main import main; "
        "import strata.training as t; own = t.Trainer.train; "
        "t.Trainer.train = lambda *a: warnings.warn('from a library', stacklevel=1) or own(*a); "
        "main(sys.argv[1:])"
    )
    arguments = ["train", str(snapshots), "-o", str(tmp_path / "m.json"), "--features", names]
    arguments += ["--shape", "2x4", "--folds", "2", "--jobs", "1"]
    done = subprocess.run(
        [sys.executable, "-c", script, *arguments], capture_output=True, text=True, check=True
    )
    assert done.stderr == ""
    assert "2 trees of up to 4 leaves" in done.stdout


def test_a_file_in_memory_has_the_name_that_it_is_given(snapshots, tmp_path):
    memory = os.memfd_create("snapshots")
    try:
        os.write(memory, snapshots.read_bytes())
        path, output = f"/proc/self/fd/{memory}", tmp_path / "m.json"
        words = ["train", "--last-name", "log.parquet", "--features", ",".join(FEATURES)]
        words += ["--quiet", "-o", str(output), path]
        # Whether it meets its requirements does not matter here.
        with suppress(SystemExit):
            main(words)
        assert json.loads(output.read_text())["training"]["snapshots"] == ["log.parquet"]
        os.truncate(memory, 10)
        with pytest.raises(SystemExit, match=r"^strata: log\.parquet: cannot read"):
            main(words)
    finally:
        os.close(memory)


def test_unwritable_outputs_are_reported_before_the_work(snapshots, tmp_path, monkeypatch):
    def work(*_, **__):
        raise AssertionError("it works already")

    monkeypatch.setattr(training, "train", work)
    cases = [
        (tmp_path / "nodir" / "m.json", "does not exist"),
        (tmp_path, "is a directory"),
        (snapshots, "is the input"),
    ]
    for output, problem in cases:
        with pytest.raises(SystemExit, match=problem):
            main(["train", str(snapshots), "-o", str(output)])
    with pytest.raises(SystemExit, match="does not exist"):
        page = str(tmp_path / "nodir" / "r.html")
        main(["train", str(snapshots), "-o", str(tmp_path / "m.json"), "--report", page])
