"""An optimizer travels as a name and plain options, and what comes out learns as what went in."""

from __future__ import annotations

import json
import sys
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import SGD, Optimizer

from monolith.errors import InvalidArgumentError, PermissionDeniedError
from monolith.optim import Adamom, Rmsprop, Shampoo
from monolith.ps.dense.optimizer_spec import OptimizerSpec, group_state_keys, import_modules, is_elementwise, live_rates


def parameters(*names: str) -> dict[str, nn.Parameter]:
    return {name: nn.Parameter(torch.ones(2)) for name in names}


def ids(named: dict[str, nn.Parameter]) -> dict[int, str]:
    return {id(value): name for name, value in named.items()}


def travelled(spec: OptimizerSpec) -> OptimizerSpec:
    return OptimizerSpec.from_dict(json.loads(json.dumps(spec.to_dict())))


@pytest.mark.parametrize(
    ("kind", "make"),
    [
        ("torch.optim.AdamW", lambda p: torch.optim.AdamW(p, lr=0.1, betas=(0.8, 0.95), weight_decay=0.5)),
        ("torch.optim.Adagrad", lambda p: torch.optim.Adagrad(p, lr=0.1, initial_accumulator_value=0.25)),
        ("monolith.optim.Adamom", lambda p: Adamom(p, 0.1, ada_decay=0.5)),
        ("monolith.optim.Rmsprop", lambda p: Rmsprop(p, 0.1)),
        ("monolith.optim.Shampoo", lambda p: Shampoo(p, 0.1, warmup=3)),
    ],
)
def test_what_a_server_makes_of_a_spec_has_the_same_class_options_and_first_state(
    kind: str, make: Callable[[Any], Optimizer]
) -> None:
    mine = parameters("a", "b")
    live = make(mine.values())
    spec = travelled(OptimizerSpec.of(live, ids(mine)))
    theirs = parameters("a", "b")
    made = spec.make(theirs)
    assert spec.kind == kind
    assert type(made) is type(live)
    for own, other in zip(live.param_groups, made.param_groups, strict=True):
        assert {k: v for k, v in other.items() if k not in {"params", "lr"}} == {
            k: v for k, v in own.items() if k not in {"params", "lr"}
        }
    for name, value in mine.items():
        assert made.state[theirs[name]].keys() == live.state[value].keys()
        assert all(torch.equal(made.state[theirs[name]][key], each) for key, each in live.state[value].items())


def test_groups_keep_their_options_and_parameters_without_a_name_are_skipped() -> None:
    named = parameters("a", "b", "c")
    groups: list[dict[str, Any]] = [{"params": [named["a"], named["c"]], "momentum": 0.5}, {"params": [named["b"]]}]
    live = SGD(groups, lr=0.1, momentum=0.9)
    del named["c"]
    spec = OptimizerSpec.of(live, ids(named))
    assert [(each.params, each.options["momentum"]) for each in spec.groups] == [(("a",), 0.5), (("b",), 0.9)]


def test_a_group_of_which_a_server_has_nothing_stays_a_group() -> None:
    named = parameters("a", "b")
    live = SGD([{"params": [named["a"]]}, {"params": [named["b"]]}], lr=0.1)
    made = OptimizerSpec.of(live, ids(named)).make({"b": named["b"]})
    assert [len(group["params"]) for group in made.param_groups] == [0, 1]


def test_learning_rates_are_no_part_of_it_but_come_as_they_are_at_a_push() -> None:
    named = parameters("a")
    live = SGD(named.values(), lr=0.1)
    spec = OptimizerSpec.of(live, ids(named))
    assert "lr" not in spec.groups[0].options
    assert "lr" not in spec.options
    live.param_groups[0]["lr"] = 0.05
    assert live_rates(live, spec) == [{"lr": 0.05}]


def test_a_rate_that_is_a_function_is_called_at_every_push() -> None:
    named, asked = parameters("a"), iter([0.5, 0.25])
    live = Adamom(named.values(), lambda: next(asked))
    spec = OptimizerSpec.of(live, ids(named))
    assert [live_rates(live, spec)[0]["lr"] for _ in range(2)] == [0.5, 0.25]


def test_an_option_that_a_schedule_changes_comes_with_the_push_too() -> None:
    named = parameters("a")
    live = SGD(named.values(), lr=0.1, momentum=0.9)
    spec = OptimizerSpec.of(live, ids(named))
    live.param_groups[0]["momentum"] = 0.8
    assert live_rates(live, spec) == [{"momentum": 0.8, "lr": 0.1}]


