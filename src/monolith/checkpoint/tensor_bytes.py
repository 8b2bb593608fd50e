"""Named tensors as a safetensors file in memory, to send them instead of saving them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from monolith.checkpoint.tensor_file import file_pieces, tensor_views

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

__all__ = ["tensors_from_bytes", "tensors_to_bytes"]


def tensors_to_bytes(tensors: Mapping[str, Tensor]) -> bytes:
    """Returns the bytes that a file of these tensors has.

    >>> tensors_from_bytes(tensors_to_bytes({"bias": torch.tensor([1.5])}), origin="here")
    {'bias': tensor([1.5000])}
    """
    return b"".join(file_pieces(tensors))


def tensors_from_bytes(data: bytes, *, origin: str) -> dict[str, Tensor]:
    """Returns the tensors of such bytes, as views of one copy of them.

    Raises:
        DataLossError: the bytes are no safetensors file; the message names `origin`.
    """
    return tensor_views(torch.frombuffer(bytearray(data or b"\0"), dtype=torch.uint8), origin)
