"""What steps leave under a name stays until the next step: it does not grow, and holds no graph."""

from __future__ import annotations

import functools
import gc
import weakref
from typing import Any

import pytest
import torch

from monolith.hook import Hook, StepContext
from monolith.hooks import SetCurrentSessionHook
from monolith.testing import ExampleTask, StepLoop
from monolith.train import Collections, PipelineConfig, Session, Spec, add_to_collections


class Leaving(ExampleTask):
    """Leaves one thing when it is built and its loss with every step."""

    losses: list[weakref.ref[torch.Tensor]]

    def build(self) -> None:
        super().build()
        self.losses = []
        add_to_collections("built", "once")

    def model_fn(self, features: Any, mode: Any) -> Spec:
        spec = super().model_fn(features, mode)
        assert spec.loss is not None
        add_to_collections(["losses", "built"], spec.loss)
        self.losses.append(weakref.ref(spec.loss))
        return spec


class Watch(Hook):
    def __init__(self, name: str) -> None:
        self.name = name
        self.seen: list[list[Any] | None] = []

    def after_run(self, context: StepContext) -> None:
        self.seen.append(context.session.collections.get(self.name))


@pytest.mark.parametrize("mode", ["train", "eval"])
def test_a_session_has_what_its_last_step_left_and_what_was_built(mode: Any) -> None:
    task, watch = Leaving(), Watch("losses")
    with Session(task, mode=mode, hooks=[watch]) as session:
        results = [session.run(batch) for batch in task.input_fn("train")]
        losses, built = session.collections.get("losses"), session.collections.get("built")
    assert len(results) == 20
    assert losses == [results[-1].loss]
    assert built == ["once", results[-1].loss]
    assert watch.seen == [[result.loss] for result in results]


@pytest.mark.slow
def test_no_graph_of_a_step_is_kept() -> None:
    task, watch = Leaving(), Watch("losses")
    with Session(task, hooks=[watch]) as session:
        for batch in task.input_fn("train"):
            session.run(batch)
        gc.collect()
        assert [loss() for loss in task.losses] == [None] * 20
    assert all(left is not None and left[0].grad_fn is None for left in watch.seen)


@pytest.mark.parametrize("pipeline", [PipelineConfig(), PipelineConfig(prefetch=3, postpush=True)])
def test_the_newest_request_time_of_the_batch_is_left_by_the_session(pipeline: PipelineConfig) -> None:
    task, watch = ExampleTask(), Watch("req_time")
    with Session(task, hooks=[watch], pipeline=pipeline) as session, session.feed(task.input_fn("train")) as feed:
        for _ in range(5):
            session.run_next(feed)
    assert watch.seen == [[1_700_000_000 + 60 * number] for number in range(5)]


@pytest.mark.parametrize("deterministic", [True, False])
def test_a_batch_without_a_time_adds_none(deterministic: bool) -> None:
    task, watch = ExampleTask(), Watch("req_time")
    with Session(task, hooks=[watch], deterministic=deterministic) as session:
        for batch in task.input_fn("train"):
            session.run({name: batch[name] for name in ("user", "item", "label")})
    assert watch.seen == [None] * 20


def test_a_step_loop_discards_the_values_of_the_previous_step() -> None:
    with StepLoop([SetCurrentSessionHook()]) as loop:
        add_to_collections("numbers", -1)
        for number in range(3):
            loop.run(functools.partial(add_to_collections, "numbers", number))
            assert loop.collections.get("numbers") == [-1, number]


def test_clearing_removes_both_kinds() -> None:
    collections = Collections()
    collections.add("x", 1)
    collections.begin_step()
    collections.add("x", 2)
    assert collections.get("x") == [1, 2]
    collections.clear("x")
    assert collections.get("x") is None
    collections.begin_step()
    assert collections.get("x") is None
