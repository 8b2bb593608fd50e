"""The configs of the row optimizers by themselves: names, defaults, checks, kernels, schedules."""

from __future__ import annotations

import json
from typing import Any

import pytest

from monolith.tables import row_optimizers as ro

DEFAULTS: dict[type[ro.RowOptimizer], dict[str, Any]] = {
    ro.Sgd: {"learning_rate": 0.01, "warmup_steps": 0},
    ro.Adagrad: {
        "learning_rate": 0.001,
        "initial_accumulator_value": 0.1,
        "hessian_compression_times": 1,
        "weight_decay_factor": 0.0,
        "warmup_steps": 0,
    },
    ro.DynamicWdAdagrad: {
        "learning_rate": 0.001,
        "initial_accumulator_value": 0.1,
        "hessian_compression_times": 1,
        "weight_decay_factor": 0.0,
        "warmup_steps": 0,
        "decouple_weight_decay": False,
        "enable_dynamic_wd": False,
        "dynamic_wd_temperature": 1.0,
        "flip_direction": False,
    },
    ro.Adadelta: {
        "learning_rate": 0.01,
        "weight_decay_factor": 0.0,
        "averaging_ratio": 0.9,
        "epsilon": 0.01,
        "warmup_steps": 0,
    },
    ro.Adam: {
        "learning_rate": 0.01,
        "beta1": 0.9,
        "beta2": 0.99,
        "use_beta1_warmup": False,
        "weight_decay_factor": 0.0,
        "use_nesterov": False,
        "epsilon": 0.01,
        "warmup_steps": 0,
    },
    ro.AmsGrad: {
        "learning_rate": 0.01,
        "beta1": 0.9,
        "beta2": 0.99,
        "weight_decay_factor": 0.0,
        "use_nesterov": False,
        "epsilon": 0.01,
        "warmup_steps": 0,
    },
    ro.Ftrl: {
        "learning_rate": 0.01,
        "beta": 0.0,
        "initial_accumulator_value": 0.1,
        "l1_regularization_strength": 0.0,
        "l2_regularization_strength": 0.0,
        "warmup_steps": 0,
    },
    ro.GroupFtrl: {
        "learning_rate": 0.01,
        "beta": 1.0,
        "initial_accumulator_value": 0.0,
        "l1_regularization_strength": 0.0,
        "l2_regularization_strength": 0.0,
        "warmup_steps": 0,
    },
    ro.GroupAdagrad: {
        "learning_rate": 0.01,
        "beta": 0.0,
        "initial_accumulator_value": 0.1,
        "l2_regularization_strength": 0.0,
        "weight_decay_factor": 0.0,
        "warmup_steps": 0,
    },
    ro.Momentum: {
        "learning_rate": 0.01,
        "weight_decay_factor": 0.0,
        "use_nesterov": False,
        "momentum": 0.9,
        "warmup_steps": 0,
    },
    ro.MovingAverage: {"momentum": 0.9},
    ro.RmsProp: {"learning_rate": 0.01, "weight_decay_factor": 0.0, "momentum": 0.9},
    ro.RmsPropV2: {"learning_rate": 0.01, "weight_decay_factor": 0.0, "momentum": 0.9},
    ro.BatchSoftmax: {"learning_rate": 0.1},
}


@pytest.mark.parametrize("cls", DEFAULTS)
def test_fields_and_defaults_are_those_of_the_upstream_schema(cls: type[ro.RowOptimizer]) -> None:
    assert cls().to_dict() == {"type": cls.__name__, "stochastic_rounding": False, **DEFAULTS[cls]}


@pytest.mark.parametrize("cls", ro.every_rule())
def test_a_kernel_carries_every_parameter_but_the_rate(cls: type[ro.RowOptimizer]) -> None:
    kind, parameters = cls(stochastic_rounding=True).kernel()
    outside = {"type", "learning_rate", "warmup_steps", "use_beta1_warmup"}
    expected = {name: float(value) for name, value in cls().to_dict().items() if name not in outside}
    assert kind == cls.kind
    assert parameters == {**expected, "stochastic_rounding": 1.0, "delay_compensation_lambda": 0.0}


@pytest.mark.parametrize("cls", ro.every_rule())
def test_a_config_survives_json(cls: type[ro.RowOptimizer]) -> None:
    optimizer = cls(stochastic_rounding=True)
    assert ro.RowOptimizer.from_dict(json.loads(json.dumps(optimizer.to_dict()))) == optimizer


def test_warm_up_grows_linearly_and_then_stays() -> None:
    optimizer = ro.Adagrad(learning_rate=0.4, warmup_steps=8)
    assert [optimizer.learning_rate_at(step) for step in (0, 2, 4, 8, 9, 10**12)] == [0.0, 0.1, 0.2, 0.4, 0.4, 0.4]


