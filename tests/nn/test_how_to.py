"""The code in docs/how-to/embeddings.md, vectors.md and import-rows.md runs, block after block."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import monolith as ml


def test_every_block_of_the_how_to_runs(project_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = (project_root / "docs" / "how-to" / "embeddings.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    names: dict[str, Any] = {"__name__": "how_to"}
    found = []
    for block in blocks:
        exec(block, names)  # noqa: S102 - the reader's lines, as they stand
        found.append(dict(names))
    first, ids, _, accumulated, clipped, saved = found
    assert first["x"]["user"].shape == (2, 16)
    assert first["x"]["history"].shape == (2, 20, 16)
    assert first["x"].concat().shape == (2, 361)
    assert ids["emb"].num_rows == 5
    assert ids["x"]["words"][1].tolist() == pytest.approx([0.0] * 8)
    assert accumulated["emb"].num_rows == 3
    assert 0 < clipped["factor"].item() <= 1
    assert isinstance(saved["emb"], ml.Embeddings)
    assert (tmp_path / "ranker").is_dir()


@pytest.mark.parametrize(("page", "num_blocks"), [("vectors.md", 4), ("import-rows.md", 6)])
def test_the_blocks_of_a_page_run_one_after_another(
    page: str, num_blocks: int, project_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    text = (project_root / "docs" / "how-to" / page).read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    names: dict[str, Any] = {"__name__": "how_to"}
    for block in blocks:
        assert "assert " in block or page == "import-rows.md"
        exec(compile(block, page, "exec"), names)  # noqa: S102 - the reader's lines, as they stand
    assert len(blocks) == num_blocks