def test_a_rate_that_is_not_finite_is_refused() -> None:
    named = parameters("a")
    live = SGD(named.values(), lr=0.1)
    spec = OptimizerSpec.of(live, ids(named))
    live.param_groups[0]["lr"] = float("nan")
    with pytest.raises(InvalidArgumentError, match="learning rate must be a finite number, got nan"):
        live_rates(live, spec)


def test_steps_that_a_rule_counts_itself_are_state_and_no_option() -> None:
    named = parameters("a")
    live = Shampoo(named.values())
    before = OptimizerSpec.of(live, ids(named))
    live.param_groups[0]["step"] = 7
    assert OptimizerSpec.of(live, ids(named)) == before
    assert group_state_keys(live) == {"step"}


def test_an_option_that_is_no_plain_value_is_refused_by_name() -> None:
    named = parameters("a")
    live = torch.optim.Adam(named.values(), betas=(torch.tensor(0.9), torch.tensor(0.99)), foreach=False)
    with pytest.raises(InvalidArgumentError, match=r"torch.optim.Adam: option 'betas' must be a plain value"):
        OptimizerSpec.of(live, ids(named))


def test_an_optimizer_that_evaluates_the_model_again_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="evaluates the model again"):
        OptimizerSpec.of(torch.optim.LBFGS([nn.Parameter(torch.ones(1))]), {})


def test_one_that_takes_sparse_gradients_only_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="sparse gradients only"):
        OptimizerSpec.of(torch.optim.SparseAdam([nn.Parameter(torch.ones(1))]), {})


def test_functions_hooked_to_a_step_are_refused_for_they_would_not_run() -> None:
    live = SGD([nn.Parameter(torch.ones(1))], lr=0.1)
    live.register_step_pre_hook(lambda *_: None)
    with pytest.raises(InvalidArgumentError, match="hooked to its step"):
        OptimizerSpec.of(live, {})


def test_a_class_inside_a_function_is_rejected_because_it_cannot_be_imported() -> None:
    class Local(SGD):
        pass

    with pytest.raises(InvalidArgumentError, match="put it at the top of a module"):
        OptimizerSpec.of(Local([nn.Parameter(torch.ones(1))], lr=0.1), {})


@pytest.fixture
def own_module(monkeypatch: pytest.MonkeyPatch) -> Any:
    module = types.ModuleType("their_optimizers")
    made = type("Halved", (SGD,), {"__module__": module.__name__, "__qualname__": "Halved", "is_elementwise": True})
    vars(module)["Halved"] = made
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return made


def test_a_class_of_the_users_comes_only_from_a_module_the_server_was_started_with(own_module: Any) -> None:
    named = parameters("a")
    spec = travelled(OptimizerSpec.of(own_module(named.values(), lr=0.1), ids(named)))
    assert spec.kind == "their_optimizers:Halved"
    assert type(spec.make(named, modules=["their_optimizers"])) is own_module
    with pytest.raises(PermissionDeniedError, match="start it with module 'their_optimizers'"):
        spec.make(named)


@pytest.mark.parametrize(
    "kind", ["torch.optim.Nothing", "os.system", "torch.optim.Optimizer", "Adam", "torch.optim.lr_scheduler"]
)
def test_a_name_that_is_no_optimizer_is_refused(kind: str) -> None:
    with pytest.raises(InvalidArgumentError, match="there is no such class"):
        OptimizerSpec(kind=kind, options={}, groups=()).make({})


@pytest.mark.parametrize(
    "values", [{}, {"kind": "x", "options": 3, "groups": []}, {"kind": 1, "options": {}, "groups": [3]}]
)
def test_what_is_no_description_is_refused(values: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgumentError, match="not a description"):
        OptimizerSpec.from_dict(values)


def test_options_that_the_class_rejects_raise_an_error_that_names_the_class() -> None:
    spec = OptimizerSpec(kind="torch.optim.SGD", options={"momentum": -1.0}, groups=())
    with pytest.raises(InvalidArgumentError, match=r"torch.optim.SGD: it cannot be made here"):
        spec.make({})


def test_a_module_that_cannot_be_imported_shows_at_the_start() -> None:
    import_modules(["json"])
    with pytest.raises(InvalidArgumentError, match="module 'no_such_module'"):
        import_modules(["no_such_module"])


def test_an_optimizer_not_declared_elementwise_receives_complete_parameters(own_module: Any) -> None:
    assert is_elementwise(torch.optim.Adam)
    assert is_elementwise(Adamom)
    assert is_elementwise(own_module)
    newer = [getattr(torch.optim, name, Optimizer) for name in ("Adafactor", "Muon")]  # not in torch 2.4
    for kind in (Shampoo, *newer, Optimizer):
        assert not is_elementwise(kind)
