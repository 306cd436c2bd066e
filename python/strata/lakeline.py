"""The command lines of `publish` and `lake`: Iceberg tables of logs."""

import argparse
import re
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from .program import ProgramError

# Exit status if a host is not erased from all of the tables.
LEFT = 1


def add(commands: Any) -> None:
    """Adds both commands to those of the package."""
    publish = commands.add_parser("publish", help="logs of sensors as Iceberg tables")
    publish.add_argument("log", type=Path)
    _add_catalog(publish)
    publish.add_argument("--sensor", required=True, metavar="NAME")
    publish.add_argument("--replace", action="store_true")
    publish.add_argument("--watch", type=float, metavar="SECONDS")
    upkeep = commands.add_parser("lake", help="upkeep of Iceberg tables of logs")
    of_lake = upkeep.add_subparsers(dest="of_lake", required=True)
    _add_catalog(of_lake.add_parser("status"))
    expire = of_lake.add_parser("expire")
    _add_catalog(expire)
    expire.add_argument("--keep", type=int, metavar="SECONDS")
    expire.add_argument("--keep-class", action="append", default=[], metavar="CLASS:SECONDS")
    expire.add_argument("--keep-snapshots", type=int, required=True, metavar="SECONDS")
    erase = of_lake.add_parser("erase")
    _add_catalog(erase)
    erase.add_argument("--host", required=True, metavar="ADDRESS")


def _add_catalog(command: argparse.ArgumentParser) -> None:
    command.add_argument("--catalog", required=True, metavar="URI")
    command.add_argument("--warehouse", metavar="URI")
    command.add_argument("--namespace", required=True, metavar="NAME")
    command.add_argument("--json", action="store_true")


@contextmanager
def _of_the_lake(catalog: str) -> Iterator[None]:
    """Turns errors of logs and catalogs into those of the program."""
    try:
        from .lake import LakeError
        from .log import LogError
    except ModuleNotFoundError as error:
        raise ProgramError(
            f"tables need the Python package {error.name}: run `make python`, or "
            "pip install './python[lake]'"
        ) from error
    try:
        yield
    except (LakeError, LogError) as error:
        raise ProgramError(str(error)) from error
    except Exception as error:
        # Of catalogs, databases and stores, whose errors have nothing in common.
        name = re.sub("//[^/@]*@", "//...@", catalog)
        raise ProgramError(f"{name}: {type(error).__name__}: {error}") from error


def _publish(args: argparse.Namespace) -> None:
    def publish() -> list[Any]:
        with _of_the_lake(args.catalog):
            from . import lake

            return lake.publish(
                args.log,
                args.catalog,
                args.namespace,
                args.sensor,
                warehouse=args.warehouse,
                replace=args.replace,
            )

    if args.watch is not None:
        with _of_the_lake(args.catalog):
            from . import lake_watch
        lake_watch.watch(lake_watch.Watch(args.log, publish, args.json), args.watch)
        return
    published = publish()
    from . import lake
    from .log import not_compacted

    left = not_compacted(args.log)
    problem = lake.not_there(args.log, left) if left else None
    print(lake.printed(published, problem, args.json))
    if problem:
        warnings.warn(problem, stacklevel=2)


def _lake(args: argparse.Namespace) -> None:
    with _of_the_lake(args.catalog):
        of = {"status": _status, "expire": _expire, "erase": _erase}[args.of_lake]
        said, is_complete = of(args)
    print(said)
    if not is_complete:
        sys.exit(LEFT)


def _status(args: argparse.Namespace) -> tuple[str, bool]:
    from . import lake_upkeep

    found = lake_upkeep.status(args.catalog, args.namespace, warehouse=args.warehouse)
    return lake_upkeep.printed_status(found, args.json), True


def _expire(args: argparse.Namespace) -> tuple[str, bool]:
    from . import lake_upkeep

    keep_s = {name: int(s) for name, _, s in (one.rpartition(":") for one in args.keep_class)}
    if args.keep is not None:
        keep_s[""] = args.keep
    found = lake_upkeep.expire(
        args.catalog,
        args.namespace,
        warehouse=args.warehouse,
        keep_s=keep_s or None,
        snapshots_s=args.keep_snapshots,
    )
    return lake_upkeep.printed_expired(found, args.json), True


def _erase(args: argparse.Namespace) -> tuple[str, bool]:
    from . import lake_erasure

    found = lake_erasure.erase(args.catalog, args.namespace, args.host, warehouse=args.warehouse)
    said = lake_erasure.printed(args.host, found, args.json)
    return said, all(one.is_complete for one in found)


COMMANDS: dict[str, Callable[[argparse.Namespace], None]] = {"publish": _publish, "lake": _lake}
