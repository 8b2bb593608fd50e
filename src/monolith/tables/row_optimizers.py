"""Update rules of rows: one config per rule, run by the kernels of the core.

Each config belongs to one segment of a table. The kernel receives the segment's learning rate with every call, so
schedules and warm-up live outside of it: :meth:`RowOptimizer.learning_rate_at` gives the rate of a step when the call
names none. Formulas, state sizes and worked numbers: ``docs/how-to/row-optimizers.md``.

In the formulas below ``w`` is the weight, ``g`` the gradient, ``lr`` the learning rate of the call, and
``h = g + weight_decay_factor * w``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import field, fields
from typing import ClassVar

from monolith import _core
from monolith.config import Config, config, require_at_least, require_between, require_finite, require_positive

__all__ = [
    "Adadelta",
    "Adagrad",
    "Adam",
    "AmsGrad",
    "BatchSoftmax",
    "DelayCompensated",
    "DynamicWdAdagrad",
    "Ftrl",
    "GroupAdagrad",
    "GroupFtrl",
    "Momentum",
    "MovingAverage",
    "RmsProp",
    "RmsPropV2",
    "RowOptimizer",
    "Sgd",
    "every_rule",
]

_NOT_FOR_THE_KERNEL = frozenset({"learning_rate", "warmup_steps", "use_beta1_warmup"})


@config
class RowOptimizer(Config, ABC):
    """A learning rule of one segment."""

    kind: ClassVar[str]
    """Name of the rule in the core and in the schema of a saved table."""

    stochastic_rounding: bool = False
    """Round each updated weight to a neighbour in binary16, up or down at random so that the mean is kept.

    Rows then lose nothing when they are served as ``Fp16``. Only updates round; assigned and initial weights do not.
    """

    def kernel(self) -> tuple[str, dict[str, float]]:
        """Returns kind and every parameter of the core's kernel; flags are 0 or 1."""
        names = [f.name for f in fields(self) if f.name not in _NOT_FOR_THE_KERNEL]
        parameters = {name: float(getattr(self, name)) for name in names}
        return self.kind, {**parameters, "delay_compensation_lambda": 0.0}

    @property
    def is_elementwise(self) -> bool:
        """True iff weights learn independently of their neighbours: equal adjacent segments may be joined to one."""
        kind, parameters = self.kernel()
        return _core.row_optimizer_kind(kind).is_elementwise(parameters)

    @abstractmethod
    def learning_rate_at(self, step: int) -> float:
        """Returns the learning rate of a global step (>= 0), warm-up applied."""


@config
class _WithLearningRate(RowOptimizer, ABC):
    learning_rate: float

    def __post_init__(self) -> None:
        require_at_least(self, 0, "learning_rate")

    def learning_rate_at(self, step: int) -> float:  # noqa: ARG002  # constant by nature
        return self.learning_rate


@config
class _WithWarmup(_WithLearningRate, ABC):
    warmup_steps: int = 0
    """The learning rate grows linearly from 0 at step 0 to its full value at this step; 0 switches warm-up off."""

    def __post_init__(self) -> None:
        require_at_least(self, 0, "learning_rate", "warmup_steps")

    def learning_rate_at(self, step: int) -> float:
        if self.warmup_steps == 0:
            return self.learning_rate
        return self.learning_rate * min(step / self.warmup_steps, 1.0)


@config
class Sgd(_WithWarmup):
    """``w -= lr * g``. No state."""

    kind: ClassVar[str] = "sgd"
    learning_rate: float = 0.01


@config
class Adagrad(_WithWarmup):
    """``norm += h^2; w -= lr / sqrt(norm) * h``, one ``norm`` per dimension. There is no epsilon."""

    kind: ClassVar[str] = "adagrad"
    learning_rate: float = 0.001
    initial_accumulator_value: float = 0.1
    hessian_compression_times: int = 1
    """Consecutive dimensions that share one ``norm``, fed with the mean of their ``h^2``: less state, coarser steps."""
    weight_decay_factor: float = 0.0

    def __post_init__(self) -> None:
        _WithWarmup.__post_init__(self)
        require_at_least(self, 0, "initial_accumulator_value", "weight_decay_factor")
        require_at_least(self, 1, "hessian_compression_times")


