"""`validate`: predicts, then trains on each batch, in the order of time, as a served model sees its examples.

A trained model and any number of serving copies of it process one stream. Before the model trains on a batch, every
copy predicts it with the rows and weights that it has loaded so far; its rule sets the sync interval, in seconds of
event time. So one run measures the value of freshness; a rule that syncs only once stands for a model trained in
batches.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import field
from typing import Any

import torch
from torch import Tensor

from monolith.config import Config, config, require_at_least
from monolith.errors import FailedPreconditionError, InvalidArgumentError
from monolith.nn import TableDefaults, use_table_defaults
from monolith.train import REQUEST_TIME, Session, Task, times_of
from monolith.validation.outcome import CopyOutcome, ValidationOutcome, WindowedScores
from monolith.validation.serving_copy import ServingCopy, SyncClock, SyncRule


@config
class ValidationConfig(Config):
    """Keyword arguments of `validate`."""

    copies: Mapping[str, SyncRule] = field(default_factory=lambda: {"served": SyncRule()})
    """Name -> sync rule of a serving copy; all copies follow one trained model."""
    window_seconds: int = 86_400
    """Length of a window in event time; metrics are computed per window."""
    warm_up_seconds: float = 0.0
    """Event time from the first example on that is trained but not measured."""
    evict_every_seconds: float | None = None
    """Event time within which every row is checked once and removed if expired; 0: rows stay. None: an hour for each
    day of a table's shortest `expire_days`."""
    disorder_seconds: float = 3600.0
    """How much older than previous batches a batch may be; older ones are rejected."""
    max_examples: int | None = None
    """Stop after the batch that reaches this number of examples; None: at the end of the stream."""
    head: str | None = None
    """Name of the prediction to measure, if the task returns several by name."""
    seed: int = 0
    """Seed of torch, set before the model and before each copy is created."""
    on_batch: Callable[[int], object] | None = None
    """Called after each batch with the number of its examples."""

    def __post_init__(self) -> None:
        require_at_least(self, 1, "window_seconds")
        require_at_least(self, 0, "warm_up_seconds", "disorder_seconds")
        if self.max_examples is not None:
            require_at_least(self, 1, "max_examples")
        if self.evict_every_seconds is not None:
            require_at_least(self, 0, "evict_every_seconds")
        if not self.copies:
            raise ValueError("validate: copies must name at least one, got none")
        for name, rule in self.copies.items():
            if not isinstance(rule, SyncRule):
                raise TypeError(f"validate: copy {name!r} must be a SyncRule, got {rule!r}")
            if math.isinf(rule.rows_seconds) and self.warm_up_seconds == 0:
                raise ValueError(
                    f"validate: copy {name!r} takes rows over once, when measuring begins, and there"
                    " would be none yet; give warm_up_seconds"
                )


def validate(make_task: Callable[[], Task], batches: Iterable[Any] | None = None, **options: Any) -> ValidationOutcome:
    """Predicts every example before training on it, and returns the metrics of the predictions.

    Args:
        make_task: Class or function that creates the task, once for training and once for each copy. The predictions of
            its `model_fn` must be probabilities, and labels 0 or 1.
        batches: Batches in the order of time, with the column ``req_time``; None: the input of the task.
        options: The fields of `ValidationConfig`, by name.

    Raises:
        InvalidArgumentError: batches have no times, are too far out of order, or end before anything was measured; or
            predictions are not probabilities.
    """
    settings = ValidationConfig(**options)
    with torch.random.fork_rng(devices=[]), ExitStack() as closing:
        torch.manual_seed(settings.seed)
        task = make_task()
        with use_table_defaults(TableDefaults(evict_every_seconds=settings.evict_every_seconds)):
            session = closing.enter_context(Session(task))
        run = _Run(make_task, session, settings)
        closing.callback(run.close)
        for batch in task.input_fn("train") if batches is None else batches:
            run.step(batch)
            if settings.max_examples is not None and run.examples >= settings.max_examples:
                break
        return run.outcome()


class _Copy:
    """A serving copy, its clock and its scores."""

    def __init__(self, served: ServingCopy, rule: SyncRule, scores: WindowedScores, *, begin: int) -> None:
        self.served = served
        self.rule = rule
        self.scores = scores
        self._clock = SyncClock(rule, begin=begin)

    def take(self, time: int) -> None:
        """Loads what is due before an example of this time is predicted."""
        due = self._clock.due(time)
        if due.rows:
            self.served.take_rows()
        if due.dense:
            self.served.take_dense()
        if math.isinf(self.rule.rows_seconds):
            self.served.stand_still()

    def outcome(self) -> CopyOutcome:
        total, windows, served = self.scores.close(), tuple(self.scores.windows), self.served
        return CopyOutcome(
            rule=self.rule, windows=windows, total=total, num_takes=served.num_takes, bytes_taken=served.bytes_taken
        )


