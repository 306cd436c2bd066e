"""Upkeep of Iceberg tables, on logs made by hand; what is left is counted by DuckDB in the files
and by pyiceberg in the tables."""

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from contextlib import suppress

import duckdb
import forged
import pyarrow.parquet as pq
import pytest
from pyiceberg.exceptions import CommitFailedException, CommitStateUnknownException
from pyiceberg.table.update.snapshot import ExpireSnapshots

from strata import lake, lake_erasure, lake_upkeep, lake_watch, log

HOUR_S = 3600
BEGAN_S = forged.BEGAN.timestamp()
# Some of its packets are in all files, of either direction.
HOST = "10.0.0.7"
# The place of `src` in a row that begins with the sensor.
SRC = {"packets": 3, "flows": 2}


@pytest.fixture
def site(tmp_path):
    """Catalog, warehouse: a database in a file."""
    return f"sqlite:///{tmp_path}/lake.db", f"file://{tmp_path}/lake"


def publish(made, site, sensor="edge", replace=False):
    return lake.publish(made, site[0], "site", sensor, warehouse=site[1], replace=replace)


def load(site, kind):
    return lake.catalog(*site).load_table(f"site.{kind}")


def of_table(site, kind):
    columns = [name for name, *_ in forged.COLUMNS[kind]]
    found = load(site, kind).scan().to_arrow()
    rows = zip(found["sensor"].to_pylist(), *(found[c].to_pylist() for c in columns), strict=True)
    return Counter(rows)


def of_log(made, kind, sensor="edge", where="true"):
    columns = [name for name, *_ in forged.COLUMNS[kind]]
    files = log.files(made, kind)
    sql = f"SELECT {', '.join(columns)} FROM read_parquet({files}) WHERE {where}"
    found = duckdb.sql(sql).to_arrow_table()
    rows = zip(*(found[name].to_pylist() for name in columns), strict=True)
    return Counter((sensor, *row) for row in rows)


def test_columns_are_known_by_the_field_ids_of_the_files(tmp_path, site):
    old, new = forged.log(tmp_path / "old", 1, with_ids=False), forged.log(tmp_path / "new", 2)
    # Of both forms, in either order.
    for sensor, made in (("new", new), ("old", old)):
        publish(made, site, sensor)
    for kind in log.TABLES:
        assert of_table(site, kind) == of_log(new, kind, "new") + of_log(old, kind, "old")
        table = load(site, kind)
        ids = {column.name: column.field_id for column in table.schema().columns}
        for column in pq.read_schema(log.files(new, kind)[0]):
            assert ids[column.name] == int(column.metadata[b"PARQUET:field_id"])
        assert [ids[name] for name in lake.PARTITIONS] == [6, 7, 8]
        # A column that is renamed has the same values, of files from before and after.
        with table.update_schema() as update:
            update.rename_column("src", "sender")
    third = forged.log(tmp_path / "third", 3)
    publish(third, site, "third")
    for kind in log.TABLES:
        assert "src" not in load(site, kind).schema().column_names
        found = load(site, kind).scan(selected_fields=("sensor", "sender")).to_arrow()
        rows = Counter(zip(found["sensor"].to_pylist(), found["sender"].to_pylist(), strict=True))
        expected = Counter()
        for sensor, made in (("new", new), ("old", old), ("third", third)):
            for row, count in of_log(made, kind, sensor).items():
                expected[sensor, row[SRC[kind]]] += count
        assert rows == expected


def test_files_whose_field_ids_are_those_of_other_columns_are_refused(tmp_path, site, monkeypatch):
    publish(forged.log(tmp_path / "one", 1, with_ids=False), site)
    other = [("time_ns", *forged.COLUMNS["packets"][1][1:]), *forged.COLUMNS["packets"][:1]]
    reordered = other + forged.COLUMNS["packets"][2:]
    made = forged.log(tmp_path / "two", 2)
    name = log.files(made, "packets")[0]
    whole = pq.read_table(name)
    columns = forged.schema("packets", columns=reordered)
    pq.write_table(whole.select(columns.names).cast(columns), name)
    with pytest.raises(lake.LakeError, match=r"other field ids than the table \(time_ns, time\)"):
        publish(made, site, "two")


