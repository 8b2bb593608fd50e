"""The row optimizers once more, as plain NumPy written from their formulas: what the core's kernels are compared with.

A reference holds the state of one row of one segment. With ``real=np.float64`` it is the rule without rounding; with
``real=np.float32`` it rounds after every operation as the kernels promise to, so that even the bits must agree (but
see ``is_exact``).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import Any, ClassVar

import numpy as np

from monolith.tables import row_optimizers as ro

Real = type[np.float64] | type[np.float32]
Vector = Any
"""A NumPy array of the reference's own real; NumPy cannot say so of one chosen at run time."""


class Reference(ABC):
    """One row of one segment. ``update`` returns the new weights and keeps the state."""

    is_exact: ClassVar[bool] = True
    """False for rules that sum over a row: they are free in the order, so float32 need not give the core's bits."""

    def __init__(self, config: Any, real: Real = np.float64) -> None:
        self.config = config
        self.real = real
        self.state: list[Vector] = []

    def option(self, name: str) -> Any:
        return self.real(np.float32(getattr(self.config, name)))

    def zeros(self, dim: int) -> Vector:
        return np.zeros(dim, self.real)

    def filled(self, dim: int, name: str) -> Vector:
        return np.full(dim, self.option(name), self.real)

    def decayed(self, w: Vector, g: Vector) -> Vector:
        return g + self.option("weight_decay_factor") * w

    def state_bytes(self) -> bytes:
        """The state as the core lays it out: reals as float32, steps as int64, end to end."""
        return b"".join(s.astype(np.int64 if s.dtype == np.int64 else np.float32).tobytes() for s in self.state)

    @abstractmethod
    def init(self, dim: int) -> None: ...

    @abstractmethod
    def update(self, w: Vector, g: Vector, lr: Any, step: int) -> Vector: ...


class Sgd(Reference):
    def init(self, dim: int) -> None:
        self.state = []

    def update(self, w: Vector, g: Vector, lr: Any, step: int) -> Vector:
        return w - lr * g


class Adagrad(Reference):
    def init(self, dim: int) -> None:
        runs = math.ceil(dim / self.config.hessian_compression_times)
        self.state = [self.filled(runs, "initial_accumulator_value")]

    def accumulate(self, h: Vector) -> Vector:
        run = self.config.hessian_compression_times
        if run == 1:
            self.state[0] = self.state[0] + h * h
            return self.state[0]
        squares = h.astype(np.float64) ** 2
        means = [squares[begin : begin + run].mean() for begin in range(0, len(h), run)]
        self.state[0] = self.state[0] + np.array(means).astype(self.real)
        return np.repeat(self.state[0], run)[: len(h)]

    def update(self, w: Vector, g: Vector, lr: Any, step: int) -> Vector:
        h = self.decayed(w, g)
        norm = self.accumulate(h)
        with np.errstate(divide="ignore", invalid="ignore"):
            return w - np.where(norm > 0, lr / np.sqrt(norm) * h, self.real(0))


class DynamicWdAdagrad(Adagrad):
    def init(self, dim: int) -> None:
        Adagrad.init(self, dim)
        self.state.append(np.array([-1], np.int64))

    def decay_at(self, step: int) -> Any:
        last = int(self.state[1][0])
        self.state[1] = np.array([step], np.int64)
        if not self.config.enable_dynamic_wd:
            return self.option("weight_decay_factor")
        gap = 1 if last < 0 else max(step - last, 1)
        temperature = self.config.dynamic_wd_temperature
        factor = 1 - math.exp(-gap / temperature)
        if self.config.flip_direction:
            factor = math.exp(-(gap - 1) / temperature)
        return self.real(np.float64(self.option("weight_decay_factor")) * factor)

    def update(self, w: Vector, g: Vector, lr: Any, step: int) -> Vector:
        decay = self.decay_at(step)
        if self.config.decouple_weight_decay:
            return w - (lr / np.sqrt(self.accumulate(g)) * g + lr * decay * w)
        h = g + decay * w
        return w - lr / np.sqrt(self.accumulate(h)) * h


