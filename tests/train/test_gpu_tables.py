"""Runs whose tables are on a device: they train, save, publish and export what runs with tables in host memory do.

Without a GPU the processor is the device: the same kernels, and the same way of every row.
"""

from __future__ import annotations

import re
import tempfile
from typing import TYPE_CHECKING, Any

import pytest
import torch

from deltalog.followed import Followed, saved_rows
from monolith.clock import SystemClock
from monolith.cluster.discovery import HostServiceDiscovery
from monolith.errors import InvalidArgumentError
from monolith.export import ExportConfig
from monolith.serving import Predictor
from monolith.tables import CudaStore, LocalStore
from monolith.testing import ExampleTask
from monolith.train import (
    CpuTrainingConfig,
    DeviceConfig,
    DistributedCpuTrainingConfig,
    JobConfig,
    ParameterServers,
    PipelineConfig,
    PublishingConfig,
    Ranks,
    SavingConfig,
    Session,
    SingleProcess,
    Trainer,
    TrainerConfig,
    distributed_train,
    trainer_config_of,
)
from monolith.train.config.job_config import SyncConfig
from monolith.train.device_placement import DevicePlacement, placement_of
from monolith.train.export.exporting import CheckpointExporter
from system.crash import fingerprint
from system.crash.tasks import EverythingTask
from train.exact_clicks import ExactClicks, asked, exporting
from train.test_device_placement import Clicks, fake_gpus

if TYPE_CHECKING:
    from pathlib import Path

    from monolith.train import InstantiableParams, Task

PROCESSOR = torch.device("cpu")
ON_DEVICE = DeviceConfig(gpu=True, tables=True)
AHEAD = PipelineConfig(prefetch=2, postpush=True, wait_for_batches=True)


@pytest.fixture(autouse=True)
def _clean(nothing_left_behind: None) -> None:
    """Every test here."""


