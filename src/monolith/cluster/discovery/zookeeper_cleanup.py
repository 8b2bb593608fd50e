"""Removes the remains of finished jobs from ZooKeeper."""

from __future__ import annotations

import datetime as dt
import logging
from typing import TYPE_CHECKING

from kazoo.exceptions import KazooException, NoNodeError

from monolith.clock import SystemClock
from monolith.cluster.discovery.zookeeper_client import MonolithKazooClient, require_zk_servers

if TYPE_CHECKING:
    from collections.abc import Iterable

    from monolith.clock import Clock

_log = logging.getLogger(__name__)

BASE_PATH = "/monolith"
STALE_AFTER = dt.timedelta(weeks=9)


def clear_zk_path(
    zk_server: str | None, job_name: str, force_clear_zk_path: bool, *, clock: Clock | None = None
) -> None:
    """Removes jobs that were not modified for nine weeks, then the remains of this job.

    A job with a live process, which is one that holds an ephemeral node, is never stale.

    Raises:
        ValueError: The path of the job exists and ``force_clear_zk_path`` is not set; or no server is given.
        KazooTimeoutError: No server answers.
    """
    client = MonolithKazooClient(require_zk_servers(zk_server))
    try:
        client.start()
        client.ensure_path(BASE_PATH)
        _remove_stale_jobs(client, (clock or SystemClock()).now())
        job_path = f"{BASE_PATH}/{job_name}"
        if client.exists(job_path):
            if not force_clear_zk_path:
                children = ",".join(sorted(client.get_children(job_path)))
                raise ValueError(f"there are [{children}] in monolith zk path")
            client.delete(job_path, recursive=True)
    finally:
        client.stop()
        client.close()


def is_stale(modified_ms: Iterable[int], now: float) -> bool:
    """Returns whether the newest of these times, in milliseconds, is more than nine weeks before ``now``, in seconds.

    >>> is_stale([0, 1_000], now=9 * 7 * 86400 + 1.5), is_stale([0, 1_000], now=9 * 7 * 86400 + 0.5)
    (True, False)
    """
    return max(modified_ms) / 1000 + STALE_AFTER.total_seconds() < now


def _remove_stale_jobs(client: MonolithKazooClient, now: float) -> None:
    for job in client.get_children(BASE_PATH):
        path = f"{BASE_PATH}/{job}"
        try:
            children, stat = client.get_children(path, include_data=True)
            stats = [client.get(f"{path}/{child}")[1] for child in children]
            has_live_process = any(each.ephemeralOwner for each in stats)
            if not has_live_process and is_stale([each.mtime for each in [stat, *stats]], now):
                client.delete(path, recursive=True)
                _log.info("zookeeper: removed %s, which nothing has touched for nine weeks", path)
        except NoNodeError:  # another process removes it
            continue
        except KazooException as err:
            _log.warning("zookeeper: cannot clean up %s: %r", path, err)
