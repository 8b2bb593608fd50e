"""``monolith train``: trains a task, resumes it, evaluates it or predicts with it."""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import logging
import shlex
import sys
import time
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from monolith import environment
from monolith.checkpoint import get_checkpoint_state
from monolith.cli import main, outcome_of
from monolith.cli._arguments.train import STREAM_ONLY, mattering_options
from monolith.cli._launching import alone_options, launch, plan_of, way_of
from monolith.cli._option_values import key_values, without_none
from monolith.cli._roles import run_role
from monolith.cli._run_options import command_of, config_text, find_tasks_here, options_of, saved_text, tell
from monolith.hook import Hook
from monolith.hooks import ProgressHook, StopOnSignal
from monolith.launch import INTERRUPTED, Body, ForkedProcess
from monolith.nn.embeddings import weights_of
from monolith.observe import Progress
from monolith.online.stream import ExampleStream, StreamConfig, StreamHook
from monolith.train import Session, find_task
from monolith.train.compat import MODES, Origin, RunnerConfig
from monolith.train.parameters import flags
from monolith.train.predict import prediction_file_for
from monolith.train.roles import make_trainer

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from monolith.checkpoint import TrainState
    from monolith.cli._launching import Way
    from monolith.hook import StepContext
    from monolith.launch import LaunchPlan
    from monolith.train import Trainer

_log = logging.getLogger(__name__)

_NOT_FLAGS = frozenset({"config_file", "is_local", "task"})


def add_flags(parser: argparse.ArgumentParser) -> None:
    """The options of a run beyond those that matter most."""
    flags.add_flags(parser, RunnerConfig, without={*_NOT_FLAGS, *mattering_options()})


def run(args: argparse.Namespace) -> int:
    """Runs the requested mode; returns 0 when done, 130 when stopped by a signal."""
    options = options_of(args)
    way = way_of(options, args)
    stream = stream_of(options, args, way)
    if way == "alone":
        options.update({"is_local": True}, Origin.CODE)
    if args.print_config:
        sys.stdout.write(config_text(options, as_json=args.json))
        return 0
    find_tasks_here()
    if way == "role":
        return run_role(options, args)
    if way != "alone":
        return _launch(options, args)
    trainer = make_trainer(options, find_task(args.task), deterministic=args.deterministic, stream=stream)
    return _run_alone(trainer, options, args, stream)


def _launch(options: RunnerConfig, args: argparse.Namespace) -> int:
    """Starts all processes of a job; checks first that the task exists."""
    plan = plan_of(options, args)
    if args.dry_run:
        trainer = make_trainer(alone_options(options), find_task(args.task), deterministic=args.deterministic)
        sys.stdout.write(_dry_run(trainer, as_json=args.json, plan=plan))
        return 0
    if args.owns_process and args.launcher != "ray":
        missing = look_for_task(args)
        return missing or launch(plan, args, body=role_body())
    find_task(args.task)
    return launch(plan, args)


def _run_alone(trainer: Trainer, options: RunnerConfig, args: argparse.Namespace, stream: ExampleStream | None) -> int:
    if args.dry_run:
        sys.stdout.write(_dry_run(trainer, as_json=args.json))
        return 0
    if trainer.config.model_dir is None:
        raise ValueError("--model_dir: set the directory of the model, such as --model_dir /tmp/my_model")
    mode = MODES[options.mode]
    if mode != "predict" and (args.out is not None or args.key):
        raise ValueError(f"--out and --key are of --mode predict, got --mode {options.mode}; leave them out")
    if mode == "predict":
        return _predict(trainer, args)
    if mode == "eval":
        return _evaluate(trainer, args)
    return _train(trainer, args, stream)


def _train(trainer: Trainer, args: argparse.Namespace, stream: ExampleStream | None) -> int:
    is_first = _is_first(trainer)
    file = io.StringIO() if args.json or not is_first else None
    limit = args.max_steps if args.max_steps is not None else trainer.task.p.train.max_steps
    with Progress(total=limit, file=file) as bar:
        stop = StopOnSignal(bar)
        monitors = [] if stream is None else [StreamHook(stream, bar, task=args.task)]
        hooks = [ProgressHook(bar), *monitors, stop]
        try:
            state = trainer.train(steps=args.steps, max_steps=args.max_steps, hooks=hooks)
        finally:
            stop.restore()
            if stop.received is not None and is_first:
                bar.close()
                tell(f"resume with: {command_of(args)}")
    rows = sum(embeddings.num_rows for embeddings in state.embeddings.values())  # ranks count them together
    _tell_result(trainer, state, rows, as_json=args.json, stream=stream, was_stopped=stop.received is not None)
    return 0 if stop.received is None else INTERRUPTED


