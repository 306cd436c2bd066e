"""What models are worth, on labelled captures.

    PYTHONPATH=bench python -m research QUESTION FOLDER -o NAME

`make ablation`, `unseen`, `kept`, `sets`, `frontier` and `links` ask these questions; answers are
in bench/results. They train and record as users do, with the package `strata`.
"""

import argparse
import json
import sys
from pathlib import Path

from strata.main import check_outputs, quiet_libraries
from strata.program import ProgramError
from strata.snapshots import SnapshotError


def parser() -> argparse.ArgumentParser:
    """The questions and their arguments."""
    whole = argparse.ArgumentParser(prog="research")
    commands = whole.add_subparsers(dest="command", required=True)

    ablate = commands.add_parser(
        "ablate", help="show the value of each group of features, by training without it"
    )
    ablate.add_argument("folder", type=Path, help="folder with trace.pcap and labels.csv")
    ablate.add_argument(
        "-o", "--output", type=Path, required=True, metavar="NAME", help="of NAME.json and NAME.md"
    )
    ablate.add_argument("--seeds", type=int, default=3, metavar="N", help="repeat this many times")
    ablate.add_argument("--jobs", type=int, default=2, metavar="N", help="number of threads")

    unseen = commands.add_parser(
        "unseen", help="show what models spend a budget of detail on, of attacks they have not seen"
    )
    unseen.add_argument("folder", type=Path, help="folder of labelled captures")
    unseen.add_argument(
        "-o", "--output", type=Path, required=True, metavar="NAME", help="of NAME.json and NAME.md"
    )
    unseen.add_argument(
        "--shipped", type=Path, required=True, metavar="FILE", help="the built-in model"
    )
    unseen.add_argument("--jobs", type=int, default=2, metavar="N", help="number of threads")

    kept = commands.add_parser(
        "kept", help="show what recordings with a budget of detail keep of attacks not seen before"
    )
    kept.add_argument("folder", type=Path, help="folder of labelled captures")
    kept.add_argument(
        "-o", "--output", type=Path, required=True, metavar="NAME", help="of NAME.json and NAME.md"
    )
    kept.add_argument(
        "--only", nargs="+", default=[], metavar="NAME", help="record only these captures' attacks"
    )
    kept.add_argument("--jobs", type=int, default=2, metavar="N", help="number of threads")

    sets = commands.add_parser(
        "sets", help="show what recordings keep of each labelled capture by itself"
    )
    sets.add_argument("folder", type=Path, help="folder of labelled captures")
    sets.add_argument(
        "-o", "--output", type=Path, required=True, metavar="NAME", help="of NAME.json and NAME.md"
    )
    sets.add_argument("--jobs", type=int, default=2, metavar="N", help="number of threads")

    frontier = commands.add_parser(
        "frontier", help="show what trees of other kinds would be worth at the same price"
    )
    frontier.add_argument("folder", type=Path, help="folder of labelled captures")
    frontier.add_argument(
        "-o", "--output", type=Path, required=True, metavar="NAME", help="of NAME.json and NAME.md"
    )
    frontier.add_argument(
        "--seeds", type=int, default=3, metavar="N", help="repeat this many times"
    )

    links = commands.add_parser(
        "links", help="show how sketches and presets do on links of 100, 200 and 400 Gb/s"
    )
    links.add_argument("folder", type=Path, help="folder of labelled captures")
    links.add_argument(
        "-o", "--output", type=Path, required=True, metavar="NAME", help="of NAME.json and NAME.md"
    )
    links.add_argument("--jobs", type=int, default=2, metavar="N", help="number of threads")
    return whole


def _ablate(args: argparse.Namespace) -> None:
    from .ablation import run

    run(args.folder, args.output, seeds=args.seeds, jobs=args.jobs)


def _unseen(args: argparse.Namespace) -> None:
    from .unseen import in_markdown, run

    print(in_markdown(run(args.folder, args.output, args.shipped, args.jobs)))


def _kept(args: argparse.Namespace) -> None:
    from .kept import in_markdown, run

    print(in_markdown(run(args.folder, args.output, args.jobs, args.only)))


def _sets(args: argparse.Namespace) -> None:
    from .sets import in_markdown, run

    print(in_markdown(run(args.folder, args.output, args.jobs)))


def _frontier(args: argparse.Namespace) -> None:
    from .frontier import in_markdown, run

    print(in_markdown(run(args.folder, args.output, args.seeds)))


def _links(args: argparse.Namespace) -> None:
    from .links import run

    run(args.folder, args.output, jobs=args.jobs)


def main() -> None:
    """Answers a question; ends the process with a message on errors that users can cause."""
    args = parser().parse_args()
    quiet_libraries()
    questions = {
        "ablate": _ablate,
        "unseen": _unseen,
        "kept": _kept,
        "sets": _sets,
        "frontier": _frontier,
        "links": _links,
    }
    try:
        check_outputs([args.output.with_suffix(suffix) for suffix in (".json", ".md")])
        questions[args.command](args)
    except BrokenPipeError:
        # The reader of our output has closed it.
        sys.stderr.close()
    except (ProgramError, SnapshotError, OSError, json.JSONDecodeError, ValueError) as error:
        sys.exit(f"research: {error}")


main()
