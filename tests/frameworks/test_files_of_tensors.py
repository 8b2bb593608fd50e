"""torch.save and safetensors hold the whole model, and a fresh process goes on with it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

from checkpoint.zygote import Zygote
from frameworks.ranker import Ranker, by_hand, predictions


def torch_save(model: Ranker, path: Path) -> None:
    torch.save(model.state_dict(), path)


def torch_load(model: Ranker, path: Path) -> None:
    model.load_state_dict(torch.load(path, weights_only=True))


WAYS: dict[str, tuple[Any, Any]] = {
    "torch": (torch_save, torch_load),
    "safetensors": (safetensors.torch.save_model, safetensors.torch.load_model),
}


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_a_fresh_process_predicts_the_same(way: str, zygote: Zygote, tmp_path: Path) -> None:
    save, _ = WAYS[way]
    model = by_hand(4)
    save(model, tmp_path / "model")
    code = (
        "from frameworks.ranker import Ranker, predictions\n"
        "from frameworks.test_files_of_tensors import WAYS\n"
        "model = Ranker()\n"
        "WAYS[arguments[0]][1](model, arguments[1])\n"
        "print(predictions(model))\n"
    )
    assert zygote.run(code, way, str(tmp_path / "model")) == ([predictions(model)], 0)
