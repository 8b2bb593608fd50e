"""Interface of a model for the server: a subset of `monolith.serving.Predictor`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

    from monolith.data import TextColumn


DEFAULT_SIGNATURE = "serving_default"
"""Signature of a request without one."""
ENCODED = ("instances", "examples", "example_batch")
"""Names of inputs that carry encoded samples instead of columns: any signature accepts them."""


class ServedInput(Protocol):
    """A column of a request."""

    @property
    def kind(self) -> str:
        """``ids`` or ``dense``."""
        ...

    @property
    def dtype(self) -> str:
        """``int64``, ``float32``, ``bytes`` or another one of torch."""
        ...

    @property
    def shape(self) -> tuple[int | None, ...]:
        """Shape; None stands for the number of examples, which is the first dim, and for variable dims."""
        ...

    @property
    def ragged(self) -> bool:
        """Whether examples have differing numbers of values."""
        ...

    @property
    def texts(self) -> TextColumn | None:
        """Conversion of texts to ids, if a request may have texts instead of ids."""
        ...


class ServedOutput(Protocol):
    """A column of an answer."""

    @property
    def dtype(self) -> str:
        """Name of the torch dtype."""
        ...

    @property
    def shape(self) -> tuple[int | None, ...]:
        """Shape; None stands for the number of examples."""
        ...


class ServedSignature(Protocol):
    """Inputs and outputs of one kind of request."""

    @property
    def inputs(self) -> Mapping[str, Any]:
        """Columns by name, each an `ServedInput`."""
        ...

    @property
    def outputs(self) -> Mapping[str, Any]:
        """Columns by name, each an `ServedOutput`."""
        ...


class Version(Protocol):
    """Version of an answer."""

    @property
    def export(self) -> int:
        """Unix time of the export: the version of the model."""
        ...

    @property
    def dense(self) -> int:
        """Number of the dense part; -1: that of the export."""
        ...

    @property
    def sparse(self) -> dict[str, int]:
        """Part of the delta log -> minimum increment of its rows."""
        ...


class ServedPrediction(Protocol):
    """An answer."""

    @property
    def outputs(self) -> dict[str, Tensor]:
        """Outputs by name; the first dim is that of the examples."""
        ...

    @property
    def version(self) -> Any:
        """A `Version`."""
        ...

    @property
    def num_ids(self) -> int:
        """Number of ids looked up."""
        ...

    @property
    def num_found(self) -> int:
        """Number of those ids that have a row."""
        ...


class ShownModel(Protocol):
    """The properties of a model for metrics."""

    @property
    def version(self) -> Any:
        """A `Version`: that of the next answer."""
        ...

    @property
    def is_ready(self) -> bool:
        """Whether it is up to date with training, except for a small lag."""
        ...

    @property
    def staleness(self) -> Any:
        """Seconds from an event to its rows, ``p50`` and ``p99``, and since the newest event, ``now``; None: no log."""
        ...

    @property
    def num_rows(self) -> int:
        """Number of rows of all tables."""
        ...

    @property
    def memory_bytes(self) -> int:
        """Memory of the tables."""
        ...


class ServedModel(ShownModel, Protocol):
    """A served model. Thread-safe."""

    @property
    def name(self) -> str:
        """Default name of the model."""
        ...

    @property
    def signatures(self) -> Mapping[str, Any]:
        """Signatures by name, each a `ServedSignature`."""
        ...

    @property
    def why_not_ready(self) -> str | None:
        """Reason as a sentence; None: ready."""
        ...

    @property
    def problem(self) -> str | None:
        """Why a newer version is not served; None: no problem."""
        ...

    def predict(self, inputs: Any, signature: str = DEFAULT_SIGNATURE) -> Any:
        """Returns the `ServedPrediction` for columns by name.

        Raises:
            InvalidArgumentError: inputs do not fit the signature.
            NotFoundError: the model does not have this signature.
        """
        ...

    def close(self) -> None:
        """Frees the model."""
        ...


def is_merged(model: ServedModel) -> bool:
    """Returns whether requests may be merged into one call; a model with ``answers_alone`` does not allow it."""
    return not getattr(model, "answers_alone", False)
