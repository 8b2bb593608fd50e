"""What comes before a run: what its scheduler wants of this process, and what its options tell others."""

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
    """Do what comes before a run, in this order; `make_trainer` does it for a `RunnerConfig`.

    1. Options that only have their default take over the flags of their names.
    2. On the MLP platform a process of the data service serves, and does not return; a worker waits for that service,
       and the flag ``data_service_dispatcher`` says where it is.
    3. Under MPI an uncaught exception ends the whole job from now on.
    4. A worker of partially synchronous training on GPUs that has no index takes its MPI rank.
    5. Kafka settings and ``restore_ckpt`` become flags; a flag ``restore_ckpt`` that is set stays.

    The checkpoint of ``restore_dir`` is copied, or waited for, when training restores: a run that only looks writes
    nothing.

    Args:
        options: Of the run; its index may change.
        flags: Of the program, whatever parsed them; read and written. None: there are none.
        data_service: For the processes of a job that have to run one.

    Raises:
        TypeError, ValueError: A flag that is no value of its option; nothing was done.
    """
    flags = {} if flags is None else flags
    said = {name: value for name, value in flags.items() if name in options.option_names() and value is not None}
    options.update(said, Origin.FLAG)
    settings = prepare_runner(options.runner_settings(), flags, data_service=data_service)
    if settings.index != options.index:
        options.index = settings.index
    if options.restore_ckpt is not None and flags.get("restore_ckpt") is None:
        flags["restore_ckpt"] = options.restore_ckpt
