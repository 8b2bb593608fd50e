"""The how-to of metrics runs as it stands and names every metric."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from monolith import metrics


def test_example_runs(project_root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = (project_root / "docs" / "how-to" / "metrics.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    exec(compile(example, "metrics.md", "exec"), {"__name__": "how_to"})  # noqa: S102 - what the reader runs
    assert re.fullmatch(r"auc 0\.\d{3}, log loss \d\.\d{3}\n", capsys.readouterr().out)


def test_every_metric_is_in_the_table(project_root: Path) -> None:
    text = (project_root / "docs" / "how-to" / "metrics.md").read_text(encoding="utf-8")
    made = [name for name in dir(metrics) if issubclass(getattr(metrics, name), metrics.Metric) and name != "Metric"]
    assert [name for name in made if f"| `{name}` |" not in text] == []