def test_without_warm_up_the_rate_is_constant() -> None:
    assert ro.Adam(learning_rate=0.3).learning_rate_at(0) == 0.3
    assert ro.RmsProp(learning_rate=0.3).learning_rate_at(0) == 0.3
    assert ro.BatchSoftmax().learning_rate_at(5) == 0.1


def test_moving_average_has_no_rate() -> None:
    assert ro.MovingAverage().learning_rate_at(100) == 0.0
    with pytest.raises(TypeError, match="unknown option 'learning_rate'"):
        ro.MovingAverage(learning_rate=0.1)  # type: ignore[call-arg]


def test_delay_compensation_wraps_the_kernel_of_its_base() -> None:
    base = ro.Adam(learning_rate=0.5, warmup_steps=10, use_nesterov=True)
    wrapped = ro.DelayCompensated(base, 0.25)
    kind, parameters = wrapped.kernel()
    assert kind == "adam"
    assert parameters == {**base.kernel()[1], "delay_compensation_lambda": 0.25}
    assert wrapped.learning_rate_at(5) == 0.25
    assert ro.RowOptimizer.from_dict(wrapped.to_dict()) == wrapped
    assert wrapped == ro.DelayCompensated(base=base, lambda_=0.25)


@pytest.mark.parametrize(("inner", "outer"), [(True, False), (False, True)])
def test_delay_compensation_rounds_when_either_requests_it(inner: bool, outer: bool) -> None:
    wrapped = ro.DelayCompensated(ro.Sgd(stochastic_rounding=inner), stochastic_rounding=outer)
    assert wrapped.kernel()[1]["stochastic_rounding"] == 1.0


@pytest.mark.parametrize("base", [ro.DelayCompensated(ro.Sgd()), "sgd", None])
def test_delay_compensation_refuses_what_is_not_a_plain_optimizer(base: Any) -> None:
    with pytest.raises(TypeError, match="DelayCompensated: base must be a plain row optimizer"):
        ro.DelayCompensated(base)


@pytest.mark.parametrize(
    ("cls", "options", "message"),
    [
        (ro.Adagrad, {"learning_rate": -1}, "Adagrad: learning_rate must be >= 0, got -1"),
        (ro.Sgd, {"warmup_steps": -5}, "Sgd: warmup_steps must be >= 0, got -5"),
        (ro.Sgd, {"learning_rate": float("inf")}, "Sgd: learning_rate must be finite, got inf"),
        (ro.Adagrad, {"initial_accumulator_value": -0.1}, "initial_accumulator_value must be >= 0, got -0.1"),
        (ro.Adagrad, {"hessian_compression_times": 0}, "hessian_compression_times must be >= 1, got 0"),
        (ro.DynamicWdAdagrad, {"dynamic_wd_temperature": 0.0}, "dynamic_wd_temperature must be > 0, got 0.0"),
        (ro.Adam, {"beta1": 1.0}, r"Adam: beta1 must be in \[0, 1\), got 1.0"),
        (ro.AmsGrad, {"beta2": -0.1}, r"AmsGrad: beta2 must be in \[0, 1\), got -0.1"),
        (ro.Adam, {"epsilon": 0.0}, "Adam: epsilon must be > 0, got 0.0"),
        (ro.Adam, {"use_beta1_warmup": True}, "Adam: use_beta1_warmup must be False"),
        (ro.Adadelta, {"averaging_ratio": 1.5}, r"averaging_ratio must be in \[0, 1\], got 1.5"),
        (ro.Ftrl, {"l1_regularization_strength": -1.0}, "l1_regularization_strength must be >= 0, got -1.0"),
        (ro.GroupFtrl, {"beta": float("nan")}, "GroupFtrl: beta must be finite, got nan"),
        (ro.GroupAdagrad, {"weight_decay_factor": -1.0}, "weight_decay_factor must be >= 0, got -1.0"),
        (ro.Momentum, {"momentum": 2.0}, r"Momentum: momentum must be in \[0, 1\], got 2.0"),
        (ro.RmsPropV2, {"momentum": -1.0}, r"RmsPropV2: momentum must be in \[0, 1\], got -1.0"),
        (ro.BatchSoftmax, {"learning_rate": 1.5}, r"BatchSoftmax: learning_rate must be in \[0, 1\], got 1.5"),
    ],
)
def test_values_out_of_range_are_refused_by_name(cls: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        cls(**options)


def test_an_unknown_option_names_the_nearest_one() -> None:
    with pytest.raises(TypeError, match=r"^Adagrad: unknown option 'learning_rte'; did you mean 'learning_rate'\?$"):
        ro.Adagrad(learning_rte=0.1)  # type: ignore[call-arg]
