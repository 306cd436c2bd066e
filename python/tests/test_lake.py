"""Logs as Iceberg tables, read by pyiceberg: what a table has is what `strata top` counts."""

import json
import multiprocessing
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

import pytest
from pyiceberg.catalog import load_catalog

from strata import lake, log, program


@pytest.fixture(scope="module")
def strata():
    """The program, also as `make test` builds it."""
    built = Path(__file__).resolve().parents[2] / "target/debug/strata"
    if built.exists():
        return os.environ.get("STRATA_PROGRAM", str(built))
    try:
        return program.find()
    except program.ProgramError:
        assert "CI" not in os.environ, "CI has no program"
        pytest.skip("the program is not built")


@pytest.fixture
def site(tmp_path):
    """Catalog, warehouse: a database in a file."""
    return f"sqlite:///{tmp_path}/lake.db", f"file://{tmp_path}/lake"


def record(strata, directory: Path, seed: int) -> Path:
    """A compacted log of three hours, recorded in two pieces."""
    made = directory / f"log {seed}"
    for part in (0, 1):
        capture = directory / f"{seed}-{part}.pcap"
        generate = ["generate", "--profile", "cic-w3", "-c", "6000", "--pps", "1", "--flows", "200"]
        run(strata, *generate, "--seed", str(2 * seed + part), "-o", capture)
        run(strata, "record", "-r", capture, "-o", made, "--quiet")
    run(strata, "compact", made, "--quiet")
    return made


def run(strata, *arguments):
    subprocess.run([strata, *map(str, arguments)], check=True, capture_output=True)


def rows(site, table, *columns):
    catalog = lake.catalog(*site)
    found = catalog.load_table(f"site.{table}").scan(selected_fields=columns).to_arrow()
    return Counter(zip(*(found[name].to_pylist() for name in columns), strict=True))


def expected(logs: dict[str, Path], table: str, *columns: str) -> Counter:
    """The same of the logs' own files, by DuckDB."""
    found = Counter()
    for sensor, made in logs.items():
        names = ", ".join(columns)
        for *values, count in (
            log.connect(made).sql(f"SELECT {names}, count(*) FROM {table} GROUP BY ALL").fetchall()
        ):
            found[(sensor, *values)] += count
    return found


def is_whole(site, logs):
    packets = ("src", "dst_port", "class", "wire_bytes")
    assert rows(site, "packets", "sensor", *packets) == expected(logs, "packets", *packets)
    flows = ("community_id", "packets", "class")
    assert rows(site, "flows", "sensor", *flows) == expected(logs, "flows", *flows)


def test_tables_have_what_the_logs_have(strata, tmp_path, site):
    logs = {f"edge{seed}": record(strata, tmp_path, seed) for seed in (1, 2)}
    for sensor, made in logs.items():
        for added in (True, False):
            published = lake.publish(made, site[0], "site", sensor, warehouse=site[1])
            for one in published:
                kind = one.table.removeprefix("site.")
                files = len(log.files(made, kind))
                assert (one.files, one.added) == (files, files if added else 0)
                assert one.removed == 0
    is_whole(site, logs)
    # Partitions are those of the log: a part of one is read without the others.
    table = lake.catalog(*site).load_table("site.packets")
    only = "sensor = 'edge1' AND retention = 'anomalous'"
    planned = [task.file.file_path for task in table.scan(row_filter=only).plan_files()]
    assert planned and all("/log 1/" in path and "=anomalous" in path for path in planned)
    hours = {hour for (hour,) in rows(site, "packets", "hour")}
    assert len(hours) > 1 and all(len(hour) == len("2023-11-14T22") for hour in hours)
    # What is deleted in a log is no longer in the tables.
    run(strata, "prune", logs["edge1"], "--max-size", "200k", "--yes")
    removed = lake.publish(logs["edge1"], site[0], "site", "edge1", warehouse=site[1])
    assert all(one.removed > 0 for one in removed)
    is_whole(site, logs)


