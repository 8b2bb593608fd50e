"""Texts as ids: a hash of the column's name and the text, as `docs/formats/text_ids.md` states it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from monolith import _core

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch import Tensor

__all__ = ["text_ids"]


def text_ids(column: str, texts: Iterable[str | bytes]) -> Tensor:
    """The id of each text in a column of this name, int64: those that datasets make of the same texts.

    >>> text_ids("user", ["ann", "bob"])
    tensor([-213027350075802612, 9182411650582254010])

    Raises:
        TypeError: a text alone, or values that are no texts.
    """
    if isinstance(texts, str | bytes):
        raise TypeError(f"text_ids: expected texts, got the one text {texts!r}; put it into a list")
    encoded = [_encoded(text) for text in texts]
    offsets = np.cumsum([0, *map(len, encoded)], dtype=np.int64)
    return torch.from_numpy(_core.text_ids(column, np.frombuffer(b"".join(encoded), np.uint8), offsets))


def _encoded(text: object) -> bytes:
    if isinstance(text, str):
        return text.encode()
    if isinstance(text, bytes):
        return text
    raise TypeError(f"text_ids: expected texts, got a {type(text).__name__}: {text!r}")
