"""Refuses flat options, parameters of a task, and variables of the environment, that would do nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from monolith import environment
from monolith.train.compat import reasons
from monolith.train.compat.effects import Refused, effects_of, job_of
from monolith.train.compat.task_parameters import PARAMETERS

if TYPE_CHECKING:
    from collections.abc import Collection

    from monolith.train.compat.flat_config import FlatConfig
    from monolith.train.compat.options import DistributedCpuTrainingConfig
    from monolith.train.parameters.params import Params


def require_effective(config: FlatConfig) -> None:
    """Refuses options and variables that would have no effect; a default that is set explicitly is accepted."""
    for name, effects in effects_of(type(config)).items():
        value, default = getattr(config, name), config.default_of(name)
        for effect in effects:
            if isinstance(effect, Refused) and config.is_set(name) and value != default and value not in effect.taken:
                raise ValueError(
                    f"option {name}={value!r} (from {config.origin(name)}) is refused: {effect.reason}; leave it at"
                    f" {default!r}"
                )
    for name, reason in REFUSED_VARIABLES.items():
        if environment.get(name) is not None:
            raise ValueError(f"environment variable {name} is refused: {reason}; unset it")


def require_one_process(config: FlatConfig, *, but: Collection[str] = ()) -> None:
    """Refuses options of a job of several processes, in a run that is one process; some may be taken all the same."""
    name = option_of_a_job(config, but=but)
    job = None if name is None else job_of(effects_of(type(config))[name])
    if name is not None and job is not None:
        raise ValueError(
            f"option {name}={getattr(config, name)!r} (from {config.origin(name)}) is refused: it is about a job of"
            f" several processes, and this run is one; start a job ({job.page}), or leave it at"
            f" {config.default_of(name)!r}"
        )


def option_of_a_job(config: FlatConfig, *, but: Collection[str] = ()) -> str | None:
    """Returns the first option that is set and that only a job of several processes has, or None."""
    for name, effects in effects_of(type(config)).items():
        if (
            name not in but
            and job_of(effects) is not None
            and config.is_set(name)
            and getattr(config, name) != config.default_of(name)
        ):
            return name
    return None


REFUSED_VARIABLES: Final[dict[str, str]] = {
    "MONOLITH_WITH_OPTIMIZED_HOROVOD": reasons.EXCHANGE,
    "MONOLITH_WITH_HOROVOD_FID_G2G": reasons.EXCHANGE,
    "MONOLITH_WITH_HOROVOD_FWD_G2G": reasons.EXCHANGE,
    "MONOLITH_WITH_HOROVOD_BWD_G2G": reasons.EXCHANGE,
    "MONOLITH_WITH_BYTEPS_FID": reasons.EXCHANGE,
    "MONOLITH_WITH_BYTEPS_FWD": reasons.EXCHANGE,
    "MONOLITH_WITH_BYTEPS_BWD": reasons.EXCHANGE,
    "MONOLITH_WITH_BYTEPS_BWD_CAST": reasons.EXCHANGE,
    "MONOLITH_WITH_BYTEPS_BWD_FAKE_CAST": reasons.EXCHANGE,
    "MONOLITH_WITH_BYTEPS_FWD_GDR": reasons.EXCHANGE,
    "MONOLITH_WITH_BYTEPS_BWD_GDR": reasons.EXCHANGE,
    "MONOLITH_WITH_BYTEPS_FWD_GDR_G2G": reasons.EXCHANGE,
    "MONOLITH_WITH_BYTEPS_BWD_GDR_G2G": reasons.EXCHANGE,
    "MONOLITH_WITH_BYTEPS_ALLREDUCE": reasons.EXCHANGE,
    "MONOLITH_GPU_FEATURE_FACTORY_FUSION_LEVEL": "pooling is always one pass",
    "MONOLITH_BENCHMARK_BPS": reasons.EXCHANGE,
    "MONOLITH_BENCHMARK_ITERS": reasons.EXCHANGE,
    "MONOLITH_BENCHMARK_BPS_AR_LEN": reasons.EXCHANGE,
    "MONOLITH_BENCHMARK_BPS_A2A_LEN": reasons.EXCHANGE,
    "MONOLITH_FORCE_GPU_COMPATIBLE": reasons.TENSORFLOW,
}
"""Variable of the environment -> why it is refused when it is set."""


_TOGETHER: Final = "ranks and servers always go back to the last checkpoint together"
_LAUNCHER: Final = "ranks are started again by their launcher (torchrun --max-restarts)"
_REPLICATED: Final = "every rank has all dense weights, and servers have none"
_NO_EXCHANGE: Final = "ranks do not exchange rows; servers keep them"

_REFUSED: Final = {
    "partial_recovery": _TOGETHER,
    "recovery_interval_seconds": _TOGETHER,
    "recovery_dir": _TOGETHER,
    "max_retry_times": _LAUNCHER,
    "retry_wait_in_secs": _LAUNCHER,
    "chief_timeout_secs": "ranks end at the same step",
    "max_slow_start_wait_minute": "ranks begin at the same step",
    "dense_only_stop_training_when_save": "at a save all ranks are at the same step anyway",
    "enable_variable_prefetch": _REPLICATED,
    "enable_variable_postpush": _REPLICATED,
    "enable_variable_partition": _REPLICATED,
    "enable_pipelined_fwda2a": f"{_NO_EXCHANGE}, and embedding_prefetch_capacity reads ahead",
    "enable_async_optimize": f"{_NO_EXCHANGE}, and enable_embedding_postpush puts updates off",
    "enable_pipelined_bwda2a": f"{_NO_EXCHANGE}, and enable_embedding_postpush puts updates off",
    "sync_combine": "servers apply the gradients of each rank by themselves",
    "merge_sync_training_ckpt": "servers write the rows of all ranks into one directory",
}


def require_partial_sync(config: DistributedCpuTrainingConfig) -> None:
    """Refuses options that contradict, or do nothing, where ranks average dense weights and servers keep the rows."""
    if not config.enable_sync_training:
        raise ValueError(
            f"option enable_partial_sync_training=True (from {config.origin('enable_partial_sync_training')}) needs"
            " enable_sync_training: it keeps the rows of the ranks on servers; set both, or neither"
        )
    for name, reason in _REFUSED.items():
        value, default = getattr(config, name), config.default_of(name)
        if value != default:
            raise ValueError(
                f"option {name}={value!r} (from {config.origin(name)}) is refused with enable_partial_sync_training:"
                f" {reason}; leave it at {default!r}"
            )


def require_effective_parameters(params: Params, defaults: Params) -> None:
    """Refuses parameters that would have no effect."""
    for parameter in PARAMETERS:
        if not isinstance(parameter.effect, Refused):
            continue
        value, default = params.get(parameter.name), defaults.get(parameter.name)
        if value != default:
            raise ValueError(
                f"task {params.name}: parameter {parameter.name}={value!r} is refused: {parameter.effect.reason};"
                f" leave it at {default!r}"
            )
