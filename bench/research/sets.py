"""What recordings keep of each labelled capture, recorded by itself, in its own time.

Where a capture has ordinary traffic, models learn from the first half of its flows, and the rest is
recorded; captures of attacks alone are recorded whole, with what was learnt in an office.
"""

import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from . import cases as cases_module
from . import kept
from .cases import BUDGET, OFFICE, RELATED, SITES, TRAINED_ON
from .kept import BUILT_IN, DEFAULT, LEARNT, TRAINED

NAMES = (DEFAULT, BUILT_IN, TRAINED, LEARNT)
ORDINARY, ATTACK = "ordinary", "attacks"


def run(folder: Path, output: Path, jobs: int = 2) -> dict[str, Any]:
    """Writes figures to `output` with the endings .json and .md."""
    with tempfile.TemporaryDirectory(prefix="strata-") as scratch:
        bench = kept.Bench(folder, Path(scratch), jobs)
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
    models = bench.models_of((name,) if has_ordinary else SITES[OFFICE], RELATED.get(name, ()))
    payload = data.columns["payload_len"].astype(np.int64)
    header = data.columns["wire_len"].astype(np.int64) - payload
    frames = data.columns["frame"].astype(np.int64) - 1
    share: dict[str, np.ndarray] = {}
    for how, model in {DEFAULT: models[BUILT_IN], **models}.items():
        budget = "none" if how == DEFAULT else f"{BUDGET:.0%}"
        recorded, _ = bench.recorded(trace, budget, model)
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
    budget = f"`--detail {figures['budget']:.0%}`"
    lines = [
        "# What recordings keep of each set",
        "",
        "`make sets`. Of packets with payload, the share of which payload is kept / of payload "
        "bytes, in percent: by the built-in model without a budget, and with "
        f"{budget} by it, by one trained by bytes without the set, and by one learnt from the "
        "first half of the set's ordinary flows next to half of that. Sets are recorded by "
        "themselves, at their own pace; of ordinary flows, those that were not learnt from. Sets "
        "that are attacks alone are recorded with what was learnt in the office. Shares are of "
        "the packets of the row: a budget that has ordinary traffic to save from gives attacks "
        "more than a tenth.",
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
