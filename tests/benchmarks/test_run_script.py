"""benchmarks/run.py: it measures the rows of a suite, and replaces the table of RESULTS.md and nothing else."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

import pytest

from benchmarks import run
from benchmarks.suites.catalog import ROW_OF_KEY, SUITES
from monolith.cli._bench import runner
from monolith.cli._bench.measurement import Measurement

if TYPE_CHECKING:
    from pathlib import Path

    from monolith.cli._bench.catalog import BenchRow
    from monolith.cli._bench.setting import Setting


def test_recording_replaces_the_table_and_nothing_else(tmp_path: Path) -> None:
    results = tmp_path / "RESULTS.md"
    results.write_text(f"head\n{run.BEGIN}\n| old |\n{run.END}\ntail\n")
    for table in ("| new |\n", "| newer |\n"):
        run.record(results, table)
        assert results.read_text() == f"head\n{run.BEGIN}\n{table}{run.END}\ntail\n"


@pytest.mark.parametrize("text", ["no marks\n", "{begin}\n", "{end}\n{begin}\n", "{begin}\n{begin}\n{end}\n"])
def test_a_file_without_its_marks_is_refused_and_kept(tmp_path: Path, text: str) -> None:
    results = tmp_path / "RESULTS.md"
    content = text.format(begin=run.BEGIN, end=run.END)
    results.write_text(content)
    with pytest.raises(ValueError, match=r"RESULTS.md: expected a line"):
        run.record(results, "| new |\n")
    assert results.read_text() == content


def test_the_results_of_the_project_have_their_marks(project_root: Path) -> None:
    text = (project_root / "benchmarks" / "RESULTS.md").read_text()
    assert text.index(run.BEGIN) < text.index(run.END)


@pytest.mark.parametrize("arguments", [["--quick"], ["--suite", "ps"]])
def test_a_quick_run_or_another_suite_is_not_recorded(
    arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        run.main([*arguments, "--record", str(tmp_path / "RESULTS.md")])
    assert "do not give --quick or --suite" in capsys.readouterr().err


def test_check_fails_the_run_when_a_requirement_is_missed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    missed = Measurement(row="cut", measure="m", figure=1.0, limit=2.0)
    monkeypatch.setattr(runner, "run", lambda *_, **__: runner.BenchOutcome(measurements=[missed]))
    assert run.main(["--rows", "cut"]) == 0
    assert run.main(["--rows", "cut", "--check"]) == 1
    assert "0 of 1 requirements met" in capsys.readouterr().out


def test_the_help_names_the_rows_of_every_suite(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        run.main(["--help"])
    printed = capsys.readouterr().out
    assert list(SUITES) == ["tables", "fast", "ps", "cluster", "sync", "online", "serving"]
    for name, suite in SUITES.items():
        assert f"  {name}: {suite.title}\n    {', '.join(row.key for row in suite.rows)}" in printed


def test_a_row_of_another_suite_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        run.main(["--suite", "online", "--rows", "ps_cpu"])
    assert "the suite 'online' has online_changes, online_follower, " in capsys.readouterr().err


def test_json_and_markdown_exclude_each_other(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        run.main(["--json", "--markdown"])
    assert "give one of them" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], (5, 1.0, 10_000_000)),
        (["--suite", "ps"], (9, 1.0, 10_000_000)),
        (["--suite", "cluster"], (5, 1.0, 10_000_000)),
        (["--suite", "ps", "--rounds", "2", "--seconds", "0.5"], (2, 0.5, 10_000_000)),
        (["--suite", "ps", "--quick"], (3, 0.1, 1_000_000)),
        (["--suite", "ps", "--quick", "--rounds", "1"], (1, 0.1, 1_000_000)),
    ],
)
def test_a_suite_has_its_setting_and_options_change_it(
    arguments: list[str], expected: tuple[int, float, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    settings: list[Setting] = []

    def measure(rows: object, setting: Setting, *, tell: object) -> runner.BenchOutcome:
        settings.append(setting)
        return runner.BenchOutcome()

    monkeypatch.setattr(runner, "run", measure)
    assert run.main(arguments) == 0
    assert (settings[0].rounds, settings[0].seconds, settings[0].large_rows) == expected


@pytest.mark.parametrize("row", ROW_OF_KEY.values(), ids=ROW_OF_KEY)
def test_the_function_of_every_row_exists(row: BenchRow) -> None:
    module, name = row.function.split(":")
    assert callable(getattr(importlib.import_module(module), name))
