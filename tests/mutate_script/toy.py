"""A toy project with one area, on which the mutation script runs."""

from __future__ import annotations

from pathlib import Path

LIMIT = '''"""Limits."""

SMALL = 3


def is_large(number: int) -> bool:
    """Whether a number is above the limit."""
    return number > SMALL


def one() -> int:
    """Return 1; no test checks the result."""
    return 1
'''
TESTS = """import pathlib

from toy import limit


def test_large() -> None:
    assert limit.is_large(4)
    assert not limit.is_large(3)
    assert limit.__file__.startswith(str(pathlib.Path(__file__).resolve().parents[1]))


def test_nothing() -> None:
    limit.one()


def test_is_broken() -> None:
    assert limit.is_large(0)
"""
PROJECT = """
[tool.pytest.ini_options]
addopts = ["--import-mode=importlib", "-p", "no:hypothesispytest"]  # which takes a second to load
"""
AREAS = """
[project]
source = "src"

[[area]]
name = "limits"
files = ["src/toy/*.py"]
tests = ["tests"]
"""


def make_project(folder: Path) -> Path:
    """Write the project; returns the path of its configuration."""
    for name, text in {
        "src/toy/__init__.py": "",
        "src/toy/limit.py": LIMIT,
        "tests/test_limit.py": TESTS,
        "pyproject.toml": PROJECT,
        "areas.toml": AREAS,
    }.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return folder / "areas.toml"
