"""The loss of the last step, as a number."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from monolith.hook import HookedSession

__all__ = ["last_loss"]


def last_loss(session: HookedSession) -> float | None:
    """Returns the loss, or None where the step computed none. Waits for a GPU that computes it."""
    last = session.last
    return None if last is None or last.loss is None else float(last.loss)
