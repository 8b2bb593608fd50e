"""The how-to of layers runs as it stands and names every layer and loss."""

from __future__ import annotations

import re
from pathlib import Path

from torch import nn

from monolith.nn import layers, losses


def test_example_runs(project_root: Path) -> None:
    text = (project_root / "docs" / "how-to" / "layers.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    names: dict[str, object] = {"__name__": "how_to"}
    exec(compile(example, "layers.md", "exec"), names)  # noqa: S102 - what the reader runs
    assert isinstance(names["model"], nn.Module)
    assert all(parameter.grad is not None for parameter in names["model"].parameters())


def test_every_layer_and_loss_is_in_the_tables(project_root: Path) -> None:
    text = (project_root / "docs" / "how-to" / "layers.md").read_text(encoding="utf-8")
    parts_of_others = {"ExpertGate", "HardConcrete"}
    names = [
        name
        for name in dir(layers)
        if isinstance(getattr(layers, name), type) and issubclass(getattr(layers, name), nn.Module)
    ]
    names += [name for name in dir(losses) if name.endswith(("loss", "Loss", "pred", "LambdaWeight"))]
    assert [name for name in names if f"`{name}" not in text and name not in {*parts_of_others, "LambdaWeight"}] == []
