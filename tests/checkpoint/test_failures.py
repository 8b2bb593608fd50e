"""Whatever goes wrong, the directory holds the checkpoint that it held before, and the run goes on as it was."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
import resource
import shutil
import signal
import socket
import subprocess
import textwrap
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from checkpoint.runs import Run, contents
from checkpoint.zygote import Zygote
from monolith.checkpoint import ModelDirLock, SavedCheckpoint, Saver, TrainState
from monolith.checkpoint.model_dir_lock import GENERATION, LOCK
from monolith.checkpoint.restore.restoring import restore_all
from monolith.errors import (
    DataLossError,
    FailedPreconditionError,
    FileUnavailableError,
    InvalidArgumentError,
    NotFoundError,
    OpError,
    PermissionDeniedError,
    ResourceExhaustedError,
    UnavailableError,
)
from monolith.files import named_errors
from monolith.files.storage import LocalStorage


@pytest.fixture
def run() -> Run:
    run = Run()
    run.steps(3)
    return run


def names(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def resumed_step(folder: Path) -> int:
    again = Run(seed=9)
    restored = Saver(folder).restore(again.state)
    assert restored is not None
    return restored.step


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """Writes beyond this size fail, as they do on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def save_and_wait(saver: Saver, run: Run, *, background: bool) -> None:
    saver.save(run.state, background=background)
    saver.wait()


