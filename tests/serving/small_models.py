"""Models that are exported and asked in tests."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn

import monolith as ml
from monolith.data.batch import Batch
from monolith.data.protos.example_pb2 import Example, ExampleBatch
from monolith.data.protos.instance_pb2 import Instance
from monolith.tables.compressors import Fp32
from monolith.train import Spec, Trainer

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["Ranker", "encoded", "make_batch", "trained"]


def make_batch(number: int, size: int = 16) -> Batch:
    """Ids of one and of many for each example, numbers, and numbers of differing length."""
    random = torch.Generator().manual_seed(number)
    lengths = torch.randint(0, 5, (size,), generator=random)
    tags = torch.randint(-5, 50, (int(lengths.sum()),), generator=random)
    ages = torch.randn(int(lengths.sum()), generator=random)
    columns: dict[str, Any] = {
        "user": torch.randint(100, (size,), generator=random),
        "item": torch.randint(100, (size, 3), generator=random),
        "tags": ml.Ragged.from_lengths(tags, lengths),
        "price": torch.randn(size, 2, generator=random),
        "ages": ml.Ragged.from_lengths(ages, lengths),
        "label": torch.randint(2, (size,), generator=random).float(),
    }
    return Batch(columns, num_rows=size)


def encoded(batch: Batch) -> dict[str, list[bytes]]:
    """The batch as samples, in each form that requests may have."""
    columns: dict[str, list[list[Any]]] = {}
    for name in ("user", "item", "tags", "price", "ages"):
        values: Any = batch[name]
        rows = values.to_lists() if isinstance(values, ml.Ragged) else values.tolist()
        columns[name] = [row if isinstance(row, list) else [row] for row in rows]
    whole = ExampleBatch(batch_size=batch.num_rows)
    examples, instances = [], []
    for row in range(batch.num_rows):
        example, instance = Example(), Instance()
        for name, rows in columns.items():
            if name in ("price", "ages"):
                example.named_feature.add(name=name).feature.float_list.value.extend(rows[row])
                instance.feature.add(name=name, float_value=rows[row])
            else:
                ids = [each % (1 << 64) for each in rows[row]]
                example.named_feature.add(name=name).feature.fid_v2_list.value.extend(ids)
                instance.feature.add(name=name, fid=ids)
        examples.append(example.SerializeToString())
        instances.append(instance.SerializeToString())
    for name, rows in columns.items():
        column = whole.named_feature_list.add(name=name)
        for values in rows:
            if name in ("price", "ages"):
                column.feature.add().float_list.value.extend(values)
            else:
                column.feature.add().fid_v2_list.value.extend([each % (1 << 64) for each in values])
    return {"examples": examples, "instances": instances, "example_batch": [whole.SerializeToString()]}


class Ranker(ml.Task):
    """All kinds of columns and combiners; serving rows keep every bit."""

    def build(self) -> None:
        exact = Fp32()
        self.emb = ml.Embeddings(
            {
                "user": ml.Slot(slices=[ml.Slice.bias(), ml.Slice(4, compressor=exact)]),
                "item": ml.Slot(dim=4, combiner="mean", compressor=exact),
                "tags": ml.Slot(dim=4, combiner=("first_n", 2), compressor=exact, padding_id=-1),
            }
        )
        self.wide = ml.Embeddings({"user": ml.Slot(dim=1, compressor=exact)})
        self.norm = nn.BatchNorm1d(2)
        self.top = nn.Sequential(nn.Linear(19, 8), nn.ReLU(), nn.Dropout(0.3), nn.Linear(8, 1))

    def input_fn(self, mode: Any) -> Iterable[Batch]:
        return [make_batch(number) for number in range(10)]

    def model_fn(self, features: Any, mode: Any) -> Spec:
        rows, wide = self.emb(features), self.wide({"user": features["user"]})
        oldest = features["ages"].to_padded(fill=0.0, length=4).amax(1, keepdim=True)
        numbers = self.norm(features["price"]) * torch.tensor([0.5, 2.0])
        logits = self.top(torch.cat([rows.concat(), numbers, oldest - oldest.tanh()], dim=1)[:, :19])
        logits = logits.squeeze(1) + wide["user"].squeeze(1)
        if mode == "predict":
            return Spec(predictions={"score": logits.sigmoid(), "vector": rows["item"]})
        loss = nn.functional.binary_cross_entropy_with_logits(logits, features["label"])
        return Spec(loss, predictions=logits.sigmoid(), label=features["label"])


def trained(steps: int = 5, task: type[ml.Task] = Ranker) -> Trainer:
    """A trainer that has made some steps."""
    torch.manual_seed(0)
    trainer = Trainer(task)
    trainer.train(steps=steps)
    return trainer
