import json

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
