"""Calls that publish rows of a server to a delta log."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from monolith.ps._wire_values import mark_message
from monolith.ps.server.hosted_publishing import PublishingRequest
from monolith.rpc.protos import parameter_server_pb2 as messages

if TYPE_CHECKING:
    from collections.abc import Callable

    from monolith.ps.server.hosted_publishing import HostedPublishing
    from monolith.ps.server.hosted_rows import HostedRows

__all__ = ["PublishCalls"]


class PublishCalls:
    """The methods of the service that are about publishing. Called by server threads.

    Args:
        find: Returns the rows of a store by its name.
    """

    def __init__(self, find: Callable[[str], HostedRows]) -> None:
        self._find_published = find

    def Publish(self, request: messages.PublishRequest) -> Any:  # noqa: N802 - as on the wire
        """Starts or continues publication."""
        publishing = self._find_published(request.store).publishing
        wish = PublishingRequest(
            request.name, request.log, request.base_folder or None, request.interval_seconds, request.record_bytes
        )
        publishing.begin(wish, request.position)
        return _answer(publishing, now=False, saved=False)

    def Published(self, request: messages.PublishedRequest) -> Any:  # noqa: N802 - as on the wire
        """Returns the position of the log."""
        return _answer(self._find_published(request.store).publishing, now=request.now, saved=request.saved)


def _answer(publishing: HostedPublishing, *, now: bool, saved: bool) -> messages.PublishedResponse:
    found = publishing.published(now=now, saved=saved)
    return messages.PublishedResponse(
        numbers=found.numbers, ended=found.ended, mark=mark_message(found.mark), written=found.written
    )