@pytest.mark.parametrize("background", [False, True])
@pytest.mark.parametrize("size", [0, 500, 5_000, 12_000])
def test_a_file_that_cannot_be_written_in_full(tmp_path: Path, run: Run, size: int, *, background: bool) -> None:
    """A limit of 0 stops the tables, larger ones the tensors, the manifest."""
    with Saver(tmp_path) as saver:
        saver.save(run.state)
        before, held = names(tmp_path), contents(run)
        run.state.global_step += 1
        with largest_file(size), pytest.raises(ResourceExhaustedError, match=r"model\.ckpt-4"):
            save_and_wait(saver, run, background=background)
        assert names(tmp_path) == before
        run.state.global_step -= 1
        assert contents(run) == held
        assert resumed_step(tmp_path) == 3
        run.step()
        assert saver.save(run.state, background=False).step == 4
    assert resumed_step(tmp_path) == 4


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 256 KiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount, umount = shutil.which("mount"), shutil.which("umount")
    if os.geteuid() != 0 or mount is None or umount is None:
        pytest.skip("mounting needs root")
    mounted = subprocess.run(
        [mount, "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(folder)], check=False, capture_output=True
    )
    if mounted.returncode != 0:
        pytest.skip("this machine does not let tests mount")
    yield folder
    subprocess.run([umount, str(folder)], check=True)


def fill(path: Path) -> None:
    with path.open("wb", buffering=0) as file:
        while True:
            file.write(b"x" * 1024)


def test_a_full_disk(tiny_disk: Path, run: Run) -> None:
    with Saver(tiny_disk, max_to_keep=2) as saver:
        saver.save(run.state)
        with pytest.raises(OSError, match="No space"):
            fill(tiny_disk / "filler")
        run.step()
        with pytest.raises(ResourceExhaustedError, match=r"make room|writing failed"):
            saver.save(run.state)
        assert resumed_step(tiny_disk) == 3
        (tiny_disk / "filler").unlink()
        saver.save(run.state)
    assert resumed_step(tiny_disk) == 4


class Refusing(LocalStorage):
    """A folder on which nothing can be written."""

    def write(self, name: str, pieces: Iterable[memoryview | bytes], *, past_cache: bool = False) -> None:
        with named_errors(self.place(name), "written"):
            raise OSError(errno.EROFS, "Read-only file system")


def test_a_read_only_directory(tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    saver = Saver(tmp_path)
    monkeypatch.setattr(saver, "_folder", Refusing(tmp_path))
    with pytest.raises(PermissionDeniedError, match=r"cannot be written: Read-only file system"):
        saver.save(run.state)
    with ModelDirLock(tmp_path):  # the failed one has let go of it
        pass
    saver.close()


FORBIDDEN = textwrap.dedent("""
    import json, os, torch
    from monolith.checkpoint import Saver, TrainState
    from monolith.errors import OpError
    os.chdir(arguments[0])
    if os.geteuid() == 0:
        os.setuid(65534)
    try:
        Saver("model").save(TrainState(model=torch.nn.Linear(1, 1)))
    except OpError as error:
        print(json.dumps([type(error).__name__, str(error)]), flush=True)
""")


def test_a_directory_that_may_not_be_written(tmp_path: Path, zygote: Zygote) -> None:
    """Root may write anywhere, so a process without its rights tries."""
    folder = tmp_path / "model"
    folder.mkdir(mode=0o555)
    tmp_path.chmod(0o755)
    lines, status = zygote.run(FORBIDDEN, str(tmp_path))
    assert status == 0
    ((name, text),) = lines
    assert name == "PermissionDeniedError"
    assert re.match(r"'model/.*': cannot be (written|opened): Permission denied", text), text


def test_missing_parents_are_made_and_a_file_in_their_place_is_refused(tmp_path: Path, run: Run) -> None:
    with Saver(tmp_path / "a" / "b") as saver:
        saver.save(run.state)
    assert resumed_step(tmp_path / "a" / "b") == 3
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidArgumentError, match=r"Parent directory of .*/file/model doesn't exist, can't save\."):
        Saver(tmp_path / "file" / "model").save(run.state)
    with pytest.raises(InvalidArgumentError, match=r"/file doesn't exist, can't save\."):
        Saver(tmp_path / "file").save(run.state)


def test_a_directory_that_vanishes_is_made_again(tmp_path: Path, run: Run) -> None:
    folder = tmp_path / "model"
    saver = Saver(folder)
    saver.save(run.state)
    shutil.rmtree(folder)
    with pytest.raises(NotFoundError, match="cannot be written"):
        saver.save(run.state)
    saver.close()
    with saver:
        saver.save(run.state)
    assert resumed_step(folder) == 3


def damage(path: Path, how: str) -> None:
    data = path.read_bytes()
    if how == "truncate":
        path.write_bytes(data[: len(data) // 2])
    elif how == "flip":
        middle = len(data) // 2
        path.write_bytes(data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :])
    elif how == "lengthen":
        path.write_bytes(data + b"x")
    elif how == "empty":
        path.write_bytes(b"")
    else:
        path.unlink()


@pytest.mark.parametrize(
    "how", ["flip", *(pytest.param(how, marks=pytest.mark.slow) for how in ("truncate", "lengthen", "empty")), "remove"]
)
@pytest.mark.parametrize(
    "file", ["model.ckpt-4.manifest", "model.ckpt-4.safetensors", "model.ckpt-4.assets/emb/manifest.json", "*.rows"]
)
def test_a_damaged_newest_checkpoint_gives_way_to_the_one_before_it(
    tmp_path: Path, run: Run, how: str, file: str, caplog: pytest.LogCaptureFixture
) -> None:
    with Saver(tmp_path) as saver:
        saver.save(run.state)
        before = contents(run)
        run.step()
        saver.save(run.state)
    path = next((tmp_path / "model.ckpt-4.assets" / "emb").glob(file)) if "*" in file else tmp_path / file
    damage(path, how)
    again = Run(seed=9)
    again.steps(2)
    held = contents(again)
    with pytest.raises((DataLossError, NotFoundError, InvalidArgumentError)):
        Saver(tmp_path).restore(again.state, "model.ckpt-4")
    assert contents(again) == held
    restored = Saver(tmp_path).restore(again.state)
    assert restored is not None
    assert restored.step == 3
    assert contents(again) == before
    if not (file.endswith(".manifest") and how == "remove"):  # without its manifest there is no such checkpoint
        assert "model.ckpt-4' cannot be used, trying the one before it" in caplog.text
        assert "model.ckpt-3' was restored instead" in caplog.text


def test_if_all_are_damaged_the_error_is_that_of_the_newest(tmp_path: Path, run: Run) -> None:
    with Saver(tmp_path) as saver:
        saver.save(run.state)
        run.step()
        saver.save(run.state)
    for path in tmp_path.glob("*.safetensors"):
        damage(path, "flip")
    again = Run(seed=9)
    held = contents(again)
    with pytest.raises(DataLossError, match=r"model\.ckpt-4\.safetensors': checksum does not match"):
        Saver(tmp_path).restore(again.state)
    assert contents(again) == held


def test_a_restore_concurrent_with_a_saver_takes_the_newest_when_retention_removes_what_it_reads(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The saver keeps one checkpoint, and commits the next two while the reader has chosen one and not read it."""
    with Saver(tmp_path, max_to_keep=1) as saver:
        saver.save(run.state)
        saves = iter(range(2))

        def overtaken(*values: Any, **named: Any) -> Any:
            if next(saves, None) is not None:
                run.steps(1)
                saver.save(run.state)
            return restore_all(*values, **named)

        monkeypatch.setattr("monolith.checkpoint.saver.restore_all", overtaken)
        again = Run(seed=9)
        restored = Saver(tmp_path).restore(again.state)
    assert restored is not None
    assert restored.step == again.state.global_step == run.state.global_step


@pytest.mark.parametrize("kept", [0, 10, 40])
def test_a_generation_file_that_was_cut_off_does_not_block_the_directory(
    tmp_path: Path, run: Run, caplog: pytest.LogCaptureFixture, kept: int
) -> None:
    with Saver(tmp_path) as saver:
        before = saver.save(run.state)
    file = tmp_path / GENERATION
    file.write_bytes(file.read_bytes()[:kept])
    run.steps(1)
    with Saver(tmp_path) as saver:
        after = saver.save(run.state)
    assert isinstance(before, SavedCheckpoint)
    assert isinstance(after, SavedCheckpoint)
    assert after.generation > before.generation
    assert f"file '{file}': not what was written" in caplog.text
    assert resumed_step(tmp_path) == run.state.global_step


def test_files_of_two_checkpoints_cannot_be_mixed(tmp_path: Path, run: Run) -> None:
    with Saver(tmp_path) as saver:
        saver.save(run.state)
        run.step()
        saver.save(run.state)
    shutil.rmtree(tmp_path / "model.ckpt-4.assets")
    shutil.copytree(tmp_path / "model.ckpt-3.assets", tmp_path / "model.ckpt-4.assets")
    with pytest.raises(DataLossError, match="not the one that this checkpoint was committed with"):
        Saver(tmp_path).restore(run.state, "model.ckpt-4")


KILLED = textwrap.dedent("""
    import os, signal
    from checkpoint.runs import Run
    from monolith.checkpoint import Saver
    from monolith.files.storage import LocalStorage

    folder, at, number = arguments
    countdown = int(number)

    def deadly(name):
        original = getattr(LocalStorage, name)
        def call(self, *args, **options):
            global countdown
            if name == at:
                countdown -= 1
                if countdown == 0:
                    os.kill(os.getpid(), signal.SIGKILL)
            return original(self, *args, **options)
        return call

    run = Run()
    run.steps(3)
    with Saver(folder) as saver:
        saver.save(run.state)
        print(saver.generation, flush=True)
        run.steps(1)
        for name in ("write", "replace", "sync", "remove"):
            setattr(LocalStorage, name, deadly(name))
        saver.save(run.state, background=True)
        saver.wait()
""")


@pytest.mark.parametrize(
    ("at", "number", "step"),
    [
        pytest.param("write", 1, 3, marks=pytest.mark.slow),  # the mark
        pytest.param("write", 2, 3, marks=pytest.mark.slow),  # the manifest of the rows
        ("write", 3, 3),  # the tensors
        pytest.param("write", 4, 3, marks=pytest.mark.slow),  # the description of the model
        ("write", 5, 3),  # the manifest
        ("replace", 3, 3),
        pytest.param("sync", 4, 3, marks=pytest.mark.slow),
        pytest.param("sync", 5, 4, marks=pytest.mark.slow),  # the manifest has its name
        ("write", 6, 4),  # the file `checkpoint`
        ("remove", 1, 4),
    ],
)
def test_a_killed_save_leaves_a_complete_checkpoint_and_is_cleaned_up(
    tmp_path: Path, zygote: Zygote, at: str, number: int, step: int
) -> None:
    (generation,), status = zygote.run(KILLED, str(tmp_path), at, str(number))
    assert status == -signal.SIGKILL

    reference = Run()
    reference.steps(step)
    expected = contents(reference)
    again = Run(seed=5)
    with Saver(tmp_path) as saver:
        restored = saver.restore(again.state)
        assert restored is not None
        assert (restored.step, restored.generation) == (step, generation)
        assert contents(again) == expected
        saver.begin()
        assert saver.generation == generation + 1
        assert {path.name.split(".")[1] for path in tmp_path.glob("model.*")} <= {"ckpt-3", "ckpt-4"}
        prefixes = {path.name.removesuffix(".manifest") for path in tmp_path.glob("*.manifest")}
        others = [path for path in tmp_path.glob("model.ckpt-*") if not path.name.startswith(tuple(prefixes))]
        assert others == []
        assert not [*tmp_path.glob("*.saving"), *tmp_path.glob("*.tmp")]


def test_what_another_program_left_is_not_removed(tmp_path: Path, run: Run) -> None:
    """A save of ours was killed at a step of which there is a TensorFlow checkpoint."""
    foreign = ["model.ckpt-9.index", "model.ckpt-9.data-00000-of-00001"]
    ours = ["model.ckpt-9.safetensors", "model.ckpt-9.manifest.tmp", "model.ckpt-9.saving"]
    for name in [*foreign, *ours]:
        (tmp_path / name).write_text("")
    with Saver(tmp_path) as saver:
        saver.save(run.state)
    assert {path.name for path in tmp_path.glob("model.ckpt-9*")} == set(foreign)


LOCKING = textwrap.dedent("""
    import os, time
    from monolith.checkpoint import ModelDirLock
    lock = ModelDirLock(arguments[0])
    child = os.fork() if arguments[1:] else 0
    if arguments[1:] and child == 0:
        os.close(1)
        time.sleep(300)
        os._exit(0)
    print(child, flush=True)
    time.sleep(300)
""")


@pytest.mark.parametrize("forks", [(), ("forks",)], ids=["alone", "leaving a child"])
def test_the_lock_names_the_other_and_dies_with_it(
    tmp_path: Path, run: Run, zygote: Zygote, forks: tuple[str, ...]
) -> None:
    """A child that the other has forked, such as a data loader's worker, does not keep the lock."""
    other = zygote.start(LOCKING, str(tmp_path), *forks)
    child = zygote.line()
    reason = rf"in use by process {other} on host {socket.gethostname()}, since .*; one chief may write"
    with pytest.raises(UnavailableError, match=reason):
        Saver(tmp_path).save(run.state)
    assert Saver(tmp_path).restore(run.state) is None  # readers are free
    os.kill(other, signal.SIGKILL)
    assert zygote.line() == {"status": -signal.SIGKILL}
    with Saver(tmp_path) as saver:
        saver.save(run.state)
        assert json.loads((tmp_path / LOCK).read_text())["pid"] == os.getpid()
    if forks:
        assert isinstance(child, int)
        os.kill(child, signal.SIGKILL)  # it lived until now


def test_a_lock_that_fails_is_not_reported_as_in_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(descriptor: int, operation: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(fcntl, "flock", fails)
    with pytest.raises(FileUnavailableError, match=rf"'{tmp_path}/{LOCK}': cannot be locked: Input/output error"):
        ModelDirLock(tmp_path)


def test_releasing_twice_and_losing_the_object_are_fine(tmp_path: Path) -> None:
    lock = ModelDirLock(tmp_path)
    lock.release()
    lock.release()
    assert not lock.is_held
    ModelDirLock(tmp_path)  # lost at once
    with ModelDirLock(tmp_path) as held:
        assert held.is_held


def test_a_run_that_was_replaced_commits_nothing(tmp_path: Path, run: Run) -> None:
    """On file systems without locks; here the lock is taken away by hand."""
    old = Saver(tmp_path)
    old.save(run.state)
    assert old._lock is not None
    old._lock.release()
    with Saver(tmp_path) as new:
        run.step()
        new.save(run.state)
        run.step()
        before = names(tmp_path)
        with pytest.raises(FailedPreconditionError, match=r"generation 1 and was replaced by process .* generation 2"):
            old.save(run.state)
        assert names(tmp_path) == before
        new.save(run.state)
    old.close()


def test_an_error_in_the_background_comes_up_at_the_next_call(tmp_path: Path, run: Run) -> None:
    saver = Saver(tmp_path, background=True)
    saver.begin()
    (tmp_path / "model.ckpt-3.safetensors").mkdir()
    pending = saver.save(run.state, background=True)
    while not pending.done:
        time.sleep(0.001)
    with pytest.raises(OpError, match="Is a directory"):
        saver.save(run.state)
    pending = saver.save(run.state, background=True)  # the failed one has cleaned up
    assert pending.wait(30).step == 3
    (tmp_path / "model.ckpt-4.safetensors").mkdir()
    run.step()
    saver.save(run.state)
    with pytest.raises(OpError, match="Is a directory"):
        saver.close()
    saver.close()
    assert resumed_step(tmp_path) == 3


def test_saving_the_only_checkpoint_again_never_leaves_none(tmp_path: Path, run: Run) -> None:
    with Saver(tmp_path, max_to_keep=1) as saver:
        saver.save(run.state)
        before = names(tmp_path)
        with largest_file(500), pytest.raises(ResourceExhaustedError):
            saver.save(run.state)
        assert [name for name in names(tmp_path) if not name.endswith(".saving")] == before
        assert resumed_step(tmp_path) == 3
        run.state.positions["mine"] = b"other"
        saver.save(run.state)
    again = Run(seed=9)
    Saver(tmp_path).restore(again.state)
    assert again.state.positions == {"mine": b"other"}
    assert len(list(tmp_path.glob("model.ckpt-3*.safetensors"))) == 1


def test_a_cut_that_fails_leaves_the_store_usable(tmp_path: Path, run: Run) -> None:
    class Odd:
        def state_dict(self) -> dict[str, object]:
            return {"a": {"b": object()}}

        def load_state_dict(self, state_dict: dict[str, object]) -> None:
            raise NotImplementedError

    state = TrainState(model=run.model, extra={"odd": Odd()})
    with Saver(tmp_path) as saver:
        with pytest.raises(InvalidArgumentError, match=r"'@extra/odd/a/b' is a object, which cannot be saved"):
            saver.save(state)
        saver.save(run.state)
