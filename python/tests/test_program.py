import pytest

from strata import program


def test_a_failing_program_is_an_error_with_its_own_message(monkeypatch):
    monkeypatch.setenv("STRATA_PROGRAM", "/bin/ls")
    with pytest.raises(program.ProgramError, match="no-such-file"):
        program.run("no-such-file")


def test_the_named_program_comes_first(monkeypatch):
    monkeypatch.setenv("STRATA_PROGRAM", "/somewhere/strata")
    assert program.find() == "/somewhere/strata"
