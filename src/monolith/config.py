"""The base of every config: frozen, given by name, checked when it is made.

Write a config as a class under :class:`Config`, decorated with :func:`config`::

    @config
    class Sampling(Config):
        rate: float = 0.1
        seed: int = 0

        def __post_init__(self) -> None:
            require_between(self, 0.0, 1.0, "rate")

It becomes a frozen, slotted, keyword-only dataclass that rejects unknown options by name (``Sampling: unknown option
'rat'; did you mean 'rate'?``) and wrong types of plain numbers, flags and texts, and that travels as a dictionary of
plain values. A field may be positional with ``field(kw_only=False)``.

A class with many options is given them by name, without writing them twice, see :func:`keywords_of`.

In ``__post_init__`` call a parent's method by the parent's name: a slotted dataclass is a second class, and the
zero-argument ``super()`` still means the first one.
"""

from __future__ import annotations

import difflib
import functools
import inspect
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, Field, FrozenInstanceError, dataclass, field, fields
from typing import Any, Concatenate, ParamSpec, Self, TypeVar, dataclass_transform

C = TypeVar("C", bound="Config")
Made = TypeVar("Made")
Subject = TypeVar("Subject")
Options = TypeVar("Options")
Keywords = ParamSpec("Keywords")

_TYPE_KEY = "type"
_CONFIGS: dict[str, type[Config]] = {}
"""Every decorated config by class name: the name is what a saved dictionary carries, so it is unique in the project."""

_FORMER_NAMES = {
    "CheckpointOptions": "CheckpointConfig",
    "ClickWorld": "SyntheticClicks",
    "Dense": "DenseColumn",
    "InputOptions": "InputConfig",
    "JoinRules": "JoinRuleConfig",
    "Limits": "LimitsConfig",
    "PartialRecoveryOptions": "SaverConfig",
    "Patience": "ShutdownConfig",
    "PoolLimits": "PoolConfig",
    "PublisherOptions": "PublisherConfig",
    "PushOptions": "PushConfig",
    "QueueRules": "RequestQueueConfig",
    "RemoteOptions": "ShardedRowsConfig",
    "RemoteRowsConfig": "ShardedRowsConfig",
    "RestartPolicy": "RestartConfig",
    "RestoreOptions": "RestoreConfig",
    "RunnerSettings": "DiscoveryConfig",
    "SaverHookOptions": "SaverHookConfig",
    "SaverOptions": "SaverConfig",
    "ShardServerOptions": "ShardServerConfig",
    "TpuOptions": "TpuConfig",
    "ValidationOptions": "ValidationConfig",
}
"""Former class names, which dictionaries that an older version saved carry."""

_PLAIN_TYPES: dict[str, tuple[tuple[type, ...], str]] = {
    "bool": ((bool,), "True or False"),
    "int": ((int,), "an integer"),
    "float": ((int, float), "a number"),
    "str": ((str,), "a text"),
}


