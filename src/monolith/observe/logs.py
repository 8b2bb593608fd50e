r"""Format of log lines: readable or JSON, with role and rank of the process in each.

>>> import io, logging
>>> lines = io.StringIO()
>>> with configure_logging(role="ps", rank=3, stream=lines):
...     logging.getLogger("monolith.ps").info("ready on port %d", 2222)
>>> lines.getvalue()
'... INFO ps/3 monolith.ps: ready on port 2222\n'
"""

from __future__ import annotations

import json
import logging
import math
import sys
import threading
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal, TextIO

from monolith.closing import Closing

if TYPE_CHECKING:
    from collections.abc import Iterator

_RECORD_FIELDS = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
"""Attributes of every record; all others came from the caller's ``extra``."""


class LoggingSetup(Closing):
    """A handler on the root logger, and a hook that logs which threads exceptions end, until `close`."""

    def __init__(self, handler: logging.Handler, level: int) -> None:
        root = logging.getLogger()
        self._handler = handler
        self._level_before = root.level
        root.addHandler(handler)
        root.setLevel(level)
        self._hook_before, threading.excepthook = threading.excepthook, self._log_thread

    def close(self) -> None:
        """Removes the handler and restores the level. Idempotent."""
        global _current  # noqa: PLW0603 - the root logger is global, and so is its setup
        if _current is not self:
            return
        _current = None
        root = logging.getLogger()
        root.removeHandler(self._handler)
        root.setLevel(self._level_before)
        self._handler.close()
        threading.excepthook = self._hook_before

    def _log_thread(self, ended: threading.ExceptHookArgs) -> None:
        name = ended.thread and ended.thread.name
        logging.getLogger(__name__).critical("thread %s was ended by %r", name, ended.exc_value)
        self._hook_before(ended)  # prints the traceback


_current: LoggingSetup | None = None


def configure_logging(
    level: int | str = "INFO",
    *,
    style: Literal["readable", "json"] = "readable",
    role: str = "worker",
    rank: int = 0,
    stream: TextIO | None = None,
) -> LoggingSetup:
    """Sends the log of this process to one stream; other handlers stay.

    A second call replaces the first. Times are UTC.

    Args:
        level: Least level that is written, as a name or number.
        style: ``readable`` writes ``time LEVEL role/rank logger: message``, again in front of every further line of a
            message or traceback, so that searching for a rank finds all of it. ``json`` writes one object a line: time,
            level, role, rank, logger, message, then what the caller gave as ``extra``, then exception and stack.
        role: Role of this process: worker, ps, chief, ...
        rank: Rank of this process among those of its role.
        stream: By default standard error, looked up when a line is written.

    Returns:
        The setup, which `close` undoes.
    """
    formatters = {"readable": _ReadableFormatter, "json": _JsonFormatter}
    if style not in formatters:
        raise ValueError(f"configure_logging: style must be 'readable' or 'json', got {style!r}")
    global _current  # noqa: PLW0603 - the root logger is global, and so is its setup
    handler = _StandardErrorHandler() if stream is None else logging.StreamHandler(stream)
    handler.setFormatter(formatters[style](role, rank))
    number = _level_number(level)
    if _current is not None:
        _current.close()
    _current = LoggingSetup(handler, number)
    return _current


def _level_number(level: int | str) -> int:
    names = logging.getLevelNamesMapping()
    if isinstance(level, int) and not isinstance(level, bool):
        return level
    if str(level).upper() in names:
        return names[str(level).upper()]
    known = ", ".join(sorted(names, key=lambda name: names[name]))
    raise ValueError(f"configure_logging: level must be a number or one of {known}, got {level!r}")


class _StandardErrorHandler(logging.StreamHandler[TextIO]):
    """Writes to whatever ``sys.stderr`` is when a line is written: programs and tests replace it."""

    def __init__(self) -> None:
        logging.Handler.__init__(self)

    @property
    def stream(self) -> TextIO:  # type: ignore[override]  # an attribute in the base class; a property follows changes of sys.stderr
        return sys.stderr


class _Formatter(logging.Formatter):
    def __init__(self, role: str, rank: int) -> None:
        super().__init__()
        self._role = role
        self._rank = rank

    @staticmethod
    def _time(record: logging.LogRecord) -> str:
        moment = datetime.fromtimestamp(record.created, UTC)
        return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


class _ReadableFormatter(_Formatter):
    def format(self, record: logging.LogRecord) -> str:
        head = f"{self._time(record)} {record.levelname} {self._role}/{self._rank} {record.name}: "
        return "\n".join(head + line for line in self._lines(record))

    def _lines(self, record: logging.LogRecord) -> Iterator[str]:
        yield from record.getMessage().splitlines() or [""]
        if record.exc_info:
            yield from self.formatException(record.exc_info).splitlines()
        if record.stack_info:
            yield from self.formatStack(record.stack_info).splitlines()


class _JsonFormatter(_Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "time": self._time(record),
            "level": record.levelname,
            "role": self._role,
            "rank": self._rank,
            "logger": record.name,
            "message": record.getMessage(),
        }
        for name, value in vars(record).items():
            if name not in _RECORD_FIELDS and not name.startswith("_"):  # those are of libraries, such as Ray
                line.setdefault(name, _plain(value))
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        if record.stack_info:
            line["stack"] = self.formatStack(record.stack_info)
        return json.dumps(line)


def _plain(value: Any) -> object:
    """Returns a value that JSON has: NaN and infinities, tensors and objects become texts."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else repr(value)
    return str(value)
