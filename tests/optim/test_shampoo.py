"""Shampoo: its phases, its statistics, and where its steps are counted."""

from __future__ import annotations

import contextvars
import threading
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from monolith.optim import Shampoo, current_global_step, global_step_from
from optim.cases import gradients, make, reference, run, run_reference

SHAPE = (4, 3)


def fresh(shape: tuple[int, ...] = SHAPE, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.linspace(-1, 1, int(np.prod(shape)), dtype=dtype).reshape(shape).requires_grad_()


SHAPES: list[tuple[int, ...]] = [(), (5,), (4, 3), (1, 6), (2, 3, 2)]
common = {
    "beta_1": st.floats(0, 0.95),
    "tau_1": st.integers(1, 4),
    "damping_epsilon": st.floats(1e-4, 0.1),
}


@given(
    options=st.fixed_dictionaries(
        {
            **common,
            "beta_2": st.sampled_from([0.0, 0.5, 0.9, 1.0 - 1e-12, 1.0]),
            "warmup": st.integers(0, 6),
            "tau_2": st.integers(1, 4),
            "eigen_head": st.integers(3, 9),
            "eigen_tail": st.integers(3, 9),
        }
    ),
    shape=st.sampled_from(SHAPES),
)
@settings(max_examples=50)
def test_it_follows_the_formula_for_any_options(options: dict[str, Any], shape: tuple[int, ...]) -> None:
    _compare_on_steps(13, options, shape)


@given(
    options=st.fixed_dictionaries(
        {
            **common,
            # Statistics of full rank before they are needed: of equal eigenvalues, which are kept is anybody's choice.
            "beta_2": st.sampled_from([0.9, 1.0]),
            "warmup": st.integers(12, 15),
            "tau_2": st.integers(1, 2),
            "eigen_head": st.integers(0, 3),
            "eigen_tail": st.integers(0, 3),
        }
    ),
    shape=st.sampled_from(SHAPES),
)
@settings(max_examples=50)
def test_it_follows_the_formula_with_some_of_the_eigenvalues(options: dict[str, Any], shape: tuple[int, ...]) -> None:
    _compare_on_steps(22, options, shape)


def _compare_on_steps(steps: int, options: dict[str, Any], shape: tuple[int, ...]) -> None:
    param, grads = fresh(shape), gradients(shape, steps)
    expected = run_reference(reference("shampoo", **options), param, grads)
    run(make("shampoo", [param], **options), param, grads)
    torch.testing.assert_close(param.detach(), expected, rtol=1e-6, atol=1e-8)


@pytest.mark.slow
def test_axes_longer_than_what_is_kept_follow_the_formula() -> None:
    shape, options = (300, 5), {"eigen_head": 10, "eigen_tail": 10, "warmup": 2, "tau_1": 2, "tau_2": 1}
    param, grads = fresh(shape), gradients(shape, 6)
    expected = run_reference(reference("shampoo", **options), param, grads)
    optimizer = make("shampoo", [param], **options)
    run(optimizer, param, grads)
    torch.testing.assert_close(param.detach(), expected, rtol=1e-6, atol=1e-8)
    assert "p0" not in optimizer.state[param]
    assert "p1" in optimizer.state[param]


def test_options_of_a_group_may_change_while_it_runs() -> None:
    param, grads = fresh((6, 2)), gradients((6, 2), 12)
    optimizer = make("shampoo", [param], warmup=0, tau_1=1, tau_2=1, eigen_head=5)
    rule = reference("shampoo", warmup=0, tau_1=1, tau_2=1, eigen_head=5)
    expected = run_reference(rule, param, grads[:6])
    run(optimizer, param, grads[:6])
    optimizer.param_groups[0]["eigen_head"] = rule.eigen_head = 1
    run(optimizer, param, grads[6:])
    torch.testing.assert_close(param.detach(), run_reference(rule, expected, grads[6:]), rtol=1e-6, atol=1e-8)


def test_state_has_the_names_and_shapes_of_upstream() -> None:
    param = fresh((300, 5, 2), torch.float32)
    optimizer = Shampoo([param])
    run(optimizer, param, gradients((300, 5, 2), 1))
    state = optimizer.state[param]
    shapes = {name: tuple(value.shape) for name, value in state.items() if isinstance(value, Tensor)}
    assert shapes == {
        "s0": (300, 300), "g0": (300, 300), "pvec0": (300, 200), "pval0": (200,), "o0": (),
        "s1": (5, 5), "g1": (5, 5), "pvec1": (5, 5), "pval1": (5,), "o1": (),
        "s2": (2, 2), "g2": (2, 2), "pvec2": (2, 2), "pval2": (2,), "o2": (),
        "d": (300, 5, 2), "m": (300, 5, 2), "pm": (300, 5, 2),
    }  # fmt: skip
    assert state["pending"] == 0
    assert state["kept"] is None


@pytest.mark.parametrize("beta_2", [0.9, 1.0])
def test_statistics_and_what_is_pending_make_the_sum_of_the_formula(beta_2: float) -> None:
    param, rule = fresh(), reference("shampoo", warmup=100, tau_2=4, beta_2=beta_2)
    optimizer = make("shampoo", [param], warmup=100, tau_2=4, beta_2=beta_2)
    for grad in gradients(SHAPE, 11):
        run(optimizer, param, [grad])
        run_reference(rule, param, [grad])
        state = optimizer.state[param]
        for axis in (0, 1):
            total = state[f"s{axis}"].clone()
            for _ in range(state["pending"]):
                last = state[f"g{axis}"]
                total = total + last if beta_2 == 1.0 else beta_2 * total + (1 - beta_2) * last
            np.testing.assert_allclose(total.numpy(), rule.s[axis], rtol=1e-9)
            np.testing.assert_allclose(state[f"g{axis}"].numpy(), rule.g[axis], rtol=1e-9)
    assert optimizer.state[param]["pending"] == 2


def test_without_a_warmup_it_rests_until_its_first_preconditioner() -> None:
    param = fresh()
    optimizer = Shampoo([param], warmup=0, tau_1=4, tau_2=1)
    places = []
    for grad in gradients(SHAPE, 7):
        run(optimizer, param, [grad])
        places.append(param.detach().clone())
    moved = [not torch.equal(before, after) for before, after in zip([fresh(), *places[:-1]], places, strict=True)]
    assert moved == [True, False, False, False, True, True, True]


def test_without_a_warmup_the_full_update_is_preconditioned() -> None:
    param = fresh()
    optimizer = Shampoo([param], 0.5, warmup=0, tau_1=1, tau_2=1)
    grads = gradients(SHAPE, 3)
    run(optimizer, param, grads[:2])
    before = param.detach().clone()
    run(optimizer, param, grads[2:])
    move, state = param.detach() - before, optimizer.state[param]
    assert torch.linalg.vector_norm(move).item() == pytest.approx(0.5 * torch.linalg.vector_norm(state["m"]).item())
    torch.testing.assert_close(move / move.norm(), -state["pm"] / state["pm"].norm())


def test_it_counts_its_own_steps_from_0_and_saves_them() -> None:
    param = fresh()
    optimizer = make("shampoo", [param])
    assert optimizer.param_groups[0]["step"] == 0
    run(optimizer, param, gradients(SHAPE, 5))
    assert optimizer.param_groups[0]["step"] == 5
    optimizer.zero_grad()
    optimizer.step()
    assert optimizer.state_dict()["param_groups"][0]["step"] == 6


@pytest.mark.parametrize("source", ["argument", "session"])
def test_a_given_step_decides_the_phase(source: str) -> None:
    step, grads = 0, gradients(SHAPE, 8)
    given_steps, own_steps = fresh(), fresh()
    if source == "argument":
        optimizer = make("shampoo", [given_steps], global_step=lambda: step)
        run(optimizer, given_steps, grads[:1])
        step = 6
        run(optimizer, given_steps, grads[1:3])
    else:
        optimizer = make("shampoo", [given_steps])
        with global_step_from(lambda: step):
            run(optimizer, given_steps, grads[:1])
            step = 6
            run(optimizer, given_steps, grads[1:3])
    by_hand = make("shampoo", [own_steps])
    for number, grad in zip((0, 6, 6), grads, strict=False):
        by_hand.param_groups[0]["step"] = number
        run(by_hand, own_steps, [grad])
    assert torch.equal(given_steps, own_steps)
    assert optimizer.param_groups[0]["step"] == 7


def test_after_a_session_it_counts_on_from_there() -> None:
    param = fresh()
    optimizer = make("shampoo", [param])
    with global_step_from(lambda: 41):
        run(optimizer, param, gradients(SHAPE, 1))
    run(optimizer, param, gradients(SHAPE, 1))
    assert optimizer.param_groups[0]["step"] == 43


def test_an_argument_goes_before_the_session() -> None:
    param = fresh()
    optimizer = make("shampoo", [param], global_step=lambda: 7)
    with global_step_from(lambda: 41):
        run(optimizer, param, gradients(SHAPE, 1))
    assert optimizer.param_groups[0]["step"] == 8


def test_sessions_nest_and_end_also_by_an_error() -> None:
    def fail_inside() -> None:
        with global_step_from(lambda: 2):
            assert current_global_step() == 2
            raise RuntimeError("inside")

    assert current_global_step() is None
    with global_step_from(lambda: 1):
        with pytest.raises(RuntimeError, match="inside"):
            fail_inside()
        assert current_global_step() == 1
    assert current_global_step() is None


def test_sessions_may_end_in_any_order() -> None:
    outer, inner = global_step_from(lambda: 1), global_step_from(lambda: 2)
    outer.__enter__()
    inner.__enter__()
    outer.__exit__(None, None, None)
    assert current_global_step() == 2
    inner.__exit__(None, None, None)
    assert current_global_step() is None


def test_the_step_reaches_another_thread_by_a_copied_context_only() -> None:
    seen: list[int | None] = []
    with global_step_from(lambda: 5):
        copied = contextvars.copy_context()
        for ask in (current_global_step, lambda: copied.run(current_global_step)):
            thread = threading.Thread(target=lambda ask=ask: seen.append(ask()))
            thread.start()
            thread.join()
    assert seen == [None, 5]


@pytest.mark.parametrize(("step", "error"), [(-1, ValueError), (1.5, TypeError), ("1", TypeError)])
def test_a_step_that_is_no_step_is_refused_before_anything_moves(step: Any, error: type[Exception]) -> None:
    param = fresh()
    optimizer = make("shampoo", [param], global_step=lambda: step)
    with pytest.raises(error, match="Shampoo: the global step must be"):
        run(optimizer, param, gradients(SHAPE, 1))
    assert torch.equal(param, fresh())


def test_statistics_that_are_not_finite_are_named_when_they_are_needed() -> None:
    param = fresh()
    optimizer = make("shampoo", [param], warmup=0, tau_1=2, tau_2=1)
    run(optimizer, param, [torch.full(SHAPE, torch.inf)])
    run(optimizer, param, gradients(SHAPE, 1))
    with pytest.raises(ValueError, match="holds NaN or infinity"):
        run(optimizer, param, gradients(SHAPE, 1))


def test_groups_count_for_themselves() -> None:
    first, second = fresh(), fresh()
    optimizer = make("shampoo", [first])
    run(optimizer, first, gradients(SHAPE, 3))
    optimizer.add_param_group({"params": [second], "warmup": 1})
    run(optimizer, second, gradients(SHAPE, 2))
    assert [group["step"] for group in optimizer.param_groups] == [5, 2]


def test_parameters_of_one_shape_that_learn_at_different_times_each_follow_the_formula() -> None:
    # They are worked on together, but one rests in every third step, so it misses some of the new preconditioners,
    # and the number of kept eigenvalues changes in between: 4 of 5 at first, then 2.
    options = {"warmup": 0, "tau_1": 2, "tau_2": 1, "eigen_head": 2, "eigen_tail": 2}
    params = [fresh((5, 4)) for _ in range(4)]
    optimizer = make("shampoo", params, **options)
    rules = [reference("shampoo", **options) for _ in params]
    expected = [fresh((5, 4)).detach() for _ in params]
    grads = [gradients((5, 4), 12, seed) for seed in range(4)]
    for step in range(12):
        if step == 6:
            optimizer.param_groups[0]["eigen_head"] = 0
        for number, (param, rule) in enumerate(zip(params, rules, strict=True)):
            rule.step, rule.eigen_head = step, optimizer.param_groups[0]["eigen_head"]
            rests = number == 2 and step % 3 == 0
            param.grad = None if rests else grads[number][step].double()
            if not rests:
                expected[number] = run_reference(rule, expected[number], [grads[number][step]])
        optimizer.step()
        if step == 6:
            assert {optimizer.state[param]["kept"] for param in params} == {2, 4}
    for param, end in zip(params, expected, strict=True):
        torch.testing.assert_close(param.detach(), end, rtol=1e-6, atol=1e-8)
