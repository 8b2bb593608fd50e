"""The inverse root of a matrix by its eigenvectors, and its application to one axis of a tensor: the heart of Shampoo.

A preconditioner of an axis of size n is kept as ``pvec`` [n, k], ``pval`` [k] and a number ``offset``, and stands for
the matrix ``pvec @ diag(pval) @ pvec.T + offset * I``.
"""

from __future__ import annotations

import torch
from torch import Tensor

_STRIP = 256
"""Rows of a Gram matrix computed at a time, up to the diagonal; mirroring the rest saves up to half of the work."""


def eigen_inverse_root(
    mat: Tensor, p: int, head: int, tail: int, damping: float = 1e-3
) -> tuple[Tensor, Tensor, Tensor]:
    """The eigenpairs of ``mat^(-1/p)`` that matter, and one number for all others.

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
        [k], and the offset, 0-dimensional: the mean of the eigenvalues between head and tail, 0 if none is left out.
        It is the mean of the eigenvalues themselves and not of their inverse roots, as in the original.

    Raises:
        ValueError: `mat` is not square or not finite, or a number is out of range.
    """
    _check_square(mat)
    if p < 1 or head < 0 or tail < 0 or not damping > 0:
        raise ValueError(
            f"eigen_inverse_root: expected p >= 1, head >= 0, tail >= 0 and damping > 0,"
            f" got p={p}, head={head}, tail={tail}, damping={damping}"
        )
    dim = mat.shape[0]
    values, vectors = torch.linalg.eigh(mat)
    start = int(torch.searchsorted(values, torch.full((), damping, dtype=mat.dtype, device=mat.device), right=True))
    start = 0 if start == dim else start
    if head + tail > dim:
        start, head, tail = 0, dim, 0
    start = min(start, dim - head - tail)
    first, last = slice(start, start + head), slice(dim - tail, dim)
    roots = values.clamp_min(damping).pow(-1.0 / p)
    between = values[start + head : dim - tail]
    offset = between.mean() if start + head + tail != dim else values.new_zeros(())
    pvec = torch.cat([vectors[:, first], vectors[:, last]], dim=1)
    return pvec, torch.cat([roots[first], roots[last]]) - offset, offset


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
    return precondition_axis(tensor, 0, (pvec, pval, float(offset))).movedim(0, -1)


def precondition_axis(tensor: Tensor, axis: int, preconditioner: tuple[Tensor, Tensor, float]) -> Tensor:
    """Multiplies `axis` of `tensor` by ``(pvec, pval, offset)``; the axes stay where they are."""
    pvec, pval, offset = preconditioner
    if axis == tensor.ndim - 1:
        matrix = tensor.reshape(-1, tensor.shape[axis])
        product = ((matrix @ pvec).mul_(pval) @ pvec.T).reshape(tensor.shape)
    else:
        front = tensor.movedim(axis, 0)
        matrix = front.reshape(front.shape[0], -1)
        product = (pvec @ (pvec.T @ matrix).mul_(pval.unsqueeze(1))).reshape(front.shape).movedim(0, axis)
    # A pass of its own: addmm with beta took twice as long for this term.
    return product if offset == 0 else product.add_(tensor, alpha=offset)


def multiply_axis(tensor: Tensor, axis: int, matrix: Tensor) -> Tensor:
    """Multiplies `axis` of `tensor` by a symmetric matrix; the axes stay where they are."""
    if axis == 0 and tensor.ndim <= 2:
        return matrix @ tensor
    if axis == tensor.ndim - 1:
        return tensor @ matrix
    front = tensor.movedim(axis, 0)
    return (matrix @ front.reshape(front.shape[0], -1)).reshape(front.shape).movedim(0, axis)


def written_out(pvec: Tensor, pval: Tensor, offset: float) -> Tensor:
    """The preconditioner as one matrix [n, n]."""
    matrix = (pvec * pval) @ pvec.T
    matrix.diagonal().add_(offset)
    return matrix


def gram(tensor: Tensor, axis: int) -> Tensor:
    """The products of all slices of `tensor` along `axis` with each other: symmetric [n, n] for an axis of size n."""
    size = tensor.shape[axis]
    matrix = tensor.movedim(axis, 0).reshape(size, -1)
    if size <= _STRIP:
        return matrix @ matrix.T
    out = matrix.new_empty(size, size)
    for begin in range(0, size, _STRIP):
        strip = slice(begin, begin + _STRIP)
        out[strip, : begin + _STRIP] = matrix[strip] @ matrix[: begin + _STRIP].T
        out[:begin, strip] = out[strip, :begin].T
    return out


def _check_square(mat: Tensor) -> None:
    if mat.ndim != 2 or mat.shape[0] != mat.shape[1]:
        raise ValueError(f"eigen_inverse_root: expected a square matrix, got shape {tuple(mat.shape)}")
    if not bool(torch.isfinite(mat).all()):
        raise ValueError(
            "eigen_inverse_root: the matrix holds NaN or infinity, so it has no eigenvalues;"
            " look for the step whose gradient was not finite"
        )