class Adadelta(Reference):
    def init(self, dim: int) -> None:
        self.state = [self.zeros(dim), self.zeros(dim)]

    def update(self, w: Vector, g: Vector, lr: Any, step: int) -> Vector:
        rho, eps = self.option("averaging_ratio"), self.option("epsilon")
        a, b = self.state
        h = self.decayed(w, g)
        a = rho * a + (1 - rho) * (h * h)
        u = np.sqrt(b + eps) / np.sqrt(a + eps) * h
        self.state = [a, rho * b + (1 - rho) * (u * u)]
        return w - lr * u


class Adam(Reference):
    def init(self, dim: int) -> None:
        self.state = [self.zeros(dim), self.zeros(dim), self.powers()]

    def powers(self) -> Vector:
        return np.array([self.option("beta1"), self.option("beta2")], self.real)

    def next_powers(self, powers: Vector) -> Vector:
        grown = powers * self.powers()
        return np.where(grown < np.finfo(np.float32).tiny, self.real(0), grown)  # the core keeps no subnormals

    def moments(self, w: Vector, g: Vector) -> tuple[Vector, Vector, Vector]:
        """Next m and v, and the direction of the step."""
        beta1, beta2 = self.option("beta1"), self.option("beta2")
        h = self.decayed(w, g)
        m = self.state[0] + (h - self.state[0]) * (1 - beta1)
        v = self.state[1] + (h * h - self.state[1]) * (1 - beta2)
        return m, v, h * (1 - beta1) + beta1 * m if self.config.use_nesterov else m

    def step_size(self, lr: Any, powers: Vector) -> Any:
        return lr * np.sqrt(1 - powers[1]) / (1 - powers[0])

    def update(self, w: Vector, g: Vector, lr: Any, step: int) -> Vector:
        powers = self.state[2]
        m, v, direction = self.moments(w, g)
        self.state = [m, v, self.next_powers(powers)]
        return w - self.step_size(lr, powers) * direction / (np.sqrt(v) + self.option("epsilon"))


class AmsGrad(Adam):
    def init(self, dim: int) -> None:
        self.state = [self.zeros(dim), self.zeros(dim), self.zeros(dim), self.powers()]

    def update(self, w: Vector, g: Vector, lr: Any, step: int) -> Vector:
        powers = self.state[3]
        m, v, direction = self.moments(w, g)
        peak = np.maximum(self.state[2], v)
        self.state = [m, v, peak, self.next_powers(powers)]
        return w - self.step_size(lr, powers) * direction / (np.sqrt(peak) + self.option("epsilon"))


class Ftrl(Reference):
    def init(self, dim: int) -> None:
        self.state = [self.filled(dim, "initial_accumulator_value"), self.zeros(dim)]

    def gather(self, w: Vector, g: Vector, lr: Any) -> tuple[Vector, Vector]:
        n, z = self.state
        grown = n + g * g
        z = z + g - (np.sqrt(grown) - np.sqrt(n)) / lr * w
        self.state = [grown, z]
        return grown, z

    def divisor(self, n: Vector, lr: Any) -> Vector:
        return np.sqrt(n) + self.option("beta") + self.option("l2_regularization_strength") * lr

    def update(self, w: Vector, g: Vector, lr: Any, step: int) -> Vector:
        if lr == 0:
            return w
        n, z = self.gather(w, g, lr)
        l1 = self.option("l1_regularization_strength")
        with np.errstate(divide="ignore", invalid="ignore"):
            solution = lr * (np.sign(z) * l1 - z) / self.divisor(n, lr)
        return np.where(np.abs(z) > l1, solution, self.real(0))


class GroupFtrl(Ftrl):
    is_exact = False

    def update(self, w: Vector, g: Vector, lr: Any, step: int) -> Vector:
        if lr == 0:
            return w
        n, z = self.gather(w, g, lr)
        l1 = self.option("l1_regularization_strength")
        length = np.sqrt(np.sum(z * z))
        if length <= l1:
            return np.zeros_like(w)
        return lr * z * ((l1 - length) / length) / self.divisor(n, lr)


