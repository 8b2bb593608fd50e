"""Manifests and graphs with changed content and correct checksums: rejected, or read without harm."""

from __future__ import annotations

import copy
import itertools
import json
import random
import resource
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from monolith.checkpoint.inspection import SavedState
from monolith.checkpoint.tensor_file import sum_of
from monolith.errors import OpError
from monolith.export.export_folder import ExportFolder, HeldFolder
from monolith.export.opened import OpenedExport
from monolith.export.writer import ExportConfig
from monolith.files import seal
from monolith.serving import Predictor
from monolith.tables.local.store import LocalStore
from monolith.tables.snapshot.restore import restore
from monolith.tables.snapshot.save import save
from monolith.tables.table_config import Segment, TableConfig
from monolith.testing.example_task import ExampleTask
from monolith.train import Trainer, TrainerConfig
from system.attack.attempt import Attempt

_GRAPH = "graph.serving_default.json"
_NUMBERS = (-1, 0, 1, 2, 7, 2**31, 2**40, 2**53 + 1, 2**63 - 1, 2**63, 2**64, 10**300, -(2**63), 1.5, 1e300)
_TEXTS = (
    "",
    ".",
    "..",
    "../x",
    "/etc/passwd",
    "a/b",
    "\0",
    "x" * 3000,
    "rows",
    "../../rows/1",
    "float32",
    "é",
    "__class__",
)
_OTHERS: tuple[Any, ...] = (None, True, False, [], {}, [[]], {"": {}}, [None] * 100)
_GROWTH_BYTES = 512 << 20
"""Memory that all attempts together may use."""
_DEPTHS = (40, 70, 200)


def attempts(seed: int, folder: Path) -> Iterator[Attempt]:
    """Changes one or several values of a document, seals it, and lets its reader read it."""
    torch.set_num_threads(1)
    draw = random.Random(f"{seed} manifests")  # noqa: S311 - to repeat, not secrets
    targets = [
        *_export_targets(folder / "export"),
        _checkpoint_target(folder / "model"),
        _snapshot_target(folder / "rows"),
    ]
    for _, document, read in targets:
        read(document)  # the unchanged document must be readable; also triggers deferred imports
    before = _peak()
    outside = _listing(folder)
    for number in itertools.count():
        name, document, read = targets[number % len(targets)]
        changed, what = _changed(document, draw)
        attempt = _attempt(f"{name}: {what}", read, changed)
        if attempt.problem is None and _peak() - before > _GROWTH_BYTES:
            attempt = Attempt(attempt.what, "grew", f"{(_peak() - before) >> 20} MiB more than at the start")
            before = _peak()
        if attempt.problem is None and number % 50 == 0 and _listing(folder) != outside:
            attempt = Attempt(attempt.what, "wrote", "there are other files than before")
        yield attempt


def _attempt(what: str, read: Callable[[Any], None], document: Any) -> Attempt:
    try:
        read(document)
    except OpError as error:
        return Attempt(what, f"refused: {type(error).__name__}")
    except Exception as error:  # noqa: BLE001 - any other error is no proper rejection
        return Attempt(what, "failed", f"{type(error).__name__}: {error}")
    return Attempt(what, "read")


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


def _listing(folder: Path) -> list[str]:
    return sorted(str(path) for path in folder.rglob("*"))


# Changes


def _changed(document: Any, draw: random.Random) -> tuple[Any, str]:
    changed, told = copy.deepcopy(document), []
    places = list(_places(changed))
    for _ in range(draw.choice([1, 1, 1, 2, 5])):
        with suppress(LookupError):  # another change removed it
            told.append(_change(*draw.choice(places), draw, places))
    return changed, "; ".join(told)[:300]


def _change(parent: Any, key: Any, draw: random.Random, places: list[tuple[Any, Any]]) -> str:
    how = draw.randrange(8)
    if how == 0:
        del parent[key]
        return f"without {key!r}"
    if how == 1 and isinstance(parent, list):
        parent.insert(key, copy.deepcopy(parent[key]))
        return f"{key!r} twice"
    if how == 2 and isinstance(parent, dict):
        parent[draw.choice(_TEXTS) or "unknown"] = parent.pop(key)
        return f"{key!r} under another name"
    if how == 3:
        other, place = draw.choice(places)
        value = copy.deepcopy(other[place]) if isinstance(other, list | dict) else 0
    elif how == 4:
        value = _nested(draw.choice(_DEPTHS))
    else:
        value = draw.choice(draw.choice((_NUMBERS, _TEXTS, _OTHERS)))
    parent[key] = value
    return f"{key!r} is {str(value)[:40]!r}"


def _nested(depth: int) -> Any:
    value: Any = 0
    for _ in range(depth):
        value = [value]
    return value


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    items: Any = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, each in list(items):
        yield value, key
        yield from _places(each)


# Readers

_Target = tuple[str, Any, "Callable[[Any], None]"]


def _export_targets(folder: Path) -> list[_Target]:
    trainer = Trainer(ExampleTask())
    trainer.train(steps=2)
    batch = next(iter(trainer.task.input_fn("train")))
    place = Path(trainer.export(str(folder), example=batch, options=ExportConfig(version=1)))
    manifest_text = (place / "manifest.json").read_bytes()
    held = HeldFolder.of(ExportFolder(str(place)))

    def read_manifest(document: Any) -> None:
        (place / "manifest.json").write_bytes(seal(document))
        try:
            with Predictor(str(place)) as predictor:
                predictor.predict({"user": [7, 8], "item": [5, 5]})
        finally:
            (place / "manifest.json").write_bytes(manifest_text)

    def read_graph(document: Any) -> None:
        text, manifest = json.dumps(document).encode(), json.loads(manifest_text)
        found = sum_of(text)
        manifest["files"][_GRAPH] = {"bytes": found.bytes, "crc32c": found.crc32c}
        files = {**held.files, _GRAPH: text, "manifest.json": seal(manifest)}
        export = OpenedExport(HeldFolder(str(place), files))
        export.verify("serving_default", export.graph("serving_default", joins_rows=True), export.weights())

    graph = json.loads((place / _GRAPH).read_bytes())
    return [("export", json.loads(manifest_text), read_manifest), ("graph", graph, read_graph)]


def _checkpoint_target(folder: Path) -> _Target:
    Trainer(ExampleTask(), TrainerConfig(model_dir=str(folder))).train(steps=2)
    path = folder / "model.ckpt-2.manifest"
    whole = path.read_bytes()

    def read(document: Any) -> None:
        path.write_bytes(seal(document))
        try:
            SavedState(str(folder / "model.ckpt-2")).verify()
        finally:
            path.write_bytes(whole)

    return "checkpoint", json.loads(whole), read


def _snapshot_target(folder: Path) -> _Target:
    store = LocalStore({"t": TableConfig([Segment(4)])})
    save(store, folder)
    path = folder / "manifest.json"
    whole = path.read_bytes()

    def read(document: Any) -> None:
        path.write_bytes(seal(document))
        try:
            restore(store, folder)
        finally:
            path.write_bytes(whole)

    return "snapshot", json.loads(whole), read
