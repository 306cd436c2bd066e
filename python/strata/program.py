"""The program `strata`, which handles the packets."""

import os
import shutil
import subprocess
from pathlib import Path


class ProgramError(RuntimeError):
    """The program is missing or failed; with the program's own message."""


def find() -> str:
    """The path of the program: `$STRATA_PROGRAM`, or `strata` on the path, or the
    one built next to this package. Raises `ProgramError` if neither exists."""
    named = os.environ.get("STRATA_PROGRAM")
    if named:
        return named
    on_path = shutil.which("strata")
    if on_path:
        return on_path
    built = Path(__file__).resolve().parents[2] / "target" / "release" / "strata"
    if built.exists():
        return str(built)
    raise ProgramError(
        "the program `strata` is not in PATH: run `make build`, "
        "or name it in the variable STRATA_PROGRAM"
    )


def run(*arguments: str | Path, piped: bytes | None = None) -> None:
    """Runs the program, with these bytes in a pipe as its standard input. Raises `ProgramError`
    with its message if it fails."""
    command = [find(), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, input=piped, check=False)
    if done.returncode != 0:
        message = done.stderr.decode(errors="replace").strip()
        raise ProgramError(message.removeprefix("strata: ") or f"{' '.join(command)} failed")
