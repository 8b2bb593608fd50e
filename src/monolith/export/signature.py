"""Signatures of an exported model: inputs and outputs."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from monolith.data import TextColumn
from monolith.errors import DataLossError
from monolith.tensors import Ragged

DEFAULT_SIGNATURE = "serving_default"
"""Name of the signature of a task without named ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InputSpec:
    """A column of requests."""

    kind: Literal["ids", "dense"]
    dtype: str
    """Name of the torch dtype."""
    shape: tuple[int | None, ...]
    """None stands for the number of examples, and for variable dims."""
    ragged: bool = False
    texts: TextColumn | None = None
    """Conversion of texts to ids, if requests may have texts; None: requests have ids."""

    @classmethod
    def of(cls, values: Tensor | Ragged, kind: Literal["ids", "dense"], texts: TextColumn | None = None) -> InputSpec:
        """Returns the specification of an example column; any number of ids is accepted, whatever the example has."""
        if isinstance(values, Ragged):
            return cls(kind=kind, dtype=_dtype(values.flat_values), shape=(None, None), ragged=True, texts=texts)
        shape: tuple[int | None, ...] = (None, *values.shape[1:])
        return cls(kind=kind, dtype=_dtype(values), shape=shape, texts=texts)

    def to_json(self) -> dict[str, Any]:
        """Returns the specification as stored in a manifest."""
        document = {"kind": self.kind, "dtype": self.dtype, "shape": list(self.shape), "ragged": self.ragged}
        return document if self.texts is None else {**document, "texts": asdict(self.texts)}


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputSpec:
    """A prediction."""

    dtype: str
    shape: tuple[int | None, ...]

    @classmethod
    def of(cls, values: Tensor, num_rows: int) -> OutputSpec:
        """Returns the specification of an example output."""
        by_example = values.ndim > 0 and values.shape[0] == num_rows
        return cls(dtype=_dtype(values), shape=(None, *values.shape[1:]) if by_example else tuple(values.shape))


@dataclass(frozen=True, slots=True, kw_only=True)
class Signature:
    """Inputs and outputs of one kind of request."""

    inputs: dict[str, InputSpec]
    outputs: dict[str, OutputSpec]

    def to_json(self) -> dict[str, Any]:
        """Returns the signature as stored in a manifest."""
        return {
            "inputs": {name: spec.to_json() for name, spec in self.inputs.items()},
            "outputs": {name: {"dtype": spec.dtype, "shape": list(spec.shape)} for name, spec in self.outputs.items()},
        }

    @classmethod
    def from_json(cls, document: Any, *, origin: str) -> Signature:
        """Parses the output of `to_json`.

        Raises:
            DataLossError: the document is invalid.
        """
        try:
            inputs = {name: InputSpec(**_shaped(spec), texts=_texts(spec)) for name, spec in document["inputs"].items()}
            outputs = {name: OutputSpec(**_shaped(spec)) for name, spec in document["outputs"].items()}
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
