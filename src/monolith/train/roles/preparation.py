"""Preparation of a process before its role runs: requirements of its scheduler, its rank, and its signals."""

from __future__ import annotations

import signal
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from monolith import collective
from monolith.cluster import prepare_runner
from monolith.train.compat.flat_config import Origin
from monolith.train.compat.options import RunnerConfig
from monolith.train.compat.refusal import require_one_process
from monolith.train.compat.task_parameters import override_params
from monolith.train.parameters.registry import require_named_task

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, MutableMapping

    from monolith.cluster.runtimes import DataService
    from monolith.train.compat.options import CpuTrainingConfig
    from monolith.train.parameters.params import Params


def prepare_run(
    options: RunnerConfig, flags: MutableMapping[str, object] | None = None, *, data_service: DataService | None = None
) -> None:
    """Prepares a run, in this order; `make_trainer` calls it for a `RunnerConfig`.

    1. Options that have their default are set from the flags of their names.
    2. On the MLP platform a process of the data service serves, and does not return; a worker waits for that service,
       and the flag ``data_service_dispatcher`` is set to its address.
    3. Under MPI an uncaught exception aborts the job from now on.
    4. A worker of partially synchronous training on GPUs that has no index takes its MPI rank.
    5. Kafka settings and ``restore_ckpt`` become flags; a flag ``restore_ckpt`` that is set stays.

    The checkpoint of ``restore_dir`` is copied, or waited for, when training restores: read-only runs write nothing.

    Args:
        options: Options of the run; its index may change.
        flags: Flags of the program, of any parser; read and written. None: no flags.
        data_service: Data service, for processes of a job that run one.

    Raises:
        TypeError, ValueError: a flag is not a valid value of its option; nothing was done.
    """
    flags = {} if flags is None else flags
    said = {name: value for name, value in flags.items() if name in options.option_names() and value is not None}
    options.update(said, Origin.FLAG)
    settings = prepare_runner(options.runner_settings(), flags, data_service=data_service)
    if settings.index != options.index:
        options.index = settings.index
    if options.restore_ckpt is not None and flags.get("restore_ckpt") is None:
        flags["restore_ckpt"] = options.restore_ckpt


def prepare_task(options: CpuTrainingConfig, params: Params) -> dict[str, object]:
    """Prepares a run by `prepare_run` and sets parameters of its task, for a `RunnerConfig` only; returns the flags."""
    flags: dict[str, object] = {}
    if isinstance(options, RunnerConfig):
        require_named_task(options.task, params)
        prepare_run(options, flags)
        override_params(params, options.params_override)
    return flags


_PLACE = ("index", "num_workers")
"""Options of a job that ranks have, too."""


def take_place(config: CpuTrainingConfig) -> None:
    """Sets rank and number of ranks in the options, unless they are set already.

    Also applies the option ``sync_timeout_secs`` to calls between ranks.
    """
    if not config.is_set("enable_sync_training"):
        config.enable_sync_training = True
    if not config.enable_sync_training:
        raise ValueError("synchronous training: enable_sync_training must be True, got False; leave it out")
    own_folders = () if config.merge_sync_training_ckpt else ("uuid",)  # which it names
    require_one_process(config, but=(*_PLACE, *own_folders))
    if config.num_ps:
        raise ValueError(
            f"synchronous training: num_ps must be 0, as ranks keep the rows, got {config.num_ps}; for servers use"
            " distributed_train"
        )
    take_rank(config)


def take_rank(config: CpuTrainingConfig, *, scheduled: int | None = None) -> None:
    """Sets rank and number of ranks of a job with servers.

    Args:
        config: Options of the rank.
        scheduled: The index assigned by a scheduler, which counts as set; None: no scheduler.
    """
    if not config.sync_timeout_secs > 0:
        raise ValueError(f"option sync_timeout_secs must be > 0 seconds, got {config.sync_timeout_secs}")
    collective.init(timeout_seconds=config.sync_timeout_secs)
    for name, own in (("index", collective.rank()), ("num_workers", collective.size())):
        is_scheduled = name == "index" and scheduled is not None
        said = scheduled if is_scheduled else getattr(config, name)
        if (is_scheduled or config.is_set(name)) and said != own:
            word = "rank" if name == "index" else "number of ranks"
            raise ValueError(
                f"synchronous training: {name} must be the {word} that the launcher gave, {own}, got {said}; leave"
                " it out"
            )
        if getattr(config, name) != own:
            setattr(config, name, own)


@contextmanager
def on_signals(handler: Callable[[int], None], *, signals: tuple[int, ...]) -> Iterator[None]:
    """Inside, the first of these signals calls `handler` with its number; the second has its previous effect.

    Does nothing outside the main thread, as Python delivers signals only there.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before: dict[int, Any] = {}

    def first(number: int, _: object) -> None:
        signal.signal(number, before[number])
        handler(number)

    for number in signals:
        before[number] = signal.signal(number, first)
    try:
        yield
    finally:
        for number, previous in before.items():
            signal.signal(number, previous)
