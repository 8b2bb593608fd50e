"""Decisions of operators about models, and the file that persists them."""

from __future__ import annotations

import json
import math
import threading
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from monolith.errors import DataLossError
from monolith.files import named_errors, replaced_file
from monolith.serving.server.registry import Canary, Choice

_FORMAT = "monolith-promotion"
_VERSION = 1
_MOST_BYTES = 16 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelState:
    """Decisions about one model. Immutable."""

    labels: dict[str, int] = field(default_factory=dict)
    canary: Canary | None = None
    shadow: Choice | None = None
    frozen: frozenset[int] = frozenset()
    """Versions served as exported, regardless of the delta log."""

    def pinned(self) -> set[int]:
        """Returns the versions that a label, canary or shadow points to, which stay loaded."""
        chosen = [self.shadow, None if self.canary is None else self.canary.target]
        return {*self.labels.values(), *(choice.version for choice in chosen if choice and choice.version is not None)}

    def without(self, number: int) -> ModelState:
        """Returns the decisions without those that point to a version."""
        labels = {label: version for label, version in self.labels.items() if version != number}

        def is_gone(target: Choice) -> bool:
            return target.version == number or target.label not in {None, *labels}

        return replace(
            self,
            labels=labels,
            canary=None if self.canary is None or is_gone(self.canary.target) else self.canary,
            shadow=None if self.shadow is None or is_gone(self.shadow) else self.shadow,
        )

    def to_json(self) -> dict[str, Any]:
        """Returns the decisions as stored in the file."""
        return {
            "labels": dict(sorted(self.labels.items())),
            "canary": None if self.canary is None else {**_shown(self.canary.target), "share": self.canary.share},
            "shadow": None if self.shadow is None else _shown(self.shadow),
            "frozen": sorted(self.frozen),
        }

    @classmethod
    def from_json(cls, document: Any) -> ModelState:
        """Parses the output of `to_json`."""
        if not isinstance(document, dict) or document.keys() != {"labels", "canary", "shadow", "frozen"}:
            raise ValueError("an object with labels, canary, shadow and frozen expected")
        labels, canary, frozen = document["labels"], document["canary"], document["frozen"]
        if not isinstance(labels, dict) or not all(map(_is_version, labels.values())) or "" in labels:
            raise ValueError("labels must be names with versions")
        if not isinstance(frozen, list) or not all(map(_is_version, frozen)):
            raise ValueError("frozen must be a list of versions")
        return cls(
            labels=labels,
            canary=None if canary is None else _canary(canary, labels),
            shadow=None if document["shadow"] is None else _choice(document["shadow"], labels),
            frozen=frozenset(frozen),
        )


class PromotionFile:
    """Storage of the decisions about all models of a server. Thread-safe.

    Without a path, decisions are not persisted.
    """

    def __init__(self, path: str | None) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._states: dict[str, ModelState] = {}
        if path is not None and Path(path).exists():
            self._states = _read(path)

    def state(self, name: str) -> ModelState:
        """Returns the decisions about a model."""
        with self._lock:
            return self._states.get(name, ModelState())

    def save(self, name: str, state: ModelState) -> None:
        """Saves new decisions, durably.

        Raises:
            OpError: the file could not be written; the previous decisions stay.
        """
        with self._lock:
            states = {**self._states, name: state}
            if self._path is not None:
                models = {model: kept.to_json() for model, kept in sorted(states.items())}
                text = json.dumps({"format": _FORMAT, "version": _VERSION, "models": models}, indent=2)
                with replaced_file(self._path) as temporary, named_errors(self._path, "written"):
                    temporary.write_text(f"{text}\n", encoding="utf-8")
            self._states = states


def _read(path: str) -> dict[str, ModelState]:
    with named_errors(path, "read"), Path(path).open("rb") as file:
        data = file.read(_MOST_BYTES)
    try:
        return _states_of(json.loads(data))
    except (ValueError, RecursionError) as error:
        raise DataLossError(
            f"promotion file '{path}' is damaged: {error}; put back a copy of it, or remove it: then the newest"
            " versions answer"
        ) from None


def _states_of(document: Any) -> dict[str, ModelState]:
    if not isinstance(document, dict) or document.get("format") != _FORMAT:
        raise ValueError(f"its format is not {_FORMAT!r}")
    if document.get("version") != _VERSION:
        raise ValueError(f"it is of version {document.get('version')!r}, and this build reads {_VERSION}")
    models = document.get("models")
    if not isinstance(models, dict):
        raise ValueError("it has no models")  # noqa: TRY004 - a fault of the file, not of the call
    return {name: _named_state(name, state) for name, state in models.items()}


def _named_state(name: str, document: Any) -> ModelState:
    try:
        return ModelState.from_json(document)
    except ValueError as error:
        raise ValueError(f"model {name!r}: {error}") from None


def _shown(choice: Choice) -> dict[str, Any]:
    return {"version": choice.version} if choice.label is None else {"label": choice.label}


def _choice(document: Any, labels: dict[str, int]) -> Choice:
    if isinstance(document, dict) and document.keys() == {"version"} and _is_version(document["version"]):
        return Choice(version=document["version"])
    if isinstance(document, dict) and document.keys() == {"label"} and document["label"] in list(labels):
        return Choice(label=document["label"])
    raise ValueError("expected a version, or an existing label")


def _canary(document: Any, labels: dict[str, int]) -> Canary:
    share = document.get("share") if isinstance(document, dict) else None
    if isinstance(share, bool) or not isinstance(share, int | float) or not 0 < share <= 1 or math.isnan(share):
        raise ValueError("the share of a canary must be above 0 and at most 1")
    return Canary(_choice({key: value for key, value in document.items() if key != "share"}, labels), float(share))


def _is_version(value: Any) -> bool:
    return type(value) is int and value >= 0
