"""A two-stage model of clicks, and candidate items for it."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch import nn

import monolith as ml
from monolith.data.protos.instance_pb2 import Instance
from monolith.ids import pack_v1, v1_to_v2
from monolith.tables.compressors import Fp32
from monolith.train import ItemVectors, Spec, TwoStageTask, current_context

USER, ITEM, BRAND = 1, 5, 6
NUM_ITEMS = 30


def fids_of(item: int) -> list[int]:
    """The v1 ids of an item: its own, and one or two brands."""
    brands = [item % 4] if item % 3 else [item % 4, 9]
    return [pack_v1(ITEM, item), *(pack_v1(BRAND, brand) for brand in brands)]


def columns_of(items: list[int]) -> dict[str, ml.Ragged]:
    """The same as batches have it."""
    rows = [[v1_to_v2(fid) for fid in fids_of(item)] for item in items]
    return {
        f"fc_slot_{ITEM}": ml.Ragged.from_lists([row[:1] for row in rows]),
        f"fc_slot_{BRAND}": ml.Ragged.from_lists([row[1:] for row in rows]),
    }


def make_batch(number: int, size: int = 16) -> dict[str, Any]:
    random = torch.Generator().manual_seed(number)
    users = torch.randint(20, (size,), generator=random)
    items = torch.randint(NUM_ITEMS, (size,), generator=random)
    users_v2 = ml.Ragged.from_lists([[v1_to_v2(pack_v1(USER, int(user)))] for user in users])
    return {
        f"fc_slot_{USER}": users_v2,
        **columns_of(items.tolist()),
        "items": items,
        "label": ((users + items) % 2).float(),
    }


class TwoTowers(TwoStageTask):
    """Users and items have tables of their own."""

    def build(self) -> None:
        def slot(number: int) -> ml.Slot:
            return ml.Slot(dim=4, id_layout="v2", compressor=Fp32(), number=number)

        self.user_rows = ml.Embeddings({f"fc_slot_{USER}": slot(USER)})
        self.item_rows = ml.Embeddings({f"fc_slot_{number}": slot(number) for number in (ITEM, BRAND)})
        self.user_tower, self.item_tower = nn.Linear(4, 3), nn.Linear(8, 4)

    def item_columns(self) -> list[str]:
        return [f"fc_slot_{ITEM}", f"fc_slot_{BRAND}"]

    def user_fn(self, features: Any) -> torch.Tensor:
        vectors: torch.Tensor = self.user_tower(self.user_rows(features).concat())
        return vectors

    def item_fn(self, features: Any) -> ItemVectors:
        out = self.item_tower(self.item_rows(features).concat())
        return ItemVectors(out[:, 0], out[:, 1:])

    def input_fn(self, mode: Any) -> Iterable[Any]:
        context = current_context()
        return [make_batch(number) for number in range(context.worker_index, 12, context.num_workers)]

    def model_fn(self, features: Any, mode: Any) -> Spec:
        logits = self.score_fn(self.user_fn(features), self.item_fn(features))
        if mode == "predict":
            return Spec(predictions=logits)
        return Spec(nn.functional.binary_cross_entropy_with_logits(logits, features["label"]))


def write_parquet(path: Path, items: list[Any], **names: str) -> str:
    lists = [fids_of(int(item)) for item in items]
    table = {names.get("item_id", "item_id"): items, names.get("fids", "fids"): pa.array(lists, pa.list_(pa.int64()))}
    pq.write_table(pa.table(table), path)
    return str(path)


def write_instances(path: Path, items: list[int]) -> str:
    """Plain framing: 8 bytes of length before each."""
    with path.open("wb") as file:
        for item in items:
            instance = Instance(fid=[fid & (2**64 - 1) for fid in fids_of(item)])
            instance.line_id.item_id = 1000 + item
            data = instance.SerializeToString()
            file.write(len(data).to_bytes(8, "little") + data)
    return str(path)
