import json

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import strata.log


def test_a_directory_without_a_log_is_an_error(tmp_path):
    with pytest.raises(strata.log.LogError, match="no log here"):
        strata.log.connect(tmp_path)


def test_a_log_that_is_not_compacted_is_an_error_that_says_what_to_do(tmp_path):
    manifest = '{"recordings": [{"files": [{"name": "blocks/r0001-w00-000000.strata"}]}]}'
    (tmp_path / "manifest.json").write_text(manifest)
    with pytest.raises(strata.log.LogError, match="strata compact"):
        strata.log.connect(tmp_path)
    assert strata.log.not_compacted(tmp_path) == 1


def test_an_encrypted_log_is_an_error_that_says_what_to_do(tmp_path):
    (tmp_path / "manifest.json").write_text('{"recordings": []}')
    files = [{"kind": kind, "name": f"{kind}/1.parquet.age"} for kind in ("packets", "flows")]
    archive = {"parts": [{"files": files}], "gone": []}
    (tmp_path / "archive.json").write_text(json.dumps(archive))
    with pytest.raises(strata.log.LogError, match=r"strata query .* --key"):
        strata.log.connect(tmp_path)


def test_files_elsewhere_have_urls_for_names(tmp_path):
    (tmp_path / "manifest.json").write_text('{"recordings": []}')
    names = ["s3://b/p/flows/1.parquet", "file:///mnt/flows/2.parquet", "flows/3.parquet"]
    files = [{"kind": "flows", "name": name} for name in names]
    archive = {"parts": [{"files": files}], "gone": []}
    (tmp_path / "archive.json").write_text(json.dumps(archive))
    there = [names[0], "/mnt/flows/2.parquet", str(tmp_path / names[2])]
    assert strata.log.files(tmp_path, "flows") == there


@pytest.mark.parametrize("name", ["a[1]", "a*", "a?", "it's [a-z]*?", "a{1,2}", "a]b"])
def test_names_of_logs_are_no_patterns(tmp_path, name):
    manifest, archive = '{"recordings": []}', {"parts": [{"files": []}], "gone": []}
    archive["parts"][0]["files"] = [
        {"kind": kind, "name": f"{kind}.parquet"} for kind in ("packets", "flows")
    ]
    # Logs that the name would match as a pattern, and the one that has it.
    for log in ("a1", "a", "ab", "it's bcd", name):
        place = tmp_path / log
        place.mkdir(exist_ok=True)
        (place / "manifest.json").write_text(manifest)
        (place / "archive.json").write_text(json.dumps(archive))
        for kind in ("packets", "flows"):
            pq.write_table(pa.table({"log": [log]}), place / f"{kind}.parquet")
    db = strata.log.connect(tmp_path / name)
    for table in strata.log.TABLES:
        assert db.sql(f"SELECT log FROM {table}").fetchall() == [(name,)]
    (tmp_path / name / "flows.parquet").unlink()
    with pytest.raises(duckdb.IOException, match="flows"):
        strata.log.connect(tmp_path / name)
