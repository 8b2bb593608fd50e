"""Waits for the progress of an online tree, checks that no process ends by itself, and waits for its end."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING

from system.crash.online_tree import INTERRUPTED, JOINERS, PRODUCER, TRAINER

if TYPE_CHECKING:
    from collections.abc import Callable

    from system.crash.online_tree import OnlineTree

__all__ = ["StuckError", "TreeWatch"]

_POLL_SECONDS = 0.002


class StuckError(Exception):
    """A tree hangs, or one of its processes has failed."""


class TreeWatch:
    """Monitors the processes of a tree. Used by the thread that started them.

    Args:
        tree: The processes.
        longest_seconds: Time without progress after which the tree counts as hung.
    """

    def __init__(self, tree: OnlineTree, longest_seconds: float) -> None:
        self._tree = tree
        self._longest_seconds = longest_seconds
        self._ending: str | None = None
        """The process that was requested to stop."""

    def start(self) -> None:
        """Starts all processes."""
        self.start_readers()
        self._tree.start(PRODUCER)

    def start_readers(self) -> None:
        """Starts all processes but the producer, and waits until the trainer has begun the log that readers follow."""
        tree = self._tree
        for role in (*tree.roles, *tree.helpers):
            if role != PRODUCER:
                tree.start(role)
        self.wait(self.are_ready, "the beginning of the log")

    def chunks(self) -> int:
        """Returns the number of chunks that both readers have."""
        return min(int(self._tree.seen(role).get("chunks", 0)) for role in self._tree.readers)

    def are_ready(self) -> bool:
        """Returns whether both readers report that they have caught up with the log."""
        return all(self._tree.seen(role).get("ready") for role in self._tree.readers)

    def end(self) -> None:
        """Processes the rest of the events, then stops one process after another, in the order of the data flow.

        Raises:
            StuckError: one hangs, fails, or ends with another status than it should.
        """
        tree = self._tree
        tree.allow(tree.traffic.num_chunks)
        self.wait(self._has_everything, "the last events")
        self.wait(lambda: tree.has_ended(PRODUCER), "the end of the producer")
        for role in (*JOINERS, TRAINER, *tree.helpers, *tree.readers):
            self._ending = role
            tree.ask_to_end(role)
            self.wait(lambda role=role: tree.has_ended(role), f"the end of {role}")  # type: ignore[misc]
            status = tree.told(role)["result"].get("status", 0)
            if status != (INTERRUPTED if role == TRAINER else 0):
                raise StuckError(f"{role} ended with status {status}; {tree.last_words(role)}")

    def wait(self, is_there: Callable[[], bool], what: str) -> None:
        """Waits for a condition.

        Raises:
            StuckError: the condition did not hold in time, or a process has failed.
        """
        begun, news = time.monotonic(), ""
        while not is_there():
            self.look()
            now = json.dumps([self._tree.told(role) for role in self._tree.lives])
            if now != news:
                begun, news = time.monotonic(), now
            if time.monotonic() - begun > self._longest_seconds:
                raise StuckError(f"{what} did not happen: no progress for {self._longest_seconds:g} s; reported: {now}")
            time.sleep(_POLL_SECONDS)

    def look(self) -> None:
        """Checks that no process has ended by itself.

        Raises:
            StuckError: a process has ended.
        """
        tree = self._tree
        for role in tree.lives:
            try:
                told = tree.told(role)
            except RuntimeError as error:
                raise StuckError(f"{role}: {error}") from error
            if self._ending is None and role != PRODUCER and tree.has_ended(role):
                raise StuckError(f"{role} ended: {told.get('result')}; {tree.last_words(role)}")

    def _has_everything(self) -> bool:
        tree = self._tree
        return all(tree.seen(role).get("events") == tree.traffic.num_events for role in tree.readers)
