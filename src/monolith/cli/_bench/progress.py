"""Progress lines on standard error: a row of minutes should not look like a hang."""

from __future__ import annotations

import sys


def tell(text: str) -> None:
    """Prints one line and flushes it."""
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()
