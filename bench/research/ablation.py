"""The value of each group of features: cross-validation without it.

All variants see the same folds, so a fold's difference to all features is due to the
features and to the forest's randomness; several seeds show how large the latter is.
"""

import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from strata.presets import Workshop
from strata.snapshots import Snapshots
from strata.training import DEPTH, FEATURES, GROUPS, SHAPES, Options, Trainer, macro_f1

# No features by default; what cross-validation within one capture makes of them.
LEFT_OUT = ("source_port", "destination_port", "ttl", "tos")


def ablate(
    data: Snapshots, *, seeds: Sequence[int] = (1, 2, 3), jobs: int = 2, progress: bool = True
) -> dict[str, Any]:
    """Macro-average over attack sources of F1 on flows that the forests have not seen, with
    all features, without each group, and with those omitted by default. A difference is a
    mean over the folds of all seeds, its error the standard error of that mean."""
    variants = {"all": FEATURES}
    for name, group in GROUPS.items():
        variants[name] = tuple(f for f in FEATURES if f not in group)
    variants["with left out"] = FEATURES + LEFT_OUT
    of_folds: dict[str, list[float]] = {name: [] for name in variants}
    of_sources: dict[str, list[list[float]]] = {name: [] for name in variants}
    sources = np.unique(data.source[data.attack])
    folds = 0
    with tqdm(
        total=len(seeds) * len(variants) * Options.folds, disable=None if progress else True
    ) as bar:
        for seed in seeds:
            trainer = Trainer(data, Options(features=FEATURES + LEFT_OUT, seed=seed, jobs=jobs))
            for name, features in variants.items():
                bar.set_description(name)
                columns = [trainer.options.features.index(f) for f in features]
                shape = (*SHAPES[0], DEPTH)
                scores = trainer.out_of_fold(trainer.values[:, columns], shape, bar)
                alarm = scores >= trainer.operating_point(scores)
                for fold in trainer.known_folds:
                    here = trainer.fold_of == fold
                    f1 = macro_f1(data.attack[here], data.source[here], alarm[here])
                    of_folds[name].append(f1)
                row = []
                for source in sources:
                    here = ~data.attack | (data.source == source)
                    row.append(macro_f1(data.attack[here], data.source[here], alarm[here]))
                of_sources[name].append(row)
            folds = len(trainer.known_folds)
    whole = np.array(of_folds["all"])
    rows = []
    for name in variants:
        f1 = np.array(of_folds[name])
        lost = whole - f1
        by_source = np.mean(np.array(of_sources["all"]) - np.array(of_sources[name]), axis=0)
        worst = int(np.argmax(by_source))
        rows.append(
            {
                "without": name,
                "features": list(GROUPS.get(name, LEFT_OUT if name != "all" else ())),
                "f1": round(float(f1.mean()), 4),
                "f1_deviation": round(float(f1.std(ddof=1)), 4),
                "bought": round(float(lost.mean()), 4),
                "bought_error": round(float(lost.std(ddof=1) / np.sqrt(len(lost))), 4),
                "most_for": str(sources[worst]),
                "most": round(float(by_source[worst]), 4),
            }
        )
    return {
        "packets": len(data),
        "flows": len(np.unique(data.columns["flow"])),
        "sources": sources.tolist(),
        "trees": SHAPES[0][0],
        "leaves": SHAPES[0][1],
        "folds": folds,
        "seeds": list(seeds),
        "rows": rows,
    }


def in_markdown(figures: dict[str, Any], command: str) -> str:
    """The figures as a table."""
    lines = [
        "# The value of each group of features",
        "",
        f"`{command}`. {figures['capture']}, time compression {figures['time_compression']:g}, "
        f"windows of {figures['window_ms']} ms: {figures['packets']:,} packets of "
        f"{figures['flows']:,} flows, {len(figures['sources'])} attack sources. Forests of "
        f"{figures['trees']} trees of up to {figures['leaves']} leaves, {figures['folds']} folds "
        f"that split no flow, seeds {', '.join(map(str, figures['seeds']))}. F1: mean over attack "
        "sources, at the operating point that training chooses; the mean of folds and seeds "
        "and its deviation among them. Bought: the loss without the group, in the same "
        "folds, and its standard error. A group that is redundant with other features buys "
        "little by this measure, though it would be missed without those.",
        "",
        "| without | features | F1 | bought | most for |",
        "|---|---|---|---|---|",
    ]
    names = {
        "all": "nothing: the default features",
        "with left out": "nothing, and with those omitted by default",
    }
    for row in figures["rows"]:
        cells = [
            names.get(row["without"], row["without"]),
            ", ".join(f"`{f}`" for f in row["features"]),
            f"{row['f1']:.3f} ± {row['f1_deviation']:.3f}",
        ]
        if row["without"] == "all":
            cells += ["", ""]
        else:
            cells.append(f"{row['bought']:+.3f} ± {row['bought_error']:.3f}")
            cells.append(f"{row['most_for']} ({row['most']:+.3f})")
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def run(
    folder: Path,
    output: Path,
    *,
    time_compression: float = 1000.0,
    window_ms: int = 10,
    seeds: int = 3,
    jobs: int = 2,
) -> None:
    """Ablation on the labelled capture of a folder; writes `output` with .json and .md."""
    with tempfile.TemporaryDirectory(prefix="strata-") as scratch:
        data = Workshop(Path(scratch), time_compression, window_ms).snapshots(folder, ())
    figures = {
        "capture": folder.name,
        "time_compression": time_compression,
        "window_ms": window_ms,
        **ablate(data, seeds=range(1, seeds + 1), jobs=jobs),
    }
    output.with_suffix(".json").write_text(json.dumps(figures, indent=1) + "\n")
    output.with_suffix(".md").write_text(in_markdown(figures, "make ablation"))
