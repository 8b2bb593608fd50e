"""The design page names packages and files that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGE = (ROOT / "docs" / "design.md").read_text(encoding="utf-8")
PATHS = sorted(set(re.findall(r"`((?:[\w.-]+/)+(?:[\w-]+\.(?:py|cc|h|cpp|md))?)`", PAGE)))


def test_the_page_names_files() -> None:
    assert len([path for path in PATHS if not path.endswith("/")]) >= 25


@pytest.mark.parametrize("path", PATHS)
def test_a_named_file_exists(path: str) -> None:
    packages = [ROOT / "src" / "monolith", *(ROOT / "src" / "monolith").iterdir()]
    assert any((place / path).exists() for place in (ROOT, ROOT / "docs", *packages))


def test_every_package_is_named() -> None:
    packages = {path.parent.name for path in (ROOT / "src" / "monolith").glob("*/__init__.py")}
    assert packages - set(re.findall(r"\w+", PAGE)) == set()
