"""A predictor answers as the trainer does, without the training code, and says what is wrong with a request."""

from __future__ import annotations

import gc
import shutil
import subprocess
import sys
import threading
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import monolith as ml
from monolith.checkpoint.tensor_file import tensors_from_bytes, tensors_to_bytes
from monolith.errors import DeadlineExceededError, InvalidArgumentError, NotFoundError, UnavailableError
from monolith.export.opened import open_export
from monolith.export.writer import ExportConfig
from monolith.serving import Predictor, version_watch
from monolith.serving.export_versions import ExportVersions
from monolith.train import Trainer
from serving.server.promoted_models import wait_until
from serving.small_models import Ranker, make_batch, trained

WAIT = 60.0


@pytest.fixture(scope="module")
def trainer() -> Trainer:
    return trained()


@pytest.fixture(scope="module")
def exported(trainer: Trainer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("exported")
    trainer.export(str(path), example=make_batch(0))
    return path


@pytest.fixture(scope="module")
def predictor(exported: Path) -> Any:
    with Predictor(str(exported)) as made:
        yield made


def request(size: int = 4) -> dict[str, Any]:
    batch = make_batch(3, size)
    return {name: batch[name] for name in ("user", "item", "tags", "price", "ages")}


def test_it_answers_as_the_trainer_bit_for_bit(trainer: Trainer, predictor: Predictor) -> None:
    for size in (1, 2, 7, 33):
        batch = make_batch(100 + size, size)
        mine, theirs = predictor.predict(batch), trainer.predict(batch)
        assert mine.outputs.keys() == {"score", "vector"}
        assert all(torch.equal(mine.outputs[name], theirs[name]) for name in theirs)
    assert mine.version.dense == -1
    assert mine.version.sparse == {}


CODE = """
import sys
class NoTask:
    def find_spec(self, name, path=None, target=None):
        if name.startswith(("monolith.train", "tests", "small_models")):
            raise ImportError(name)
sys.meta_path.insert(0, NoTask())
import torch
from monolith.checkpoint.tensor_file import tensors_from_bytes, tensors_to_bytes
from monolith.serving import Predictor, version_watch
from monolith.tensors import Ragged
found = tensors_from_bytes(open(sys.argv[2], "rb").read(), origin="request")
columns = {n: t for n, t in found.items() if ":" not in n}
for name in ("tags", "ages"):
    columns[name] = Ragged(found[name + ":values"], found[name + ":splits"])
with Predictor(sys.argv[1]) as predictor:
    answer = predictor.predict(columns)
open(sys.argv[3], "wb").write(tensors_to_bytes(answer.outputs))
"""


@pytest.mark.slow
def test_a_process_that_cannot_import_the_task_answers_the_same(
    trainer: Trainer, exported: Path, tmp_path: Path
) -> None:
    columns = request(16)
    flat = {name: values for name, values in columns.items() if isinstance(values, torch.Tensor)}
    for name in ("tags", "ages"):
        flat |= {f"{name}:values": columns[name].flat_values, f"{name}:splits": columns[name].row_splits}
    (tmp_path / "request").write_bytes(tensors_to_bytes(flat))
    arguments = [str(exported), str(tmp_path / "request"), str(tmp_path / "answer")]
    done = subprocess.run(
        [sys.executable, "-c", CODE, *arguments], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    answer = tensors_from_bytes((tmp_path / "answer").read_bytes(), origin="answer")
    expected = trainer.predict(make_batch(3, 16))
    assert all(torch.equal(answer[name], expected[name]) for name in expected)


def test_lists_arrays_and_a_column_for_all(predictor: Predictor) -> None:
    columns = request(3)
    expected = predictor.predict(columns).outputs
    columns |= {
        "user": columns["user"].tolist(),
        "item": columns["item"].numpy(),
        "tags": columns["tags"].to_lists(),
        "price": columns["price"].tolist(),
        "ages": columns["ages"].to_lists(),
    }
    assert torch.equal(predictor.predict(columns).outputs["score"], expected["score"])
    one = {**request(3), "user": torch.tensor([7]), "price": torch.ones(1, 2), "tags": ml.Ragged.from_lists([[3, 4]])}
    many = {
        **request(3),
        "user": torch.tensor([7] * 3),
        "price": torch.ones(3, 2),
        "tags": ml.Ragged.from_lists([[3, 4]] * 3),
    }
    assert torch.equal(predictor.predict(one).outputs["score"], predictor.predict(many).outputs["score"])


IDS, SPLITS = torch.arange(4), torch.arange(5)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"user": None}, "input 'user' is missing: signature 'serving_default' reads"),
        ({"usr": [1]}, "input 'usr' is none of signature 'serving_default'; did you mean 'user'"),
        ({"user": [0.5] * 4}, "input 'user': ids must be int64, got torch.float64"),
        ({"user": ["a"] * 4}, "input 'user': numbers expected"),
        ({"user": [2**70] * 4}, "input 'user': "),
        ({"user": [[1], "x", [2], [3]]}, "input 'user': ids must be integers"),
        ({"user": torch.zeros(4, 1, 1, dtype=torch.int64)}, "input 'user': ids must be"),
        ({"user": torch.tensor(3)}, "input 'user': one number for each example"),
        ({"user": object()}, "input 'user': a tensor or lists of numbers expected, got object"),
        ({"price": [[1.0, 2.0]] * 3 + [[1.0]]}, "input 'price': numbers in lists of one length"),
        ({"price": torch.zeros(4, 3)}, r"input 'price': shape \[examples, 2\] expected, got \[4, 3\]"),
        ({"price": torch.zeros(4, 2, dtype=torch.float64)}, "input 'price': float32 expected, got torch.float64"),
        ({"price": np.full((4, 2), np.nan, np.float32)}, r"input 'price': nan at \[0, 0\]; finite numbers expected"),
        ({"price": np.full((4, 2), np.inf, np.float32)}, "input 'price': inf at"),
        ({"ages": torch.zeros(4)}, "input 'ages': rows of torch.float32 expected"),
        ({"ages": ml.Ragged.from_lists([[1]] * 4)}, "input 'ages': rows of torch.float32 expected"),
        ({"user": IDS.to("meta")}, "input 'user': a tensor with values expected, got one of torch's meta device"),
        ({"user": ml.Ragged(IDS.to("meta"), SPLITS, validate=False)}, "input 'user': a tensor with values expected"),
        ({"price": torch.zeros(4, 2, device="meta")}, "input 'price': a tensor with values expected"),
        (
            {"ages": ml.Ragged(torch.ones(4, device="meta"), SPLITS, validate=False)},
            "input 'ages': a tensor with values",
        ),
        ({"user": [1, 2, 3]}, "input 'user': 4 examples expected, as of 'ages', or one for all, got 3"),
    ],
)
def test_wrong_inputs_are_named(predictor: Predictor, change: dict[str, Any], said: str) -> None:
    columns = {name: values for name, values in {**request(), **change}.items() if values is not None}
    with pytest.raises(InvalidArgumentError, match=said):
        predictor.predict(columns)


