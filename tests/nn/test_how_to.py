"""The code in docs/how-to/embeddings.md, vectors.md and import-rows.md runs, block after block."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

import monolith as ml


def test_every_block_of_the_how_to_runs(project_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = (project_root / "docs" / "how-to" / "embeddings.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    names: dict[str, Any] = {"__name__": "how_to"}
    exec(blocks[0], names)  # noqa: S102 - the reader's lines, as they stand
    assert names["x"]["user"].shape == (2, 16)
    assert names["x"]["history"].shape == (2, 20, 16)
    assert names["x"].concat().shape == (2, 361)
    exec(blocks[1], names)  # noqa: S102
    model = torch.nn.Sequential(names["emb"])
    model.append(torch.nn.Linear(33, 1))
    names |= {
        "model": lambda part: model[1](model[0](part).concat()),
        "parts": [{"user": torch.tensor([1, 2]), "item": torch.tensor([3, 3])}] * 2,
        "loss_of": torch.sum,
        "dense_optimizer": torch.optim.SGD(model.parameters(), lr=0.1),
    }
    exec(blocks[2], names)  # noqa: S102
    assert names["emb"].num_rows == 3
    names["model"](names["parts"][0]).sum().backward()
    names["model"] = model
    exec(blocks[3], names)  # noqa: S102
    assert 0 < names["factor"].item() < 1
    exec(blocks[4], names)  # noqa: S102
    assert isinstance(names["emb"], ml.Embeddings)
    assert (tmp_path / "tables").is_dir()
    assert (tmp_path / "model.pt").is_file()
    assert len(blocks) == 5


@pytest.mark.parametrize(("page", "num_blocks"), [("vectors.md", 4), ("import-rows.md", 5)])
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
