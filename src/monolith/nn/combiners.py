"""Combiners: reduce the rows of one example's ids to the output of a slot.

Dims: B examples, D dim of a row, n of first-n::

    ids of 3 examples   [ [7, 3], [], [9, 9, 4] ]
    ReduceSum           [B, D]       row(7) + row(3)         0    row(9) + row(9) + row(4)
    ReduceMean          [B, D]       (row(7) + row(3)) / 2   0    (row(9) + row(9) + row(4)) / 3
    ReduceSqrtN         [B, D]       (row(7) + row(3)) / √2  0    (row(9) + row(9) + row(4)) / √3
    FirstN(2)           [B, 2, D]    row(7), row(3)          0 0  row(9), row(9)

An example without ids gives zeros, whatever the combiner.
"""

from __future__ import annotations

from abc import ABC
from dataclasses import field
from typing import ClassVar, Literal, TypeAlias

from monolith.config import Config, config

_LONGEST_SEQUENCE = 1 << 20
"""More places than any model attends to; keeps sizes of outputs far from overflow."""


@config
class Combiner(Config, ABC):
    """Base of the combiners."""

    number: ClassVar[int]
    """Number of the combiner in the pooling kernels."""
    max_seq_length: ClassVar[int] = 0
    """Places of a sequence; 0 for combiners that reduce it."""

    def shape(self, num_examples: int, dim: int) -> tuple[int, ...]:
        """Returns the shape of the output of a slot with rows of this dim."""
        return (num_examples, dim)

    def width(self, dim: int) -> int:
        """Returns the floats of the output per example."""
        return dim


@config
class ReduceSum(Combiner):
    """The rows added up. Every id learns from the full gradient of its example."""

    number: ClassVar[int] = 0


@config
class ReduceMean(Combiner):
    """The rows averaged. Every id learns from the gradient of its example divided by the number of ids."""

    number: ClassVar[int] = 1


@config
class ReduceSqrtN(Combiner):
    """The sum of the rows divided by the root of the number of ids, as TensorFlow's ``sqrtn``; so is the gradient."""

    number: ClassVar[int] = 3


@config
class FirstN(Combiner):
    """The rows of the first `n` ids side by side, for sequence models; missing places are zeros.

    Ids after the n-th do not show in the output and learn with a gradient of zero: they count as seen (for admission
    and expiry), but their weights move only if the row optimizer moves weights without a gradient.
    `Ragged.mask(n)` is true at the places that are filled.

    >>> FirstN(20).shape(num_examples=8, dim=16)
    (8, 20, 16)
    """

    number: ClassVar[int] = 2
    n: int = field(kw_only=False)
    """Places, > 0."""

    def __post_init__(self) -> None:
        if not 0 < self.n <= _LONGEST_SEQUENCE:
            raise ValueError(f"FirstN: n must be in [1, {_LONGEST_SEQUENCE}], got {self.n}")

    @property
    def max_seq_length(self) -> int:  # type: ignore[override]  # the one combiner whose value is its own
        """Length of the sequence: `n`."""
        return self.n

    def shape(self, num_examples: int, dim: int) -> tuple[int, ...]:
        """Returns a shape with a row for each place."""
        return (num_examples, self.n, dim)

    def width(self, dim: int) -> int:
        """Returns the floats of all places."""
        return self.n * dim


CombinerLike: TypeAlias = "Combiner | Literal['sum', 'mean', 'sqrtn'] | tuple[Literal['first_n'], int]"
"""A combiner, or its name; a sequence has its number of places as well."""


def make_combiner(like: CombinerLike) -> Combiner:
    """Returns the combiner of this name, or the combiner itself.

    >>> make_combiner("mean")
    ReduceMean()
    >>> make_combiner(("first_n", 20))
    FirstN(n=20)
    """
    match like:
        case Combiner():
            return like
        case "sum":
            return ReduceSum()
        case "mean":
            return ReduceMean()
        case "sqrtn":
            return ReduceSqrtN()
        case ("first_n", n):
            return FirstN(n)
        case "first_n":
            raise ValueError("combiner: 'first_n' needs a number of places; write FirstN(20) or ('first_n', 20)")
    raise ValueError(f"combiner must be 'sum', 'mean', 'sqrtn', ('first_n', n) or a Combiner, got {like!r}")