def test_columns_of_later_versions_get_the_ids_of_the_files(tmp_path, site):
    publish(forged.log(tmp_path / "one", 1), site)
    made = forged.log(tmp_path / "two", 2)
    for name in log.files(made, "flows"):
        whole = pq.read_table(name)
        for field_id, column in ((10, "later"), (9, "later_still")):
            about = {b"PARQUET:field_id": str(field_id).encode()}
            field = forged.pa.field(column, forged.pa.int64(), True, about)
            values = forged.pa.array([field_id] * whole.num_rows)
            whole = whole.append_column(field, values)
        pq.write_table(whole, name)
    archive = json.loads((made / "archive.json").read_text())
    for part in archive["parts"]:
        for file in part["files"]:
            file["bytes"] = (made / file["name"]).stat().st_size
    (made / "archive.json").write_text(json.dumps(archive))
    publish(made, site, "two")
    names = ("sensor", "later", "later_still")
    found = load(site, "flows").scan(selected_fields=names).to_arrow()
    assert Counter(zip(*(found[name].to_pylist() for name in names), strict=True)) == {
        ("edge", None, None): 600,
        ("two", 10, 9): 600,
    }


def test_status_says_what_the_tables_have(tmp_path, site):
    logs = {f"edge{seed}": forged.log(tmp_path / f"{seed}", seed, hours=seed) for seed in (1, 2)}
    for sensor, made in logs.items():
        publish(made, site, sensor)
    found = lake_upkeep.status(site[0], "site", warehouse=site[1], now_s=BEGAN_S + 4 * HOUR_S)
    assert [one.table for one in found] == ["site.packets", "site.flows"]
    for one, kind in zip(found, log.TABLES, strict=True):
        assert (one.snapshots, one.manifests) == (2, 2)
        for sensor in one.sensors:
            files = log.files(logs[sensor.sensor], kind)
            time = lake_upkeep.NEWEST[kind]
            rows, newest = duckdb.sql(
                f"SELECT count(*), max(epoch({time})) FROM read_parquet({files})"
            ).fetchall()[0]
            assert (sensor.files, sensor.rows) == (len(files), rows)
            assert sensor.bytes == sum(os.path.getsize(file) for file in files)
            assert sensor.behind_s == pytest.approx(BEGAN_S + 4 * HOUR_S - newest, abs=0.002)
            assert dict(sensor.retention) == {"benign": rows // 2, "anomalous": rows // 2}
            assert sensor.first_hour == "2026-01-31T12"
            assert sensor.last_hour == f"2026-01-31T{11 + len(files) // 2}"
    # By a clock that is behind that of the sensor.
    early = lake_upkeep.status(site[0], "site", warehouse=site[1], now_s=BEGAN_S - 60)
    assert "in the future: compare the clocks" in lake_upkeep.printed_status(early, False)
    with pytest.raises(lake.LakeError, match="no tables of Strata"):
        lake_upkeep.status(site[0], "elsewhere", warehouse=site[1])


def expire(site, now_s, keep_s=None, snapshots_s=10**9):
    return lake_upkeep.expire(
        site[0],
        "site",
        warehouse=site[1],
        keep_s=keep_s,
        snapshots_s=snapshots_s,
        now_s=now_s,
    )


def test_files_leave_the_tables_by_age_and_class_and_are_not_published_again(
    tmp_path, site, monkeypatch
):
    made = forged.log(tmp_path / "log", hours=4)
    publish(made, site)
    # The first two hours have ended an hour ago or more, by a second.
    now_s = BEGAN_S + 3 * HOUR_S + 1
    monkeypatch.setattr(lake.time, "time", lambda: now_s)
    for one in expire(site, now_s, {"": HOUR_S, "anomalous": 2 * HOUR_S}):
        # Of the benign, the first two hours; of the anomalous, the first.
        assert (one.files, one.rows) == (3, 300)
    kept = (
        "NOT (hour <= '2026-01-31T13' AND retention = 'benign') "
        "AND NOT (hour <= '2026-01-31T12' AND retention = 'anomalous')"
    )
    for kind in log.TABLES:
        assert of_table(site, kind) == of_log(made, kind, where=kept)
    # The log has them still, and they are there to be read.
    assert all(one.added == one.removed == 0 for one in publish(made, site))
    assert len(log.files(made, "packets")) == 8
    assert all(os.path.exists(file) for file in log.files(made, "packets"))
    # Half an hour later, the same limits hold, without being given again.
    now_s += HOUR_S
    assert [one.files for one in expire(site, now_s)] == [2, 2]
    # Other limits: all of it comes back with the next publication.
    assert [one.files for one in expire(site, now_s, {"": 10**9})] == [0, 0]
    publish(made, site)
    for kind in log.TABLES:
        assert of_table(site, kind) == of_log(made, kind)


def on_disk(site):
    place = site[1].removeprefix("file://")
    return {os.path.join(at, name) for at, _, names in os.walk(place) for name in names}


def test_expired_snapshots_leave_no_files_behind(tmp_path, site):
    made = forged.log(tmp_path / "log", hours=6)
    for hour in range(12, 17):
        publish(made, site)
        forged.without(made, lambda part, hour=hour: part["hour"] == f"2026-01-31T{hour}")
    publish(made, site)
    before = on_disk(site)
    left = expire(site, now_s=10**10, snapshots_s=0)
    assert [(one.snapshots, one.snapshots_left) for one in left] == [(5, 1), (5, 1)]
    gone = before - on_disk(site)
    assert len(gone) == sum(one.deleted for one in left) > 10
    for kind in log.TABLES:
        assert of_table(site, kind) == of_log(made, kind)
        table = load(site, kind)
        needed = {table.current_snapshot().manifest_list}
        needed |= {m.manifest_path for m in table.current_snapshot().manifests(table.io)}
        there = {f"file://{path}" for path in on_disk(site) if path.endswith(".avro")}
        assert {path for path in there if f"/{kind}/" in path} == needed
    assert [one.snapshots for one in expire(site, now_s=10**10, snapshots_s=0)] == [0, 0]


def erase(site, host=HOST):
    return lake_erasure.erase(site[0], "site", host, warehouse=site[1])


NOT_HOST = f"src <> '{HOST}' AND dst <> '{HOST}'"


def without_host(made, kind, sensor="edge"):
    """What the log has of all others, whose answers do not name the host."""
    found = Counter()
    for row, count in of_log(made, kind, sensor, NOT_HOST).items():
        values = list(row)
        if kind == "flows" and values[4] is not None and f'"{HOST}"' in values[4]:
            values[4] = None
        found[tuple(values)] += count
    return found


@pytest.mark.parametrize("with_ids", [True, False])
def test_a_host_is_erased_and_stays_so(tmp_path, site, with_ids):
    made = forged.log(tmp_path / "log", with_ids=with_ids)
    other = forged.log(tmp_path / "other", 2)
    publish(made, site)
    publish(other, site, "other")
    done = erase(site)
    for one, kind in zip(done, log.TABLES, strict=True):
        assert one.is_complete and one.snapshots_left == 1 and one.rows_left == 0
        both = without_host(made, kind) + without_host(other, kind, "other")
        assert of_table(site, kind) == both
        assert (one.rows_before, one.rows_after) == (1200, sum(both.values()))
        assert sum(file.rows_erased for file in one.files) == 1200 - sum(both.values()) > 0
        assert len(one.in_logs) == len(one.files) == 12
        assert (one.flows_in_doubt > 0) == (kind == "flows")
        for task in load(site, kind).scan().plan_files():
            of_file = pq.ParquetFile(task.file.file_path.removeprefix("file://")).schema_arrow
            assert b"strata.counts" not in of_file.metadata
            assert of_file.metadata[b"strata.part"] == b"1"
            is_of_other = task.file.partition[0] == "other"
            assert (of_file.field("src").metadata is not None) == (with_ids or is_of_other)
        assert sum(file.answers_erased for file in one.files) > 0 or kind == "packets"
    # Again, and by the next publications, also once the log is moved or its sensor renamed.
    again = erase(site)
    assert all(not one.files for one in again)
    # The logs still have the host, as an engine finds in their files.
    for one, first, kind in zip(again, done, log.TABLES, strict=True):
        files = [f"file://{file}" for where in (made, other) for file in log.files(where, kind)]
        assert one.in_logs == first.in_logs == sorted(files)
    assert all(not one.in_logs for one in erase(site, "192.0.2.1"))
    assert all(one.added == one.removed == 0 for one in publish(made, site))
    forged.moved(made, tmp_path / "store")
    publish(made, site)
    publish(made, site, "renamed", replace=True)
    for kind in log.TABLES:
        both = without_host(made, kind, "renamed") + without_host(other, kind, "other")
        assert of_table(site, kind) == both
    # What the log deletes leaves the tables.
    forged.without(made, lambda part: part["retention"] == "benign")
    publish(made, site, "renamed")
    for kind in log.TABLES:
        both = without_host(made, kind, "renamed") + without_host(other, kind, "other")
        assert of_table(site, kind) == both


def test_no_bound_in_the_metadata_is_the_host(tmp_path, site):
    made = forged.log(tmp_path / "log")
    publish(made, site)
    # The largest as text.
    host = b"10.0.0.9"

    def bounds():
        found = set()
        for path in on_disk(site):
            if path.endswith(".parquet"):
                parquet = pq.ParquetFile(path).metadata
                for group in range(parquet.num_row_groups):
                    for column in range(parquet.num_columns):
                        of = parquet.row_group(group).column(column).statistics
                        found |= {str(of.max).encode()} if of and of.has_min_max else set()
        for kind in log.TABLES:
            table = load(site, kind)
            for snapshot in table.snapshots():
                for manifest in snapshot.manifests(table.io):
                    for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=False):
                        found |= set(entry.data_file.upper_bounds.values())
        return found

    assert host in bounds()
    assert all(one.is_complete for one in erase(site, host.decode()))
    assert host not in bounds()


