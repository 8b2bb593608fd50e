"""Clipping by a global norm: the cases of the original, inputs that must stay, and what is not finite."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from torch import Tensor

from monolith.optim import clip_by_global_norm, clip_factor, global_norm, joint_clip, linear_warmup

DEVICES = [
    "cpu",
    pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")),
]
NAN = float("nan")
INF = float("inf")


def tensors(*values: object, device: str = "cpu") -> list[Tensor]:
    return [torch.tensor(value, dtype=torch.float32, device=device) for value in values]


def clipped_and_untouched(t_list: list[Tensor], clip_norm: float) -> tuple[list[Tensor], Tensor]:
    before = [tensor.clone() for tensor in t_list]
    result, norm = clip_by_global_norm(t_list, clip_norm)
    for tensor, copy in zip(t_list, before, strict=True):
        torch.testing.assert_close(tensor, copy, rtol=0, atol=0, equal_nan=True)
    assert all(tensor is not None for tensor in result)
    return [tensor.cpu() for tensor in result if tensor is not None], norm.cpu()


@pytest.mark.parametrize("device", DEVICES)
def test_two_tensors_of_norm_5_clipped_to_4(device: str) -> None:
    t_list = tensors([[-2.0, 0.0, 0.0], [4.0, 0.0, 0.0]], [1.0, -2.0], device=device)
    result, norm = clipped_and_untouched(t_list, 4.0)
    assert norm.item() == pytest.approx(5.0)
    torch.testing.assert_close(result[0], torch.tensor([[-1.6, 0.0, 0.0], [3.2, 0.0, 0.0]]))
    torch.testing.assert_close(result[1], torch.tensor([0.8, -1.6]))


@pytest.mark.parametrize("device", DEVICES)
def test_uneven_shapes(device: str) -> None:
    t_list = [torch.ones(3, 5, 7, device=device), torch.ones(1, device=device), torch.ones((), device=device)]
    result, norm = clipped_and_untouched(t_list, 1.0)
    assert norm.item() == pytest.approx(math.sqrt(107))
    assert [tensor.shape for tensor in result] == [(3, 5, 7), (1,), ()]
    assert global_norm(result).item() == pytest.approx(1.0, rel=1e-6)


@pytest.mark.parametrize("clip_norm", [5.0, 6.0, INF])
@pytest.mark.parametrize("device", DEVICES)
def test_within_the_limit_no_bit_changes(device: str, clip_norm: float) -> None:
    t_list = tensors([[-2.0, 0.0, 0.0], [4.0, 0.0, 0.0]], [1.0, -2.0], device=device)
    result, norm = clipped_and_untouched(t_list, clip_norm)
    assert norm.item() == pytest.approx(5.0)
    assert all(torch.equal(new, old.cpu()) for new, old in zip(result, t_list, strict=True))


@pytest.mark.parametrize("device", DEVICES)
def test_zero_norm(device: str) -> None:
    result, norm = clipped_and_untouched(tensors([[0.0, 0.0]], [0.0], device=device), 6.0)
    assert norm.item() == 0.0
    assert [tensor.tolist() for tensor in result] == [[[0.0, 0.0]], [0.0]]


@pytest.mark.parametrize("bad", [INF, -INF, NAN])
@pytest.mark.parametrize("clip_norm", [4.0, INF])
@pytest.mark.parametrize("device", DEVICES)
def test_a_norm_that_is_not_finite_makes_everything_nan(device: str, clip_norm: float, bad: float) -> None:
    result, norm = clipped_and_untouched(tensors([[-2.0, 0.0], [4.0, bad]], [1.0, -2.0], device=device), clip_norm)
    assert not math.isfinite(norm.item())
    assert math.isnan(norm.item()) == math.isnan(bad)
    assert all(tensor.isnan().all() for tensor in result)


@pytest.mark.parametrize("device", DEVICES)
def test_many_large_gradients(device: str) -> None:
    generator = torch.Generator().manual_seed(7)
    sizes = [(2000, 300), (1_000_001,), (1,), (17, 3, 5), (0, 4)]
    t_list = [(torch.randn(size, generator=generator) * 1000).to(device) for size in sizes]
    exact = math.sqrt(sum(float((tensor.cpu().double() ** 2).sum()) for tensor in t_list))
    result, norm = clipped_and_untouched(t_list, 10.0)
    assert norm.item() == pytest.approx(exact, rel=1e-6)
    for new, old in zip(result, t_list, strict=True):
        torch.testing.assert_close(new.double(), old.cpu().double() * (10.0 / exact), rtol=2e-6, atol=1e-12)


@pytest.mark.parametrize("device", DEVICES)
def test_the_norm_is_returned_and_not_its_square(device: str) -> None:
    assert global_norm(tensors([3.0], [4.0], device=device)).item() == 5.0
    assert global_norm(tensors([3.0, INF], device=device)).item() == INF
    assert clip_by_global_norm(tensors([3.0], [4.0], device=device), 1.0)[1].item() == 5.0


arrays = hnp.arrays(np.float64, hnp.array_shapes(max_dims=3, max_side=4, min_side=0), elements=st.floats(-1e3, 1e3))


@given(st.lists(arrays, max_size=5), st.floats(1e-3, 1e4))
def test_it_agrees_with_numpy(values: list[npt.NDArray[np.float64]], clip_norm: float) -> None:
    t_list = [torch.from_numpy(value) for value in values]
    result, norm = clipped_and_untouched(t_list, clip_norm)
    flat = np.concatenate([np.zeros(0), *(value.ravel() for value in values)])
    expected = float(np.sqrt(np.sum(flat * flat)))
    assert norm.item() == pytest.approx(expected, rel=1e-12)
    factor = clip_norm / expected if expected > clip_norm else 1.0
    for new, old in zip(result, values, strict=True):
        np.testing.assert_allclose(new.numpy(), old * factor, rtol=1e-9, atol=0)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_short_floats_are_summed_and_scaled_in_float32(dtype: torch.dtype) -> None:
    # In 16 bits the sum of squares would stop growing, or overflow, long before 10,000 times 10^2.
    t_list = [torch.full((10_000,), 10.0, dtype=dtype)]
    result, norm = clip_by_global_norm(t_list, 3.0)
    assert norm.dtype is torch.float32
    assert norm.item() == pytest.approx(1000.0)
    assert result[0] is not None
    assert result[0].dtype is dtype
    assert torch.equal(result[0], torch.full((10_000,), 0.03, dtype=dtype))


def test_mixed_precisions_keep_their_own() -> None:
    t_list = [torch.tensor([3.0]), torch.tensor([4.0], dtype=torch.float64), torch.tensor([12.0], dtype=torch.bfloat16)]
    result, norm = clip_by_global_norm(t_list, 1.3)
    assert norm.dtype is torch.float64
    assert norm.item() == pytest.approx(13.0)
    assert [tensor.dtype for tensor in result if tensor is not None] == [torch.float32, torch.float64, torch.bfloat16]


def test_strided_tensors_are_taken() -> None:
    base = torch.arange(12.0).reshape(3, 4)
    result, norm = clip_by_global_norm([base.T, base[:, ::2]], 1.0)
    exact = torch.cat([base.flatten(), base[:, ::2].flatten()])
    assert norm.item() == pytest.approx(exact.norm().item())
    torch.testing.assert_close(result[1], base[:, ::2] / exact.norm())


def test_missing_gradients_stay_missing() -> None:
    result, norm = clip_by_global_norm([None, torch.tensor([3.0, 4.0]), None], 2.5)
    assert norm.item() == pytest.approx(5.0)
    assert result[0] is None
    assert result[2] is None
    torch.testing.assert_close(result[1], torch.tensor([1.5, 2.0]))


@pytest.mark.parametrize("empty", [[], [None, None]])
def test_an_empty_list_has_norm_0(empty: list[Tensor | None]) -> None:
    assert global_norm(empty).item() == 0.0
    result, norm = clip_by_global_norm(empty, 1.0)
    assert result == empty
    assert result is not empty
    assert norm.item() == 0.0


@pytest.mark.parametrize("wrong", [(torch.ones(1),), torch.ones(2), None, {"a": torch.ones(1)}, iter([])])
def test_only_a_list_is_taken(wrong: object) -> None:
    with pytest.raises(TypeError, match=r"^t_list should be a list$"):
        clip_by_global_norm(wrong, 1.0)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"^t_list should be a list$"):
        global_norm(wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("item", "message"),
    [
        (1.0, "expected tensors and None, got float at position 1"),
        (torch.ones(2).to_sparse(), r"got torch.sparse_coo of torch.float32 at position 1; .*coalesce\(\).values\(\)"),
        (torch.ones(2, dtype=torch.int64), "got torch.strided of torch.int64 at position 1"),
        (torch.ones(2, dtype=torch.complex64), "got torch.strided of torch.complex64 at position 1"),
    ],
)
def test_what_has_no_norm_is_refused(item: object, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        clip_by_global_norm([torch.ones(1), item], 1.0)  # type: ignore[list-item]


@pytest.mark.parametrize("clip_norm", [0.0, -1.0, NAN])
def test_a_limit_that_is_none_is_refused(clip_norm: float) -> None:
    with pytest.raises(ValueError, match="clip_norm must be > 0, got"):
        clip_by_global_norm([torch.ones(1)], clip_norm)


@pytest.mark.parametrize("use_norm", [10.0, torch.tensor(10.0)])
def test_a_known_norm_is_used(use_norm: float | Tensor) -> None:
    result, norm = clip_by_global_norm([torch.tensor([3.0, 4.0])], 5.0, use_norm=use_norm)
    assert float(norm) == 10.0
    torch.testing.assert_close(result[0], torch.tensor([1.5, 2.0]))
    result, _ = clip_by_global_norm([torch.tensor([3.0, 4.0])], 5.0, use_norm=NAN)
    assert result[0] is not None
    assert result[0].isnan().all()


@given(st.floats(0, 1e6), st.floats(1e-6, 1e6))
def test_the_factor_never_enlarges_and_always_reaches_the_limit(norm: float, limit: float) -> None:
    factor = clip_factor(torch.tensor(norm, dtype=torch.float64), limit).item()
    assert 0 < factor <= 1
    assert norm * factor <= limit * (1 + 1e-12)
    assert (factor == 1) == (norm <= limit) or norm == pytest.approx(limit)


def test_dense_and_row_gradients_are_clipped_by_one_norm() -> None:
    # The published case: a row of ones, of which three dims and one dense parameter get a gradient of 1 each; SGD of 1.
    row, var = torch.ones(1, 4, requires_grad=True), torch.ones((), requires_grad=True)
    torch.autograd.backward(row[:, :3].sum() + var)
    clip = joint_clip([var.grad], [row.grad], clip_norm=1.0)
    assert clip.norm.item() == pytest.approx(2.0)
    assert var.grad is not None
    assert row.grad is not None
    clip.scale_dense_([var.grad, None])
    assert (var - var.grad).item() == pytest.approx(0.5)
    assert (row - float(clip.row_factor) * row.grad).tolist() == [[0.5, 0.5, 0.5, 1.0]]


def test_rows_may_have_a_limit_of_their_own_which_may_warm_up() -> None:
    dense, rows = [torch.tensor([3.0])], [torch.tensor([[4.0]])]
    clip = joint_clip(dense, rows, clip_norm=1000.0, row_clip_norm=2.5)
    assert clip.dense_factor.item() == 1.0
    assert clip.row_factor.item() == pytest.approx(0.5)
    warmup = linear_warmup(5.0, 10)
    factors = [
        joint_clip(dense, rows, clip_norm=5.0, row_clip_norm=warmup(step)).row_factor.item() for step in (0, 5, 10)
    ]
    assert factors == pytest.approx([0.0, 0.5, 1.0])


@pytest.mark.parametrize("bad", [INF, NAN])
def test_one_bad_row_spoils_both_sides(bad: float) -> None:
    clip = joint_clip([torch.ones(2)], [torch.tensor([[1.0, bad]])], clip_norm=1.0)
    assert math.isnan(clip.dense_factor.item())
    assert math.isnan(clip.row_factor.item())


def test_the_joint_factors_change_nothing_by_themselves_and_the_dense_side_on_request() -> None:
    dense = [torch.tensor([3.0]), torch.tensor([0.0, 4.0], dtype=torch.bfloat16)]
    rows = [torch.zeros(0, 4), torch.zeros(3)]
    clip = joint_clip(dense, (row for row in rows), clip_norm=1.0)
    assert [tensor.tolist() for tensor in dense] == [[3.0], [0.0, 4.0]]
    clip.scale_dense_(dense)
    assert dense[0].item() == pytest.approx(0.6)
    assert torch.equal(dense[1], torch.tensor([0.0, 0.8], dtype=torch.bfloat16))


def test_joint_limits_are_checked() -> None:
    with pytest.raises(ValueError, match="clip_norm must be > 0, got 0"):
        joint_clip([], [], clip_norm=0)
    with pytest.raises(ValueError, match="row_clip_norm must be >= 0, got -1"):
        joint_clip([], [], clip_norm=1.0, row_clip_norm=-1)
    assert joint_clip([], [], clip_norm=1.0).norm.item() == 0.0
