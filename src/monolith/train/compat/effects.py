"""Effects of a name of ByteDance Monolith: the vocabulary of this package's tables.

The type annotation of an option carries its effects, so that everything about the option is in one place::

    index: Annotated[int, Sets("worker_index")] = 0
    bzid: Annotated[str | None, Refused(reasons.REPLICAS)] = None
"""

from __future__ import annotations

import functools
import typing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from monolith.train.compat.flat_config import FlatConfig
    from monolith.train.params import Params

    Convert: TypeAlias = Callable[[Any], Any]
    """From the value of an option to that of a field."""
    Make: TypeAlias = Callable[[Any, Params], Any]
    """From all options, and the parameters of the task, to the value of a field."""

__all__ = ["Effect", "InRunnerSettings", "Makes", "OfAJob", "ReadBy", "Refused", "Sets", "effects_of", "job_of"]


@dataclass(frozen=True, slots=True)
class Sets:
    """It is a field of `TrainerConfig`."""

    field: str
    """Name of the field, prefixed by its section: ``saving.every_steps``."""
    convert: Convert | None = None
    """How the value becomes that of the field; None: it is the same."""

    def value_of(self, value: Any) -> Any:
        """The value of the field."""
        return value if self.convert is None else self.convert(value)


@dataclass(frozen=True, slots=True)
class Makes:
    """It makes a field of `TrainerConfig` together with other options, or with parameters of the task."""

    field: str
    """Its name, as in `Sets`."""
    make: Make
    """Its value; the same function stands at all options that take part."""


@dataclass(frozen=True, slots=True)
class InRunnerSettings:
    """The field of the same name in `cluster.RunnerSettings`: a process's identity and how it discovers the others."""


@dataclass(frozen=True, slots=True)
class OfAJob:
    """It is about a job of several processes: a run of one refuses it."""

    page: str = "docs/how-to/launch.md"
    """How such a job is started."""


@dataclass(frozen=True, slots=True)
class ReadBy:
    """An option that is read by something other than a config."""

    reader: str
    """The reader and its purpose; a sentence for users, without a full stop."""


@dataclass(frozen=True, slots=True)
class Refused:
    """It does nothing here, so that setting it is an error, never a silence."""

    reason: str
    """Why, and what to use instead."""
    taken: tuple[Any, ...] = ()
    """Values besides the default that are accepted because they change nothing."""


Effect: TypeAlias = Sets | Makes | InRunnerSettings | OfAJob | ReadBy | Refused


def job_of(effects: Iterable[Effect]) -> OfAJob | None:
    """The job of several processes that an option is about; None: it is about no such job."""
    return next((effect for effect in effects if isinstance(effect, OfAJob)), None)


def effects_of(cls: type[FlatConfig]) -> dict[str, tuple[Effect, ...]]:
    """Returns the effects of each option of a class."""
    return _effects_by_name(cls)  # type: ignore[arg-type]  # a class can be hashed, its objects cannot


@functools.cache
def _effects_by_name(cls: type[FlatConfig]) -> dict[str, tuple[Effect, ...]]:
    hints = typing.get_type_hints(cls, include_extras=True)
    return {name: getattr(hints[name], "__metadata__", ()) for name in cls.option_names()}
