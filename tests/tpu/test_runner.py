"""`TPURunner`: its flags, its estimators, training and evaluation on the CPU."""

from __future__ import annotations

import json
import logging
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from monolith.clock import SystemClock
from monolith.errors import FailedPreconditionError, NotFoundError
from monolith.testing import ExampleTask, FakeClock
from monolith.tpu import TpuConfig, TPURunner, checkpoints_iterator, load_backend, main
from monolith.tpu.runner import step_of
from monolith.train import Params, Trainer, TrainerConfig
from tpu.eight_devices import Seeded
from tpu.jax_tasks import rows, tolerance, weights

CPU = TpuConfig(cpu_test=True)


def params_for(**changes: Any) -> Params:
    params = ExampleTask.params()
    params.input.eval_examples, params.eval.per_replica_batch_size = 100, 32
    for name, value in changes.items():
        params.set(**{name.replace("__", "."): value})
    return params


def saved_steps(folder: Path) -> set[int]:
    return {int(path.name.split("-")[1].split(".")[0]) for path in folder.glob("*.manifest")}


def test_the_flags_have_the_upstream_defaults() -> None:
    assert TpuConfig().to_dict() == {
        "type": "TpuConfig",
        "task": None,
        "model_dir": None,
        "mode": "train",
        "tpu": None,
        "gcp_project": None,
        "tpu_zone": None,
        "tf_version": "nightly",
        "enable_tpu_version_config": True,
        "save_checkpoints_steps": None,
        "iterations_per_loop": 10000,
        "pipeline_execution": False,
        "host_call_every_n_steps": 500,
        "enable_stopping_signals": False,
        "cpu_test": False,
        "partition_strategy": "mod",
        "overwrite_end_date": "",
    }


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"mode": "predict"}, "mode must be one of train, eval, train_and_eval, got 'predict'"),
        ({"partition_strategy": "hash"}, "partition_strategy must be one of mod, div, got 'hash'"),
        ({"partition_strategy": "div"}, "partition_strategy='div', ranges of ids side by side, is refused"),
        ({"iterations_per_loop": 0}, "iterations_per_loop must be >= 1, got 0"),
        ({"save_checkpoints_steps": 0}, "save_checkpoints_steps must be >= 1, got 0"),
        ({"host_call_every_n_steps": -1}, "host_call_every_n_steps must be >= 0, got -1"),
        ({"tpu": "grpc://10.0.0.2:8470"}, "is an address, but JAX computes on the TPUs of the machine"),
    ],
)
def test_flags_that_mean_nothing_are_refused(options: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        TpuConfig(**options)


def test_the_save_interval_of_the_task_takes_precedence() -> None:
    options = TpuConfig(save_checkpoints_steps=5)
    assert TPURunner(params_for(), options).save_checkpoints_steps == 5
    runner = TPURunner(params_for(train__save_checkpoints_steps=7), options)
    assert runner.save_checkpoints_steps == 7
    assert runner.task_param.accelerator == "tpu"


def test_a_task_without_an_end_date_refuses_the_flag() -> None:
    with pytest.raises(ValueError, match=r"has no parameter train\.end_date; leave it out"):
        TPURunner(params_for(), TpuConfig(overwrite_end_date="20201210"))


def test_train_and_eval_is_a_type_error() -> None:
    with pytest.raises(TypeError, match="train_and_eval is not supported: start one process with --mode train"):
        TPURunner(params_for(), TpuConfig(mode="train_and_eval", cpu_test=True)).run()


def test_a_missing_task_is_reported() -> None:
    with pytest.raises(ValueError, match="--task: name the task to run"):
        main(CPU)
    with pytest.raises(ValueError, match="no module"):
        main(TpuConfig(cpu_test=True, task="nowhere_at_all:Task"))


def test_a_cpu_test_trains_and_evaluates_the_example_to_the_weights_of_torch(tmp_path: Path) -> None:
    torch.manual_seed(5)
    trained = TPURunner(params_for(train__max_steps=20), TpuConfig(cpu_test=True, model_dir=str(tmp_path / "m"))).run()
    torch.manual_seed(5)
    expected = Trainer(params_for(), TrainerConfig()).train()
    assert not isinstance(trained, dict)
    assert trained.global_step == expected.global_step == 20
    for name, value in weights(trained).items():
        torch.testing.assert_close(
            value, weights(expected)[name], rtol=0, atol=tolerance(ExampleTask(), "dense", 20), msg=name
        )
    for slot in ("user", "item"):
        assert torch.equal(rows(trained, slot)[0], rows(expected, slot)[0])
        torch.testing.assert_close(
            rows(trained, slot)[1], rows(expected, slot)[1], rtol=0, atol=tolerance(ExampleTask(), "rows", 20)
        )
    options = TpuConfig(cpu_test=True, model_dir=str(tmp_path / "m"), mode="eval")
    found = TPURunner(params_for(train__max_steps=20), options).run()
    by_torch = Trainer(params_for(), TrainerConfig(model_dir=str(tmp_path / "m"))).evaluate(steps=3)
    assert isinstance(found, dict)
    assert found == pytest.approx(by_torch, rel=1e-5)
    assert found["examples"] == 96  # 100 // 32 steps
    assert len(list((tmp_path / "m" / "eval").glob("events.out.tfevents.*"))) == 1


def test_checkpoints_come_at_ends_of_loops_and_training_ends_at_max_steps(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    options = TpuConfig(
        cpu_test=True,
        model_dir=str(tmp_path),
        save_checkpoints_steps=3,
        iterations_per_loop=2,
        host_call_every_n_steps=0,
    )
    TPURunner(params_for(train__max_steps=9), options).run()
    assert saved_steps(tmp_path) == {4, 8, 9}
    assert "save_checkpoints_steps: 3 becomes 4" in caplog.text
    assert re.findall(r"step (\d+), loss", caplog.text) == ["2", "4", "6", "8"]
    assert not list(tmp_path.glob("events.out.tfevents.*"))
    caplog.clear()
    TPURunner(params_for(train__max_steps=9), options).run()
    assert "current step 9" in caplog.text


def test_host_calls_write_summaries_every_n_steps(tmp_path: Path) -> None:
    options = TpuConfig(cpu_test=True, model_dir=str(tmp_path), host_call_every_n_steps=5)
    state = TPURunner(params_for(), options).run()
    assert not isinstance(state, dict)
    assert state.history is not None
    assert state.history["step"] == [5.0, 10.0, 15.0, 20.0]
    assert {"loss", "auc"} <= set(state.history.names)
    assert len(list(tmp_path.glob("events.out.tfevents.*"))) == 1


def test_pipelined_rows_are_one_step_old(tmp_path: Path) -> None:
    class OneId(ExampleTask):
        """One id, pulled by 1 in each step; what a step sees says how many updates it lacks."""

        def input_fn(self, mode: Any) -> Any:
            batch = {"user": torch.tensor([1]), "item": torch.tensor([1]), "label": torch.ones(1)}
            return [batch] * 4

    def seen(**options: Any) -> Any:
        torch.manual_seed(0)
        state = TPURunner(OneId.params(), TpuConfig(cpu_test=True, host_call_every_n_steps=1, **options)).run()
        assert not isinstance(state, dict)
        assert state.history is not None
        return state.history["loss"]

    fresh, stale = seen(), seen(pipeline_execution=True)
    assert stale[0] == fresh[0]
    assert stale[1] != fresh[1]  # the second step has not seen the update of the first


class Cloud:
    """A Cloud TPU of two hosts."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def configure_tpu_version(self, version: str) -> None:
        self.calls.append(f"version {version}")

    def wait_for_healthy(self) -> None:
        self.calls.append("healthy")

    def num_hosts(self) -> int:
        return 2


def test_each_host_has_eight_replicas_and_the_cloud_is_queried_first() -> None:
    devices, cloud = load_backend().jax.devices("cpu")[:1], Cloud()
    params = params_for(train__per_replica_batch_size=4)
    runner = TPURunner(params, TpuConfig(tpu="pod"), devices=devices, client=cloud)
    estimator, replicas = runner.create_tpu_estimator(params.instantiate())
    assert (replicas, estimator.train_batch_size, estimator.eval_batch_size) == (16, 64, 512)
    assert cloud.calls == ["version nightly", "healthy"]
    assert len(next(iter(estimator.task.input_fn("train")))["label"]) == 16 * 32
    runner = TPURunner(params, TpuConfig(enable_tpu_version_config=False), devices=devices, client=cloud)
    assert runner.create_tpu_estimator(params.instantiate())[1] == 16
    assert len(cloud.calls) == 2


def test_off_the_cloud_version_and_health_checks_are_skipped_with_a_log_line(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    params = params_for(train__per_replica_batch_size=4)
    runner = TPURunner(params, devices=load_backend().jax.devices("cpu")[:1])
    assert runner.create_tpu_estimator(params.instantiate())[1] == 8
    assert "--tpu names no Cloud TPU" in caplog.text


def test_what_the_runner_needs_and_does_not_find_is_reported(tmp_path: Path) -> None:
    with pytest.raises(FailedPreconditionError, match=r"JAX finds no TPU on this machine .*--cpu_test"):
        TPURunner(params_for()).run()
    runner = TPURunner(params_for(), devices=load_backend().jax.devices("cpu")[:1])
    with pytest.raises(ValueError, match=r"train\.per_replica_batch_size must be the number of examples"):
        runner.run()
    options = TpuConfig(cpu_test=True, mode="eval", model_dir=str(tmp_path))
    with pytest.raises(ValueError, match=r"needs input\.eval_examples and eval\.per_replica_batch_size, got None"):
        TPURunner(params_for(input__eval_examples=None), options).run()
    with pytest.raises(ValueError, match="do not fill one batch of 1 x 32 examples"):
        TPURunner(params_for(input__eval_examples=31), options).run()
    with pytest.raises(ValueError, match="--model_dir: name the folder of the checkpoints"):
        TPURunner(params_for(), TpuConfig(cpu_test=True, mode="eval")).run()


def test_new_checkpoints_are_evaluated_until_none_has_come_for_five_hours(tmp_path: Path) -> None:
    config = TrainerConfig(model_dir=str(tmp_path))
    Trainer(params_for(), config).train(steps=3)

    class Trains(FakeClock):
        """While somebody waits for the first time, training goes on."""

        def sleep(self, seconds: float) -> None:
            if self.monotonic() == 0.0:
                Trainer(params_for(), config).train(steps=3)
            super().sleep(max(seconds, 600.0))

    clock = Trains()
    options = TpuConfig(cpu_test=True, mode="eval", model_dir=str(tmp_path))
    found = TPURunner(params_for(), options, clock=clock).run()
    assert isinstance(found, dict)
    assert found["global_step"] == 6
    assert 5 * 3600 <= clock.monotonic() <= 5 * 3600 + 1200


def test_an_evaluation_skips_a_deleted_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    Trainer(params_for(), TrainerConfig(model_dir=str(tmp_path))).train(steps=2)

    def gone(*_: Any, **__: Any) -> Any:
        raise NotFoundError("it was removed")

    monkeypatch.setattr("monolith.tpu.estimator.TPUEstimator.evaluate", gone)
    options = TpuConfig(cpu_test=True, mode="eval", model_dir=str(tmp_path))
    assert TPURunner(params_for(), options, clock=FakeClock()).run() == {}
    assert "no longer exists and is skipped: it was removed" in caplog.text


def test_checkpoints_are_seen_once(tmp_path: Path) -> None:
    Trainer(params_for(), TrainerConfig(model_dir=str(tmp_path))).train(steps=2)
    seen = list(checkpoints_iterator(str(tmp_path), timeout_seconds=60, clock=FakeClock()))
    assert [step_of(path) for path in seen] == [2]
    assert list(checkpoints_iterator(str(tmp_path / "none"), timeout_seconds=60, clock=FakeClock())) == []
    assert list(checkpoints_iterator(str(tmp_path / "none"), timeout_seconds=0, clock=SystemClock())) == []


@pytest.mark.slow
def test_eight_devices_compute_what_one_process_of_torch_does() -> None:
    tests = Path(__file__).resolve().parents[1]
    program = Path(__file__).with_name("eight_devices.py")
    environment = {"XLA_FLAGS": "--xla_force_host_platform_device_count=8", "PYTHONPATH": str(tests)}
    done = subprocess.run(
        [sys.executable, str(program)], capture_output=True, text=True, check=False, timeout=280, env=environment
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["devices"], found["replicas"], found["batch"], found["step"]) == (8, 8, [32, 32], 20)

    class Whole(Seeded):
        def input_fn(self, mode: Any) -> Any:
            return super().input_fn(mode).merged_window(8)

    params = Whole.params()
    params.num_batches, params.batch_size = 160, 4
    expected = Trainer(params, TrainerConfig()).train()
    error = 20 * (32 + 8) * torch.finfo(torch.float32).eps
    for name, value in weights(expected).items():
        torch.testing.assert_close(torch.tensor(found["weights"][name]), value, rtol=0, atol=1e-3 * error, msg=name)
    ids, vectors = rows(expected, "user")
    assert found["ids"] == ids.tolist()
    torch.testing.assert_close(torch.tensor(found["vectors"]), vectors, rtol=0, atol=0.05 * error)
