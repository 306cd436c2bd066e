"""The commands of this package, as `strata train`, `eval` and `compare` run them."""

import argparse
import json
import logging
import os
import signal
import sys
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from . import lakeline
from .program import ProgramError
from .snapshots import Named, SnapshotError

# Exit status of a model that was made, but misses the requirements.
MISSED = 3
# Of an interrupted command, as shells have it for SIGINT.
INTERRUPTED = 130


LAST_NAME_HELP = "name of the last file in messages and in the model: it may be in memory"


def parser() -> argparse.ArgumentParser:
    """The arguments of the commands."""
    whole = argparse.ArgumentParser(prog="strata")
    commands = whole.add_subparsers(dest="command", required=True)

    train = commands.add_parser(
        "train",
        help="train a model on labelled snapshots",
        epilog="Example: strata train snapshots.parquet -o model.json --report report.html "
        "--target-recall 0.95",
    )
    train.add_argument("snapshots", nargs="+", help="files of strata features -o FILE.parquet")
    train.add_argument("-o", "--output", required=True, metavar="FILE", help="write the model here")
    train.add_argument(
        "--report", metavar="FILE", help="write an HTML page about the packets of unseen flows"
    )
    train.add_argument("--name", default="strata", help="set the name of the model")
    train.add_argument(
        "--description", default="", help="set its description: what it was made for"
    )
    train.add_argument("--features", metavar="LIST", help="use these features, separated by commas")
    train.add_argument(
        "--shape",
        action="append",
        metavar="TREESxLEAVES",
        help="trees and leaves per tree, such as 8x64; the best of several is chosen",
    )
    train.add_argument(
        "--depth",
        action="append",
        type=int,
        metavar="N",
        help="maximum depth of a tree, default 8; the best of several is chosen",
    )
    train.add_argument(
        "--choose-features",
        action="store_true",
        help="drop features without which unseen flows are classified no worse",
    )
    train.add_argument(
        "--min-leaf", type=int, default=1, metavar="N", help="minimum packets per leaf"
    )
    train.add_argument(
        "--attack-weight",
        type=float,
        default=1.0,
        metavar="N",
        help="weight of an attack packet",
    )
    train.add_argument(
        "--class-weight",
        action="append",
        default=[],
        metavar="CLASS=N",
        help="weight of a packet of a class",
    )
    train.add_argument(
        "--even-sources",
        action="store_true",
        help="give small sources more weight, closer to that of large ones",
    )
    train.add_argument(
        "--by-bytes",
        action="store_true",
        help="count benign packets by their payload, where a packet costs its bytes",
    )
    train.add_argument(
        "--miss-cost", type=float, default=1.0, metavar="N", help="cost of a missed attack packet"
    )
    train.add_argument(
        "--false-alarm-cost", type=float, default=1.0, metavar="N", help="cost of a false alarm"
    )
    point = train.add_mutually_exclusive_group()
    point.add_argument(
        "--target-recall",
        "--recall",
        type=_share,
        metavar="SHARE",
        help="catch at least this share of each source",
    )
    point.add_argument(
        "--max-kept-whole",
        type=_share,
        metavar="SHARE",
        help="keep at most this share of bytes whole",
    )
    point.add_argument(
        "--conservative",
        type=_share,
        metavar="SCORE",
        help="call packets benign only from this score on; uncertain ones get the class 'unknown'",
    )
    train.add_argument(
        "--min-precision",
        type=_share,
        metavar="SHARE",
        help="exit with 3 if less than this share of what is called an attack is one",
    )
    train.add_argument(
        "--min-f1",
        type=_share,
        metavar="SHARE",
        help="exit with 3 if the mean F1 of the sources is lower",
    )
    train.add_argument(
        "--confidence",
        type=_share,
        default=0.95,
        metavar="SHARE",
        help="confidence with which a share has to be met on other flows",
    )
    train.add_argument(
        "--folds", type=int, default=5, metavar="N", help="number of cross-validation folds"
    )
    train.add_argument(
        "--seed",
        type=int,
        default=1,
        metavar="N",
        help="random seed; the same seed repeats a run exactly",
    )
    train.add_argument("--jobs", type=int, default=2, metavar="N", help="number of threads")
    train.add_argument("--quiet", action="store_true", help="show no progress bar")
    train.add_argument("--last-name", metavar="NAME", help=LAST_NAME_HELP)

    learn = commands.add_parser("learn", help="learn what is ordinary at a site; needs no labels")
    learn.add_argument("snapshots", nargs="+", help="files of strata features -o FILE.parquet")
    learn.add_argument("-o", "--output", required=True, metavar="FILE", help="write the model here")
    learn.add_argument("--beside", metavar="FILE", help="keep half of the trees of this model")
    learn.add_argument("--name", default="site", help="set the name of the model")
    learn.add_argument(
        "--alarm",
        type=_share,
        default=0.01,
        metavar="SHARE",
        help="share of ordinary payload that may be called unusual",
    )
    learn.add_argument("--seed", type=int, default=1, metavar="N")
    learn.add_argument("--jobs", type=int, default=2, metavar="N", help="number of threads")
    learn.add_argument("--quiet", action="store_true", help="show no progress bar")
    learn.add_argument("--last-name", metavar="NAME", help=LAST_NAME_HELP)

    evaluate = commands.add_parser("evaluate", help="compute figures of the data plane's decisions")
    evaluate.add_argument("decisions", help="file of strata eval --decisions")
    evaluate.add_argument("--model", required=True, metavar="FILE")
    evaluate.add_argument("--report", required=True, metavar="FILE")

    compare = commands.add_parser(
        "compare",
        help="compare presets of models on labelled captures",
        description="FOLDER holds a folder per capture with trace.pcap and labels.csv. X-train "
        "and X-test belong together; another with benign and attack packets is split by time; "
        "one with attacks only is evaluated with the model of the first pair.",
    )
    compare.add_argument("folder", type=Path)
    compare.add_argument("--report", required=True, metavar="FILE", help="HTML page to write")
    compare.add_argument(
        "--time-compression", type=float, default=1000.0, metavar="N", help="default 1000"
    )
    compare.add_argument(
        "--window-ms",
        type=int,
        default=10,
        metavar="MS",
        help="window of the flow table; default 10",
    )
    compare.add_argument(
        "--presets", metavar="LIST", help="run only these presets, separated by commas"
    )
    compare.add_argument("--seed", type=int, default=1, metavar="N")
    compare.add_argument("--jobs", type=int, default=2, metavar="N", help="number of threads")
    default = commands.add_parser("default", help="make the model that ships with the program")
    default.add_argument("folder", type=Path, help="folder with trace.pcap and labels.csv")
    default.add_argument("-o", "--output", type=Path, required=True, metavar="FILE")

    tune = commands.add_parser("tune", help="search the parameters of a flow cache")
    tune.add_argument("captures", nargs="+", help="capture files to try them on")
    tune.add_argument("--memory", type=int, required=True, metavar="BYTES")
    tune.add_argument("--length", type=int, default=28, metavar="N", help="tuples of a vector")
    tune.add_argument("--ways", type=int, default=1, choices=(1, 8))
    tune.add_argument("--static", action="store_true", help="one buffer for each slot")
    tune.add_argument("--trials", type=int, default=100, metavar="N")
    tune.add_argument("--seed", type=int, default=1, metavar="N")
    tune.add_argument("--form", choices=("strata", "paper", "paper-seq"), help="default: a switch")
    tune.add_argument("--figures", metavar="FOLDER", help="draw Figures 6 to 8 of the paper")
    tune.add_argument("--json", action="store_true")

    flows = commands.add_parser("flows", help="train and judge a classifier of flows")
    flows.add_argument("flows", nargs="+", help="files of strata gpv features")
    flows.add_argument("-o", "--output", metavar="FILE", help="write the forest here")
    flows.add_argument("--test", action="append", default=[], metavar="FILE")
    flows.add_argument("--class-column", choices=("label", "source"), default="label")
    flows.add_argument("--seed", type=int, default=1, metavar="N")
    flows.add_argument("--jobs", type=int, default=2, metavar="N")
    flows.add_argument("--json", action="store_true")

    lakeline.add(commands)
    return whole


