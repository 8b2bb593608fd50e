"""Forks of a process that computes: a child gets consistent objects and waits for no thread of its parent.

A child has only the thread that forked. A lock that another thread held would stay locked there, so a fork waits for
the locks registered here, as it does for calls into the C++ core (core/base/forks.h). The threads of torch do not exist
in a child either: like a worker of a `DataLoader`, a child computes with one thread.
"""

from __future__ import annotations

import os
import weakref
from typing import TYPE_CHECKING, TypeVar

import torch

if TYPE_CHECKING:
    import threading

    AnyLock = TypeVar("AnyLock", threading.Lock, threading.RLock)

__all__ = ["fork_safe"]

_locks: weakref.WeakSet[threading.Lock | threading.RLock] = weakref.WeakSet()
_held: list[threading.Lock | threading.RLock] = []
"""Locks held by the fork in progress."""


def fork_safe(lock: AnyLock) -> AnyLock:
    """Registers and returns a lock: forks wait for it, so that a child finds its data consistent and the lock free.

    Not for a lock that the forking thread holds while it forks.
    """
    _locks.add(lock)
    return lock


def _hold_all() -> None:
    """Acquires all locks, and waits for one only while it holds no other: callers need no lock order."""
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
