"""The output of many processes as one log: each line begins with its role."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from monolith.launch.role import Role

__all__ = ["MergedLog"]

_COLOURS = {"ps": (33, 35, 91, 93, 95), "worker": (36, 32, 34, 96, 92)}
"""Terminal colours by kind of role: warm ones for servers."""
_BOLD, _PLAIN = "\x1b[1m", "\x1b[0m"


class MergedLog:
    """Writes lines with the role in front, in columns, and optionally in colour.

    >>> from monolith.launch.role import Role
    >>> log = MergedLog(print, [Role("ps", 0), Role("worker", 0)])
    >>> log.line(Role("ps", 0), "serves")
    [ps 0]     serves
    >>> log.tell("both are running")
    [job]      both are running
    """

    def __init__(self, write: Callable[[str], object], roles: Sequence[Role], *, has_colours: bool = False) -> None:
        self._write = write
        self._has_colours = has_colours
        self._width = max(len(str(role)) for role in roles) + 2

    def line(self, role: Role, text: str) -> None:
        """Writes a line that a role printed."""
        colours = _COLOURS[role.kind]
        self._put(str(role), text, f"\x1b[{colours[role.index % len(colours)]}m")

    def tell(self, text: str) -> None:
        """Writes a line of the launcher."""
        self._put("job", text, _BOLD)

    def _put(self, name: str, text: str, colour: str) -> None:
        head = f"{f'[{name}]':<{self._width}}"
        self._write(f"{colour}{head}{_PLAIN} {text}" if self._has_colours else f"{head} {text}")
