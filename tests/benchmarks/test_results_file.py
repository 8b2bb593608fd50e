"""benchmarks/run.py: the table of RESULTS.md is replaced, everything else stays."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING

import pytest

from monolith.cli._bench import runner
from monolith.cli._bench.measurement import Measurement

if TYPE_CHECKING:
    from pathlib import Path
    from types import ModuleType


@pytest.fixture(scope="module")
def script(project_root: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("benchmarks_run", project_root / "benchmarks" / "run.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_recording_replaces_the_table_and_nothing_else(script: ModuleType, tmp_path: Path) -> None:
    results = tmp_path / "RESULTS.md"
    results.write_text(f"head\n{script.BEGIN}\n| old |\n{script.END}\ntail\n")
    for table in ("| new |\n", "| newer |\n"):
        script.record(results, table)
        assert results.read_text() == f"head\n{script.BEGIN}\n{table}{script.END}\ntail\n"


@pytest.mark.parametrize("text", ["no marks\n", "{begin}\n", "{end}\n{begin}\n", "{begin}\n{begin}\n{end}\n"])
def test_a_file_without_its_marks_is_refused_and_kept(script: ModuleType, tmp_path: Path, text: str) -> None:
    results = tmp_path / "RESULTS.md"
    content = text.format(begin=script.BEGIN, end=script.END)
    results.write_text(content)
    with pytest.raises(ValueError, match=r"RESULTS.md: expected a line"):
        script.record(results, "| new |\n")
    assert results.read_text() == content


def test_the_results_of_the_project_have_their_marks(script: ModuleType, project_root: Path) -> None:
    text = (project_root / "benchmarks" / "RESULTS.md").read_text()
    assert text.index(script.BEGIN) < text.index(script.END)


def test_a_quick_run_is_not_recorded(script: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        script.main(["--quick", "--record", str(tmp_path / "RESULTS.md")])
    assert "leave out --quick" in capsys.readouterr().err


def test_check_fails_the_run_when_a_requirement_is_missed(
    script: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    missed = Measurement(row="cut", measure="m", figure=1.0, limit=2.0)
    monkeypatch.setattr(runner, "run", lambda *_, **__: runner.Outcome(measurements=[missed]))
    assert script.main(["--rows", "cut"]) == 0
    assert script.main(["--rows", "cut", "--check"]) == 1
    assert "0 of 1 requirements met" in capsys.readouterr().out