class _Run:
    """One pass over the stream. Owned by the training thread."""

    def __init__(self, make_task: Callable[[], Task], session: Session, settings: ValidationConfig) -> None:
        self._make_task = make_task
        self._session = session
        self._settings = settings
        self._copies: dict[str, _Copy] = {}
        """Created when measuring begins."""
        self._begin: int | None = None
        self._newest = 0
        self._look_due = 0.0
        self._evicted = self._rows = self._memory = 0
        self.examples = 0
        """Number of examples trained so far."""

    def step(self, batch: Any) -> None:
        times = self._times(batch)
        if self._begin is None:
            self._begin = int(times.min()) + math.ceil(self._settings.warm_up_seconds)
        measured = times >= self._begin
        if bool(measured.any()):
            self._predict(batch, times, measured)
        self._session.run(batch)
        self.examples += len(times)
        self._newest = max(self._newest, int(times.max()))
        if self._newest >= self._look_due:
            self._measure_tables()
            self._look_due = self._newest + self._settings.window_seconds
        if self._settings.on_batch is not None:
            self._settings.on_batch(len(times))

    def outcome(self) -> ValidationOutcome:
        if not self._copies:
            last = "the stream has no examples" if self._begin is None else f"the last example is of {self._newest}"
            raise InvalidArgumentError(
                f"validate: nothing was measured: {last}, and measuring begins at {self._begin}; give"
                " more examples, or a smaller warm_up_seconds"
            )
        self._measure_tables()
        return ValidationOutcome(
            copies={name: copy.outcome() for name, copy in self._copies.items()},
            examples=self.examples,
            rows=self._rows,
            memory_bytes=self._memory,
            evicted=self._evicted,
        )

    def close(self) -> None:
        for copy in self._copies.values():
            copy.served.stand_still()

    def _times(self, batch: Any) -> Tensor:
        """Returns Unix seconds [B]."""
        times = times_of(batch)
        if times is None:
            raise InvalidArgumentError(
                f"validate: batches must have the column {REQUEST_TIME!r}, Unix seconds of each example,"
                f" got {', '.join(map(repr, batch)) if isinstance(batch, Mapping) else type(batch).__name__}"
            )
        times = times.reshape(-1).to("cpu", torch.int64)
        newest = int(times.max())
        if newest < self._newest - self._settings.disorder_seconds:
            raise InvalidArgumentError(
                f"validate: batches must be in the order of time: one ends at {newest},"
                f" {self._newest - newest} seconds earlier than a previous one; sort by {REQUEST_TIME!r}, or raise"
                " disorder_seconds"
            )
        return times

    def _predict(self, batch: Any, times: Tensor, measured: Tensor) -> None:
        if not self._copies:
            self._copies = dict(self._made_copies())
        times = times[measured]
        oldest = int(times.min())
        self._session.settle()
        for name, copy in self._copies.items():
            copy.take(oldest)
            spec = copy.served.look(batch)
            predictions = self._column(name, "predictions", spec.predictions, len(measured))
            labels = self._column(name, "label", spec.label, len(measured))
            copy.scores.add(times, predictions[measured], labels[measured])

    def _made_copies(self) -> Iterator[tuple[str, _Copy]]:
        settings, begin = self._settings, self._begin
        assert begin is not None  # noqa: S101 - the first batch has set it
        for name, rule in settings.copies.items():
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(settings.seed)
                served = ServingCopy(name, self._make_task, self._session.state)
            seconds, disorder_seconds = settings.window_seconds, settings.disorder_seconds
            scores = WindowedScores(begin=begin, seconds=seconds, disorder_seconds=disorder_seconds)
            yield name, _Copy(served, rule, scores, begin=begin)

    def _column(self, name: str, kind: str, values: Any, num_examples: int) -> Tensor:
        head = self._settings.head
        if isinstance(values, Mapping):
            if head is None or head not in values:
                raise InvalidArgumentError(
                    f"validate: the task returns {kind} of {', '.join(map(repr, values))}; set head"
                    f" to the one to measure, got {head!r}"
                )
            values = values[head]
        elif head is not None:
            raise InvalidArgumentError(
                f"validate: head={head!r} selects one of several {kind}, but the task returns one tensor; leave it out"
            )
        if not isinstance(values, Tensor) or values.numel() != num_examples:
            got = list(values.shape) if isinstance(values, Tensor) else type(values).__name__
            raise FailedPreconditionError(
                f"validate: copy {name!r}: {kind} of Spec must be a tensor with one number for each of"
                f" the {num_examples} examples, got {got}"
            )
        return values.reshape(-1).cpu()

    def _measure_tables(self) -> None:
        stats = [store.stats() for store in self._session.state.stores.values()]
        self._rows = max(self._rows, sum(stat.rows for stat in stats))
        self._memory = max(self._memory, sum(stat.memory_bytes for stat in stats))
        self._evicted = sum(stat.evicted for stat in stats)
