"""Tasks on TPUs: JAX runs the model, everything else is as in every other run.

The model of a task is compiled by JAX through torchax (`compiled_model.py`, read it first): rows are looked up on
the host by `Embeddings` and enter the step, their gradients are returned and applied by the row optimizers; optimizers
of torch update the dense weights on the host. So checkpoints, hooks and results are those of `monolith.train.Trainer`,
up to the rounding of JAX. `runner.py` has the runner and its flags.

Needs ``monolith-torch[tpu]``; neither jax nor torchax is imported before a runner needs them.
May import: what `monolith.train` may.
"""

from __future__ import annotations

from monolith._doors import open_door as _open_door

__getattr__, __dir__, __all__ = _open_door(__name__, {"TpuOptions": "TpuConfig"})
