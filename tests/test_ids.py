from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from monolith import ids

if TYPE_CHECKING:
    from collections.abc import Callable

INT64_MIN, INT64_MAX = -(1 << 63), (1 << 63) - 1
EXTREMES = [0, 1, -1, INT64_MIN, INT64_MAX, INT64_MIN + 1, 1 << 48, 1 << 54, (1 << 48) - 1, (1 << 54) - 1, -(1 << 54)]
any_id = st.integers(INT64_MIN, INT64_MAX)
id_lists = st.lists(any_id, max_size=20)


def bits(value: int) -> str:
    """The 64 binary digits of an id, highest first: what the layouts are defined on."""
    return format(value % (1 << 64), "064b")


def from_bits(digits: str) -> int:
    assert len(digits) == 64
    unsigned = int(digits, 2)
    return unsigned - (1 << 64) if unsigned >= 1 << 63 else unsigned


# The layouts once more, written on strings of binary digits.
REFERENCE: dict[str, Callable[[int], int]] = {
    "slot_v1": lambda f: int(bits(f)[:10], 2),
    "slot_v2": lambda f: int(bits(f)[1:16], 2),
    "signature_v1": lambda f: int(bits(f)[10:], 2),
    "signature_v2": lambda f: int(bits(f)[16:], 2),
    "v1_to_v2": lambda f: from_bits("0" + "00000" + bits(f)[:10] + bits(f)[16:]),
}


@pytest.mark.parametrize("name", REFERENCE)
@given(values=id_lists)
def test_every_kind_agrees_with_the_layout_written_in_binary_digits(name: str, values: list[int]) -> None:
    function: Callable[[Any], Any] = getattr(ids, name)
    values = values + EXTREMES
    expected = [REFERENCE[name](value) for value in values]
    assert [function(value) for value in values] == expected
    array = function(np.array(values, dtype=np.int64))
    assert isinstance(array, np.ndarray)
    assert array.dtype == np.int64
    assert array.tolist() == expected
    tensor = function(torch.tensor(values, dtype=torch.int64))
    assert isinstance(tensor, torch.Tensor)
    assert tensor.dtype == torch.int64
    assert tensor.tolist() == expected


@given(slot=st.integers(0, 1023), signature=any_id)
def test_v1_parts_are_recovered_from_a_packed_id(slot: int, signature: int) -> None:
    packed = ids.pack_v1(slot, signature)
    assert bits(packed) == format(slot, "010b") + bits(signature)[10:]
    assert ids.slot_v1(packed) == slot
    assert ids.signature_v1(packed) == signature % (1 << 54)
    assert (packed < 0) == (slot >= 512)


@given(slot=st.integers(0, 32767), signature=any_id)
def test_v2_parts_are_recovered_from_a_packed_id_that_is_never_negative(slot: int, signature: int) -> None:
    packed = ids.pack_v2(slot, signature)
    assert bits(packed) == "0" + format(slot, "015b") + bits(signature)[16:]
    assert ids.slot_v2(packed) == slot
    assert ids.signature_v2(packed) == signature % (1 << 48)
    assert packed >= 0
    assert ids.validate_v2(packed) == packed


@given(pairs=st.lists(st.tuples(st.integers(0, 1023), any_id), max_size=20))
def test_arrays_of_slots_pack_as_the_single_ids_do(pairs: list[tuple[int, int]]) -> None:
    slots = np.array([slot for slot, _ in pairs], dtype=np.int16)
    signatures = np.array([signature for _, signature in pairs], dtype=np.int64)
    packs: list[Callable[[Any, Any], Any]] = [ids.pack_v1, ids.pack_v2]  # any integer type of slots is taken
    for pack in packs:
        expected = [pack(slot, signature) for slot, signature in pairs]
        packed = pack(slots, signatures)
        assert packed.tolist() == expected
        assert pack(torch.from_numpy(slots), torch.from_numpy(signatures)).tolist() == expected


@given(value=any_id, slot=st.integers(0, 32767))
def test_switching_the_slot_keeps_the_signature(value: int, slot: int) -> None:
    switched = ids.switch_slot_v2(value, slot)
    assert (ids.slot_v2(switched), ids.signature_v2(switched)) == (slot, ids.signature_v2(value))
    switched = ids.switch_slot_v1(value, slot % 1024)
    assert (ids.slot_v1(switched), ids.signature_v1(switched)) == (slot % 1024, ids.signature_v1(value))
    assert ids.switch_slot_v1(value, ids.slot_v1(value)) == value


@given(value=any_id, slot=st.integers(0, 32767))
def test_v1_to_v2_with_a_slot_takes_that_slot(value: int, slot: int) -> None:
    assert ids.v1_to_v2(value, slot) == ids.pack_v2(slot, ids.signature_v1(value))
    assert ids.v1_to_v2(value) == ids.v1_to_v2(value, ids.slot_v1(value))


@given(value=any_id)
def test_an_int_may_be_the_unsigned_reading_of_the_same_bits(value: int) -> None:
    unsigned = value % (1 << 64)
    for function in (ids.slot_v1, ids.slot_v2, ids.signature_v1, ids.signature_v2, ids.v1_to_v2):
        assert function(unsigned) == function(value)
    assert ids.pack_v1(600, unsigned) == ids.pack_v1(600, value)
    assert ids.describe(unsigned) == ids.describe(value)


