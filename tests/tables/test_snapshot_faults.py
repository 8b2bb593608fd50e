"""A save that cannot end, for want of space, of its process or of the network, leaves the snapshot before it."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import fsspec
import pytest

from monolith.errors import (
    DataLossError,
    FailedPreconditionError,
    NotFoundError,
    ResourceExhaustedError,
    UnavailableError,
)
from monolith.files import LocalStorage
from monolith.tables import HashTable
from monolith.tables.snapshot import read_manifest, restore, save, verify
from monolith.tables.snapshot.manifest import MANIFEST_NAME
from tables.snapshot_cases import group_state, item_config, some_ids, state_of, train, trained_group, two_tables


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """Writes beyond this size fail, as they do on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("size", [0, 100, 5_000, 50_000])
@pytest.mark.parametrize("num_files", [1, 2])
def test_a_write_that_fails_names_the_file_and_leaves_nothing(tmp_path: Path, size: int, num_files: int) -> None:
    group = trained_group(2000)
    save(group.store, tmp_path, extra="before")
    before = sorted(path.name for path in tmp_path.iterdir())
    reason = r"buckets-.*\.rows\.tmp': writing failed"
    with largest_file(size), pytest.raises(ResourceExhaustedError, match=reason):
        save(group.store, tmp_path, num_files=num_files)
    assert sorted(path.name for path in tmp_path.iterdir()) == before
    with largest_file(size), pytest.raises(ResourceExhaustedError, match=reason):
        save(group.store, tmp_path, num_files=num_files, background=True).wait(30)
    assert sorted(path.name for path in tmp_path.iterdir()) == before
    assert verify(two_tables().store, tmp_path).extra == "before"
    save(group.store, tmp_path, extra="after")
    assert verify(two_tables().store, tmp_path).extra == "after"


