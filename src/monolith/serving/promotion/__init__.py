"""Decides which version of a model answers: labels, canary, shadow, rollback, and the gate.

Read `promotion.py` first: it executes commands. `version_keeper.py` loads and frees versions of one model, which are
served by a `ModelRegistry`; `state.py` stores the decisions of operators; `gate.py` checks exports and, with
`DenseGate` of `live_model.py`, weights of the delta log. The server splits the requests: see `canary.py` and
`shadow.py` there.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from monolith._deprecated import former_names as _former_names

if TYPE_CHECKING:
    from monolith.serving.promotion.gate import GateConfig, PromotionGate
    from monolith.serving.promotion.promotion import Promotion, PromotionConfig

_HOMES = {
    "PromotionGate": "monolith.serving.promotion.gate",
    "GateConfig": "monolith.serving.promotion.gate",
    "Promotion": "monolith.serving.promotion.promotion",
    "PromotionConfig": "monolith.serving.promotion.promotion",
}
"""Names are imported on first use: a predictor has a gate, and needs no server."""

__all__ = ["GateConfig", "Promotion", "PromotionConfig", "PromotionGate"]


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(home), name)


def __dir__() -> list[str]:
    return sorted(__all__)


if not TYPE_CHECKING:  # type checkers accept only the current names
    __getattr__ = _former_names(__name__, {"Gate": "PromotionGate"}, __getattr__)