@pytest.fixture
def processor_as_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Trainers whose config selects a GPU get the processor as their device."""

    def place(settings: DeviceConfig) -> DevicePlacement | None:
        return DevicePlacement(PROCESSOR, has_tables=settings.tables) if settings.gpu else None

    monkeypatch.setattr("monolith.train.trainer.placement_of", place)


def trainer_of(task: type[Task], folder: Path | None, *, on_device: bool, **settings: Any) -> Trainer:
    device = ON_DEVICE if on_device else DeviceConfig()
    model_dir = None if folder is None else str(folder)
    return Trainer(task(), TrainerConfig(model_dir=model_dir, device=device, deterministic=True, **settings))


def store_of(trainer: Trainer) -> Any:
    assert trainer.state is not None
    (store,) = trainer.state.stores.values()
    return store


def fingerprint_of(trainer: Trainer) -> dict[str, str]:
    """Digests of all parts of the trained state; rows by id, time, weights and optimizer state."""
    assert trainer.state is not None
    return fingerprint(trainer.state)


class TestWhere:
    def test_tables_are_on_the_gpu_of_the_model(self, monkeypatch: pytest.MonkeyPatch) -> None:
        fake_gpus(monkeypatch, count=2)
        monkeypatch.setenv("LOCAL_RANK", "1")
        made: list[Any] = []
        monkeypatch.setattr("monolith.train.device_placement.CudaStore", lambda configs, device: made.append(device))
        placement = placement_of(ON_DEVICE)
        assert placement is not None
        make = placement.store_factory()
        assert make is not None
        make({})
        assert made == [placement.device] == [torch.device("cuda", 1)]
        only_model = placement_of(DeviceConfig(gpu=True))
        assert only_model is not None
        assert only_model.store_factory() is None

    def test_tables_without_a_gpu_are_refused(self) -> None:
        with pytest.raises(ValueError, match=r"tables=True .* gpu is False; set gpu \(enable_gpu_training\)"):
            DeviceConfig(tables=True)

    @pytest.mark.usefixtures("processor_as_gpu")
    def test_evaluation_from_a_checkpoint_has_them_there_too(self, tmp_path: Path) -> None:
        trainer_of(Clicks, tmp_path, on_device=False).train(steps=4)
        host, device = (trainer_of(Clicks, tmp_path, on_device=on_device) for on_device in (False, True))
        assert device.evaluate(steps=2) == host.evaluate(steps=2)
        assert (type(store_of(host)), type(store_of(device))) == (LocalStore, CudaStore)

    def test_a_strategy_with_stores_of_its_own_is_refused(self) -> None:
        class Own(SingleProcess):
            def store_factory(self) -> Any:
                return LocalStore

        placement = DevicePlacement(PROCESSOR, has_tables=True)
        with (
            pytest.raises(InvalidArgumentError, match="keeps the tables on cpu, and strategy Own makes stores"),
            Session(ExampleTask(), placement=placement, strategy=Own()),
        ):
            pass


@pytest.mark.usefixtures("processor_as_gpu")
class TestTheParameter:
    """`p.train.use_gpu_emb_table` of ByteDance Monolith."""

    def params(self) -> InstantiableParams:
        p = ExampleTask.params()
        p.train.use_gpu_emb_table = True
        return p

    def test_it_puts_the_tables_on_the_gpu(self) -> None:
        trainer = Trainer(self.params(), TrainerConfig(device=DeviceConfig(gpu=True)))
        assert trainer.config.device == ON_DEVICE
        trainer.train(steps=1)
        assert isinstance(store_of(trainer), CudaStore)
        options = CpuTrainingConfig(enable_gpu_training=True)
        assert trainer_config_of(options, self.params()).device == ON_DEVICE

    def test_it_needs_gpu_training(self) -> None:
        for make in (Trainer, lambda params: trainer_config_of(CpuTrainingConfig(), params)):
            with pytest.raises(ValueError, match=r"set gpu \(enable_gpu_training\), or leave tables \(train\.use"):
                make(self.params())

    def test_a_session_without_a_trainer_refuses_it(self) -> None:
        with pytest.raises(ValueError, match=r"use_gpu_emb_table=True needs a Trainer.* leave it at False"):
            Session(self.params().instantiate())
        placement = DevicePlacement(PROCESSOR, has_tables=True)
        with Session(self.params().instantiate(), placement=placement) as session:
            (store,) = session.state.stores.values()
        assert isinstance(store, CudaStore)

    def test_exports_and_predictions_of_its_checkpoints_need_no_gpu(self, tmp_path: Path) -> None:
        config = TrainerConfig(model_dir=str(tmp_path / "model"), device=ON_DEVICE)
        Trainer(self.params(), config).train(steps=2)
        exporter = CheckpointExporter(self.params().instantiate())
        exporter.export(str(tmp_path / "model" / "model.ckpt-2"), str(tmp_path / "export"), options=ExportConfig())
        with Predictor(str(tmp_path / "export")) as predictor:
            assert predictor.num_rows > 0


@pytest.mark.usefixtures("processor_as_gpu")
class TestRefused:
    def test_with_parameter_servers(self) -> None:
        servers: Any = object()
        workers = ParameterServers(servers, servers, JobConfig(), servers_back=servers, clock=SystemClock())
        for strategy, sync in ((workers, None), (Ranks(servers), SyncConfig())):
            config = TrainerConfig(device=ON_DEVICE, sync=sync)
            with pytest.raises(ValueError, match=r"rows are on parameter servers, .* train in one process"):
                Trainer(ExampleTask(), config, strategy=strategy)

    @pytest.mark.parametrize("role", ["ps", "worker"])
    def test_by_every_process_of_a_job_before_it_meets_the_others(self, role: str, tmp_path: Path) -> None:
        params = ExampleTask.params().set(**{"train.use_gpu_emb_table": True})
        options = DistributedCpuTrainingConfig(
            server_type=role, index=0, num_ps=1, num_workers=1, model_dir=str(tmp_path), enable_gpu_training=True
        )
        with (
            HostServiceDiscovery(str(tmp_path / "places")) as discovery,
            pytest.raises(ValueError, match="distributed_train: rows are on parameter servers"),
        ):
            distributed_train(options, discovery, params)

    def test_with_several_ranks_until_there_is_an_engine_for_them(self) -> None:
        config = TrainerConfig(device=ON_DEVICE, sync=SyncConfig(), num_workers=2)
        with pytest.raises(ValueError, match=r"ranks that share tables .* are not built yet, .* a run of 2 ranks;"):
            Trainer(ExampleTask(), config)

    def test_one_rank_has_all_rows_and_may_have_them_there(self) -> None:
        trainer = Trainer(ExampleTask(), TrainerConfig(device=ON_DEVICE, sync=SyncConfig()))
        trainer.train(steps=2)
        assert isinstance(store_of(trainer), CudaStore)


@pytest.mark.usefixtures("processor_as_gpu")
class TestRuns:
    @pytest.mark.parametrize("pipeline", [PipelineConfig(), AHEAD], ids=["in-step", "ahead"])
    def test_a_run_equals_one_with_tables_in_host_memory_bit_for_bit(self, pipeline: PipelineConfig) -> None:
        trainers = [trainer_of(Clicks, None, on_device=each, pipeline=pipeline) for each in (False, True)]
        for trainer in trainers:
            trainer.train(steps=8)
        assert [type(store_of(trainer)) for trainer in trainers] == [LocalStore, CudaStore]
        host, device = map(fingerprint_of, trainers)
        assert device == host

    @pytest.mark.parametrize("places", [(True, True), (False, True), (True, False)], ids=["stays", "there", "back"])
    @pytest.mark.parametrize("pipeline", [PipelineConfig(), AHEAD], ids=["in-step", "ahead"])
    def test_a_run_resumes_wherever_its_tables_were(
        self, places: tuple[bool, bool], pipeline: PipelineConfig, tmp_path: Path
    ) -> None:
        ends = []
        for folder, in_turn in (("expected", (False, False)), ("found", places)):
            for on_device in in_turn:
                trainer = trainer_of(
                    Clicks,
                    tmp_path / folder,
                    on_device=on_device,
                    saving=SavingConfig(every_steps=3),
                    pipeline=pipeline,
                )
                trainer.train(steps=4)
            ends.append(fingerprint_of(trainer))
        assert ends[0] == ends[1]

    def test_rows_of_a_checkpoint_are_the_same_on_both(self, tmp_path: Path) -> None:
        trainer_of(EverythingTask, tmp_path, on_device=True).train(steps=3)
        found = []
        for on_device in (False, True):
            trainer = trainer_of(EverythingTask, tmp_path, on_device=on_device)
            trainer.predict(next(iter(EverythingTask().input_fn("predict"))))
            found.append(fingerprint_of(trainer))
        assert found[0] == found[1]

    def test_followers_of_its_delta_log_have_its_rows(self, tmp_path: Path) -> None:
        publishing = PublishingConfig(interval=0.1, dense_interval=1e-6)
        trainer = trainer_of(ExampleTask, tmp_path, on_device=True, publishing=publishing)
        trainer.train(steps=6)
        expected = saved_rows(trainer)
        assert expected
        with Followed(str(tmp_path / "delta_log"), ExampleTask) as follower:
            assert follower.catch_up() == expected

    def test_an_export_answers_as_the_trained_model(self, tmp_path: Path) -> None:
        trainer = trainer_of(ExactClicks, tmp_path / "model", on_device=True)
        trainer.train(steps=4)
        trainer.export(str(tmp_path / "export"), example=asked())
        with Predictor(str(tmp_path / "export")) as predictor:
            answered = predictor.predict(asked()).outputs["predictions"]
        assert torch.equal(answered, trainer.predict(asked()))

    def test_exports_are_written_with_its_checkpoints(self, tmp_path: Path) -> None:
        config = TrainerConfig(model_dir=str(tmp_path), device=ON_DEVICE, saving=SavingConfig(every_steps=2))
        trainer = Trainer(exporting(shared_embedding=True), config)
        trainer.train(steps=4)
        with Predictor(str(tmp_path / "exported_models")) as predictor:
            answered = predictor.predict(asked()).outputs["predictions"]
        assert torch.equal(answered, trainer.predict(asked()))

    def test_a_run_that_fails_in_a_step_resumes_from_its_checkpoint(self, tmp_path: Path) -> None:
        class Fails(Clicks):
            def model_fn(self, features: Any, mode: Any) -> Any:
                spec = super().model_fn(features, mode)
                self.calls = getattr(self, "calls", 0) + 1
                if self.calls == 6 and mode == "train":
                    assert spec.loss is not None
                    spec.loss = spec.loss * float("nan")
                return spec

        whole = trainer_of(Clicks, None, on_device=False)
        whole.train(steps=8)
        with pytest.raises(InvalidArgumentError, match=r"nan|finite"):
            trainer_of(Fails, tmp_path, on_device=True).train(steps=8)
        trainer = trainer_of(Clicks, tmp_path, on_device=True)
        trainer.train(max_steps=8)
        assert fingerprint_of(trainer)["rows of emb"] == fingerprint_of(whole)["rows of emb"]


def test_the_blocks_of_the_page_run_one_after_another(
    project_root: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    text = (project_root / "docs" / "how-to" / "gpu-tables.md").read_text(encoding="utf-8")
    names: dict[str, Any] = {"__name__": "gpu_tables"}
    for block in re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        exec(compile(block, "gpu-tables.md", "exec"), names)  # noqa: S102 - the reader's lines, as they stand
    assert names["stats"].rows == 6


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
class TestGpu:
    """The dense part sums in another order there: 1e-4 relative, 1e-6 absolute, after 20 steps."""

    @pytest.mark.parametrize("pipeline", [PipelineConfig(), AHEAD], ids=["in-step", "ahead"])
    def test_it_learns_what_the_cpu_learns(self, pipeline: PipelineConfig) -> None:
        rows = []
        for on_device in (False, True):
            trainer = trainer_of(Clicks, None, on_device=on_device, pipeline=pipeline)
            trainer.train(steps=20)
            assert trainer.state is not None
            rows.append(trainer.state.embeddings["emb"].lookup("user", torch.arange(50)).cpu())
        torch.testing.assert_close(rows[1], rows[0], rtol=1e-4, atol=1e-6)
        assert store_of(trainer).traits.device == "cuda:0"

    @pytest.mark.parametrize("places", [(True, True), (False, True), (True, False)], ids=["stays", "there", "back"])
    def test_a_run_resumes_with_the_rows_of_its_checkpoint(self, places: tuple[bool, bool], tmp_path: Path) -> None:
        first, second = (trainer_of(Clicks, tmp_path, on_device=on_device) for on_device in places)
        first.train(steps=10)
        second.evaluate(steps=1)
        assert {part: digest for part, digest in fingerprint_of(second).items() if part.startswith("rows")} == {
            part: digest for part, digest in fingerprint_of(first).items() if part.startswith("rows")
        }
        assert second.train(steps=10).global_step == 20

    def test_a_follower_and_an_export_have_its_rows(self, tmp_path: Path) -> None:
        publishing = PublishingConfig(interval=0.1, dense_interval=1e-6)
        trainer = trainer_of(ExactClicks, tmp_path / "model", on_device=True, publishing=publishing)
        trainer.train(steps=6)
        with Followed(str(tmp_path / "model" / "delta_log"), ExactClicks) as follower:
            assert follower.catch_up() == saved_rows(trainer)
        trainer.export(str(tmp_path / "export"), example=asked())
        with Predictor(str(tmp_path / "export")) as predictor:
            answered = predictor.predict(asked()).outputs["predictions"]
        torch.testing.assert_close(answered, trainer.predict(asked()), rtol=1e-4, atol=1e-6)
