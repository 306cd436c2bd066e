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

    asked = {}
    for name, what in [
        ("ablate", "show the value of each group of features, by training without it"),
        ("unseen", "show what models spend a budget of detail on, of attacks they have not seen"),
        ("kept", "show what recordings with a budget of detail keep of attacks"),
        ("sets", "show what recordings keep of each labelled capture by itself"),
        ("frontier", "show what trees of other kinds would be worth at the same price"),
        ("links", "show how sketches and presets do on links of 100, 200 and 400 Gb/s"),
    ]:
        asked[name] = commands.add_parser(name, help=what)
        of = "with trace.pcap and labels.csv" if name == "ablate" else "of labelled captures"
        asked[name].add_argument("folder", type=Path, help=f"folder {of}")
        asked[name].add_argument(
            "-o",
            "--output",
            type=Path,
            required=True,
            metavar="NAME",
            help="of NAME.json and NAME.md",
        )
    for name in ("ablate", "unseen", "links"):
        asked[name].add_argument(
            "--jobs", type=int, default=2, metavar="N", help="number of threads"
        )
    for name in ("ablate", "frontier"):
        asked[name].add_argument(
            "--seeds", type=int, default=3, metavar="N", help="repeat this many times"
        )
    asked["unseen"].add_argument(
        "--shipped", type=Path, required=True, metavar="FILE", help="the built-in model"
    )
    asked["kept"].add_argument(
        "--only", nargs="+", default=[], metavar="NAME", help="record only these captures' attacks"
    )
    return whole


def _ablate(args: argparse.Namespace) -> None:
    from .ablation import run

    run(args.folder, args.output, seeds=args.seeds, jobs=args.jobs)


def _unseen(args: argparse.Namespace) -> None:
    from .unseen import in_markdown, run

    print(in_markdown(run(args.folder, args.output, args.shipped, args.jobs)))


def _kept(args: argparse.Namespace) -> None:
    from .kept import in_markdown, run

    print(in_markdown(run(args.folder, args.output, args.only)))


def _sets(args: argparse.Namespace) -> None:
    from .sets import in_markdown, run

    print(in_markdown(run(args.folder, args.output)))


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
