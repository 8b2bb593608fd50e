"""Tries graphs and dense weights of an export in a child process, before the serving process loads them.

`graph_check` and `graph_limits` reject what is known to be harmful. The trial covers the rest: a kernel that crashes,
exhausts memory or does not return ends the child and not the server. Tables are not loaded there.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tempfile
import time
from typing import TYPE_CHECKING, Any

from monolith import environment
from monolith.errors import CancelledError, DataLossError, FailedPreconditionError, UnavailableError, UnimplementedError
from monolith.export.allowed_operations import user_operations

if TYPE_CHECKING:
    from collections.abc import Callable

    from monolith.export.export_folder import HeldFolder

TRUST_VARIABLE = "MONOLITH_TRUST_EXPORTS"
"""Environment variable: set to 1, exports are loaded without a trial."""
TRIAL_SECONDS = 120.0
"""Time limit of the child, from its start to its verdict."""
MEMORY_BYTES = 1 << 30
MEMORY_FACTOR = 8
"""The child may allocate `MEMORY_BYTES` plus `MEMORY_FACTOR` times the bytes of the files, in addition to its memory at
the start."""
_LOOK_SECONDS = 0.1
_KINDS = {kind.__name__: kind for kind in (DataLossError, FailedPreconditionError, UnimplementedError)}


def try_export(folder: HeldFolder, *, is_stopped: Callable[[], bool] = lambda: False) -> None:
    """Loads and runs the graphs of an export in a child process; returns immediately if exports are trusted.

    Args:
        folder: The export.
        is_stopped: Whether the trial was cancelled.

    Raises:
        DataLossError: the child crashed, or took too much memory or time.
        FailedPreconditionError, UnimplementedError: the child rejected the export.
        UnavailableError: the child cannot be started.
        CancelledError: the trial was cancelled.
    """
    if environment.get(TRUST_VARIABLE) == "1":
        return
    subject = f"export '{folder.path}'"
    with tempfile.TemporaryFile() as verdict, tempfile.TemporaryFile() as complaints:
        try:
            child = subprocess.Popen(
                [sys.executable, "-P", "-m", "monolith.export.trial_process"],
                stdin=subprocess.PIPE,
                stdout=verdict,
                stderr=complaints,
                env={**environment.starting_with(""), "OMP_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "2"},
            )
        except OSError as error:
            raise UnavailableError(f"{subject}: a process to try it in cannot be started: {error}") from error
        try:
            _feed(child, _request(folder), is_stopped, subject)
        finally:
            if child.poll() is None:
                child.kill()
            child.wait()
        verdict.seek(0)
        complaints.seek(0)
        require_success(child.returncode, verdict.read(), complaints.read(), subject)


def _request(folder: HeldFolder) -> bytes:
    """Encodes the request: a line of JSON, then the concatenated files."""
    head = {
        "path": folder.path,
        "operations": sorted(user_operations()),
        "files": {name: len(data) for name, data in folder.files.items()},
        "memory_bytes": MEMORY_BYTES + MEMORY_FACTOR * sum(map(len, folder.files.values())),
        "seconds": TRIAL_SECONDS,
    }
    return b"\n".join([json.dumps(head).encode(), b"".join(folder.files.values())])


def _feed(child: subprocess.Popen[bytes], request: bytes, is_stopped: Callable[[], bool], subject: str) -> None:
    end = time.monotonic() + TRIAL_SECONDS
    unsent: bytes | None = request
    while True:
        try:
            child.communicate(unsent, timeout=_LOOK_SECONDS)
        except subprocess.TimeoutExpired:
            unsent = None  # it was kept
        else:
            return
        if is_stopped():
            raise CancelledError(f"{subject}: its trial was stopped")
        if time.monotonic() > end:
            raise DataLossError(
                f"{subject}: the process that tried it gave no answer within {TRIAL_SECONDS:g} s; it is not loaded"
            )


def require_success(code: int, text: bytes, complaints: bytes, subject: str) -> None:
    """Raises the error in the verdict of a child, if any; `code` is its exit status, as `subprocess` reports it."""
    try:
        verdict: Any = json.loads(text)
        refused = verdict["refused"]
    except (ValueError, KeyError, TypeError, RecursionError):
        how = f"was ended by signal {_signal_name(-code)}" if code < 0 else f"ended with status {code}"
        last = (complaints.decode(errors="replace").strip().splitlines() or ["nothing"])[-1][:300]
        raise DataLossError(
            f"{subject}: the process that tried it {how} before it had an answer, so it is not loaded; it wrote: {last}"
        ) from None
    if code == 0 and refused is None:
        return
    kind, message = str(verdict.get("kind")), str(refused)[:2000]
    raise _KINDS.get(kind, DataLossError)(f"{message} (found by a trial in a process of its own)")


def _signal_name(number: int) -> str:
    """Returns the name of a signal, such as SIGSEGV; most real-time signals have no name."""
    return signal.Signals(number).name if number in set(signal.Signals) else str(number)