@pytest.mark.parametrize(("pack", "limit"), [(ids.pack_v1, 1024), (ids.pack_v2, 32768)])
def test_a_slot_out_of_range_is_refused_and_named(pack: Callable[..., Any], limit: int) -> None:
    tensor, array = torch.tensor([1, 2]), np.array([1, 2])
    for slot in (limit, limit + 7, 1 << 62, 1 << 80):
        for signature in (5, tensor, array):
            with pytest.raises(ValueError, match=f"^slot should be less than {limit}, while got {slot}$"):
                pack(slot, signature)
    with pytest.raises(ValueError, match=r"^slot should be at least 0, while got -3$"):
        pack(-3, 5)
    with pytest.raises(ValueError, match=f"^slot should be less than {limit}, while got {limit}$"):
        pack(torch.tensor([0, limit]), tensor)
    with pytest.raises(ValueError, match=r"^slot should be at least 0, while got -1$"):
        pack(np.array([-1, limit]), array)
    with pytest.raises(ValueError, match=f"while got {(1 << 64) - 1}$"):
        pack(np.array([(1 << 64) - 1, 0], dtype=np.uint64), array)


def test_the_slot_variants_check_the_slot_of_their_own_layout() -> None:
    assert ids.switch_slot_v2(1, 1024) == (1024 << 48) + 1
    with pytest.raises(ValueError, match="less than 1024, while got 1024"):
        ids.switch_slot_v1(1, 1024)
    with pytest.raises(ValueError, match="less than 32768, while got 32768"):
        ids.v1_to_v2(torch.tensor([1]), 32768)


@pytest.mark.parametrize("bad", [-1, INT64_MIN, (1 << 64) - 1])
def test_an_id_with_the_reserved_bit_is_not_a_v2_id(bad: int) -> None:
    slot = (bad % (1 << 64)) >> 48
    with pytest.raises(ValueError, match=f"^slot should be less than 32768, while got {slot}$"):
        ids.validate_v2(bad)
    if bad < 0:
        with pytest.raises(ValueError, match=f"while got {slot}$"):
            ids.validate_v2(torch.tensor([[0, bad]]))
        with pytest.raises(ValueError, match=f"while got {slot}$"):
            ids.validate_v2(np.array([0, bad]))


def test_minus_one_is_in_the_last_v2_slot() -> None:
    assert ids.slot_v2(-1) == 32767
    assert ids.slot_v1(-1) == 1023


def test_shapes_are_kept_and_empty_batches_work() -> None:
    for shape in [(0,), (0, 3), (), (2, 3), (1, 2, 2)]:
        tensor = torch.zeros(shape, dtype=torch.int64)
        assert ids.pack_v2(3, tensor).shape == shape
        assert ids.pack_v1(tensor, tensor).shape == shape
        assert ids.validate_v2(tensor).shape == shape
        assert ids.slot_v2(tensor.numpy()).shape == shape


def test_slots_broadcast_against_signatures() -> None:
    packed = ids.pack_v2(torch.tensor([[1], [2]]), torch.tensor([5, 6]))
    assert ids.slot_v2(packed).tolist() == [[1, 1], [2, 2]]
    assert ids.signature_v2(packed).tolist() == [[5, 6], [5, 6]]


def test_inputs_are_never_changed() -> None:
    tensor = torch.tensor(EXTREMES)
    array = tensor.numpy().copy()
    for function in (ids.slot_v1, ids.slot_v2, ids.signature_v1, ids.signature_v2, ids.v1_to_v2):
        function(tensor)
        function(array)
    ids.pack_v1(tensor & 1, tensor)
    assert tensor.tolist() == EXTREMES
    assert array.tolist() == EXTREMES


@pytest.mark.parametrize(
    "bad",
    [
        torch.tensor([1.0]),
        torch.tensor([1], dtype=torch.int32),
        torch.tensor([True]),
        np.array([1.5]),
        np.array([1], dtype=np.uint64),
        np.array(["1"]),
        1.0,
        float("nan"),
        True,
        None,
        "7",
        [1, 2],
    ],
)
def test_ids_of_another_type_are_refused(bad: Any) -> None:
    for function in (ids.slot_v1, ids.slot_v2, ids.signature_v1, ids.signature_v2, ids.v1_to_v2, ids.validate_v2):
        with pytest.raises(TypeError, match=r"^ids must be"):
            function(bad)
    with pytest.raises(TypeError, match=r"^signature must be"):
        ids.pack_v1(1, bad)


@pytest.mark.parametrize("bad", [torch.tensor([1.0]), torch.tensor([True]), np.array([1]), 1.0, True, None, "7"])
def test_slots_of_another_type_or_kind_are_refused(bad: Any) -> None:
    with pytest.raises(TypeError, match=r"^slot must be"):
        ids.pack_v1(bad, torch.tensor([1]))


def test_an_int_beyond_64_bits_is_refused() -> None:
    for bad in (1 << 64, INT64_MIN - 1):
        with pytest.raises(ValueError, match=f"^ids must fit 64 bits, got {bad}$"):
            ids.slot_v1(bad)


def test_describe_reports_the_parts_of_an_id() -> None:
    assert ids.describe(ids.pack_v1(1023, 1)) == f"{(1023 << 54) + 1}(v1|slot=1023|sig=1)"
    assert ids.describe(ids.pack_v2(32767, 12), version=2) == f"{(32767 << 48) + 12}(v2|slot=32767|sig=12)"
    assert ids.describe(0) == "0(v1|slot=0|sig=0)"
    with pytest.raises(ValueError, match="must be 1 or 2, got 3"):
        ids.describe(0, version=3)  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        ids.describe(1.5)  # type: ignore[arg-type]


def test_numpy_scalars_count_as_ints() -> None:
    assert ids.pack_v1(np.int64(3), np.int64(9)) == ids.pack_v1(3, 9)  # type: ignore[type-var]
    assert ids.slot_v1(np.uint64((1 << 64) - 1)) == 1023  # type: ignore[type-var]
