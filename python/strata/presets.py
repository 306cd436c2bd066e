"""Compares presets of models, each as its authors describe it.

All but `exact` are model files that the data plane runs; `exact` is what a server
without bounds would do.
"""

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.ensemble import RandomForestClassifier
from tqdm import tqdm

from . import evaluation, program, report
from . import snapshots as snapshots_module
from .evaluation import Decisions
from .folds import first_half
from .model import dumps, split_json
from .snapshots import BENIGN, Snapshots
from .training import FEATURES, SHAPES, Options, Trainer

# TitanLog §IV-A and Table I.
TITANLOG_PACKET = ("size", "protocol", "tcp_flags", "source_port", "destination_port")
TITANLOG_FLOW = (
    *("packets", "bytes", "ipd_sum", "size_max", "size_min", "ipd_max", "ipd_min"),
    *("size_avg", "ipd_avg", "size_var", "ipd_var"),
)
# The features of TitanLog's published switch program: registers of minima, maxima and sums, by
# direction, without delays.
P4_FLOW = (
    *("bytes", "size_min", "size_max", "forward_bytes", "backward_bytes"),
    *("backward_size_min", "backward_size_max", "backward_header_bytes"),
    *("window_forward", "window_backward"),
)
# TitanLog §IV-B gives attacks "higher weights" and no number.
ATTACK_WEIGHT = 2.0
# A flow is long from this many packets on (TitanLog §VIII-B gives no number).
LONG_FLOW_PACKETS = 16


def _fixed(features: Sequence[str], trees: int, depth: int, seed: int, jobs: int) -> Options:
    """A forest of a given shape that decides by majority."""
    return Options(
        features=features,
        shapes=((trees, 2**depth),),
        depths=(depth,),
        attack_weight=ATTACK_WEIGHT,
        point=0.5,
        seed=seed,
        jobs=jobs,
        progress=False,
    )


def _titanlog_paper(data: Snapshots, seed: int, jobs: int) -> dict[str, Any]:
    options = _fixed(TITANLOG_PACKET + TITANLOG_FLOW, 3, 7, seed, jobs)
    return Trainer(data, options).train("titanlog-paper", "")


def _titanlog_p4(data: Snapshots, seed: int, jobs: int) -> dict[str, Any]:
    options = _fixed(("size", "protocol", "tcp_flags", *P4_FLOW), 1, 7, seed, jobs)
    return Trainer(data, options).train("titanlog-p4", "")


def _netbeacon_like(data: Snapshots, seed: int, jobs: int) -> dict[str, Any]:
    features = TITANLOG_PACKET + TITANLOG_FLOW
    options = _fixed(features, 3, 7, seed, jobs)
    model = Trainer(data, options).train("netbeacon-like", "")
    long = data.columns["packets"] >= LONG_FLOW_PACKETS
    if len(np.unique(data.attack[long])) < 2:
        # Too few long flows to train on: use the trees of the short ones for all.
        model["flow_trees"], model["known"]["flow_trees"] = [], []
        return model
    of_long = Trainer(data.where(long), options).train("", "")
    packets = features.index("packets")
    model["flow_trees"] = [
        split_json(packets, LONG_FLOW_PACKETS - 1, short, flow)
        for short, flow in zip(model["packet_trees"], of_long["flow_trees"], strict=True)
    ]
    # Of these trees, which are put together from two forests, nothing is known.
    model["known"]["flow_trees"] = []
    return model


def _strata(data: Snapshots, seed: int, jobs: int) -> dict[str, Any]:
    options = Options(seed=seed, jobs=jobs, progress=False)
    return Trainer(data, options).train("strata", "")


@dataclass(frozen=True)
class Preset:
    """A method of classification."""

    what: str
    flags: tuple[str, ...]
    """Options of `strata features`."""
    train: Callable[[Snapshots, int, int], dict[str, Any]] | None
    """`None` for models that only scikit-learn can evaluate."""


PRESETS = {
    "titanlog-paper": Preset(
        "3 trees of depth 7, features of Table I, voting buckets, 16-bit registers and "
        "approximate squares, averages within 1 %; packet trees where there is no bucket",
        ("--switch", "0.01"),
        _titanlog_paper,
    ),
    "titanlog-p4": Preset(
        "one tree of depth 7 over minima, maxima and sums by direction, in registers that "
        "flows share; no delays, no variance",
        ("--switch", "0.01", "--shared-buckets"),
        _titanlog_p4,
    ),
    "netbeacon-like": Preset(
        f"3 packet trees of depth 7, and 3 flow trees once a flow has {LONG_FLOW_PACKETS} packets",
        ("--switch", "0.01"),
        _netbeacon_like,
    ),
    "strata": Preset(
        "trees, leaves and operating point by cross-validation over unseen flows; exact "
        "arithmetic, directional features, ECN; no ports",
        (),
        _strata,
    ),
    "exact": Preset(
        "300 unpruned trees on exact flow tables, by majority; the features of strata",
        ("--exact",),
        None,
    ),
}


