"""`Promotion`: the commands that decide which version of a model answers."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Protocol

from monolith.config import Config, config
from monolith.errors import FailedPreconditionError, InvalidArgumentError, NotFoundError
from monolith.serving.export_versions import ExportVersions
from monolith.serving.predictor import Predictor
from monolith.serving.promotion.state import ModelState, PromotionFile
from monolith.serving.promotion.version_keeper import VersionManager
from monolith.serving.server.metrics import ServingMetrics
from monolith.serving.server.registry import STABLE, Canary, Choice, ModelRegistry, RegisteredModel

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from monolith.serving.promotion.gate import GateVerdict, PromotionGate


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

    def open(self, number: int, *, frozen: bool, others: Sequence[Any]) -> Any:
        """Opens a version as a `ServedModel`.

        Args:
            number: Number of the version.
            frozen: Whether it is served as exported.
            others: Other open versions, whose rows may be shared.

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

    def open(self, number: int, *, frozen: bool, others: Sequence[Any]) -> Predictor:
        """Opens a predictor fixed to this version."""
        path = self.path_of(number)
        predictors = [other for other in others if isinstance(other, Predictor)]
        follow = None if frozen else self._follow
        predictor = Predictor(path, follow=follow, gate=self._gate, beside=predictors, trial=True)
        if predictor.version.export != number:
            predictor.close()
            raise FailedPreconditionError(
                f"export '{path}': the folder has another name than its version, {predictor.version.export}; rename it"
            )
        return predictor


_LONGEST_LABEL = 256
_NO_COMMANDS = (
    "it takes no commands: a task, or an entry whose rows are at shards, answers with the newest version that it finds;"
    " versions of an export can be chosen where the server has its rows (monolith serve NAME=PATH)"
)


@config
class PromotionConfig(Config):
    """Settings for the versions of models."""

    keep_versions: int = 1
    """Number of versions to keep loaded: the active one, and the newest others."""
    file: str | None = None
    """Local file that persists decisions; None: they are lost on restart."""

    def __post_init__(self) -> None:
        if self.keep_versions < 1:
            raise ValueError(f"PromotionConfig: keep_versions must be >= 1, got {self.keep_versions}")


