"""What writes files through storage, with a state before a write, a state after it, and a reader of both."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
import torch

from monolith.data.file_queue import LookUp
from monolith.data.file_queue.shared import SharedFileQueue
from monolith.data.records.reader import read_examples
from monolith.data.records.writer import write_examples
from monolith.deltalog import DeltaLog, IncrementKind
from monolith.export.export_folder import ExportFolder, ExportRecords, HeldFolder, versions_in
from monolith.export.manifest import ExportManifest, RowsPlace
from monolith.files import CopyFile, replaced_file, text_files
from monolith.job.queue_logs import QueueLogs
from monolith.job.queues import JobQueues
from monolith.ps.recovery.entries import RecordedState, RowsEntry, Section
from monolith.ps.recovery.old_files import OldFiles
from monolith.ps.recovery.record_log import RecordBatch, RecordLog
from monolith.tables import Fp32, HashTable, Segment, Sgd, TableConfig
from monolith.tables.formats import import_entry_dump
from monolith.tables.snapshot import MANIFEST_NAME, save, verify
from monolith.train.export.two_stage import CACHE, CachedItems, write_item_cache
from online.joiner.joins import FolderJoin, append, outcome, traffic

PART = "model.0000-1024"
OLD_RECORD = Path(__file__).parent.parent / "format" / "recovery_v1" / "record"
IMPRESSIONS = 40


def _equal(found: Any, wanted: Any) -> bool:
    return bool(found == wanted)


def _continued(found: Any, wanted: Any) -> bool:
    """Whether a log has no gap, and at least what is wanted."""
    return found[: len(wanted)] == wanted and found == sorted(found) and len(set(found)) == len(found)


def _at_least(found: int, wanted: int) -> bool:
    return found >= wanted


@dataclass(frozen=True, slots=True, kw_only=True)
class User:
    """One of them."""

    prepare: Callable[[Path], object] = lambda _: None
    """Makes the state before the write."""
    write: Callable[[Path], object]
    read: Callable[[Path], Any]
    """Returns the state, or raises an error if files are torn."""
    is_between: Callable[[Any, Any, Any], bool] = lambda before, found, after: found in (before, after)
    """Whether a crash may leave a state."""
    has_all: Callable[[Any, Any], bool] = _equal
    """Whether a state, after a crash and another write, has what that write had to leave."""


def _write_export(folder: Path, version: int) -> None:
    root = folder / str(version)
    export = ExportFolder(str(root))
    files = {name: export.write(name, b"%d" % version * 100) for name in ("weights.safetensors", "serve.graph")}
    table = HashTable(TableConfig([Segment(2, optimizer=Sgd())], name="user"))
    table.assign([version], np.ones((1, 2), np.float32))
    save(table.store, root / "rows" / "emb", state=False)
    rows = RowsPlace(
        kind="snapshot", path="rows", manifests={"emb": ExportFolder(str(root / "rows/emb")).sum_of(MANIFEST_NAME)}
    )
    manifest = ExportManifest(
        name="m", version=version, kind="standalone", created=0, step=version, torch="2", rows=rows, files=files,
        stores={"emb": {}},
    )  # fmt: skip
    export.publish(manifest)


def _write_dense_export(folder: Path) -> None:
    export = ExportFolder(str(folder / "1"))
    files = {"weights.safetensors": export.write("weights.safetensors", b"weights")}
    export.publish(ExportManifest(name="m", version=1, kind="dense", created=0, step=1, torch="2", files=files))


def _dense_exports(folder: Path) -> list[bytes]:
    exports = [ExportFolder(str(folder / str(version))) for version in versions_in(str(folder))]
    return [HeldFolder.of(export).files["weights.safetensors"] for export in exports]


def _add_export(folder: Path) -> None:
    records = ExportRecords(str(folder))
    _write_export(folder, 2)
    records.add(2, 2)
    records.retain({2})


def _first_export(folder: Path) -> None:
    _write_export(folder, 1)
    ExportRecords(str(folder)).add(1, 1)


def _exports(folder: Path) -> list[int]:
    """Reads the newest version in full; older ones may be half removed."""
    versions = versions_in(str(folder))
    export = HeldFolder.of(ExportFolder(str(folder / str(versions[-1]))))
    manifest = export.manifest()
    assert manifest.rows is not None
    assert export.read("serve.graph", manifest) == b"%d" % manifest.version * 100
    rows = folder / str(manifest.version) / "rows" / "emb"
    ExportFolder(str(rows)).read_summed(MANIFEST_NAME, manifest.rows.manifests["emb"])
    table = HashTable(TableConfig([Segment(2, compressor=Fp32())], name="user", serving=True))
    assert verify(table.store, rows).rows == {"user": 1}
    ExportRecords(str(folder)).has_rows()
    return versions[-1:]


def _write_item_cache(folder: Path, value: float) -> None:
    write_item_cache(CachedItems(torch.arange(3), torch.full((3, 2), float(value))), str(folder / "cache"))


def _item_cache(folder: Path) -> list[float]:
    table = HashTable(TableConfig([Segment(2, optimizer=Sgd())], name="cached_item_embeddings"))
    assert import_entry_dump(table, folder / "cache" / CACHE) == 3
    return [float(value) for value in np.unique(np.asarray(table.lookup([0, 1, 2])))]


def _append_increments(place: str, **options: Any) -> None:
    with DeltaLog(place, **options) as log, log.open_writer(PART) as writer:
        for _ in range(3):
            writer.append(kind=IncrementKind.DENSE, payload=b"weights")


def _increments(place: str) -> list[int]:
    """Opens the part, as the next writer does: it decides which increments of the one before count."""
    with DeltaLog(place) as log:
        log.open_writer(PART).close()
        with log.open_reader(PART) as reader:
            return [each.number for each in reader][:-1]


def _log(place: Callable[[Path], str], **options: Any) -> User:
    return User(
        prepare=lambda folder: _append_increments(place(folder), **options),
        write=lambda folder: _append_increments(place(folder), **options),
        read=lambda folder: _increments(place(folder)),
        is_between=lambda before, found, after: _continued(found, before) and _continued(after, found),
        has_all=_continued,
    )


def _read_record(folder: Path) -> RecordLog:
    """Reads a record as a server does that starts."""
    log, old = RecordLog(str(folder), 0, 2), OldFiles(str(folder), 0, 2)
    with closing(log):
        log.claim()
        old.copy_to(log)
        log.read()
        old.remove()
    return log


def _records(folder: Path) -> list[int]:
    """Numbers of the states, which have all their rows."""
    log = _read_record(folder)
    for state in log.states.values():
        sections = [entry.section for entry in state.stores.values()]
        records = [number for section in sections if section is not None for number in section.records]
        assert len(list(log.payloads(records))) == len(records)
    return [state.stores["rows"].end for state in log.states.values()]


def _append_record(folder: Path) -> None:
    log = _read_record(folder)
    end = 1 + max((state.stores["rows"].end for state in log.states.values()), default=0)

    def fill(batch: RecordBatch) -> RecordedState:
        section = Section(begin=end - 1, records=(batch.add(IncrementKind.ROWS, b"rows" * 100),), rows=1)
        rows = RowsEntry(
            agreement="", lineage=1, generation=0, life=0, end=end, stamps={}, newest_times=(), snapshots={},
            section=section,
        )  # fmt: skip
        return RecordedState(stores={"rows": rows})

    with closing(log):
        log.append(fill)


def _copy_old_record(folder: Path) -> None:
    shutil.copytree(OLD_RECORD, folder, dirs_exist_ok=True)


def _old_record(folder: Path) -> tuple[list[int], bool]:
    """The rows of all stores, and the other state, whether in old files or in the log."""
    log = _read_record(folder)
    sections = [entry.section for state in log.states.values() for entry in state.stores.values()]
    records = {number for section in sections if section is not None for number in section.records}
    digest = sorted({crc32(payload) for payload in log.payloads(records)})
    return digest, log.last.dense is not None and log.is_intact(log.last.dense.records) and bool(log.last.parts)


def _take_job_file(folder: Path) -> None:
    with closing(JobQueues(QueueLogs(folder / "queues"))) as queues:
        queue = queues.open("files", digest="x", num_look_ups=1, seed=None)
        while isinstance(found := queue.take(0, _job_files(folder), 0), LookUp):
            assert found.number is not None
            queue.found(found.number, ["a", "b", "c", "d"])


def _job_files(folder: Path) -> int:
    states = QueueLogs(folder / "queues").read()
    return sum("take" in event for event in states["files"]["events"]) if states else 0


def _make_files(folder: Path) -> None:
    for name in "abcd":
        (folder / name).touch()


def _take_shared_file(folder: Path) -> None:
    files = [f"{folder}/{name}" for name in "abcd"]
    SharedFileQueue(folder / "log", files, num_workers=1, seed=1).take(0, _shared_files(folder))


def _shared_files(folder: Path) -> int:
    log = folder / "log"
    return sum(b"take" in line for line in log.read_bytes().splitlines(keepends=True)) if log.exists() else 0


def _make_join(folder: Path) -> None:
    impressions, actions, _ = traffic(IMPRESSIONS)
    join = FolderJoin(folder)
    append(join.impressions, impressions)
    append(join.actions, actions)


def _join(folder: Path) -> None:
    FolderJoin(folder, batch_records=20).run()


def _joined(folder: Path) -> Any:
    """Joins what is left, and returns the complete output: each example once."""
    _join(folder)
    return outcome(FolderJoin(folder).examples())


USERS = {
    "text file": User(
        prepare=lambda folder: text_files.write_text(f"{folder}/file", "old"),
        write=lambda folder: text_files.write_text(f"{folder}/file", "new" * 100),
        read=lambda folder: text_files.read_text(f"{folder}/file"),
    ),
    "first text file": User(
        write=lambda folder: text_files.write_text(f"{folder}/sub/folder/file", "new" * 100),
        read=lambda folder: text_files.read_text(f"{folder}/sub/folder/file"),
    ),
    "file of another writer": User(
        prepare=lambda folder: (folder / "file").write_text("old"),
        write=lambda folder: _replace(folder / "file", "new" * 100),
        read=lambda folder: (folder / "file").read_text(),
    ),
    "copy": User(
        prepare=lambda folder: (folder / "source").write_text("new" * 100),
        write=lambda folder: CopyFile(f"{folder}/source", f"{folder}/sub/copy", max_retries=1),
        read=lambda folder: text_files.read_text(f"{folder}/sub/copy"),
    ),
    "records": User(
        prepare=lambda folder: write_examples(folder / "file", [b"old"]),
        write=lambda folder: write_examples(folder / "file", [b"new"] * 9),
        read=lambda folder: list(read_examples(folder / "file")),
    ),
    "export": User(prepare=_first_export, write=_add_export, read=_exports),
    "export without rows": User(write=_write_dense_export, read=_dense_exports),
    "item cache": User(
        prepare=lambda folder: _write_item_cache(folder, 1), write=lambda folder: _write_item_cache(folder, 2),
        read=_item_cache,
    ),
    "log in files": _log(lambda folder: str(folder / "log")),
    "log in small files": _log(lambda folder: str(folder / "log"), segment_bytes=600),
    "log in objects": _log(lambda folder: f"file://{folder}/log"),
    "recovery record of version 1": User(prepare=_copy_old_record, write=_read_record, read=_old_record),
    "recovery record": User(prepare=_append_record, write=_append_record, read=_records, has_all=_continued),
    "queue of a job": User(write=_take_job_file, read=_job_files, has_all=_at_least),
    "queue in a file": User(
        prepare=_make_files, write=_take_shared_file, read=_shared_files, has_all=_at_least
    ),
    "joiner": User(prepare=_make_join, write=_join, read=_joined),
}  # fmt: skip


def _replace(path: Path, text: str) -> None:
    with replaced_file(path) as temporary:
        temporary.write_text(text)


def prepare_all(place: Path) -> None:
    """Makes a folder for each user, with the state before the write."""
    for name, user in USERS.items():
        (place / name).mkdir()
        user.prepare(place / name)
