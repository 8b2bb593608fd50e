"""Texts that clients store for each other on a standby server."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from monolith.errors import FailedPreconditionError, ResourceExhaustedError
from monolith.rpc.protos import parameter_server_pb2 as messages

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["NoteCalls"]

_MOST_NOTES = 1 << 16
_LONGEST_NOTE = 1 << 16


class NoteCalls:
    """The methods of the service that are about notes. Called by server threads.

    Args:
        stands_by: Returns whether the server is a standby server; others reject notes.
    """

    def __init__(self, stands_by: Callable[[], bool]) -> None:
        self._stands_by = stands_by
        self._notes: dict[str, str] = {}
        self._notes_lock = threading.Lock()  # guards the notes

    def Note(self, request: messages.NoteRequest) -> Any:  # noqa: N802 - as on the wire
        """Stores a text for other clients, replacing one of the same name."""
        self._require_standing_by()
        with self._notes_lock:
            is_full = request.name not in self._notes and len(self._notes) >= _MOST_NOTES
            if is_full or len(request.name) + len(request.value) > _LONGEST_NOTE:
                raise ResourceExhaustedError(
                    f"note: at most {_MOST_NOTES} of {_LONGEST_NOTE} characters each are kept, got one more or longer"
                )
            self._notes[request.name] = request.value
        return messages.Done()

    def Notes(self, request: messages.NotesRequest) -> Any:  # noqa: ARG002, N802 - as on the wire
        """Returns the stored texts."""
        self._require_standing_by()
        with self._notes_lock:
            return messages.NotesResponse(notes=self._notes)

    def _require_standing_by(self) -> None:
        if not self._stands_by():
            raise FailedPreconditionError("notes: this server has its place among the servers of a job, and keeps none")
