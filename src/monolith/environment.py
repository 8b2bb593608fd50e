"""The process environment, read and written here and nowhere else.

Code that obeys a variable reads it by name when it needs it, not when it is imported: a test, or a program that
sets the variable late, is then obeyed too.
"""

from __future__ import annotations

import os


def get(name: str) -> str | None:
    """Returns the value of a variable, or None where it is not set; a variable set to nothing is ``""``."""
    return os.environ.get(name)


def first_of(*names: str) -> str | None:
    """Returns the value of the first of these variables that is set and not empty."""
    return next((value for name in names if (value := os.environ.get(name))), None)


def starting_with(*prefixes: str) -> dict[str, str]:
    """Returns all variables whose names start with one of the prefixes."""
    return {name: value for name, value in os.environ.items() if name.startswith(prefixes)}


def put(name: str, value: str) -> None:
    """Sets a variable for this process and those it starts."""
    os.environ[name] = value


def remove(name: str) -> None:
    """Unsets a variable, if it is set."""
    os.environ.pop(name, None)
