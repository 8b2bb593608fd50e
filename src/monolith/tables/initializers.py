"""How the weights of a new row start. A segment's row is a function of the table's seed, the id and the segment alone.

So a row starts the same with one thread or many, here or on a server, before or after a restart. An id that was only
looked up has no row yet and reads as zeros; its first update starts from the values given here.
"""

from __future__ import annotations

from abc import ABC
from dataclasses import field, fields
from typing import ClassVar

from monolith.config import Config, config, require_at_least, require_finite, require_positive

__all__ = [
    "BatchSoftmaxInit",
    "Constant",
    "GlorotUniform",
    "Initializer",
    "Ones",
    "RandomNormal",
    "RandomUniform",
    "TruncatedNormal",
    "Zeros",
]


@config
class Initializer(Config, ABC):
    """The first weights of one segment."""

    kind: ClassVar[str]
    """Name of the rule in the core."""

    def kernel(self) -> tuple[str, dict[str, float]]:
        """Returns kind and every parameter of the core's kernel."""
        return self.kind, {f.name: float(getattr(self, f.name)) for f in fields(self)}


@config
class Zeros(Initializer):
    """All weights 0."""

    kind: ClassVar[str] = "zeros"


@config
class Ones(Initializer):
    """All weights 1."""

    kind: ClassVar[str] = "ones"


@config
class Constant(Initializer):
    """All weights the same."""

    kind: ClassVar[str] = "constant"
    constant: float = field(default=0.0, kw_only=False)

    def __post_init__(self) -> None:
        require_finite(self, "constant")


@config
class RandomUniform(Initializer):
    """Uniform in ``[minval, maxval)``; the constant `minval` when the two are equal."""

    kind: ClassVar[str] = "random_uniform"
    minval: float = field(default=-0.05, kw_only=False)
    maxval: float = field(default=0.05, kw_only=False)

    def __post_init__(self) -> None:
        require_finite(self, "minval", "maxval")
        if self.minval > self.maxval:
            raise ValueError(f"RandomUniform: minval must be <= maxval, got {self.minval!r} and {self.maxval!r}")


@config
class RandomNormal(Initializer):
    """Normal with the given mean and standard deviation."""

    kind: ClassVar[str] = "random_normal"
    mean: float = 0.0
    stddev: float = 0.05

    def __post_init__(self) -> None:
        require_finite(self, "mean")
        require_at_least(self, 0, "stddev")


@config
class TruncatedNormal(Initializer):
    """Normal, without what lies more than 2 `stddev` from the mean; `stddev` is that of the normal before the cut."""

    kind: ClassVar[str] = "truncated_normal"
    mean: float = 0.0
    stddev: float = 0.05

    def __post_init__(self) -> None:
        require_finite(self, "mean")
        require_at_least(self, 0, "stddev")


@config
class GlorotUniform(Initializer):
    """Uniform in ``[-limit, limit)`` with ``limit = sqrt(6 * scale / (1 + dim))``.

    Glorot's rule for the matrix of one row: a table has no fixed number of rows to count as inputs.
    """

    kind: ClassVar[str] = "glorot_uniform"
    scale: float = 1.0

    def __post_init__(self) -> None:
        require_positive(self, "scale")


@config
class BatchSoftmaxInit(Initializer):
    """The first estimate of the steps between two occurrences of an id, for the ``BatchSoftmax`` optimizer."""

    kind: ClassVar[str] = "constant"
    init_step_interval: float = field(kw_only=False)

    def __post_init__(self) -> None:
        if not self.init_step_interval >= 1:
            raise ValueError(f"init_step_interval should be >= 1, while got {self.init_step_interval}")
        require_finite(self, "init_step_interval")

    def kernel(self) -> tuple[str, dict[str, float]]:
        """Returns the core's kernel of a constant."""
        return self.kind, {"constant": float(self.init_step_interval)}
