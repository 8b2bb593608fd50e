"""Decides which versions of a model are loaded: the newest, and those that operators selected."""

from __future__ import annotations

import dataclasses
import logging
import threading
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import torch

from monolith.clock import Clock, SystemClock
from monolith.errors import FailedPreconditionError, NotFoundError, OpError, UnavailableError
from monolith.serving.server.registry import STABLE, ModelRegistry
from monolith.serving.version_watch import VersionWatch

if TYPE_CHECKING:
    from collections.abc import Iterator

    from monolith.serving.promotion.gate import PromotionGate
    from monolith.serving.promotion.promotion import VersionSource
    from monolith.serving.promotion.state import ModelState, PromotionFile
    from monolith.serving.served_model import ServedModel

_log = logging.getLogger(__name__)

COMMAND_SECONDS = 30.0
"""How long a command waits for a version to catch up with the log."""
_LOOK_SECONDS = 0.05


class VersionManager:
    """Loader of the versions of one model, which also frees them. Thread-safe. Must be closed before the registry.

    Without a decision the newest version is served once it is ready and has passed the gate. A version with the label
    ``stable`` is served instead while it has the label.

    `keep` versions stay loaded, the active one and the newest others; versions with a label, canary or shadow stay in
    addition.
    """

    def __init__(
        self,
        name: str,
        source: VersionSource,
        *,
        registry: ModelRegistry,
        file: PromotionFile,
        gate: PromotionGate | None = None,
        keep: int = 1,
        clock: Clock | None = None,
    ) -> None:
        self.name = name
        self.source = source
        self.keep = keep
        self._registry = registry
        self._file = file
        self._gate = gate
        self._clock = clock or SystemClock()
        self._watch = VersionWatch(
            f"model {name!r}", next_version=self._next_version, activate=self._activate, polls=not source.is_fixed
        )
        self._commands = threading.Lock()
        self._lock = threading.RLock()
        # Under the lock:
        self._state = file.state(name)
        self._models: dict[int, ServedModel] = {}
        self._frozen: set[int] = set()
        """Versions loaded as exported."""
        self._passed: set[int] = set()
        """Loaded versions that may answer: they passed the gate, or an operator selected them."""
        self._reserved: set[int] = set()
        """Versions loaded by a command in progress, which may select them."""
        self._start()
        self._watch.start()

    # Commands

    @property
    def state(self) -> ModelState:
        """Decisions of operators."""
        with self._lock:
            return self._state

    @property
    def frozen(self) -> frozenset[int]:
        """Versions loaded as exported."""
        with self._lock:
            return frozenset(self._frozen)

    @contextmanager
    def command(self) -> Iterator[None]:
        """Serializes commands; at the end of one, versions that it loaded and did not select are freed."""
        with self._commands:
            try:
                yield
            finally:
                with self._lock:
                    self._reserved.clear()
                    self._release()
                self._watch.wake()

    def ensure(self, number: int, *, frozen: bool | None = None, answers: bool = True, force: bool = False) -> None:
        """Loads a version for a command, if it is not loaded.

        Args:
            number: Number of the version.
            frozen: Whether it is served as exported instead of following the log; None: unchanged.
            answers: Whether it will answer requests; then it must pass the gate.
            force: Whether to serve it even if it does not pass.

        Raises:
            NotFoundError: the version does not exist.
            FailedPreconditionError: it did not pass the gate.
            UnavailableError: it did not catch up with the log in time.
            OpError: the version cannot be used.
        """
        with self._lock:
            self._reserved.add(number)
            model = self._models.get(number)
            is_fit = model is not None and frozen in (None, number in self._frozen)
            has_passed = is_fit and number in self._passed
        if is_fit and (has_passed or not answers):
            return
        if is_fit and model is not None:
            self._judge(number, model, force=force)
        else:
            self._bring(number, frozen=bool(frozen), answers=answers, force=force)
        with self._lock:
            if answers:
                self._passed.add(number)

    def commit(self, **changes: Any) -> None:
        """Changes the decisions, within a command; at its end versions without a pointer are freed.

        Raises:
            OpError: the change is not possible; nothing has changed.
        """
        with self._lock:
            old, new = self._state, dataclasses.replace(self._state, **changes)
            new = dataclasses.replace(new, frozen=new.frozen & new.pinned())
            try:
                self._apply(new)
                self._file.save(self.name, new)
            except OpError:
                self._apply(old)
                raise
            self._state = new

    def retry_refused(self) -> None:
        """Retries rejected versions after the command."""
        self._watch.retry()
        self._registry.set_refused(self.name, {})

    def close(self) -> None:
        """Stops polling for versions; the registry owns the loaded ones. Idempotent."""
        self._watch.close()

    # At the start

    def _start(self) -> None:
        stable = self._state.labels.get(STABLE)
        try:
            if stable is None:
                self._bring_newest()
            else:
                self._bring_stable(stable)
            self._bring_pinned()
            self._apply(self._state)
        except BaseException:
            self._watch.close()
            raise

    def _bring_stable(self, number: int) -> None:
        """Loads the version with the label ``stable``; no other is served in its place."""
        try:
            self._bring(number, frozen=number in self._state.frozen, answers=False, waits=False)
        except OpError as error:
            raise FailedPreconditionError(
                f"model {self.name!r}: version {number} has the label {STABLE!r}, and cannot be served:"
                f" {error.message}; put it back, or take the label out of the promotion file"
            ) from error
        self._passed.add(number)

    def _bring_newest(self) -> None:
        """Loads the newest version that can be served."""
        first: OpError | None = None
        for number in reversed(self.source.numbers()):
            try:
                self._bring(number, frozen=False, waits=False)
            except OpError as error:
                first = first or error
                self._refuse(number, error)
            else:
                self._passed.add(number)
                return
        raise first or NotFoundError(f"model {self.name!r}: there is no version any more")

    def _bring_pinned(self) -> None:
        """Loads versions that a label, the canary or the shadow points to; drops one that cannot be loaded."""
        for number in sorted(self._state.pinned() - self._models.keys()):
            try:
                self._bring(number, frozen=number in self._state.frozen, answers=False, waits=False)
                self._passed.add(number)
            except OpError as error:
                _log.error("model %r: version %d, which is pinned, is not served: %s", self.name, number, error)
                self._refuse(number, error)
                self._state = self._state.without(number)

    # Loading and freeing

    def _bring(
        self, number: int, *, frozen: bool, answers: bool = True, force: bool = False, waits: bool = True
    ) -> None:
        """Loads a version, and adds it to the others or replaces the same version."""
        model = self._open(number, frozen=frozen)
        try:
            if waits:
                self._require_ready(number, model)
            elif self._gate is not None:
                self._wait_while_catching_up(model)  # else it would be judged before its rows are applied
            if answers:
                self._judge(number, model, force=force)
            with self._lock:
                self._put(number, model, frozen=frozen)
        except BaseException:
            model.close()
            raise

    def _open(self, number: int, *, frozen: bool) -> ServedModel:
        with self._borrowed() as others:
            model: ServedModel = self.source.open(number, frozen=frozen, others=others)
        return model

    @contextmanager
    def _borrowed(self) -> Iterator[list[ServedModel]]:
        """Keeps loaded versions in memory inside the context, since their rows may be shared."""
        with ExitStack() as stack:
            with self._lock:
                entries = [
                    stack.enter_context(self._registry.using(self.name, version=number)) for number in self._models
                ]
            yield [entry.model for entry in entries]

    def _put(self, number: int, model: ServedModel, *, frozen: bool) -> None:
        if number in self._models:
            self._registry.replace(self.name, model)
        else:
            self._registry.add(self.name, model)
        self._models[number] = model
        (self._frozen.add if frozen else self._frozen.discard)(number)
        self._watch.retry(number)
        self._registry.set_refused(self.name, self._watch.refused)

    def _judge(self, number: int, model: ServedModel, *, force: bool = False) -> None:
        if self._gate is None:
            return
        with ExitStack() as stack:
            against = None
            if self._models:
                against = stack.enter_context(self._registry.using(self.name)).model
            verdict = self._gate.judge(model, kind="export", against=None if against is model else against)
        if verdict.refused is None:
            return
        problem = f"model {self.name!r}: version {number} did not pass the gate: {verdict.refused}"
        if not force:
            raise FailedPreconditionError(problem)
        _log.warning("%s; it is served all the same, as it was forced", problem)

    def _require_ready(self, number: int, model: ServedModel) -> None:
        end = self._clock.monotonic() + COMMAND_SECONDS
        while not model.is_ready:
            if self._watch.stopped.wait(_LOOK_SECONDS) or self._clock.monotonic() > end:
                raise UnavailableError(
                    f"model {self.name!r}: version {number} was not ready within {COMMAND_SECONDS:g} s:"
                    f" {model.why_not_ready}"
                )

    def _wait_while_catching_up(self, model: Any) -> None:
        while getattr(model, "is_catching_up", False) and not self._watch.stopped.wait(_LOOK_SECONDS):
            pass

    def _kept(self, numbers: set[int]) -> set[int]:
        """Returns which versions stay: the active one, the newest others, and those with a pointer."""
        stable = self._state.labels.get(STABLE)
        newest = sorted(numbers - (self._watch.refused.keys() - self._models.keys()) - {stable}, reverse=True)
        others = self.keep - (stable is not None)
        return ((self._state.pinned() | self._reserved) & numbers) | set(newest[:others])

    def _release(self) -> None:
        for number in self._models.keys() - self._kept(set(self._models)):
            self._registry.remove(self.name, number)
            del self._models[number]
            self._frozen.discard(number)
            self._passed.discard(number)

    def _apply(self, state: ModelState) -> None:
        """Applies the decisions to the registry. Idempotent."""
        for label, number in state.labels.items():
            self._registry.set_label(self.name, label, number)
        self._registry.set_canary(self.name, state.canary)
        self._registry.set_shadow(self.name, state.shadow)
        for label in self._registry.labels(self.name).keys() - state.labels.keys():
            self._registry.set_label(self.name, label, None)

    def _refuse(self, number: int, error: OpError) -> None:
        self._watch.refuse(number, error.message)
        self._registry.set_refused(self.name, self._watch.refused)

    # Newer versions

    def _next_version(self) -> int | None:
        """Returns the newest wanted version that is not loaded; once all are loaded, unwanted ones are freed.

        Frozen versions that are to follow the log again come last.
        """
        numbers = self.source.numbers()
        with self._lock:
            missing = self._kept({*numbers, *self._models}) - self._models.keys()
            if not missing:
                self._release()
            thawed = self._frozen - self._state.frozen
            return max((missing or thawed) - self._watch.refused.keys(), default=None)

    def _activate(self, number: int) -> None:
        """Serves a version once it is ready and has passed, unless it is no longer wanted by then."""
        torch.set_num_threads(1)  # of this thread; leaves the cores to requests
        try:
            self._put_when_ready(number)
        except OpError as error:
            self._registry.set_refused(self.name, {**self._watch.refused, number: error.message})
            raise

    def _put_when_ready(self, number: int) -> None:
        model = self._open(number, frozen=False)
        is_put = False
        try:
            while not model.is_ready and self._is_due(number):
                self._watch.stopped.wait(_LOOK_SECONDS)
            if self._is_due(number):
                self._judge(number, model)
                with self._lock:
                    is_put = self._is_due(number) and not self._watch.is_given_up
                    if is_put:
                        self._put(number, model, frozen=False)
                        self._passed.add(number)
        finally:
            if not is_put:
                model.close()

    def _is_due(self, number: int) -> bool:
        with self._lock:
            is_wanted = number in self._kept({number, *self._models})
            is_here = number in self._models and (number not in self._frozen or number in self._state.frozen)
            return is_wanted and not is_here and not self._watch.stopped.is_set()
