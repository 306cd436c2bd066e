import csv

import numpy as np
import pytest

from strata import flows


def write(path, rows):
    names = ["label", "source", "protocol", "packets", "bytes", "duration_us", "size_max"]
    names += flows.FLOW
    with open(path, "w", newline="") as file:
        table = csv.DictWriter(file, names, restval=0)
        table.writeheader()
        table.writerows(rows)
    return path


@pytest.fixture
def told_apart_by_first_sizes(tmp_path):
    """Two classes whose totals are alike; only the order of sizes differs."""
    random = np.random.default_rng(1)
    rows = []
    for _ in range(300):
        first, second = random.integers(60, 1500, 2)
        small, large = sorted((int(first), int(second)))
        name = str(random.choice(["call", "page"]))
        size_1, size_2 = (small, large) if name == "call" else (large, small)
        shared = {"packets": 2, "bytes": small + large, "duration_us": 5, "size_max": large}
        mean = {"size_mean": (small + large) / 2}
        rows.append({"label": name, **shared, **mean, "size_1": size_1, "size_2": size_2})
    rows.append({"label": "", "packets": 1})
    return write(tmp_path / "flows.csv", rows)


def test_features_of_packets_tell_apart_what_totals_do_not(told_apart_by_first_sizes, tmp_path):
    output = tmp_path / "forest"
    judged = flows.train([told_apart_by_first_sizes], output)
    means = judged["mean_f1"]
    assert means["*Flow"] > 0.9 > 0.65 > max(means["NetFlow"], means["Marple"])
    assert "average" in flows.printed(judged, False)
    first = output.read_text()
    flows.train([told_apart_by_first_sizes], output)
    assert output.read_text() == first, "the same seed trains the same forest"


def test_the_text_says_what_the_forest_says(told_apart_by_first_sizes):
    columns, classes = flows.read([told_apart_by_first_sizes], "label")
    x = flows._matrix(columns, flows.FLOW)
    forest = flows._forest(1, 1).fit(x, classes)
    shares = evaluated(flows.text(forest), x)
    np.testing.assert_allclose(shares, forest.predict_proba(x), atol=1e-5)


def evaluated(text, x):
    """A naive reader of the text: shares of votes."""
    lines = text.splitlines()
    names = lines[1].split()[1:]
    assert names == list(flows.FLOW)
    trees = []
    for line in lines[2:]:
        word, *words = line.split()
        if word == "tree":
            trees.append([])
        elif word in ("split", "leaf"):
            trees[-1].append((word, words))
    votes = []
    for row in x:
        vote = 0
        for nodes in trees:
            kind, words = nodes[0]
            while kind == "split":
                feature, at_most, left, right = words
                goes_left = row[names.index(feature)] <= np.float32(at_most)
                kind, words = nodes[int(left if goes_left else right)]
            vote = vote + np.array([float(word) for word in words])
        votes.append(vote / len(trees))
    return np.array(votes)


def test_a_file_of_something_else_is_refused(tmp_path):
    path = tmp_path / "other.csv"
    path.write_text("a,b\n1,2\n")
    with pytest.raises(flows.FlowsError, match="no column"):
        flows.read([path], "label")


def test_a_cell_that_is_no_number_is_named(tmp_path):
    path = write(tmp_path / "bad.csv", [{"label": "page", "size_3": "many"}])
    with pytest.raises(flows.FlowsError, match="line 2: size_3"):
        flows.read([path], "label")


def test_other_classes_are_not_judged(told_apart_by_first_sizes, tmp_path):
    other = write(tmp_path / "other.csv", [{"label": "mail"}] * 3)
    with pytest.raises(flows.FlowsError, match="none of the trained classes"):
        flows.train([told_apart_by_first_sizes], None, test=[other])


def test_one_class_is_refused(tmp_path):
    path = write(tmp_path / "one.csv", [{"label": "page"}] * 30)
    with pytest.raises(flows.FlowsError, match="fewer than two"):
        flows.train([path], None)
