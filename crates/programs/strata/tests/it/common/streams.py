"""What `the_python_client_reads_and_appends` runs: arguments are a directory of streams with an empty
stream `events`, and the package is on the path."""

import itertools
import sys
import warnings

from strata import program
from strata.stream import StreamWarning, append, tail

# There is no warning about what is read in full.
warnings.simplefilter("error")

streams = sys.argv[1]

records = [b"one", b"", bytes(range(256)), "zwölf".encode(), b"x" * 100_000]
append(streams, "events", records)
read = list(tail(streams, "events", cursor="0.0"))
assert [record.data for record in read] == records
assert [record.seq for record in read] == [0, 1, 2, 3, 4]
assert list(tail(streams, "events", cursor=read[1].cursor, records=2)) == read[2:4]
assert list(tail(streams, "events", records=1)) == read[-1:]
with warnings.catch_warnings(record=True) as said:
    warnings.simplefilter("always")
    assert list(tail(streams, "events", since="2200-01-01T00:00:00Z")) == []
assert "this time is in the future" in str(said[0].message), said

following = tail(streams, "events", cursor=read[-1].cursor, follow=True)
append(streams, "events", [b"%d" % number for number in range(1000)])
assert [record.data for record in itertools.islice(following, 1000)][-1] == b"999"
following.close()
assert len(list(tail(streams, "events", cursor="@me"))) == 1005
append(streams, "events", [b"new"])
assert [record.data for record in tail(streams, "events", cursor="@me")] == [b"new"]


def message(work):
    try:
        work()
    except program.ProgramError as error:
        return str(error)
    raise AssertionError("nothing was refused")


assert "no stream nobody" in message(lambda: list(tail(streams, "nobody")))
assert "a stream's name has" in message(lambda: append(streams, "../x", [b""]))
assert "records may be at most" in message(lambda: append(streams, "events", [b"x" * (2 << 20)]))


# What the caller does wrong is the caller's exception, and the program ends.
def interrupted():
    yield b"before"
    raise KeyError("theirs")


def raised(records):
    try:
        append(streams, "events", records)
    except Exception as error:
        return error
    raise AssertionError("nothing was raised")


before = len(list(tail(streams, "events", cursor="0.0")))
assert isinstance(raised(interrupted()), KeyError)
for wrong in ([b"before", "text"], [b"before", 7], [b"before", None]):
    error = raised(wrong)
    assert isinstance(error, TypeError) and "a record must be bytes, not" in str(error), error
assert [record.data for record in tail(streams, "events", records=5)] == [b"new"] + 4 * [b"before"]
append(streams, "events", [bytearray(b"as"), memoryview(b"bytes")])
assert len(list(tail(streams, "events", cursor="0.0"))) == before + 6

# A damaged record in the middle is missing, and said to be.
with open(streams + "/pages", "r+b") as pages:
    at = pages.read().index(b"x" * 1000)
    pages.seek(at)
    pages.write(b"y" * 10)
with warnings.catch_warnings(record=True) as said:
    warnings.simplefilter("always")
    read = list(tail(streams, "events", cursor="0.0"))
assert len(read) == before + 5, len(read)
assert [str(warning.message) for warning in said] == [
    "1 record missing: lost or damaged (see `strata stream check`)"
], said
assert said[0].category is StreamWarning and said[0].filename == "<string>", said[0]
