"""What `the_python_client_reads_and_appends` runs: arguments are a directory of streams with an empty
stream `events`, and the package is on the path."""

import itertools
import sys

from strata import program
from strata.stream import append, tail

streams = sys.argv[1]

records = [b"one", b"", bytes(range(256)), "zwölf".encode(), b"x" * 100_000]
append(streams, "events", records)
read = list(tail(streams, "events", cursor="0.0"))
assert [record.data for record in read] == records
assert [record.seq for record in read] == [0, 1, 2, 3, 4]
assert list(tail(streams, "events", cursor=read[1].cursor, records=2)) == read[2:4]
assert list(tail(streams, "events", records=1)) == read[-1:]
assert list(tail(streams, "events", since="2200-01-01T00:00:00Z")) == []

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
assert "records have at most" in message(lambda: append(streams, "events", [b"x" * (2 << 20)]))
