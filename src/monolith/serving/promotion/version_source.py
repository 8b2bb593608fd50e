"""Where the versions of a model come from."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from monolith.errors import FailedPreconditionError
from monolith.serving.export_versions import ExportVersions
from monolith.serving.predictor import Predictor

if TYPE_CHECKING:
    from collections.abc import Sequence

    from monolith.serving.promotion.gate import Gate

__all__ = ["ExportSource", "VersionSource"]


class VersionSource(Protocol):
    """What a keeper of versions needs to know; any thread may call it."""

    @property
    def name(self) -> str:
        """Of the model, where it is served under no other."""
        ...

    @property
    def is_fixed(self) -> bool:
        """Whether there is one version, and no other will come."""
        ...

    @property
    def follows(self) -> bool:
        """Whether versions follow a delta log, unless they are opened as they were exported."""
        ...

    def numbers(self) -> list[int]:
        """Of the versions that are there, ascending."""
        ...

    def open(self, number: int, *, frozen: bool, beside: Sequence[Any]) -> Any:
        """A `ServedModel` of this version.

        Args:
            number: Of the version.
            frozen: Whether it is to stay as it was exported.
            beside: Other versions that are open.

        Raises:
            NotFoundError: there is none of this number.
            OpError: it cannot be used.
        """
        ...


class ExportSource:
    """Exports below a path, or one.

    Args:
        path: An export, or a folder with versions of one.
        follow: The delta log that they follow; None: none.
        gate: What dense weights of the log must pass.
    """

    def __init__(self, path: str, *, follow: str | None = None, gate: Gate | None = None) -> None:
        self._versions = ExportVersions(path)
        self._follow = follow
        self._gate = gate

    @property
    def name(self) -> str:
        """That of the newest export."""
        return self._versions.newest().export.manifest.name

    @property
    def is_fixed(self) -> bool:
        """Whether the path is one version."""
        return self._versions.is_fixed

    @property
    def follows(self) -> bool:
        """Whether a log was given."""
        return self._follow is not None

    def numbers(self) -> list[int]:
        """Of the versions that are whole, ascending."""
        return self._versions.numbers()

    def open(self, number: int, *, frozen: bool, beside: Sequence[Any]) -> Predictor:
        """A predictor of this version and no other."""
        path = self._versions.path_of(number)
        others = [each for each in beside if isinstance(each, Predictor)]
        follow = None if frozen else self._follow
        predictor = Predictor(path, follow=follow, gate=self._gate, beside=others, trial=True)
        if predictor.version.export != number:
            predictor.close()
            raise FailedPreconditionError(
                f"export '{path}': the folder has another name than its version, {predictor.version.export}; rename it"
            )
        return predictor
