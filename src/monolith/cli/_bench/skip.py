"""Error of a row that cannot be measured here."""

from __future__ import annotations


class RowSkippedError(Exception):
    """A requirement of a row is missing; the message names it, and how to install it."""
