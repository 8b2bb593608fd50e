"""Two-stage models: items are predicted after training, written as the original's table, and served with users."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import cityhash
import pytest
import torch

from monolith.data.text_ids import city_hash64_of_text
from monolith.errors import InvalidArgumentError, OpError
from monolith.export.opened import open_export
from monolith.serving import Predictor
from monolith.tables import HashTable, Segment, TableConfig
from monolith.tables.formats.entry_dump import import_entry_dump
from monolith.testing import ExampleTask
from monolith.train import (
    CandidateItems,
    ItemVectors,
    RunnerConfig,
    Trainer,
    TrainerConfig,
    item_ids,
    trainer_config_of,
)
from train.job_threads import ThreadJob
from train.two_stage_cases import NUM_ITEMS, TwoTowers, make_batch, write_instances, write_parquet

CACHE = "MonolithHashTable_cached_item_embeddings-00000-of-00001"
ITEMS = list(range(NUM_ITEMS))
ASKED = make_batch(99, size=25)


def trained(folder: Path, items: CandidateItems, task: Any = TwoTowers) -> Trainer:
    trainer = Trainer(task, TrainerConfig(model_dir=str(folder), items=items))
    trainer.train(steps=6)
    return trainer


def served(folder: Path, items: torch.Tensor) -> torch.Tensor:
    """The scores of the users that are asked for, by vectors of items."""
    with Predictor(str(folder / "exported_models" / "two_stage")) as predictor:
        assert predictor.signatures["serving_default"].inputs.keys() == {"fc_slot_1", "item_id"}
        return predictor.predict({"fc_slot_1": ASKED["fc_slot_1"], "item_id": items}).outputs["predictions"]


@pytest.mark.parametrize("form", ["parquet", "texts", "instances"])
def test_items_are_served_as_they_were_trained(tmp_path: Path, form: str) -> None:
    chosen = ASKED["items"].tolist()
    if form == "instances":
        items = CandidateItems(path=write_instances(tmp_path / "items", ITEMS))
        ids = ASKED["items"] + 1000
    else:
        given = ITEMS if form == "parquet" else [str(item) for item in ITEMS]
        items = CandidateItems(path=write_parquet(tmp_path / "items.parquet", given), parquet=True)
        ids = item_ids(chosen)
    trainer = trained(tmp_path / "model", items)
    assert torch.equal(served(tmp_path / "model", ids), trainer.predict(ASKED))
    table = HashTable(TableConfig([Segment(4)]))
    assert import_entry_dump(table, tmp_path / "model" / "item_cache" / CACHE.removesuffix("-00000-of-00001")) == len(
        ITEMS
    )
    with torch.no_grad():
        task = trainer.task
        assert isinstance(task, TwoTowers)
        task.item_rows.eval()
        expected = task.item_fn(ASKED)
    found = torch.as_tensor(table.lookup(ids))
    assert torch.equal(found, torch.cat([expected.bias.unsqueeze(1), expected.vector], 1))
    export = open_export(str(tmp_path / "model" / "exported_models" / "two_stage"))
    assert export.manifest.stores.keys() == {"user_rows", "cached_items"}, "rows of items are not needed any more"


def test_the_chief_of_a_job_predicts_them(tmp_path: Path) -> None:
    options = {
        "enable_resource_constrained_roughsort": True,
        "roughsort_candidate_items_path": write_parquet(tmp_path / "items.parquet", ITEMS),
        "roughsort_items_use_parquet": True,
    }
    job = ThreadJob(tmp_path / "model", num_ps=2, num_workers=2, params=TwoTowers.params, options=options)
    job.run()
    expected = Trainer(TwoTowers, TrainerConfig(model_dir=str(tmp_path / "model"))).predict(ASKED)
    assert torch.equal(served(tmp_path / "model", item_ids(ASKED["items"].tolist())), expected)


@pytest.mark.parametrize(
    ("items", "names", "said"),
    [
        ([1, 2, 1], {}, f"item {int(item_ids([1])[0])} occurs twice"),
        ([], {}, "there are none"),
        ([1], {"item_id": "id"}, "item_id"),
        ([1], {"fids": "ids"}, "fids"),
        ([1.5], {}, "item_id"),
    ],
)
def test_bad_items_are_refused(tmp_path: Path, items: list[Any], names: dict[str, str], said: str) -> None:
    path = write_parquet(tmp_path / "items.parquet", items, **names)
    with pytest.raises(OpError, match=said):
        trained(tmp_path / "model", CandidateItems(path=path, parquet=True))
    assert not (tmp_path / "model" / "item_cache").exists()
    assert not (tmp_path / "model" / "exported_models").exists()


class NoNumbers(TwoTowers):
    """One item has no vector."""

    def item_fn(self, features: Any) -> ItemVectors:
        found = super().item_fn(features)
        if "item_id" not in features:
            return found
        return ItemVectors(found.bias, torch.where(features["item_id"].unsqueeze(1) == 1007, torch.nan, found.vector))


class WrongShape(TwoTowers):
    """Its bias has another shape than its scores need."""

    def item_fn(self, features: Any) -> ItemVectors:
        found = super().item_fn(features)
        return ItemVectors(found.bias.unsqueeze(1), found.vector) if "item_id" in features else found


@pytest.mark.parametrize(
    ("task", "said"),
    [
        (NoNumbers, "item 1007 has a bias or vector that is no finite number"),
        (WrongShape, r"a bias \[30\] and a vector \[30, dim\] expected, got \[30, 1\] and \[30, 3\]"),
        (ExampleTask, "candidate items are predicted by a TwoStageTask, got ExampleTask"),
    ],
)
def test_predictions_that_cannot_be_served_are_refused(tmp_path: Path, task: Any, said: str) -> None:
    items = CandidateItems(path=write_instances(tmp_path / "items", ITEMS))
    with pytest.raises(InvalidArgumentError, match=said):
        trained(tmp_path / "model", items, task)
    assert not (tmp_path / "model" / "item_cache").exists()


def test_options_make_items() -> None:
    assert trainer_config_of(RunnerConfig(model_dir="m")).items is None
    wanted: dict[str, Any] = {
        "enable_resource_constrained_roughsort": True,
        "roughsort_candidate_items_path": "p",
        "model_dir": "m",
    }
    found = trainer_config_of(RunnerConfig(**wanted, items_input_has_sort_id=True, items_input_kafka_dump=True)).items
    assert found == CandidateItems(path="p", has_sort_id=True, kafka_dump=True)
    with pytest.raises(ValueError, match="it needs candidate items; give roughsort_candidate_items_path"):
        trainer_config_of(RunnerConfig(enable_resource_constrained_roughsort=True, model_dir="m"))
    with pytest.raises(
        ValueError,
        match=r"roughsort_items_use_parquet=True .* is about candidate items; set enable_resource",
    ):
        trainer_config_of(RunnerConfig(roughsort_items_use_parquet=True, model_dir="m"))
    with pytest.raises(ValueError, match="Parquet has no framing, got kafka_dump=True"):
        trainer_config_of(RunnerConfig(**wanted, roughsort_items_use_parquet=True, items_input_kafka_dump=True))
    with pytest.raises(ValueError, match="goes to the model directory; give model_dir"):
        TrainerConfig(items=CandidateItems(path="p"))


def test_hashes_of_texts_are_those_of_an_independent_cityhash() -> None:
    texts = ["", "a", "ab", "abc", "Zoë", *("x" * size + "y" for size in range(3, 200))]
    assert [city_hash64_of_text(text) for text in texts] == [cityhash.CityHash64(text) for text in texts]
    assert city_hash64_of_text(b"\xff\x00") == cityhash.CityHash64(b"\xff\x00")
