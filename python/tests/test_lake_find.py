"""The index by flow, and searches by it: what is found is what DuckDB finds in the files of the
logs, and, in real logs, what their own exports have."""

import base64
import hashlib
import ipaddress
import json
import multiprocessing
import os
import random
import shlex
import signal
import struct
import subprocess
import sys
import time
from collections import Counter
from itertools import pairwise

import duckdb
import forged
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.exceptions import CommitFailedException, CommitStateUnknownException
from pyiceberg.table import Transaction
from test_lake import record, run, strata  # noqa: F401

from strata import lake, lake_erasure, lake_find, lake_index, lake_merge, lake_sql, log
from strata.lake_reads import Chosen

HOUR_S = 3600
BEGAN_S = forged.BEGAN.timestamp()
HOST = "10.0.0.7"


@pytest.fixture
def site(tmp_path):
    """Catalog, warehouse: a database in a file."""
    return f"sqlite:///{tmp_path}/lake.db", f"file://{tmp_path}/lake"


def community_id(source, target, ports=(1, 2)):
    """As the specification says, of TCP."""
    addresses = (ipaddress.ip_address(one).packed for one in (source, target))
    ends = sorted(zip(addresses, ports, strict=True))
    (a, at), (b, to) = ends
    of = struct.pack(">H", 0) + a + b + struct.pack(">BBHH", 6, 0, at, to)
    return "1:" + base64.b64encode(hashlib.sha1(of).digest()).decode()


@pytest.fixture(autouse=True)
def with_ids(monkeypatch):
    """Flows of made logs have Community IDs, some of them NULL."""
    columns = [*forged.COLUMNS["flows"], (lake_index.ID, pa.string(), True)]
    monkeypatch.setitem(forged.COLUMNS, "flows", columns)
    rows = forged.rows

    def with_id(kind, *of):
        for at, row in enumerate(rows(kind, *of)):
            found = None if at % 10 == 0 else community_id(row[1], row[2])
            yield row if kind == "packets" else (*row, found)

    monkeypatch.setattr(forged, "rows", with_id)


def publish(made, site, sensor="edge", replace=False):
    return lake.publish(made, site[0], "site", sensor, warehouse=site[1], replace=replace)


def find(site, *ids, **chosen):
    return lake_find.find(site[0], "site", list(ids), warehouse=site[1], **chosen)


def found_in(found):
    """Rows of each file."""
    return Counter((one.sensor, one.file) for one in found.rows)


def in_logs(logs, *ids, where="true"):
    """The same, by DuckDB."""
    expected = Counter()
    for sensor, made in logs.items():
        for name in log.files(made, "flows"):
            sql = f"SELECT count(*) FROM '{name}' WHERE community_id IN {(*ids, '')} AND {where}"
            count = duckdb.sql(sql).fetchall()[0][0]
            if count:
                expected[sensor, f"file://{name}"] += count
    return expected


def ids_of(logs):
    found = set()
    for made in logs.values():
        for name in log.files(made, "flows"):
            found |= set(pq.read_table(name)[lake_index.ID].to_pylist())
    return sorted(found - {None})


def tidy(site, now_s=BEGAN_S + 3 * HOUR_S, **how):
    opened = lake.catalog(*site)
    return lake_merge.tidy(opened, "site", **{"snapshots_s": 10**9, "now_s": now_s, **how})


def state(site):
    return lake_merge.state(lake.catalog(*site), "site")


def is_right(site, logs, sample=12):
    ids = ids_of(logs)
    chance = random.Random(1)
    for one in chance.sample(ids, min(sample, len(ids))):
        assert found_in(find(site, one)) == in_logs(logs, one)
    none = community_id("192.0.2.1", "192.0.2.2")
    assert not find(site, none).rows


def test_keys_are_the_first_48_bits_of_the_digest():
    for at in range(200):
        one = community_id(f"10.0.{at}.1", "10.0.0.2")
        digest = base64.b64decode(one[2:])
        assert lake_index.key_of(one) == int.from_bytes(digest[:6], "big")
    for wrong in (
        "",
        "1:",
        "2:" + one[2:],
        one[:-1],
        one + "=",
        "1:" + "?" * 28,
        "1:\xe9" + one[3:],
    ):
        with pytest.raises(lake.LakeError, match="not a Community ID"):
            lake_index.key_of(wrong)