def test_a_reader_of_a_database_names_the_catalog_as_the_page_says(strata, tmp_path, site):
    lake.publish(record(strata, tmp_path, 1), site[0], "site", "edge", warehouse=site[1])
    page = (Path(__file__).resolve().parents[2] / "docs/lake.md").read_text()
    (line,) = [line for line in page.splitlines() if line.startswith("lake = load_catalog(")]
    call = line.removeprefix("lake = ").replace("sqlite:////srv/lake.db", site[0])
    assert site[0] in call
    reader = eval(call, {"load_catalog": load_catalog})
    assert len(reader.load_table("site.packets").scan().to_arrow()) > 0
    # Under another name, the database has no tables.
    other = load_catalog("lake", type="sql", uri=site[0])
    assert other.list_namespaces() == []


def test_a_sensor_has_one_log(strata, tmp_path, site):
    first, second = (record(strata, tmp_path, seed) for seed in (1, 2))
    lake.publish(first, site[0], "site", "edge", warehouse=site[1])
    with pytest.raises(lake.LakeError, match="another --sensor, or --replace"):
        lake.publish(second, site[0], "site", "edge", warehouse=site[1])
    lake.publish(second, site[0], "site", "edge", warehouse=site[1], replace=True)
    is_whole(site, {"edge": second})
    lake.publish(first, site[0], "site", "edge", warehouse=site[1], replace=True)
    is_whole(site, {"edge": first})
    # The same log in another place.
    elsewhere = tmp_path / "elsewhere"
    shutil.move(first, elsewhere)
    lake.publish(elsewhere, site[0], "site", "edge", warehouse=site[1])
    is_whole(site, {"edge": elsewhere})
    # Files on another disk are in the tables under their URL.
    run(strata, "move", elsewhere, f"file://{tmp_path}/archive")
    moved = lake.publish(elsewhere, site[0], "site", "edge", warehouse=site[1])
    assert all(one.added == one.removed == one.files for one in moved)
    is_whole(site, {"edge": elsewhere})


def snapshots(site, table="packets"):
    return len(lake.catalog(*site).load_table(f"site.{table}").snapshots())


def test_a_log_has_one_sensor(strata, tmp_path, site):
    made = record(strata, tmp_path, 1)
    lake.publish(made, site[0], "site", "edge", warehouse=site[1])
    copy = tmp_path / "copy"
    shutil.copytree(made, copy)
    for one in (made, copy):
        with pytest.raises(lake.LakeError, match=r"as sensor 'edge'.*--sensor edge, or --replace"):
            lake.publish(one, site[0], "site", "renamed", warehouse=site[1])
        is_whole(site, {"edge": made})
    # The sensor's new name: in one snapshot.
    before = snapshots(site)
    renamed = lake.publish(made, site[0], "site", "renamed", warehouse=site[1], replace=True)
    assert snapshots(site) == before + 1
    assert all(one.added == one.removed == one.files > 0 for one in renamed)
    is_whole(site, {"renamed": made})
    with pytest.raises(lake.LakeError, match="as sensor 'renamed'"):
        lake.publish(made, site[0], "site", "edge", warehouse=site[1])
    again = lake.publish(made, site[0], "site", "renamed", warehouse=site[1])
    assert all(one.added == one.removed == 0 for one in again)
    # The name is free for another log.
    second = record(strata, tmp_path, 2)
    lake.publish(second, site[0], "site", "edge", warehouse=site[1])
    is_whole(site, {"renamed": made, "edge": second})


def test_files_of_a_log_have_one_sensor(strata, tmp_path, site, monkeypatch):
    made = record(strata, tmp_path, 1)
    _publish(made, site, "edge")
    # Without the property, as another writer may have registered the files.
    for name in ("site.packets", "site.flows"):
        table = lake.catalog(*site).load_table(name)
        with table.transaction() as transaction:
            transaction.remove_properties("strata.log.edge")
    with pytest.raises(lake.LakeError, match="as sensor 'edge'"):
        _publish(made, site, "renamed")
    is_whole(site, {"edge": made})
    # Rows that count twice, as earlier versions published them.
    with monkeypatch.context() as earlier:
        earlier.setattr(lake, "_elsewhere", lambda *_: ([], []))
        _publish(made, site, "renamed")
    both = expected({"edge": made, "renamed": made}, "packets", "src")
    assert rows(site, "packets", "sensor", "src") == both
    for sensor in ("edge", "renamed"):
        with pytest.raises(lake.LakeError, match="would be counted twice"):
            _publish(made, site, sensor)
    lake.publish(made, site[0], "site", "edge", warehouse=site[1], replace=True)
    is_whole(site, {"edge": made})


