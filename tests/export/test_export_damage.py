"""A flipped bit, a truncated file or the rows of another export: an error before anything is served."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from monolith.errors import DataLossError, OpError, UnimplementedError
from monolith.export import ExportConfig, open_export
from monolith.export.manifest import ExportManifest
from monolith.serving import Predictor
from monolith.serving.shards import ShardNumber
from monolith.serving.shards.served_shard import ShardExports
from monolith.testing import ExampleTask
from monolith.train import Trainer

REQUEST = {"user": [7, 8], "item": [5, 5]}


def export(folder: Path, seed: int, shards: int = 0) -> Path:
    torch.manual_seed(seed)
    trainer = Trainer(ExampleTask())
    trainer.train(steps=1 + seed)
    batch = next(iter(trainer.task.input_fn("train")))
    return Path(trainer.export(str(folder), example=batch, options=ExportConfig(version=7, shards=shards)))


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return export(tmp_path_factory.mktemp("exported"), seed=0)


@pytest.fixture
def victim(exported: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(exported, tmp_path / "versions" / "7"))


def files_of(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def flips(content: bytes, count: int | None) -> Iterator[bytes]:
    """The content with one flipped bit, in every byte or at this number of offsets."""
    offsets = range(len(content))
    if count is not None and count < len(content):
        offsets = np.linspace(0, len(content) - 1, count).astype(int).tolist()
    for number, offset in enumerate(offsets):
        yield content[:offset] + bytes([content[offset] ^ 1 << number % 8]) + content[offset + 1 :]


def overwrite(path: Path, content: bytes) -> None:
    path.unlink(missing_ok=True)  # truncating in place makes some file systems flush at close
    path.write_bytes(content)


def refuses(folder: Path, *, trial: bool = False) -> str:
    with pytest.raises(OpError) as caught:
        Predictor(str(folder.parent), trial=trial).close()
    return str(caught.value)


def test_it_has_every_kind_of_file_and_is_served_undamaged(victim: Path) -> None:
    suffixes = [path.suffix for path in files_of(victim) if path.name != "manifest.json"]
    assert sorted(suffixes) == [".json", ".rows", ".safetensors", ".safetensors", ".safetensors"]
    assert len(list(victim.rglob("manifest.json"))) == 2
    with Predictor(str(victim.parent)) as predictor:
        assert len(predictor.predict(REQUEST).outputs["predictions"]) == 2


@pytest.mark.slow
def test_a_flipped_bit_in_every_byte_of_the_manifest_is_refused(victim: Path) -> None:
    path = victim / "manifest.json"
    for changed in flips(path.read_bytes(), None):
        overwrite(path, changed)
        assert "manifest.json" in refuses(victim)


@pytest.mark.slow
def test_every_flipped_bit_of_the_manifest_is_refused(victim: Path) -> None:
    content = (victim / "manifest.json").read_bytes()
    for bit in range(8 * len(content)):
        changed = bytearray(content)
        changed[bit // 8] ^= 1 << bit % 8
        with pytest.raises((DataLossError, UnimplementedError), match=r"^file 'm': "):
            ExportManifest.from_bytes(bytes(changed), origin="file 'm'")


@pytest.mark.parametrize("trial", [pytest.param(False, marks=pytest.mark.slow), True])  # True as `monolith serve`
def test_a_flipped_bit_in_any_other_file_is_refused(victim: Path, trial: bool) -> None:
    for path in files_of(victim):
        if path != victim / "manifest.json":
            content = path.read_bytes()
            for changed in flips(content, 64):
                overwrite(path, changed)
                assert path.name in refuses(victim, trial=trial)
            overwrite(path, content)
    Predictor(str(victim.parent), trial=trial).close()


def test_a_file_of_another_length_is_refused(victim: Path) -> None:
    for path in files_of(victim):
        content = path.read_bytes()
        for other in (b"", content[:1], content[: len(content) // 2], content[:-1], content + b"\n", content * 2):
            overwrite(path, other)
            assert path.name in refuses(victim)
        path.unlink()
        refuses(victim)
        overwrite(path, content)
    Predictor(str(victim.parent)).close()


def test_the_rows_of_another_export_are_refused(victim: Path, tmp_path: Path) -> None:
    other = export(tmp_path / "other", seed=1)
    shutil.rmtree(victim / "rows")
    shutil.copytree(other / "rows", victim / "rows")
    assert "rows/emb/manifest.json" in refuses(victim)


def test_a_flipped_bit_in_the_manifest_of_a_shard_is_refused(tmp_path: Path) -> None:
    entry = export(tmp_path, seed=0, shards=2)
    shard = ShardExports(str(tmp_path), ShardNumber(1, 2))
    assert sum(store.stats().rows for store in shard.newest()[1].values()) > 0
    (rows_manifest,) = (tmp_path / "rows").rglob("manifest.json")
    for path in (tmp_path / "ps_1" / entry.name / "manifest.json", rows_manifest):
        content = path.read_bytes()
        for changed in flips(content, 64):
            overwrite(path, changed)
            with pytest.raises(OpError, match=r"manifest\.json"):
                shard.newest()
        overwrite(path, content)
    assert open_export(str(entry)).manifest.rows is not None
