"""Figures of links, and of captures by themselves."""

import numpy as np

from strata import links, sets
from strata.evaluation import Decisions


def decisions(attack, alarm, has_bucket):
    count = len(attack)
    return Decisions(
        label=np.where(attack, "anomalous", "benign"),
        source=np.full(count, "x"),
        decided=np.where(alarm, "anomalous", "benign"),
        anomaly=np.asarray(alarm, float),
        anomalous=np.asarray(alarm, bool),
        flow=np.arange(count),
        in_flow=np.ones(count, int),
        wire_len=np.full(count, 100.0),
        ts_ns=np.arange(count),
        has_bucket=np.asarray(has_bucket, bool),
        summary={},
    )


def test_what_has_no_bucket_is_judged_by_itself():
    attack = np.array([1, 1, 1, 0, 0, 0, 0, 0], bool)
    alarm = np.array([1, 1, 0, 1, 0, 0, 0, 0], bool)
    found = links.figures_of(decisions(attack, alarm, [1, 1, 0, 0, 1, 1, 1, 1]))
    assert found["without_bucket"] == 0.25
    assert (found["accuracy"], found["precision"], found["recall"]) == (0.75, 0.6667, 0.6667)
    assert found["of_those"] == {"accuracy": 0.0, "precision": 0.0, "recall": 0.0}
    # Without attacks there is nothing to find, and nothing to divide by.
    none = links.figures_of(decisions(np.zeros(4, bool), np.zeros(4, bool), np.ones(4)))
    assert none["accuracy"] == 1.0 and none["recall"] is None
    assert none["of_those"] == {"accuracy": None, "precision": None, "recall": None}


def test_tables_are_laid_out_as_the_papers():
    rates = {"accuracy": 0.9, "precision": 0.5, "recall": None}
    one = {
        **rates,
        "without_bucket": 0.25,
        "of_those": rates,
        "errors": dict.fromkeys(links.FEATURES, 0.01),
        "flows_max": 12_345,
        "packets": 100,
    }
    days = {day: dict.fromkeys((*links.JUDGED, links.ALONE), one) for day in links.DAYS}
    text = links.in_markdown({"window_ms": 35, "rates": {"100": days}})
    assert "| Size sum | 100 | 1e-02 / 1e-02 |" in text and "| Flows | 100 | 12,345 |" in text
    assert "| strata | 100 | 0.900 | 0.500 |  | 0.900 |" in text
    # A window and more, at every rate.
    for rate, times in links.RATES.items():
        pace = max(pace for _, pace in links.DAYS.values())
        assert links._packets(rate) > times * pace * links.WINDOW_MS / 1000


def test_a_set_has_a_row_for_each_side():
    kept = dict.fromkeys(sets.NAMES, 0.125)
    row = {"set": "x", "packets": "attacks", "count": 1_000, "kept": kept, "bytes": kept}
    text = sets.in_markdown({"budget": 0.1, "rows": [row]})
    assert "| x | attacks | 1,000 | 12.5 / 12.5 |" in text
    header = next(line for line in text.splitlines() if line.startswith("| set |"))
    assert header.count("|") == text.splitlines()[-1].count("|")
