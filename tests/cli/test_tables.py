"""``monolith tables erase``: rows leave checkpoints that nothing trains from, and runs that train."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from checkpoint.runs import Run
from monolith.checkpoint import ModelDirLock, Saver
from monolith.checkpoint.inspection import SavedState, resolve
from monolith.cli import main
from monolith.data import text_ids
from monolith.deltalog.publish import erasing
from monolith.deltalog.publish.erasing import erase_from_checkpoint
from monolith.errors import UnavailableError
from monolith.files.storage import open_storage


@pytest.fixture
def model_dir(tmp_path: Path) -> Path:
    run, folder = Run(min_count=2, id_factor=-(2**50)), tmp_path / "model"
    with Saver(folder) as saver:
        for _ in range(2):
            run.steps(3)
            saver.save(run.state)
    return folder


def erase(capsys: pytest.CaptureFixture[str], *arguments: object, status: int = 0) -> str:
    assert main(["tables", "erase", *map(str, arguments)]) == status
    said = capsys.readouterr()
    return said.out if status == 0 else said.err


def restored(model_dir: Path) -> Run:
    run = Run(min_count=2, id_factor=-(2**50), seed=5)
    with Saver(model_dir) as saver:
        saver.restore(run.state)
    return run


def test_rows_leave_every_checkpoint_and_a_run_resumes_without_them(
    model_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = restored(model_dir)
    items, _ = before.model.emb.vectors("item")
    chosen = [int(items[0]), int(items[-1]), 123]
    before.model.emb.erase("item", chosen)
    newest = {"path": f"{model_dir}/model.ckpt-6", "rows": 2}
    document = json.loads(erase(capsys, model_dir, "--ids", *chosen, "--slot", "item", "--json", "--dry_run"))
    assert document["checkpoints"][-1] == newest
    assert document == json.loads(erase(capsys, model_dir, "--ids", *chosen, "--slot", "item", "--json"))
    assert [each["path"][-1] for each in document["checkpoints"]] == ["3", "6"]
    for step in (3, 6):
        SavedState(f"{model_dir}/model.ckpt-{step}").verify()
    assert {path.name for path in model_dir.glob("*.assets")} <= SavedState(resolve(str(model_dir))).manifest.names | {
        path.name for path in model_dir.glob("model.ckpt-3*.assets")
    }
    assert not list(model_dir.glob("*.saving"))
    after = restored(model_dir)
    for slot in ("user", "item"):
        assert all(
            a.equal(b) for a, b in zip(after.model.emb.vectors(slot), before.model.emb.vectors(slot), strict=True)
        )
    assert after.state.global_step == 6
    assert after.steps(3)
    assert json.loads(erase(capsys, model_dir, "--ids", *chosen, "--slot", "item", "--json"))["rows"] == 0


def test_what_admission_has_counted_leaves_the_checkpoint(model_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ids = torch.arange(50) * -(2**50)
    expected = restored(model_dir)
    removed = expected.model.emb.erase("user", ids[::2])
    assert 0 < removed < 25  # others were counted, and have no row yet
    expected.steps(2)
    whole = restored(model_dir)
    whole.steps(2)
    erase(capsys, f"{model_dir}/model.ckpt-6", "--ids", *ids[::2].tolist(), "--slot", "user")
    found = restored(model_dir)
    found.steps(2)
    ids_found, rows_found = found.model.emb.vectors("user")
    ids_expected, rows_expected = expected.model.emb.vectors("user")
    assert ids_found.equal(ids_expected)
    assert rows_found.equal(rows_expected)
    assert len(ids_found) < len(whole.model.emb.vectors("user")[0])


def test_ids_come_from_a_file_and_from_texts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = Run()
    run.model.emb.assign("user", text_ids("name", ["ann", "bob", "eve"]), torch.ones(3, 4))
    with Saver(tmp_path) as saver:
        saver.save(run.state)
    (tmp_path / "deleted").write_text("bob\n\n eve \n")
    said = erase(capsys, tmp_path, "--slot", "user", "--texts", "name", "--ids_file", tmp_path / "deleted", "--dry_run")
    assert said == f"{tmp_path}/model.ckpt-0: 2 rows of 2 ids of slot 'user' were found\n"
    erase(capsys, tmp_path, "--slot", "user", "--ids_file", tmp_path / "deleted", "--texts", "name")
    other = Run()
    with Saver(tmp_path) as saver:
        saver.restore(other.state)
    assert other.model.emb.vectors("user")[0].tolist() == text_ids("name", ["ann"]).tolist()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--slot", "usre", "--ids", "7"], "'usre' does not exist.*item.*user"),
        (["--slot", "user"], "give ids"),
        (["--slot", "user", "--ids", "seven"], "int64, got 'seven'; with --texts"),
        (["--slot", "user", "--ids", str(2**63)], "int64, got 9223372036854775808"),
    ],
)
def test_what_goes_wrong_is_one_line(
    model_dir: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    line = erase(capsys, model_dir, *arguments, status=1)
    assert re.search(said, line), line
    assert line.count("\n") == 1


def test_a_directory_that_a_run_writes_to_is_not_changed(model_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with ModelDirLock(model_dir):
        assert "in use by" in erase(capsys, model_dir, "--slot", "user", "--ids", "7", status=1)
    (model_dir / "controller_server_addr.txt").write_text("127.0.0.1:1")  # of a run that was killed
    assert "--offline" in erase(capsys, model_dir, "--slot", "user", "--ids", "7", status=1)
    assert "rows of 1 ids" in erase(capsys, model_dir, "--slot", "user", "--ids", "7", "--offline")


@pytest.mark.parametrize("call", ["write_blocks", "replace", "remove"])
def test_a_failed_erase_leaves_a_complete_checkpoint(
    model_dir: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    path = str(model_dir / "model.ckpt-6")
    ids = restored(model_dir).model.emb.vectors("item")[0][:5]
    folder_class = type(open_storage(model_dir))
    with monkeypatch.context() as broken:
        if call == "write_blocks":
            broken.setattr(erasing, call, _failing)
        else:
            broken.setattr(
                folder_class, call, _failing_for(getattr(folder_class, call), "model.ckpt-6.manifest", ".assets")
            )
        with pytest.raises(UnavailableError):
            erase_from_checkpoint(path, "item", ids)
    SavedState(path).verify()
    left = 0 if call == "remove" else 5  # the new one was committed, and only old files stayed
    assert erase_from_checkpoint(path, "item", ids, dry_run=True).rows == left
    restored(model_dir)
    with Saver(model_dir) as saver:  # removes what is left of it
        saver.restore(run := Run(min_count=2, id_factor=-(2**50)).state)
        saver.save(run)
    assert len(list(model_dir.glob("model.ckpt-6*.assets"))) == 1


def _failing(*_: object, **__: object) -> None:
    raise UnavailableError("disk is gone")


def _failing_for(real: object, *endings: str) -> object:
    def call(self: object, name: str, *arguments: object) -> None:
        if name.endswith(endings) or any(f"{each}/" in name for each in endings):
            raise UnavailableError("disk is gone")
        real(self, name, *arguments)  # type: ignore[operator]

    return call