class Config:
    """Base of all configs: conversion to a dictionary and back."""

    __slots__ = ()

    def to_dict(self) -> dict[str, Any]:
        """Returns this config as plain values: its class name under ``"type"``, then every field, recursively."""
        own = {f.name: _to_plain(getattr(self, f.name)) for f in _options(type(self))}
        return {_TYPE_KEY: type(self).__name__, **own}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Rebuilds what :meth:`to_dict` wrote, with all the checks of a new config.

        ``"type"`` selects the class, which must be this one or a subclass; without it this class is meant. Missing
        fields take their defaults; unknown ones are rejected.
        """
        name = values.get(_TYPE_KEY, cls.__name__)
        chosen = _CONFIGS.get(_FORMER_NAMES.get(name, name))
        if chosen is None or not issubclass(chosen, cls):
            known = sorted(n for n, candidate in _CONFIGS.items() if issubclass(candidate, cls))
            raise TypeError(f"{cls.__name__}: unknown type {name!r}{_suggestion(str(name), known)}")
        return chosen(**{key: _from_plain(value) for key, value in values.items() if key != _TYPE_KEY})


@dataclass_transform(kw_only_default=True, frozen_default=True, field_specifiers=(field,))
def config(cls: type[C]) -> type[C]:
    """Makes `cls` a frozen, keyword-only, slotted dataclass whose constructor explains what it rejects."""
    config_class = dataclass(frozen=True, kw_only=True, slots=True)(cls)
    assign_fields = config_class.__init__

    @functools.wraps(assign_fields)
    def checked_init(self: C, *args: object, **options: object) -> None:
        assign_fields(self, **_checked_options(type(self), args, options))

    config_class.__init__ = checked_init  # type: ignore[method-assign, assignment]
    config_class.__setattr__ = _refuse_change  # type: ignore[method-assign]
    known = _CONFIGS.get(config_class.__name__)
    if known is not None and known.__module__ != config_class.__module__:
        raise TypeError(
            f"{config_class.__name__}: config name of {config_class.__module__} is taken by {known.__module__};"
            " rename it"
        )
    _CONFIGS[config_class.__name__] = config_class
    return config_class


def keywords_of(
    options: Callable[Keywords, Options],
) -> Callable[[Callable[[Made, Subject, Options], None]], Callable[Concatenate[Made, Subject, Keywords], None]]:
    """Lets a constructor take the fields of a config by name: they are defined once, and typed in every call.

    The constructor is written with what it is about, given by position, and the config::

        class Saver:
            @keywords_of(SaverConfig)
            def __init__(self, model_dir: str, options: SaverConfig) -> None: ...

        Saver("/models", max_to_keep=2)
    """

    def decorate(
        init: Callable[[Made, Subject, Options], None],
    ) -> Callable[Concatenate[Made, Subject, Keywords], None]:
        @functools.wraps(init)
        def with_keywords(self: Made, subject: Subject, /, *args: Keywords.args, **keywords: Keywords.kwargs) -> None:
            init(self, subject, options(*args, **keywords))

        own = list(inspect.signature(init).parameters.values())[:-1]
        by_position = [parameter.replace(kind=inspect.Parameter.POSITIONAL_ONLY) for parameter in own]
        fields_by_name = inspect.signature(options).parameters.values()
        with_keywords.__signature__ = inspect.Signature([*by_position, *fields_by_name])  # type: ignore[attr-defined]
        return with_keywords

    return decorate


def require_finite(subject: Config, *names: str) -> None:
    """Raises if a named field is infinite or NaN."""
    for name in names:
        if not math.isfinite(getattr(subject, name)):
            raise _refusal(subject, name, "finite")


def require_at_least(subject: Config, minimum: float, *names: str) -> None:
    """Raises if a named field is below `minimum`, or infinite."""
    require_finite(subject, *names)
    for name in names:
        if getattr(subject, name) < minimum:
            raise _refusal(subject, name, f">= {minimum:g}")


def require_positive(subject: Config, *names: str) -> None:
    """Raises if a named field is zero, negative or infinite."""
    require_finite(subject, *names)
    for name in names:
        if getattr(subject, name) <= 0:
            raise _refusal(subject, name, "> 0")


def require_between(subject: Config, low: float, high: float, *names: str, open_end: bool = False) -> None:
    """Raises if a named field is outside ``[low, high]``, or ``[low, high)`` with `open_end`."""
    for name in names:
        value = getattr(subject, name)
        if not low <= value <= high or (open_end and value == high):
            raise _refusal(subject, name, f"in [{low:g}, {high:g}{')' if open_end else ']'}")


def _refuse_change(self: object, name: str, value: object) -> None:
    raise FrozenInstanceError(f"{type(self).__name__}: {name} cannot change to {value!r}; use dataclasses.replace")


def _refusal(subject: Config, name: str, expected: str) -> ValueError:
    return ValueError(f"{type(subject).__name__}: {name} must be {expected}, got {getattr(subject, name)!r}")


def _options(cls: type[Config]) -> list[Field[Any]]:
    return [f for f in fields(cls) if f.init]  # type: ignore[arg-type]  # every decorated config is a dataclass


def _checked_options(cls: type[Config], args: tuple[object, ...], options: dict[str, object]) -> dict[str, object]:
    declared = {f.name: f for f in _options(cls)}
    positional = [name for name, f in declared.items() if not f.kw_only]
    if len(args) > len(positional):
        accepted = f"at most {len(positional)} by position" if positional else "all by name"
        raise TypeError(f"{cls.__name__}: options are given {accepted}, got {len(args)} by position: {args!r}")
    by_position = dict(zip(positional, args, strict=False))
    for name in by_position.keys() & options.keys():
        raise TypeError(f"{cls.__name__}: {name} given both by position and by name")
    values = {**by_position, **options}
    for name, value in values.items():
        if name not in declared:
            raise TypeError(f"{cls.__name__}: unknown option {name!r}{_suggestion(name, declared)}")
        _check_plain_type(cls, declared[name], value)
    for name, f in declared.items():
        if name not in values and f.default is MISSING and f.default_factory is MISSING:
            raise TypeError(f"{cls.__name__}: option {name!r} is required")
    return values


def _check_plain_type(cls: type[Config], declared: Field[Any], value: object) -> None:
    annotation = declared.type if isinstance(declared.type, str) else getattr(declared.type, "__name__", "")
    if annotation not in _PLAIN_TYPES:
        return
    accepted, description = _PLAIN_TYPES[annotation]
    if not isinstance(value, accepted) or (isinstance(value, bool) and annotation != "bool"):
        raise TypeError(f"{cls.__name__}: {declared.name} must be {description}, got {value!r}")


def _suggestion(name: str, known: Iterable[str]) -> str:
    names = list(known)
    close = difflib.get_close_matches(name, names, n=1)
    if close:
        return f"; did you mean {close[0]!r}?"
    return f"; known are {', '.join(names)}" if names else "; there are none"


def _to_plain(value: object) -> object:
    if isinstance(value, Config):
        return value.to_dict()
    if isinstance(value, Mapping):
        return {key: _to_plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_to_plain(item) for item in value]
    return value


def _from_plain(value: object) -> object:
    if isinstance(value, Mapping):
        if isinstance(value.get(_TYPE_KEY), str):
            return Config.from_dict(value)
        return {key: _from_plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_from_plain(item) for item in value]
    return value