def test_columns_that_were_renamed_are_found(tmp_path, site):
    made = forged.log(tmp_path / "log")
    publish(made, site)
    renamed = {"src": "sender", "dns_answers": "answers", "last_time": "ended", "time": "arrived"}
    for kind in log.TABLES:
        with load(site, kind).update_schema() as update:
            for name, *_ in forged.COLUMNS[kind]:
                if name in renamed:
                    update.rename_column(name, renamed[name])
    for one in lake_upkeep.status(site[0], "site", warehouse=site[1], now_s=BEGAN_S):
        assert one.sensors[0].behind_s < 0
    for one, kind in zip(erase(site), log.TABLES, strict=True):
        assert one.is_complete and one.rows_after == sum(without_host(made, kind).values())
        found = load(site, kind).scan().to_arrow()
        assert HOST not in found["sender"].to_pylist() + found["dst"].to_pylist()
        if kind == "flows":
            assert not any(f'"{HOST}"' in (text or "") for text in found["answers"].to_pylist())


@pytest.mark.parametrize(
    ("host", "named", "others"),
    [
        (
            HOST,
            ["7.0.0.10.in-addr.arpa", "10.0.0.7:8080", "http://10.0.0.7/x", "at 10.0.0.7."],
            ["10.0.0.70", "110.0.0.7", "10.0.0.7.8", "17.0.0.10.in-addr.arpa", None],
        ),
        (
            "2001:db8::1",
            ["[2001:DB8::1]:80", "1.0.0.0" + 20 * ".0" + ".8.b.d.0.1.0.0.2.ip6.arpa"],
            ["2001:db8::11", "2001:db8::1:2", "f2001:db8::1"],
        ),
    ],
)
def test_texts_that_name_the_host_are_counted(tmp_path, site, monkeypatch, host, named, others):
    columns = [*forged.COLUMNS["flows"], ("http_host", forged.pa.string(), True)]
    monkeypatch.setitem(forged.COLUMNS, "flows", columns)
    texts = named + others
    rows = forged.rows
    monkeypatch.setattr(forged, "address", lambda _: "192.0.2.1")

    def with_text(kind, *of):
        for at, row in enumerate(rows(kind, *of)):
            yield row if kind == "packets" else (*row, texts[at % len(texts)])

    monkeypatch.setattr(forged, "rows", with_text)
    publish(forged.log(tmp_path / "log", hours=1, count=2 * len(texts)), site)
    packets, flows = erase(site, host)
    assert packets.is_complete and not flows.is_complete
    assert (packets.texts_left, flows.texts_left) == (0, 4 * len(named))
    assert f"{4 * len(named)} rows of other hosts" in lake_erasure.printed(host, [flows], False)


