"""`Params`: a bag of named settings that must be declared before they are used.

A task declares its settings as a tree of `Params`; the runner changes values by name. An undeclared name is refused,
with suggestions of similar names.

>>> p = Params()
>>> p.define("batch_size", 32, "Examples of a step.")
>>> p.batch_size = 64
>>> p.batchsize
Traceback (most recent call last):
AttributeError: batchsize (did you mean: [batch_size])...
"""

from __future__ import annotations

import copy
import re
from typing import TYPE_CHECKING, Any

from torch import Tensor

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, MutableMapping

_NAME = re.compile(r"[a-z][a-z0-9_]*")
_LIST_STEP = re.compile(r"(.+?)\[(-?\d+)\]")


class _Param:
    """One declared name."""

    __slots__ = ("description", "name", "value")

    def __init__(self, name: str, value: Any, description: str) -> None:
        self.name = name
        self.value = value
        self.description = description

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Param) and self.name == other.name and _equal(self.value, other.value)

    __hash__ = None  # type: ignore[assignment]  # values change

    def __deepcopy__(self, memo: dict[int, Any]) -> _Param:
        shared = isinstance(self.value, Tensor)
        return _Param(self.name, self.value if shared else copy.deepcopy(self.value, memo), self.description)

    def text(self, depth: int) -> str:
        indent = "  " * depth
        if isinstance(self.value, Params):
            return f"{indent}{self.name}: {self.value._text(depth)}"  # noqa: SLF001 - one class in two
        if isinstance(self.value, str):
            return f'{indent}{self.name}: "{self.value}"'
        return f"{indent}{self.name}: {_plain(self.value)}"


class Params:
    """Names, values and what they mean. Values may be `Params` again; names through them are written with dots.

    Reading or writing a name that was not declared is an AttributeError, writing to a frozen bag a TypeError.
    """

    def __init__(self) -> None:
        self.__dict__["_params"] = {}
        self.__dict__["_frozen"] = False

    _params: dict[str, _Param]
    _frozen: bool

    def define(self, name: str, default_value: Any, description: str) -> None:
        """Declares a name.

        Raises:
            AssertionError: it is not lower-case letters, digits and underscores after a letter.
            AttributeError: it is declared already.
        """
        self._require_mutable()
        if not _NAME.fullmatch(name):
            raise AssertionError(f"parameter name must match {_NAME.pattern}, got {name!r}")
        if name in self._params:
            raise AttributeError(f"Parameter {name} is already defined")
        self._params[name] = _Param(name, default_value, description)

    def set(self, **kwargs: Any) -> Params:
        """Changes values by name or dotted name (``p.set(**{"train.max_steps": 100})``); returns itself."""
        self._require_mutable()
        for name, value in kwargs.items():
            owner, key = self._owner_of(name)
            if isinstance(owner, Params):
                owner[key] = value
            else:
                owner[int(key)] = value
        return self

    def get(self, name: str) -> Any:
        """Returns the value of a name or dotted name."""
        owner, key = self._owner_of(name)
        return owner[key] if isinstance(owner, Params) else owner[int(key)]

    def delete(self, *args: str) -> Params:
        """Removes names or dotted names, and returns itself."""
        self._require_mutable()
        for name in args:
            owner, key = self._owner_of(name)
            if isinstance(owner, Params):
                owner._forget(key)  # noqa: SLF001 - another bag of this class
            else:
                del owner[int(key)]
        return self

    def freeze(self) -> None:
        """Allows no change of this level from now on; bags inside stay as they are."""
        self.__dict__["_frozen"] = True

    @property
    def is_frozen(self) -> bool:
        """Returns whether `freeze` was called on it, or on the object that it was copied from."""
        return self._frozen

    def copy(self) -> Params:
        """Returns a deep copy, frozen if this one is; tensors are shared."""
        return copy.deepcopy(self)

    def iter_params(self) -> Iterator[tuple[str, Any]]:
        """Names and values, in the order of declaration."""
        for name, param in self._params.items():
            yield name, param.value

    def description(self, name: str) -> str:
        """Returns the description of a declared name."""
        return self._of(name).description

    def visit(self, visitor: Callable[[str, Any], None], prefix: str = "") -> None:
        """Calls `visitor` with the dotted name and value of everything that is no bag."""
        for name, value in self.iter_params():
            if isinstance(value, Params):
                value.visit(visitor, f"{prefix}{name}.")
            else:
                visitor(f"{prefix}{name}", value)

    def __getattr__(self, name: str) -> Any:
        # Python looks up special names (`__deepcopy__`, ...) before the object is complete.
        if name.startswith("__") or "_params" not in self.__dict__:
            raise AttributeError(name)
        return self._of(name).value

    def __setattr__(self, name: str, value: Any) -> None:
        self._require_mutable()
        self._of(name).value = value

    def __getitem__(self, name: str) -> Any:
        return self._of(name).value

    def __setitem__(self, name: str, value: Any) -> None:
        self.__setattr__(name, value)

    def __contains__(self, name: object) -> bool:
        return name in self._params

    def __len__(self) -> int:
        return len(self._params)

    def __dir__(self) -> Iterable[str]:
        return [*super().__dir__(), *self._params]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Params) and self._params == other._params

    __hash__ = None  # type: ignore[assignment]  # values change

    def __deepcopy__(self, memo: dict[int, Any]) -> Params:
        copied = type(self).__new__(type(self))
        memo[id(self)] = copied
        copied.__dict__["_params"] = copy.deepcopy(self._params, memo)
        copied.__dict__["_frozen"] = self._frozen
        return copied

    def __str__(self) -> str:
        return self._text(0)

    __repr__ = __str__

    # Inside

    def _text(self, depth: int) -> str:
        lines = [param.text(depth + 1) for _, param in sorted(self._params.items())]
        return "{\n" + "\n".join(lines) + "\n" + "  " * depth + "}"

    def _of(self, name: str) -> _Param:
        try:
            return self._params[name]
        except KeyError:
            raise AttributeError(self._unknown(name)) from None

    def _forget(self, name: str) -> None:
        self._require_mutable()
        self._of(name)
        del self._params[name]

    def _unknown(self, name: str) -> str:
        similar = sorted(key for key in self._params if _overlap(name, key) > 0.5)
        return f"{name} (did you mean: [{','.join(similar)}])" if similar else name

    def _require_mutable(self) -> None:
        if self._frozen:
            raise TypeError("This Params instance is immutable.")

    def _owner_of(self, name: str) -> tuple[Params | list[Any], str]:
        """Returns the object (or list) that has the last part of a dotted name, and that part."""
        owner: Any = self
        steps = list(_steps(name))
        for place, step in enumerate(steps[:-1]):
            _require_bag(owner, steps[:place])
            owner = owner[step] if isinstance(owner, Params) else owner[int(step)]
        _require_bag(owner, steps[:-1])
        if isinstance(owner, list) and not steps[-1].lstrip("-").isdigit():
            raise AssertionError(f"Cannot introspect {type(owner)} for {'.'.join(steps[:-1])}")
        return owner, steps[-1]


