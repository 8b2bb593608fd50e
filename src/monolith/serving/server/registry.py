"""The models of a server, by name, version and label."""

from __future__ import annotations

import hashlib
import random
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

from monolith.errors import AlreadyExistsError, FailedPreconditionError, InvalidArgumentError, NotFoundError
from monolith.serving.served_model import ServedModel, why_stale

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from monolith.serving.promotion.promotion import Promotion
    from monolith.serving.server.request_core import ShadowTally


class Choice(NamedTuple):
    """A version, by its number or by its current label."""

    version: int | None = None
    label: str | None = None

    def __str__(self) -> str:
        return f"version {self.version}" if self.label is None else f"label {self.label!r}"


class Canary(NamedTuple):
    """The share of the requests without a version that goes to a canary, and its version.

    >>> canary = Canary(Choice(version=6), 0.25)
    >>> sum(canary.takes("ranker", f"user-{number}") for number in range(1000))
    274
    >>> wider = canary._replace(share=0.5)
    >>> all(wider.takes("ranker", each) for each in map(str, range(1000)) if canary.takes("ranker", each))
    True
    """

    target: Choice
    share: float
    """From 0 to 1."""

    def takes(self, model: str, request_id: str | None) -> bool:
        """Returns whether the canary gets a request: deterministic for an id, random without one.

        A larger share includes the ids of a smaller one. The name of the model is part of the hash, so that the
        canaries of several models do not all get the same users.
        """
        if request_id is None:
            return random.random() < self.share  # noqa: S311 - not security
        said = f"{model}\0{request_id}".encode("utf-8", "surrogateescape")
        digest = hashlib.blake2b(said, digest_size=8).digest()
        return int.from_bytes(digest, "big") < self.share * 2**64


STABLE = "stable"
"""Label of the default version; without it the newest version is the default."""


class RegisteredModel:
    """A served model: a fixed version, or the newest one of a folder."""

    def __init__(self, name: str, model: ServedModel) -> None:
        self.name = name
        self.model = model
        self.users = 0
        """Number of requests that use it."""
        self.is_leaving = False

    @property
    def version(self) -> int:
        """Current version."""
        return int(self.model.version.export)


