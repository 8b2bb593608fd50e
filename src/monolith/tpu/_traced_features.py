"""Features of a batch during compilation: columns that are tensors are inputs, all others stay on the host."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias

import torch
from torch import Tensor

from monolith.errors import FailedPreconditionError, InvalidArgumentError
from monolith.nn.embeddings.lookup import EmbeddingOutputs

if TYPE_CHECKING:
    from monolith.nn import Embeddings

__all__ = ["BatchForm", "HostColumn", "TracedFeatures", "form_of", "looked_up_from"]

BatchForm: TypeAlias = dict[str, tuple[torch.Size, torch.dtype] | str]
"""Column -> shape and type of a tensor, or what else the column is, such as ``Ragged``."""


class HostColumn:
    """Placeholder of a column that cannot be an input of a compiled step: only embeddings on the host may use it.

    Args:
        name: Name of the column.
        kind: Type of the column, such as ``Ragged``.
    """

    __slots__ = ("_kind", "_name")

    def __init__(self, name: str, kind: str) -> None:
        self._name = name
        self._kind = kind

    def __getattr__(self, attribute: str) -> NoReturn:
        if attribute.startswith("__"):  # protocols of Python take an AttributeError for a no
            raise AttributeError(attribute)
        raise FailedPreconditionError(
            f"column {self._name!r}: a {self._kind} cannot enter a compiled step, as its size changes from batch to"
            f" batch; model_fn read its {attribute!r}. Give it to a slot of the embeddings (FirstN keeps the"
            " places of a list), or let input_fn make it a tensor"
        )


class TracedFeatures(Mapping[str, Any]):
    """The features of a batch, with tensors of JAX in the place of the columns that are tensors.

    Args:
        columns: All columns by name.
        num_rows: Examples of the batch.
    """

    __slots__ = ("_columns", "num_rows")

    def __init__(self, columns: Mapping[str, Any], num_rows: int) -> None:
        self._columns = dict(columns)
        self.num_rows = num_rows

    def __getitem__(self, name: str) -> Any:
        try:
            return self._columns[name]
        except KeyError:
            raise KeyError(f"batch has no column {name!r}; it has {', '.join(self._columns) or 'none'}") from None

    def __iter__(self) -> Iterator[str]:
        return iter(self._columns)

    def __len__(self) -> int:
        return len(self._columns)

    def is_looked_up_by(self, embeddings: Embeddings, batch: object) -> bool:
        """Returns whether `batch` has the unchanged columns of these features, for all slots of a module."""
        return batch is self or (
            isinstance(batch, Mapping)
            and all(name in self and batch.get(name) is self._columns[name] for name in embeddings.slots)
        )


def form_of(features: object) -> BatchForm:
    """Returns the form of a batch that a compiled step depends on.

    Raises:
        InvalidArgumentError: the batch is not a mapping.
    """
    if not isinstance(features, Mapping):
        raise InvalidArgumentError(
            f"tpu: a batch must be a mapping of columns by name, got {type(features).__name__}; let input_fn return"
            " dictionaries or Batches"
        )
    return {
        name: (values.shape, values.dtype) if isinstance(values, Tensor) else type(values).__name__
        for name, values in features.items()
    }


def looked_up_from(embeddings: Embeddings, buffer: Tensor) -> EmbeddingOutputs:
    """Returns the result of a lookup, from the already looked up outputs [B, W] of all slots."""
    outputs = {}
    for name, placed in embeddings.placed.items():
        part = buffer.narrow(1, placed.column, placed.width)
        outputs[name] = part.reshape(placed.combiner.shape(buffer.shape[0], placed.dim))
    return EmbeddingOutputs(outputs, buffer)