class Promotion:
    """Manager of the versions of models and of the pointers to them. Thread-safe. Must be closed before the registry.

    Example::

        registry = ModelRegistry()
        promotion = Promotion(registry, PromotionConfig(keep_versions=2))
        promotion.add("models/ranker/export", name="ranker")
        promotion.command("ranker", "canary", {"version": 6, "share": 0.1})

    Args:
        registry: Registry that serves the versions.
        options: Settings.

    Raises:
        DataLossError: the file is damaged.
    """

    def __init__(self, registry: ModelRegistry, options: PromotionConfig | None = None) -> None:
        self.options = options or PromotionConfig()
        self._registry = registry
        self._file = PromotionFile(self.options.file)
        self._metrics = ServingMetrics()
        self._keepers: dict[str, VersionManager] = {}
        self._verdicts: dict[str, dict[str, GateVerdict]] = {}
        registry.commands = self

    def add(
        self, path: str, *, name: str | None = None, follow: str | None = None, gate: PromotionGate | None = None
    ) -> str:
        """Serves a model; returns its name.

        Args:
            path: An export, or a folder with versions of one.
            name: Name of the model; None: that of its task.
            follow: The delta log that it follows.
            gate: Gate for versions and for dense weights of the log; None: no gate.

        Raises:
            NotFoundError: there is no export.
            OpError: no version can be served.
        """
        return self.add_source(ExportVersionSource(path, follow=follow, gate=gate), name=name, gate=gate)

    def add_source(self, source: VersionSource, *, name: str | None = None, gate: PromotionGate | None = None) -> str:
        """Serves a model like `add`, with versions from any source."""
        name = name or source.name
        if name in self._keepers:
            raise InvalidArgumentError(f"model {name!r} is served already; give another name")
        verdicts: dict[str, GateVerdict] = {}

        def note(kind: str, verdict: GateVerdict) -> None:
            verdicts[kind] = verdict
            self._metrics.count_verdict(name, kind, verdict)

        if gate is not None:
            gate.on_verdict = note
        self._verdicts[name] = verdicts
        self._keepers[name] = VersionManager(
            name, source, registry=self._registry, file=self._file, gate=gate, keep=self.options.keep_versions
        )
        return name

    def close(self) -> None:
        """Stops polling for newer versions. Idempotent."""
        for keeper in self._keepers.values():
            keeper.close()

    # Commands and status

    def describe(self, name: str | None = None) -> dict[str, Any]:
        """Returns the status of one model or all, including those that accept no commands."""
        known = self._keepers.keys() | {entry.name for entry in self._registry.entries()}
        names = sorted(known) if name is None else [name if name in known else self._keeper(name).name]
        return {"models": {model: self._described(model) for model in names}}

    def command(self, name: str, verb: str, fields: Mapping[str, Any]) -> dict[str, Any]:
        """Executes a command; returns the result of `describe` for the model afterwards.

        Raises:
            NotFoundError: the model, version or label does not exist.
            InvalidArgumentError: a field is unknown or invalid.
            FailedPreconditionError: the version did not pass the gate, the command is not possible now, or the versions
                of the model cannot be selected.
        """
        keeper = self._keeper(name)
        allowed, action = _COMMANDS[verb]
        unknown = [field for field in fields if field not in allowed]
        if unknown:
            raise InvalidArgumentError(f"{verb}: there is no field {unknown[0]!r}; fields are: {', '.join(allowed)}")
        with keeper.command():
            action(keeper, fields)
        return self._described(name)

    def _keeper(self, name: str) -> VersionManager:
        keeper = self._keepers.get(name)
        if keeper is None:
            if any(entry.name == name for entry in self._registry.entries()):
                raise FailedPreconditionError(f"model {name!r}: {_NO_COMMANDS}")
            known = ", ".join(sorted(self._keepers)) or "none"
            raise NotFoundError(f"there is no model {name!r} whose versions can be promoted; those are: {known}")
        return keeper

    def _described(self, name: str) -> dict[str, Any]:
        """Returns the status of a model, also of one without a keeper, for which nothing can be decided."""
        registry, keeper = self._registry, self._keepers.get(name)
        entries, labels, tally = registry.entries(name), registry.labels(name), registry.shadow_tallies.get(name)
        state = ModelState(labels=labels) if keeper is None else keeper.state
        described = {
            "answers": registry.default(name).version,
            "versions": [_version_json(entry, labels, keeper) for entry in entries],
            "available": [entry.version for entry in entries] if keeper is None else keeper.source.numbers(),
            "refused": {str(number): why for number, why in sorted(registry.refused(name).items())},
            "keep_versions": len(entries) if keeper is None else keeper.keep,
            **{key: value for key, value in state.to_json().items() if key != "frozen"},
            "shadow_scores": None if tally is None or state.shadow is None else tally.to_json(),
            "gate": {
                kind: {**verdict.figures.to_json(), "refused": verdict.refused}
                for kind, verdict in self._verdicts.get(name, {}).items()
            },
        }
        return described if keeper is not None else {**described, "no_commands": _NO_COMMANDS}


def _version_json(entry: RegisteredModel, labels: Mapping[str, int], keeper: VersionManager | None) -> dict[str, Any]:
    is_frozen = keeper is not None and entry.version in keeper.frozen
    follows = entry.model.staleness is not None if keeper is None else keeper.source.follows and not is_frozen
    return {
        "version": entry.version,
        "dense": entry.model.version.dense,
        "labels": sorted(label for label, number in labels.items() if number == entry.version),
        "ready": entry.model.is_ready,
        "why_not_ready": entry.model.why_not_ready,
        "problem": entry.model.problem,
        "rows": entry.model.num_rows,
        "follows": follows,
        "as_exported": is_frozen,
    }


