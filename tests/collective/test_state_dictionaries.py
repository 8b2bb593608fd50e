"""Weights travel between ranks, rows do not: every rank has rows of its own."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import monolith as ml
from monolith import collective
from monolith.collective import calls
from monolith.hooks import BroadcastGlobalVariablesHook


class Recorder:
    def __init__(self) -> None:
        self.names: list[str] = []

    def broadcast_parameters(self, tensors: dict[str, torch.Tensor], root_rank: int) -> None:
        self.names = list(tensors)


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    made = Recorder()
    monkeypatch.setattr(calls, "library", lambda: made)
    return made


def test_row_entries_of_a_state_dictionary_are_skipped(recorder: Recorder) -> None:
    model = nn.ModuleDict({"emb": ml.Embeddings({"user": ml.Slot(2)}), "tower": nn.Linear(2, 1)})
    assert "emb.embedding_rows" in model.state_dict()
    collective.broadcast_parameters(model.state_dict())
    assert recorder.names == ["tower.weight", "tower.bias"]


def test_the_hook_does_not_even_read_them(recorder: Recorder) -> None:
    model = nn.ModuleDict({"emb": ml.Embeddings({"user": ml.Slot(2)}), "tower": nn.Linear(2, 1)})
    seen: list[str] = []

    def variables() -> dict[str, torch.Tensor]:
        state: dict[str, torch.Tensor] = model.state_dict()
        seen.extend(state)
        return state

    session: Any = None
    BroadcastGlobalVariablesHook(variables).after_create_session(session)
    assert "emb.embedding_rows" not in seen
    assert recorder.names == ["tower.weight", "tower.bias"]