def _published_as(made, site, sensor, start):
    start.wait()
    try:
        _publish(made, site, sensor)
    except lake.LakeError as error:
        os._exit(3 if "is published there as sensor" in str(error) else 1)


def test_of_two_names_at_once_one_is_refused(strata, tmp_path):
    made = record(strata, tmp_path, 1)
    context = multiprocessing.get_context("fork")
    for attempt in range(4):
        site = f"sqlite:///{tmp_path}/{attempt}.db", f"file://{tmp_path}/{attempt}"
        # The tables exist, or not.
        if attempt % 2:
            other = record(strata, tmp_path, 10 + attempt)
            _publish(other, site, "other")
        names = ("one", "two", "three")
        start = context.Barrier(len(names))
        working = [
            context.Process(target=_published_as, args=(made, site, name, start)) for name in names
        ]
        for process in working:
            process.start()
        for process in working:
            process.join()
        codes = [process.exitcode for process in working]
        assert sorted(codes) == [0, 3, 3]
        logs = {names[codes.index(0)]: made, **({"other": other} if attempt % 2 else {})}
        is_whole(site, logs)


def test_names_that_cannot_be_those_of_sensors_are_refused(tmp_path, site):
    for name in ("", "a/b", "..", "a..b", "a\nb", "a\x1b[2J", "-a", ".a", "a b", "\xe9", "x" * 129):
        with pytest.raises(lake.LakeError, match=r"letters \(a to z\), digits, dots"):
            lake.publish(tmp_path / "log", site[0], "site", name, warehouse=site[1])
    for name in ("edge-1.site_2.example", "7", "x" * 128):
        lake.check_sensor(name)


def test_a_file_of_the_log_that_is_missing_is_named(strata, tmp_path, site):
    made = record(strata, tmp_path, 1)
    first, second = (Path(name) for name in log.files(made, "packets")[:2])
    hidden = tmp_path / "hidden"
    # The first file also has the columns of a new table.
    for file in (first, second):
        file.rename(hidden)
        with pytest.raises(lake.LakeError, match=f"{file.name}: cannot read this file of the log"):
            _publish(made, site, "edge")
        words = [strata, "publish", made, "--catalog", site[0], "--warehouse", site[1]]
        words += ["--namespace", "site", "--sensor", "edge"]
        done = subprocess.run(words, capture_output=True, text=True)
        assert done.returncode == 1 and done.stderr.startswith(f"strata: file://{file}: cannot")
        hidden.rename(file)
    (made / "manifest.json").write_text("{}")
    with pytest.raises(lake.LakeError, match=r"manifest\.json: cannot read this file"):
        _publish(made, site, "edge")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("send", [os.kill, os.killpg])
@pytest.mark.parametrize("whole", [True, False])
def test_an_interrupted_publication_says_so(strata, tmp_path, number, send, whole):
    made = record(strata, tmp_path, 1)
    words = [strata] if whole else [sys.executable, "-m", "strata"]
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.settimeout(60)
        catalog = f"http://127.0.0.1:{silent.getsockname()[1]}"
        words += ["publish", made, "--catalog", catalog, "--namespace", "site", "--sensor", "edge"]
        running = subprocess.Popen(words, stderr=subprocess.PIPE, text=True, start_new_session=True)
        try:
            # It waits for an answer of the catalog.
            asked, _ = silent.accept()
            with asked:
                send(running.pid, number)
                _, said = running.communicate(timeout=60)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(running.pid, signal.SIGKILL)
        assert (running.returncode, said) == (130, "strata: interrupted\n")


def _publish(made, site, sensor):
    lake.publish(made, site[0], "site", sensor, warehouse=site[1])