@config
class DynamicWdAdagrad(_WithWarmup):
    """Adagrad whose weight decay may be decoupled from the gradient and may depend on how long the row rested.

    With ``gap`` the steps since the row's last update (1 for a new row), ``enable_dynamic_wd`` multiplies the decay by
    ``1 - exp(-gap / temperature)``: rows that rested decay more; or, with ``flip_direction``, by
    ``exp(-(gap - 1) / temperature)``: rows that rested decay less.
    """

    kind: ClassVar[str] = "dynamic_wd_adagrad"
    learning_rate: float = 0.001
    initial_accumulator_value: float = 0.1
    hessian_compression_times: int = 1
    """As in :class:`Adagrad`."""
    weight_decay_factor: float = 0.0
    decouple_weight_decay: bool = False
    """Decay the weight directly, ``w -= lr * decay * w``, instead of through the gradient and its ``norm``."""
    enable_dynamic_wd: bool = False
    dynamic_wd_temperature: float = 1.0
    """In steps: the gap at which the dynamic factor has made 63 % of its way."""
    flip_direction: bool = False

    def __post_init__(self) -> None:
        _WithWarmup.__post_init__(self)
        require_at_least(self, 0, "initial_accumulator_value", "weight_decay_factor")
        require_at_least(self, 1, "hessian_compression_times")
        require_positive(self, "dynamic_wd_temperature")


@config
class Adadelta(_WithWarmup):
    """Steps of the size of past steps: ``u = sqrt(b + eps) / sqrt(a + eps) * h; w -= lr * u``.

    ``a`` and ``b`` are running means of ``h^2`` and ``u^2``; ``averaging_ratio`` is the weight of the past in them.
    """

    kind: ClassVar[str] = "adadelta"
    learning_rate: float = 0.01
    weight_decay_factor: float = 0.0
    averaging_ratio: float = 0.9
    epsilon: float = 0.01
    """Inside both roots."""

    def __post_init__(self) -> None:
        _WithWarmup.__post_init__(self)
        require_at_least(self, 0, "weight_decay_factor")
        require_between(self, 0, 1, "averaging_ratio")
        require_positive(self, "epsilon")


@config
class _AdamFamily(_WithWarmup, ABC):
    learning_rate: float = 0.01
    beta1: float = 0.9
    beta2: float = 0.99
    weight_decay_factor: float = 0.0
    use_nesterov: bool = False
    epsilon: float = 0.01
    """Outside the root, and large: it bounds the step of rarely seen rows."""

    def __post_init__(self) -> None:
        _WithWarmup.__post_init__(self)
        require_between(self, 0, 1, "beta1", "beta2", open_end=True)
        require_at_least(self, 0, "weight_decay_factor")
        require_positive(self, "epsilon")


@config
class Adam(_AdamFamily):
    """``w -= alpha * m / (sqrt(v) + epsilon)`` with running means ``m`` of ``h`` and ``v`` of ``h^2``.

    The bias correction in ``alpha`` counts the updates of the row, not the steps of the training.
    """

    kind: ClassVar[str] = "adam"
    use_beta1_warmup: bool = False
    """Exists only in the schema of ByteDance Monolith, where it had no effect; True is rejected rather than ignored."""

    def __post_init__(self) -> None:
        _AdamFamily.__post_init__(self)
        if self.use_beta1_warmup:
            raise ValueError("Adam: use_beta1_warmup must be False: no rule was ever defined for it; remove the option")


@config
class AmsGrad(_AdamFamily):
    """:class:`Adam` whose denominator takes the largest ``v`` the row has seen (not bias-corrected)."""

    kind: ClassVar[str] = "amsgrad"


@config
class _FtrlFamily(_WithWarmup, ABC):
    learning_rate: float = 0.01
    beta: float
    initial_accumulator_value: float
    l1_regularization_strength: float = 0.0
    l2_regularization_strength: float = 0.0

    def __post_init__(self) -> None:
        _WithWarmup.__post_init__(self)
        require_at_least(self, 0, "beta", "initial_accumulator_value")
        require_at_least(self, 0, "l1_regularization_strength", "l2_regularization_strength")


@config
class Ftrl(_FtrlFamily):
    """Follow the regularized leader: weights whose evidence stays below L1 are exactly 0.

    An update with ``lr == 0`` (step 0 of a warm-up) is skipped, since the rule divides by it.
    """

    kind: ClassVar[str] = "ftrl"
    beta: float = 0.0
    initial_accumulator_value: float = 0.1


@config
class GroupFtrl(_FtrlFamily):
    """:class:`Ftrl` whose L1 acts on the complete segment: all its weights become 0 together."""

    kind: ClassVar[str] = "group_ftrl"
    beta: float = 1.0
    initial_accumulator_value: float = 0.0


@config
class GroupAdagrad(_WithWarmup):
    """Adagrad with one accumulator for the segment and a group lasso: all weights of the segment become 0 together.

    The accumulator grows by the largest ``h^2``. An update with ``lr == 0`` is skipped.
    """

    kind: ClassVar[str] = "group_adagrad"
    learning_rate: float = 0.01
    beta: float = 0.0
    initial_accumulator_value: float = 0.1
    l2_regularization_strength: float = 0.0
    """Strength of the lasso on the segment's L2 norm."""
    weight_decay_factor: float = 0.0

    def __post_init__(self) -> None:
        _WithWarmup.__post_init__(self)
        require_at_least(self, 0, "beta", "initial_accumulator_value")
        require_at_least(self, 0, "l2_regularization_strength", "weight_decay_factor")


