"""Calls that `torch.compile` does not compile."""

from __future__ import annotations

import functools
import sys
from typing import TYPE_CHECKING, ParamSpec, TypeVar

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

P = ParamSpec("P")
R = TypeVar("R")

_COMPILER = "torch._dynamo"


def uncompiled(function: Callable[P, R]) -> Callable[P, R]:
    """Applies `torch.compiler.disable` once the compiler is loaded: loading it takes as long as loading torch."""
    disabled: Callable[P, R] | None = None

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        nonlocal disabled
        if disabled is None:
            if _COMPILER not in sys.modules:
                return function(*args, **kwargs)
            disabled = torch.compiler.disable(function)  # type: ignore[no-untyped-call]
        return disabled(*args, **kwargs)

    return call
