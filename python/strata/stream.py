"""Streams from Python: records of `strata stream`, one after the other.

    from strata.stream import append, tail

    for record in tail("streams/", "kernel", cursor="@alerts", follow=True):
        print(record.seq, record.time_ns, record.data)

    append("streams/", "events", [b"one", b"two"])

The program `strata` reads and writes the files (`$STRATA_PROGRAM`, or on the path).
"""

import contextlib
import json
import subprocess
import tempfile
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, NamedTuple

from strata.program import ProgramError, find


class StreamWarning(UserWarning):
    """Records are missing, or were deleted before they were read; or a cursor or a time
    is after the end."""


class Record(NamedTuple):
    """A record: where reading goes on after it, its number (None if its form has none), when it was
    appended (ns since 1970), its bytes, and what it says, if Strata wrote it (`--to-stream`); if it
    came through a server, its producer, and its number among the records of that producer."""

    cursor: str
    seq: int | None
    time_ns: int
    data: bytes
    decoded: dict | None = None
    producer: str | None = None
    number: int | None = None


def tail(
    directory: str | Path,
    name: str,
    cursor: str | None = None,
    since: str | None = None,
    records: int | None = None,
    follow: bool = False,
) -> Iterator[Record]:
    """Records from a cursor (`0.0` is the oldest; `@NAME` one that is kept in the directory) or a
    time on; without either, the last ones. At most `records`. With `follow`, goes on with new ones
    as they come, until the iterator is closed. Raises `ProgramError` if the stream cannot be read.
    How many records are missing or were deleted before they were read is a `StreamWarning`
    (`warnings`) at the end.

    A kept cursor may have been saved after records that were not taken from the iterator: keep
    `record.cursor` yourself if that matters."""
    command = [find(), "stream", "tail", "--json"]
    options = {"--cursor": cursor, "--since": since, "--records": records}
    command += [f"{option}={value}" for option, value in options.items() if value is not None]
    command += ["--follow"] if follow else []
    command += ["--", str(directory), name]
    with tempfile.TemporaryFile() as errors:
        program = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors)
        try:
            for line in program.stdout:
                said = json.loads(line)
                hexadecimal = said.get("hex")
                data = said["text"].encode() if hexadecimal is None else bytes.fromhex(hexadecimal)
                place = said["cursor"], said["seq"], said["time_ns"]
                origin = said.get("producer"), said.get("number")
                yield Record(*place, data, said.get("decoded"), *origin)
            if program.wait() != 0:
                raise ProgramError(_said(errors))
        finally:
            program.terminate()
            program.stdout.close()
            if program.wait() == 0:
                for line in _said(errors).splitlines():
                    text = line.removeprefix("strata: ").removeprefix("warning: ")
                    warnings.warn(text, StreamWarning, stacklevel=2)


def append(directory: str | Path, name: str, records: Iterable[bytes]) -> None:
    """Appends records and returns when they survive a loss of power. Raises `ProgramError` if they
    cannot be appended, `TypeError` for one that is not bytes, and whatever `records` raises; those
    before the one at fault are in the stream."""
    command = [find(), "stream", "append", "--framed", "--", str(directory), name]
    with tempfile.TemporaryFile() as errors:
        program = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=errors
        )
        try:
            for record in records:
                if not _put(program.stdin, _framed(record)):
                    break
        finally:
            # Its input has to end, or it waits for more.
            with contextlib.suppress(BrokenPipeError):
                program.stdin.close()
            failed = program.wait() != 0
        if failed:
            raise ProgramError(_said(errors))


def _framed(record: bytes) -> bytes:
    if not isinstance(record, bytes | bytearray | memoryview):
        kind = type(record).__name__
        raise TypeError(f"a record must be bytes, not {kind}: text becomes bytes by text.encode()")
    data = bytes(record)
    return len(data).to_bytes(4, "little") + data


def _put(pipe: IO[bytes], data: bytes) -> bool:
    """Whether the program takes more; if not, it says why."""
    try:
        pipe.write(data)
    except BrokenPipeError:
        return False
    return True


def _said(errors: IO[bytes]) -> str:
    errors.seek(0)
    return errors.read().decode(errors="replace").strip()
