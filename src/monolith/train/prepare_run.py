"""Preparation of a run: requirements of its scheduler, and options that become flags."""

from __future__ import annotations

from typing import TYPE_CHECKING

from monolith.cluster import prepare_runner
from monolith.train.compat.flat_config import Origin

if TYPE_CHECKING:
    from collections.abc import MutableMapping

    from monolith.cluster.runtimes import DataService
    from monolith.train.compat.options import RunnerConfig

__all__ = ["prepare_run"]


def prepare_run(
    options: RunnerConfig,
    flags: MutableMapping[str, object] | None = None,
    *,
    data_service: DataService | None = None,
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
