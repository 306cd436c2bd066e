import numpy as np
import pytest
from research import cases, kept

from strata.snapshots import Snapshots


def test_captures_are_written_and_read_and_what_was_cut_is_filled_up(tmp_path):
    path = tmp_path / "trace.pcap"
    data = [b"whole packet", b"cut"]
    kept.write(path, np.array([1_000_000_001, 2_000_000_002]), data, np.array([12, 20]))
    ts_ns, packets, wire_len = kept.packets_of(path)
    assert ts_ns.tolist() == [1_000_000_001, 2_000_000_002]
    assert packets == [b"whole packet", b"cut" + bytes(17)]
    assert wire_len.tolist() == [12, 20]


def test_flows_are_spread_but_keep_their_pace():
    flow = np.array([7, 7, 9, 9, 9], np.uint64)
    frame = np.arange(1, 6, dtype=np.uint64)
    data = Snapshots({"frame": frame, "flow": flow}, {}, {}, [])
    ts_ns = np.array([0, 10, 5, 6, 8])
    capture = kept.Capture(ts_ns, [b""] * 5, np.zeros(5), np.ones(5, bool), data)
    moved = ts_ns + kept._spread(capture, np.arange(5), ts_ns, 1_000)
    assert (np.diff(moved[:2]) == 10).all() and np.diff(moved[2:]).tolist() == [1, 2]
    assert ((moved[[0, 2]] >= 0) & (moved[[0, 2]] < 1_000)).all()


def test_shares_and_differences_are_of_flows_with_payload():
    case = kept.Case(
        attack=np.array([True, True, True, True, False]),
        payload=np.array([10, 10, 10, 0, 10]),
        flow=np.array([1, 1, 2, 2, 3]),
        kept={name: np.array([True, False, False, False, True]) for name in kept.NAMES},
        share=0.1,
        share_piped=0.1,
    )
    of = kept._by_flow(case)
    assert of[0].tolist() == [2, 1]
    assert cases.shares(of)[kept.BUDGETED] == [0.3333, 0.5]
    names = (kept.BUDGETED, kept.DEFAULT)
    found = cases.differences([cases.bootstrap(of)], names, (*names, kept.RANDOM))
    assert found[f"{kept.BUDGETED} - {kept.RANDOM}"]["packets"] == [0.0, 0.0, 0.0]
    assert f"{kept.BUDGETED} - {kept.DEFAULT}" in found
    assert f"{kept.DEFAULT} - {kept.BUDGETED}" not in found


def test_a_capture_without_a_trace_is_named(tmp_path):
    needed = {
        cases.TRAINED_ON,
        *cases.CAPTURED,
        *(n for names in cases.SITES.values() for n in names),
    }
    for name in needed:
        (tmp_path / name).mkdir()
        (tmp_path / name / "labels.csv").write_text("frame,label\n")
    with pytest.raises(ValueError, match=r"no trace\.pcap"):
        list(cases.captures(tmp_path, tmp_path / "scratch"))
    (tmp_path / cases.CAPTURED[0] / "labels.csv").unlink()
    with pytest.raises(ValueError, match=f"no capture {cases.CAPTURED[0]}"):
        list(cases.captures(tmp_path, tmp_path / "scratch"))
