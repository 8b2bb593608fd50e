"""Classes by name: those of this package, and those that other packages add by entry points."""

from __future__ import annotations

import difflib
import functools
import sys
from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING, Any

from monolith.errors import FailedPreconditionError, InvalidArgumentError

if TYPE_CHECKING:
    from collections.abc import Mapping


class Registry:
    """The implementations of an interface by name, each imported when it is used. Thread-safe.

    Args:
        group: The group of entry points by which other packages add classes.
        builtin: Name -> ``module:attribute`` of this package.
        interface: What each class derives from.
        setting: What a user sets to the name, in messages.
    """

    def __init__(self, group: str, builtin: Mapping[str, str], interface: type, *, setting: str) -> None:
        self._group, self._builtin, self._interface, self._setting = group, builtin, interface, setting

    def names(self) -> list[str]:
        """Returns all names, those of this package first."""
        added = {point.name for point in _entry_points(self._group, tuple(sys.path))}
        return [*self._builtin, *sorted(added - self._builtin.keys())]

    def get(self, name: str) -> Any:
        """Returns the class of a name.

        Raises:
            InvalidArgumentError: there is no such name.
            FailedPreconditionError: two packages have this name, or the class of another package cannot be imported or
                does not implement the interface.
        """
        points = [point for point in _entry_points(self._group, tuple(sys.path)) if point.name == name]
        packages = ["monolith-torch"] * (name in self._builtin) + sorted(map(_package, points))
        subject = f"{self._setting} {name!r}"
        if not packages:
            names = self.names()
            close = difflib.get_close_matches(name, names, n=1)
            hint = f"did you mean {close[0]!r}?" if close else "install the package that adds it"
            raise InvalidArgumentError(f"{self._setting} must be one of {', '.join(names)}, got {name!r}; {hint}")
        if len(packages) > 1:
            raise FailedPreconditionError(
                f"{subject}: expected an entry point of {self._group} in one package, got {' and '.join(packages)};"
                " uninstall one of them, or rename its entry point"
            )
        if not points:
            return EntryPoint(name, self._builtin[name], self._group).load()
        return self._checked(points[0], f"{subject}: {points[0].value} of the package {packages[0]}")

    def _checked(self, point: EntryPoint, subject: str) -> Any:
        try:
            found: Any = point.load()
        except Exception as error:
            cause = f"{type(error).__name__}: {error}"
            raise FailedPreconditionError(f"{subject} cannot be imported, repair or uninstall it: {cause}") from error
        lacking: frozenset[str] = getattr(found, "__abstractmethods__", frozenset())
        expected: frozenset[str] = getattr(self._interface, "__abstractmethods__", frozenset())
        missing = sorted(member for member in expected | lacking if member in lacking or not hasattr(found, member))
        if missing or not isinstance(found, type) or not issubclass(found, self._interface):
            raise FailedPreconditionError(
                f"{subject} must be a class that derives from {self._interface.__name__} and has all of its methods,"
                f" got {found!r} without {', '.join(missing) or 'this base'}; correct the package"
            )
        return found


@functools.lru_cache(maxsize=8)
def _entry_points(group: str, _path: tuple[str, ...]) -> tuple[EntryPoint, ...]:
    """Returns the entry points of a group; reading them takes 20 ms, and they change with the path only."""
    return tuple(entry_points(group=group))


def _package(point: EntryPoint) -> str:
    return "(unknown)" if point.dist is None else point.dist.name