def _share(text: str) -> float:
    value = float(text)
    if not 0 < value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not between 0 and 1")
    return value


def check_outputs(outputs: Iterable[str | Path | None], inputs: Iterable[str | Path] = ()) -> None:
    """Raises `OSError` if one of the files could not be written after the work, or is an
    input."""
    for output in filter(None, outputs):
        path = Path(output)
        if path.is_dir():
            raise IsADirectoryError(f"{path}: cannot write: is a directory")
        if not path.absolute().parent.is_dir():
            raise NotADirectoryError(f"{path}: cannot write: its directory does not exist")
        if not os.access(path if path.exists() else path.absolute().parent, os.W_OK):
            raise PermissionError(f"{path}: cannot write: not permitted")
        for source in inputs:
            if path.exists() and Path(source).exists() and path.samefile(source):
                raise FileExistsError(f"{path}: this is the input {source}: write to another file")


def quiet_libraries() -> None:
    """Warnings of this package are printed as messages; those of libraries are for
    developers, and stay out of users' logs."""
    warnings.filterwarnings("ignore")
    warnings.filterwarnings("always", category=UserWarning, module=r"strata(\.|$)")
    warnings.showwarning = lambda message, *_, **__: print(
        f"strata: warning: {message}", file=sys.stderr
    )
    # For processes that libraries start.
    os.environ.setdefault("PYTHONWARNINGS", "ignore")
    for name in ("matplotlib", "fontTools", "joblib"):
        logging.getLogger(name).setLevel(logging.ERROR)


