"""The command line: help everywhere, one readable line for what it does not understand."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys

import pytest

import monolith
from monolith import cli
from monolith.cli import doctor
from monolith.errors import NotFoundError


def test_every_module_is_a_command_with_help_and_an_example(capsys: pytest.CaptureFixture[str]) -> None:
    assert "doctor" in cli.command_names()
    for name in cli.command_names():
        with pytest.raises(SystemExit) as stopped:
            cli.main([name, "--help"])
        assert stopped.value.code == 0
        assert f"monolith {name}" in capsys.readouterr().out.split("example", 1)[1]


def test_help_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        cli.main(["--help"])
    assert stopped.value.code == 0
    text = capsys.readouterr().out
    assert all(f"    {name} " in text or f"    {name}\n" in text for name in cli.command_names())
    assert "what runs here, and what is missing" in text


WITHOUT_IMPORTS = """
import sys
from monolith.cli import main
try:
    main(sys.argv[1:])
except SystemExit as stopped:
    status = stopped.code
heavy = {"torch", "numpy", "google", "fsspec", "monolith.train", "monolith.nn"}.intersection(sys.modules)
assert not heavy, heavy
sys.exit(status)
"""


@pytest.mark.parametrize(
    ("arguments", "status"),
    [
        (["--help"], 0),
        (["--version"], 0),
        (["train", "--help"], 0),
        (["train", "my:Task", "--model_dir", "m", "-h"], 0),
        (["bench", "--help"], 0),
        (["demo", "--help"], 0),
        (["doctor", "--help"], 0),
        (["checkpoint", "show", "--help"], 0),
        (["control", "--help"], 0),
        (["trian"], 2),
    ],
)
def test_help_and_version_import_nothing_heavy(arguments: list[str], status: int) -> None:
    program = [sys.executable, "-c", WITHOUT_IMPORTS, *arguments]
    done = subprocess.run(program, capture_output=True, text=True, check=False, timeout=50)
    assert done.returncode == status, done.stderr
    assert "monolith" in (done.stderr if status else done.stdout)


def test_version_is_that_of_the_package(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        cli.main(["--version"])
    assert stopped.value.code == 0
    assert capsys.readouterr().out == f"monolith {monolith.__version__}\n"


@pytest.mark.parametrize("arguments", [[], ["docter"], ["doctor", "--jsn"], ["doctor", "now"], ["--loud"]])
def test_what_is_not_understood_is_one_line_and_status_2(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        cli.main(arguments)
    assert stopped.value.code == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    (line,) = captured.err.splitlines()
    assert line.startswith("monolith")
    assert line.endswith("--help")


@pytest.mark.parametrize(
    ("arguments", "meant"),
    [
        (["trian"], "train"),
        (["checkpoint", "lst", "m"], "list"),
        (["doctor", "--jsn"], "--json"),
        (["train", "my:Task", "--log_step_cont_steps", "1"], "--log_step_count_steps"),
        (["train", "my:Task", "--hashtable_init_capcity=1"], "--hashtable_init_capacity"),
    ],
)
def test_a_misspelt_word_is_answered_with_the_right_one(
    arguments: list[str], meant: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        cli.main(arguments)
    assert f"; did you mean {meant}?; see monolith" in capsys.readouterr().err


@pytest.mark.parametrize("error", [ValueError("dim must be > 0,\n got -1"), NotFoundError("dim must be > 0, got -1")])
def test_what_fails_is_one_line_and_status_1(
    error: Exception, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(args: argparse.Namespace) -> int:
        raise error

    monkeypatch.setattr(doctor, "run", fail)
    assert cli.main(["doctor"]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == "monolith doctor: error: dim must be > 0, got -1\n"


def test_a_bug_is_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(args: argparse.Namespace) -> int:
        raise KeyError("broken")

    monkeypatch.setattr(doctor, "run", fail)
    with pytest.raises(KeyError):
        cli.main(["doctor"])


@pytest.mark.slow
def test_the_installed_program_returns_the_status() -> None:
    program = "import sys; from monolith.cli import main; sys.exit(main())"
    result = subprocess.run(
        [sys.executable, "-c", program, "doctor"], capture_output=True, text=True, check=False, timeout=50
    )
    assert result.returncode == 0, result.stderr
    assert result.stderr == ""


def test_the_package_itself_is_the_command() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "monolith", "--version"], capture_output=True, text=True, check=True, timeout=240
    )
    assert done.stdout == f"monolith {monolith.__version__}\n"


@pytest.mark.slow
def test_output_without_a_reader_ends_a_command_quietly() -> None:
    """As in ``monolith doctor | head -1``: no traceback, and the status of a program that SIGPIPE ended."""
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "monolith", "doctor"]
    ended = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, timeout=60, check=False)
    both = subprocess.run(command, stdout=writing, stderr=writing, timeout=60, check=False)
    os.close(writing)
    assert (ended.returncode, ended.stderr, both.returncode) == (141, b"", 141)
