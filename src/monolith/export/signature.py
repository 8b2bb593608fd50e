"""What an exported model can be asked, and what it answers."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from monolith.data.text_ids import TextColumn
from monolith.errors import DataLossError
from monolith.tensors import Ragged

__all__ = ["DEFAULT_SIGNATURE", "InputSpec", "OutputSpec", "Signature"]

DEFAULT_SIGNATURE = "serving_default"
"""The signature of a task that names none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InputSpec:
    """A column that requests have."""

    kind: Literal["ids", "dense"]
    dtype: str
    """As torch calls it."""
    shape: tuple[int | None, ...]
    """None stands for the number of examples, and for what differs between them."""
    ragged: bool = False
    texts: TextColumn | None = None
    """How texts become ids, where requests may have texts; None: they have the ids themselves."""

    @classmethod
    def of(cls, values: Tensor | Ragged, kind: Literal["ids", "dense"], texts: TextColumn | None = None) -> InputSpec:
        """That of an example; ids of any number are taken, however many the example has."""
        if isinstance(values, Ragged):
            return cls(kind=kind, dtype=_dtype(values.flat_values), shape=(None, None), ragged=True, texts=texts)
        shape: tuple[int | None, ...] = (None, *values.shape[1:])
        return cls(kind=kind, dtype=_dtype(values), shape=shape, texts=texts)

    def to_json(self) -> dict[str, Any]:
        """As a manifest has it."""
        document = {"kind": self.kind, "dtype": self.dtype, "shape": list(self.shape), "ragged": self.ragged}
        return document if self.texts is None else {**document, "texts": asdict(self.texts)}


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputSpec:
    """A prediction."""

    dtype: str
    shape: tuple[int | None, ...]

    @classmethod
    def of(cls, values: Tensor, num_rows: int) -> OutputSpec:
        """That of an example."""
        by_example = values.ndim > 0 and values.shape[0] == num_rows
        return cls(dtype=_dtype(values), shape=(None, *values.shape[1:]) if by_example else tuple(values.shape))


@dataclass(frozen=True, slots=True, kw_only=True)
class Signature:
    """One thing that a model can be asked."""

    inputs: dict[str, InputSpec]
    outputs: dict[str, OutputSpec]

    def to_json(self) -> dict[str, Any]:
        """As a manifest has it."""
        return {
            "inputs": {name: each.to_json() for name, each in self.inputs.items()},
            "outputs": {name: {"dtype": each.dtype, "shape": list(each.shape)} for name, each in self.outputs.items()},
        }

    @classmethod
    def from_json(cls, document: Any, *, origin: str) -> Signature:
        """What `to_json` gave.

        Raises:
            DataLossError: anything else.
        """
        try:
            inputs = {name: InputSpec(**_shaped(each), texts=_texts(each)) for name, each in document["inputs"].items()}
            outputs = {name: OutputSpec(**_shaped(each)) for name, each in document["outputs"].items()}
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise DataLossError(f"{origin}: not a signature: {error!r}") from error
        return cls(inputs=inputs, outputs=outputs)


def _shaped(document: dict[str, Any]) -> dict[str, Any]:
    shape = tuple(document["shape"])
    if not all(size is None or type(size) is int for size in shape) or not isinstance(document["dtype"], str):
        raise TypeError(f"shape {shape}, dtype {document['dtype']!r}")
    if not isinstance(getattr(torch, document["dtype"], None), torch.dtype):
        raise TypeError(f"dtype {document['dtype']!r}")
    return {**{name: value for name, value in document.items() if name != "texts"}, "shape": shape}


def _texts(document: dict[str, Any]) -> TextColumn | None:
    texts = document.get("texts")
    if texts is not None and document["dtype"] != "int64":
        raise TypeError(f"texts of {document['dtype']!r}")
    return None if texts is None else TextColumn(**texts)


def _dtype(values: Tensor) -> str:
    return str(values.dtype).removeprefix("torch.")