@config
class Momentum(_WithWarmup):
    """``n = momentum * n - lr * h; w += n``, or the look-ahead form of Nesterov."""

    kind: ClassVar[str] = "momentum"
    learning_rate: float = 0.01
    weight_decay_factor: float = 0.0
    use_nesterov: bool = False
    momentum: float = 0.9

    def __post_init__(self) -> None:
        _WithWarmup.__post_init__(self)
        require_at_least(self, 0, "weight_decay_factor")
        require_between(self, 0, 1, "momentum")


@config
class MovingAverage(RowOptimizer):
    """``w = momentum * w + (1 - momentum) * g``: the "gradient" is a sample to average. No learning rate, no state."""

    kind: ClassVar[str] = "moving_average"
    momentum: float = 0.9

    def __post_init__(self) -> None:
        require_between(self, 0, 1, "momentum")

    def learning_rate_at(self, step: int) -> float:  # noqa: ARG002  # the rule has no rate
        """Returns 0: the rule has no learning rate."""
        return 0.0


@config
class _RmsPropFamily(_WithLearningRate, ABC):
    learning_rate: float = 0.01
    weight_decay_factor: float = 0.0
    momentum: float = 0.9

    def __post_init__(self) -> None:
        _WithLearningRate.__post_init__(self)
        require_at_least(self, 0, "weight_decay_factor")
        require_between(self, 0, 1, "momentum")


@config
class RmsProp(_RmsPropFamily):
    """``n = momentum * n + (1 - momentum) * h^2; w -= lr / (sqrt(n) + 1) * h``: ``n`` is a running mean."""

    kind: ClassVar[str] = "rmsprop"


@config
class RmsPropV2(_RmsPropFamily):
    """``n = momentum * n + h^2; w -= lr / (sqrt(n) + 1) * h``: ``n`` is a fading sum."""

    kind: ClassVar[str] = "rmspropv2"


@config
class BatchSoftmax(_WithLearningRate):
    """Estimates the number of steps between two occurrences of an id, for sampled softmax; the gradient is ignored.

    ``w = (1 - lr) * w + lr * (step - last_step)``. The segment's dim is 1; 1 / max(w, 1) is the sampling probability.
    Start rows with ``BatchSoftmaxInit``.
    """

    kind: ClassVar[str] = "batch_softmax"
    learning_rate: float = 0.1

    def __post_init__(self) -> None:
        require_between(self, 0, 1, "learning_rate")


@config
class DelayCompensated(RowOptimizer):
    """Corrects gradients computed on old weights before `base` sees them: ``g + lambda_ * g^2 * (w - latest)``.

    ``latest`` are the weights the worker computed with, passed to the update; without them `base` runs unchanged.
    """

    base: RowOptimizer = field(kw_only=False)
    lambda_: float = field(default=0.0, kw_only=False)

    def __post_init__(self) -> None:
        base: object = self.base  # what a caller without a type checker may have passed
        if not isinstance(base, RowOptimizer) or isinstance(base, DelayCompensated):
            raise TypeError(f"DelayCompensated: base must be a plain row optimizer, got {base!r}")
        require_finite(self, "lambda_")

    def kernel(self) -> tuple[str, dict[str, float]]:
        """Returns the kernel of `base` with the compensation switched on; rounds if either of the two rounds."""
        kind, parameters = self.base.kernel()
        rounding = float(self.stochastic_rounding or self.base.stochastic_rounding)
        return kind, {**parameters, "stochastic_rounding": rounding, "delay_compensation_lambda": float(self.lambda_)}

    def learning_rate_at(self, step: int) -> float:
        """Returns the learning rate of `base`."""
        return self.base.learning_rate_at(step)


def every_rule() -> list[type[RowOptimizer]]:
    """Returns the config of each rule of the core, in the order of the core's table (``core/optimizer/kinds.cc``).

    >>> every_rule()[0].__name__
    'Sgd'
    """
    named = [globals()[name] for name in __all__]
    configs = {rule.kind: rule for rule in named if isinstance(rule, type) and hasattr(rule, "kind")}
    if missing := [kind for kind in _core.row_optimizer_kinds() if kind not in configs]:
        raise NotImplementedError(f"row optimizers without a config: {', '.join(missing)}; add it to {__name__}")
    return [configs[kind] for kind in _core.row_optimizer_kinds()]