def test_a_flow_is_found_in_all_sensors_by_reading_few_files(tmp_path, site):
    logs = {f"edge{seed}": forged.log(tmp_path / f"{seed}", seed, hours=4) for seed in (1, 2, 3)}
    for sensor, made in logs.items():
        publish(made, site, sensor)
    is_right(site, logs)
    of = state(site)
    assert (of.covered, of.of_files, of.gone, of.files) == (24, 24, 0, 3)
    for one in ids_of(logs)[:5]:
        found = find(site, one)
        assert found.uncovered == 0 and found.files == 24
        assert found.flows.files == len(found_in(found)) == len(in_logs(logs, one)) < 24
    # Two at once, one sensor, and times.
    two = ids_of(logs)[5:7]
    assert found_in(find(site, *two)) == in_logs(logs, *two)
    only = {"edge2": logs["edge2"]}
    assert found_in(find(site, *two, sensor="edge2")) == in_logs(only, *two)
    start, end = BEGAN_S + HOUR_S / 2, BEGAN_S + HOUR_S
    where = f"epoch(last_time) >= {start} AND epoch(last_time) < {end}"
    for one in ids_of(logs)[:8]:
        chosen = find(site, one, from_us=int(start * 1e6), to_us=int(end * 1e6))
        assert found_in(chosen) == in_logs(logs, one, where=where)


def test_files_that_the_index_lacks_are_searched_themselves(tmp_path, site, monkeypatch):
    logs = {f"edge{seed}": forged.log(tmp_path / f"{seed}", seed) for seed in (1, 2)}
    publish(logs["edge1"], site, "edge1")
    with monkeypatch.context() as earlier:
        # As earlier versions published.
        earlier.setattr(lake_index, "cover", lambda *_: None)
        publish(logs["edge2"], site, "edge2")
    assert (state(site).covered, state(site).of_files) == (6, 12)
    is_right(site, logs)
    found = find(site, ids_of(logs)[0])
    assert found.uncovered == 6
    assert "6 files are not in the index" in lake_find.printed(found, False)
    # Nothing but upkeep is needed; without any index, too.
    assert tidy(site).covered == 6
    assert find(site, ids_of(logs)[0]).uncovered == 0
    is_right(site, logs)
    lake.catalog(*site).drop_table("site.flow_index")
    is_right(site, logs)
    assert tidy(site).covered == 12
    is_right(site, logs)


def test_entries_are_merged_by_day_and_month(tmp_path, site, monkeypatch):
    # From the last evening of a month on.
    began = forged.BEGAN.replace(hour=20)
    logs = {
        f"edge{seed}": forged.log(tmp_path / f"{seed}", seed, hours=8, began=began)
        for seed in (1, 2, 3)
    }
    for sensor, made in logs.items():
        publish(made, site, sensor)
    entries = sorted_entries(site)
    index = lake.catalog(*site).load_table("site.flow_index")
    assert {str(file.partition[0]) for file in lake_index.all_files(index)} == {
        "2026-01-31",
        "2026-02-01",
    }
    # In pieces by ranges of keys, and several times per piece.
    monkeypatch.setattr(lake_merge, "ENTRIES_A_FILE", 500)
    monkeypatch.setattr(lake_merge, "ENTRIES_AT_ONCE", 100)
    done = tidy(site, now_s=began.timestamp() + 9 * HOUR_S)
    # The month has ended; the day has not, and has few.
    pieces = {}
    for file in lake_index.all_files(index.refresh()):
        pieces.setdefault(str(file.partition[0]), []).append(file)
    assert set(pieces) == {"2026-01", "2026-02-01"}
    assert done.removed == 3 and done.written == len(pieces["2026-01"]) > 1
    assert len(pieces["2026-02-01"]) == 3
    ranges = sorted(lake_index.keys_of_file(file) for file in pieces["2026-01"])
    assert ranges[0][0] == 0 and ranges[-1][1] == lake_index.KEYS - 1
    assert all(a[1] + 1 == b[0] for a, b in pairwise(ranges))
    assert sorted_entries(site) == entries
    is_right(site, logs)
    assert find(site, ids_of(logs)[0]).index.files == 4
    # The next day: nothing else to do afterwards.
    later = began.timestamp() + 30 * HOUR_S
    assert tidy(site, now_s=later).removed == 3
    again = tidy(site, now_s=later)
    assert (again.written, again.removed) == (0, 0)
    assert sorted_entries(site) == entries
    is_right(site, logs)


