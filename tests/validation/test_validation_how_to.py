"""The how-to of progressive validation runs as it stands, and names every option."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import pytest
import torch

from monolith import cli
from monolith.validation import SyncRule, ValidationConfig

PAGE = "progressive-validation.md"


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """On a busy machine small operations wait for each other's threads far longer than they compute."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def page_text(project_root: Path) -> str:
    return (project_root / "docs" / "how-to" / "progressive-validation.md").read_text(encoding="utf-8")


@pytest.mark.slow
def test_the_page_runs(
    project_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"^```(python|bash)\n(.*?)^```$", page_text(project_root), re.MULTILINE | re.DOTALL)
    assert [kind for kind, _ in blocks] == ["python", "python", "python", "bash"]
    for kind, block in blocks:
        if kind == "bash":
            (tmp_path / "freshness.html").unlink()
            assert cli.main(shlex.split(block)[1:]) == 0
        else:
            exec(compile(block, PAGE, "exec"), {"__name__": "how_to"})  # noqa: S102 - what the reader runs
    assert sorted(path.name for path in tmp_path.iterdir()) == ["freshness.html", "rows.html"]
    assert re.search(r"^AUC 0\.\d+, at most [\d,]+ rows in \d+\.\d MB$", capsys.readouterr().out, re.MULTILINE)


def test_every_option_is_on_the_page(project_root: Path) -> None:
    text = page_text(project_root)
    names = [field.name for kind in (SyncRule, ValidationConfig) for field in fields(kind)]
    assert [name for name in names if not re.search(rf"\b{name}\b", text)] == []
