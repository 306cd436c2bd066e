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
    find = of_lake.add_parser("find")
    _add_chosen(find)
    find.add_argument("--community-id", action="append", required=True, metavar="ID")
    query = of_lake.add_parser("query")
    _add_chosen(query)
    query.add_argument("sql", metavar="SQL")


def _add_catalog(command: argparse.ArgumentParser) -> None:
    command.add_argument("--catalog", required=True, metavar="URI")
    command.add_argument("--warehouse", metavar="URI")
    command.add_argument("--namespace", required=True, metavar="NAME")
    command.add_argument("--json", action="store_true")


def _add_chosen(command: argparse.ArgumentParser) -> None:
    _add_catalog(command)
    command.add_argument("--from", dest="from_us", type=int, metavar="MICROSECONDS")
    command.add_argument("--to", dest="to_us", type=int, metavar="MICROSECONDS")
    command.add_argument("--sensor", metavar="NAME")


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
        of = {
            "status": _status,
            "expire": _expire,
            "erase": _erase,
            "find": _find,
            "query": _query,
        }
        said, is_complete = of[args.of_lake](args)
    print(said)
    if not is_complete:
        sys.exit(LEFT)


def _status(args: argparse.Namespace) -> tuple[str, bool]:
    from . import lake, lake_merge, lake_upkeep

    found = lake_upkeep.status(args.catalog, args.namespace, warehouse=args.warehouse)
    index = lake_merge.state(lake.catalog(args.catalog, args.warehouse), args.namespace)
    return lake_merge.printed_with(lake_upkeep.printed_status(found, args.json), index), True


def _expire(args: argparse.Namespace) -> tuple[str, bool]:
    from . import lake, lake_merge, lake_upkeep

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
    done = lake_merge.tidy(
        lake.catalog(args.catalog, args.warehouse),
        args.namespace,
        snapshots_s=args.keep_snapshots,
    )
    return lake_merge.printed_with(lake_upkeep.printed_expired(found, args.json), done), True


def _erase(args: argparse.Namespace) -> tuple[str, bool]:
    from . import lake_erasure

    found = lake_erasure.erase(args.catalog, args.namespace, args.host, warehouse=args.warehouse)
    said = lake_erasure.printed(args.host, found, args.json)
    return said, all(one.is_complete for one in found)


def _find(args: argparse.Namespace) -> tuple[str, bool]:
    from . import lake_find

    found = lake_find.find(
        args.catalog,
        args.namespace,
        args.community_id,
        warehouse=args.warehouse,
        from_us=args.from_us,
        to_us=args.to_us,
        sensor=args.sensor,
    )
    return lake_find.printed(found, args.json), bool(found.rows)


def _query(args: argparse.Namespace) -> tuple[str, bool]:
    from . import lake_sql
    from .lake_reads import Chosen

    chosen = Chosen(args.from_us, args.to_us, args.sensor)
    found = lake_sql.query(
        args.sql, args.catalog, args.namespace, warehouse=args.warehouse, chosen=chosen
    )
    return lake_sql.printed(*found, args.json), True


COMMANDS: dict[str, Callable[[argparse.Namespace], None]] = {"publish": _publish, "lake": _lake}
