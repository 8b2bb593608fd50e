"""The how-to of sample files runs as it stands, and the pages name everything they should."""

from __future__ import annotations

import re
import tempfile
from pathlib import Path

import pytest

from monolith.data import Compression, Framing, SampleFormat


def test_example_runs(
    project_root: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))  # a reader's temporary folders are not removed by the page
    text = (project_root / "docs" / "how-to" / "example-files.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    exec(compile(example, "example-files.md", "exec"), {"__name__": "how_to"})  # noqa: S102 - what the reader runs
    lines = capsys.readouterr().out.splitlines()
    assert lines[:-1] == ["256 256 0", "256 256 0", "256 256 0", "232 232 0"]
    assert lines[-1].endswith("'records': 1000}")


def test_every_framing_compression_and_format_is_on_its_page(project_root: Path) -> None:
    folder = project_root / "docs" / "formats"
    framings, samples = ((folder / name).read_text(encoding="utf-8") for name in ("framings.md", "samples.md"))
    assert [framing.name for framing in Framing if f"`{framing.name}`" not in framings] == []
    named = [kind for kind in Compression if kind is not Compression.FROM_NAME]
    assert [kind.name for kind in named if f"| {kind.value} | `{kind.name}` |" not in framings] == []
    assert [kind.name for kind in SampleFormat if f"`{kind.name}`" not in samples] == []
