"""How dense parameters learn: optimizers, clipping, learning-rate schedules, gradients through a part of a model.

May import: `config`, `dependence`, `errors` and torch; never `tables`: what concerns rows takes and returns plain
tensors and numbers. Read `adaptive.py` first, then `_dense_optimizer.py`, which all optimizers share.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from monolith._deprecated import former_names as _former_names
from monolith.dependence import check_ops_dependence
from monolith.optim.adaptive import Adamom, Rmsprop
from monolith.optim.clipping import JointClip, clip_by_global_norm, clip_factor, global_norm, joint_clip
from monolith.optim.preconditioner import apply_sparse_precond, eigen_inverse_root
from monolith.optim.propagation import propagate_back_dict_gradients, propagate_back_gradients
from monolith.optim.schedules import (
    PolynomialDecay,
    Schedule,
    ScheduledLR,
    current_global_step,
    global_step_from,
    linear_warmup,
)
from monolith.optim.shampoo import Shampoo, ShampooConfig

__all__ = [
    "Adamom",
    "JointClip",
    "PolynomialDecay",
    "Rmsprop",
    "Schedule",
    "ScheduledLR",
    "Shampoo",
    "ShampooConfig",
    "apply_sparse_precond",
    "check_ops_dependence",
    "clip_by_global_norm",
    "clip_factor",
    "current_global_step",
    "eigen_inverse_root",
    "global_norm",
    "global_step_from",
    "joint_clip",
    "linear_warmup",
    "propagate_back_dict_gradients",
    "propagate_back_gradients",
]

if not TYPE_CHECKING:  # type checkers accept only the current names
    __getattr__ = _former_names(__name__, {"ShampooOptions": "ShampooConfig"})
