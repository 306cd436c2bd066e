import pytest

from strata import program, tuner


def test_memory_is_divided_within_its_limit():
    for memory in (10_000, 1_000_000, 10_500_000, 32 << 20, 128 << 20):
        for narrow in (2, 4, 27):
            for share in (0.2, 0.64, 0.98):
                for ways in (1, 8):
                    found = tuner.divided(memory, 28, narrow, share, ways)
                    assert found.memory() <= memory
                    assert found.slots % ways == 0
                    assert found.memory() > 0.9 * memory - 300 * ways
    # Without wide buffers a slot has no pointer.
    assert tuner.divided(1360, 28, 28, 1.0, 1) == tuner.Parameters(10, 28, 0, 0)


# The paper's Table 2, and the memory that the program says for it.
def test_memory_is_what_the_program_counts():
    assert tuner.Parameters(16_384, 4, 24, 4_096).memory() == 16_384 * 42 + 4_096 * 98
    # More blocks than 16 bits number.
    assert tuner.Parameters(8, 4, 24, 65_534).memory() == 8 * 42 + 65_534 * 98
    assert tuner.Parameters(8, 4, 24, 65_535).memory() == 8 * 44 + 65_535 * 100


@pytest.fixture
def fake(tmp_path, monkeypatch):
    """A program that answers as the model does: best at 6 narrow tuples and 70 % for slots."""
    path = tmp_path / "strata"
    path.write_text(
        "#!/usr/bin/env python3\n"
        "import sys\n"
        "for line in sys.stdin:\n"
        "    slots, narrow, wide, blocks, ways, *every = map(int, line.split())\n"
        "    for part in range(3 if every else 0):\n"
        "        print('part', 500 + part, 50, flush=True)\n"
        "    pointer = 4 if blocks > 65534 else 2 if blocks else 0\n"
        "    slot = 24 + pointer + narrow * 4\n"
        "    memory = slots * slot + blocks * (pointer + wide * 4)\n"
        "    cost = 100 + 5 * abs(narrow - 6) + int(200 * abs(slots * slot / memory - 0.7))\n"
        "    print(1000, cost, memory, flush=True)\n"
    )
    path.chmod(0o755)
    monkeypatch.setenv("STRATA_PROGRAM", str(path))


def test_the_search_finds_what_is_best(fake):
    found = tuner.tune(["any"], memory=1_000_000, trials=80)
    assert abs(found["narrow"] - 6) <= 1
    assert found["vectors_per_packet"] < 0.112
    assert found["memory"] <= 1_000_000
    assert len(found["trials"]) == 80
    again = tuner.tune(["any"], memory=1_000_000, trials=80)
    assert again == found, "the same seed finds the same"
    assert "vectors 1" in tuner.printed(found, False)


def test_too_little_memory_is_refused():
    with pytest.raises(ValueError, match="cannot hold a cache"):
        tuner.tune(["any"], memory=40)


def test_what_the_program_says_is_raised(tmp_path, monkeypatch):
    path = tmp_path / "strata"
    path.write_text("#!/bin/sh\necho 'no.pcap: cannot open' >&2\nexit 1\n")
    path.chmod(0o755)
    monkeypatch.setenv("STRATA_PROGRAM", str(path))
    with pytest.raises(program.ProgramError, match="cannot open"):
        tuner.tune(["no.pcap"], memory=1_000_000, trials=2)


def test_figures_are_data_and_plots(fake, tmp_path):
    folder = tmp_path / "new" / "figures"
    said = tuner.figures(["any"], folder, memory=1 << 20, length=28, trials=2, seed=1)
    assert said.startswith("64 points, 3 parts")
    rows = (folder / "curves.csv").read_text().splitlines()
    assert len(rows) == 65
    assert (folder / "rates.csv").read_text().splitlines()[1:] == [
        "0,500,50",
        "100,501,50",
        "200,502,50",
    ]
    for plot in ("curves.svg", "rates.svg"):
        assert "<svg" in (folder / plot).read_text()
