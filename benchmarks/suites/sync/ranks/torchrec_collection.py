"""A rank that trains the tower of `sync_task` over torchrec's row-wise sharded collection, with Gloo.

It is given ready-made row numbers, one table for each slot, and its fused Adagrad; gradients of the tower are averaged
by its `DistributedDataParallel`.
"""

from __future__ import annotations

import importlib
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import nn

from benchmarks.suites.sync.task import DENSE_LEARNING_RATE, new_tower, row_numbers, rows_per_slot, slot_names
from monolith.cli._bench import ours
from monolith.cli._bench.measurement import RowSkippedError
from monolith.cli._bench.peers import LEARNING_RATE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from monolith.cli._bench.setting import Setting


@contextmanager
def opened(setting: Setting) -> Iterator[dict[str, Callable[[int], object]]]:
    """Yields the steps, with all rows inserted.

    Raises:
        RowSkippedError: torchrec or FBGEMM is not installed.
    """
    try:
        torchrec = importlib.import_module("torchrec")
    except (ImportError, OSError) as error:
        raise RowSkippedError(f"torchrec is not installed ({error}); see benchmarks/README.md") from error
    dist.init_process_group("gloo")
    try:
        yield {"step": _step(torchrec, setting, _sharded(torchrec, setting))}
    finally:
        dist.destroy_process_group()


class _Model(nn.Module):
    def __init__(self, torchrec: Any, setting: Setting) -> None:
        super().__init__()
        tables = [
            torchrec.EmbeddingBagConfig(
                name=name,
                embedding_dim=ours.DIM,
                num_embeddings=rows_per_slot(setting),
                feature_names=[name],
                pooling=torchrec.PoolingType.SUM,
            )
            for name in slot_names(setting)
        ]
        self.collection = torchrec.EmbeddingBagCollection(device=torch.device("meta"), tables=tables)
        self.top = new_tower(setting.features)

    def forward(self, ids: Any) -> torch.Tensor:
        """Logits."""
        logits: torch.Tensor = self.top(self.collection(ids).values()).squeeze(1)
        return logits


def _sharded(torchrec: Any, setting: Setting) -> Any:
    parts = {
        name: importlib.import_module(f"torchrec.{name}")
        for name in (
            "distributed.embeddingbag",
            "distributed.model_parallel",
            "distributed.sharding_plan",
            "distributed.types",
            "optim.apply_optimizer_in_backward",
        )
    }
    model, size = _Model(torchrec, setting), dist.get_world_size()
    parts["optim.apply_optimizer_in_backward"].apply_optimizer_in_backward(
        torch.optim.Adagrad, model.collection.parameters(), {"lr": LEARNING_RATE}
    )
    sharder = parts["distributed.embeddingbag"].EmbeddingBagCollectionSharder()
    plans = parts["distributed.sharding_plan"]
    plan = plans.construct_module_sharding_plan(
        model.collection,
        {name: plans.row_wise(compute_kernel="fused") for name in slot_names(setting)},
        sharder=sharder,
        local_size=size,
        world_size=size,
        device_type="cpu",
    )
    types = parts["distributed.types"]
    return parts["distributed.model_parallel"].DistributedModelParallel(
        model,
        env=types.ShardingEnv.from_process_group(dist.group.WORLD),
        device=torch.device("cpu"),
        plan=types.ShardingPlan({"collection": plan}),
        sharders=[sharder],
    )


def _step(torchrec: Any, setting: Setting, model: Any) -> Callable[[int], None]:
    tower = [parameter for name, parameter in model.named_parameters() if "top" in name]
    adam = torch.optim.Adam(tower, lr=DENSE_LEARNING_RATE)
    names, lengths = slot_names(setting), torch.ones(setting.ids_per_batch, dtype=torch.int32)
    batches = [(torch.from_numpy(rows.reshape(-1)), label) for rows, label in row_numbers(setting, dist.get_rank())]

    def step(number: int) -> None:
        rows, label = batches[number % len(batches)]
        ids = torchrec.KeyedJaggedTensor(keys=names, values=rows, lengths=lengths)
        adam.zero_grad()
        nn.functional.binary_cross_entropy_with_logits(model(ids), label).backward()  # type: ignore[no-untyped-call]
        adam.step()

    return step
