"""Rendezvous of the ranks of one start, at a store that may keep entries of earlier starts.

torchrun keeps one store for all its restarts: an address in it may belong to a dead rank. So every start draws a mark
of its own, and prefixes all its keys with the mark.
"""

from __future__ import annotations

import json
import secrets
import time
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous

if TYPE_CHECKING:
    from monolith.collective._launcher import Launch
    from monolith.collective.key_store import KeyStore

__all__ = ["meet", "meeting_store"]

_POLL_SECONDS = 0.01


def meeting_store(launch: Launch, timeout_seconds: float) -> Any:
    """Returns a store of torch.distributed that only the ranks of this start share.

    Raises:
        RuntimeError: not all ranks joined in time.
        OSError: not all ranks joined in time.
    """
    timeout = timedelta(seconds=timeout_seconds)
    store, _, _ = next(rendezvous("env://", launch.rank, launch.size, timeout=timeout))
    store.set_timeout(timeout)
    mark = meet(store, launch.rank, launch.size, timeout_seconds=timeout_seconds)
    return PrefixStore(f"monolith/{mark}", store)


def meet(store: KeyStore, rank: int, size: int, *, timeout_seconds: float) -> str:
    """Returns the mark of this start, the same on all of its ranks and on no others.

    Rank 0 draws it. The other ranks write a random name under it, and accept the mark when rank 0 has acknowledged that
    name: the rank 0 of an earlier start has ended, so it never acknowledges a new name.

    Args:
        store: Store of the launcher.
        rank: Rank of this process.
        size: Number of ranks.
        timeout_seconds: How long ranks wait for each other.

    Raises:
        RuntimeError: not all ranks joined in time.
        TimeoutError: not all ranks joined in time.
    """
    if rank == 0:
        return _call_others(store, size, timeout_seconds)
    name, greeted = secrets.token_hex(8), ""
    end = time.monotonic() + timeout_seconds
    while time.monotonic() < end:
        if store.check(["monolith/start"]):
            mark = str(store.get("monolith/start").decode())
            if mark != greeted:
                store.set(f"monolith/start/{mark}/{rank}", name)
                greeted = mark
            answer = f"monolith/start/{mark}/all"
            if store.check([answer]) and json.loads(store.get(answer)).get(str(rank)) == name:
                return mark
        time.sleep(_POLL_SECONDS)
    raise TimeoutError(f"rank 0 did not answer within {timeout_seconds:g} s")


def _call_others(store: KeyStore, size: int, timeout_seconds: float) -> str:
    mark = secrets.token_hex(8)
    store.set("monolith/start", mark)
    keys = {str(rank): f"monolith/start/{mark}/{rank}" for rank in range(1, size)}
    if keys:
        store.wait(list(keys.values()), timedelta(seconds=timeout_seconds))
    names = {rank: store.get(key).decode() for rank, key in keys.items()}
    store.set(f"monolith/start/{mark}/all", json.dumps(names))
    return mark