class GroupAdagrad(Reference):
    is_exact = False

    def init(self, dim: int) -> None:
        self.state = [self.filled(1, "initial_accumulator_value")]

    def update(self, w: Vector, g: Vector, lr: Any, step: int) -> Vector:
        if lr == 0:
            return w
        h = self.decayed(w, g)
        self.state = [self.state[0] + np.max(h * h)]
        eta = lr / (self.option("beta") + np.sqrt(self.state[0]))
        z = h - w / eta
        length = np.sqrt(np.sum(z * z))
        lasso = self.option("l2_regularization_strength")
        if length <= lasso:
            return np.zeros_like(w)
        return -eta * (length - lasso) / length * z


class Momentum(Reference):
    def init(self, dim: int) -> None:
        self.state = [self.zeros(dim)]

    def update(self, w: Vector, g: Vector, lr: Any, step: int) -> Vector:
        mu = self.option("momentum")
        n = self.state[0]
        following = mu * n - lr * self.decayed(w, g)
        self.state = [following]
        return w - mu * n + (1 + mu) * following if self.config.use_nesterov else w + following


class MovingAverage(Reference):
    def init(self, dim: int) -> None:
        self.state = []

    def update(self, w: Vector, g: Vector, lr: Any, step: int) -> Vector:
        mu = self.option("momentum")
        return mu * w + (1 - mu) * g


class RmsProp(Reference):
    """Double inside an element whatever `real` is; the root is that of the stored square."""

    def init(self, dim: int) -> None:
        self.state = [self.zeros(dim)]

    def fresh(self, mu: Any) -> Any:
        return 1 - mu

    def update(self, w: Vector, g: Vector, lr: Any, step: int) -> Vector:
        mu, decay = np.float64(self.option("momentum")), np.float64(self.option("weight_decay_factor"))
        d = g.astype(np.float64) + decay * w.astype(np.float64)
        n = (mu * self.state[0].astype(np.float64) + self.fresh(mu) * (d * d)).astype(self.real)
        self.state = [n]
        return (w.astype(np.float64) - np.float64(lr) / (np.sqrt(n).astype(np.float64) + 1) * d).astype(self.real)


class RmsPropV2(RmsProp):
    def fresh(self, mu: Any) -> Any:
        return np.float64(1)


class BatchSoftmax(Reference):
    def init(self, dim: int) -> None:
        self.state = [np.array([0], np.int64)]

    def update(self, w: Vector, g: Vector, lr: Any, step: int) -> Vector:
        interval = self.real(step - int(self.state[0][0]))
        self.state = [np.array([step], np.int64)]
        return (1 - lr) * w + lr * interval


class DelayCompensated(Reference):
    """`latest` is set by the test before an update; None means the call carried none."""

    def __init__(self, config: Any, real: Real = np.float64) -> None:
        super().__init__(config, real)
        self.base = make_reference(config.base, real)
        self.latest: Vector | None = None

    def init(self, dim: int) -> None:
        self.base.init(dim)

    def update(self, w: Vector, g: Vector, lr: Any, step: int) -> Vector:
        if self.latest is not None:
            g = g + self.option("lambda_") * (g * g) * (w - self.latest)
        return self.base.update(w, g, lr, step)

    def state_bytes(self) -> bytes:
        return self.base.state_bytes()


def reference_class(config: type[ro.RowOptimizer]) -> type[Reference]:
    """The reference of a rule: the class of this module that is called like its config."""
    found = globals().get(config.__name__)
    if found is None:
        raise NotImplementedError(f"{config.__name__} has no reference: write its rule as a class of that name, here")
    reference: type[Reference] = found
    return reference


def make_reference(config: ro.RowOptimizer, real: Real = np.float64) -> Reference:
    return reference_class(type(config))(config, real)
