"""How the ranks of one start find each other, where the place they meet at remembers earlier starts.

torchrun keeps one store for all its restarts: what a rank reads there may be the address of one that is dead. So
every start has a mark of its own, and all that ranks tell each other stands under it.
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
    """What the ranks of this start, and no others, tell each other: a store of torch.distributed.

    Raises:
        RuntimeError: not all of them came.
        OSError: the same.
    """
    timeout = timedelta(seconds=timeout_seconds)
    store, _, _ = next(rendezvous("env://", launch.rank, launch.size, timeout=timeout))
    store.set_timeout(timeout)
    mark = meet(store, launch.rank, launch.size, timeout_seconds=timeout_seconds)
    return PrefixStore(f"monolith/{mark}", store)


def meet(store: KeyStore, rank: int, size: int, *, timeout_seconds: float) -> str:
    """The mark of this start, the same on all of its ranks and on no others.

    Rank 0 draws it. The others say under it who they are, and take it when rank 0 has answered to just that: the mark
    of an earlier start, whose rank 0 is gone, is never answered, or was to another.

    Args:
        store: Where they meet.
        rank: Of this process.
        size: Number of ranks.
        timeout_seconds: How long they may keep each other waiting.

    Raises:
        RuntimeError: not all came.
        TimeoutError: the same.
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
