"""The inverse root of a matrix by its eigenvectors, and its application to one axis of a tensor: the heart of Shampoo.

A preconditioner of an axis of size n is kept as ``pvec`` [n, k], ``pval`` [k] and a number ``offset``, and stands for
the matrix ``pvec @ diag(pval) @ pvec.T + offset * I``.

The two public functions take one matrix or tensor, the others stacks of them: B stands in front of every shape, and
`axis` counts without it.
"""

from __future__ import annotations

import torch
from torch import Tensor

_STRIP = 256
"""Rows of a Gram matrix computed at a time, up to the diagonal; mirroring the rest saves up to half of the work."""


def eigen_inverse_root(
    mat: Tensor, p: int, head: int, tail: int, damping: float = 1e-3
) -> tuple[Tensor, Tensor, Tensor]:
    """Returns the most relevant eigenpairs of ``mat^(-1/p)``, and one number for all others.

    Eigenvalues are in ascending order. Kept are the `head` smallest that exceed `damping` and the `tail` largest;
    eigenvalues below `damping` count as `damping`.

    Args:
        mat: Symmetric [n, n]; only its lower triangle is read.
        p: The root.
        head: How many of the smallest eigenvalues to keep. If ``head + tail > n``, all n are kept.
        tail: How many of the largest eigenvalues to keep.
        damping: The least eigenvalue; must be positive.

    Returns:
        ``(pvec, pval, offset)``: the kept eigenvectors [n, k], the inverse roots of their eigenvalues minus the offset
        [k], and the offset, 0-dimensional: the mean of the eigenvalues between head and tail, 0 if all are kept.
        It is the mean of the eigenvalues themselves and not of their inverse roots, as in ByteDance Monolith.

    Raises:
        ValueError: `mat` is not square or not finite, or a number is out of range.
    """
    if mat.ndim != 2 or mat.shape[0] != mat.shape[1]:
        raise ValueError(f"eigen_inverse_root: expected a square matrix, got shape {tuple(mat.shape)}")
    if p < 1 or head < 0 or tail < 0 or not damping > 0:
        raise ValueError(
            f"eigen_inverse_root: expected p >= 1, head >= 0, tail >= 0 and damping > 0,"
            f" got p={p}, head={head}, tail={tail}, damping={damping}"
        )
    pvec, pval, offset = inverse_roots(mat.unsqueeze(0), p, (head, tail), damping)
    return pvec[0], pval[0], offset[0]


def apply_sparse_precond(tensor: Tensor, pvec: Tensor, pval: Tensor, offset: Tensor | float) -> Tensor:
    """Multiplies the first axis of `tensor` by the preconditioner and moves it to the end.

    Called once for every axis, in order, it applies all of them and brings the axes back to where they were.

    Args:
        tensor: [n, ...], at least one axis.
        pvec: [n, k].
        pval: [k].
        offset: One number.

    Returns:
        [..., n], new memory.
    """
    number = torch.as_tensor(offset, dtype=tensor.dtype, device=tensor.device).reshape(1)
    product = precondition_axis(tensor.unsqueeze(0), 0, (pvec.unsqueeze(0), pval.unsqueeze(0), number))
    return product.squeeze(0).movedim(0, -1)


def inverse_roots(mats: Tensor, p: int, kept: tuple[int, int], damping: float) -> tuple[Tensor, Tensor, Tensor]:
    """Computes `eigen_inverse_root` of every matrix of [B, n, n], with ``kept = (head, tail)``."""
    if not bool(torch.isfinite(mats).all()):
        raise ValueError(
            "eigen_inverse_root: the matrix holds NaN or infinity, so it has no eigenvalues;"
            " find the step whose gradient was not finite"
        )
    count, dim = mats.shape[0], mats.shape[1]
    head, tail = kept if sum(kept) <= dim else (dim, 0)
    values, vectors = torch.linalg.eigh(mats)
    start = (values <= damping).sum(dim=1, keepdim=True)
    start = torch.where(start == dim, 0, start).clamp_max(dim - head - tail)
    position = torch.arange(dim, device=mats.device)
    columns = torch.cat([start + position[:head], position[dim - tail :].expand(count, tail)], dim=1)
    roots = values.clamp_min(damping).pow(-1.0 / p).gather(1, columns)
    between = (position >= start + head) & (position < dim - tail)
    offset = (values * between).sum(dim=1) / between.sum(dim=1).clamp_min(1)
    pvec = vectors.gather(2, columns.unsqueeze(1).expand(count, dim, head + tail))
    return pvec, roots - offset.unsqueeze(1), offset


def precondition_axis(tensors: Tensor, axis: int, preconditioners: tuple[Tensor, Tensor, Tensor]) -> Tensor:
    """Multiplies `axis` of every tensor by its ``(pvec, pval, offset)``; the axes stay where they are."""
    pvec, pval, offset = preconditioners
    if axis == tensors.ndim - 2:
        product = (tensors.flatten(1, -2) if tensors.ndim > 2 else tensors.unsqueeze(1)) @ pvec
        product = (product.mul_(pval.unsqueeze(1)) @ pvec.mT).reshape(tensors.shape)
    else:
        front = tensors.movedim(axis + 1, 1)
        product = (pvec.mT @ front.flatten(2)).mul_(pval.unsqueeze(2))
        product = (pvec @ product).reshape(front.shape).movedim(1, axis + 1)
    # A pass of its own: as the beta of baddbmm this term took twice as long.
    return product.addcmul_(tensors, offset.view(-1, *(1 for _ in tensors.shape[1:])))


def multiply_axis(tensors: Tensor, axis: int, matrices: Tensor) -> Tensor:
    """Multiplies `axis` of every tensor by its symmetric matrix; the axes stay where they are."""
    if axis == tensors.ndim - 2:
        rows = tensors.flatten(1, -2) if tensors.ndim > 2 else tensors.unsqueeze(1)
        return (rows @ matrices).reshape(tensors.shape)
    front = tensors.movedim(axis + 1, 1)
    return (matrices @ front.flatten(2)).reshape(front.shape).movedim(1, axis + 1)


def written_out(preconditioners: tuple[Tensor, Tensor, Tensor]) -> Tensor:
    """Returns each ``(pvec, pval, offset)`` as one matrix: [B, n, n]."""
    pvec, pval, offset = preconditioners
    matrices = (pvec * pval.unsqueeze(1)) @ pvec.mT
    matrices.diagonal(dim1=1, dim2=2).add_(offset.unsqueeze(1))
    return matrices


def grams(tensors: Tensor, axis: int) -> Tensor:
    """Returns the products of all slices along `axis` with each other: symmetric [B, n, n] for an axis of size n."""
    count, size = tensors.shape[0], tensors.shape[axis + 1]
    rows = tensors.movedim(axis + 1, 1).reshape(count, size, tensors[0].numel() // size)
    if size <= _STRIP:
        return rows @ rows.mT
    out = rows.new_empty(count, size, size)
    for begin in range(0, size, _STRIP):
        strip = slice(begin, begin + _STRIP)
        out[:, strip, : begin + _STRIP] = rows[:, strip] @ rows[:, : begin + _STRIP].mT
        out[:, :begin, strip] = out[:, strip, :begin].mT
    return out
