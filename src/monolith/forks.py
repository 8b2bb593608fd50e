"""Forks of a process that computes: a child gets whole objects and waits for no thread of its parent.

A child has the thread that forked and no other. Whatever another thread held stays locked there, so a fork waits for
the locks named here, as it does for calls into the C++ core (core/base/forks.h). Threads that torch computes with are
waited for in vain as well: like a worker of a `DataLoader`, a child computes with one.
"""

from __future__ import annotations

import os
import weakref
from typing import TYPE_CHECKING, TypeVar

import torch

if TYPE_CHECKING:
    import threading

    AnyLock = TypeVar("AnyLock", threading.Lock, threading.RLock)

__all__ = ["at_rest_in_forks"]

_locks: weakref.WeakSet[threading.Lock | threading.RLock] = weakref.WeakSet()
_held: list[threading.Lock | threading.RLock] = []
"""By the fork that is under way."""


def at_rest_in_forks(lock: AnyLock) -> AnyLock:
    """The lock itself. From now on a fork waits for it, so that a child finds what it guards whole, and the lock free.

    Not for a lock that is held while a process is forked by the very thread.
    """
    _locks.add(lock)
    return lock


def _hold_all() -> None:
    """Takes all locks, and waits for one only while it holds no other: no order among them is asked of anybody."""
    locks = list(_locks)
    while locks:
        locks[0].acquire()
        missed = next((n for n, lock in enumerate(locks[1:], 1) if not lock.acquire(blocking=False)), None)
        if missed is None:
            break
        for lock in locks[:missed]:
            lock.release()
        locks.insert(0, locks.pop(missed))
    _held[:] = locks


def _release_all() -> None:
    held = list(_held)
    _held.clear()
    for lock in held:
        lock.release()


def _go_on_in_child() -> None:
    _release_all()
    torch.set_num_threads(1)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_hold_all, after_in_parent=_release_all, after_in_child=_go_on_in_child)
