"""One process of a job: what ``monolith worker`` and ``monolith ps TASK`` do."""

from __future__ import annotations

import contextlib
import json
import signal
import sys
from typing import TYPE_CHECKING, NoReturn, cast

from monolith import environment
from monolith.checkpoint import list_checkpoints
from monolith.cli._arguments.train import mattering_options
from monolith.cli._arguments.worker import shown_options
from monolith.cli._run_options import config_text, find_tasks_here, options_of, saved_text, tell
from monolith.cluster import discovery_name, monolith_discovery, own_place
from monolith.cluster.discovery import ScheduledDiscovery, ServiceDiscoveryType
from monolith.errors import AbortedError, CancelledError, DeadlineExceededError, FileUnavailableError, UnavailableError
from monolith.hook import Hook
from monolith.hooks import ProgressHook
from monolith.launch import DONE, INTERRUPTED, TRY_AGAIN, ProgressPipe
from monolith.observe import ProgressLines, configure_logging
from monolith.train import find_task
from monolith.train.compat import Origin, RunnerConfig
from monolith.train.parameters import flags
from monolith.train.roles import JobProgramConfig, distributed_train, take_rank

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from monolith.cluster.discovery import ServiceDiscovery
    from monolith.hook import HookedSession
    from monolith.observe import Progress
    from monolith.train import Trainer

_NOT_FLAGS = frozenset({"config_file", "is_local", "mode", "server_type", "task"})


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Adds the options of a run that the parser does not have yet."""
    flags.add_flags(parser, RunnerConfig, without={*_NOT_FLAGS, *mattering_options(), *shown_options()})


def run_role_command(args: argparse.Namespace) -> int:
    """Run the role of a command's name."""
    options = options_of(args, server_type=args.role)
    if args.print_config:
        sys.stdout.write(config_text(options, as_json=args.json))
        return 0
    find_tasks_here()
    return run_role(options, args)


def run_role(options: RunnerConfig, args: argparse.Namespace) -> int:
    """Runs one process of a job to its end; the launcher restarts it by the exit code."""
    if not options.model_dir:
        raise ValueError("--model_dir: set the directory of the model, on storage that all processes reach")
    require_service(options)
    with contextlib.ExitStack() as stack:
        pipe = ProgressPipe.from_environment()
        if pipe is not None:
            stack.enter_context(pipe)
        stack.enter_context(_ending_by_signals())
        if pipe is not None:
            pipe.send({"state": "listens"})  # from now on a signal ends this process in order
        service = monolith_discovery(options.runner_settings())
        return _run(options, stack.enter_context(service), pipe, args)


def _run(
    options: RunnerConfig, service: ServiceDiscovery | None, pipe: ProgressPipe | None, args: argparse.Namespace
) -> int:
    params, stopped = find_task(args.task), list[bool]()
    take_place(options, service, command=getattr(args, "role", None))
    settings = JobProgramConfig(
        max_steps=args.max_steps, deterministic=args.deterministic, on_stop=lambda: stopped.append(True)
    )
    hooks = list[Hook]()
    if pipe is not None:
        bar = ProgressLines(pipe.send, total=args.max_steps)
        hooks = [ProgressHook(bar), _LastState(bar)]
    with configure_logging(role=options.server_type, rank=options.index):
        try:
            trainer = distributed_train(
                options, cast("ServiceDiscovery", service), params, user_hooks=hooks, settings=settings
            )
        except _LOST as error:
            if isinstance(error, FileUnavailableError):
                raise
            tell(f"monolith {options.server_type}: lost the job, start it again: {' '.join(str(error).split())}")
            return TRY_AGAIN
    if trainer is not None and options.index == 0:
        _tell_result(trainer, options, pipe, as_json=args.json)
    return INTERRUPTED if stopped else DONE


class _LastState(Hook):
    """Closes the bar with the session, as the number of rows comes from servers that end with the job."""

    def __init__(self, bar: Progress) -> None:
        self._bar = bar

    def end(self, session: HookedSession) -> None:  # noqa: ARG002 - a hook's signature
        """Shows the last state."""
        self._bar.close()


_LOST = (AbortedError, CancelledError, DeadlineExceededError, UnavailableError)
"""Errors after which the process should be started again."""


