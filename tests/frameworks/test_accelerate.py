"""Accelerate prepares, trains, saves and loads models with rows as any others."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from accelerate import Accelerator

from frameworks.ranker import IDS, Ranker, by_hand, predictions


@pytest.mark.parametrize("joined", [False, True])
def test_a_state_is_saved_and_loaded_bit_for_bit(tmp_path: Path, *, joined: bool) -> None:
    """With two optimizers beside each other, and with one in the other."""

    def begin() -> tuple[Accelerator, Ranker, list[torch.optim.Optimizer]]:
        accelerator, model = Accelerator(cpu=True), Ranker()
        adam = torch.optim.Adam(model.tower.parameters(), lr=0.1)
        optimizers = [model.emb.optimizer(adam)] if joined else [adam, model.emb.optimizer()]
        prepared = accelerator.prepare(model, *optimizers)
        return accelerator, prepared[0], list(prepared[1:])

    def train(accelerator: Accelerator, model: Ranker, optimizers: list[torch.optim.Optimizer], steps: range) -> None:
        for step in steps:
            for each in optimizers:
                each.zero_grad()
            accelerator.backward(model.loss(IDS + step))
            for each in optimizers:
                each.step()

    accelerator, model, optimizers = begin()
    train(accelerator, model, optimizers, range(2))
    accelerator.save_state(str(tmp_path / "state"))
    assert (tmp_path / "state" / "model.safetensors").is_file()
    accelerator.free_memory()
    accelerator, fresh, optimizers = begin()
    accelerator.load_state(str(tmp_path / "state"))
    assert predictions(fresh) == predictions(model) == predictions(by_hand(2))
    train(accelerator, fresh, optimizers, range(2, 4))
    assert predictions(fresh) == predictions(by_hand(4))
