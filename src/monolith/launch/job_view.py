"""A job of many processes as one line of progress, and their output as one log."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from monolith.launch.role import Role, RoleKind
    from monolith.launch.supervision import Supervision
    from monolith.observe import Progress

_SUMMED = "examples_per_second"


class JobView:
    """Combines the progress of workers: the step is that of the job, rates are summed.

    Args:
        bar: Progress bar, closed by its creator. None: only the result is kept.
        supervision: Gives the live processes.
    """

    def __init__(self, bar: Progress | None, supervision: Supervision) -> None:
        self.result: dict[str, Any] = {}
        """Final report of the chief."""
        self._bar = bar
        self._supervision = supervision
        self._fields: dict[Role, Mapping[str, Any]] = {}

    def heard(self, role: Role, message: Mapping[str, Any]) -> None:
        """Processes a message of a role."""
        if isinstance(result := message.get("result"), dict):
            self.result = result
            if self._bar is not None and isinstance(step := result.get("global_step"), int):
                self._show(self._bar, max(step - self._bar.done, 0))
        done, fields = message.get("done"), message.get("fields")
        if self._bar is not None and isinstance(done, int) and isinstance(fields, dict):
            self._fields[role] = fields
            if isinstance(total := message.get("total"), int):
                self._bar.total = total
            self._show(self._bar, max(done - self._bar.done, 0))

    def gone(self, role: Role) -> None:
        """Removes the rates of a role that has ended."""
        self._fields.pop(role, None)
        if self._bar is not None and self._bar.done:
            self._show(self._bar, 0)

    def _show(self, bar: Progress, steps: int) -> None:
        supervision, shown = self._supervision, dict[str, Any]()
        kinds: dict[RoleKind, str] = {"worker": "workers", "ps": "servers"}
        for kind, name in kinds.items():
            number = sum(role.kind == kind for role in supervision.roles)
            shown[name] = f"{supervision.num_alive(kind)}/{number}"
        shown["restarts"] = supervision.restarts
        for role in sorted(self._fields, key=lambda role: role.index, reverse=True):  # values of the chief win
            for name, value in self._fields[role].items():
                is_rate = name == _SUMMED and isinstance(value, float | int)
                shown[name] = value + shown.get(name, 0.0) if is_rate else value
        bar.update(steps, **shown)


_COLOURS = {"ps": (33, 35, 91, 93, 95), "worker": (36, 32, 34, 96, 92)}
"""Terminal colours by kind of role: warm ones for servers."""
_BOLD, _PLAIN = "\x1b[1m", "\x1b[0m"


class MergedLog:
    """Writes lines with the role in front, in columns, and optionally in colour.

    >>> from monolith.launch.role import Role
    >>> log = MergedLog(print, [Role("ps", 0), Role("worker", 0)])
    >>> log.line(Role("ps", 0), "serves")
    [ps 0]     serves
    >>> log.launcher_line("both are running")
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

    def launcher_line(self, text: str) -> None:
        """Writes a line of the launcher."""
        self._put("job", text, _BOLD)

    def _put(self, name: str, text: str, colour: str) -> None:
        head = f"{f'[{name}]':<{self._width}}"
        self._write(f"{colour}{head}{_PLAIN} {text}" if self._has_colours else f"{head} {text}")