def _label(keeper: VersionManager, fields: Mapping[str, Any]) -> None:
    label = fields.get("label")
    if not isinstance(label, str) or not 0 < len(label) <= _LONGEST_LABEL or set(label) & set("/:") or label.isdigit():
        raise InvalidArgumentError(
            f"label: must be a text of up to {_LONGEST_LABEL} characters without '/' and ':', and no number, got"
            f" {str(label)[:80]!r}"
        )
    labels = keeper.state.labels
    if fields.get("version") is not None:
        number = _version_of(fields, "label")
        keeper.ensure(number, force=_flag(fields, "force"))
        keeper.commit(labels={**labels, label: number})
        return
    if label not in labels:
        known = ", ".join(sorted(labels)) or "none"
        raise NotFoundError(f"model {keeper.name!r}: there is no label {label!r}; labels are: {known}")
    keeper.commit(labels={other: number for other, number in labels.items() if other != label})


def _canary(keeper: VersionManager, fields: Mapping[str, Any]) -> None:
    share = fields.get("share")
    if isinstance(share, bool) or not isinstance(share, int | float) or not 0 <= share <= 1 or math.isnan(share):
        raise InvalidArgumentError(f"canary: share must be a number from 0 to 1, got {share!r}")
    target = _choice(keeper, fields, "canary")
    if share == 0:
        if target is not None:
            raise InvalidArgumentError("canary: a share of 0 ends it, and takes neither version nor label")
        keeper.commit(canary=None)
        return
    if target is None:
        raise InvalidArgumentError("canary: give the version or the label that has the share")
    if target.version is not None:
        keeper.ensure(target.version, force=_flag(fields, "force"))
    keeper.commit(canary=Canary(target, float(share)))


def _shadow(keeper: VersionManager, fields: Mapping[str, Any]) -> None:
    target = _choice(keeper, fields, "shadow")
    if target is not None and target.version is not None:
        keeper.ensure(target.version, answers=False)
    keeper.commit(shadow=target)


def _rollback(keeper: VersionManager, fields: Mapping[str, Any]) -> None:
    number, follow = _version_of(fields, "rollback"), _flag(fields, "follow")
    if follow and not keeper.source.follows:
        raise InvalidArgumentError(f"rollback: model {keeper.name!r} follows no delta log: follow has no effect")
    frozen = keeper.source.follows and not follow
    keeper.ensure(number, frozen=frozen, force=_flag(fields, "force"))
    others = keeper.state.frozen - {number}
    keeper.commit(
        labels={**keeper.state.labels, STABLE: number},
        canary=None,  # a rollback applies to all requests
        frozen=others | {number} if frozen else others,
    )


def _resume(keeper: VersionManager, _: Mapping[str, Any]) -> None:
    labels = dict(keeper.state.labels)
    held = labels.pop(STABLE, None)
    if held is None:
        raise FailedPreconditionError(
            f"model {keeper.name!r}: no version has the label {STABLE!r}: the newest one answers already"
        )
    keeper.commit(labels=labels, frozen=keeper.state.frozen - {held})
    keeper.retry_refused()


_COMMANDS = {
    "label": (("label", "version", "force"), _label),
    "canary": (("version", "label", "share", "force"), _canary),
    "shadow": (("version", "label"), _shadow),
    "rollback": (("version", "follow", "force"), _rollback),
    "resume": ((), _resume),
}


def _choice(keeper: VersionManager, fields: Mapping[str, Any], verb: str) -> Choice | None:
    label = fields.get("label")
    if label is None:
        return None if fields.get("version") is None else Choice(version=_version_of(fields, verb))
    if fields.get("version") is not None:
        raise InvalidArgumentError(f"{verb}: give a version or a label, got both")
    if not isinstance(label, str) or label not in keeper.state.labels:
        known = ", ".join(sorted(keeper.state.labels)) or "none"
        raise NotFoundError(f"model {keeper.name!r}: there is no label {str(label)[:80]!r}; labels are: {known}")
    return Choice(label=label)


def _version_of(fields: Mapping[str, Any], verb: str) -> int:
    version = fields.get("version")
    if type(version) is not int or not 0 <= version < 2**63:
        raise InvalidArgumentError(f"{verb}: version must be an integer >= 0, got {str(version)[:80]!r}")
    return version


def _flag(fields: Mapping[str, Any], name: str) -> bool:
    value = fields.get(name, False)
    if not isinstance(value, bool):
        raise InvalidArgumentError(f"{name}: must be true or false, got {str(value)[:80]!r}")
    return value
