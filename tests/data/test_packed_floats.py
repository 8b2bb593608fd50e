"""Packed vectors are what the formula says, byte by byte."""

from __future__ import annotations

import struct

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from monolith.data import FirstBytes, Parser
from monolith.data.operators import UnpackFloats
from monolith.data.operators.unpack_floats import unpack_floats
from monolith.data.protos.instance_pb2 import Instance
from monolith.errors import DataLossError


def pack_floats(values: list[float]) -> bytes:
    """Packs a vector; the unpacked one differs by up to half a code's step and the rounding of the bounds."""
    vector = np.asarray(values, dtype=np.float64)
    if len(vector) <= 4:
        return b"UE_QTZ" + vector.astype("<f2").tobytes()
    halves = np.array([vector.min(), vector.max()], "<f2")
    low, high = halves.astype(np.float64)
    steps = (vector - low) / (high - low) * 255 if high > low else np.zeros_like(vector)
    return b"UE_QTZ" + halves.tobytes() + np.clip(np.rint(steps), 0, 255).astype(np.uint8).tobytes()


def unpacked(text: bytes, width: int) -> list[float]:
    """One vector, by the struct module and float64."""
    if not text:
        return [0.0] * width
    body = text.removeprefix(b"UE_QTZ")
    if width <= 4:
        return list(struct.unpack(f"<{width}e", body))
    low, high = struct.unpack("<2e", body[:4])
    return [low + code * (high - low) / 255 for code in body[4:]]


@given(
    st.integers(1, 9).flatmap(
        lambda width: st.lists(
            st.one_of(
                st.just(b""),
                st.lists(st.floats(-100, 100, width=16), min_size=width, max_size=width).map(pack_floats),
            ),
            max_size=4,
        ).map(lambda texts: (width, texts))
    )
)
def test_columns_unpack_as_single_vectors_do(drawn: tuple[int, list[bytes]]) -> None:
    width, texts = drawn
    vectors = unpack_floats(texts, width)
    assert vectors.shape == (len(texts), width)
    for text, vector in zip(texts, vectors.tolist(), strict=True):
        assert vector == pytest.approx(unpacked(text, width), rel=1e-5, abs=1e-4)


@given(st.lists(st.floats(-1000, 1000, width=16), min_size=5, max_size=40))
def test_packing_loses_half_a_step_at_most(values: list[float]) -> None:
    (vector,) = unpack_floats([pack_floats(values)], len(values)).tolist()
    step = (max(values) - min(values)) / 255
    assert vector == pytest.approx(values, abs=0.5 * step + 1e-3)


def test_bytes_of_the_format() -> None:
    assert pack_floats([1.0, -2.0]) == b"UE_QTZ" + struct.pack("<2e", 1.0, -2.0)
    packed = b"UE_QTZ" + struct.pack("<2e", -1.0, 1.0) + bytes([0, 255, 51, 204, 102])
    assert unpack_floats([packed], 5)[0].tolist() == pytest.approx([-1.0, 1.0, -0.6, 0.6, -0.2], abs=1e-6)
    assert pack_floats([-1.0, 1.0, -0.6, 0.6, -0.2]) == packed
    assert torch.equal(unpack_floats([pack_floats([3.0] * 6)], 6), torch.full((1, 6), 3.0))
    assert unpack_floats([], 3).shape == (0, 3)


def test_other_widths_and_other_bytes_are_refused_with_their_row() -> None:
    with pytest.raises(DataLossError, match="row 1: packed floats must have 16 bytes for 6 elements, got 15"):
        unpack_floats([b"", pack_floats([1.0] * 5)], 6)
    with pytest.raises(DataLossError, match=r"row 2: packed floats must begin with b'UE_QTZ', got b'XXXXXX'"):
        unpack_floats([b"", pack_floats([1.0]), b"X" * 8], 1)
    with pytest.raises(ValueError, match="width must be >= 1"):
        unpack_floats([], 0)


def test_a_column_of_an_instance_is_unpacked() -> None:
    samples = [Instance(), Instance()]
    samples[1].feature.add(name="fc_user_vector", bytes_value=[pack_floats([1.0, 2.0, 3.0])])
    parser = Parser("instance", [FirstBytes("fc_user_vector")])
    batch = parser.parse([sample.SerializeToString() for sample in samples])
    made = UnpackFloats("fc_user_vector", width=3)(batch)["fc_user_vector"]
    assert made.tolist() == [[0, 0, 0], [1, 2, 3]]  # type: ignore[union-attr]
    with pytest.raises(ValueError, match="width must be >= 1"):
        UnpackFloats("a", width=0)
