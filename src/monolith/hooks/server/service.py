"""Implementation of the controller service; `server_hook` connects it to gRPC and to a session."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Protocol

from monolith.errors import FailedPreconditionError, InvalidArgumentError, OpError
from monolith.hooks.server.protos import controller_service_pb2 as messages
from monolith.rpc import UnaryMethod, status_of, unary_handler

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from monolith.cluster import Barrier
    from monolith.hook import HookedSession
    from monolith.hooks.server.step_gate import StepGate
    from monolith.rpc import ServerCredentials, Status

_log = logging.getLogger(__name__)

SERVICE = messages.DESCRIPTOR.services_by_name["Controller"]
STOP_ACTION = "Stop"


class TriggersSave(Protocol):
    """Saves on demand; the saving hook of a session is one."""

    def trigger_save(self, session: HookedSession) -> object:
        """Saves now; raises on failure."""


class ControllerService:
    """The methods of the service, by their names on the wire. Called by the server's threads."""

    def __init__(self, barrier: Barrier, saver: TriggersSave, gate: StepGate) -> None:
        self._barrier = barrier
        self._saver = saver
        self._gate = gate
        self.session: HookedSession | None = None
        """The training session; None before and after it."""

    def StopTraining(self, request: Any, is_wanted: Callable[[], bool]) -> Any:  # noqa: ARG002, N802 - as on the wire
        """Places the barrier."""
        self._running()
        self._barrier.place_barrier()
        return messages.StopTrainingResponse()

    def ResumeTraining(self, request: Any, is_wanted: Callable[[], bool]) -> Any:  # noqa: ARG002, N802 - as on the wire
        """Removes the barrier."""
        self._running()
        self._barrier.remove_barrier()
        return messages.ResumeTrainingResponse()

    def GetBlockStatus(self, request: Any, is_wanted: Callable[[], bool]) -> Any:  # noqa: ARG002, N802 - as on the wire
        """Returns the workers that wait at the barrier and those that do not."""
        return messages.GetBlockStatusResponse(
            blocked_indices=self._barrier.get_blocked_indices(), unblocked_indices=self._barrier.get_unblocked_indices()
        )

    def SaveCheckpoint(self, request: Any, is_wanted: Callable[[], bool]) -> Any:  # noqa: ARG002, N802 - as on the wire
        """Saves between two steps."""
        session = self._running()
        self._gate.run_between_steps(lambda: self._saver.trigger_save(session), is_wanted)
        return messages.SaveCheckpointResponse()

    def Erase(self, request: Any, is_wanted: Callable[[], bool]) -> Any:  # noqa: N802 - as on the wire
        """Removes rows between two steps."""
        session = self._running()
        removed: list[int] = []
        self._gate.run_between_steps(
            lambda: removed.append(_erase(session, request.slot, list(request.ids))), is_wanted
        )
        return messages.EraseResponse(rows=removed[0])

    def GetTrainingStatus(self, request: Any, is_wanted: Callable[[], bool]) -> Any:  # noqa: ARG002, N802 - as on the wire
        """Returns the global step."""
        return messages.GetTrainingStatusResponse(global_step=self._running().global_step)

    def _running(self) -> HookedSession:
        if self.session is None:
            raise FailedPreconditionError("controller: no session trains now; nothing was done")
        return self.session


def _erase(session: HookedSession, slot: str, ids: Sequence[int]) -> int:
    modules = [module for module in session.state.embeddings.values() if slot in module.slots]
    if not modules:
        known = sorted(name for module in session.state.embeddings.values() for name in module.slots)
        raise InvalidArgumentError(f"slot {slot!r} does not exist; the slots of the model are {known}")
    if any(module.store.traits.collective for module in modules):
        raise FailedPreconditionError(
            f"slot {slot!r}: its rows are shared among ranks, which have to erase them together; stop the run and erase"
            " from its checkpoints, or call emb.erase(slot, ids) on all ranks at the same step"
        )
    rows = sum(module.erase(slot, ids) for module in modules)
    _log.info("controller: %d rows of %d ids of slot %r were erased", rows, len(ids), slot)
    return rows


def make_handler(service: ControllerService, credentials: ServerCredentials) -> Any:
    """Returns the gRPC handler of the service; an exception of a method becomes the status of its call."""

    def method(described: Any) -> UnaryMethod:
        serve = getattr(service, described.name)
        return UnaryMethod(
            lambda request, context: serve(request, context.is_active),
            getattr(messages, described.input_type.name).FromString,
            getattr(messages, described.output_type.name).SerializeToString,
        )

    methods = {described.name: method(described) for described in SERVICE.methods}
    return unary_handler(SERVICE.full_name, methods, credentials, prefix="controller: ", status=_logged_status)


def _logged_status(method: str, error: Exception) -> Status:
    if isinstance(error, OpError):
        _log.warning("controller: %s: %s", method, error.message)
    else:  # training must not fail because of it
        _log.error("controller: %s failed", method)
    return status_of(error)
