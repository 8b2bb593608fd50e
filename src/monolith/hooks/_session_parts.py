"""What some sessions offer beyond `monolith.hook.HookedSession`, read by hooks that work better with it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from monolith.hook import HookedSession
    from monolith.tables.store import Store

__all__ = ["evict_expired", "last_loss", "last_num_examples", "stores_of"]


def last_loss(session: HookedSession) -> float | None:
    """The loss of the step that ran last; None where the session does not say. Waits for a GPU that computes it."""
    loss = getattr(getattr(session, "last", None), "loss", None)
    return None if loss is None else float(loss)


def last_num_examples(session: HookedSession) -> int | None:
    """Examples of the step that ran last; None where the session does not say."""
    return getattr(getattr(session, "last", None), "num_examples", None)


def stores_of(session: HookedSession) -> Mapping[str, Store]:
    """The tables of the session's model, by the name of the module that looks them up."""
    state: Any = getattr(session, "state", None)
    embeddings: Mapping[str, Any] = getattr(state, "embeddings", {})
    return {name: module.store for name, module in embeddings.items()}


def evict_expired(session: HookedSession) -> int:
    """Removes expired rows from the tables of the session's model, between two steps; returns how many there were."""
    settle = getattr(session, "settle", None)
    if settle is not None:
        settle()  # what was postponed is applied, and what was read ahead is read again
    state: Any = getattr(session, "state", None)
    embeddings: Mapping[str, Any] = getattr(state, "embeddings", {})
    return sum(each.evict() for each in embeddings.values())