def test_a_second_host_leaves_no_file_of_the_first_erasure(tmp_path, site):
    made = forged.log(tmp_path / "log")
    publish(made, site)
    erase(site)
    first = {path for path in on_disk(site) if "/erased/" in path}
    erase(site, "10.0.0.9")
    second = {path for path in on_disk(site) if "/erased/" in path}
    assert len(first) == len(second) == 12 and not first & second
    for host in (HOST, "10.0.0.9"):
        assert [len(one.in_logs) for one in erase(site, host)] == [6, 6]
    gone = "'10.0.0.7', '10.0.0.9'"
    for kind in log.TABLES:
        left = sum(
            of_log(made, kind, where=f"src NOT IN ({gone}) AND dst NOT IN ({gone})").values()
        )
        assert sum(of_table(site, kind).values()) == left


def test_files_with_nothing_but_the_host_are_not_published_again(tmp_path, site, monkeypatch):
    monkeypatch.setattr(forged, "address", lambda _: HOST)
    made = forged.log(tmp_path / "log")
    publish(made, site)
    for one in erase(site):
        assert one.is_complete and one.rows_after == 0 and len(one.files) == 6
    assert all(one.added == one.removed == 0 for one in publish(made, site))
    assert not of_table(site, "packets")


def test_an_erasure_that_others_are_faster_than_leaves_nothing_behind(tmp_path, site, monkeypatch):
    made, other = forged.log(tmp_path / "log"), forged.log(tmp_path / "other", 2)
    publish(made, site)
    commit = lake.commit
    late = [publish, None, None]

    def slow(*arguments):
        if (first := late.pop(0) if late else None) is not None:
            monkeypatch.setattr(lake, "commit", commit)
            first(other, site, "other")
            monkeypatch.setattr(lake, "commit", slow)
        return commit(*arguments)

    monkeypatch.setattr(lake, "commit", slow)
    done = erase(site)
    assert all(one.is_complete for one in done)
    for one, kind in zip(done, log.TABLES, strict=True):
        assert len(one.files) == 12
        both = without_host(made, kind) + without_host(other, kind, "other")
        assert of_table(site, kind) == both
    listed = {
        task.file.file_path.removeprefix("file://")
        for kind in log.TABLES
        for task in load(site, kind).scan().plan_files()
    }
    assert {path for path in on_disk(site) if "/erased/" in path} == listed