def test_publications_that_are_killed_leave_each_row_once(strata, tmp_path, site):
    logs = {f"edge{seed}": record(strata, tmp_path, seed) for seed in range(4)}
    chance = random.Random(1)
    context = multiprocessing.get_context("fork")
    _publish(logs["edge0"], site, "edge0")
    for _ in range(10):
        # All publish at once, and some are killed while they do.
        working = [
            context.Process(target=_publish, args=(made, site, sensor))
            for sensor, made in logs.items()
        ]
        for one in working:
            one.start()
        time.sleep(chance.uniform(0, 1))
        killed = chance.sample(working, 2)
        for one in killed:
            os.kill(one.pid, signal.SIGKILL)
        for one in working:
            one.join()
            assert one.exitcode == 0 or one in killed
        for made in logs.values():
            run(strata, "prune", made, "--max-size", f"{chance.randrange(150, 400)}k", "--yes")
    for sensor, made in logs.items():
        _publish(made, site, sensor)
    is_whole(site, logs)


def test_a_log_that_is_published_twice_at_once_has_each_row_once(strata, tmp_path, site):
    made = record(strata, tmp_path, 1)
    context = multiprocessing.get_context("fork")
    for _ in range(3):
        working = [context.Process(target=_publish, args=(made, site, "edge")) for _ in range(3)]
        for one in working:
            one.start()
        for one in working:
            one.join()
            assert one.exitcode == 0
        is_whole(site, {"edge": made})
        run(strata, "record", "-r", tmp_path / "1-0.pcap", "-o", made, "--quiet")
        run(strata, "compact", made, "--quiet")


def test_files_that_are_in_a_table_twice_or_not_at_all_are_mended(strata, tmp_path, site):
    made = record(strata, tmp_path, 1)
    _publish(made, site, "edge")
    table = lake.catalog(*site).load_table("site.packets")
    listed = [task.file for task in table.scan().plan_files()]
    with table.transaction() as transaction:
        with transaction.update_snapshot().fast_append() as twice:
            twice.append_data_file(listed[0])
        with transaction.update_snapshot().overwrite() as gone:
            gone.delete_data_file(listed[1])
    _publish(made, site, "edge")
    is_whole(site, {"edge": made})
    # A log of which everything was deleted has nothing in the tables.
    run(strata, "prune", made, "--keep", "1d", "--yes")
    _publish(made, site, "edge")
    assert not rows(site, "packets", "sensor")


def test_what_cannot_be_published_is_an_error_that_says_what_to_do(strata, tmp_path, site):
    capture = tmp_path / "a.pcap"
    run(strata, "generate", "--profile", "cic-w3", "-c", "100", "-o", capture)
    run(strata, "record", "-r", capture, "-o", tmp_path / "log", "--quiet")
    with pytest.raises(lake.LakeError, match="strata compact"):
        lake.publish(tmp_path / "log", site[0], "site", "edge", warehouse=site[1])
    with pytest.raises(lake.LakeError, match="--warehouse"):
        run(strata, "compact", tmp_path / "log", "--quiet")
        lake.publish(tmp_path / "log", site[0], "site", "edge")
    archive = tmp_path / "log" / "archive.json"
    parts = archive.read_text().replace('.parquet"', '.parquet.age"')
    archive.write_text(parts)
    with pytest.raises(lake.LakeError, match="encrypted"):
        lake.publish(tmp_path / "log", site[0], "site", "edge", warehouse=site[1])


def test_the_command_says_what_it_did(strata, tmp_path, site):
    made = record(strata, tmp_path, 1)
    words = [strata, "publish", made, "--catalog", site[0], "--warehouse", site[1]]
    words += ["--namespace", "site", "--sensor", "edge", "--json"]
    done = subprocess.run(words, check=True, capture_output=True, text=True)
    answer = json.loads(done.stdout)
    assert answer["complete"] and [one["rows"] > 0 for one in answer["tables"]] == [True, True]
    # New block files are not in the tables.
    run(strata, "record", "-r", tmp_path / "1-0.pcap", "-o", made, "--quiet")
    done = subprocess.run(words[:-1], check=True, capture_output=True, text=True)
    assert "0 added" in done.stdout and "not compacted yet" in done.stderr
    words[4] = "sqlite:////nowhere/lake.db"
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 1 and done.stderr.startswith("strata: sqlite:////nowhere")
