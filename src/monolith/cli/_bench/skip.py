"""The way a row says that it cannot be measured here."""

from __future__ import annotations


class RowSkippedError(Exception):
    """Something a row needs is missing; the text says what, and how to get it."""