def _named(args: argparse.Namespace) -> list[str | Named]:
    """The files with snapshots."""
    files: list[str | Named] = list(args.snapshots)
    if args.last_name is not None:
        files[-1] = Named(args.snapshots[-1], args.last_name)
    return files


def _train(args: argparse.Namespace) -> None:
    check_outputs([args.output, args.report], args.snapshots)
    from .training import train

    files = _named(args)

    options: dict[str, Any] = {
        "choose_features": args.choose_features,
        "min_leaf": args.min_leaf,
        "attack_weight": args.attack_weight,
        "class_weights": {k: float(v) for k, v in (w.split("=") for w in args.class_weight)},
        "even_sources": args.even_sources,
        "by_bytes": args.by_bytes,
        "miss_cost": args.miss_cost,
        "false_alarm_cost": args.false_alarm_cost,
        "target_recall": args.target_recall,
        "max_kept_whole": args.max_kept_whole,
        "conservative": args.conservative,
        "min_precision": args.min_precision,
        "min_f1": args.min_f1,
        "confidence": args.confidence,
        "folds": args.folds,
        "seed": args.seed,
        "jobs": args.jobs,
        "progress": not args.quiet,
    }
    if args.features:
        options["features"] = tuple(args.features.split(","))
    if args.depth:
        options["depths"] = tuple(args.depth)
    if args.shape:
        pairs = [shape.split("x") for shape in args.shape]
        options["shapes"] = tuple((int(trees), int(leaves)) for trees, leaves in pairs)
    model = train(
        files,
        args.output,
        name=args.name,
        description=args.description,
        report=args.report,
        **options,
    )
    made = model["training"]
    shape = made["shape"]
    from . import report

    print(report.training_as_text(made))
    print(
        f"{args.output}: {shape['trees']} trees of up to {shape['leaves']} leaves, anomalous "
        f"from a score of {made['anomaly_score_at_least']} on, from {made['packets']:,} packets "
        f"of {made['flows']:,} flows"
    )
    if not made["verdict"]["met"]:
        sys.exit(MISSED)


