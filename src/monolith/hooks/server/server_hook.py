"""A Unix socket in a folder of its own, which only one user of the machine can reach."""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from monolith import files
from monolith.cluster import EVERY_INTERFACE, concat_ip_and_port, get_local_ip
from monolith.errors import FailedPreconditionError
from monolith.files import text_files
from monolith.hook import Hook
from monolith.hooks.server.service import ControllerService, make_handler
from monolith.hooks.server.step_gate import StepGate
from monolith.rpc import RpcServer, ServerCredentials, load_grpc

if TYPE_CHECKING:
    from monolith.cluster import Barrier
    from monolith.hook import HookedSession, StepContext
    from monolith.hooks.server.service import TriggersSave


_MOST_BYTES = 107
"""Maximum length of the path of a Unix socket on Linux; other systems allow a few bytes less, and raise an error."""
_SYSTEM_FOLDER = "/tmp"  # noqa: S108 - mkdtemp makes a folder there that no other user can enter


class OwnerSocket:
    """The path of a socket that is yet to be bound. Its creator removes it. Not thread-safe.

    The folder has mode 0700 from the start, so that other users can never connect. It is in the folder for temporary
    files, or in the system's own folder if that path is too long for a socket.

    Raises:
        FailedPreconditionError: the path would be too long for a socket in both.
    """

    def __init__(self) -> None:
        for parent in (None, _SYSTEM_FOLDER):
            self._folder = Path(tempfile.mkdtemp(prefix="monolith-control-", dir=parent))
            self._path = self._folder / "socket"
            if len(os.fsencode(self._path)) <= _MOST_BYTES:
                return
            self.remove()
        raise FailedPreconditionError(
            f"controller: a socket's path may have {_MOST_BYTES} bytes, got {self._path}; set TMPDIR to a shorter"
            " folder, or give the controller a host"
        )

    @property
    def address(self) -> str:
        """Address in the form of gRPC, and of the file in the model directory."""
        return f"unix:{self._path}"

    def narrow(self) -> None:
        """Restricts the bound socket to its owner; some systems do not check the permissions of the folder."""
        self._path.chmod(0o600)

    def remove(self) -> None:
        """Removes the socket and its folder."""
        shutil.rmtree(self._folder, ignore_errors=True)


_log = logging.getLogger(__name__)

NUM_THREADS = 2
GRACE_SECONDS = 20.0


def address_file(model_dir: str) -> str:
    """Returns the path of the file with the address of a model's controller."""
    return files.join(str(model_dir), "controller_server_addr.txt")


class ServerHook(Hook):
    """Serves while the session is open, and publishes the address in ``controller_server_addr.txt``. Chief only.

    StopTraining places the barrier. Workers wait there, and this session also waits before its next step, so that the
    chief does not train on. SaveCheckpoint runs between two steps, in the training thread, and also while training is
    paused. A server thread makes the save only while the session's `step_lock` is free, so that no step is running.
    Only the user that trains can call, on this machine, unless `host` is given.

    Args:
        model_dir: Folder of the model, local or remote.
        barrier: The barrier of the workers.
        saver_hook: Saves on demand.
        host: Interface to listen on; ``0.0.0.0`` or ``::`` for all. None: a Unix socket that only this user can reach.
        port: Port of the host; 0 picks a free one.
        credentials: Credentials that callers must present.

    Raises:
        ValueError: a port or TLS without a host.
    """

    def __init__(
        self,
        model_dir: str,
        barrier: Barrier,
        saver_hook: TriggersSave,
        *,
        host: str | None = None,
        port: int = 0,
        credentials: ServerCredentials | None = None,
    ) -> None:
        load_grpc()  # fails now where grpcio is missing, not hours later
        self._model_dir = str(model_dir)
        self._host, self._port = host, port
        self._credentials = credentials or ServerCredentials()
        self._socket: OwnerSocket | None = None
        if host is None and (port or self._credentials.tls_certificate is not None):
            raise ValueError("controller: a port and TLS are for a host, got none; give host='127.0.0.1', or another")
        self._gate = StepGate(barrier.is_barrier_placed)
        barrier.on_change(self._gate.wake)
        self._service = ControllerService(barrier, saver_hook, self._gate)
        self._server: RpcServer | None = None
        self.address = ""
        """Address of the server, ``host:port`` or ``unix:<path>``; empty while it does not serve."""

    def after_create_session(self, session: HookedSession) -> None:
        """Starts the server; a rebuilt session keeps it."""
        self._service.session = session
        self._gate.open(session.step_lock)
        if self._server is None:
            session.on_close(self._stop)
            self._start()

    def before_run(self, context: StepContext) -> None:
        """Runs requested saves, and blocks while training is paused."""
        self._gate.enter_step(lambda: context.stop_requested)

    def after_run(self, context: StepContext) -> None:
        """Runs requested saves at the end of the step, and blocks while training is paused."""
        self._gate.leave_step(lambda: context.stop_requested)

    def _start(self) -> None:
        handler = make_handler(self._service, self._credentials)
        self._server = RpcServer([handler], self._credentials, name="controller", num_threads=NUM_THREADS)
        self.address = self._bind(self._server)
        self._server.start()
        text_files.write_text(address_file(self._model_dir), self.address)
        if self._host is not None and not self._credentials.knows_callers:
            _log.warning(
                "controller on %s requires no token: any client that reaches it can stop training", self.address
            )
        _log.info("controller serves on %s", self.address)

    def _bind(self, server: RpcServer) -> str:
        if self._host is not None:
            port = server.listen(concat_ip_and_port(self._host, self._port))
            return concat_ip_and_port(get_local_ip() if self._host in EVERY_INTERFACE else self._host, port)
        self._socket = OwnerSocket()
        server.listen(self._socket.address)
        self._socket.narrow()
        return self._socket.address

    def _stop(self) -> None:
        self._gate.close()
        self._service.session = None
        server, self._server = self._server, None
        if server is not None:
            server.close(GRACE_SECONDS)
        if self._socket is not None:
            self._socket.remove()
            self._socket = None
        if self.address and text_files.read_text(address_file(self._model_dir)) == self.address:
            text_files.remove(address_file(self._model_dir))
        self.address = ""