def test_an_erasure_whose_commit_is_unknown_is_not_repeated(tmp_path, site, monkeypatch):
    made = forged.log(tmp_path / "log")
    publish(made, site)
    commit = lake.commit

    def unknown(*arguments):
        commit(*arguments)
        raise CommitStateUnknownException("no answer")

    monkeypatch.setattr(lake, "commit", unknown)
    done = erase(site)
    for one, kind in zip(done, log.TABLES, strict=True):
        assert one.is_complete and len(one.files) == len(one.in_logs) == 6
        assert of_table(site, kind) == without_host(made, kind)


def test_snapshots_are_removed_although_others_commit(tmp_path, site, monkeypatch):
    made = forged.log(tmp_path / "log")
    publish(made, site)
    commit = ExpireSnapshots.commit
    attempts = [CommitFailedException("others"), CommitStateUnknownException("no answer")]

    def slow(self):
        if not attempts:
            return commit(self)
        problem = attempts.pop(0)
        if isinstance(problem, CommitStateUnknownException):
            # It succeeds all the same.
            commit(self)
        raise problem

    monkeypatch.setattr(ExpireSnapshots, "commit", slow)
    before = on_disk(site)
    done = erase(site)
    assert not attempts and all(one.is_complete for one in done)
    assert [one.snapshots_expired for one in done] == [2, 2]
    # The metadata of the snapshots that went with the attempt without an answer, too.
    lists = {path for path in before if "/snap-" in path}
    assert lists and not lists & set(on_disk(site))


def test_a_tag_that_keeps_the_host_is_reported(tmp_path, site):
    publish(forged.log(tmp_path / "log"), site)
    table = load(site, "packets")
    table.manage_snapshots().create_tag(table.current_snapshot().snapshot_id, "audit").commit()
    packets, flows = erase(site)
    assert packets.snapshots_left == 2 and not packets.is_complete and flows.is_complete
    assert "tags or branches keep snapshots" in lake_erasure.printed(HOST, [packets], False)
    assert not json.loads(lake_erasure.printed(HOST, [packets, flows], True))["complete"]