def _is_first(trainer: Trainer) -> bool:
    """Returns whether this process reports for all: rank 0 of a synchronous run does, the others only log."""
    return trainer.config.sync is None or trainer.config.worker_index == 0


def _tell_result(
    trainer: Trainer, state: TrainState, rows: int, *, as_json: bool, stream: ExampleStream | None, was_stopped: bool
) -> None:
    history = trainer.history
    result = {
        "global_step": state.global_step,
        "trained_steps": history.num_steps,
        "ended_by": history.ended_by,
        "rows": rows,
        "expired_rows": history.expired_rows,
        "model_dir": trainer.config.model_dir,
        **({} if stream is None else {"stream": stream.counts.to_dict()}),
    }
    if not _is_first(trainer):
        _log.info("rank %d: %s", trainer.config.worker_index, json.dumps(result))
    elif as_json:
        sys.stdout.write(f"{json.dumps(result)}\n")
    elif trainer.config.only_feature_engineering:
        tell(f"the features of {state.global_step:,} batches are in {trainer.config.model_dir}/features")
    elif state.global_step and history.ended_by == "data" and not history.num_steps and not was_stopped:
        tell(
            f"nothing was trained: the input has no more data; step {state.global_step:,} with {rows:,} rows stays in"
            f" {trainer.config.model_dir}"
        )
    elif state.global_step:
        tell(saved_text(state.global_step, rows, trainer.config.model_dir, expired=history.expired_rows))
    else:
        tell("no step was trained, and nothing saved")


def _evaluate(trainer: Trainer, args: argparse.Namespace) -> int:
    metrics = trainer.evaluate(steps=args.steps)
    if not _is_first(trainer):
        _log.info("rank %d: %s", trainer.config.worker_index, json.dumps(metrics))
    elif args.json:
        sys.stdout.write(f"{json.dumps(metrics)}\n")
    else:
        sys.stdout.writelines(f"{name}: {value:g}\n" for name, value in sorted(metrics.items()))
    return 0


def _predict(trainer: Trainer, args: argparse.Namespace) -> int:
    if args.out is not None:
        return _write_predictions(trainer, args)
    if args.key:
        raise ValueError("--key: columns are written next to predictions in a file; give --out FILE, too")
    for predictions in trainer.predict(steps=args.steps):
        sys.stdout.write(f"{json.dumps(_plain(predictions))}\n")
    return 0


def _write_predictions(trainer: Trainer, args: argparse.Namespace) -> int:
    """Writes predictions atomically to a file: an interrupted command leaves no file, and can be repeated."""
    prediction_file_for(args.out)  # refuse a name without a known format before reading a checkpoint
    try:
        with Progress(unit="rows", file=io.StringIO() if args.json else None) as bar:
            hooks = [_PredictionProgress(bar)]
            rows = trainer.write_predictions(args.out, keys=args.key or (), steps=args.steps, hooks=hooks)
    except KeyboardInterrupt:
        tell(f"interrupted: nothing was written to {args.out}; this command starts from scratch: {command_of(args)}")
        return INTERRUPTED
    if args.json:
        sys.stdout.write(f"{json.dumps({'rows': rows, 'out': args.out})}\n")
    else:
        tell(f"{rows:,} predictions are in {args.out}")
    return 0


class _PredictionProgress(Hook):
    """Shows how many rows were predicted, and how fast."""

    def __init__(self, bar: Progress) -> None:
        self._bar = bar
        self._since = time.monotonic()

    def after_run(self, context: StepContext) -> None:
        """Counts the rows of a batch."""
        last = context.session.last
        self._bar.update(
            0 if last is None else last.num_examples,
            rows_per_second=lambda: self._bar.done / max(time.monotonic() - self._since, 1e-9),
        )


