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
        "    slots, narrow, wide, blocks, ways, seed, *every = map(int, line.split())\n"
        "    for part in range(3 if every else 0):\n"
        "        print('part', 500 + part, 50, flush=True)\n"
        "    pointer = 4 if blocks > 65534 else 2 if blocks else 0\n"
        "    slot = 24 + pointer + narrow * 4\n"
        "    memory = slots * slot + blocks * (pointer + wide * 4)\n"
        "    if '--format=strata' in sys.argv:\n"
        "        slot = 64 + narrow * 28\n"
        "        memory = slots * slot + blocks * (4 + wide * 28)\n"
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


def test_what_is_found_is_compared_with_the_default(fake):
    usual = tuner.PAPER.memory(tuner.RUN["strata"])
    assert usual == 16_384 * (64 + 4 * 28) + 4_096 * (4 + 24 * 28)
    found = tuner.tune(["any"], memory=usual, trials=80, form="strata")
    assert found["memory"] <= usual and found["default"]["memory"] == usual
    # With the costs of the fake, 4 narrow tuples and half of the memory for slots are 147.
    assert found["default"]["vectors_per_packet"] == 0.147
    better = 100 * (1 - found["vectors_per_packet"] / 0.147)
    assert found["is_better"] and found["fewer_vectors_percent"] == pytest.approx(better)
    said = tuner.printed(found, False).splitlines()
    assert said[-2].endswith(f"make {better:.2f} % fewer vectors"), said
    assert said[-1].startswith(f"strata gpv run --slots {found['slots']} --narrow"), said

    # A bound of two packets leaves nothing that is better.
    found = tuner.tune(["any"], memory=usual, trials=2, length=28, static=True, form="strata")
    assert not found["is_better"] and found["fewer_vectors_percent"] < 0
    said = tuner.printed(found, False).splitlines()
    assert said[-2].endswith("no better parameters were found; keep the default"), said
    assert said[-1] == ("strata gpv run --slots 16384 --narrow 4 --wide 24 --wide-blocks 4096"), (
        said
    )
    # What needs more memory than there is, is not advised.
    found = tuner.tune(["any"], memory=usual // 2, trials=2, static=True, form="strata")
    said = tuner.printed(found, False).splitlines()
    assert said[-2].endswith("are not better, but need less memory"), said
    assert f"--slots {found['slots']}" in said[-1], said

    # There is no command for a switch.
    found = tuner.tune(["any"], memory=1_000_000, trials=2, ways=8)
    assert "gpv run" not in tuner.printed(found, False)


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
