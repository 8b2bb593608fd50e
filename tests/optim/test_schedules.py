"""Schedules: their numbers, and the three who ask them: torch's optimizers, ours, and rows."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import monolith as ml
from monolith.config import Config
from monolith.errors import FailedPreconditionError
from monolith.optim import Adamom, PolynomialDecay, ScheduledLR, global_step_from, linear_warmup


def test_the_published_numbers() -> None:
    schedule = PolynomialDecay(0.01, 10, 0.11)
    assert schedule(1) == pytest.approx(0.02)
    assert schedule(2) == pytest.approx(0.03)


def test_defaults_match_upstream() -> None:
    assert PolynomialDecay(1.0, 10) == PolynomialDecay(1.0, 10, 0.0001, power=1.0, cycle=False)


@given(st.floats(0, 10), st.floats(0, 10), st.integers(1, 50), st.floats(0.25, 4), st.integers(0, 200), st.booleans())
def test_it_follows_the_formula(
    initial: float, end: float, decay_steps: int, power: float, step: int, cycle: bool
) -> None:
    schedule = PolynomialDecay(initial, decay_steps, end, power=power, cycle=cycle)
    steps = decay_steps
    if cycle:
        while steps < step:
            steps += decay_steps
    s = min(step, steps)
    assert schedule(step) == pytest.approx((initial - end) * (1 - s / steps) ** power + end, rel=1e-12, abs=1e-12)
    assert min(initial, end) - 1e-9 <= schedule(step) <= max(initial, end) + 1e-9


def test_a_cycle_starts_again_and_stretches() -> None:
    schedule = PolynomialDecay(1.0, 10, 0.0, cycle=True)
    assert [schedule(step) for step in (0, 10, 11, 20, 25)] == pytest.approx([1.0, 0.0, 0.45, 0.0, 1 - 25 / 30])


@pytest.mark.parametrize("steps", [1, 7, 1000])
def test_warmup_is_the_rate_times_its_share(steps: int) -> None:
    schedule = linear_warmup(0.3, steps)
    for step in (0, 1, steps // 2, steps - 1, steps, steps + 1, 10 * steps):
        assert schedule(step) == pytest.approx(0.3 * min(step / steps, 1), abs=1e-15)
    assert schedule(0) == 0.0
    assert schedule(steps) == 0.3


def test_a_warmup_of_0_steps_is_constant() -> None:
    assert [linear_warmup(0.3, 0)(step) for step in (0, 1, 99)] == [0.3, 0.3, 0.3]


def test_equal_schedules_are_equal_and_have_one_text() -> None:
    first, second = PolynomialDecay(0, 10, 1), PolynomialDecay(initial=0.0, decay_steps=10, end=1.0)
    assert first == second
    assert hash(first) == hash(second)
    assert str(first) == str(second) == "PolynomialDecay(cycle=False, decay_steps=10, end=1.0, initial=0.0, power=1.0)"
    assert str(PolynomialDecay(0, 10, 1 + 1e-15)) != str(first)
    assert dataclasses.replace(first, end=2.0) != first
    assert Config.from_dict(first.to_dict()) == first


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"initial": -1.0}, "initial must be >= 0"),
        ({"end": float("nan")}, "end must be finite"),
        ({"decay_steps": 0}, "decay_steps must be >= 1"),
        ({"power": 0.0}, "power must be > 0"),
    ],
)
def test_options_out_of_bounds_are_refused(options: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=f"PolynomialDecay: {message}"):
        PolynomialDecay(**{"initial": 1.0, "decay_steps": 10, **options})  # type: ignore[arg-type]


def test_a_negative_step_is_refused() -> None:
    with pytest.raises(ValueError, match="step must be >= 0, got -1"):
        PolynomialDecay(1.0, 10)(-1)


def test_a_schedule_without_a_step_queries_the_session() -> None:
    schedule = PolynomialDecay(0.01, 10, 0.11)
    with global_step_from(lambda: 2):
        assert schedule() == schedule(2)
        assert schedule(1) == pytest.approx(0.02)
    with pytest.raises(FailedPreconditionError, match=r"no session is open.*give it the step"):
        schedule()


def test_it_is_the_learning_rate_of_a_dense_optimizer_in_a_session() -> None:
    param = torch.ones(2, requires_grad=True)
    optimizer = Adamom([param], PolynomialDecay(0.01, 10, 0.11))
    step = 0
    with global_step_from(lambda: step):
        for step in range(3):
            optimizer.step()
            assert optimizer.param_groups[0]["lr"] == pytest.approx(0.01 * (step + 1))


@pytest.mark.parametrize("kind", [torch.optim.SGD, Adamom])
def test_a_scheduler_sets_the_rate_of_every_step(kind: type[torch.optim.Optimizer]) -> None:
    schedule = PolynomialDecay(0.01, 10, 0.11)
    param = torch.ones(2, requires_grad=True)
    optimizer = kind([param], 99.0)  # type: ignore[arg-type]
    scheduler = ScheduledLR(optimizer, schedule)
    for step in range(12):
        assert optimizer.param_groups[0]["lr"] == schedule(step)
        assert scheduler.get_last_lr() == [schedule(step)]
        param.grad = torch.ones(2)
        optimizer.step()
        scheduler.step()


def test_each_group_may_have_its_schedule() -> None:
    params = [torch.ones(1, requires_grad=True) for _ in range(2)]
    optimizer = torch.optim.SGD([{"params": [param]} for param in params], lr=1.0)
    scheduler = ScheduledLR(optimizer, [linear_warmup(1.0, 4), lambda step: 1.0 / (1 + step)])
    optimizer.step()
    scheduler.step()
    assert [group["lr"] for group in optimizer.param_groups] == [0.25, 0.5]
    with pytest.raises(ValueError, match="one for each of the 2 groups, got 3"):
        ScheduledLR(optimizer, [linear_warmup(1.0, 4)] * 3)


def test_a_restored_scheduler_resumes_at_its_step() -> None:
    param = torch.ones(1, requires_grad=True)
    optimizer = torch.optim.SGD([param], lr=1.0)
    scheduler = ScheduledLR(optimizer, lambda step: 0.5**step)
    for _ in range(3):
        optimizer.step()
        scheduler.step()
    saved = scheduler.state_dict()
    assert not any(
        callable(value) or (isinstance(value, list) and any(map(callable, value))) for value in saved.values()
    )
    resumed_optimizer = torch.optim.SGD([param], lr=1.0)
    resumed_optimizer.load_state_dict(optimizer.state_dict())
    resumed = ScheduledLR(resumed_optimizer, lambda step: 0.5**step)
    resumed.load_state_dict(saved)
    resumed_optimizer.step()
    resumed.step()
    assert resumed_optimizer.param_groups[0]["lr"] == 0.5**4


def test_a_schedule_drives_rows_as_the_warmup_of_their_optimizer_does() -> None:
    def table(warmup_steps: int) -> ml.HashTable:
        optimizer = ml.row_optimizers.Sgd(learning_rate=0.5, warmup_steps=warmup_steps)
        return ml.HashTable(ml.TableConfig(segments=[ml.Segment(dim=2, optimizer=optimizer)]))

    by_schedule, by_optimizer, schedule = table(0), table(4), linear_warmup(0.5, 4)
    for step in range(6):
        grads = torch.full((1, 2), float(step))
        by_schedule.apply_gradients([7], grads, step=step, learning_rates=[schedule(step)])
        by_optimizer.apply_gradients([7], grads, step=step)
    assert torch.equal(by_schedule.lookup([7]), by_optimizer.lookup([7]))
