"""Which options a partially synchronous run refuses: those of jobs and of ranks that would do nothing in it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from monolith.train.compat.options import DistributedCpuTrainingConfig

__all__ = ["require_partial_sync"]

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
    """Refuses options that contradict, or do nothing, where ranks average dense weights and servers keep the rows.

    Raises:
        ValueError: names it, its value and the reason.
    """
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
