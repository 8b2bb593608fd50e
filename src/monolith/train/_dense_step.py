"""Updates of the dense weights of a session: in this process, by their optimizers, or on servers.

On servers step k starts these operations in this order, asynchronously::

    pull                      weights for step k; fetched during step k - 1 if weights are prefetched
    fetch                     prefetched weights only: those for step k + 1
    push of step k - 1        postponed pushes only
    forward, backward
    push of step k            and waits for it, unless it is postponed

A server answers the calls of a worker in order, so that the weights of a step do not depend on timing: they lack no
update of their own worker; one with prefetched weights, one with postponed pushes, two with both.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from monolith.config import Config, config
from monolith.errors import FailedPreconditionError, InvalidArgumentError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torch.nn import Parameter
    from torch.optim import Optimizer

    from monolith.ps.dense import DenseClient, PreparedPush
    from monolith.tables import BatchStamp, Pending
    from monolith.train.strategies.rank_steps import RankUpdate


@config
class DenseConfig(Config):
    """How dense weights and gradients move between servers and workers. Without servers no field may be set."""

    prefetch: bool = False
    """Fetch the weights of the next step during this one; each step lacks one update more of its own worker."""
    postpush: bool = False
    """Push the gradients of a step during the next one; each step lacks one update more of its own worker."""
    partition: bool = True
    """Divide weights above 128 KiB among the servers, unless their optimizer needs the full tensor."""


def require_servers(settings: DenseConfig, servers: object | None) -> None:
    """Refuses settings that would do nothing."""
    for name in ("prefetch", "postpush", "partition"):
        if servers is None and getattr(settings, name) != getattr(DenseConfig(), name):
            raise InvalidArgumentError(
                f"dense.{name} (enable_variable_{name}) is about weights that servers keep, and these are in this"
                " process; give the trainer its servers, or leave it out"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class StepGradients:
    """The gradients that a step is about to apply, for the other ranks of a synchronous run."""

    weights: Sequence[Parameter]
    """The dense weights that the optimizers move; those that this batch did not reach have no gradient."""
    num_pushes: int
    """Updates of rows that come with it."""
    reached: int
    """The global step after it."""
    why_refused: Callable[[], str | None]
    """Checks for values that must not be applied, such as NaN; returns the reason, or None."""


class DenseStep:
    """The update of dense weights: by the optimizers of this process, alone. Only the training thread may use it."""

    in_step = False
    """Whether other ranks make the same steps, so that `combine` is needed."""

    def __init__(self, optimizers: Sequence[Optimizer]) -> None:
        self._optimizers = optimizers

    def join(self, worker: int) -> Mapping[int, BatchStamp | None]:  # noqa: ARG002 - for overriding methods
        """Starts an incarnation of a worker.

        Returns:
            Server -> the worker's last batch in its dense weights, None if there was none. Servers that store none of
            the weights are omitted.
        """
        return {}

    @property
    def in_flight(self) -> int:
        """Steps of which some server has not confirmed its update."""
        return 0

    def begin(self) -> None:
        """Provides the weights for this step. Call it before the model computes."""

    def combine(self, gradients: StepGradients) -> None:
        """Combines the clipped gradients of this process with those of the other ranks.

        Raises:
            InvalidArgumentError: the gradients must not be applied; nothing has changed.
        """

    def follow(self, weights: Sequence[Parameter]) -> RankUpdate | None:  # noqa: ARG002 - for overriding methods
        """Takes part in a step of other processes, without a batch; the weights get the gradients of the others.

        Returns:
            Content of the step; None if no other process has a batch.
        """
        return None

    def step(self, stamp: BatchStamp | None, global_step: int) -> None:  # noqa: ARG002 - for overriding methods
        """Updates the weights with the computed gradients."""
        for optimizer in self._optimizers:
            optimizer.step()

    def settle(self) -> None:
        """Waits for everything in flight, and discards prefetched weights."""


class ServerDense(DenseStep):
    """Dense weights that servers update; this process has copies of them."""

    def __init__(self, client: DenseClient, optimizers: Sequence[Optimizer], settings: DenseConfig) -> None:
        super().__init__(optimizers)
        self._client = client
        self._settings = settings
        self._postponed: PreparedPush | None = None
        self._pending: Pending[int] | None = None

    def join(self, worker: int) -> Mapping[int, BatchStamp | None]:
        """Returns the last batches as reported by the servers."""
        applied = self._client.join(worker).applied_by_server
        return {server: applied[server] for server, pieces in enumerate(self._client.layout.servers) if pieces}

    @property
    def in_flight(self) -> int:
        """Number of postponed pushes and pushes in flight."""
        return (self._postponed is not None) + (self._pending is not None)

    def begin(self) -> None:
        """Brings the weights, and begins what was postponed."""
        if self._client.assign() is None:
            if self._postponed is None or self._settings.prefetch:
                self._client.pull()
            else:
                self._client.fetch()
        if self._settings.prefetch:
            self._client.fetch()
        self._begin_push()
        if not self._settings.prefetch:
            self._client.assign()

    def step(self, stamp: BatchStamp | None, global_step: int) -> None:
        """Pushes, or postpones the push."""
        if stamp is None:
            raise FailedPreconditionError("dense weights: a batch for servers needs a stamp; let a session make it")
        self._wait_for_push()
        for optimizer in self._optimizers:
            # Schedules of torch warn of steps that they have not seen; these are made on servers.
            optimizer._opt_called = True  # type: ignore[attr-defined]  # noqa: SLF001
        self._postponed = self._client.prepare_push(stamp, step=global_step)
        if not self._settings.postpush:
            self._begin_push()
            self._wait_for_push()

    def settle(self) -> None:
        """Waits for all pushes; the next step pulls."""
        self._begin_push()
        self._wait_for_push()
        self._client.drop_fetch()

    def _begin_push(self) -> None:
        postponed, self._postponed = self._postponed, None
        if postponed is not None:
            self._pending = self._client.send(postponed)

    def _wait_for_push(self) -> None:
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.result()
