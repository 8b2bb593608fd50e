"""Inverse roots by eigenvectors and their application, against NumPy and against numbers worked by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from monolith.optim import apply_sparse_precond, eigen_inverse_root
from monolith.optim.preconditioner import grams, inverse_roots, multiply_axis, precondition_axis, written_out
from optim import dense_reference

# Eigenvalues 0, 0.0005, 4, 9, 16, 25, 100 on the diagonal, not in order; the damping of 0.001 is above the first two.
DIAGONAL = torch.diag(torch.tensor([9.0, 0.0, 100.0, 4.0, 0.0005, 25.0, 16.0]))


def positive_matrix(dim: int, seed: int) -> Tensor:
    factor = torch.randn(dim, dim, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return factor @ factor.T


def as_matrix(pvec: Tensor, pval: Tensor, offset: Tensor) -> Tensor:
    return written_out((pvec[None], pval[None], offset[None]))[0]


@pytest.mark.parametrize("p", [1, 2, 4, 6])
def test_with_all_eigenvalues_it_is_the_inverse_root(p: int) -> None:
    mat = positive_matrix(6, 0) + torch.eye(6)
    pvec, pval, offset = eigen_inverse_root(mat, p, 100, 100)
    assert offset.item() == 0.0
    root = as_matrix(pvec, pval, offset)
    product = torch.linalg.matrix_power(root, p) @ mat
    torch.testing.assert_close(product, torch.eye(6, dtype=torch.float64), rtol=1e-9, atol=1e-9)


def test_head_starts_above_the_damping_and_the_offset_is_the_mean_of_raw_eigenvalues() -> None:
    pvec, pval, offset = eigen_inverse_root(DIAGONAL, 2, 2, 1)
    assert offset.item() == pytest.approx((16 + 25) / 2)
    assert pvec.abs().argmax(dim=0).tolist() == [3, 0, 2]
    assert pval.tolist() == pytest.approx([1 / 2 - 20.5, 1 / 3 - 20.5, 1 / 10 - 20.5])


@pytest.mark.parametrize(
    ("head", "tail", "columns", "offset"),
    [
        (4, 1, [3, 0, 6, 5, 2], 0.0),  # nothing between head and tail
        (3, 3, [4, 3, 0, 6, 5, 2], 0.0),  # head reaches below the damping to have its number
        (4, 3, [1, 4, 3, 0, 6, 5, 2], 0.0),  # exactly all
        (5, 3, [1, 4, 3, 0, 6, 5, 2], 0.0),  # more than there are
        (1, 0, [3], (9 + 16 + 25 + 100) / 4),
        (0, 2, [5, 2], (4 + 9 + 16) / 3),
        (0, 0, [], (4 + 9 + 16 + 25 + 100) / 5),
    ],
)
def test_which_eigenvalues_are_kept(head: int, tail: int, columns: list[int], offset: float) -> None:
    pvec, pval, mean = eigen_inverse_root(DIAGONAL, 1, head, tail)
    assert pvec.shape == (7, len(columns))
    assert pvec.abs().argmax(dim=0).tolist() == columns
    assert mean.item() == pytest.approx(offset)
    kept = DIAGONAL.diagonal()[columns].clamp_min(1e-3)
    torch.testing.assert_close(pval, 1 / kept - offset)


def test_eigenvalues_that_all_lie_below_the_damping_count_as_the_damping() -> None:
    pvec, pval, offset = eigen_inverse_root(torch.zeros(3, 3), 2, 1, 1, damping=0.25)
    assert pvec.shape == (3, 2)
    assert pval.tolist() == [2.0, 2.0]
    assert offset.item() == 0.0


@given(
    dim=st.integers(1, 9), p=st.integers(1, 8), head=st.integers(0, 6), tail=st.integers(0, 6), seed=st.integers(0, 50)
)
def test_it_agrees_with_numpy(dim: int, p: int, head: int, tail: int, seed: int) -> None:
    mat = positive_matrix(dim, seed) * 0.01
    damping = float(torch.linalg.eigvalsh(mat).median()) + 1e-6
    pvec, pval, offset = eigen_inverse_root(mat, p, head, tail, damping)
    vectors, values, mean = dense_reference.eigen_inverse_root(mat.numpy(), p, head, tail, damping)
    assert offset.item() == pytest.approx(mean, rel=1e-9)
    np.testing.assert_allclose(pval.numpy(), values, rtol=1e-8, atol=1e-10)
    # Eigenvectors have no sign, so what is compared is the matrix they make.
    expected = (vectors * values) @ vectors.T + mean * np.eye(dim)
    np.testing.assert_allclose(as_matrix(pvec, pval, offset).numpy(), expected, rtol=1e-7, atol=1e-8)


@pytest.mark.parametrize(
    ("mat", "options", "message"),
    [
        (torch.zeros(2, 3), {}, r"expected a square matrix, got shape \(2, 3\)"),
        (torch.zeros(2), {}, r"expected a square matrix, got shape \(2,\)"),
        (torch.full((2, 2), torch.nan), {}, "holds NaN or infinity"),
        (torch.full((2, 2), torch.inf), {}, "holds NaN or infinity"),
        (torch.eye(2), {"p": 0}, "expected p >= 1"),
        (torch.eye(2), {"head": -1}, "head >= 0"),
        (torch.eye(2), {"tail": -1}, "tail >= 0"),
        (torch.eye(2), {"damping": 0.0}, "damping > 0"),
        (torch.eye(2), {"damping": float("nan")}, "damping > 0"),
    ],
)
def test_wrong_calls_are_refused(mat: Tensor, options: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        eigen_inverse_root(mat, **{"p": 2, "head": 1, "tail": 1, **options})  # type: ignore[arg-type]


SHAPES = [(5,), (5, 1), (1, 5), (4, 3), (2, 3, 4), (2, 1, 3, 2)]


@pytest.mark.parametrize("offset", [0.0, 0.75])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_application_agrees_with_numpy_on_every_axis(shape: tuple[int, ...], offset: float) -> None:
    generator = torch.Generator().manual_seed(1)
    tensor = torch.randn(shape, generator=generator, dtype=torch.float64)
    before = tensor.clone()
    rotating, expected, staying, at_once = tensor, tensor.numpy(), tensor[None], tensor[None]
    for axis, size in enumerate(shape):
        kept = max(1, size - 1)
        pvec = torch.randn(size, kept, generator=generator, dtype=torch.float64)
        pval = torch.randn(kept, generator=generator, dtype=torch.float64)
        rotating = apply_sparse_precond(rotating, pvec, pval, torch.tensor(offset))
        expected = dense_reference.apply_sparse_precond(expected, pvec.numpy(), pval.numpy(), offset)
        np.testing.assert_allclose(rotating.numpy(), expected, rtol=1e-10, atol=1e-12)
        stacked = (pvec[None], pval[None], torch.tensor([offset], dtype=torch.float64))
        staying = precondition_axis(staying, axis, stacked)
        at_once = multiply_axis(at_once, axis, written_out(stacked))
    assert rotating.shape == shape
    torch.testing.assert_close(staying[0], rotating)
    torch.testing.assert_close(at_once[0], rotating)
    assert torch.equal(tensor, before)


@pytest.mark.parametrize("shape", [*SHAPES, (255, 2), (256, 3), (257, 2), (2, 600), (513,)], ids=str)
def test_gram_is_symmetric_and_agrees_with_numpy(shape: tuple[int, ...]) -> None:
    tensor = torch.randn(shape, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    for axis in range(len(shape)):
        others = [each for each in range(len(shape)) if each != axis]
        products = grams(tensor[None], axis)[0]
        expected = np.tensordot(tensor.numpy(), tensor.numpy(), axes=(others, others))
        np.testing.assert_allclose(products.numpy(), expected, rtol=1e-10, atol=1e-12)
        assert torch.equal(products, products.T)


def test_stacks_give_each_its_own() -> None:
    generator = torch.Generator().manual_seed(3)
    tensors = torch.randn(4, 5, 3, generator=generator, dtype=torch.float64)
    # The third is 0 and the fourth small, so that the heads start at different eigenvalues.
    tensors *= torch.tensor([1.0, 3.0, 0.0, 0.02], dtype=torch.float64).view(-1, 1, 1)
    for axis in (0, 1):
        products = grams(tensors, axis)
        made = inverse_roots(products, 4, (1, 2), 1e-3)
        for each in range(4):
            alone = eigen_inverse_root(products[each], 4, 1, 2, 1e-3)
            torch.testing.assert_close(as_matrix(*(part[each] for part in made)), as_matrix(*alone))
        applied = precondition_axis(tensors, axis, made)
        torch.testing.assert_close(applied, multiply_axis(tensors, axis, written_out(made)))
        for each in range(4):
            alone_applied = precondition_axis(tensors[each : each + 1], axis, tuple(p[each : each + 1] for p in made))  # type: ignore[arg-type]
            torch.testing.assert_close(applied[each], alone_applied[0])