def test_a_manifest_that_cannot_be_written_leaves_nothing(tmp_path: Path) -> None:
    table = HashTable(item_config())
    save(table.store, tmp_path, extra="before")
    before = sorted(path.name for path in tmp_path.iterdir())
    # an empty table's file is 80 bytes, its manifest several hundred
    with largest_file(100), pytest.raises(ResourceExhaustedError, match=r"manifest\.json.*': cannot be written"):
        save(table.store, tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == before
    assert read_manifest(tmp_path).extra == "before"


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 256 KiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount, umount = shutil.which("mount"), shutil.which("umount")
    if os.geteuid() != 0 or mount is None or umount is None:
        pytest.skip("mounting needs root")
    command = [mount, "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(folder)]
    if subprocess.run(command, check=False, capture_output=True).returncode != 0:
        pytest.skip("mounting is not allowed here")
    yield folder
    subprocess.run([umount, str(folder)], check=True)


def test_a_full_disk_is_reported_and_frees_its_space_again(tiny_disk: Path) -> None:
    small, large = HashTable(item_config()), HashTable(item_config())
    train(small, some_ids(100))
    train(large, some_ids(20_000))
    save(small.store, tiny_disk)
    with pytest.raises(ResourceExhaustedError, match="No space left on device"):
        save(large.store, tiny_disk)
    assert len(list(tiny_disk.iterdir())) == 2
    save(small.store, tiny_disk)
    restored = HashTable(item_config())
    restore(restored.store, tiny_disk)
    assert state_of(restored) == state_of(small)


VICTIM_PROCESS = """
    import sys
    import numpy as np
    from monolith.tables import HashTable, Segment, TableConfig, row_optimizers
    from monolith.tables.snapshot import save
    table = HashTable(TableConfig([Segment(2, optimizer=row_optimizers.Ftrl(learning_rate=0.1))], name="item"))
    table.assign(np.arange(20_000), np.ones((20_000, 2), np.float32), time=1)
    save(table.store, sys.argv[1], extra="whole")
    table.assign(np.arange(20_000), np.zeros((20_000, 2), np.float32), time=2)
    slow = {"num_files": 4, "rate_bytes_per_second": 200_000}
    handle = save(table.store, sys.argv[1], extra="torn", background=True, **slow)
    while handle.progress.bytes_written < 100_000:
        pass
    print("writing", flush=True)
    handle.wait()
"""


@pytest.mark.slow
@pytest.mark.usefixtures("forked_starts")
def test_a_killed_process_leaves_the_snapshot_before_it(tmp_path: Path) -> None:
    folder = tmp_path / "snapshot"
    command = [sys.executable, "-c", textwrap.dedent(VICTIM_PROCESS), str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "writing\n"
        process.send_signal(signal.SIGKILL)
    assert any(path.name.endswith(".rows.tmp") for path in folder.iterdir())
    table = HashTable(item_config())
    assert restore(table.store, folder).extra == "whole"
    assert len(table) == 20_000
    assert (table.lookup(table.ids()) == 1).all()
    save(table.store, folder)
    assert len(list(folder.iterdir())) == 2, "the next save removes what the killed one left"


def test_a_folder_that_cannot_be_made_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(UnavailableError, match="cannot be created"):
        save(HashTable(item_config()).store, tmp_path / "file" / "folder")


def test_a_damaged_manifest_does_not_keep_a_new_save_out(tmp_path: Path) -> None:
    table = HashTable(item_config())
    save(table.store, tmp_path)
    (tmp_path / MANIFEST_NAME).write_text("damaged")
    save(table.store, tmp_path, extra="new")
    assert read_manifest(tmp_path).extra == "new"


def test_a_slow_save_keeps_to_its_rate(tmp_path: Path) -> None:
    group = trained_group(2000)
    size = save(group.store, tmp_path).bytes
    begun = time.monotonic()
    save(group.store, tmp_path, rate_bytes_per_second=2 * size)
    assert time.monotonic() - begun > 0.4


@pytest.fixture
def memory_path() -> Iterator[str]:
    filesystem = fsspec.filesystem("memory")
    path = "memory://snapshots/one"
    yield path
    filesystem.rm("/snapshots", recursive=True)


def test_other_file_systems_hold_snapshots_too(memory_path: str) -> None:
    group, restored = trained_group(), two_tables()
    save(group.store, memory_path, num_files=3, generation=2)
    save(group.store, memory_path, num_files=2, generation=2)
    names = {path.rpartition("/")[2] for path in fsspec.filesystem("memory").ls("/snapshots/one", detail=False)}
    assert len(names) == 3
    assert MANIFEST_NAME in names
    restore(restored.store, memory_path)
    assert group_state(restored) == group_state(group)
    with pytest.raises(FailedPreconditionError, match="generation 2"):
        save(group.store, memory_path)


def test_damage_on_other_file_systems_is_found(memory_path: str) -> None:
    group, other = trained_group(), two_tables()
    save(group.store, memory_path, num_files=2)
    filesystem = fsspec.filesystem("memory")
    name = next(path for path in filesystem.ls("/snapshots/one", detail=False) if path.endswith(".rows"))
    content = filesystem.cat_file(name)
    filesystem.pipe_file(name, content[:-1])
    with pytest.raises(DataLossError, match="bytes long, the manifest has"):
        restore(other.store, memory_path)
    filesystem.rm_file(name)
    with pytest.raises(NotFoundError, match="is missing"):
        restore(other.store, memory_path)
    assert group_state(other) == {"item": {}, "user": {}}


def test_a_remote_folder_without_snapshot_is_not_found() -> None:
    with pytest.raises(NotFoundError, match="no snapshot here"):
        restore(two_tables().store, "memory://nowhere")


def test_a_file_url_is_a_local_folder(tmp_path: Path) -> None:
    group, restored = trained_group(), two_tables()
    save(group.store, f"file://{tmp_path}/here")
    restore(restored.store, tmp_path / "here")
    assert group_state(restored) == group_state(group)


def test_names_of_files_are_durable_before_the_manifest_names_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []

    def record(name: str) -> None:
        call = getattr(LocalStorage, name)

        def recorded(storage: LocalStorage, *arguments: object) -> None:
            calls.append(f"{name} {storage.place(str(arguments[0]) if arguments else '')}")
            call(storage, *arguments)

        monkeypatch.setattr(LocalStorage, name, recorded)

    record("sync")
    record("replace")
    save(trained_group(100).store, tmp_path)
    manifest = calls.index(f"replace {tmp_path / MANIFEST_NAME}")
    assert f"sync {tmp_path}" in calls[:manifest]
    assert f"sync {tmp_path}" in calls[manifest:]
