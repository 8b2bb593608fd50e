"""Updates of rows and dense weights by ranks that make the same steps, also without a batch of their own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from monolith.errors import OutOfRangeError
from monolith.train._dense_step import DenseStep
from monolith.train._table_pipeline import TablePipeline, Waiting
from monolith.train.strategies.rank_steps import RankUpdate

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch.nn import Parameter
    from torch.optim import Optimizer

    from monolith.nn import BatchContext, Embeddings
    from monolith.nn.embeddings import GradientStep
    from monolith.train._dense_step import StepGradients
    from monolith.train._table_pipeline import PipelineConfig
    from monolith.train.input.feed import BatchFeed
    from monolith.train.strategies.rank_steps import RankSteps


class DenseAveraged(DenseStep):
    """Dense weights that every rank updates by its own optimizers, with averaged gradients.

    A weight that the batches of some ranks did not use has the gradients of the others; one that no rank has used has
    none, so that optimizers skip it as they do in one process.
    """

    in_step = True

    def __init__(self, optimizers: Sequence[Optimizer], steps: RankSteps) -> None:
        super().__init__(optimizers)
        self._steps = steps

    def combine(self, gradients: StepGradients) -> None:
        """Averages the gradients over all ranks; a step that any rank refuses is refused by all."""
        num_pushes = gradients.num_pushes if self._steps.shares_rows else 0  # pushes to servers are not followed
        update = RankUpdate(gradients.reached, num_pushes, has_dense=bool(gradients.weights))
        self._steps.update(update, gradients.weights, gradients.why_refused())

    def follow(self, weights: Sequence[Parameter]) -> RankUpdate | None:
        """Makes a step without a batch, with the mean gradient of the others; None if no rank has a batch."""
        return self._steps.follow_step(weights)


class _Followed(list["GradientStep"]):
    """Updates of other ranks in the place of this one's own, which had no batch in that step."""

    def __init__(self, number: int, step: int) -> None:
        super().__init__()
        self.number = number
        self.step = step

    def __bool__(self) -> bool:
        return self.number > 0


class RankPipeline(TablePipeline):
    """Orders reads and updates of the tables of one rank. Only the training thread may use it.

    It keeps the order of collective calls even if the input of this rank ends before the others'. A rank is *engaged*
    in a step while it has a batch in its window, or an update of its own that was postponed. Then it makes every call
    in order: a read without ids if it has no batch to read for. A rank that is not engaged makes no calls, and follows
    those of the others, whatever they are, until the others have made the step.
    """

    def __init__(self, settings: PipelineConfig, steps: RankSteps) -> None:
        super().__init__(settings)
        self._steps = steps
        self._embeddings: Sequence[Embeddings] = ()
        self._has_ended = False
        self._modules: Sequence[Embeddings] = ()
        """Modules for which batches are read ahead."""

    def attach(self, embeddings: Sequence[Embeddings]) -> None:
        """Sets the modules of the model that have tables."""
        self._embeddings = embeddings

    @property
    def needs_batch(self) -> bool:
        """Returns False: a rank without a batch follows the others."""
        return False

    def begin_input(self) -> None:
        """Starts another input after the previous one has ended."""
        self._has_ended = False

    def next_batch(self, feed: BatchFeed) -> BatchContext | None:
        """Returns the next batch; None: this rank has none, and follows the others in this step."""
        if not self._is_ahead:
            return self._take(feed)
        while len(self._window) <= self._settings.prefetch:
            self._window.append(Waiting(self._take(feed)))
        if not self._is_engaged():
            self._leave_to_others()
            return None
        for waiting in self._window:
            self._read(waiting)
        first = self._window.popleft()
        self._start_due_pushes()
        if first.batch_context is None:
            return None
        self._wait_for(first)
        return first.batch_context

    def push_nothing(self, number: int, step: int) -> None:
        """Follows the updates of a step of other ranks: now, or when they were postponed to."""
        followed = _Followed(number, step)
        if self._settings.postpush:
            self._postponed.append(followed)
        else:
            self._begin(followed)

    def _take(self, feed: BatchFeed) -> BatchContext | None:
        if self._has_ended:
            return None
        try:
            return feed.take()
        except OutOfRangeError:
            self._has_ended = True
            return None

    def _is_engaged(self) -> bool:
        has_batch = any(waiting.batch_context is not None for waiting in self._window)
        return has_batch or any(postponed and not isinstance(postponed, _Followed) for postponed in self._postponed)

    def _leave_to_others(self) -> None:
        """Follows all further calls of the step instead of making its own in order."""
        self._window.popleft()
        for waiting in self._window:
            waiting.reads = []
        left = max(0, self._settings.push_delay - 1)
        while len(self._postponed) > left:
            self._note(self._postponed.popleft())

    def _read(self, waiting: Waiting) -> None:
        if waiting.reads is not None:
            return
        if waiting.batch_context is not None:
            self._modules = waiting.batch_context.planned
            super()._read(waiting)
        else:
            for embeddings in self._modules if self._steps.shares_rows else ():
                embeddings.read_nothing()
            waiting.reads = []

    def _begin(self, steps: Sequence[GradientStep]) -> None:
        if isinstance(steps, _Followed):
            for pending in [self._steps.follow() for _ in range(steps.number)]:
                pending.result()
            self._note(steps)
        else:
            super()._begin(steps)

    def _note(self, steps: Sequence[GradientStep]) -> None:
        """Keeps the step counts of the modules equal on all ranks, as reads are identified by their step."""
        if isinstance(steps, _Followed):
            for embeddings in self._embeddings:
                embeddings.follow_step(steps.step)
