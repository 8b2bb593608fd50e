"""Who can reach a controller that was told nothing: the user who trains, and nobody else."""

from __future__ import annotations

import errno
import os
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from hooks.server.training import training
from monolith.cluster import BarrierOp
from monolith.errors import FailedPreconditionError, InvalidArgumentError
from monolith.hooks.server import ControllerClient, ServerCredentials, ServerHook, server_hook
from monolith.hooks.server.server_hook import OwnerSocket

pytestmark = pytest.mark.usefixtures("nothing_left_behind")

NOBODY = 65534
CONNECT = """
import os, socket, sys
user = int(sys.argv[2])
os.setgroups([])
os.setgid(user)
os.setuid(user)
try:
    socket.socket(socket.AF_UNIX).connect(sys.argv[1])
except OSError as error:
    sys.exit(error.errno)
"""


def connect(path: str, user: int) -> int:
    """The error of connecting as another user, 0 if there is none."""
    return subprocess.run([sys.executable, "-I", "-S", "-c", CONNECT, path, str(user)], check=False).returncode


def test_folder_and_socket_are_the_owners(tmp_path: Path) -> None:
    with training(str(tmp_path)) as run:
        path = Path(run.hook.address.removeprefix("unix:"))
        assert stat.S_ISSOCK(path.stat().st_mode)
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
        assert path.parent.stat().st_uid == os.getuid()
        with ControllerClient.of_model_dir(str(tmp_path)) as client:
            client.stop_training()
        assert run.barrier.is_barrier_placed()
        run.barrier.remove_barrier()
    assert not path.parent.exists(), "nothing stays behind"


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_another_user_of_the_machine_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", "/tmp")  # noqa: S108 - a folder that everybody may enter
    with training(str(tmp_path)) as run:
        path = run.hook.address.removeprefix("unix:")
        assert connect(path, os.getuid()) == 0
        assert connect(path, NOBODY) == errno.EACCES


def test_an_address_that_cannot_be_written_leaves_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "model").write_text("a file where the folder should be")
    with tempfile.TemporaryDirectory(dir="/tmp") as sockets:  # a path that is short enough for a socket
        monkeypatch.setattr("tempfile.tempdir", sockets)
        with pytest.raises(InvalidArgumentError, match="model"), training(str(tmp_path / "model")):
            pytest.fail("nobody could find the server")
        assert list(Path(sockets).iterdir()) == []


def test_a_folder_with_too_long_a_name_is_left_for_the_systems(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / ("x" * 100)
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    with tempfile.TemporaryDirectory(dir="/tmp") as sockets:
        monkeypatch.setattr(server_hook, "_SYSTEM_FOLDER", sockets)
        owned = OwnerSocket()
        assert owned.address.startswith(f"unix:{sockets}/")
        assert list(folder.iterdir()) == []
        owned.remove()


def test_a_path_that_is_too_long_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / ("x" * 100)
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    monkeypatch.setattr(server_hook, "_SYSTEM_FOLDER", str(folder))
    with pytest.raises(FailedPreconditionError, match=r"107 bytes, got .*; set TMPDIR to a shorter folder, or give"):
        OwnerSocket()
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("options", [{"port": 7000}, {"credentials": "tls"}], ids=["port", "tls"])
def test_what_is_for_a_host_needs_one(tmp_path: Path, options: dict[str, object]) -> None:
    if "credentials" in options:
        options = {"credentials": ServerCredentials(tls_certificate="server.pem", tls_key="server.key")}
    with training(str(tmp_path)) as run, pytest.raises(ValueError, match="are for a host, got none; give host="):
        ServerHook(str(tmp_path), BarrierOp(1), run.saver, **options)  # type: ignore[arg-type]  # of two kinds


def test_removing_a_folder_that_is_already_deleted_does_not_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as sockets:
        monkeypatch.setattr("tempfile.tempdir", sockets)
        owned = OwnerSocket()
        owned.remove()
        owned.remove()
        assert list(Path(sockets).iterdir()) == []
