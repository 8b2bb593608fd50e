"""The declaration of a feature field: how wide its rows are, how they learn, and how long they are kept."""

from __future__ import annotations

import inspect
import math
from dataclasses import field
from typing import TYPE_CHECKING, Literal, TypeAlias

from monolith.config import Config, config, require_at_least
from monolith.ids import NUM_SLOTS_V2
from monolith.nn.combiners import Combiner, CombinerLike, make_combiner
from monolith.tables import NEVER_DAYS, Compressor, Fp16, Fp32, Ftrl, Initializer, RandomUniform, RowOptimizer, Zeros

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor

LearningRate: TypeAlias = "float | Callable[[int], float]"
"""A number, or a schedule: any function from the global step to a number."""

IdLayout: TypeAlias = Literal["int64", "raw", "v2", "any"]
"""The form of a slot's ids.

``int64``: any int64, such as a 64-bit hash or a negative number; equal ids of two slots never share a row.
``raw``: the same rows, after checking that every id is in [0, 2^48): others are rejected.
``v2``: ids of `monolith.ids.pack_v2`, which carry the slot's number already.
``any``: any int64, and a table of its own for the slot, which is slower; for rows that were saved like that.
"""


@config
class Slice(Config):
    """Consecutive dimensions of a slot's rows that start and learn alike. Options not given are those of the slot.

    >>> Slot(slices=[Slice.bias(), Slice(8)]).dim
    9
    """

    dim: int = field(kw_only=False)
    """Number of weights, >= 1."""
    initializer: Initializer | None = None
    optimizer: RowOptimizer | None = None
    compressor: Compressor | None = None
    learning_rate: LearningRate | None = None
    """Instead of the optimizer's own."""

    def __post_init__(self) -> None:
        require_at_least(self, 1, "dim")
        _check_parts(self)

    @classmethod
    def bias(cls) -> Slice:
        """Returns a slice of one weight that starts at 0 and learns by FTRL: the slot's own contribution to a logit."""
        return cls(1, initializer=Zeros(), optimizer=Ftrl(initial_accumulator_value=1e-6, beta=1.0), compressor=Fp32())


