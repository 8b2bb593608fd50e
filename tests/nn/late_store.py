"""A store that answers when a test says so: the rows of this process behind a wire on which calls wait in their order.

No thread and no clock: whoever waits for an answer has all calls up to it answered, and is written down.
"""

from __future__ import annotations

import random
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, TypeVar

from torch import Tensor

from monolith.tables import Applied, LocalStore, Pending, Plan, Rows, TableConfig, Traits, Update
from monolith.tables.local.cut import LocalCut
from monolith.tables.local.store import LocalWorkerSession

T = TypeVar("T")


class LateCall(Generic[T]):
    """A `Pending` whose call is made when the wire gets to it."""

    def __init__(self, wire: Wire, name: str, call: Callable[[], T]) -> None:
        self.wire, self.name, self.call = wire, name, call
        self.outcome: tuple[T] | Exception | None = None

    def done(self) -> bool:
        return self.outcome is not None

    def result(self, timeout_seconds: float | None = None) -> T:
        if self.outcome is None:
            self.wire.wait_for(self)
        assert self.outcome is not None
        if isinstance(self.outcome, Exception):
            raise self.outcome
        return self.outcome[0]

    def answer(self) -> None:
        failure = self.wire.failures.get(self.name)
        try:
            self.outcome = (self.call(),) if failure is None else failure
        except Exception as error:  # noqa: BLE001 - it is the answer
            self.outcome = error


class Wire:
    """What was sent and not answered yet. Calls are named by what they do and the number of their batch: "read 3"."""

    def __init__(self) -> None:
        self.unanswered: deque[LateCall[Any]] = deque()
        self.sent: list[str] = []
        self.previous: list[int] = []
        """The push before it that each push has named."""
        self.together: list[list[str]] = []
        """What was on its way, with each call that was sent."""
        self.waited_for: list[str] = []
        self.threads: set[str] = set()
        """Who sent."""
        self.failures: dict[str, Exception] = {}
        """Call -> the answer that it gets in place of its own."""
        self.interrupted: set[str] = set()
        """Calls whose waiting is interrupted, once each."""
        self.after_sending: Callable[[], None] = lambda: None

    def send(self, name: str, call: Callable[[], T]) -> LateCall[T]:
        made = LateCall(self, name, call)
        self.unanswered.append(made)
        self.sent.append(name)
        self.threads.add(threading.current_thread().name)
        self.together.append([each.name for each in self.unanswered])
        self.after_sending()
        return made

    def wait_for(self, call: LateCall[Any]) -> None:
        self.waited_for.append(call.name)
        if call.name in self.interrupted:
            self.interrupted.remove(call.name)
            raise KeyboardInterrupt
        while call.outcome is None:
            self.answer_first()

    def answer_first(self) -> None:
        self.unanswered.popleft().answer()

    def answer_all(self) -> None:
        while self.unanswered:
            self.answer_first()

    def answer_at_once(self) -> None:
        self.after_sending = self.answer_all

    def answer_at_random(self, seed: int) -> None:
        chance = random.Random(seed)  # noqa: S311 - a fixed sequence

        def answer_some() -> None:
            for _ in range(chance.randint(0, len(self.unanswered))):
                self.answer_first()

        self.after_sending = answer_some


class LateJoined(LocalWorkerSession):
    """Sends what it is told."""

    _store: LateStore

    def read(self, plan: Plan, *, after: int, step: int, train: bool) -> Pending[Rows]:
        now = super().read
        name = f"read {plan.stamp.seq}" if train else "look"
        return self._store.wire.send(name, lambda: now(plan, after=after, step=step, train=train).result())

    def apply(self, updates: Sequence[tuple[Plan, Tensor]], rule: Update) -> Pending[Applied]:
        now = super().apply
        self._store.wire.previous.append(rule.previous)
        name = f"push {max(plan.stamp.seq for plan, _ in updates)}"
        return self._store.wire.send(name, lambda: now(updates, rule).result())

    def discard(self, plan: Plan) -> None:
        now = super().discard
        self._store.wire.send(f"drop {plan.stamp.seq}", lambda: now(plan))

    def cut(self, *, timeout_seconds: float = 600.0) -> LocalCut:
        self._store.wire.answer_all()
        return super().cut(timeout_seconds=timeout_seconds)


class LateStore(LocalStore):
    """Rows that seem to be elsewhere."""

    traits = Traits(remote=True)

    def __init__(self, configs: Mapping[str, TableConfig], wire: Wire | None = None) -> None:
        super().__init__(configs)
        self.wire = Wire() if wire is None else wire

    def join(self, worker: int) -> LateJoined:
        self.wire.answer_all()
        return LateJoined(self, worker)
