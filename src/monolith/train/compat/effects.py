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
    from monolith.train.parameters.params import Params

    Convert: TypeAlias = Callable[[Any], Any]
    """From the value of an option to that of a field."""
    Make: TypeAlias = Callable[[Any, Params], Any]
    """From all options, and the parameters of the task, to the value of a field."""


@dataclass(frozen=True, slots=True)
class Sets:
    """The option is a field of `TrainerConfig`."""

    field: str
    """Name of the field, prefixed by its section: ``saving.every_steps``."""
    convert: Convert | None = None
    """Converts the value to that of the field; None: unchanged."""

    def value_of(self, value: Any) -> Any:
        """Returns the value of the field."""
        return value if self.convert is None else self.convert(value)


@dataclass(frozen=True, slots=True)
class Makes:
    """The option makes a field of `TrainerConfig` together with other options, or with parameters of the task."""

    field: str
    """Name of the field, as in `Sets`."""
    make: Make
    """Computes the value; the same function is named by all options that take part."""


@dataclass(frozen=True, slots=True)
class InDiscoveryConfig:
    """The field of the same name in `cluster.DiscoveryConfig`: a process's identity and how it discovers the others."""


@dataclass(frozen=True, slots=True)
class OfAJob:
    """The option is for a job of several processes: a run of one process refuses it."""

    page: str = "docs/how-to/launch.md"
    """How such a job is started."""


@dataclass(frozen=True, slots=True)
class ReadBy:
    """An option that is read by something other than a config."""

    reader: str
    """The reader and its purpose; a sentence for users, without a full stop."""


@dataclass(frozen=True, slots=True)
class Refused:
    """The option has no effect here, so setting it is an error."""

    reason: str
    """Why, and what to use instead."""
    taken: tuple[Any, ...] = ()
    """Values besides the default that are accepted because they change nothing."""


Effect: TypeAlias = Sets | Makes | InDiscoveryConfig | OfAJob | ReadBy | Refused


def job_of(effects: Iterable[Effect]) -> OfAJob | None:
    """Returns the `OfAJob` effect of an option, or None."""
    return next((effect for effect in effects if isinstance(effect, OfAJob)), None)


def effects_of(cls: type[FlatConfig]) -> dict[str, tuple[Effect, ...]]:
    """Returns the effects of each option of a class."""
    return _effects_by_name(cls)  # type: ignore[arg-type]  # a class can be hashed, its objects cannot


@functools.cache
def _effects_by_name(cls: type[FlatConfig]) -> dict[str, tuple[Effect, ...]]:
    hints = typing.get_type_hints(cls, include_extras=True)
    return {name: getattr(hints[name], "__metadata__", ()) for name in cls.option_names()}
