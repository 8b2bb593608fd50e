"""Groups, learning rates and state of the dense optimizers: what is set, saved, loaded, copied and refused."""

from __future__ import annotations

import copy
import io
import math
import pickle
from typing import Any

import pytest
import torch
from torch import Tensor

from monolith.optim import Adamom, Rmsprop, Shampoo
from optim.cases import OPTIMIZERS, gradients, make, run

NAMES = sorted(OPTIMIZERS)
SHAPE = (4, 3)


def fresh(dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.linspace(-1, 1, 12).reshape(SHAPE).to(dtype).requires_grad_()


def through_a_file(state_dict: dict[str, Any]) -> dict[str, Any]:
    file = io.BytesIO()
    torch.save(state_dict, file)
    file.seek(0)
    loaded: dict[str, Any] = torch.load(file, weights_only=True)
    return loaded


@pytest.mark.parametrize("saved_after", [0, 1, 3, 6, 9])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("name", NAMES)
def test_a_loaded_optimizer_continues_bit_for_bit(name: str, dtype: torch.dtype, saved_after: int) -> None:
    grads = gradients(SHAPE, 14)
    param = fresh(dtype)
    optimizer = make(name, [param])
    run(optimizer, param, grads[:saved_after])
    saved = through_a_file(optimizer.state_dict())
    resumed_param = param.detach().clone().requires_grad_()
    resumed = make(name, [resumed_param], 99.0)
    resumed.load_state_dict(saved)
    run(optimizer, param, grads[saved_after:])
    run(resumed, resumed_param, grads[saved_after:])
    assert torch.equal(param, resumed_param)
    assert_same_state(optimizer.state[param], resumed.state[resumed_param])


@pytest.mark.parametrize("name", NAMES)
def test_saving_does_not_change_the_run(name: str) -> None:
    grads, params = gradients(SHAPE, 12), [fresh(), fresh()]
    for param, saves in zip(params, (False, True), strict=True):
        optimizer = make(name, [param])
        for grad in grads:
            run(optimizer, param, [grad])
            if saves:
                through_a_file(optimizer.state_dict())
    assert torch.equal(*params)


@pytest.mark.parametrize("name", NAMES)
def test_loaded_state_is_a_copy(name: str) -> None:
    param, other = fresh(), fresh()
    optimizer, loaded = make(name, [param]), make(name, [other])
    run(optimizer, param, gradients(SHAPE, 7))
    saved = optimizer.state_dict()
    loaded.load_state_dict(saved)
    before = copy.deepcopy(loaded.state[other])
    run(optimizer, param, gradients(SHAPE, 3, seed=1))
    assert_same_state(loaded.state[other], before)


@pytest.mark.parametrize("name", NAMES)
def test_a_hook_may_rewrite_what_is_loaded(name: str) -> None:
    param, other = fresh(torch.bfloat16), fresh(torch.bfloat16)
    optimizer, loaded = make(name, [param]), make(name, [other])
    run(optimizer, param, gradients(SHAPE, 2))

    def doubled(_: Any, state_dict: dict[str, Any]) -> dict[str, Any]:
        state = {key: {**state, "m": state["m"] * 2} for key, state in state_dict["state"].items()}
        return {**state_dict, "state": state}

    loaded.register_load_state_dict_pre_hook(doubled)
    loaded.load_state_dict(optimizer.state_dict())
    assert torch.equal(loaded.state[other]["m"], optimizer.state[param]["m"] * 2)
    assert loaded.state[other]["m"].dtype is torch.float32


def test_a_state_of_another_shape_of_groups_is_refused() -> None:
    saved = make("adamom", [fresh()]).state_dict()
    with pytest.raises(ValueError, match="parameter group"):
        make("adamom", [fresh(), fresh()]).load_state_dict(saved)


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda each: pickle.loads(pickle.dumps(each))])  # noqa: S301
@pytest.mark.parametrize("name", NAMES)
def test_a_copied_optimizer_continues_like_the_first(name: str, copied: Any) -> None:
    param = fresh()
    optimizer = make(name, [param], learning_rate_of_a_module)
    run(optimizer, param, gradients(SHAPE, 7))
    twin = copied(optimizer)
    twin_param = twin.param_groups[0]["params"][0]
    assert twin_param is not param
    for each, own in ((optimizer, param), (twin, twin_param)):
        run(each, own, gradients(SHAPE, 5, seed=1))
    assert torch.equal(param, twin_param)
    assert twin.param_groups[0]["lr"] == 0.125


