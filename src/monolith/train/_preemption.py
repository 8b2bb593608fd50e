"""Errors that mean the loss of another process, after which a session is rebuilt."""

from __future__ import annotations

from monolith.errors import AbortedError, FileUnavailableError, OpError, UnavailableError

_errors: tuple[type[OpError], ...] = (AbortedError, UnavailableError)


def preemption_errors() -> tuple[type[OpError], ...]:
    """Returns the error classes that count as preemption, also available as ``monolith.train.PREEMPTION_ERRORS``."""
    return _errors


def is_preemption(error: BaseException) -> bool:
    """Returns whether an error means the loss of another process; failed file access does not."""
    return isinstance(error, _errors) and not isinstance(error, FileUnavailableError)


def enable_monkey_patch() -> None:
    """Narrows preemption errors to `AbortedError`: an unavailable server then ends the session, and the runner decides.

    ByteDance Monolith patched TensorFlow for this; here it is a setting of this process.
    """
    global _errors  # noqa: PLW0603 - the setting
    _errors = (AbortedError,)
