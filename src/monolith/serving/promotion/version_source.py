"""Sources of the versions of a model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from monolith.errors import FailedPreconditionError
from monolith.serving.export_versions import ExportVersions
from monolith.serving.predictor import Predictor

if TYPE_CHECKING:
    from collections.abc import Sequence

    from monolith.serving.promotion.gate import PromotionGate


class VersionSource(Protocol):
    """Source of the versions for a `VersionManager`. Thread-safe."""

    @property
    def name(self) -> str:
        """Default name of the model."""

    @property
    def is_fixed(self) -> bool:
        """Whether there is a single version, so that no other will appear."""

    @property
    def follows(self) -> bool:
        """Whether versions follow a delta log, unless they are opened frozen."""

    def numbers(self) -> list[int]:
        """Returns the numbers of the available versions, ascending."""

    def open(self, number: int, *, frozen: bool, beside: Sequence[Any]) -> Any:
        """Opens a version as a `ServedModel`.

        Args:
            number: Number of the version.
            frozen: Whether it is served as exported.
            beside: Other open versions, whose rows may be shared.

        Raises:
            NotFoundError: the version does not exist.
            OpError: the version cannot be used.
        """


class ExportVersionSource(ExportVersions):
    """Exports below a path, or a single export, served by predictors.

    Args:
        path: An export, or a folder with versions of one.
        follow: The delta log to follow; None: none.
        gate: Gate for dense weights of the log; None: no gate.
    """

    def __init__(self, path: str, *, follow: str | None = None, gate: PromotionGate | None = None) -> None:
        super().__init__(path)
        self._follow = follow
        self._gate = gate

    @property
    def name(self) -> str:
        """Name of the newest export."""
        return self.newest().export.manifest.name

    @property
    def follows(self) -> bool:
        """Whether a log was given."""
        return self._follow is not None

    def open(self, number: int, *, frozen: bool, beside: Sequence[Any]) -> Predictor:
        """Opens a predictor fixed to this version."""
        path = self.path_of(number)
        others = [other for other in beside if isinstance(other, Predictor)]
        follow = None if frozen else self._follow
        predictor = Predictor(path, follow=follow, gate=self._gate, beside=others, trial=True)
        if predictor.version.export != number:
            predictor.close()
            raise FailedPreconditionError(
                f"export '{path}': the folder has another name than its version, {predictor.version.export}; rename it"
            )
        return predictor