@dataclass
class Task:
    """One pair of training and test packets."""

    name: str
    train: Path
    test: Path
    split: bool = False
    """Train on the first half of each source's flows, test on the others, in one capture."""
    attacks_only: bool = False


class Workshop:
    """Snapshots and decisions of captures, each made once."""

    def __init__(self, folder: Path, time_compression: float, window_ms: int):
        self.folder = folder
        self.time_compression = time_compression
        self.window_ms = window_ms
        self.known: dict[tuple[Path, tuple[str, ...]], Snapshots] = {}

    def capture(self, where: Path) -> list[str]:
        """Arguments that name a labelled capture."""
        capture = ["-r", str(where / "trace.pcap"), "--labels", str(where / "labels.csv")]
        return [*capture, "--time-compression", str(self.time_compression)]

    def snapshots(self, where: Path, flags: tuple[str, ...]) -> Snapshots:
        """Features of a capture."""
        key = (where, flags)
        if key not in self.known:
            path = self.folder / f"{where.name}{len(self.known)}.parquet"
            window = ["--window-ms", str(self.window_ms)]
            program.run("features", *self.capture(where), *window, *flags, "-o", path)
            self.known[key] = snapshots_module.load([path])
        return self.known[key]

    def decisions(self, where: Path, model: dict[str, Any]) -> Decisions:
        """The data plane's decisions on a capture."""
        model_path, path = self.folder / "model.json", self.folder / "decisions.parquet"
        model_path.write_text(dumps(model))
        program.run("eval", "-m", model_path, *self.capture(where), "--decisions", path)
        return evaluation.load(path, model)


def tasks(folder: Path, workshop: Workshop) -> list[Task]:
    """The tasks of a folder of captures; see `strata compare --help`."""
    captures = sorted(path.parent for path in folder.glob("*/labels.csv"))
    if not captures:
        raise ValueError(f"{folder}: no folder with trace.pcap and labels.csv")
    pairs, rest = [], []
    tests = {path: path.with_name(path.name.removesuffix("-train") + "-test") for path in captures}
    tests = {k: v for k, v in tests.items() if k.name.endswith("-train") and v in captures}
    for path in captures:
        if path in tests:
            pairs.append(Task(path.name.removesuffix("-train"), path, tests[path]))
        elif path not in tests.values():
            rest.append(path)
    alone = []
    for path in rest:
        data = workshop.snapshots(path, ())
        if data.attack.all():
            alone.append(path)
        else:
            pairs.append(Task(path.name, path, path, split=True))
    if not pairs:
        raise ValueError(f"{folder}: no capture has benign and attack packets")
    return pairs + [Task(path.name, pairs[0].train, path, attacks_only=True) for path in alone]


def compare(
    folder: str | Path,
    report_path: str | Path | None = None,
    *,
    presets: Sequence[str] | None = None,
    time_compression: float = 1000.0,
    window_ms: int = 10,
    seed: int = 1,
    jobs: int = 2,
) -> dict[str, Any]:
    """Trains and evaluates presets on all captures of a folder. Returns the figures, and writes
    them to a page if `report_path` is given."""
    names = list(presets or PRESETS)
    unknown = [name for name in names if name not in PRESETS]
    if unknown:
        raise ValueError(f"no preset {', '.join(unknown)}; there are {', '.join(PRESETS)}")
    results: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="strata-") as scratch:
        workshop = Workshop(Path(scratch), time_compression, window_ms)
        todo = tasks(Path(folder), workshop)
        models: dict[tuple[str, Path], Any] = {}
        with tqdm(total=len(todo) * len(names), disable=None) as bar:
            for task in todo:
                decided = {}
                for name in names:
                    bar.set_description(f"{task.name}, {name}")
                    decided[name] = _run(PRESETS[name], name, task, workshop, models, seed, jobs)
                    bar.update()
                results.append(_judge(task, decided, workshop, seed))
    figures = {
        "time_compression": time_compression,
        "window_ms": window_ms,
        "seed": seed,
        "presets": {name: PRESETS[name].what for name in names},
        "shapes": {name: models[name, todo[0].train][1] for name in names},
        "captures": results,
    }
    if report_path is not None:
        report.write_comparison(Path(report_path), figures)
        print(report.comparison_as_text(figures))
    return figures


