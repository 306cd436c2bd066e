"""Figures of links."""

import os
import shutil
import subprocess

import numpy as np
import pytest
from research import kept, links, links_report


def test_what_has_no_bucket_is_judged_by_itself():
    attack = np.array([1, 1, 1, 0, 0, 0, 0, 0], bool)
    alarm = np.array([1, 1, 0, 1, 0, 0, 0, 0], bool)
    found = links.figures_of(attack, alarm, np.array([1, 1, 0, 0, 1, 1, 1, 1], bool))
    assert found["without_bucket"] == 0.25
    assert (found["accuracy"], found["precision"], found["recall"]) == (0.75, 0.6667, 0.6667)
    assert found["of_those"] == {"accuracy": 0.0, "precision": 0.0, "recall": 0.0}
    # Without attacks there is nothing to find, and nothing to divide by.
    none = links.figures_of(np.zeros(4, bool), np.zeros(4, bool), np.ones(4, bool))
    assert none["accuracy"] == 1.0 and none["recall"] is None
    assert none["of_those"] == {"accuracy": None, "precision": None, "recall": None}


def test_a_score_is_judged_at_a_recall():
    attack = np.array([1, 1, 1, 1, 0, 0], bool)
    score = np.array([0.9, 0.8, 0.8, 0.1, 0.85, 0.0])
    # One score is found as a whole.
    found = links.at_this(0.5, attack, score)
    assert found == {"accuracy": 0.6667, "precision": 0.75, "recall": 0.75}
    assert links.at_this(0.2, attack, score)["precision"] == 1.0
    assert links.at_this(1.0, attack, score)["recall"] == 1.0


def test_packets_without_a_bucket_count_as_wholly_wrong():
    assert links_report.of_all(0.5, 0.0) == 0.5
    assert links_report.of_all(0.5, 0.5) == 0.75
    assert links_report.of_all(0.0, 1.0) == 1.0


def test_tables_are_laid_out_as_the_papers():
    rates = {"accuracy": 0.9, "precision": 0.5, "recall": None}
    one = {
        **rates,
        "without_bucket": 0.25,
        "of_those": rates,
        "errors": {**dict.fromkeys(links_report.ERRORS, 0.01), "ipd_max": 0.0},
        "flows_max": 12_345,
        "packets": 100,
    }
    names = (*links.JUDGED, links.LARGE, links.ALONE)
    days = {day: dict.fromkeys(names, one) for day in (*links.DAYS, links.MIX)}
    text = links_report.in_markdown({"window_ms": 35, "rates": {"100": days}})
    assert "| Size sum | 100 | ours | 1e-2 | 1e-2 | 1e-2 | 1e-2 | 1e-2 | 1e-2 |" in text
    assert "| Flows in a window | 100 |  | 12,345 |" in text
    assert "| bytes | ours | 1e-2 | 3e-1 |" in text and "| ipd_max | ours | 0 | 2e-1 |" in text
    assert "| strata | 100 | 0.900 | 0.500 |  | 0.900 |" in text
    # The rows of a table have as many cells as its header.
    for table in text.split("\n\n"):
        lines = [line for line in table.splitlines() if line.startswith("|")]
        heads = {line.count("|") for line in lines}
        assert len(heads) < 2, lines[0]


@pytest.mark.skipif(
    shutil.which("tshark") is None and "CI" not in os.environ, reason="no tshark to ask"
)
def test_streams_differ_in_their_addresses_alone(tmp_path):
    def frame(kind, rest):
        return bytes(12) + kind + rest

    v4 = bytes.fromhex(
        "45000020000100004011000001020304050607080035 0035 000c 0000".replace(" ", "")
    )
    v6 = bytes.fromhex("60000000000c1140" + "20010db8" + "00" * 11 + "01" + "20010db8" + "00" * 11)
    v6 += bytes.fromhex("02" + "00350035000c0000") + bytes(4)
    arp = bytes.fromhex("0001080006040001") + bytes(20)
    frames = [frame(b"\x08\x00", v4 + bytes(4)), frame(b"\x86\xdd", v6)]
    frames += [frame(b"\x81\x00\x00\x07\x08\x00", v4 + bytes(4)), frame(b"\x08\x06", arp)]
    frames += [frame(b"\x08\x00", v4 + bytes(200))]
    ts_ns = np.arange(5) * 250_000_000 + 1_000_000_000
    kept.write(tmp_path / "trace.pcap", ts_ns, frames, np.array([len(f) for f in frames]))
    (tmp_path / "labels.csv").write_text("frame,label\n1,0\n2,1\n3,1\n4,0\n5,0\n")
    half = links.Half(tmp_path / "many.pcap", tmp_path / "many.csv")
    seconds, size = links.in_parallel(tmp_path, 3, half)
    assert (seconds, size) == (1.0, 3 * sum(len(f) for f in frames))
    fields = ("frame.time_epoch", "frame.len", "frame.cap_len", "ip.src", "ip.dst", "ipv6.src")
    command = ["tshark", "-r", str(half.trace), "-T", "fields"]
    command += [part for field in fields for part in ("-e", field)]
    told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    rows = [line.split("\t") for line in told.splitlines()]
    assert len(rows) == 15 and rows[14][1:3] == [str(len(frames[4])), str(links.SNAPLEN)]
    assert [row[3] for row in rows[:3]] == ["1.2.3.4", "1.3.3.4", "1.0.3.4"]
    assert [row[4] for row in rows[6:9]] == ["5.6.7.8", "5.7.7.8", "5.4.7.8"]
    assert len({row[5] for row in rows[3:6]}) == 3 and rows[9][3] == ""
    assert [float(row[0]) for row in rows[3:6]] == [1.25] * 3
    labels = half.labels.read_text().splitlines()
    assert labels[0] == "frame,label" and labels[4:7] == ["4,1", "5,1", "6,1"]
