"""The models of a server, by name, version and label."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

from monolith.errors import AlreadyExistsError, FailedPreconditionError, InvalidArgumentError, NotFoundError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from monolith.serving.server.model import ServedModel

__all__ = ["STABLE", "Entry", "ModelRegistry"]

STABLE = "stable"
"""The label whose version answers those that name none; without it the newest does."""


class Entry:
    """A model that is served: one version, or the newest one of a folder, which changes."""

    def __init__(self, name: str, model: ServedModel) -> None:
        self.name = name
        self.model = model
        self.users = 0
        """Requests that have it."""
        self.is_leaving = False

    @property
    def version(self) -> int:
        """The one that answers now."""
        return int(self.model.version.export)


class ModelRegistry:
    """Which model answers. Any thread may call any method; it owns its models, and closes them when nobody asks them.

    Example::

        registry = ModelRegistry()
        registry.add("ranker", predictor)
        registry.set_label("ranker", "stable", predictor.version.export)
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._entries: dict[str, list[Entry]] = {}
        self._labels: dict[str, dict[str, Entry]] = {}

    def add(self, name: str, model: ServedModel) -> int:
        """Serves a model under a name; returns its version, that of its export.

        Raises:
            InvalidArgumentError: a name that has no place in a path.
            AlreadyExistsError: the name has that version.
        """
        if not name or not all(each.isalnum() or each in "-_." for each in name):
            raise InvalidArgumentError(f"model name: must be letters, digits, '-', '_' and '.', got {name!r}")
        entry = Entry(name, model)
        with self._lock:
            entries = self._entries.setdefault(name, [])
            if any(each.version == entry.version for each in entries):
                raise AlreadyExistsError(f"model {name!r}: version {entry.version} is served already")
            entries.append(entry)
        return entry.version

    def remove(self, name: str, version: int) -> None:
        """Serves a version no more; it is closed when the requests that have it are answered.

        Raises:
            NotFoundError: there is no such version.
            FailedPreconditionError: a label points to it.
        """
        with self._lock:
            entry = self._find(name, version)
            labels = [label for label, each in self._labels.get(name, {}).items() if each is entry]
            if labels:
                raise FailedPreconditionError(
                    f"model {name!r}: version {version} has the label {labels[0]!r}; move it to another one first"
                )
            self._entries[name].remove(entry)
            if not self._entries[name]:
                del self._entries[name]
            entry.is_leaving = True
            unused = entry.users == 0
        if unused:
            entry.model.close()

    def set_label(self, name: str, label: str, version: int | None) -> None:
        """Moves a label to a version; None takes it away.

        Raises:
            NotFoundError: there is no such version.
        """
        if not label:
            raise InvalidArgumentError("label: must not be empty")
        with self._lock:
            if version is None:
                self._labels.get(name, {}).pop(label, None)
            else:
                self._labels.setdefault(name, {})[label] = self._find(name, version)

    @contextmanager
    def using(self, name: str, *, version: int | None = None, label: str | None = None) -> Iterator[Entry]:
        """The version that answers a request, which stays as long as it is used.

        Raises:
            NotFoundError: there is no such model, version or label.
        """
        entry = self.take(name, version=version, label=label)
        try:
            yield entry
        finally:
            self.give_back(entry)

    def take(self, name: str, *, version: int | None = None, label: str | None = None) -> Entry:
        """As `using`, to be given back by `give_back`."""
        with self._lock:
            if label is not None:
                entry = self._labelled(name, label)
            else:
                entry = self._default(name) if version is None else self._find(name, version)
            entry.users += 1
            return entry

    def give_back(self, entry: Entry) -> None:
        """A request is answered."""
        with self._lock:
            entry.users -= 1
            unused = entry.is_leaving and entry.users == 0
        if unused:
            entry.model.close()

    def entries(self, name: str | None = None) -> list[Entry]:
        """What is served, oldest versions first.

        Raises:
            NotFoundError: there is no model of that name.
        """
        with self._lock:
            names = sorted(self._entries) if name is None else [name]
            return [
                entry for each in names for entry in sorted(self._entries_of(each), key=lambda entry: entry.version)
            ]

    def labels(self, name: str) -> dict[str, int]:
        """Labels of a model."""
        with self._lock:
            return {label: entry.version for label, entry in self._labels.get(name, {}).items()}

    def why_not_ready(self) -> str | None:
        """Why the server is to be asked nothing yet; None: every model that answers by default is ready."""
        with self._lock:
            answering = [self._default(name) for name in sorted(self._entries)]
        if not answering:
            return "there is no model"
        for entry in answering:
            if not entry.model.is_ready:
                why = entry.model.why_not_ready or "it is not ready"
                return f"model {entry.name!r}, version {entry.version}: {why}"
        return None

    def close(self) -> None:
        """Closes every model; none is served afterwards."""
        with self._lock:
            entries = [entry for entries in self._entries.values() for entry in entries]
            self._entries.clear()
            self._labels.clear()
        for entry in entries:
            entry.model.close()

    def _entries_of(self, name: str) -> list[Entry]:
        entries = self._entries.get(name)
        if not entries:
            known = ", ".join(sorted(self._entries)) or "none"
            raise NotFoundError(f"there is no model {name!r}; models are: {known}")
        return entries

    def _default(self, name: str) -> Entry:
        newest = max(self._entries_of(name), key=lambda entry: entry.version)
        return self._labels.get(name, {}).get(STABLE, newest)

    def _labelled(self, name: str, label: str) -> Entry:
        self._entries_of(name)
        found = self._labels.get(name, {}).get(label)
        if found is None:
            known = ", ".join(sorted(self._labels.get(name, {}))) or "none"
            raise NotFoundError(f"model {name!r}: there is no label {label!r}; labels are: {known}")
        return found

    def _find(self, name: str, version: int) -> Entry:
        entries = {entry.version: entry for entry in self._entries_of(name)}
        if version not in entries:
            known = ", ".join(map(str, sorted(entries)))
            raise NotFoundError(f"model {name!r}: there is no version {version}; versions are: {known}")
        return entries[version]