def _run(
    preset: Preset,
    name: str,
    task: Task,
    workshop: Workshop,
    models: dict[tuple[str, Path], Any],
    seed: int,
    jobs: int,
) -> Decisions:
    if (name, task.train) not in models:
        data = workshop.snapshots(task.train, preset.flags)
        if task.split:
            data = data.where(_first_half(data))
        if preset.train is None:
            forest = RandomForestClassifier(300, random_state=seed, n_jobs=jobs)
            forest.fit(data.values(FEATURES), data.attack)
            shape = f"300 trees of {np.mean([t.get_n_leaves() for t in forest]):.0f} leaves"
            models[name, task.train] = (forest, shape)
        else:
            model = preset.train(data, seed, jobs)
            leaves = [
                sum("classes" in n for n in tree["nodes"])
                for tree in model["flow_trees"] or model["packet_trees"]
            ]
            shape = f"{len(leaves)} trees of {np.mean(leaves):.0f} leaves"
            models[name, task.train] = (model, shape)
    model, _ = models[name, task.train]
    if preset.train is None:
        decisions = _exact(workshop.snapshots(task.test, preset.flags), model)
    else:
        decisions = workshop.decisions(task.test, model)
    if task.split:
        data = workshop.snapshots(task.train, preset.flags)
        known = np.unique(data.columns["flow"][_first_half(data)])
        decisions = decisions.where(~np.isin(decisions.flow, known))
    return decisions


def _first_half(data: Snapshots) -> np.ndarray:
    """The packets to train on, of a capture that is split."""
    return first_half(data.columns["flow"], data.strata(), data.columns["ts_ns"])


def _exact(data: Snapshots, forest: RandomForestClassifier) -> Decisions:
    scores = forest.predict_proba(data.values(FEATURES))[:, 1]
    alarm = scores >= 0.5
    return Decisions(
        label=data.label,
        source=data.source,
        decided=np.where(alarm, "anomalous", BENIGN),
        anomaly=scores,
        anomalous=alarm,
        flow=data.columns["flow"],
        in_flow=data.columns["in_flow"],
        wire_len=data.columns["wire_len"].astype(float),
        ts_ns=data.columns["ts_ns"],
        has_bucket=data.columns["has_bucket"],
        summary={},
    )


def _judge(
    task: Task, decided: dict[str, Decisions], workshop: Workshop, seed: int
) -> dict[str, Any]:
    trained = workshop.snapshots(task.train, PRESETS[next(iter(decided))].flags)
    if task.split:
        trained = trained.where(_first_half(trained))
    known = sorted({str(s) for s in trained.source[trained.attack]})
    figures = {name: evaluation.judge(d, known, seed) for name, d in decided.items()}
    for judged in figures.values():
        # For the page of a single model.
        for part in ("curve", "positions", "false_alarms_of", "summary"):
            del judged[part]
    ours = decided.get("strata")
    if ours is not None and not task.attacks_only:
        for name, judged in figures.items():
            if name == "strata":
                continue
            for row in judged["sources"]:
                if row.get("macro"):
                    continue
                here = ours.attack & (ours.source == row["source"])
                at = evaluation.precision_at(ours, here, row["recall"][0])
                row["precision_of_strata_at_this_recall"] = round(at, 4)
    return {
        "name": task.name,
        "train": task.train.name + (", first half of each source's flows" if task.split else ""),
        "test": task.test.name + (", the other flows" if task.split else ""),
        "attacks_only": task.attacks_only,
        "presets": figures,
    }


def default_model(
    train: Path, output: Path, window_ms: int = 10_000, seed: int = 1
) -> dict[str, Any]:
    """The model that ships with the program: the preset `strata` in real time, and
    careful: it keeps whole what it is not sure about."""
    with tempfile.TemporaryDirectory(prefix="strata-") as scratch:
        workshop = Workshop(Path(scratch), 1.0, window_ms)
        data = workshop.snapshots(train, ())
        # Small sources count as much as floods: what a flood never shows, such as a scan, must not
        # be drowned out.
        options = Options(
            even_sources=True, min_leaf=5, shapes=SHAPES[:1], target_recall=0.995, seed=seed, jobs=1
        )
        model = Trainer(data, options).train(
            "strata-default",
            "Careful: keeps whole what it is not sure about. Trained on a small mix of "
            "applications, devices and attacks; train your own for your network.",
        )
        model["training"]["snapshots"] = [train.name]
    output.write_text(dumps(model))
    return model
