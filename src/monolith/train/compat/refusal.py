"""Refuses flat options, and variables of the environment, that would do nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from monolith import environment
from monolith.train.compat import reasons
from monolith.train.compat.effects import Refused, effects_of, job_of

if TYPE_CHECKING:
    from collections.abc import Collection

    from monolith.train.compat.flat_config import FlatConfig

__all__ = ["REFUSED_VARIABLES", "option_of_a_job", "require_effective", "require_one_process"]


def require_effective(config: FlatConfig) -> None:
    """Refuses options and variables that would have no effect; a default that is set explicitly is accepted.

    Raises:
        ValueError: names the option, its value and the reason.
    """
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
    """Refuses options of a job of several processes, in a run that is one process; some may be taken all the same.

    Raises:
        ValueError: names it, its value and what to do.
    """
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
