"""Names in the files of a checkpoint lead nowhere but into its own directory, and only to its own files."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import pytest
import torch
from torch import nn

import monolith as ml
from checkpoint.runs import Run
from monolith.checkpoint import Saver, TrainState, save_table_assets
from monolith.checkpoint.inspection import SavedState, export, reshard
from monolith.errors import DataLossError, InvalidArgumentError, NotFoundError
from monolith.files import is_name, seal

ELSEWHERE = ["../outside", "/tmp/outside", "..", ".", "", "sub/file", "nul\0byte", "back\\slash"]  # noqa: S108 - a name, never opened


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a checkpoint of step 3."""
    run = Run()
    run.steps(3)
    folder = tmp_path_factory.mktemp("saved") / "model"
    with Saver(folder) as saver:
        saver.save(run.state)
    return folder


@pytest.fixture
def model_dir(saved: Path, tmp_path: Path) -> Path:
    """A copy to do as one likes with."""
    return Path(shutil.copytree(saved, tmp_path / "model"))


def change(model_dir: Path, change_document: Callable[[dict[str, Any]], None]) -> None:
    """Changes a manifest, with the right checksum, as somebody with bad intentions does."""
    path = model_dir / "model.ckpt-3.manifest"
    document = json.loads(path.read_text())
    change_document(document)
    path.write_bytes(seal(document))


def rename_file(entry: str, name: str) -> Callable[[dict[str, Any]], None]:
    return lambda document: document[entry].update(name=name)


def rename_folder(name: str) -> Callable[[dict[str, Any]], None]:
    return lambda document: document["tables"]["emb"].update(folder=f"{name}/emb")


def rename_store(name: str) -> Callable[[dict[str, Any]], None]:
    def change_document(document: dict[str, Any]) -> None:
        entry = document["tables"].pop("emb")
        document["tables"][name] = {**entry, "folder": f"model.ckpt-3.assets/{name}"}

    return change_document


CHANGES = {
    f"{what} {name!r}": changed(name)
    for name in ELSEWHERE
    for what, changed in (
        ("tensors", lambda name: rename_file("tensors", name)),
        ("meta", lambda name: rename_file("meta", name)),
        ("folder", rename_folder),
        ("store", rename_store),
    )
}


@pytest.mark.parametrize("changed", CHANGES.values(), ids=CHANGES)
def test_a_name_that_leads_elsewhere_is_refused_by_everything(
    model_dir: Path, tmp_path: Path, changed: Callable[[dict[str, Any]], None]
) -> None:
    change(model_dir, changed)
    path = str(model_dir / "model.ckpt-3")
    before = sorted(tmp_path.rglob("*"))
    target = tmp_path / "a" / "b" / "target"
    actions: list[Callable[[], object]] = [
        lambda: Saver(model_dir).restore(Run().state, "model.ckpt-3"),
        lambda: SavedState(path).verify(),
        lambda: reshard(path, target, num_files=2),
        lambda: export(path, target),
    ]
    for action in actions:
        with pytest.raises(DataLossError, match=r"model\.ckpt-3\.manifest.* in the model directory|names? a file"):
            action()
    assert sorted(tmp_path.rglob("*")) == before, "nothing was written anywhere"


@pytest.mark.parametrize("value", [-1, 1.5, "7", None])
@pytest.mark.parametrize("field", ["bytes", "crc32c"])
def test_sizes_and_checksums_are_numbers(model_dir: Path, field: str, value: object) -> None:
    change(model_dir, lambda document: document["tensors"].update({field: value}))
    with pytest.raises(DataLossError, match="is not a size, count or checksum"):
        SavedState(str(model_dir / "model.ckpt-3"))


def test_a_table_whose_name_is_a_path_is_not_exported(tmp_path: Path) -> None:
    model = nn.Module()
    model.emb = ml.Embeddings({"../../pwn": ml.Slot(dim=2, id_layout="any")})
    model.emb({"../../pwn": torch.arange(5)})["../../pwn"].sum().backward()
    model.emb.step()
    with Saver(tmp_path / "model") as saver:
        path = saver.save(TrainState(model=model, global_step=3), background=False).path
    with pytest.raises(InvalidArgumentError, match=r"table '.*@../../pwn' would become a file outside of"):
        export(path, tmp_path / "a" / "b" / "target")
    assert not (tmp_path / "a").exists()
    assert reshard(path, tmp_path / "a", num_files=2).endswith("/a/model.ckpt-3")
    assert {each.name for each in tmp_path.iterdir()} == {"model", "a"}


def test_a_module_that_could_not_have_a_folder_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    state = TrainState(model=nn.ModuleDict({"user/city": ml.Embeddings({"u": ml.Slot(dim=2)})}))
    with Saver(tmp_path / "model") as saver:
        with pytest.raises(InvalidArgumentError, match=r"got 'user/city'; name the module without slashes"):
            saver.save(state)
        assert not list((tmp_path / "model").glob("model.ckpt*"))
    with pytest.raises(InvalidArgumentError, match=r"got 'user/city'"):
        save_table_assets(state, str(tmp_path / "tables" / "model.ckpt-3"))


@pytest.mark.parametrize(
    ("copied", "reason"),
    [
        ("model.ckpt-9", r"model\.ckpt-9\.manifest': it is the manifest of step 3"),
        ("model.ckpt", r"it is the manifest of step 3"),
        ("other.ckpt-3", r"'model\.ckpt-3\.assets' belongs to another checkpoint"),
    ],
)
def test_a_manifest_under_another_name_is_no_checkpoint(model_dir: Path, copied: str, reason: str) -> None:
    shutil.copy(model_dir / "model.ckpt-3.manifest", model_dir / f"{copied}.manifest")
    with pytest.raises(DataLossError, match=reason):
        Saver(model_dir).restore(Run().state, copied)
    again = Run(seed=9)
    restored = Saver(model_dir).restore(again.state)
    assert restored is not None
    assert restored.path == str(model_dir / "model.ckpt-3")


@pytest.mark.parametrize("protocol", ["file", "memory"])
def test_a_missing_file_is_named_by_every_tool(saved: Path, tmp_path: Path, protocol: str) -> None:
    root = f"{protocol}://{tmp_path}/model"
    files = fsspec.filesystem(protocol)
    files.put(str(saved), f"{tmp_path}/model", recursive=True)
    found = [name for name in files.find(f"{tmp_path}/model") if "/model.ckpt-3." in name]
    assert len(found) == 5
    for number, name in enumerate(found):
        data = files.cat_file(name)
        files.rm_file(name)
        with pytest.raises(NotFoundError, match=name.rpartition("/")[2]):
            SavedState(f"{root}/model.ckpt-3").verify()
        with pytest.raises(NotFoundError, match=name.rpartition("/")[2]):
            reshard(f"{root}/model.ckpt-3", tmp_path / f"target-{number}", num_files=2)
        files.pipe_file(name, data)
    assert SavedState(f"{root}/model.ckpt-3").verify() > 0


@pytest.mark.parametrize("name", ELSEWHERE)
def test_what_leads_elsewhere_is_no_name(name: str) -> None:
    assert not is_name(name)
    assert is_name(f"x{name}y".translate(dict.fromkeys(map(ord, "/\\\0"))))
