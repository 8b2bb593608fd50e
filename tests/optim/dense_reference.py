"""The dense optimizers once more, as plain NumPy in float64, written from their formulas step by step.

No shortcut of the real ones is taken: every sum is made at every step, every preconditioner is applied by `tensordot`,
zero or not. ``lr`` is a number.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]


@dataclass
class Adamom:
    lr: float = 5e-6
    ada_decay: float = 0.9999
    mom_decay: float = 0.99
    epsilon: float = 1e-6
    weight_decay: float = 0.0
    use_v2: bool = False
    m: Any = 0.0
    v: Any = 0.0
    c: Any = 0.0

    def update(self, var: Array, grad: Array) -> Array:
        h = self.weight_decay * var + grad
        self.m = self.mom_decay * self.m + (1 - self.mom_decay) * h
        self.v = self.ada_decay * self.v + h * h
        self.c = self.ada_decay * self.c + 1
        if self.use_v2:
            return np.asarray(var - self.lr * self.m / (np.sqrt(self.v / self.c) + self.epsilon))
        return np.asarray(var - self.lr * self.m / np.sqrt(self.v / self.c + self.epsilon))


@dataclass
class Rmsprop:
    lr: float = 5e-6
    beta1: float = 0.99
    beta2: float = 0.999
    epsilon: float = 1e-8
    weight_decay: float = 0.0
    use_v2: bool = False
    m: Any = 0.0
    v: Any = 0.0

    def update(self, var: Array, grad: Array) -> Array:
        h = self.weight_decay * var + grad
        if self.use_v2:
            self.v = self.beta2 * self.v + h * h
            self.m = self.beta1 * self.m + self.lr * h / (np.sqrt(self.v) + self.epsilon)
        else:
            self.v = self.v + (h * h - self.v) * (1 - self.beta2)
            self.m = self.beta1 * self.m + self.lr * h / np.sqrt(self.v + self.epsilon)
        return np.asarray(var - self.m)


def eigen_inverse_root(mat: Array, p: int, head: int, tail: int, damping: float = 1e-3) -> tuple[Array, Array, float]:
    eigenvalues, evec = np.linalg.eigh(mat)
    dim = mat.shape[0]
    non_zero = np.nonzero(eigenvalues > damping)[0]
    zeros = int(non_zero.min()) if len(non_zero) else 0
    powered = np.maximum(eigenvalues, damping) ** (-1.0 / p)
    if head + tail > dim:
        zeros, head, tail = 0, dim, 0
    elif zeros + head + tail > dim:
        zeros = dim - head - tail
    kept = [*range(zeros, zeros + head), *range(dim - tail, dim)]
    offset = 0.0
    if zeros + head + tail != dim:
        offset = float(np.mean(eigenvalues[zeros + head : dim - tail]))
    return evec[:, kept], powered[kept] - offset, offset


def apply_sparse_precond(tensor: Array, pvec: Array, pval: Array, offset: float) -> Array:
    scaled = np.tensordot(tensor, pvec, axes=([0], [0])) * pval
    moved = np.transpose(tensor, [*range(1, tensor.ndim), 0])
    return np.asarray(np.tensordot(scaled, pvec, axes=([-1], [-1])) + moved * offset)


@dataclass
class Shampoo:
    lr: float = 0.03
    beta_1: float = 0.9
    beta_2: float = 1.0
    warmup: int = 5000
    tau_1: int = 200
    tau_2: int = 20
    eigen_head: int = 100
    eigen_tail: int = 100
    damping_epsilon: float = 1e-3
    step: int = 0
    s: list[Any] = field(default_factory=list)
    g: list[Any] = field(default_factory=list)
    p: list[tuple[Array, Array, float]] = field(default_factory=list)
    d: Any = 0.0
    m: Any = 0.0
    pm: Any = 0.0

    def update(self, var: Array, grad: Array) -> Array:
        if not self.s:
            self.s = [0.0] * grad.ndim
            self.g = [0.0] * grad.ndim
            self.p = [(np.zeros((n, 1)), np.zeros(1), 0.0) for n in grad.shape]
        warmed_up = self.step > self.warmup
        precond = grad
        for i in range(grad.ndim):
            if self.step % self.tau_2 == 0:
                axes = [axis for axis in range(grad.ndim) if axis != i]
                self.g[i] = np.tensordot(grad, grad, axes=(axes, axes))
            if self.beta_2 < 1.0 - 1e-10:
                self.s[i] = self.beta_2 * self.s[i] + (1 - self.beta_2) * self.g[i]
            else:
                self.s[i] = self.s[i] + self.g[i]
            if warmed_up and self.step % self.tau_1 == 0:
                self.p[i] = eigen_inverse_root(
                    self.s[i], 2 * grad.ndim, self.eigen_head, self.eigen_tail, self.damping_epsilon
                )
            precond = apply_sparse_precond(precond, *self.p[i])
        self.d = self.d + grad * grad
        self.m = self.beta_1 * self.m + (1 - self.beta_1) * grad / np.sqrt(self.d + 1e-30)
        self.pm = self.beta_1 * self.pm + (1 - self.beta_1) * precond
        diag = self.lr * self.m
        second = self.lr * _norm(self.m) / (_norm(self.pm) + 1e-10) * self.pm
        rate = 0.0
        if warmed_up:
            rate = 1.0 if self.warmup == 0 else min(max(self.step / self.warmup - 1, 0.0), 1.0)
        self.step += 1
        return np.asarray(var - ((1 - rate) * diag + rate * second if warmed_up else diag))


def _norm(values: Array) -> float:
    return math.sqrt(float(np.sum(values * values)))
