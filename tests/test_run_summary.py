"""The last lines of a run say what skipped tests need and which tests should be marked slow."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from monolith import environment

CONFTEST = """
    import pytest
    import run_summary
    run_summary.QUICK_SECONDS = 0.2
    def pytest_configure(config):
        if not hasattr(config, "workerinput"):
            config.pluginmanager.register(run_summary.RunSummary())
"""
TESTS = """
    import time, pytest
    @pytest.fixture
    def keeper(): pytest.skip("Keeper is not installed; on Debian: apt-get install keeper")
    def test_one(keeper): pass
    def test_two(keeper): pass
    @pytest.mark.skipif(True, reason="a browser is not installed: apt-get install chromium")
    def test_page(): pass
    def test_gpu(): pytest.skip("needs a GPU")
    @pytest.fixture
    def half(): time.sleep(0.15)
    def test_long(half): time.sleep(0.15)
    @pytest.mark.slow
    def test_marked(): time.sleep(0.3)
"""


def lines_of_a_run(folder: Path, tests: str, *arguments: str) -> list[str]:
    (folder / "conftest.py").write_text(textwrap.dedent(CONFTEST))
    (folder / "test_made_up.py").write_text(textwrap.dedent(tests))
    (folder / "pytest.ini").write_text("[pytest]\nmarkers = slow\n")
    variables = {
        **environment.starting_with(""),
        "PYTHONPATH": str(Path(__file__).resolve().parent),
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
    }
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--basetemp={folder / 'temporary'}"]
    ended = subprocess.run(
        [*command, *arguments, str(folder)], cwd=folder, env=variables, capture_output=True, text=True, check=True
    )
    return ended.stdout.splitlines()


@pytest.mark.parametrize("arguments", [(), ("-p", "xdist", "-n", "2")], ids=["one process", "two workers"])
def test_what_is_missing_and_what_is_slow_is_one_line_each(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    lines = lines_of_a_run(tmp_path, TESTS, *arguments)
    assert "2 tests need Keeper: apt-get install keeper" in lines
    assert "1 test needs a browser: apt-get install chromium" in lines
    assert not any("GPU" in line for line in lines)
    (slow,) = [line for line in lines if "mark them slow" in line]
    assert slow.startswith("1 without the mark `slow` took longer than 0 s")
    assert "test_made_up.py::test_long (0 s)" in slow


def test_a_run_without_either_reports_nothing_more(tmp_path: Path) -> None:
    lines = lines_of_a_run(tmp_path, "def test_passes(): pass")
    assert not any("tests need" in line or "mark them slow" in line for line in lines)


def test_every_run_of_this_project_has_it(pytestconfig: pytest.Config) -> None:
    is_worker = environment.get("PYTEST_XDIST_WORKER") is not None
    assert pytestconfig.pluginmanager.has_plugin("run-summary") is not is_worker