def _learn(args: argparse.Namespace) -> None:
    check_outputs([args.output], args.snapshots)
    from . import learning
    from .snapshots import load

    beside = json.loads(Path(args.beside).read_text()) if args.beside else None
    model = learning.learn(
        load(_named(args), unlabelled=True),
        beside,
        args.name,
        alarm=args.alarm,
        seed=args.seed,
        jobs=args.jobs,
        progress=not args.quiet,
    )
    learning.write(model, args.output)
    learnt = model["training"]["learnt"]
    print(learning.as_text(learnt))
    print(
        f"{args.output}: {len(model['flow_trees'])} trees, unusual from a score of "
        f"{learnt['score_at_least']} on"
    )
    if learnt["problems"]:
        sys.exit(MISSED)


def _evaluate(args: argparse.Namespace) -> None:
    check_outputs([args.report], [args.decisions, args.model])
    from . import report
    from .evaluation import evaluate

    print(report.as_text(evaluate(args.decisions, args.model, args.report)))
    print(f"{args.report} (figures: {report.json_path(Path(args.report))})")


def _compare(args: argparse.Namespace) -> None:
    check_outputs([args.report])
    from .presets import compare

    presets = args.presets.split(",") if args.presets else None
    compare(
        args.folder,
        args.report,
        presets=presets,
        time_compression=args.time_compression,
        window_ms=args.window_ms,
        seed=args.seed,
        jobs=args.jobs,
    )


def _default(args: argparse.Namespace) -> None:
    check_outputs([args.output])
    from .presets import default_model

    default_model(args.folder, args.output)


def _tune(args: argparse.Namespace) -> None:
    from . import tuner

    if args.figures is not None:
        options = {name: getattr(args, name) for name in ("memory", "length", "trials", "seed")}
        print(tuner.figures(args.captures, args.figures, **options))
        return
    found = tuner.tune(
        args.captures,
        memory=args.memory,
        length=args.length,
        ways=args.ways,
        static=args.static,
        trials=args.trials,
        seed=args.seed,
        form=args.form,
    )
    print(tuner.printed(found, args.json))


def _flows(args: argparse.Namespace) -> None:
    check_outputs([args.output], [*args.flows, *args.test])
    from . import flows

    judged = flows.train(
        args.flows,
        args.output,
        test=args.test,
        by=args.class_column,
        seed=args.seed,
        jobs=args.jobs,
    )
    print(flows.printed(judged, args.json))


def end_on_signals() -> None:
    """From now on, SIGINT and SIGTERM end the command with `KeyboardInterrupt`. The terminal and
    the program that started this one may both send it: further ones must not end the removal of
    temporary files."""
    numbers = (signal.SIGINT, signal.SIGTERM)

    def end(*_: object) -> None:
        for number in numbers:
            signal.signal(number, signal.SIG_IGN)
        raise KeyboardInterrupt

    for number in numbers:
        signal.signal(number, end)


def main(arguments: list[str] | None = None) -> None:
    """Runs a command; ends the process with a message on errors that users can cause, and if it
    is interrupted."""
    args = parser().parse_args(arguments)
    quiet_libraries()
    commands = {
        "train": _train,
        "learn": _learn,
        "evaluate": _evaluate,
        "compare": _compare,
        "default": _default,
        "tune": _tune,
        "flows": _flows,
        **lakeline.COMMANDS,
    }
    try:
        commands[args.command](args)
    except KeyboardInterrupt:
        print("strata: interrupted", file=sys.stderr)
        sys.exit(INTERRUPTED)
    except BrokenPipeError:
        # The reader of our output has closed it.
        sys.stderr.close()
    except (ProgramError, SnapshotError, OSError, json.JSONDecodeError, ValueError) as error:
        sys.exit(f"strata: {error}")
