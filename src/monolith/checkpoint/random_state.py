"""The state of a process's random generators: torch's, numpy's and Python's own."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

if TYPE_CHECKING:
    from collections.abc import Mapping


def random_state() -> dict[str, Any]:
    """Returns the state that `set_random_state` takes."""
    name, keys, position, has_gauss, cached = np.random.get_state(legacy=True)  # noqa: NPY002 - the global generator
    version, numbers, gauss = random.getstate()
    state: dict[str, Any] = {
        "torch": torch.get_rng_state(),
        "numpy": {"name": name, "keys": keys, "position": position, "has_gauss": has_gauss, "cached": cached},
        "python": {"version": version, "numbers": np.array(numbers, np.uint32), "gauss": gauss},
    }
    if torch.cuda.is_available() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        state["cuda"] = [each.cpu() for each in torch.cuda.get_rng_state_all()]
    return state


def set_random_state(state: Mapping[str, Any]) -> None:
    """Restores the generators; skips those of GPUs that this machine does not have."""
    torch.set_rng_state(state["torch"].clone())
    numpy = state["numpy"]
    np.random.set_state(  # noqa: NPY002 - the global generator
        (numpy["name"], numpy["keys"].copy(), numpy["position"], numpy["has_gauss"], numpy["cached"])
    )
    python = state["python"]
    random.setstate((python["version"], tuple(python["numbers"].tolist()), python["gauss"]))
    if "cuda" in state and torch.cuda.is_available():
        for device, each in enumerate(state["cuda"][: torch.cuda.device_count()]):
            torch.cuda.set_rng_state(each.clone(), device)
