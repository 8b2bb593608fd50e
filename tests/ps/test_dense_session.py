"""A session whose dense weights are on servers trains, saves and goes on as one of this process does."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from monolith.checkpoint import RestoreConfig, Saver
from monolith.errors import FailedPreconditionError, InvalidArgumentError, UnavailableError
from monolith.optim import Shampoo
from monolith.ps.dense.client import DenseClient
from monolith.ps.dense.wire import Kind
from monolith.testing import ExampleTask
from monolith.train import DenseConfig, Session, SingleProcess, Spec, Trainer, TrainerConfig
from monolith.train.compat.options import RunnerConfig
from monolith.train.roles.local_runner import make_trainer
from ps.dense_fakes import FakeServers

OPTIMIZERS: dict[str, Callable[[nn.Module], torch.optim.Optimizer]] = {
    "adam": lambda model: torch.optim.Adam(model.parameters(), lr=0.01),
    "adagrad": lambda model: torch.optim.Adagrad(model.parameters(), lr=0.01),
    "shampoo": lambda model: Shampoo(model.parameters(), 0.01, warmup=2, tau_1=1, tau_2=1),
}


class DeepTask(ExampleTask):
    """With a weight above the size that servers divide, a buffer, a frozen weight and a schedule."""

    kind = "adam"

    def build(self) -> None:
        super().build()
        width = 40 if self.kind == "shampoo" else 4200  # a rule that sees wholes takes matrices of the width squared
        self.deep = nn.Linear(2 * self.p.dim, width)
        self.norm = nn.BatchNorm1d(width)
        self.out = nn.Linear(width, 1)
        self.tied = self.out
        self.scale = nn.Linear(1, 1, bias=False).requires_grad_(False)

    def optimizers(self, model: nn.Module) -> torch.optim.Optimizer:
        return OPTIMIZERS[self.kind](nn.ModuleList([self.emb, self.deep, self.norm, self.out]))

    def schedules(self, optimizers: Any) -> dict[str, Any]:
        return {"decay": torch.optim.lr_scheduler.ExponentialLR(optimizers["dense"], 0.9)}

    def model_fn(self, features: Any, mode: str) -> Spec:
        deep = self.out(self.norm(self.deep(self.emb(features).concat())).relu()).squeeze(1)
        loss = nn.functional.binary_cross_entropy_with_logits(deep * self.scale.weight[0], features["label"])
        return Spec(loss, predictions=deep.sigmoid(), label=features["label"])


def task_of(kind: str = "adam", **params: Any) -> DeepTask:
    task = DeepTask()
    task.kind = kind
    task.p.clip_norm = 0.5
    task.p.dense_weight_decay = 0.01
    task.p.num_batches = 8
    for name, value in params.items():
        setattr(task.p, name, value)
    return task


def trained(task: DeepTask, steps: int, **options: Any) -> dict[str, Tensor]:
    """The model after so many steps."""
    with Session(task, deterministic=True, **options) as session, session.feed(task.input_fn("train")) as feed:
        for _ in range(steps):
            session.run_next(feed)
        session.settle()
        assert session.state.model is not None
        if isinstance(session.state.dense, DenseClient):
            session.state.dense.pull()
        return {name: value.clone() for name, value in session.state.model.state_dict().items() if _is_weight(name)}


def _is_weight(name: str) -> bool:
    return not name.startswith("emb")


def assert_same(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> None:
    assert ours.keys() == theirs.keys()
    assert [name for name, value in ours.items() if not torch.equal(value, theirs[name])] == []


@pytest.mark.parametrize("num_ps", [1, 3])
@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_a_run_over_servers_is_bit_for_bit_that_of_one_process(kind: str, num_ps: int) -> None:
    expected = trained(task_of(kind), 5)
    servers = FakeServers(num_ps)
    assert_same(trained(task_of(kind), 5, strategy=SingleProcess(servers)), expected)
    assert [shard.applied() for shard in servers.shards] == [{0: 4}] * num_ps


class CountingTask(ExampleTask):
    """A weight whose gradient is 1 and whose rate is 1: it is minus the updates that a step has seen."""

    def build(self) -> None:
        self.layer = nn.Linear(1, 1, bias=False)
        nn.init.zeros_(self.layer.weight)
        self.seen: list[float] = []

    def optimizers(self, model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SGD(model.parameters(), lr=1.0)

    def model_fn(self, features: Any, mode: str) -> Spec:
        self.seen.append(-self.layer.weight.item())
        return Spec(self.layer.weight.sum())


@pytest.mark.parametrize(
    ("settings", "seen"),
    [
        ({}, [0, 1, 2, 3, 4, 5]),
        ({"prefetch": True}, [0, 0, 1, 2, 3, 4]),
        ({"postpush": True}, [0, 0, 1, 2, 3, 4]),
        ({"prefetch": True, "postpush": True}, [0, 0, 0, 1, 2, 3]),
    ],
)
def test_a_step_lags_by_as_many_updates_as_the_page_specifies(settings: dict[str, bool], seen: list[int]) -> None:
    task, servers = CountingTask(), FakeServers(2)
    with Session(task, strategy=SingleProcess(servers), dense=DenseConfig(**settings)) as session:
        for batch in list(task.input_fn("train"))[:6]:
            session.run(batch)
        session.settle()
        assert [shard.applied() for shard in servers.shards] == [{0: 5}] * 2
    assert task.seen == seen


def test_a_postponed_push_has_the_learning_rate_of_its_own_step() -> None:
    class Halving(CountingTask):
        def schedules(self, optimizers: Any) -> dict[str, Any]:
            return {"half": torch.optim.lr_scheduler.ExponentialLR(optimizers["dense"], 0.5)}

    task, servers = Halving(), FakeServers(1)
    with Session(task, strategy=SingleProcess(servers), dense=DenseConfig(postpush=True)) as session:
        for batch in list(task.input_fn("train"))[:3]:
            session.run(batch)
        session.settle()
        assert isinstance(session.state.dense, DenseClient)
        session.state.dense.pull()
    assert task.layer.weight.item() == -(1 + 0.5 + 0.25)


def test_after_a_settle_a_step_sees_everything() -> None:
    task, servers = CountingTask(), FakeServers(1)
    with Session(task, strategy=SingleProcess(servers), dense=DenseConfig(prefetch=True, postpush=True)) as session:
        for number, batch in enumerate(list(task.input_fn("train"))[:6]):
            if number == 3:
                session.settle()
            session.run(batch)
    assert task.seen == [0, 0, 0, 3, 3, 3]


@pytest.mark.parametrize("background", [False, True])
@pytest.mark.parametrize(
    ("saved_by", "restored_by"),
    [pytest.param(3, 0, marks=pytest.mark.slow), pytest.param(0, 3, marks=pytest.mark.slow), (2, 5)],
)
@pytest.mark.parametrize("kind", ["adam", "shampoo"])
def test_a_checkpoint_resumes_on_another_number_of_servers(
    kind: str, saved_by: int, restored_by: int, background: bool, tmp_path: Path
) -> None:
    def servers(count: int) -> dict[str, Any]:
        return {} if count == 0 else {"strategy": SingleProcess(FakeServers(count))}

    task = task_of(kind)
    with (
        Session(task, deterministic=True, **servers(saved_by)) as session,
        session.feed(task.input_fn("train")) as feed,
        Saver(tmp_path) as saver,
    ):
        for _ in range(3):
            session.run_next(feed)
        saver.save(session.state, background=background)
        for _ in range(2):
            session.run_next(feed)  # what is saved is of the moment of the save
        saver.wait()
    with Saver(tmp_path) as saver:
        found = trained(task_of(kind), 2, restore=saver.restore, **servers(restored_by))
    assert_same(found, trained(task_of(kind), 5))


def test_the_form_of_a_checkpoint_is_that_of_one_process(tmp_path: Path) -> None:
    manifests = []
    for number, options in enumerate(({}, {"strategy": SingleProcess(FakeServers(3))})):
        task, folder = task_of(), tmp_path / str(number)
        with Session(task, deterministic=True, **options) as session, session.feed(task.input_fn("train")) as feed:  # type: ignore[arg-type]
            for _ in range(3):
                session.run_next(feed)
            with Saver(folder) as saver:
                manifests.append(saver.save(session.state, background=False))
    one, other = _tensors_of(manifests[0].path), _tensors_of(manifests[1].path)
    anchors = {name for name in one if "_anchor" in name}
    assert one.keys() - anchors == other.keys()
    assert [name for name, value in other.items() if not torch.equal(value, one[name])] == []


def _tensors_of(path: str) -> dict[str, Tensor]:
    return load_file(f"{path}.safetensors")


def test_dense_weights_are_frozen_while_pushes_are_held_and_fetched_afterwards(tmp_path: Path) -> None:
    class HeldServers(FakeServers):
        @contextmanager
        def held(self) -> Iterator[None]:
            events.append("held")
            yield
            events.append("released")

        def carry(self, server: int, kind: int, *rest: Any) -> tuple[bytes, bytes] | None:
            events.append(Kind(kind).name)
            return super().carry(server, kind, *rest)

    events: list[str] = []
    task = task_of()
    with Session(task, strategy=SingleProcess(HeldServers(1))) as session, Saver(tmp_path) as saver:
        session.run(task.input_fn("train").make(0))
        events.clear()
        saver.save(session.state, background=False)
    assert events == ["held", "FREEZE", "released", "FETCH", "RELEASE"]


def test_a_checkpoint_records_what_was_applied_of_every_worker(tmp_path: Path) -> None:
    servers = FakeServers(2)
    task = task_of()
    with Session(task, strategy=SingleProcess(servers), worker_index=1) as other:
        other.run(task.input_fn("train").make(0), b"other")
    chief_task = task_of()
    with Session(chief_task, strategy=SingleProcess(servers)) as session, Saver(tmp_path) as saver:
        session.run(chief_task.input_fn("train").make(1), b"chief")
        saver.save(session.state, background=False)
    with (
        Saver(tmp_path) as saver,
        Session(task_of(), restore=saver.restore, strategy=SingleProcess(FakeServers(1))) as session,
    ):
        assert {worker: stamp.position for worker, stamp in session.state.applied.items()} == {0: b"chief", 1: b"other"}


def test_a_checkpoint_of_servers_that_differ_by_a_batch_goes_back_to_as_many_only(tmp_path: Path) -> None:
    servers, task = FakeServers(2), task_of()
    with Session(task, strategy=SingleProcess(servers)) as session, Saver(tmp_path) as saver:
        for number in range(2):
            session.run(task.input_fn("train").make(number))
        dying = task_of()
        servers.gates[1].is_open = False
        with (
            pytest.raises(UnavailableError),
            Session(dying, strategy=SingleProcess(servers), worker_index=1) as other_session,
        ):
            other_session.run(dying.input_fn("train").make(2))
        saver.save(session.state, background=False)
        servers.gates[1].is_open = True
    with Saver(tmp_path) as saver:
        for other in ({}, {"strategy": SingleProcess(FakeServers(3))}):
            with (
                pytest.raises(FailedPreconditionError, match="restore it into 2 servers"),
                Session(task_of(), restore=saver.restore, **other),  # type: ignore[arg-type]
            ):
                pass
        same = FakeServers(2)
        with Session(task_of(), restore=saver.restore, strategy=SingleProcess(same)) as session:
            assert [shard.applied().keys() for shard in same.shards] == [{0, 1}, {0}]


def test_weights_that_restart_from_scratch_do_so_on_servers(tmp_path: Path) -> None:
    servers, task = FakeServers(2), task_of()
    with Session(task, strategy=SingleProcess(servers), deterministic=True) as session, Saver(tmp_path) as saver:
        for number in range(3):
            session.run(task.input_fn("train").make(number))
        saver.save(session.state, background=False)
    fresh = trained(task_of(), 0)
    with Saver(tmp_path, restoring=RestoreConfig(clear_nn=True)) as saver:
        found = trained(task_of(), 0, restore=saver.restore, strategy=SingleProcess(servers))
    assert_same(found, fresh)


def test_a_train_op_of_its_own_is_refused_where_servers_keep_the_weights() -> None:
    class Own(CountingTask):
        def model_fn(self, features: Any, mode: str) -> Spec:
            return Spec(train_op=lambda: None)

    task = Own()
    with (
        Session(task, strategy=SingleProcess(FakeServers(1))) as session,
        pytest.raises(FailedPreconditionError, match="servers keep"),
    ):
        session.run(task.input_fn("train").make(0))


def test_servers_are_for_training_alone() -> None:
    with pytest.raises(InvalidArgumentError, match="mode is 'eval'; restore a checkpoint"):
        Session(task_of(), mode="eval", strategy=SingleProcess(FakeServers(1)))


@pytest.mark.parametrize("name", ["prefetch", "postpush", "partition"])
def test_settings_of_servers_are_refused_where_there_are_none(name: str) -> None:
    settings = DenseConfig(**{name: name != "partition"})
    with pytest.raises(InvalidArgumentError, match=rf"dense.{name} \(enable_variable_{name}\) is about weights"):
        Trainer(task_of(), TrainerConfig(dense=settings))
    with pytest.raises(InvalidArgumentError, match=f"dense.{name}"):
        Session(task_of(), dense=settings)
    options = RunnerConfig()
    setattr(options, f"enable_variable_{name}", name != "partition")
    with pytest.raises(InvalidArgumentError, match=f"enable_variable_{name}"):
        make_trainer(options, DeepTask.params())


def test_a_trainer_with_servers_trains_and_evaluates_what_it_saved(tmp_path: Path) -> None:
    options = RunnerConfig(
        enable_variable_prefetch=True, enable_variable_postpush=True, enable_variable_partition=False
    )
    options.model_dir = str(tmp_path)
    servers = FakeServers(2)
    trainer = make_trainer(options, DeepTask.params(), deterministic=True, servers=servers)
    trainer.train(steps=4)
    assert [shard.applied() for shard in servers.shards] == [{0: 3}] * 2
    assert trainer.evaluate(steps=1)["global_step"] == 4
