"""Checkpoints of slots of any int64: rows are counted by slot, compared and exported by the ids that users gave."""

from __future__ import annotations

from pathlib import Path

import torch
from google.protobuf import text_format
from safetensors.torch import load_file

import monolith as ml
from monolith.checkpoint import Saver, TrainState, inspection
from monolith.checkpoint.protos.ckpt_info_pb2 import CkptInfo

IDS = torch.tensor([-(2**63), -1, 5, 2**48, 2**63 - 1])
NUMBERS = {"user": 3, "item": 5, "tag": 4}


def trained(*names: str) -> ml.Embeddings:
    """Rows begin with the same weights, whatever other slots there are."""
    emb = ml.Embeddings({name: ml.Slot(2, number=NUMBERS[name]) for name in names})
    batch = {name: IDS if name == "user" else torch.full((5,), -1) for name in names}
    emb(batch, time=7).concat().sum().backward()
    emb.step()
    return emb


def save(emb: ml.Embeddings, folder: Path) -> str:
    with Saver(folder) as saver:
        return str(saver.save(TrainState(model=emb, global_step=1), background=False).path)


def test_rows_of_wide_ids_are_counted_by_their_slots(tmp_path: Path) -> None:
    save(trained("user", "item"), tmp_path)
    info = text_format.Parse((tmp_path / "ckpt.info-1").read_text(), CkptInfo())
    assert dict(info.feature_counts) == {"user": 5, "item": 1}
    assert dict(info.slot_counts) == {3: 5, 5: 1}


def test_an_export_has_slots_and_ids_of_users(tmp_path: Path) -> None:
    path = save(trained("user", "item"), tmp_path / "saved")
    (_, written) = sorted(inspection.export(path, tmp_path / "out"), key=lambda name: "adagrad" in name)
    found = load_file(tmp_path / "out" / written)
    rows = sorted(zip(found["slots"].tolist(), found["ids"].tolist(), strict=True))
    assert rows == sorted([*((3, number) for number in IDS.tolist()), (5, -1)])
    assert found["weights"].shape == (6, 2)


def test_an_export_of_a_single_row_has_it(tmp_path: Path) -> None:
    emb = ml.Embeddings({"item": ml.Slot(2)})
    emb({"item": torch.tensor([7])}, time=9).concat().sum().backward()
    emb.step()
    (written,) = (
        name for name in inspection.export(save(emb, tmp_path / "saved"), tmp_path / "out") if "weights" not in name
    )
    found = load_file(tmp_path / "out" / written)
    assert (found["ids"].tolist(), found["times"].tolist()) == ([7], [9])


def test_a_slot_that_came_does_not_change_the_rows_of_others(tmp_path: Path) -> None:
    paths = [save(trained(*names), tmp_path / str(len(names))) for names in (("user", "item"), ("user", "tag", "item"))]
    (found,) = inspection.diff(*paths)["tables"].values()
    assert found == {"only_first": 0, "only_second": 1, "changed": 0}
