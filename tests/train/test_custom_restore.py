"""What a task leaves in the collection ``CUSTOM_RESTORE_OP`` for the restore of its session."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from monolith.checkpoint import CUSTOM_RESTORE_OP, RestoreConfig, Saver
from monolith.errors import InvalidArgumentError
from monolith.hooks import CheckpointRestorerHook
from monolith.testing import ExampleTask
from monolith.train import Session, Trainer, TrainerConfig, add_to_collections, get_collection
from train.renamed_task import ALIASES, RenamedTask


class Renamed(RenamedTask):
    """With what `leaves` says in the collection."""

    leaves: tuple[Any, ...] = ()

    def build(self) -> None:
        super().build()
        for value in self.leaves:
            add_to_collections(CUSTOM_RESTORE_OP, value)


def leaving(*values: Any) -> type[Renamed]:
    return type("Leaving", (Renamed,), {"leaves": values})


@pytest.fixture
def config(tmp_path: Path) -> TrainerConfig:
    return TrainerConfig(model_dir=str(tmp_path))


@pytest.fixture
def weight(config: TrainerConfig) -> torch.Tensor:
    state: Any = Trainer(ExampleTask, config).train(steps=3)
    trained: torch.Tensor = state.model["top"].weight.detach().clone()
    return trained


@pytest.mark.parametrize("left", [ALIASES, RestoreConfig(alias_map=ALIASES)])
def test_a_trainer_applies_an_alias_map_or_options(config: TrainerConfig, weight: torch.Tensor, left: Any) -> None:
    looking = Trainer(leaving(left), config)
    next(looking.predict(steps=1))
    assert looking.state is not None
    assert torch.equal(looking.state.model["head"].weight, weight)  # type: ignore[index]
    state: Any = Trainer(leaving(left), config).train(steps=0)
    assert torch.equal(state.model["head"].weight, weight)
    assert state.global_step == 3


def test_the_restore_op_is_used_once_and_a_rebuilt_session_adds_it_again(
    config: TrainerConfig, weight: torch.Tensor
) -> None:
    assert config.model_dir is not None
    hook = CheckpointRestorerHook(Saver(config.model_dir))
    with Session(leaving(ALIASES)(), hooks=[hook]) as session:
        for _ in range(2):
            assert get_collection(CUSTOM_RESTORE_OP) is None
            assert torch.equal(session.state.model["head"].weight, weight)  # type: ignore[index]
            session.rebuild()


def test_the_dense_part_can_restart_from_scratch(config: TrainerConfig, weight: torch.Tensor) -> None:
    state: Any = Trainer(leaving(RestoreConfig(clear_nn=True)), config).train(steps=0)
    assert not torch.equal(state.model["head"].weight, weight)
    assert state.embeddings["emb"].num_rows > 0


@pytest.mark.parametrize("left", [("something",), (ALIASES, ALIASES), (7,)])
def test_anything_else_is_refused(config: TrainerConfig, weight: torch.Tensor, left: tuple[Any, ...]) -> None:
    with pytest.raises(InvalidArgumentError, match="expected one RestoreConfig or one alias map"):
        Trainer(leaving(*left), config).train(steps=0)