def sorted_entries(site):
    """What the index says, read by pyarrow alone: each of the flows and row groups of files."""
    found = Counter()
    for file in lake_index.all_files(lake.catalog(*site).load_table("site.flow_index")):
        parquet = pq.ParquetFile(file.file_path.removeprefix("file://"))
        covers = lake_index.covers(parquet)
        rows = parquet.read().to_pylist()
        assert [row["key"] for row in rows] == sorted(row["key"] for row in rows)
        assert Counter(row["file"] for row in rows) == {
            at: one.entries for at, one in enumerate(covers) if one.entries
        }
        found += Counter((r["key"], covers[r["file"]].url, r["row_group"]) for r in rows)
    return found


def expected_entries(logs):
    found = Counter()
    for made in logs.values():
        for name in log.files(made, "flows"):
            parquet = pq.ParquetFile(name)
            for group in range(parquet.num_row_groups):
                ids = set(parquet.read_row_group(group)[lake_index.ID].to_pylist()) - {None}
                for one in ids:
                    key = int.from_bytes(base64.b64decode(one[2:])[:6], "big")
                    found[key, f"file://{name}", group] += 1
    return found


def test_the_index_has_each_flow_and_row_group_once(tmp_path, site):
    logs = {f"edge{seed}": forged.log(tmp_path / f"{seed}", seed) for seed in (1, 2)}
    for sensor, made in logs.items():
        for _ in range(2):
            publish(made, site, sensor)
    assert sorted_entries(site) == expected_entries(logs)
    tidy(site, now_s=BEGAN_S + 48 * HOUR_S)
    assert sorted_entries(site) == expected_entries(logs)


def _publish(made, site, sensor):
    lake.publish(made, site[0], "site", sensor, warehouse=site[1])


def test_publications_that_are_killed_leave_each_entry_once(tmp_path, site):
    logs = {f"edge{seed}": forged.log(tmp_path / f"{seed}", seed) for seed in range(4)}
    chance = random.Random(1)
    context = multiprocessing.get_context("fork")
    _publish(logs["edge0"], site, "edge0")
    for _ in range(6):
        working = [
            context.Process(target=_publish, args=(made, site, sensor))
            for sensor, made in logs.items()
        ]
        for one in working:
            one.start()
        time.sleep(chance.uniform(0, 0.6))
        killed = chance.sample(working, 2)
        for one in killed:
            os.kill(one.pid, signal.SIGKILL)
        for one in working:
            one.join()
            assert one.exitcode == 0 or one in killed
        is_right(site, {})
    for sensor, made in logs.items():
        _publish(made, site, sensor)
    assert state(site).covered == state(site).of_files == 24
    is_right(site, logs)
    assert sorted_entries(site) == expected_entries(logs)


def test_an_index_commit_that_fails_or_is_unknown_is_made_once(tmp_path, site, monkeypatch):
    made = forged.log(tmp_path / "log")
    commit = Transaction.commit_transaction
    problems = [CommitFailedException("others"), CommitStateUnknownException("no answer")]

    def slow(self):
        if self._table.name()[-1] != "flow_index" or not problems:
            return commit(self)
        problem = problems.pop(0)
        if isinstance(problem, CommitStateUnknownException):
            # It succeeds all the same.
            commit(self)
        raise problem

    monkeypatch.setattr(Transaction, "commit_transaction", slow)
    publish(made, site)
    assert not problems and state(site).files == 1
    assert sorted_entries(site) == expected_entries({"edge": made})


def test_what_leaves_the_table_leaves_the_index(tmp_path, site):
    made = forged.log(tmp_path / "log", hours=4)
    publish(made, site)
    # A quarter of the files: their entries stay, and count for nothing.
    forged.without(made, lambda part: part["hour"] == "2026-01-31T12")
    publish(made, site)
    is_right(site, {"edge": made})
    assert (state(site).gone, tidy(site).removed) == (2, 0)
    # More than half of them.
    forged.without(made, lambda part: part["hour"] == "2026-01-31T13")
    forged.without(made, lambda part: part["retention"] == "benign")
    publish(made, site)
    assert tidy(site).removed == 1 and state(site).gone == 0
    assert sorted_entries(site) == expected_entries({"edge": made})
    is_right(site, {"edge": made})
    # All of them; and old files of the index are deleted with its snapshots.
    forged.without(made, lambda part: True)
    publish(made, site)
    done = tidy(site, now_s=10**10, snapshots_s=0)
    assert (done.written, done.removed, done.state.files) == (0, 1, 0) and done.deleted > 2
    place = f"{site[1].removeprefix('file://')}/site/flow_index/data"
    assert not [name for _, _, names in os.walk(place) for name in names]