def test_files_of_an_unknown_log_are_not_erased(tmp_path, site):
    made = forged.log(tmp_path / "log")
    publish(made, site)
    with load(site, "packets").transaction() as transaction:
        transaction.remove_properties(lake.LOG_OF + "edge")
    with pytest.raises(lake.LakeError, match="publish the log "):
        erase(site)
    assert of_table(site, "packets") == of_log(made, "packets")
    publish(made, site)
    assert all(one.is_complete for one in erase(site))


def test_what_is_not_an_address_is_refused(site):
    for text in ("", "host", "10.0.0", "10.0.0.0/8", "fe80::1%eth0'"):
        with pytest.raises(lake.LakeError, match="IPv4 or IPv6 address"):
            lake_erasure.address(text)
    assert lake_erasure.address("2001:DB8:0::1") == "2001:db8::1"


def test_a_watch_publishes_what_is_new_and_survives_errors(tmp_path, site, capsys):
    made = tmp_path / "log"
    watch = lake_watch.Watch(made, lambda: publish(made, site), False)
    watch.turn(0)
    watch.turn(1)
    said = capsys.readouterr()
    assert said.err.count("no log here") == 1 and not said.out
    forged.log(made, hours=2)
    watch.turn(2)
    said = capsys.readouterr()
    assert "published again" in said.err and "4 added" in said.out
    # Nothing is new: the catalog is not asked.
    calls = []
    quiet = lake_watch.Watch(made, lambda: calls.append(1) or publish(made, site), False)
    for now_s in (0, 1, 2, lake_watch.COMPARED_EVERY_S + 1):
        quiet.turn(now_s)
    assert len(calls) == 2
    forged.without(made, lambda part: part["retention"] == "benign")
    quiet.turn(lake_watch.COMPARED_EVERY_S + 2)
    assert len(calls) == 3 and "2 removed" in capsys.readouterr().out
    for kind in log.TABLES:
        assert of_table(site, kind) == of_log(made, kind)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_watch_ends_well_when_it_is_stopped(tmp_path, site, number):
    made = forged.log(tmp_path / "log")
    words = [sys.executable, "-m", "strata", "publish", made, "--catalog", site[0]]
    words += ["--warehouse", site[1], "--namespace", "site", "--sensor", "edge", "--watch", "600"]
    running = subprocess.Popen(words, stdout=subprocess.PIPE, text=True, start_new_session=True)
    try:
        # It has published, and waits.
        assert running.stdout.readline().startswith("site.packets: 6 files")
        assert running.stdout.readline().startswith("site.flows: 6 files")
        running.send_signal(number)
        assert running.wait(timeout=60) == 0
    finally:
        with suppress(ProcessLookupError):
            os.killpg(running.pid, signal.SIGKILL)
    for kind in log.TABLES:
        assert of_table(site, kind) == of_log(made, kind)


def test_the_command_line_of_the_lake(tmp_path, site):
    made = forged.log(tmp_path / "log")
    publish(made, site)
    of_site = ["--catalog", site[0], "--warehouse", site[1], "--namespace", "site", "--json"]

    def run(*words, code=0):
        words = [sys.executable, "-m", "strata", "lake", *words, *of_site]
        done = subprocess.run(words, capture_output=True, text=True)
        assert done.returncode == code, done.stderr
        return json.loads(done.stdout) if not code else done.stderr

    found = run("status")["tables"][0]
    assert found["sensors"][0]["files"] == 6 and found["keep_s"] == {}
    assert run("erase", "--host", HOST)["complete"]
    assert "IPv4 or IPv6 address" in run("erase", "--host", "x", code=1)
    expired = run(
        "expire", "--keep", "1", "--keep-class", "anomalous:9999999999", "--keep-snapshots", "9"
    )
    assert [one["files"] for one in expired["tables"]] == [3, 3]
    assert run("status")["tables"][0]["keep_s"] == {"": 1, "anomalous": 9999999999}


def test_changes_that_never_succeed_end(tmp_path, site, monkeypatch):
    publish(forged.log(tmp_path / "log"), site)

    def fails(*_):
        raise CommitFailedException("others")

    monkeypatch.setattr(lake, "commit", fails)
    monkeypatch.setattr(lake_upkeep.time, "sleep", lambda _: None)
    with pytest.raises(lake.LakeError, match="20 attempts to commit failed"):
        erase(site)