@config
class Slot(Config):
    """A feature field, such as user, item or tags.

    Give `dim`, or `slices` where parts of a row learn differently. A slot that `shares` another one reads and trains
    the same rows with a combiner of its own, as the items of a history do.

    >>> slot = Slot(slices=[Slice(8), Slice(1)], combiner="mean", expire_days=30)
    >>> slot.dim, slot.combiner
    (9, ReduceMean())
    """

    dim: int | None = field(default=None, kw_only=False)
    """Weights of a row; None: the sum of the slices."""
    slices: Sequence[Slice] = ()
    """Parts of a row, end to end; empty: one slice of `dim`."""
    combiner: CombinerLike = "sum"
    """How the rows of an example's ids become one output."""

    initializer: Initializer = field(default_factory=RandomUniform)
    """The first weights of a new row."""
    optimizer: RowOptimizer | None = None
    """How rows learn; None: the optimizer of the `Embeddings`."""
    compressor: Compressor = field(default_factory=Fp16)
    """How a serving row keeps the weights; training always has float32."""
    learning_rate: LearningRate | None = None
    """Instead of the optimizer's own."""

    min_count: int = 0
    """An id gets a row after it was trained on this many times; 0: immediately."""
    expire_days: int = NEVER_DAYS
    """Rows that were not trained for this number of days are removed by later steps, and by `Embeddings.evict`."""

    shares: str | None = None
    """Name of the slot whose rows this one uses; then only combiner and padding are its own."""
    id_layout: IdLayout = "int64"
    padding_id: int | None = None
    """Stands for no id, such as -1: removed from every list of ids."""
    number: int | None = None
    """The slot in the bits of its ids, 0..32767; None: derived from the slot's name."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "combiner", make_combiner(self.combiner))
        object.__setattr__(self, "slices", tuple(self.slices))
        _check_padding(self)
        if self.shares is not None:
            _check_sharing(self)
            return
        _settle_dim(self)
        _check_parts(self)
        require_at_least(self, 0, "min_count", "expire_days")
        if self.id_layout not in {"int64", "raw", "v2", "any"}:
            raise ValueError(f"Slot: id_layout must be 'int64', 'raw', 'v2' or 'any', got {self.id_layout!r}")
        if self.number is not None and not 0 <= self.number < NUM_SLOTS_V2:
            raise ValueError(f"Slot: number must be in [0, {NUM_SLOTS_V2}), got {self.number}")

    @property
    def slice_dims(self) -> list[int]:
        """Dims of the slices, as `torch.split` takes them."""
        return [part.dim for part in self.slices]

    def split(self, output: Tensor) -> tuple[Tensor, ...]:
        """Splits the output of this slot into its slices.

        >>> import torch
        >>> bias, vector = Slot(slices=[Slice.bias(), Slice(8)]).split(torch.zeros(4, 9))
        >>> bias.shape, vector.shape
        (torch.Size([4, 1]), torch.Size([4, 8]))
        """
        return output.split_with_sizes(self.slice_dims, dim=-1)


def require_rate(rate: object, subject: str) -> None:
    """Rejects what is neither a schedule nor a number that can be a learning rate."""
    if callable(rate):
        _require_takes_step(rate, subject)
        return
    if isinstance(rate, bool) or not isinstance(rate, int | float):
        raise TypeError(f"{subject}: learning_rate must be a number or a function of the step, got {rate!r}")
    if not (math.isfinite(rate) and rate >= 0):
        raise ValueError(f"{subject}: learning_rate must be finite and >= 0, got {rate}")


def _require_takes_step(rate: Callable[..., object], subject: str) -> None:
    try:
        signature = inspect.signature(rate)
    except (TypeError, ValueError):  # built-in functions may have none
        return
    try:
        signature.bind(0)
    except TypeError as error:
        raise TypeError(
            f"{subject}: a function as learning_rate is called with the step alone, and {rate!r} cannot be: {error};"
            " bind parameters of its own by functools.partial"
        ) from error


_PARTS: dict[str, type[Config]] = {"initializer": Initializer, "optimizer": RowOptimizer, "compressor": Compressor}


def _check_parts(owner: Slice | Slot) -> None:
    subject = type(owner).__name__
    for name, kind in _PARTS.items():
        part = getattr(owner, name)
        if part is not None and not isinstance(part, kind):
            raise TypeError(f"{subject}: {name} must be one of monolith's {name}s, got {part!r}")
    if owner.learning_rate is not None:
        require_rate(owner.learning_rate, subject)


def _settle_dim(slot: Slot) -> None:
    """Sets both `dim` and `slices` from the one that was given."""
    for part in slot.slices:
        if not isinstance(part, Slice):
            raise TypeError(f"Slot: slices must be Slice(...), got {part!r}")
    dim: object = slot.dim
    if dim is None and not slot.slices:
        raise ValueError("Slot: dim or slices must be given; write Slot(dim=16)")
    if dim is not None and (isinstance(dim, bool) or not isinstance(dim, int)):
        raise TypeError(f"Slot: dim must be an integer, got {dim!r}")
    if slot.dim is not None and not slot.slices:
        object.__setattr__(slot, "slices", (Slice(slot.dim),))
    total = sum(part.dim for part in slot.slices)
    if slot.dim is not None and slot.dim != total:
        raise ValueError(f"Slot: dim is {slot.dim}, but the slices have {total} dims together; omit dim")
    object.__setattr__(slot, "dim", total)


def _check_padding(slot: Slot) -> None:
    padding_id: object = slot.padding_id
    if padding_id is None:
        return
    if isinstance(padding_id, bool) or not isinstance(padding_id, int):
        raise TypeError(f"Slot: padding_id must be an integer or None, got {padding_id!r}")
    if not -(2**63) <= padding_id < 2**63:
        raise ValueError(f"Slot: padding_id must be an int64, got {padding_id}")


def _check_sharing(slot: Slot) -> None:
    unshared = {
        "dim": slot.dim is None,
        "slices": not slot.slices,
        "optimizer": slot.optimizer is None,
        "learning_rate": slot.learning_rate is None,
        "min_count": slot.min_count == 0,
        "expire_days": slot.expire_days == NEVER_DAYS,
        "initializer": slot.initializer == RandomUniform(),
        "compressor": slot.compressor == Fp16(),
        "id_layout": slot.id_layout == "int64",
        "number": slot.number is None,
    }
    own_settings = [name for name, is_default in unshared.items() if not is_default]
    if own_settings:
        raise ValueError(
            f"Slot: it shares the rows of {slot.shares!r}, so {', '.join(own_settings)} must be set there, not here"
        )


def combiner_of(slot: Slot) -> Combiner:
    """Returns the slot's combiner, which is a `Combiner` once the slot is made."""
    return make_combiner(slot.combiner)