def test_index_files_that_are_lost_or_damaged_are_made_again(tmp_path, site):
    logs = {f"edge{seed}": forged.log(tmp_path / f"{seed}", seed) for seed in (1, 2, 3)}
    for sensor, made in logs.items():
        publish(made, site, sensor)
    index = lake.catalog(*site).load_table("site.flow_index")
    paths = [file.file_path.removeprefix("file://") for file in lake_index.all_files(index)]
    os.remove(paths[0])
    with open(paths[1], "r+b") as damaged:
        damaged.seek(-20, os.SEEK_END)
        damaged.write(b"x" * 20)
    assert find(site, ids_of(logs)[0]).uncovered == 12
    is_right(site, logs)
    assert tidy(site, snapshots_s=0, now_s=10**10).covered == 12
    assert state(site).covered == state(site).of_files == 18
    assert sorted_entries(site) == expected_entries(logs)
    is_right(site, logs)


def test_moved_logs_and_renamed_sensors_are_found(tmp_path, site):
    made = forged.log(tmp_path / "log")
    publish(made, site)
    publish(made, site, "renamed", replace=True)
    is_right(site, {"renamed": made})
    forged.moved(made, tmp_path / "store")
    publish(made, site, "renamed")
    is_right(site, {"renamed": made})
    assert state(site).covered == 6
    tidy(site, now_s=BEGAN_S + 48 * HOUR_S)
    assert state(site).gone == 0
    is_right(site, {"renamed": made})


def test_the_keys_of_an_erased_host_are_gone(tmp_path, site):
    logs = {f"edge{seed}": forged.log(tmp_path / f"{seed}", seed) for seed in (1, 2)}
    for sensor, made in logs.items():
        publish(made, site, sensor)
    keys = set()
    for made in logs.values():
        for name in log.files(made, "flows"):
            sql = f"SELECT DISTINCT community_id FROM '{name}' WHERE '{HOST}' IN (src, dst)"
            ids = (one for (one,) in duckdb.sql(sql).fetchall() if one)
            keys |= {lake_index.key_of(one) for one in ids}
    assert keys & {key for key, _, _ in sorted_entries(site)}
    _, flows = lake_erasure.erase(site[0], "site", HOST, warehouse=site[1])
    assert flows.is_complete and flows.keys_in_doubt == 0 and flows.index_snapshots_left == 1
    left = sorted_entries(site)
    assert left and not keys & {key for key, _, _ in left}
    # Not in any file of the index, either.
    place = f"{site[1].removeprefix('file://')}/site/flow_index"
    names = [os.path.join(at, name) for at, _, names in os.walk(place) for name in names]
    there = [pq.read_table(name)["key"].to_pylist() for name in names if name.endswith("parquet")]
    assert there and not keys & {key for one in there for key in one}
    # Others are found in the copies; and again after the next publications.
    for _ in range(2):
        other = next(
            one
            for one in ids_of(logs)
            if lake_index.key_of(one) not in keys and find(site, one).rows
        )
        counts = Counter(sensor for sensor, _ in found_in(find(site, other)).elements())
        assert counts == Counter(s for s, _ in in_logs(logs, other).elements())
        assert state(site).covered == state(site).of_files == 12
        for sensor, made in logs.items():
            publish(made, site, sensor)
    assert "erased" in lake_find.printed(find(site, other), False)


def test_sql_reads_the_chosen_files_only(tmp_path, site):
    logs = {f"edge{seed}": forged.log(tmp_path / f"{seed}", seed) for seed in (1, 2)}
    for sensor, made in logs.items():
        publish(made, site, sensor)

    def ask(sql, **chosen):
        columns, rows, reads = lake_sql.query(
            sql, site[0], "site", warehouse=site[1], chosen=Chosen(**chosen)
        )
        return columns, rows, reads.files, reads.bytes

    sql = "SELECT sensor, src, count(*) AS n FROM packets GROUP BY ALL ORDER BY ALL"
    columns, rows, files, size = ask(sql)
    assert columns == ["sensor", "src", "n"] and files == 12
    expected = Counter()
    for sensor, made in logs.items():
        names = log.files(made, "packets")
        for src, n in duckdb.sql(
            f"SELECT src, count(*) FROM read_parquet({names}) GROUP BY 1"
        ).fetchall():
            expected[sensor, src] += n
    assert Counter({(sensor, src): n for sensor, src, n in rows}) == expected
    # By partitions that the statement names, or options; the first file has the columns.
    where = "WHERE sensor = 'edge2' AND hour = '2026-01-31T13' AND retention = 'benign'"
    _, [(count,)], few, less = ask(f"SELECT count(src) FROM packets {where}")
    assert count == 100 and few <= 2 and less < size / 4
    assert ask("SELECT count(src) FROM packets", sensor="edge2")[1:3] == ([(600,)], 6)
    start, end = int((BEGAN_S + 600) * 1e6), int((BEGAN_S + HOUR_S) * 1e6)
    _, [(count,)], files, _ = ask("SELECT count(src) FROM packets", from_us=start, to_us=end)
    names = [name for made in logs.values() for name in log.files(made, "packets")]
    between = f"epoch_us(time) >= {start} AND epoch_us(time) < {end}"
    sql = f"SELECT count(*) FROM read_parquet({names}) WHERE {between}"
    assert duckdb.sql(sql).fetchall()[0][0] == count > 0 and files == 4
    assert ask("SELECT count(*) FROM packets", to_us=0)[1] == [(0,)]
    with pytest.raises(lake.LakeError, match="nothing_such"):
        ask("SELECT nothing_such FROM packets")


