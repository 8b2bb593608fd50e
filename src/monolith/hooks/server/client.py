"""Client of the controller service of a running training, found through its model directory."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, Self

from monolith import errors
from monolith.closing import Closing
from monolith.files import text_files
from monolith.hooks.server.protos import controller_service_pb2 as messages
from monolith.hooks.server.server_hook import address_file
from monolith.hooks.server.service import SERVICE
from monolith.rpc import ClientCredentials, error_of, load_grpc, open_channel

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

CALL_TIMEOUT_SECONDS = 10.0
SAVE_TIMEOUT_SECONDS = 3600.0
ERASE_TIMEOUT_SECONDS = 600.0
IDS_PER_CALL = 100_000
"""Keeps a message below the 4 MiB limit of a gRPC server."""


def find_controller(model_dir: str) -> str:
    """Returns the address that the training of a model has published."""
    path = address_file(model_dir)
    address = (text_files.read_text(path) or "").strip()
    if not address:
        raise errors.NotFoundError(
            f"controller: there is no address in {path}; a training with a controller writes it when it starts and "
            f"removes it when it ends: is one running with this model_dir, and has it grpcio (pip install "
            f"'monolith-torch[control]')?"
        )
    return address


class ControllerStub:
    """The methods of the service by their names on the wire. They take and return messages, and raise gRPC's errors."""

    StopTraining: Callable[..., Any]
    ResumeTraining: Callable[..., Any]
    GetBlockStatus: Callable[..., Any]
    SaveCheckpoint: Callable[..., Any]
    Erase: Callable[..., Any]
    GetTrainingStatus: Callable[..., Any]

    def __init__(self, channel: Any, metadata: Sequence[tuple[str, str]] = ()) -> None:
        self._channel = channel
        for method in SERVICE.methods:
            call = channel.unary_unary(
                f"/{SERVICE.full_name}/{method.name}",
                request_serializer=getattr(messages, method.input_type.name).SerializeToString,
                response_deserializer=getattr(messages, method.output_type.name).FromString,
            )
            setattr(self, method.name, functools.partial(call, metadata=metadata))

    def close(self) -> None:
        """Closes the channel."""
        self._channel.close()


class ControllerClient(Closing):
    """Client of one controller. A context manager. Thread-safe.

    Args:
        address: ``host:port`` or ``unix:<path>`` of the controller.
        credentials: Credentials of the client, and the authorities that it trusts.
        timeout_seconds: Timeout of a call; None: an hour for a save, ten minutes for an erase, ten seconds for others.
    """

    def __init__(
        self, address: str, *, credentials: ClientCredentials | None = None, timeout_seconds: float | None = None
    ) -> None:
        if timeout_seconds is not None and not timeout_seconds > 0:
            raise ValueError(f"controller: timeout_seconds must be > 0, got {timeout_seconds!r}")
        self._address = address
        self._timeout_seconds = timeout_seconds
        self._stub = open_stub(address, credentials or ClientCredentials())

    @classmethod
    def of_model_dir(
        cls, model_dir: str, *, credentials: ClientCredentials | None = None, timeout_seconds: float | None = None
    ) -> Self:
        """Returns a client for the training that runs with a model directory."""
        return cls(find_controller(model_dir), credentials=credentials, timeout_seconds=timeout_seconds)

    def stop_training(self) -> None:
        """Pauses the job before its next step.

        Raises:
            AlreadyExistsError: The job is already paused.
        """
        self._call("StopTraining", messages.StopTrainingRequest())

    def resume_training(self) -> None:
        """Resumes the job. Does nothing if it is not paused."""
        self._call("ResumeTraining", messages.ResumeTrainingRequest())

    def get_block_status(self) -> tuple[list[int], list[int]]:
        """Returns the workers that wait, and the workers that do not."""
        status = self._call("GetBlockStatus", messages.GetBlockStatusRequest())
        return list(status.blocked_indices), list(status.unblocked_indices)

    def save_checkpoint(self) -> None:
        """Saves between two steps; returns when the checkpoint is committed."""
        self._call("SaveCheckpoint", messages.SaveCheckpointRequest(), SAVE_TIMEOUT_SECONDS)

    def erase(self, slot: str, ids: Sequence[int]) -> int:
        """Removes the rows of some ids of a slot between two steps; returns the number of removed rows.

        Existing checkpoints still contain them: `save_checkpoint` writes one without them.
        """
        parts = [ids[begin : begin + IDS_PER_CALL] for begin in range(0, max(1, len(ids)), IDS_PER_CALL)]
        requests = (messages.EraseRequest(slot=slot, ids=part) for part in parts)
        return sum(int(self._call("Erase", request, ERASE_TIMEOUT_SECONDS).rows) for request in requests)

    def get_global_step(self) -> int:
        """Returns the number of trained steps."""
        return int(self._call("GetTrainingStatus", messages.GetTrainingStatusRequest()).global_step)

    def close(self) -> None:
        """Closes the connection."""
        self._stub.close()

    def _call(self, method: str, request: Any, timeout_seconds: float = CALL_TIMEOUT_SECONDS) -> Any:
        grpc = load_grpc()
        call = getattr(self._stub, method)
        try:
            return call(request, timeout=self._timeout_seconds or timeout_seconds)
        except grpc.RpcError as error:
            raise error_of(error, prefix="", texts=self._texts(error.details())) from error

    def _texts(self, details: str) -> dict[type[errors.OpError], str]:
        return {
            errors.UnavailableError: f"controller at {self._address} does not answer ({details}); has training ended,"
            " or does it run on another machine, as another user, or under TLS?",
            errors.DeadlineExceededError: f"controller at {self._address}: no answer in time; the request may still"
            " take effect",
        }


def open_stub(address: str, credentials: ClientCredentials) -> ControllerStub:
    """Returns a stub for the controller at an address."""
    return ControllerStub(open_channel(address, credentials), credentials.metadata())


def get_stub_from_model_dir(model_dir: str, *, credentials: ClientCredentials | None = None) -> ControllerStub:
    """Returns a stub for the controller of the training that runs with a model directory."""
    return open_stub(find_controller(model_dir), credentials or ClientCredentials())
