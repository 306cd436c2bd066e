"""How sketches and presets do on links of 100, 200 and 400 Gb/s, in simulated time.

Traffic of the five days of CIC-IDS2017 as TitanLog's Table IV counts them, from `strata generate`:
the rate and the flows active at a time of a link, so that flows contend for buckets. Models are
trained on one half of each day, all days together, and judged on the other, whose flows are others.
The layout is that of TitanLog's Tables V and VIII (errors of sketches), VI and IX (the classifier).
"""

import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from . import evaluation, program
from . import snapshots as snapshots_module
from .evaluation import Decisions
from .model import dumps
from .presets import PRESETS
from .snapshots import Snapshots

WINDOW_MS = 35
# TitanLog Table IV, at 100 Gb/s: flows active at a time, packets per second.
DAYS = {
    "W1": (33_356, 15_214_000),
    "W2": (30_865, 14_694_000),
    "W3": (32_711, 14_418_000),
    "W4": (58_638, 15_856_000),
    "W5": (295_509, 15_986_000),
}
RATES = {100: 1, 200: 2, 400: 4}
JUDGED = ("titanlog-paper", "titanlog-p4", "netbeacon-like", "strata")
OURS, PAPER = "strata", "titanlog-paper"
ALONE = "strata, packet trees alone"
# Rows to train on, of each day.
ROWS_MAX = 12_000
SNAPLEN = "96"
FEATURES = {
    "bytes": "Size sum",
    "size_max": "Size max",
    "size_min": "Size min",
    "size_avg": "Size avg",
    "size_var": "Size var",
}

HEADER = (
    "| | Gb/s | W1 ACC | " + " | ".join(f"{d} PRE | REC | ACC" for d in list(DAYS)[1:]) + " |",
    "|---|---:|---:|" + "---:|---:|---:|" * (len(DAYS) - 1),
)


def run(output: Path, rates: Sequence[int] = tuple(RATES), jobs: int = 2) -> dict[str, Any]:
    """Writes figures to `output` with the endings .json and .md."""
    figures: dict[str, Any] = {"window_ms": WINDOW_MS, "rates": {}}
    with tempfile.TemporaryDirectory(prefix="strata-") as scratch:
        for rate in tqdm(rates, desc="Gb/s", disable=None):
            figures["rates"][str(rate)] = _link(rate, Path(scratch), jobs)
    output.with_suffix(".json").write_text(json.dumps(figures, indent=1) + "\n")
    output.with_suffix(".md").write_text(in_markdown(figures))
    return figures


def _link(rate: int, scratch: Path, jobs: int) -> dict[str, Any]:
    models = _models(rate, scratch, jobs)
    found: dict[str, Any] = {}
    for day in DAYS:
        trace = _generate(day, rate, 2, scratch)
        found[day] = {}
        for name, model in models.items():
            decisions = _decisions(trace, model, scratch)
            summary = decisions.summary
            found[day][name] = {
                **figures_of(decisions),
                "errors": {f: summary["average_relative_errors"][f] for f in FEATURES},
                "flows_max": summary["flows_max"],
                "packets": len(decisions.label),
            }
    return found


def _packets(rate: int) -> int:
    """A window and a third, so that there is a whole one."""
    most = max(pace for _, pace in DAYS.values())
    return int(most * RATES[rate] * WINDOW_MS / 1000 * 4 / 3)


def _generate(day: str, rate: int, seed: int, scratch: Path) -> tuple[Path, Path]:
    flows, pace = (number * RATES[rate] for number in DAYS[day])
    trace, labels = scratch / "link.pcap", scratch / "link.csv"
    load = ["--profile", f"cic-{day.lower()}", "-s", SNAPLEN, "--seed", seed]
    load += ["--flows", flows, "-p", pace, "-c", _packets(rate), "--labels", labels]
    program.run("generate", "-o", trace, *load)
    return trace, labels


def _models(rate: int, scratch: Path, jobs: int) -> dict[str, dict[str, Any]]:
    """Models of the first halves of all days."""
    parts: dict[tuple[str, ...], list[Snapshots]] = {}
    for number, day in enumerate(DAYS):
        trace, labels = _generate(day, rate, 1, scratch)
        for flags in {PRESETS[name].flags for name in JUDGED}:
            file = scratch / "link.parquet"
            window = ["--window-ms", WINDOW_MS]
            program.run(*("features", "-r", trace, "--labels", labels, *window, *flags, "-o", file))
            parts.setdefault(flags, []).append(_sample(snapshots_module.load([file]), number))
    models = {}
    for name in JUDGED:
        preset = PRESETS[name]
        of_days = parts[preset.flags]
        columns = {
            k: np.concatenate([part.columns[k] for part in of_days]) for k in of_days[0].columns
        }
        first = of_days[0]
        data = Snapshots(columns, first.units, first.settings, list(DAYS))
        assert preset.train is not None
        models[name] = preset.train(data, 1, jobs)
    models[ALONE] = {**models[OURS], "flow_trees": []}
    models[ALONE]["known"] = {**models[OURS]["known"], "flow_trees": []}
    return models


