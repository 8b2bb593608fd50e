"""Configs with flat names that stay mutable until a run starts, and record the origin of each value.

The first of these that sets a value wins: code, flag, environment, file, default. `FlatConfig.origin` returns which one
it was.
"""

from __future__ import annotations

import dataclasses
import difflib
import enum
import functools
import json
import tomllib
import types
import typing
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self, dataclass_transform

from monolith import environment

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

ENVIRONMENT_PREFIX = "MONOLITH_"
"""Option ``model_dir`` is the variable ``MONOLITH_MODEL_DIR``."""


class Origin(enum.IntEnum):
    """Origin of a value; the greater one wins."""

    DEFAULT = 0
    FILE = 1
    ENVIRONMENT = 2
    FLAG = 3
    CODE = 4

    def __str__(self) -> str:
        return self.name.lower()


@dataclass_transform(kw_only_default=True)
def flat_config(cls: type[Any]) -> type[Any]:
    """Makes a class a `FlatConfig` with keyword-only options; constructor arguments have the origin "code"."""
    options_class = dataclasses.dataclass(kw_only=True, repr=False, eq=True)(cls)
    options_class.__hash__ = None  # type: ignore[assignment]  # values change
    assign_fields = options_class.__init__

    def checked_init(self: FlatConfig, **options: Any) -> None:
        object.__setattr__(self, "_origins", {})
        object.__setattr__(self, "_is_frozen", False)
        for name, value in options.items():
            self.require_option(name)
            _require_type(type(self), name, value)
        assign_fields(self, **options)
        object.__setattr__(self, "_origins", dict.fromkeys(options, Origin.CODE))
        self.check()

    options_class.__init__ = checked_init
    return options_class


class FlatConfig:
    """Base of flat configs. A subclass is decorated with `flat_config`."""

    _origins: dict[str, Origin]
    _is_frozen: bool
    __dataclass_fields__: ClassVar[dict[str, Any]]

    def check(self) -> None:
        """Refuses values that contradict each other. Subclasses may override it."""

    @classmethod
    def option_names(cls) -> list[str]:
        """Returns the names of all options, those of the base first."""
        return [field.name for field in dataclasses.fields(cls)]

    @classmethod
    def default_of(cls, name: str) -> Any:
        """Returns the default of an option."""
        return cls.__dataclass_fields__[name].default

    @classmethod
    def require_option(cls, name: str) -> None:
        """Refuses names that are no options."""
        if name not in cls.__dataclass_fields__:
            close = difflib.get_close_matches(name, cls.__dataclass_fields__, n=1)
            hint = f"; did you mean {close[0]!r}?" if close else ""
            raise TypeError(f"{cls.__name__}: unknown option {name!r}{hint}")

    def origin(self, name: str) -> Origin:
        """Returns the origin of the value of an option."""
        self.require_option(name)
        return self._origins.get(name, Origin.DEFAULT)

    def is_set(self, name: str) -> bool:
        """Returns whether an option was set explicitly."""
        return self.origin(name) is not Origin.DEFAULT

    def update(self, values: Mapping[str, Any], origin: Origin) -> Self:
        """Sets values unless an origin of higher priority has set them; strings are converted to the option's type.

        Raises:
            TypeError: an unknown option.
            ValueError: a string that cannot be converted to the option's type.
        """
        for name, value in values.items():
            self.require_option(name)
            if origin >= self._origins.get(name, Origin.DEFAULT):
                parsed = parse_value(type(self), name, value)
                _require_type(type(self), name, parsed)
                object.__setattr__(self, name, parsed)
                self._origins[name] = origin
        self.check()
        return self

    def update_from_environment(self) -> Self:
        """Sets options from the environment variables ``MONOLITH_<OPTION>``."""
        texts = {name: environment.get(f"{ENVIRONMENT_PREFIX}{name.upper()}") for name in self.option_names()}
        return self.update({name: value for name, value in texts.items() if value is not None}, Origin.ENVIRONMENT)

    def update_from_file(self, path: str) -> Self:
        """Sets options from a TOML or JSON file."""
        return self.update(read_config_file(path), Origin.FILE)

    def freeze(self) -> Self:
        """Ends the time of changes: the run has started."""
        object.__setattr__(self, "_is_frozen", True)
        return self

    def describe(self, names: Iterable[str] | None = None) -> list[tuple[str, Any, Origin]]:
        """Returns name, value and origin of options, by default of all."""
        return [(name, getattr(self, name), self.origin(name)) for name in names or self.option_names()]

    def __setattr__(self, name: str, value: Any) -> None:
        self.require_option(name)
        if self._is_frozen:
            raise dataclasses.FrozenInstanceError(
                f"{type(self).__name__}: {name} cannot change to {value!r}: the run has started"
            )
        _require_type(type(self), name, value)
        object.__setattr__(self, name, value)
        self._origins[name] = Origin.CODE

    def __repr__(self) -> str:
        shown = [f"{name}={value!r}" for name, value, origin in self.describe() if origin is not Origin.DEFAULT]
        return f"{type(self).__name__}({', '.join(shown)})"


