"""A served model: its versions and answers, and why it is not ready."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from monolith.export import DEFAULT_SIGNATURE, Signature

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

    from monolith.deltalog.follow import Follower, Staleness


class ModelVersion(NamedTuple):
    """Version of an answer: no row and no weight that it used is older than this."""

    export: int
    """Version of the export."""
    dense: int
    """Number of the increment of dense weights in the delta log; -1: those of the export."""
    sparse: dict[str, int]
    """Part of the delta log -> its last applied increment of rows; empty: rows are those of the export."""


class Prediction(NamedTuple):
    """An answer."""

    outputs: dict[str, Tensor]
    """Outputs by name; a single prediction is called ``predictions``."""
    version: ModelVersion
    num_ids: int = 0
    """Number of ids looked up."""
    num_found: int = 0
    """Number of those ids that have a row."""


class ShownModel(Protocol):
    """The state of a model, for metrics and health checks."""

    @property
    def version(self) -> ModelVersion:
        """Version of the next answer."""

    @property
    def why_not_ready(self) -> str | None:
        """Reason as a sentence; None: ready. Requests are answered in any case."""

    @property
    def is_ready(self) -> bool:
        """Whether it is up to date with training, except for a small lag."""
        return self.why_not_ready is None

    @property
    def staleness(self) -> Any:
        """Seconds from an event to its rows, ``p50`` and ``p99``, and since the newest event, ``now``; None: no log."""
        return None

    @property
    def problem(self) -> str | None:
        """Why a newer version is not served; None: no problem."""

    @property
    def num_rows(self) -> int:
        """Number of rows of all tables."""

    @property
    def memory_bytes(self) -> int:
        """Memory of the tables."""


class ServedModel(ShownModel, Protocol):
    """A served model. Thread-safe."""

    @property
    def name(self) -> str:
        """Default name of the model."""

    @property
    def signatures(self) -> Mapping[str, Signature]:
        """Signatures by name."""

    def predict(self, inputs: Any, signature: str = DEFAULT_SIGNATURE) -> Prediction:
        """Returns the answer for columns by name; a server passes `TypedColumns`.

        Raises:
            InvalidArgumentError: inputs do not fit the signature.
            NotFoundError: the model does not have this signature.
        """

    def close(self) -> None:
        """Frees the model."""


LONGEST_LAG = 30.0
"""Lag in seconds above which a follower is not ready."""


def lag_reason(follower: Follower | None) -> str | None:
    """Returns why a follower is not ready, as a sentence; None if it is ready, or there is none."""
    if follower is None:
        return None
    problem = follower.error or follower.away
    if problem is not None:
        return f"the delta log cannot be followed: {problem.message}"
    if not follower.is_caught_up:
        return f"it is catching up with the delta log: {follower.lag.increments} increments to come"
    seconds = follower.lag.seconds
    return None if seconds <= LONGEST_LAG else f"it lags the delta log by {seconds:.0f} s"


def why_stale(staleness: Staleness | None, at_most_seconds: float | None) -> str | None:
    """Returns why rows are too stale to serve, as a sentence; None if they are not, or there is no limit."""
    if staleness is None or at_most_seconds is None or staleness.now <= at_most_seconds:
        return None
    return (
        f"the newest event that it has learned from is {staleness.now:.0f} s old, at most {at_most_seconds:g} s"
        " expected: is the trainer running?"
    )
