"""What recordings keep of each labelled capture, recorded by itself, in its own time.

Where a capture has ordinary traffic, the later half of its flows is recorded; captures of attacks
alone are recorded whole.
"""

import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from . import cases as cases_module
from . import kept
from .cases import BUDGET, TRAINED_ON
from .kept import BUDGETED, DEFAULT

NAMES = (DEFAULT, BUDGETED)
ORDINARY, ATTACK = "ordinary", "attacks"


def run(folder: Path, output: Path) -> dict[str, Any]:
    """Writes figures to `output` with the endings .json and .md."""
    with tempfile.TemporaryDirectory(prefix="strata-") as scratch:
        bench = kept.Bench(folder, Path(scratch))
        rows = []
        for name in tqdm(bench.captures, desc="sets", disable=None):
            if name != TRAINED_ON:
                rows += _rows(bench, name)
    figures = {"budget": BUDGET, "rows": rows}
    output.with_suffix(".json").write_text(json.dumps(figures, indent=1) + "\n")
    output.with_suffix(".md").write_text(in_markdown(figures))
    return figures


def _rows(bench: kept.Bench, name: str) -> list[dict[str, Any]]:
    capture = bench.captures[name]
    has_ordinary = bool((~capture.snapshots.attack).any())
    here = np.ones(len(capture.data), bool)
    if has_ordinary:
        here = bench.halves(capture)[1] | capture.attack
    rows = np.flatnonzero(here)
    trace, labels = bench.merged([(capture, rows, capture.ts_ns[rows] - capture.ts_ns[rows].min())])
    data = cases_module.features(trace, labels, bench.scratch)
    payload = data.columns["payload_len"].astype(np.int64)
    header = data.columns["wire_len"].astype(np.int64) - payload
    frames = data.columns["frame"].astype(np.int64) - 1
    share: dict[str, np.ndarray] = {}
    for how, budget in {DEFAULT: "none", BUDGETED: f"{BUDGET:.0%}"}.items():
        recorded, _ = bench.recorded(trace, budget)
        share[how] = np.clip(recorded[frames] - header, 0, None) > 0
    found = []
    for kind, side in ((ORDINARY, ~data.attack), (ATTACK, data.attack)):
        side &= payload > 0
        if side.any():
            found.append(
                {
                    "set": name,
                    "packets": kind,
                    "count": int(side.sum()),
                    "payload_bytes": int(payload[side].sum()),
                    "kept": {n: round(float(share[n][side].mean()), 4) for n in NAMES},
                    "bytes": {
                        n: round(float(payload[side & share[n]].sum() / payload[side].sum()), 4)
                        for n in NAMES
                    },
                }
            )
    return found


def in_markdown(figures: dict[str, Any]) -> str:
    """The figures as a table."""
    lines = [
        "# What recordings keep of each set",
        "",
        "`make sets`. Of packets with payload, the share of which payload is kept / of payload "
        f"bytes, in percent: by the built-in model without a budget, and with *{BUDGETED}*. Sets "
        "are recorded by themselves, at their own pace; of ordinary flows, the later half. Shares "
        "are of the packets of the row: a budget that has ordinary traffic to save from gives "
        "attacks more than a tenth.",
        "",
        "| set | packets | with payload | " + " | ".join(NAMES) + " |",
        "|---|---|---:|" + "---:|" * len(NAMES),
    ]
    for row in figures["rows"]:
        cells = [f"{100 * row['kept'][n]:.1f} / {100 * row['bytes'][n]:.1f}" for n in NAMES]
        lines.append(
            f"| {row['set']} | {row['packets']} | {row['count']:,} | " + " | ".join(cells) + " |"
        )
    return "\n".join(lines) + "\n"