def copy_params_to(from_p: Params, to_p: Params, skip: Iterable[str] | None = None) -> Params:
    """Sets in `to_p` every value of `from_p` whose name is not in `skip`; returns `to_p`."""
    left_out = set(skip or ())
    for name, value in from_p.iter_params():
        if name not in left_out:
            to_p.set(**{name: value})
    return to_p


def update_params(params: Params, args: MutableMapping[str, Any]) -> None:
    """Takes out of `args` every name that is declared here or in a bag inside, and sets it there."""
    for name, value in list(params.iter_params()):
        if name in args:
            params[name] = args.pop(name)
        elif isinstance(value, Params):
            update_params(value, args)


def _steps(name: str) -> Iterator[str]:
    for part in name.split("."):
        indices: list[str] = []
        step = part
        while match := _LIST_STEP.fullmatch(step):
            step, index = match.groups()
            indices.insert(0, index)
        yield step
        yield from indices


def _require_bag(owner: Any, path: list[str]) -> None:
    if not isinstance(owner, Params | list):
        raise AssertionError(f"Cannot introspect {type(owner)} for {'.'.join(path)}")  # noqa: TRY004 - as specified


def _overlap(name: str, key: str) -> float:
    """Returns the share of the trigrams of `name` that are in `key`."""
    parts = [name[i : i + 3] for i in range(len(name) - 2)]
    return sum(part in key for part in parts) / len(parts) if parts else 0.0


def _equal(left: Any, right: Any) -> bool:
    if isinstance(left, Tensor) or isinstance(right, Tensor):
        return left is right or (
            isinstance(left, Tensor)
            and isinstance(right, Tensor)
            and bool(left.shape == right.shape)
            and bool((left == right).all())
        )
    return bool(left == right)


def _plain(value: Any) -> Any:
    """Converts a value for printing: nested parameters become dicts with sorted names."""
    if isinstance(value, Params):
        return {name: _plain(value[name]) for name in sorted(name for name, _ in value.iter_params())}
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if type(value) in {list, tuple}:
        return type(value)(_plain(item) for item in value)
    return value
