"""State dictionaries as JSON values with a separate flat set of tensors, and back. Nothing is pickled.

JSON values stay as they are. Everything else becomes an object with one key, ``@``::

    {"@": "tensor", "name": "linear.weight"}      in the file of tensors
    {"@": "tuple", "items": [...]}
    {"@": "dict", "items": [[key, value], ...]}    keys that are not texts, or a dict with the key "@"
    {"@": "counter", "items": [[key, count], ...]} collections.Counter, which torch's schedulers keep
    {"@": "float", "value": "nan"}                 nan, inf, -inf
    {"@": "bytes", "base64": "..."}
    {"@": "array", "name": "..."}                  a numpy array, kept among the tensors
"""

from __future__ import annotations

import base64
import math
from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from monolith.errors import DataLossError, InvalidArgumentError

_TAG = "@"


class TreeEncoder:
    """Collects the tensors of several trees; a tensor that occurs twice is kept once."""

    def __init__(self) -> None:
        self.tensors: dict[str, Tensor] = {}
        """Name -> tensor, detached, not copied."""
        self._places: dict[tuple[Any, ...], str] = {}

    def encode(self, value: Any, name: str) -> Any:
        """Returns the JSON of a value; its tensors are collected under `name` and the keys that lead to them.

        Raises:
            InvalidArgumentError: a value that is neither plain nor a tensor; names the place.
        """
        if value is None or isinstance(value, bool | str | bytes | int | float | np.number | np.bool_):
            return _encode_plain(value)
        if isinstance(value, Tensor):
            return {_TAG: "tensor", "name": self._keep(value, name)}
        if isinstance(value, np.ndarray):
            return {_TAG: "array", "name": self._keep(torch.from_numpy(np.ascontiguousarray(value)), name)}
        if isinstance(value, Mapping):
            return self._encode_mapping(value, name)
        if isinstance(value, list | tuple):
            items = [self.encode(item, f"{name}/{number}") for number, item in enumerate(value)]
            return items if isinstance(value, list) else {_TAG: "tuple", "items": items}
        raise InvalidArgumentError(
            f"checkpoint: {name!r} is a {type(value).__name__}, which cannot be saved; state dictionaries may hold"
            " numbers, texts, bytes, None, tensors, arrays, and lists, tuples and dicts of them"
        )

    def _encode_mapping(self, value: Mapping[Any, Any], name: str) -> Any:
        pairs = [(key, self.encode(item, f"{name}/{key}")) for key, item in value.items()]
        if isinstance(value, Counter):
            return {_TAG: "counter", "items": [[self.encode(key, name), item] for key, item in pairs]}
        if all(isinstance(key, str) for key in value) and _TAG not in value:
            return dict(pairs)
        return {_TAG: "dict", "items": [[self.encode(key, name), item] for key, item in pairs]}

    def _keep(self, tensor: Tensor, name: str) -> str:
        tensor = tensor.detach()
        place = (tensor.data_ptr(), tuple(tensor.shape), tensor.stride(), tensor.dtype, tensor.device)
        if tensor.numel() and place in self._places:
            return self._places[place]
        if name in self.tensors:
            raise InvalidArgumentError(f"checkpoint: two tensors have the name {name!r}")
        self.tensors[name] = tensor
        self._places[place] = name
        return name


def decode(value: Any, tensors: Mapping[str, Tensor]) -> Any:
    """Returns the value that was encoded; tensors are those given, not copies.

    Raises:
        DataLossError: not something that `TreeEncoder` makes, or a tensor is missing.
    """
    if isinstance(value, list):
        return [decode(item, tensors) for item in value]
    if not isinstance(value, dict):
        return value
    if _TAG not in value:
        return {key: decode(item, tensors) for key, item in value.items()}
    try:
        return _DECODERS[value[_TAG]](value, tensors)
    except (KeyError, TypeError, ValueError) as error:
        raise DataLossError(f"checkpoint: {value!r} is not a saved value: {error!r}") from error


def _encode_plain(value: Any) -> Any:
    plain = value.item() if isinstance(value, np.generic) else value
    if isinstance(plain, bytes):
        return {_TAG: "bytes", "base64": base64.b64encode(plain).decode()}
    if isinstance(plain, float):
        plain = float(plain)
        return plain if math.isfinite(plain) else {_TAG: "float", "value": repr(plain)}
    return int(plain) if isinstance(plain, int) and not isinstance(plain, bool) else plain


def _pairs(value: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> dict[Any, Any]:
    return {decode(key, tensors): decode(item, tensors) for key, item in value["items"]}


_DECODERS: Mapping[str, Any] = {
    "tensor": lambda value, tensors: tensors[value["name"]],
    "array": lambda value, tensors: tensors[value["name"]].numpy(),
    "tuple": lambda value, tensors: tuple(decode(item, tensors) for item in value["items"]),
    "dict": _pairs,
    "counter": lambda value, tensors: Counter(_pairs(value, tensors)),
    "float": lambda value, _: float(value["value"]),
    "bytes": lambda value, _: base64.b64decode(value["base64"], validate=True),
}
