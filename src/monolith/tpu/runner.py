"""`TPURunner`: trains or evaluates a task on TPUs, or on the CPU to try it."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final

from monolith.checkpoint import get_checkpoint_state
from monolith.clock import SystemClock
from monolith.errors import NotFoundError
from monolith.files import join
from monolith.hooks import TensorBoardRecords
from monolith.tpu.cloud_client import make_client
from monolith.tpu.devices import Devices, cpu_devices, tpu_devices
from monolith.tpu.embedding_task import EmbeddingTask
from monolith.tpu.estimator import EmbeddingConfigSpec, TPUEstimator
from monolith.tpu.jax_task import JaxTask
from monolith.tpu.options import TpuConfig
from monolith.tpu.torchax_shim import load_backend
from monolith.train import PipelineConfig
from monolith.train.config import ReportingConfig, SavingConfig, TrainerConfig
from monolith.train.parameters import find_task

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from monolith.clock import Clock
    from monolith.hook import Hook
    from monolith.hooks import RunRecordWriter
    from monolith.tpu.cloud_client import TpuClient
    from monolith.train import SessionState, Task
    from monolith.train.parameters import Params

EVAL_TIMEOUT_SECONDS: Final = 5 * 3600.0
"""An evaluation that waits so long for the next checkpoint has seen the last one."""
_LOOK_SECONDS = 1.0


def checkpoints_iterator(
    model_dir: str, *, timeout_seconds: float = EVAL_TIMEOUT_SECONDS, clock: Clock | None = None
) -> Iterator[str]:
    """Yields the newest checkpoint, then each new one as it appears; ends if none appears within the timeout.

    Of those that appear while the caller works on one, only the newest is yielded.
    """
    clock = SystemClock() if clock is None else clock
    seen: str | None = None
    while True:
        checkpoint = _next(model_dir, seen, timeout_seconds, clock)
        if checkpoint is None:
            _log.info("evaluation: no new checkpoint in '%s' for %.0f s", model_dir, timeout_seconds)
            return
        seen = checkpoint
        yield checkpoint


def step_of(path: str) -> int | None:
    """Returns the global step in the name of a checkpoint, or None.

    >>> step_of("/models/ranker/model.ckpt-60"), step_of("/models/model.ckpt")
    (60, None)
    """
    number = path.rpartition("-")[2]
    return int(number) if number.isdigit() and "-" in path else None


def _next(model_dir: str, seen: str | None, timeout_seconds: float, clock: Clock) -> str | None:
    deadline = clock.monotonic() + timeout_seconds
    while True:
        state = get_checkpoint_state(model_dir)
        newest = None if state is None else str(state.model_checkpoint_path)
        if newest is not None and newest != seen:
            return newest
        if clock.monotonic() >= deadline:
            return None
        clock.sleep(min(_LOOK_SECONDS, max(deadline - clock.monotonic(), 0.0)))


_log = logging.getLogger(__name__)

REPLICAS_PER_HOST: Final = 8
CPU_BATCH_SIZE: Final = 128
"""Default batch size of a CPU test."""


class TPURunner:
    """Runs a task by its flags. Not thread-safe.

    Args:
        task_param: The parameters of the task; its accelerator becomes ``tpu``, and its ``train.end_date`` that of the
            flags where it has one.
        options: The flags.
        devices: Devices of JAX to use instead of the machine's TPUs.
        client: Client of the cloud; None: the one selected by the flags.
        clock: Measures waits.
    """

    def __init__(
        self,
        task_param: Params,
        options: TpuConfig | None = None,
        *,
        devices: Sequence[Any] | None = None,
        client: TpuClient | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.options = TpuConfig() if options is None else options
        self._devices = devices
        self._client = client
        self._clock = clock
        self.task_param = task_param
        """Parameters from which the task is made."""
        task_param.accelerator = "tpu"
        said = task_param.train.save_checkpoints_steps
        self.save_checkpoints_steps: int | None = self.options.save_checkpoints_steps if said is None else int(said)
        """Steps between checkpoints: from the task, else from the flag."""
        _log.info(
            "save_checkpoints_steps: %s, from %s", self.save_checkpoints_steps, "flag" if said is None else "task"
        )
        end_date = self.options.overwrite_end_date
        if end_date and "end_date" in task_param.train:
            task_param.train.end_date = end_date
            _log.info("train.end_date: %s, from the flag", end_date)
        elif end_date:
            raise ValueError(
                f"--overwrite_end_date={end_date}: task {task_param.name} has no parameter train.end_date; leave it out"
            )
        if task_param.train.repeat and self.options.enable_stopping_signals:
            raise ValueError(
                f"--enable_stopping_signals: task {task_param.name} repeats its data without end (train.repeat), and"
                " would never see the signal; remove one of the two"
            )

    # Estimators

    def create_tpu_estimator(
        self, task: Task, feature_config: Mapping[str, Any] | None = None, table_config: Mapping[str, Any] | None = None
    ) -> tuple[TPUEstimator, int]:
        """Returns an estimator on TPUs, and its number of replicas: 8 for each host.

        Args:
            task: The task to run.
            feature_config: Feature -> table, of an embedding task; requires `table_config`.
            table_config: Its tables.

        Raises:
            ValueError: the task does not set the number of examples per replica and step.
            FailedPreconditionError: JAX finds no TPU.
        """
        self._configure_version()
        backend = load_backend()
        devices = tpu_devices(backend) if self._devices is None else list(self._devices)
        num_hosts = self._num_hosts(devices)
        total_replicas = REPLICAS_PER_HOST * num_hosts
        per_replica = task.p.train.per_replica_batch_size
        if per_replica is None:
            raise ValueError(
                f"task {task.p.name}: train.per_replica_batch_size must be the number of examples of a replica in a"
                " step, got None"
            )
        train_batch = total_replicas * int(per_replica)
        per_replica = task.p.eval.per_replica_batch_size
        eval_batch = train_batch if per_replica is None else total_replicas * int(per_replica)
        _log.info(
            "tpu: %d hosts, %d replicas on %d devices, global batch %d",
            num_hosts, total_replicas, len(devices), train_batch,
        )  # fmt: skip
        if isinstance(task, EmbeddingTask):
            task.num_hosts = num_hosts
        wrapped = self._wrapped(task, Devices(backend, devices), total_replicas)
        spec = self._embedding_config(task, feature_config, table_config)
        return TPUEstimator(wrapped, self._trainer_config(task), train_batch, eval_batch, spec), total_replicas

    def create_tpu_estimator_on_cpu(
        self, task: Task, feature_config: Mapping[str, Any] | None = None, table_config: Mapping[str, Any] | None = None
    ) -> tuple[TPUEstimator, int]:
        """Returns an estimator by JAX on the CPU, with one replica: a step is one batch of the task."""
        backend = load_backend()
        wrapped = self._wrapped(task, Devices(backend, cpu_devices(backend)), 1)
        sizes = [task.p.train.per_replica_batch_size, task.p.eval.per_replica_batch_size]
        spec = self._embedding_config(task, feature_config, table_config)
        train, evaluation = (None if size is None else int(size) for size in sizes)
        return TPUEstimator(wrapped, self._trainer_config(task), train, evaluation, spec), 1

    # Running

    def run(self, *, hooks: Sequence[Hook] = ()) -> SessionState | dict[str, float]:
        """Trains, or evaluates checkpoints as they come.

        Returns:
            What was trained, or the results of the last evaluation.

        Raises:
            TypeError: the mode is ``train_and_eval``.
            ValueError: the task lacks what the mode needs.
        """
        _log.info("tpu: current step %d", self._current_step())
        if self.options.mode == "train_and_eval":
            raise TypeError(
                f"--mode {self.options.mode} is not supported: start one process with --mode train and another with"
                " --mode eval, which polls for its checkpoints"
            )
        if self.options.cpu_test and self.task_param.train.per_replica_batch_size is None:
            self.task_param.train.per_replica_batch_size = CPU_BATCH_SIZE
        task: Task = self.task_param.instantiate()
        features: Mapping[str, Any] | None = None
        tables: Mapping[str, Any] | None = None
        if isinstance(task, EmbeddingTask):
            task.init_slot_to_env()
            features, tables = task.create_feature_and_table_config_dict()
        create = self.create_tpu_estimator_on_cpu if self.options.cpu_test else self.create_tpu_estimator
        estimator, total_replicas = create(task, features, tables)
        if self.options.mode == "eval":
            return self._evaluate(estimator, total_replicas)
        return estimator.train(max_steps=self.task_param.train.max_steps, hooks=hooks)

    def write_summary(self, logs: Mapping[str, float], writer: RunRecordWriter, step: int) -> None:
        """Writes results of a step, one scalar each."""
        writer.write(step, logs)

    def _evaluate(self, estimator: TPUEstimator, total_replicas: int) -> dict[str, float]:
        model_dir, steps = self._require_model_dir(), self._eval_steps(total_replicas)
        max_steps = self.task_param.train.max_steps
        results: dict[str, float] = {}
        writer = TensorBoardRecords(join(model_dir, "eval"))
        try:
            for path in checkpoints_iterator(model_dir, clock=self._clock):
                _log.info("evaluation: begins with %s", path)
                try:
                    results = estimator.evaluate(steps=steps, checkpoint_path=path)
                except NotFoundError as error:
                    _log.info("evaluation: %s no longer exists and is skipped: %s", path, error)
                    continue
                step = int(results.get("global_step", step_of(path) or 0))
                _log.info("evaluation: step %d: %s", step, results)
                self.write_summary(results, writer, step)
                if max_steps is not None and step >= int(max_steps):
                    _log.info("evaluation: ends, as training did, with step %d", step)
                    break
        finally:
            writer.close()
        return results

    # Inside

    def _eval_steps(self, total_replicas: int) -> int:
        p = self.task_param
        examples, per_replica = p.input.eval_examples, p.eval.per_replica_batch_size
        if examples is None or per_replica is None:
            raise ValueError(
                f"task {p.name}: an evaluation needs input.eval_examples and eval.per_replica_batch_size, got"
                f" {examples} and {per_replica}"
            )
        steps = int(examples) // (int(per_replica) * total_replicas)
        if steps < 1:
            raise ValueError(
                f"task {p.name}: input.eval_examples={examples} do not fill one batch of {total_replicas} x"
                f" {per_replica} examples; give more, or smaller batches"
            )
        return steps

    def _require_model_dir(self) -> str:
        if self.options.model_dir is None:
            raise ValueError(
                "--model_dir: name the folder of the checkpoints to evaluate, such as --model_dir /tmp/model"
            )
        return self.options.model_dir

    def _current_step(self) -> int:
        state = None if self.options.model_dir is None else get_checkpoint_state(self.options.model_dir)
        return 0 if state is None else step_of(str(state.model_checkpoint_path)) or 0

    def _configure_version(self) -> None:
        options = self.options
        if not options.enable_tpu_version_config:
            return
        if options.tpu is None and self._client is None:
            _log.info("tpu: --tpu names no Cloud TPU, so no version is set and no health is checked")
            return
        client = self._cloud()
        _log.info("tpu: setting %s to version %s", options.tpu, options.tf_version)
        client.configure_tpu_version(options.tf_version)
        client.wait_for_healthy()

    def _cloud(self) -> TpuClient:
        if self._client is None:
            assert self.options.tpu is not None  # noqa: S101 - only called if it is named
            options = self.options
            self._client = make_client(self.options.tpu, zone=options.tpu_zone, project=options.gcp_project)
        return self._client

    def _num_hosts(self, devices: Sequence[Any]) -> int:
        if self.options.tpu is not None or self._client is not None:
            return self._cloud().num_hosts()
        return len({device.process_index for device in devices})

    def _wrapped(self, task: Task, devices: Devices, num_replicas: int) -> JaxTask:
        return JaxTask(
            task,
            load_backend(),
            devices,
            num_replicas=num_replicas,
            stopping_signals=self.options.enable_stopping_signals,
        )

    def _embedding_config(
        self, task: Task, feature_config: Mapping[str, Any] | None, table_config: Mapping[str, Any] | None
    ) -> EmbeddingConfigSpec | None:
        if not feature_config or not table_config:
            return None
        options = self.options
        spec = EmbeddingConfigSpec(feature_config, table_config, options.partition_strategy, options.pipeline_execution)
        if isinstance(task, EmbeddingTask):
            task.use_tables(feature_config, table_config)
        return spec

    def _trainer_config(self, task: Task) -> TrainerConfig:
        options, every = self.options, self.save_checkpoints_steps
        if every is not None and every % options.iterations_per_loop:
            loops = -(-every // options.iterations_per_loop)
            _log.info(
                "save_checkpoints_steps: %d becomes %d, as the host looks every %d steps (iterations_per_loop)",
                every, loops * options.iterations_per_loop, options.iterations_per_loop,
            )  # fmt: skip
            every = loops * options.iterations_per_loop
        return TrainerConfig(
            model_dir=options.model_dir,
            saving=SavingConfig(every_steps=every if options.model_dir is not None else None),
            pipeline=PipelineConfig(
                prefetch=int(options.pipeline_execution), wait_for_batches=options.pipeline_execution
            ),
            reporting=ReportingConfig(
                log_every_steps=options.iterations_per_loop, summary_every_steps=options.host_call_every_n_steps or None
            ),
            deterministic="deterministic" in task.p and bool(task.p.deterministic),
        )


def main(options: TpuConfig, *, hooks: Sequence[Hook] = ()) -> SessionState | dict[str, float]:
    """Finds the task that the flags name, and runs it; ``monolith tpu`` is this.

    Raises:
        ValueError: no task is named, or there is none of this name.
    """
    if not options.task:
        raise ValueError("--task: name the task to run, such as --task my_module:MyTask")
    params = find_task(options.task)
    for name, value in options.to_dict().items():
        _log.info("flag %s: %s", name, value)
    _log.info("task_param: %s", params)
    return TPURunner(params, options).run(hooks=hooks)
