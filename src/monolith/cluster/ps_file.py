"""The file in which the chief fixes which parameter servers are used, in which order."""

from __future__ import annotations

from typing import TYPE_CHECKING

from monolith.clock import SystemClock
from monolith.files import text_files

if TYPE_CHECKING:
    from collections.abc import Sequence

    from monolith.clock import Clock

POLL_SECONDS = 5.0
READ_TIMEOUT_SECONDS = 1800.0


def get_ps_cluster_file_name(model_dir: str, uuid: str | None = None) -> str:
    """Returns the file of a run: ``<model_dir>/ps_cluster_dir/<uuid>``, or ``ps_info`` for a run without a name.

    >>> get_ps_cluster_file_name("/models/ranker", "run-7")
    '/models/ranker/ps_cluster_dir/run-7'
    """
    return f"{model_dir.rstrip('/')}/ps_cluster_dir/{uuid or 'ps_info'}"


def save_ps_cluster_to_file(file_name: str, ps_addrs: Sequence[str]) -> None:
    """Writes the addresses, separated by commas. Readers see the old list or the new one."""
    text_files.write_text(file_name, ",".join(ps_addrs))


def fetch_ps_cluster_from_file(
    file_name: str,
    timeout: float = READ_TIMEOUT_SECONDS,
    *,
    num_required: int | None = None,
    clock: Clock | None = None,
) -> list[str]:
    """Returns the addresses in the file, polling every 5 s; none if the file does not appear in time.

    With ``num_required`` a list of another length, left by a former run, is ignored. With a timeout of 0 the file is
    read once.
    """
    clock = clock or SystemClock()
    deadline = clock.monotonic() + timeout
    while True:
        addrs = [addr for addr in (text_files.read_text(file_name) or "").split(",") if addr]
        if addrs and num_required in {None, len(addrs)}:
            return addrs
        if clock.monotonic() >= deadline:
            return []
        clock.sleep(min(POLL_SECONDS, deadline - clock.monotonic()))