@contextlib.contextmanager
def _ending_by_signals() -> Iterator[None]:
    """Inside, a signal ends this process immediately: during discovery, and later on the second signal."""

    def end(number: int, _: object) -> NoReturn:
        tell(f"stopped by {signal.Signals(number).name}")
        raise SystemExit(INTERRUPTED)

    before = {number: signal.signal(number, end) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _tell_result(trainer: Trainer, options: RunnerConfig, pipe: ProgressPipe | None, *, as_json: bool) -> None:
    """Prints the outcome of the job, on the chief."""
    latest = next((checkpoint for checkpoint in list_checkpoints(options.model_dir) if checkpoint.latest), None)
    report = {
        "global_step": 0 if latest is None else latest.step,
        "trained_steps": trainer.history.num_steps,
        "ended_by": trainer.history.ended_by,
        "rows": 0 if latest is None else latest.rows,
        "expired_rows": trainer.history.expired_rows,
        "model_dir": options.model_dir,
    }
    if pipe is not None:
        pipe.send_result(report)
    elif as_json:
        sys.stdout.write(f"{json.dumps(report)}\n")
    else:
        step, rows = (0, 0) if latest is None else (latest.step, latest.rows)
        tell(saved_text(step, rows, options.model_dir, expired=trainer.history.expired_rows))


_TF_CONFIG = "TF_CONFIG"
_SERVICES = (
    "--discovery_type host --discovery_dir DIR, zk --zk_server HOSTS --deep_insight_name NAME, consul --uuid NAME,"
    " primus with TF_CONFIG, mlp, or NAME://... of another package"
)


def require_service(options: RunnerConfig) -> None:
    """Refuses a process that could not find the others; TF_CONFIG of the environment counts."""
    if options.discovery_type is ServiceDiscoveryType.PRIMUS and options.tf_config is None:
        options.update({"tf_config": environment.get(_TF_CONFIG)}, Origin.CODE)
    if not options.is_set("discovery_type") and not options.uuid:
        hint = "; TF_CONFIG is set: did you mean --discovery_type primus?" if environment.get(_TF_CONFIG) else ""
        raise ValueError(f"--discovery_type: specify how the processes of the job find each other: {_SERVICES}{hint}")


def take_place(options: RunnerConfig, service: ServiceDiscovery | None, *, command: str | None) -> None:
    """Takes the place that the scheduler gives this process, and refuses one that the job does not have."""
    kind, index = own_place(options.runner_settings(), service)
    scheduled = None
    if isinstance(service, ScheduledDiscovery):
        scheduled = index
        _take_numbers(options, service)
    if command is not None and kind != command:
        raise ValueError(
            f"this is a {command} by its command, and {kind} {index} by {discovery_name(options.discovery_type)}; start"
            f" the command of that role, or monolith train, which runs the role that the scheduler assigns"
        )
    if kind not in ("ps", "worker"):
        raise ValueError(f"--server_type: must be ps or worker, got {kind!r}")
    if options.num_ps < 1:
        raise ValueError(f"--num_ps: a job has 1 parameter server or more, got {options.num_ps}")
    if kind == "worker" and options.enable_partial_sync_training:
        take_rank(options, scheduled=scheduled)
        index = options.index
    number, name = (_num_servers(options), "servers") if kind == "ps" else (options.num_workers, "workers")
    if not 0 <= index < number:
        raise ValueError(f"--index: the job has {number} {name}, so it must be from 0 to {number - 1}, got {index}")
    options.update({"server_type": kind, "index": index}, Origin.CODE)


def _take_numbers(options: RunnerConfig, service: ScheduledDiscovery) -> None:
    """Takes the size of the job from the scheduler, and refuses another one that was given."""
    listed = service.query_all()
    sizes = {"num_ps": len(listed.get("ps", {})), "num_workers": len(listed.get("worker", {}))}
    extra = _num_servers(options) - options.num_ps
    for name, number in sizes.items():
        expected = number - extra if name == "num_ps" else number
        if not options.is_set(name):
            options.update({name: expected}, Origin.CODE)
        elif getattr(options, name) != expected:
            spare = f", {extra} of them to spare" if extra and name == "num_ps" else ""
            raise ValueError(
                f"--{name}: {discovery_name(options.discovery_type)} lists {number}{spare}, got"
                f" {getattr(options, name)}; give {expected}, or leave it out"
            )


def _num_servers(options: RunnerConfig) -> int:
    return options.num_ps + options.num_extra_ps + options.num_redundant_ps
