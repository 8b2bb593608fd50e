"""Options for the averaging of dense gradients, from three environment variables."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from monolith import environment

Fusion: TypeAlias = Literal["none", "one", "grouped"]

_FUSIONS: Final[tuple[Fusion, ...]] = ("none", "one", "grouped")
_FUSION_VARIABLE = "MONOLITH_WITH_ALLREDUCE_FUSION"
_HALF_VARIABLE = "MONOLITH_WITH_ALLREDUCE_FP16"
_SKIP_VARIABLE = "MONOLITH_SKIP_ALLREDUCE"


@dataclass(frozen=True, slots=True, kw_only=True)
class AveragingConfig:
    """Options for the averaging of dense gradients.

    They must be the same on all ranks, so ``str()`` of them belongs into the call that the ranks agree on.
    """

    fusion: Fusion = "grouped"
    """What travels together: every tensor by itself (`none`), all in one piece (`one`), or pieces of up to 64 MiB
    (`grouped`).
    """
    half_precision: bool = False
    """Whether floats travel as float16: half the bytes, about three digits."""
    deterministic: bool = False
    """Whether gradients are gathered and added in the order of the ranks, as one process adds those of its
    micro-batches; else in the fastest order.
    """
    skip: bool = False
    """Whether nothing is averaged, so that ranks diverge: for measuring the cost of averaging."""

    @classmethod
    def from_environment(cls, *, deterministic: bool = False) -> AveragingConfig:
        """Reads the options from the variables; `deterministic` has none.

        Raises:
            ValueError: A value that is none of those above.
        """
        said = environment.first_of(_FUSION_VARIABLE) or "grouped"
        fusion = next((name for name in _FUSIONS if name == said), None)
        if fusion is None:
            raise ValueError(f"collective: {_FUSION_VARIABLE} must be none, one or grouped, got {said!r}")
        return cls(
            fusion=fusion,
            half_precision=_is_on(_HALF_VARIABLE),
            deterministic=deterministic,
            skip=_is_on(_SKIP_VARIABLE),
        )

    def __str__(self) -> str:
        order = "averaged in the order of ranks" if self.deterministic else "averaged"
        return f"{order}, fusion {self.fusion}" + ", float16" * self.half_precision + ", skipped" * self.skip


def _is_on(variable: str) -> bool:
    value = environment.first_of(variable) or "0"
    try:
        return int(value) != 0
    except ValueError as error:
        raise ValueError(f"collective: {variable} must be an integer, 0 for off, got {value!r}") from error
