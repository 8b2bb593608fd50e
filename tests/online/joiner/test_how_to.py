"""The how-to of the joiner runs as it stands, and names every rule and every count."""

from __future__ import annotations

import re
import shlex
from dataclasses import fields
from pathlib import Path

import pytest

from monolith import cli
from monolith.online.joiner import JoinCounts, JoinRuleConfig

PAGE = "joiner.md"


def test_the_page_runs(
    project_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = (project_root / "docs" / "how-to" / "joiner.md").read_text(encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"^```(python|bash)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    assert [kind for kind, _ in blocks] == ["python", "bash", "python"]
    for kind, block in blocks:
        if kind == "bash":
            assert cli.main(shlex.split(block)[1:]) == 0
            assert "joined: impressions 3, actions 1, positives 1, negatives 2" in capsys.readouterr().out
        else:
            exec(compile(block, PAGE, "exec"), {"__name__": "how_to"})  # noqa: S102 - what the reader runs
    assert capsys.readouterr().out.splitlines() == ["2 [1] [1.0]", "1 [] [0.0]", "3 [] [0.0]"]


def test_every_rule_and_every_count_is_on_the_page(project_root: Path) -> None:
    text = (project_root / "docs" / "how-to" / PAGE).read_text(encoding="utf-8")
    names = [field.name for kind in (JoinRuleConfig, JoinCounts) for field in fields(kind)]
    assert [name for name in names if not re.search(rf"`{name}\b", text)] == []
