"""Interface of a model for the server: a subset of `monolith.serving.Predictor`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from monolith.export import DEFAULT_SIGNATURE

if TYPE_CHECKING:
    from collections.abc import Mapping

    from monolith.export import Signature
    from monolith.serving.prediction import ModelVersion, Prediction


class ShownModel(Protocol):
    """The properties of a model for metrics."""

    @property
    def version(self) -> ModelVersion:
        """Version of the next answer."""

    @property
    def is_ready(self) -> bool:
        """Whether it is up to date with training, except for a small lag."""

    @property
    def staleness(self) -> Any:
        """Seconds from an event to its rows, ``p50`` and ``p99``, and since the newest event, ``now``; None: no log."""

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

    @property
    def why_not_ready(self) -> str | None:
        """Reason as a sentence; None: ready."""

    @property
    def problem(self) -> str | None:
        """Why a newer version is not served; None: no problem."""

    def predict(self, inputs: Any, signature: str = DEFAULT_SIGNATURE) -> Prediction:
        """Returns the answer for columns by name; a server passes `TypedColumns`.

        Raises:
            InvalidArgumentError: inputs do not fit the signature.
            NotFoundError: the model does not have this signature.
        """

    def close(self) -> None:
        """Frees the model."""