def _sample(data: Snapshots, day: int) -> Snapshots:
    """Packets by lot, from after the first half of a window, when buckets are contended; of days
    that have the same addresses, flows are told apart."""
    later = np.flatnonzero(np.arange(len(data)) >= len(data) // 2)
    rng = np.random.default_rng(1)
    rows = np.sort(rng.choice(later, min(ROWS_MAX, len(later)), replace=False))
    sample = data.where(rows)
    flow = sample.columns["flow"]
    sample.columns["flow"] = flow ^ (np.uint64(day) << np.uint64(61))
    return sample


def _decisions(trace: tuple[Path, Path], model: dict[str, Any], scratch: Path) -> Decisions:
    file, decisions = scratch / "model.json", scratch / "decisions.parquet"
    file.write_text(dumps(model))
    capture, labels = trace
    program.run(*("eval", "-m", file, "-r", capture, "--labels", labels, "--decisions", decisions))
    return evaluation.load(decisions, model)


def figures_of(decisions: Decisions) -> dict[str, Any]:
    """Accuracy, precision and recall, in all and of packets without a bucket; `None` where there is
    nothing to divide by."""
    without = ~decisions.has_bucket
    return {
        **_rates(decisions.attack, decisions.anomalous),
        "without_bucket": round(float(np.mean(without)), 4),
        "of_those": _rates(decisions.attack[without], decisions.anomalous[without]),
    }


def _rates(attack: np.ndarray, alarm: np.ndarray) -> dict[str, float | None]:
    hits = int(np.sum(attack & alarm))

    def share(part: int, whole: int) -> float | None:
        return round(part / whole, 4) if whole else None

    return {
        "accuracy": share(int(np.sum(attack == alarm)), len(attack)),
        "precision": share(hits, int(alarm.sum())),
        "recall": share(hits, int(attack.sum())),
    }


def in_markdown(figures: dict[str, Any]) -> str:
    """The figures, as TitanLog's tables have them."""
    rates = figures["rates"]
    lines = [
        "# As on a link of 100, 200 and 400 Gb/s",
        "",
        "`make links`. Simulated time: traffic of the profiles cic-w1 to cic-w5 at the packets per "
        "second and the active flows of TitanLog's Table IV, times 1, 2 and 4; windows of "
        f"{figures['window_ms']} ms, 2 x 2^16 buckets. Trained on one half of each day, all days "
        "together, judged on the other. The traffic is generated, so how well attacks are told "
        "apart says little about real ones; how much is lost with contended buckets is what these "
        "tables are for.",
        "",
        "## Errors of the sketches (Tables V and VIII)",
        "",
        "Average relative error over packets whose flow has a bucket: our arithmetic / a switch's "
        "(16-bit registers, approximate squares, averages within 1 %).",
        "",
        "| | Gb/s | " + " | ".join(DAYS) + " |",
        "|---|---:|" + "---:|" * len(DAYS),
    ]
    for feature, title in FEATURES.items():
        for rate, days in rates.items():
            cells = [
                f"{days[d][OURS]['errors'][feature]:.0e} / {days[d][PAPER]['errors'][feature]:.0e}"
                for d in DAYS
            ]
            lines.append(f"| {title} | {rate} | " + " | ".join(cells) + " |")
    for title, key in (("Flows", "flows_max"), ("Packets without bucket", "without_bucket")):
        for rate, days in rates.items():
            cells = [
                f"{days[d][OURS][key]:,}" if key == "flows_max" else f"{days[d][OURS][key]:.1%}"
                for d in DAYS
            ]
            lines.append(f"| {title} | {rate} | " + " | ".join(cells) + " |")
    lines += [
        "",
        "## The classifier (Tables VI and IX)",
        "",
        "Accuracy, precision and recall of packets; W1 has no attacks. *Packet trees alone*: as if "
        "no flow had a bucket.",
        "",
        *HEADER,
    ]
    for name in (*JUDGED, ALONE):
        for rate, days in rates.items():
            lines.append(f"| {name} | {rate} | " + " | ".join(_row(days, name, None)) + " |")
    lines += [
        "",
        "Of packets without a bucket alone, on which the packet trees of each decide:",
        "",
        *HEADER,
    ]
    for name in (PAPER, OURS):
        for rate, days in rates.items():
            lines.append(f"| {name} | {rate} | " + " | ".join(_row(days, name, "of_those")) + " |")
    return "\n".join(lines) + "\n"


def _row(days: dict[str, Any], name: str, part: str | None) -> list[str]:
    cells = []
    for day in DAYS:
        of = days[day][name] if part is None else days[day][name][part]
        keys = ("accuracy",) if day == "W1" else ("precision", "recall", "accuracy")
        cells += ["" if of[key] is None else f"{of[key]:.3f}" for key in keys]
    return cells