def test_the_command_line_finds_and_asks(tmp_path, site):
    made = forged.log(tmp_path / "log")
    publish(made, site)
    of_site = ["--catalog", site[0], "--warehouse", site[1], "--namespace", "site", "--json"]

    def run_lake(*words, code=0):
        words = [sys.executable, "-m", "strata", "lake", *words]
        done = subprocess.run(words, capture_output=True, text=True)
        assert done.returncode == code, done.stderr
        return json.loads(done.stdout) if done.stdout else done.stderr

    one = ids_of({"edge": made})[0]
    found = run_lake("find", *of_site, f"--community-id={one}")
    assert len(found["rows"]) == sum(in_logs({"edge": made}, one).values())
    assert found["index"]["files"] == 1 and found["uncovered"] == 0
    none = community_id("192.0.2.1", "192.0.2.2")
    assert run_lake("find", *of_site, f"--community-id={none}", code=1)["rows"] == []
    assert "not a Community ID" in run_lake("find", *of_site, "--community-id=x", code=1)
    asked = run_lake("query", *of_site, "--sensor=edge", "--", "SELECT count(*) AS n FROM flows")
    assert asked["rows"] == [{"n": 600}] and asked["bytes"] > 0
    assert run_lake("status", *of_site)["index"]["covered"] == 6
    assert run_lake("expire", *of_site, "--keep-snapshots=9")["index"]["state"]["gone"] == 0


def test_what_is_found_is_what_the_logs_own_exports_have(strata, tmp_path, site):  # noqa: F811
    logs = {f"edge{seed}": record(strata, tmp_path, seed) for seed in (1, 2)}
    for sensor, made in logs.items():
        publish(made, site, sensor)
    names = [name for made in logs.values() for name in log.files(made, "flows")]
    sql = (
        f"SELECT community_id FROM read_parquet({names}) WHERE protocol IN (6, 17) "
        "GROUP BY 1 ORDER BY count(*) DESC, 1 LIMIT 2"
    )
    for (one,) in duckdb.sql(sql).fetchall():
        found = find(site, one)
        assert found_in(found) == in_logs(logs, one) and found.rows
        for row in found.rows:
            of_row = row.row["packets"] + row.row["reverse_packets"]
            size = row.row["wire_bytes"] + row.row["reverse_wire_bytes"]
            words = shlex.split(row.export)
            assert words[0] == "strata"
            # Of all rows of the flow in these times, as the log has them.
            capture = tmp_path / "one.pcap"
            words[words.index("-")] = str(capture)
            run(strata, *words[1:])
            read = ["tshark", "-r", capture, "-T", "fields", "-e", "frame.len"]
            lengths = subprocess.run(read, check=True, capture_output=True, text=True).stdout
            lengths = [int(line) for line in lengths.split()]
            made = logs[row.sensor]
            first, last = (
                f"'{row.row[name]}'::TIMESTAMPTZ" for name in ("first_time", "last_time")
            )
            packets = log.files(made, "packets")
            of_log = f"read_parquet({log.files(made, 'flows')})"
            flows = f"(SELECT flow_id FROM {of_log} WHERE community_id = '{one}')"
            count, total, kept = duckdb.sql(
                f"SELECT count(*), sum(wire_bytes), count(*) FILTER (payload_bytes > 0) "
                f"FROM read_parquet({packets}) "
                f"WHERE flow_id IN {flows} AND time BETWEEN {first} AND {last}"
            ).fetchall()[0]
            assert (len(lengths), sum(lengths)) == (count, total)
            assert count >= of_row and total >= size and kept >= row.payload_packets
            if count == of_row:
                assert (total, kept) == (size, row.payload_packets)
            if row.payload_packets:
                assert os.path.exists(row.payload_file.removeprefix("file://"))
