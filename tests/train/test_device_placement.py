"""The dense part on a GPU. Where there is none, the meta device stands for it: the way there can be seen, no values."""

from __future__ import annotations

import threading
from collections.abc import Collection
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn

from monolith.data import Batch
from monolith.errors import FailedPreconditionError
from monolith.nn import Embeddings, Slot
from monolith.tables.row_optimizers import Adagrad
from monolith.tensors import Ragged
from monolith.testing import ExampleTask
from monolith.train import CpuTrainingConfig, DeviceConfig, PipelineConfig, Session, Spec, Trainer, TrainerConfig
from monolith.train._model_step import StepResult
from monolith.train.compat.derive_config import trainer_config_of
from monolith.train.device_placement import DevicePlacement, StagedFeatures, device_of_rank, placement_of

NEEDS_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
META, HERE = torch.device("meta"), torch.device("cpu")


class Pair(NamedTuple):
    first: Any
    second: Any


class TestWhichGpu:
    @pytest.mark.parametrize(
        ("local_rank", "processes_per_gpu", "number"), [(0, 1, 0), (3, 1, 3), (3, 2, 1), (5, 3, 1), (2, 8, 0)]
    )
    def test_ranks_of_a_machine_share_gpus_in_their_order(
        self, local_rank: int, processes_per_gpu: int, number: int
    ) -> None:
        assert device_of_rank(local_rank, processes_per_gpu, num_devices=4) == torch.device("cuda", number)

    def test_the_error_for_a_rank_without_a_gpu_reports_how_many_may_share_one(self) -> None:
        with pytest.raises(
            FailedPreconditionError, match=r"local rank 4 .* needs GPU 4, and this process sees 2;"
        ) as e:
            device_of_rank(4, 1, num_devices=2)
        assert "start at most 2 processes on this machine, or set processes_per_gpu to 3 or more" in str(e.value)
        assert device_of_rank(4, 3, num_devices=2).index == 1, "what the message says is right"

    @pytest.mark.parametrize("variable", ["LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK"])
    def test_the_launcher_sets_the_local_rank_on_the_machine(
        self, variable: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        chosen = fake_gpus(monkeypatch, count=4)
        monkeypatch.setenv(variable, "5")
        placement = placement_of(DeviceConfig(gpu=True, processes_per_gpu=2))
        assert placement is not None
        assert placement.device == torch.device("cuda", 2)
        assert chosen == [placement.device], "NCCL takes the current one"

    def test_alone_it_is_the_first(self, monkeypatch: pytest.MonkeyPatch) -> None:
        fake_gpus(monkeypatch, count=1)
        placement = placement_of(DeviceConfig(gpu=True))
        assert placement is not None
        assert placement.device == torch.device("cuda", 0)

    @pytest.mark.parametrize("text", ["first", "-1", "1.5"])
    def test_a_rank_that_is_no_number_is_refused(self, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
        fake_gpus(monkeypatch, count=4)
        monkeypatch.setenv("LOCAL_RANK", text)
        with pytest.raises(ValueError, match=f"LOCAL_RANK must be an integer >= 0, got '{text}'"):
            placement_of(DeviceConfig(gpu=True))

    def test_without_cuda_it_is_refused_when_the_trainer_is_made(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
        with pytest.raises(FailedPreconditionError, match="leave the option out to train on the CPU"):
            Trainer(ExampleTask(), TrainerConfig(device=DeviceConfig(gpu=True)))


def fake_gpus(monkeypatch: pytest.MonkeyPatch, *, count: int) -> list[torch.device]:
    """Returns where the current device will be noted."""
    chosen: list[torch.device] = []
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    monkeypatch.delenv("OMPI_COMM_WORLD_LOCAL_RANK", raising=False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    return chosen


class TestOptions:
    def test_device_options_match_upstream(self) -> None:
        config = CpuTrainingConfig(enable_gpu_training=True, processes_per_gpu=2)
        derived = trainer_config_of(config, ExampleTask.params())
        assert derived.device == DeviceConfig(gpu=True, processes_per_gpu=2)

    def test_a_number_of_processes_without_a_gpu_is_refused(self) -> None:
        with pytest.raises(ValueError, match=r"processes_per_gpu=2 .* set gpu \(enable_gpu_training\)"):
            DeviceConfig(processes_per_gpu=2)
        with pytest.raises(ValueError, match="processes_per_gpu"):
            DeviceConfig(gpu=True, processes_per_gpu=0)

    def test_a_run_that_computes_nothing_needs_no_device(self, tmp_path: Path) -> None:
        with pytest.raises(ValueError, match="only_feature_engineering computes nothing"):
            TrainerConfig(model_dir=str(tmp_path), only_feature_engineering=True, device=DeviceConfig(gpu=True))


class TestFeatures:
    def test_ids_stay_and_everything_else_goes(self) -> None:
        batch = {
            "user": torch.tensor([1, 2]),
            "label": torch.ones(2),
            "history": Ragged.from_lists([[1], [2, 3]]),
            "text": [b"a", b"b"],
            "more": [Pair(torch.ones(1), "name"), (torch.ones(1), 3)],
            "inner": {"user": torch.tensor([1]), "weight": torch.ones(1)},
        }
        staged = DevicePlacement(META).stage(batch, host={"user"})
        staged.receive()
        moved = staged.features
        assert moved["user"] is batch["user"]
        assert moved["text"] is not None
        assert moved["text"] == [b"a", b"b"]
        assert moved["inner"]["user"].device == HERE
        there = [moved["label"], moved["history"].values, moved["history"].row_splits]
        there += [moved["more"][0].first, moved["more"][1][0], moved["inner"]["weight"]]
        assert {each.device for each in there} == {META}
        assert isinstance(moved["more"][0], Pair)
        assert moved["more"][1][1] == 3
        assert list(moved) == list(batch)

    def test_a_batch_stays_one(self) -> None:
        batch = Batch({"user": torch.tensor([1, 2]), "label": torch.ones(2, 1)})
        moved = DevicePlacement(META).stage(batch, host={"user"}).features
        assert isinstance(moved, Batch)
        assert moved.num_rows == 2
        assert moved["label"].device == META  # type: ignore[union-attr]

    def test_ragged_rows_of_ragged_rows_move_completely(self) -> None:
        inner = Ragged.from_lists([[1], [2, 3], []])
        nested = Ragged(inner, torch.tensor([0, 2, 3]))
        moved = DevicePlacement(HERE).stage({"x": nested}, host=()).features["x"]
        assert moved.to_lists() == nested.to_lists()

    def test_requested_results_return_to_the_host(self) -> None:
        class Away(torch.Tensor):
            def cpu(self, *_: object, **__: object) -> torch.Tensor:
                return torch.full((1,), 7.0)

        away = torch.zeros(1).as_subclass(Away)
        result = DevicePlacement(META).to_host(StepResult(away, {"a": away, "b": [away]}, away, 1))
        assert result.loss is not None
        assert float(result.loss) == 7.0
        assert [float(each) for each in (result.predictions["a"], result.predictions["b"][0], result.label)] == [
            7.0
        ] * 3


class Recording(DevicePlacement):
    """Where nothing moves, and the calls are noted."""

    def __init__(self) -> None:
        super().__init__(HERE)
        self.placed: list[nn.Module] = []
        self.hosts: list[list[str]] = []
        self.staged_by: list[str] = []
        self.received = 0
        self.returned = 0

    def place(self, model: nn.Module) -> None:
        self.placed.append(model)

    def stage(self, features: Any, *, host: Collection[str]) -> StagedFeatures:
        self.hosts.append(sorted(host))
        self.staged_by.append(threading.current_thread().name)
        staged = super().stage(features, host=host)

        class Counted:
            def receive(inner) -> None:  # noqa: N805 - the outer one is self
                self.received += 1
                assert threading.current_thread() is threading.main_thread()

        return StagedFeatures(staged.features, Counted())  # type: ignore[arg-type]

    def to_host(self, result: StepResult) -> StepResult:
        self.returned += 1
        return super().to_host(result)


class Noting(ExampleTask):
    """Knows whether its model was placed before its optimizers were made."""

    placement: Recording

    def optimizers(self, model: nn.Module) -> Any:
        assert self.placement.placed == [model]
        return super().optimizers(model)


class TestSession:
    def test_a_model_is_placed_before_its_optimizers_are_made(self) -> None:
        task, placement = Noting(), Recording()
        task.placement = placement
        with Session(task, placement=placement) as session:
            session.run(next(iter(task.input_fn("train"))))
        assert placement.hosts == [["item", "user"]]
        assert (placement.received, placement.returned) == (1, 0)

    def test_batches_that_are_read_ahead_are_copied_by_the_thread_that_reads(self) -> None:
        task, placement = ExampleTask(), Recording()
        pipeline = PipelineConfig(prefetch=2, postpush=True)
        with (
            Session(task, placement=placement, pipeline=pipeline) as session,
            session.feed(task.input_fn("train")) as feed,
        ):
            for _ in range(5):
                session.run_next(feed)
        assert set(placement.staged_by) == {"session/input/enqueue-0"}
        assert placement.received == 5

    def test_results_are_those_of_a_session_without_it(self) -> None:
        weights = [trained(placement)[0] for placement in (None, Recording())]
        assert all(torch.equal(a, b) for a, b in zip(*weights, strict=True))

    def test_predictions_are_returned(self) -> None:
        task, placement = ExampleTask(), Recording()
        with Session(task, mode="predict", placement=placement) as session:
            session.run(next(iter(task.input_fn("predict"))))
        assert placement.returned == 1


class Clicks(ExampleTask):
    """Rows of Adagrad, a tower with Adam, and clipping of both together."""

    @classmethod
    def params(cls) -> Any:
        p = super().params()
        p.clip_norm = 0.05
        return p

    def build(self) -> None:
        self.emb = Embeddings({"user": Slot(dim=4), "item": Slot(dim=4)}, Adagrad(learning_rate=0.1))
        self.hidden = nn.Linear(8, 16)
        self.top = nn.Linear(16, 1)

    def model_fn(self, features: Any, mode: Any) -> Spec:
        logits = self.top(self.hidden(self.emb(features).concat()).relu()).squeeze(1)
        assert features["label"].device == logits.device == self.top.weight.device
        loss = nn.functional.binary_cross_entropy_with_logits(logits, features["label"])
        return Spec(loss, predictions=logits.sigmoid(), label=features["label"])


def trained(placement: DevicePlacement | None, *, ahead: bool = False) -> tuple[list[torch.Tensor], torch.Tensor]:
    """Weights, and the rows of some users."""
    task = Clicks()
    pipeline = PipelineConfig(prefetch=2, postpush=True, wait_for_batches=True) if ahead else None
    with Session(task, placement=placement, deterministic=True, pipeline=pipeline) as session:
        with session.feed(task.input_fn("train")) as feed:
            for _ in range(task.p.num_batches):
                session.run_next(feed)
        session.settle()
        weights = [each.detach().cpu() for each in (*task.hidden.parameters(), *task.top.parameters())]
        return weights, task.emb.lookup("user", torch.arange(50))


@NEEDS_GPU
class TestGpu:
    """Sums are made in another order there: 1e-4 relative, 1e-6 absolute, after 20 steps."""

    @pytest.mark.parametrize("ahead", [False, True])
    def test_it_learns_what_the_cpu_learns(self, ahead: bool) -> None:
        (here, rows), (there, rows_there) = (trained(each, ahead=ahead) for each in (None, gpu()))
        for a, b in zip([*here, rows], [*there, rows_there], strict=True):
            torch.testing.assert_close(b, a, rtol=1e-4, atol=1e-6)

    def test_a_trainer_saves_on_the_device_and_resumes_on_the_host(self, tmp_path: Path) -> None:
        there = TrainerConfig(model_dir=str(tmp_path), device=DeviceConfig(gpu=True), deterministic=True)
        trainer = Trainer(Clicks(), there)
        trainer.train(steps=10)
        assert trainer.evaluate(steps=2)["examples"] == 64
        predictions = trainer.predict(next(iter(Clicks().input_fn("predict"))))
        assert predictions.device == HERE
        here = TrainerConfig(model_dir=str(tmp_path), deterministic=True)
        assert Trainer(Clicks(), here).train(steps=10).global_step == 20
        assert Trainer(Clicks(), there).train(max_steps=20).global_step == 20

    def test_outputs_are_pooled_into_memory_that_a_gpu_copies_from(self) -> None:
        emb = Embeddings({"user": Slot(dim=4)}).to("cuda")
        planned = emb.plan({"user": torch.tensor([1, 2, 2])})
        rows = torch.zeros(planned.plan.num_values)
        assert planned.pooled.pool(rows, pinned=True).is_pinned()


def gpu() -> DevicePlacement:
    placement = placement_of(DeviceConfig(gpu=True))
    assert placement is not None
    return placement
