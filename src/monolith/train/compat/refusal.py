"""Refuses flat options, and variables of the environment, that would do nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from monolith import environment
from monolith.train.compat.effects import Refused, effects_of, job_of
from monolith.train.compat.variables import REFUSED_VARIABLES

if TYPE_CHECKING:
    from collections.abc import Collection

    from monolith.train.compat.flat_config import FlatConfig

__all__ = ["option_of_a_job", "require_effective", "require_one_process"]


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
