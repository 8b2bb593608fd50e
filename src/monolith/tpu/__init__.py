"""Tasks on TPUs: JAX runs the model, everything else is as in every other run.

The model of a task is compiled by JAX through torchax (`compiled_model.py`, read it first): rows are looked up on
the host by `Embeddings` and enter the step, their gradients are returned and applied by the row optimizers; optimizers
of torch update the dense weights on the host. So checkpoints, hooks and results are those of `monolith.train.Trainer`,
up to the rounding of JAX. `runner.py` has the runner and its flags.

Needs ``monolith-torch[tpu]``; neither jax nor torchax is imported before a runner needs them.
May import: what `monolith.train` may.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from monolith._deprecated import former_names as _former_names
from monolith.tpu.cloud_client import CloudTpu, TpuClient
from monolith.tpu.embedding_task import EmbeddingTask
from monolith.tpu.estimator import EmbeddingConfigSpec, TPUEstimator
from monolith.tpu.options import TpuConfig
from monolith.tpu.runner import TPURunner, checkpoints_iterator, main
from monolith.tpu.stopping_signals import EndOfStreamHook, with_stopping_signals
from monolith.tpu.torchax_shim import load_backend, require_versions

__all__ = [
    "CloudTpu",
    "EmbeddingConfigSpec",
    "EmbeddingTask",
    "EndOfStreamHook",
    "TPUEstimator",
    "TPURunner",
    "TpuClient",
    "TpuConfig",
    "checkpoints_iterator",
    "load_backend",
    "main",
    "require_versions",
    "with_stopping_signals",
]

if not TYPE_CHECKING:  # type checkers accept only the current names
    __getattr__ = _former_names(__name__, {"TpuOptions": "TpuConfig"})