class ModelRegistry:
    """The models of a server. Thread-safe. Owns its models, and closes them when no request uses them.

    Example::

        registry = ModelRegistry()
        registry.add("ranker", predictor)
        registry.set_label("ranker", "stable", predictor.version.export)
    """

    def __init__(self, *, max_staleness_seconds: float | None = None) -> None:
        self._max_staleness_seconds = max_staleness_seconds
        self._lock = threading.Lock()
        self._entries: dict[str, list[RegisteredModel]] = {}
        self._labels: dict[str, dict[str, RegisteredModel]] = {}
        self._canaries: dict[str, Canary] = {}
        self._shadows: dict[str, Choice] = {}
        self._refused: dict[str, dict[int, str]] = {}
        self._leaving: list[threading.Thread] = []
        self.shadow_tallies: dict[str, ShadowTally] = {}
        """Model -> statistics of its shadow, updated by the `ShadowScorer`."""
        self.commands: Promotion | None = None
        """Executor of promotion commands; None: commands are not accepted."""

    def add(self, name: str, model: ServedModel) -> int:
        """Serves a model under a name; returns the version of its export.

        Raises:
            InvalidArgumentError: the name cannot be part of a path.
            AlreadyExistsError: this version is already served under the name.
        """
        if not name or not all(character.isalnum() or character in "-_." for character in name):
            raise InvalidArgumentError(f"model name: must be letters, digits, '-', '_' and '.', got {name!r}")
        entry = RegisteredModel(name, model)
        with self._lock:
            entries = self._entries.setdefault(name, [])
            if any(known.version == entry.version for known in entries):
                raise AlreadyExistsError(f"model {name!r}: version {entry.version} is served already")
            entries.append(entry)
        return entry.version

    def remove(self, name: str, version: int) -> None:
        """Removes a version; it is closed when its requests are answered.

        Raises:
            NotFoundError: the version does not exist.
            FailedPreconditionError: a label points to it, or it is a canary or a shadow.
        """
        with self._lock:
            entry = self._find(name, version)
            labels = [label for label, labelled in self._labels.get(name, {}).items() if labelled is entry]
            if labels:
                raise FailedPreconditionError(
                    f"model {name!r}: version {version} has the label {labels[0]!r}; move it to another one first"
                )
            self._require_free(name, Choice(version=version))
            self._entries[name].remove(entry)
            if not self._entries[name]:
                del self._entries[name]
            entry.is_leaving = True
            self._close_unused(entry)

    def replace(self, name: str, model: ServedModel) -> None:
        """Replaces the model with the same version; labels are kept.

        Raises:
            NotFoundError: the version does not exist.
        """
        entry = RegisteredModel(name, model)
        with self._lock:
            old = self._find(name, entry.version)
            entries = self._entries[name]
            entries[entries.index(old)] = entry
            for label, labelled in self._labels.get(name, {}).items():
                if labelled is old:
                    self._labels[name][label] = entry
            old.is_leaving = True
            self._close_unused(old)

    def set_label(self, name: str, label: str, version: int | None) -> None:
        """Moves a label to a version; None removes the label.

        Raises:
            NotFoundError: the version does not exist.
            FailedPreconditionError: a canary or a shadow uses the label to be removed.
        """
        if not label:
            raise InvalidArgumentError("label: must not be empty")
        with self._lock:
            if version is None:
                self._require_free(name, Choice(label=label))
                self._labels.get(name, {}).pop(label, None)
            else:
                self._labels.setdefault(name, {})[label] = self._find(name, version)

    def set_canary(self, name: str, canary: Canary | None) -> None:
        """Routes a share of the requests without a version to a canary; None ends it.

        Raises:
            NotFoundError: the version or label does not exist.
        """
        with self._lock:
            if canary is None:
                self._canaries.pop(name, None)
            else:
                self._chosen(name, canary.target)
                self._canaries[name] = canary

    def set_shadow(self, name: str, target: Choice | None) -> None:
        """Sets the version that also scores answered requests; None ends it.

        Raises:
            NotFoundError: the version or label does not exist.
        """
        with self._lock:
            if target is None:
                self._shadows.pop(name, None)
            else:
                self._chosen(name, target)
                self._shadows[name] = target

    def set_refused(self, name: str, refused: Mapping[int, str]) -> None:
        """Records which versions are not served, and why."""
        with self._lock:
            self._refused[name] = dict(refused)

    @contextmanager
    def using(self, name: str, *, version: int | None = None, label: str | None = None) -> Iterator[RegisteredModel]:
        """Yields the version that answers a request, which stays loaded inside the context.

        Raises:
            NotFoundError: the model, version or label does not exist.
        """
        entry = self.take(name, version=version, label=label)
        try:
            yield entry
        finally:
            self.give_back(entry)

    def take(self, name: str, *, version: int | None = None, label: str | None = None) -> RegisteredModel:
        """Acquires a version like `using`; the caller releases it with `give_back`."""
        with self._lock:
            entry = self._chosen(name, Choice(version, label))
            entry.users += 1
            return entry

    def route(self, name: str, request_id: str | None) -> RegisteredModel:
        """Acquires a version like `take`, for a request without version and label; the canary gets its share."""
        with self._lock:
            canary = self._canaries.get(name)
            if canary is not None and canary.takes(name, request_id):
                entry = self._chosen(name, canary.target)
            else:
                entry = self._default(name)
            entry.users += 1
            return entry

    def take_shadow(self, name: str, answered_by: int) -> RegisteredModel | None:
        """Acquires the shadow of a model, to be released with `give_back`; None if there is none."""
        target = self._shadows.get(name)  # without the lock: most models have none
        if target is None:
            return None
        with self._lock:
            entry = self._chosen(name, target)
            if entry.version == answered_by:
                return None
            entry.users += 1
            return entry

    def give_back(self, entry: RegisteredModel) -> None:
        """Releases a version."""
        with self._lock:
            entry.users -= 1
            if entry.is_leaving:
                self._close_unused(entry)

    def entries(self, name: str | None = None) -> list[RegisteredModel]:
        """Returns the served versions, the oldest first.

        Raises:
            NotFoundError: the model does not exist.
        """
        with self._lock:
            names = sorted(self._entries) if name is None else [name]
            return [
                entry for model in names for entry in sorted(self._entries_of(model), key=lambda entry: entry.version)
            ]

    def labels(self, name: str) -> dict[str, int]:
        """Returns the labels of a model."""
        with self._lock:
            return {label: entry.version for label, entry in self._labels.get(name, {}).items()}

    def canary(self, name: str) -> Canary | None:
        """Returns the canary of a model."""
        with self._lock:
            return self._canaries.get(name)

    def shadow(self, name: str) -> Choice | None:
        """Returns the shadow of a model."""
        with self._lock:
            return self._shadows.get(name)

    def refused(self, name: str) -> dict[int, str]:
        """Returns versions that are not served, and why."""
        with self._lock:
            return dict(self._refused.get(name, {}))

    def status(self, name: str, version: int | None, label: str | None) -> tuple[list[RegisteredModel], dict[int, str]]:
        """Returns the versions of a status query, and the rejected ones with the reasons if it is about all versions.

        Raises:
            NotFoundError: the model, version or label does not exist.
        """
        entries = everything = self.entries(name)
        if version is not None or label is not None:
            with self.using(name, version=version, label=label) as entry:
                entries = [entry]
        return entries, self.refused(name) if entries == everything else {}

    def default(self, name: str) -> RegisteredModel:
        """Returns the default version: it answers requests without version and label, except for the canary's share.

        Raises:
            NotFoundError: the model does not exist.
        """
        with self._lock:
            return self._default(name)

    def why_not_ready(self) -> str | None:
        """Returns why the server is not ready; None if the default version of every model is ready."""
        with self._lock:
            answering = [self._default(name) for name in sorted(self._entries)]
        if not answering:
            return "there is no model"
        for entry in answering:
            why = why_stale(entry.model.staleness, self._max_staleness_seconds)
            if not entry.model.is_ready:
                why = entry.model.why_not_ready or "it is not ready"
            if why is not None:
                return f"model {entry.name!r}, version {entry.version}: {why}"
        return None

    def close(self) -> None:
        """Closes every model; none is served afterwards."""
        with self._lock:
            entries = [entry for entries in self._entries.values() for entry in entries]
            leaving = self._leaving
            self._leaving = []
            for known in (self._entries, self._labels, self._canaries, self._shadows):
                known.clear()
        for entry in entries:
            entry.model.close()
        for thread in leaving:
            thread.join()

    def _close_unused(self, entry: RegisteredModel) -> None:
        """Closes a removed model once it is unused; in a thread, so that requests do not wait."""
        if entry.users == 0:
            self._leaving = [thread for thread in self._leaving if thread.is_alive()]
            thread = threading.Thread(target=entry.model.close, name=f"leaving-{entry.version}", daemon=True)
            thread.start()
            self._leaving.append(thread)

    def _entries_of(self, name: str) -> list[RegisteredModel]:
        entries = self._entries.get(name)
        if not entries:
            known = ", ".join(sorted(self._entries)) or "none"
            raise NotFoundError(f"there is no model {name!r}; models are: {known}")
        return entries

    def _require_free(self, name: str, target: Choice) -> None:
        canary = self._canaries.get(name)
        for what, used in (("canary", canary and canary.target), ("shadow", self._shadows.get(name))):
            if used == target:
                raise FailedPreconditionError(f"model {name!r}: the {what} is {target}; end it, or move it, first")

    def _chosen(self, name: str, target: Choice) -> RegisteredModel:
        if target.label is not None:
            return self._labelled(name, target.label)
        return self._default(name) if target.version is None else self._find(name, target.version)

    def _default(self, name: str) -> RegisteredModel:
        entries = self._entries_of(name)
        stable = self._labels[name].get(STABLE) if name in self._labels else None
        if stable is not None:
            return stable
        return entries[0] if len(entries) == 1 else max(entries, key=lambda entry: entry.version)

    def _labelled(self, name: str, label: str) -> RegisteredModel:
        self._entries_of(name)
        entry = self._labels.get(name, {}).get(label)
        if entry is None:
            known = ", ".join(sorted(self._labels.get(name, {}))) or "none"
            raise NotFoundError(f"model {name!r}: there is no label {label!r}; labels are: {known}")
        return entry

    def _find(self, name: str, version: int) -> RegisteredModel:
        entries = {entry.version: entry for entry in self._entries_of(name)}
        if version not in entries:
            known = ", ".join(map(str, sorted(entries)))
            raise NotFoundError(f"model {name!r}: there is no version {version}; versions are: {known}")
        return entries[version]