def read_config_file(path: str) -> dict[str, Any]:
    """Returns the options of a TOML file, or of a JSON file if the name ends in ``.json``."""
    file = Path(path)
    try:
        text = file.read_text(encoding="utf-8")
        options = json.loads(text) if file.suffix == ".json" else tomllib.loads(text)
    except (OSError, ValueError) as error:
        raise ValueError(f"config file '{path}': {error}") from error
    if not isinstance(options, dict):
        raise ValueError(f"config file '{path}': expected options by name, got {type(options).__name__}")  # noqa: TRY004
    return options


def parse_value(cls: type[FlatConfig], name: str, value: Any) -> Any:
    """Converts a value to the option's type; parses strings of flags, variables and files."""
    kinds = _kinds_of(cls, name)
    if value is None or not isinstance(value, str):
        return value
    if type(None) in kinds and value.lower() == "none":
        return None
    for kind in kinds:
        if kind is not type(None):
            return _parsed(cls, name, value, kind, is_open=str in kinds)
    return value


def is_parsable(cls: type[FlatConfig], name: str) -> bool:
    """Returns whether an option can be parsed from a string."""
    return all(kind in _PARSABLE or _is_enum(kind) for kind in _kinds_of(cls, name))


_PARSABLE = (bool, int, float, str, dict, type(None))
_NAMES_OF_KINDS = {type(None): "None", dict: "dict of texts"}
_TRUE, _FALSE = frozenset({"true", "1", "yes", "on"}), frozenset({"false", "0", "no", "off"})


def _is_enum(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, enum.Enum)


@functools.cache
def _kinds_by_name(cls: type[FlatConfig]) -> dict[str, tuple[Any, ...]]:
    kinds_by_name = {}
    for name, hint in typing.get_type_hints(cls).items():
        kinds = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
        kinds_by_name[name] = tuple(typing.get_origin(kind) or kind for kind in kinds)
    return kinds_by_name


def _kinds_of(cls: type[FlatConfig], name: str) -> tuple[Any, ...]:
    return _kinds_by_name(cls)[name]  # type: ignore[arg-type]  # a class can be hashed, its objects cannot


def _require_type(cls: type[FlatConfig], name: str, value: Any) -> None:
    """Refuses plain values of another kind: True is no number, and 1 is not True."""
    kinds = _kinds_of(cls, name)
    if not all(kind in _PARSABLE or _is_enum(kind) for kind in kinds):
        return
    accepted = (*kinds, int) if float in kinds else kinds
    if isinstance(value, bool) and bool not in kinds:
        accepted = ()
    if not isinstance(value, accepted) or (isinstance(value, dict) and not _are_texts(value)):
        expected = " or ".join(_NAMES_OF_KINDS.get(kind, kind.__name__) for kind in kinds)
        raise TypeError(f"{cls.__name__}: {name} must be {expected}, got {value!r}")


def _parsed(cls: type[FlatConfig], name: str, text: str, kind: Any, *, is_open: bool) -> Any:
    subject = f"{cls.__name__}: {name}"
    if kind is str:
        return text
    if kind is bool:
        if text.lower() in _TRUE | _FALSE:
            return text.lower() in _TRUE
        raise ValueError(f"{subject} must be true or false, got {text!r}")
    if _is_enum(kind):
        try:
            return kind[text.upper()]
        except KeyError:
            if is_open:  # other packages add names, which the class of the config checks
                return text
            members = ", ".join(member.name.lower() for member in kind)
            raise ValueError(f"{subject} must be one of {members}, got {text!r}") from None
    try:
        return _names_by_name(text) if kind is dict else kind(text)
    except ValueError:
        expected = {int: "an integer", float: "a number", dict: 'JSON such as {"name": "other name"}'}[kind]
        raise ValueError(f"{subject} must be {expected}, got {text!r}") from None


def _names_by_name(text: str) -> dict[str, str]:
    names = json.loads(text)
    if not isinstance(names, dict) or not _are_texts(names):
        raise ValueError(text)
    return names


def _are_texts(names: dict[Any, Any]) -> bool:
    return all(isinstance(text, str) for item in names.items() for text in item)