def test_an_empty_request_an_unknown_signature_and_a_closed_predictor(exported: Path) -> None:
    with Predictor(str(exported)) as predictor:
        with pytest.raises(NotFoundError, match="no signature 'other', it has serving_default"):
            predictor.predict(request(), "other")
        with pytest.raises(InvalidArgumentError, match="columns by name or bytes expected, got Tensor"):
            predictor.predict(torch.zeros(3))  # type: ignore[arg-type]
        empty = {name: values[:0] for name, values in request().items()}
        with pytest.raises(InvalidArgumentError, match="no examples"):
            predictor.predict(empty)
    with pytest.raises(UnavailableError, match="closed"):
        predictor.predict(request())
    assert predictor.why_not_ready == "it is closed"
    with pytest.raises(DeadlineExceededError, match="not ready within 0"):
        predictor.wait_ready(0)


@pytest.mark.slow
def test_a_newer_export_is_activated_without_a_failed_call_and_frees_the_old_rows(tmp_path: Path) -> None:
    trainer = trained(2)
    trainer.export(str(tmp_path), example=make_batch(0), options=ExportConfig(version=1))
    batch, failures, versions = make_batch(5), [], set()
    first = trainer.predict(batch)["score"]
    stop = threading.Event()
    with Predictor(str(tmp_path)) as predictor:
        old = weakref.ref(predictor._live.rows.stores["emb"])

        def ask() -> None:
            while not stop.is_set():
                try:
                    answer = predictor.predict(batch)
                    versions.add((answer.version.export, bytes(answer.outputs["score"].numpy())))
                except Exception as error:  # noqa: BLE001 - each is one too many
                    failures.append(error)

        threads = [threading.Thread(target=ask) for _ in range(2)]
        for thread in threads:
            thread.start()
        trainer.train(steps=3)
        trainer.export(str(tmp_path), example=make_batch(0), options=ExportConfig(version=2))
        second = trainer.predict(batch)["score"]
        waited = threading.Event()
        for _ in range(int(WAIT / 0.05)):
            if predictor.version.export == 2 and predictor.predict(batch).version.export == 2:
                break
            waited.wait(0.05)
        stop.set()
        for thread in threads:
            thread.join(WAIT)
        gc.collect()
        assert old() is None
    assert failures == []
    expected = {(1, bytes(first.numpy())), (2, bytes(second.numpy()))}
    assert versions | {(2, bytes(second.numpy()))} == expected