def _dry_run(trainer: Trainer, *, as_json: bool, plan: LaunchPlan | None = None) -> str:
    """Builds the model and runs one batch without changing tables or files; of a job also lists its processes."""
    task, model_dir = trainer.task, trainer.config.model_dir
    state = None if model_dir is None else get_checkpoint_state(model_dir)
    with Session(task, mode="eval") as session, session.feed(task.input_fn("train")) as feed:
        result = session.run_next(feed)
        assert result is not None  # noqa: S101 - only ranks may have no batch
        parameters = [] if session.state.model is None else weights_of(session.state.model)
        slots = {
            name: slot.dim
            for embeddings in session.state.embeddings.values()
            for name, slot in embeddings.slots.items()
        }
    summary: dict[str, Any] = {
        "task": task.p.name,
        "begins_with": "nothing" if state is None else state.model_checkpoint_path,
        "dense_parameters": sum(parameter.numel() for parameter in parameters),
        "slots": slots,
        "examples_of_a_batch": result.num_examples,
        "loss": None if result.loss is None else float(result.loss),
    }
    if plan is not None:
        summary["processes"] = {str(role): shlex.join(plan.command(role)) for role in plan.roles}
    if as_json:
        return f"{json.dumps(summary)}\n"
    return "".join(f"{name.replace('_', ' ')}: {value}\n" for name, value in summary.items())


def _plain(values: Any) -> Any:
    if isinstance(values, Tensor):
        return values.tolist()
    if isinstance(values, dict):
        return {name: _plain(value) for name, value in values.items()}
    return [_plain(value) for value in values] if isinstance(values, list | tuple) else values


_ERRORS = 2
"""The descriptor of standard error."""
_THREADS = "OMP_NUM_THREADS"
_OF_ROLES = ("monolith.cli.ps", "monolith.cli.worker", "grpc", "torch._dynamo")
"""What roles import when they need it. The last is imported by torch for the first optimizer, compiled or not."""


def role_body() -> Body:
    """Returns the main function of a role in a fork; imports modules that roles need."""
    for name in _OF_ROLES:
        with contextlib.suppress(ImportError):  # a role that needs it raises by itself
            importlib.import_module(name)
    threads = torch.get_num_threads()

    def body(arguments: Sequence[str]) -> int:
        number = (environment.get(_THREADS) or "").partition(",")[0]
        torch.set_num_threads(int(number) if number.isdecimal() else threads)  # the thread pool has not started yet
        np.random.seed()  # noqa: NPY002 - used by users' code; forks would all draw the same
        return main(arguments)

    return body


def look_for_task(args: argparse.Namespace) -> int:
    """Imports a task in a fork, to keep side effects out of this process; returns the exit code."""
    look = ForkedProcess(
        lambda _: outcome_of(args, lambda: 0 if find_task(args.task) else 1),
        [args.command, args.task],
        output=_ERRORS,
        kept=_ERRORS,
        variables={},
    )
    return look.wait()


def stream_of(options: RunnerConfig, args: argparse.Namespace, way: Way) -> ExampleStream | None:
    """Returns the stream that the command names, or None."""
    if args.stream is None:
        for name in STREAM_ONLY:
            if getattr(args, name) is not None:
                raise ValueError(f"--{name}: is of --stream PLACE; give that, too, or omit --{name}")
        return None
    _require_alone(options, way)
    if args.deterministic:
        raise ValueError("--deterministic: batches of a stream are cut as examples arrive; omit one of the two")
    config_values: dict[str, Any] = {
        "partitions": args.stream_partitions,
        "max_lag_seconds": args.stream_max_lag,
        "missing": args.stream_missing,
        "stop_at_end": args.stream_stop_at_end,
        "kafka": None if args.stream_kafka is None else key_values(args.stream_kafka, "--stream_kafka"),
    }
    return ExampleStream(args.stream, StreamConfig(**without_none(config_values)))


def _require_alone(options: RunnerConfig, way: Way) -> None:
    if way != "alone" or options.enable_sync_training:
        raise ValueError("--stream: one process trains on a stream; omit the options of a job")
    if MODES[options.mode] != "train":
        raise ValueError(f"--stream: is of --mode train, got --mode {options.mode}; omit it")
