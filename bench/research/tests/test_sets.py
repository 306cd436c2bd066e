"""Figures of captures by themselves."""

from research import sets


def test_a_set_has_a_row_for_each_side():
    kept = dict.fromkeys(sets.NAMES, 0.125)
    row = {"set": "x", "packets": "attacks", "count": 1_000, "kept": kept, "bytes": kept}
    text = sets.in_markdown({"budget": 0.1, "rows": [row]})
    assert "| x | attacks | 1,000 | 12.5 / 12.5 |" in text
    header = next(line for line in text.splitlines() if line.startswith("| set |"))
    assert header.count("|") == text.splitlines()[-1].count("|")