def test_an_export_that_cannot_be_used_leaves_the_old_one_serving(tmp_path: Path) -> None:
    trainer = trained(2)
    trainer.export(str(tmp_path), example=make_batch(0), options=ExportConfig(version=1))
    folder = Path(trainer.export(str(tmp_path / "other"), example=make_batch(0), options=ExportConfig(version=2)))
    (folder / "weights.safetensors").write_bytes(b"torn")
    with Predictor(str(tmp_path)) as predictor:
        folder.rename(tmp_path / "2")
        wait_until(lambda: predictor.problem is not None)
        assert "weights.safetensors" in str(predictor.problem)
        assert predictor.predict(make_batch(1)).version.export == 1
        assert predictor.is_ready


@pytest.mark.slow
def test_weights_alone_are_served_with_the_rows_before(tmp_path: Path) -> None:
    trainer = trained(2)
    trainer.export(str(tmp_path), example=make_batch(0), options=ExportConfig(version=1))
    with torch.no_grad():
        trainer.state.model["top"][0].weight.mul_(2)  # type: ignore[index, union-attr]
    trainer.export(str(tmp_path), example=make_batch(0), options=ExportConfig(version=2, dense_only=True))
    assert not (tmp_path / "2" / "rows").exists()
    with Predictor(str(tmp_path)) as predictor:
        answer = predictor.predict(make_batch(4))
    assert answer.version.export == 2
    assert torch.equal(answer.outputs["score"], trainer.predict(make_batch(4))["score"])
    (tmp_path / "1").rename(tmp_path / "gone")
    with pytest.raises(NotFoundError, match="weights alone, and no version before it has rows"):
        Predictor(str(tmp_path))


@pytest.mark.slow
def test_shards_have_all_rows_between_them(tmp_path: Path) -> None:
    trainer = trained(2)
    entry = trainer.export(str(tmp_path), example=make_batch(0), options=ExportConfig(version=7, shards=3))
    assert entry == f"{tmp_path}/entry/7"
    parts = [open_export(str(tmp_path / f"ps_{shard}")) for shard in range(3)]
    loaded = []
    for part in parts:
        stores = part.new_stores()
        part.load_rows(stores)
        loaded.append(sum(store.stats().rows for store in stores.values()))
    with Predictor(str(tmp_path)) as predictor:
        assert sum(loaded) == predictor.num_rows
        assert min(loaded) > 0
        assert torch.equal(predictor.predict(make_batch(4)).outputs["score"], trainer.predict(make_batch(4))["score"])
    assert parts[1].manifest.rows is not None
    assert (parts[1].manifest.shard, parts[1].manifest.rows.buckets) == (1, (342, 683))
    with pytest.raises(NotFoundError, match="rows of one shard and no model"):
        Predictor(str(tmp_path / "ps_1"))


def test_signatures_specify_types_and_shapes(predictor: Predictor) -> None:
    found = predictor.signatures["serving_default"]
    assert found.inputs.keys() == {"user", "item", "tags", "price", "ages"}
    assert (found.inputs["item"].kind, found.inputs["item"].shape) == ("ids", (None, 3))
    assert (found.inputs["ages"].kind, found.inputs["ages"].ragged) == ("dense", True)
    assert (found.outputs["vector"].dtype, found.outputs["vector"].shape) == ("float32", (None, 4))
    assert predictor.name == "Ranker"
    assert predictor.num_rows > 0
    assert predictor.memory_bytes > 0
    assert isinstance(Ranker, type)


@pytest.mark.slow
def test_unavailable_storage_is_a_problem_until_it_answers_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(version_watch, "POLL_SECONDS", 0.02)
    trainer = trained(2)
    trainer.export(str(tmp_path), example=make_batch(0), options=ExportConfig(version=1))
    trainer.export(str(tmp_path / "later"), example=make_batch(0), options=ExportConfig(version=2))
    away, really = threading.Event(), ExportVersions.newest_number

    def newest_number(versions: ExportVersions) -> int:
        if away.is_set():
            raise UnavailableError("the storage is away")
        return really(versions)

    monkeypatch.setattr(ExportVersions, "newest_number", newest_number)
    with Predictor(str(tmp_path)) as predictor:
        away.set()
        wait_until(lambda: predictor.problem == "the storage is away")
        assert predictor.predict(make_batch(1)).version.export == 1
        away.clear()
        wait_until(lambda: predictor.problem is None)
        (tmp_path / "later" / "2").rename(tmp_path / "2")
        wait_until(lambda: predictor.version.export == 2)


@pytest.mark.slow
def test_a_folder_named_like_another_version_is_reported_and_not_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(version_watch, "POLL_SECONDS", 0.02)
    trained(2).export(str(tmp_path), example=make_batch(0), options=ExportConfig(version=1))
    with Predictor(str(tmp_path)) as predictor:
        shutil.copytree(tmp_path / "1", tmp_path / "later")
        (tmp_path / "later").rename(tmp_path / "5")
        wait_until(lambda: predictor.problem is not None)
        assert predictor.problem == "the folder of version 5 has another name than its version, 1; rename it"
        assert predictor.predict(make_batch(1)).version.export == 1
