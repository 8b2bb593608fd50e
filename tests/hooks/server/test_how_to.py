"""docs/how-to/control.md runs as it stands: its blocks one after another, and its commands beside them."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from monolith import cli


@pytest.mark.usefixtures("nothing_left_behind")
def test_the_page_runs(project_root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = (project_root / "docs" / "how-to" / "control.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```(python|console)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    assert [kind for kind, _ in blocks] == ["python", "console", "python", "python", "python"]
    names: dict[str, Any] = {"__name__": "how_to"}
    try:
        for kind, block in blocks:
            if kind == "python":
                exec(compile(block, "control.md", "exec"), names)  # noqa: S102 - our own document
                continue
            for line in block.splitlines():
                arguments = line.removeprefix("$ monolith ").replace("MODEL_DIR", names["model_dir"]).split()
                assert cli.main([*arguments, "--timeout_seconds", "50"]) == 0
            shown = capsys.readouterr().out.splitlines()
            assert [line.split()[0] for line in shown[:4]] == ["at", "stopped", "saved", "resumed"]
    finally:
        names["StopWhen"].wanted.set()
        names["training"].join(30)
        assert not names["training"].is_alive()
        shutil.rmtree(names["model_dir"])
