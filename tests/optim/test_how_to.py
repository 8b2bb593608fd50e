"""The blocks of docs/how-to/dense-optimizers.md run as they stand, one after another."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

from monolith.optim import Adamom, Rmsprop, Shampoo

DOCUMENT = Path("docs") / "how-to" / "dense-optimizers.md"


@pytest.mark.slow
def test_the_blocks_of_the_document_run(project_root: Path) -> None:
    text = (project_root / DOCUMENT).read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    assert len(blocks) == 4
    names: dict[str, Any] = {"__name__": "how_to"}
    for block in blocks:
        assert "assert " in block
        exec(compile(block, str(DOCUMENT), "exec"), names)  # noqa: S102 - our own document


def test_the_table_of_defaults_is_true(project_root: Path) -> None:
    text = (project_root / DOCUMENT).read_text(encoding="utf-8")
    for kind in (Adamom, Rmsprop, Shampoo):
        (row,) = re.findall(rf"^\| `{kind.__name__}` \| `(learning_rate=[^`]*)` \|$", text, re.MULTILINE)
        written = dict(option.split("=") for option in row.split(", "))
        defaults = kind([torch.zeros(1)]).defaults
        actual = {{"lr": "learning_rate"}.get(name, name): value for name, value in defaults.items() if name != "step"}
        if kind is Shampoo:
            actual["global_step"] = None
        assert {name: eval(value) for name, value in written.items()} == actual  # noqa: S307 - our own document
