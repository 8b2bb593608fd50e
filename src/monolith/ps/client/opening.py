"""Opens resources on all servers, or on none."""

from __future__ import annotations

import logging
import secrets
from typing import TYPE_CHECKING, Any

from monolith.ps.server.push_gates import rows_owner
from monolith.rpc.channel import outcomes_of
from monolith.rpc.protos import parameter_server_pb2 as messages

if TYPE_CHECKING:
    from monolith.ps.client.cluster import PsCluster

__all__ = ["configuration", "configure_store", "open_on_all"]

_log = logging.getLogger(__name__)


def configure_store(cluster: PsCluster, name: str, agreement: bytes) -> None:
    """Creates or opens a store. Server 0 decides its `life`, also between two clients that create it concurrently.

    Restarted servers that are yet to be restored get a `life` of their own, and are skipped in that decision.
    """
    lost = cluster.uninitialized(rows_owner(name))
    kept = [index for index in range(cluster.num_ps) if index not in lost] or list(range(cluster.num_ps))
    request = configuration(name, agreement)
    first = cluster.ask_one(kept[0], "Configure", request)
    request.life.CopyFrom(first.life)
    requests = [request if index in kept else configuration(name, agreement) for index in range(cluster.num_ps)]
    for index, answer in enumerate(cluster.ask("Configure", requests)):
        if index not in kept:
            _log.warning("parameter servers: server %d was restarted without its state; restore it before use", index)
        elif answer.life.generation > first.life.generation:
            # Another client is resuming the store and has reached this server before server 0: its run id stays.
            _log.info("parameter servers: store %r is being resumed by another client", name)
        elif answer.life != first.life:
            _log.warning(
                "parameter servers: on server %d, store %r has another run id than on server 0: one of them was"
                " restarted; restore a checkpoint",
                index,
                name,
            )
            request.adopt = True
            cluster.ask_one(index, "Configure", request)


def configuration(name: str, agreement: bytes, *, adopted: messages.Life | None = None) -> messages.ConfigureRequest:
    """Returns the request that creates a store if missing; an existing store gets the `life` in `adopted`, if given."""
    return messages.ConfigureRequest(
        store=name,
        agreement=agreement,
        life=adopted or messages.Life(generation=0, life=secrets.randbits(63)),
        adopt=adopted is not None,
    )


def open_on_all(
    cluster: PsCluster, store: str, method: str, request: Any, *, undo: str, timeout_seconds: float | None
) -> list[Any]:
    """Sends all servers a call that opens a resource; if one rejects it, closes it on the others.

    Args:
        cluster: The servers.
        store: Name of the store.
        method: Name of the call.
        request: A message, or a list with one for each server.
        undo: Name of the call that releases a resource by its number.
        timeout_seconds: None: no limit.
    """
    cluster.require_stay()
    answers, errors = outcomes_of(cluster.begin(method, request, timeout_seconds=timeout_seconds))
    if errors:
        kind = messages.CutRequest if undo == "ReleaseCut" else messages.TicketRequest
        cluster.tell(undo, [None if each is None else kind(store=store, number=each.number) for each in answers])
        raise errors[0]
    return answers
