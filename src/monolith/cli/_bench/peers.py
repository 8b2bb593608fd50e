"""Peers of the comparison: torch's static table, FBGEMM's fused one, and a Python dict in front of torch.

torch and FBGEMM get row numbers: they do no id mapping, which a table of ids has to do. All of them
start from the same weights and accumulators as ours, so that their results can be compared.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import logging
import warnings
from typing import Any, Final

import torch

from monolith.cli._bench.workload import WorkloadBatch, mixed_ids

LEARNING_RATE: Final = 0.01
INITIAL_ACCUMULATOR: Final = 0.1
EPSILON: Final = 1e-10

FBGEMM_DISTRIBUTION: Final = "fbgemm-gpu-cpu"
FBGEMM_VERSION: Final = "1.8.0"
"""The release built for torch 2.13; 1.9.0 and 1.7.0 do not load there."""

FBGEMM_INSTALL: Final = f"pip install --no-deps {FBGEMM_DISTRIBUTION}=={FBGEMM_VERSION} (with torch==2.13.0)"


class TorchBag:
    """`EmbeddingBag(sparse=True)` with bags of one id, and torch's sparse Adagrad."""

    def __init__(self, weights: torch.Tensor, gradient: torch.Tensor) -> None:
        # torch warns unless the check of sparse gradients is set explicitly; off for a benchmark.
        checks: Any = torch.sparse.check_sparse_tensor_invariants
        checks.disable()
        num_rows, dim = weights.shape
        self._bag = torch.nn.EmbeddingBag(num_rows, dim, mode="sum", sparse=True, _weight=weights.clone())
        self._optimizer = torch.optim.Adagrad(
            self._bag.parameters(), lr=LEARNING_RATE, initial_accumulator_value=INITIAL_ACCUMULATOR, eps=EPSILON
        )
        self._gradient = gradient
        self._offsets = torch.arange(len(gradient))

    def lookup(self, batch: WorkloadBatch) -> torch.Tensor:
        """Rows of the batch, float32 [n, dim]."""
        with torch.no_grad():
            return self._forward(batch.rows)

    def train(self, batch: WorkloadBatch) -> None:
        """Runs forward, backward from the fixed output gradient, and the optimizer step."""
        self.train_rows(batch.rows)

    def train_rows(self, rows: torch.Tensor) -> None:
        """Runs `train` on given row numbers."""
        self._optimizer.zero_grad(set_to_none=True)
        output = self._forward(rows)
        torch.autograd.backward(output, self._gradient)
        self._optimizer.step()

    def _forward(self, rows: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self._bag(rows, self._offsets)
        return output


class DictBag:
    """A Python dict from id to row number, in front of a `TorchBag` that it shares."""

    def __init__(self, bag: TorchBag, num_rows: int) -> None:
        ids = mixed_ids(torch.arange(num_rows).numpy()).tolist()
        self._rows = dict(zip(ids, range(num_rows), strict=True))
        self._bag = bag

    def train(self, batch: WorkloadBatch) -> None:
        """Maps the ids, then trains as torch does."""
        rows = self._rows
        self._bag.train_rows(torch.tensor([rows[id_] for id_ in batch.ids.tolist()]))


class FbgemmBag:
    """FBGEMM's table-batched embedding on the CPU, its Adagrad fused into the backward pass."""

    def __init__(self, weights: torch.Tensor, gradient: torch.Tensor, *, features: int) -> None:
        num_rows, dim = weights.shape
        self._table = _fused_adagrad(num_rows, dim, features)
        self._table.split_embedding_weights()[0].copy_(weights)
        (accumulator,) = self._table.split_optimizer_states()[0]
        accumulator.fill_(INITIAL_ACCUMULATOR)
        examples = len(gradient) // features
        # FBGEMM lays bags out feature by feature and returns [B, F * dim]; this is the same gradient in that order.
        self._gradient = gradient.view(features, examples, dim).transpose(0, 1).reshape(examples, features * dim)
        self._offsets = torch.arange(len(gradient) + 1)
        self._shape = (examples, features, dim)

    def lookup(self, batch: WorkloadBatch) -> torch.Tensor:
        """Rows of the batch, float32 [B, F * dim]."""
        with torch.no_grad():
            output: torch.Tensor = self._table(batch.rows, self._offsets)
        return output

    def train(self, batch: WorkloadBatch) -> None:
        """Runs forward, then backward with the update inside."""
        torch.autograd.backward(self._table(batch.rows, self._offsets), self._gradient)

    def flat(self, output: torch.Tensor) -> torch.Tensor:
        """Returns an output in the order of the batch's ids, float32 [n, dim]."""
        return output.view(self._shape).transpose(0, 1).reshape(-1, self._shape[2])


def find_fbgemm() -> str | None:
    """Returns the installed version of FBGEMM's CPU build, or None."""
    try:
        return importlib.metadata.version(FBGEMM_DISTRIBUTION)
    except importlib.metadata.PackageNotFoundError:
        return None


def describe() -> str:
    """Returns which peers are here, in which versions."""
    return f"torch {torch.__version__}, FBGEMM {find_fbgemm() or 'not installed'}"


def _fused_adagrad(num_rows: int, dim: int, features: int) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        logging.disable(logging.WARNING)
        try:
            training = importlib.import_module("fbgemm_gpu.split_table_batched_embeddings_ops_training")
            shared = importlib.import_module("fbgemm_gpu.split_table_batched_embeddings_ops_common")
            configs = importlib.import_module("fbgemm_gpu.split_embedding_configs")
            return training.SplitTableBatchedEmbeddingBagsCodegen(
                [(num_rows, dim, shared.EmbeddingLocation.HOST, training.ComputeDevice.CPU)],
                feature_table_map=[0] * features,
                optimizer=configs.EmbOptimType.EXACT_ADAGRAD,
                learning_rate=LEARNING_RATE,
                eps=EPSILON,
                pooling_mode=shared.PoolingMode.SUM,
                device=torch.device("cpu"),
            )
        finally:
            logging.disable(logging.NOTSET)