def learning_rate_of_a_module() -> float:
    return 0.125


@pytest.mark.parametrize("name", NAMES)
def test_groups_have_their_own_rates_and_options(name: str) -> None:
    option = {"shampoo": "beta_1"}.get(name, "weight_decay")
    own = {"lr": 0.5, option: 0.25}
    first, second = fresh(), fresh()
    optimizer = make(name, [{"params": [first]}, {"params": [second], **own}])
    alone = fresh()
    alone_optimizer = make(name, [alone], 0.5, **{option: 0.25})
    for grad in gradients(SHAPE, 7):
        first.grad, second.grad, alone.grad = grad.clone(), grad.clone(), grad.clone()
        optimizer.step()
        alone_optimizer.step()
    assert torch.equal(second, alone)
    assert not torch.equal(second, first)


def test_a_group_may_specify_learning_rate() -> None:
    optimizer = Adamom([{"params": [fresh()], "learning_rate": 0.5}], 0.1)
    assert optimizer.param_groups[0]["lr"] == 0.5
    assert "learning_rate" not in optimizer.param_groups[0]
    with pytest.raises(ValueError, match="both lr and learning_rate"):
        optimizer.add_param_group({"params": [fresh()], "learning_rate": 0.5, "lr": 0.5})
    assert len(optimizer.param_groups) == 1


def test_a_refused_group_leaves_no_trace() -> None:
    param, extra = fresh(), fresh()
    optimizer = Adamom([param], 0.1)
    with pytest.raises(ValueError, match=r"Adamom: ada_decay must be >= 0 and <= 1, got 2.0"):
        optimizer.add_param_group({"params": [extra], "ada_decay": 2.0})
    assert len(optimizer.param_groups) == 1
    optimizer.add_param_group({"params": [extra]})
    run(optimizer, extra, gradients(SHAPE, 1))
    assert not torch.equal(extra, fresh())


@pytest.mark.skipif(torch.__version__.startswith(("2.4.", "2.5.")), reason="optimizers take names since torch 2.6")
def test_named_parameters_are_taken() -> None:
    model = torch.nn.Linear(2, 1)
    optimizer = Adamom(model.named_parameters(), 0.1)
    before = model.weight.detach().clone()
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    assert not torch.equal(model.weight, before)


NUMBERS = [-0.1, math.nan, math.inf]
REFUSED: list[tuple[type[Any], dict[str, Any]]] = [
    *((kind, {"learning_rate": value}) for kind in (Adamom, Rmsprop, Shampoo) for value in NUMBERS),
    *((Adamom, {name: value}) for name in ("epsilon", "weight_decay") for value in NUMBERS),
    *((Adamom, {name: value}) for name in ("ada_decay", "mom_decay") for value in (*NUMBERS, 1.5)),
    *((Rmsprop, {name: value}) for name in ("epsilon", "weight_decay") for value in NUMBERS),
    *((Rmsprop, {name: value}) for name in ("beta1", "beta2") for value in (*NUMBERS, 1.5)),
    *((Shampoo, {name: value}) for name in ("beta_1", "beta_2") for value in (*NUMBERS, 1.5)),
    *((Shampoo, {name: value}) for name in ("tau_1", "tau_2") for value in (0, -1)),
    *((Shampoo, {name: -1}) for name in ("warmup", "eigen_head", "eigen_tail")),
    *((Shampoo, {"damping_epsilon": value}) for value in (*NUMBERS, 0.0)),
]


@pytest.mark.parametrize(("kind", "options"), REFUSED, ids=str)
def test_options_out_of_bounds_are_refused(kind: type[Any], options: dict[str, Any]) -> None:
    (name,) = options
    with pytest.raises(ValueError, match=rf"{kind.__name__}: {name} must be >= "):
        kind([fresh()], **options)


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        (Adamom, {"epsilon": "small"}, "Adamom: epsilon must be a number, got 'small'"),
        (Adamom, {"epsilon": True}, "Adamom: epsilon must be a number, got True"),
        (Adamom, {"learning_rate": None}, "Adamom: learning_rate must be a number, got None"),
        (Shampoo, {"tau_1": 1.5}, "Shampoo: tau_1 must be an integer, got 1.5"),
        (Shampoo, {"taw_1": 1}, "Shampoo: unknown option 'taw_1'; known are beta_1, beta_2"),
        (Adamom, {"adadecay": 1}, "adadecay"),
    ],
)
def test_options_of_the_wrong_kind_are_refused(kind: type[Any], options: dict[str, Any], message: str) -> None:
    with pytest.raises(TypeError, match=message):
        kind([fresh()], **options)


@pytest.mark.parametrize("name", NAMES)
def test_a_learning_rate_may_be_a_function_called_before_every_step(name: str) -> None:
    rates = [0.5, 0.25, 0.125, 0.0]
    asked = iter(rates)
    by_function, by_hand = fresh(), fresh()
    optimizer, manual = make(name, [by_function], lambda: next(asked)), make(name, [by_hand], 1.0)
    assert math.isnan(optimizer.param_groups[0]["lr"])
    for rate, grad in zip(rates, gradients(SHAPE, 4), strict=True):
        manual.param_groups[0]["lr"] = rate
        run(optimizer, by_function, [grad])
        run(manual, by_hand, [grad])
        assert optimizer.param_groups[0]["lr"] == rate
    assert torch.equal(by_function, by_hand)


def test_groups_may_mix_numbers_and_functions() -> None:
    first, second, third = fresh(), fresh(), fresh()
    groups: list[dict[str, Any]] = [{"params": [first], "lr": 0.5}, {"params": [second]}]
    optimizer = Adamom(groups, lambda: 0.25)
    optimizer.add_param_group({"params": [third], "learning_rate": lambda: torch.tensor(0.125)})
    optimizer.step()
    assert [group["lr"] for group in optimizer.param_groups] == [0.5, 0.25, 0.125]


@pytest.mark.parametrize("rate", [-1.0, math.nan, math.inf])
def test_a_function_that_returns_no_rate_is_refused_before_anything_moves(rate: float) -> None:
    param = fresh()
    optimizer = Adamom([param], lambda: rate)
    param.grad = torch.ones(SHAPE)
    with pytest.raises(ValueError, match="Adamom: what the learning_rate function returned must be >= 0"):
        optimizer.step()
    assert torch.equal(param, fresh())


def test_functions_stay_outside_of_the_state_dict() -> None:
    param = fresh()
    optimizer = Adamom([param], lambda: 0.5)
    run(optimizer, param, gradients(SHAPE, 1))
    saved = through_a_file(optimizer.state_dict())
    assert saved["param_groups"][0]["lr"] == 0.5
    other = fresh()
    resumed = Adamom([other], lambda: 0.125)
    resumed.load_state_dict(saved)
    run(resumed, other, gradients(SHAPE, 1))
    assert resumed.param_groups[0]["lr"] == 0.125


@pytest.mark.parametrize("name", NAMES)
def test_torch_schedulers_drive_it(name: str) -> None:
    param, by_hand = fresh(), fresh()
    optimizer, manual = make(name, [param], 1.0), make(name, [by_hand], 1.0)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.5)
    for step, grad in enumerate(gradients(SHAPE, 5)):
        manual.param_groups[0]["lr"] = 0.5**step
        run(optimizer, param, [grad])
        run(manual, by_hand, [grad])
        scheduler.step()
    assert torch.equal(param, by_hand)


@pytest.mark.parametrize("name", NAMES)
def test_a_rate_may_be_a_tensor_of_one_number(name: str) -> None:
    param, by_number = fresh(), fresh()
    run(make(name, [param], torch.tensor(0.25)), param, gradients(SHAPE, 8))
    run(make(name, [by_number], 0.25), by_number, gradients(SHAPE, 8))
    assert torch.equal(param, by_number)


def assert_same_state(first: dict[str, Any], second: dict[str, Any]) -> None:
    assert first.keys() == second.keys()
    for name, value in first.items():
        if isinstance(value, Tensor):
            assert value.dtype is second[name].dtype
            assert torch.equal(value, second[name]), name
        else:
            assert value == second[name], name
