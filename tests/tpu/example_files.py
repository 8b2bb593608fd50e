"""An embedding task, and files for it to read."""

from __future__ import annotations

import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from monolith.data import Framing, RecordWriter
from monolith.data.protos.tf_example_pb2 import Example
from monolith.tpu import EmbeddingTask
from monolith.train.parameters.params import Params


class Ranker(EmbeddingTask):
    """Two slots, one of them with two columns, and a number."""

    def build_layers(self) -> None:
        self.top = nn.Linear(21, 1)

    def dense_columns(self) -> Mapping[str, int]:
        return {"age": 1}

    def logits_fn(self, features: Mapping[str, Any]) -> Tensor:
        user, item = self.env.slot(200, 8), self.env.slot(201, 4)
        parts = [user.column("fc_user").lookup(), user.column("fc_friend").lookup(), item.column("fc_item").lookup()]
        return self.top(torch.cat([*parts, features["age"]], 1)).squeeze(1)  # type: ignore[no-any-return]


def write_files(folder: Path, *, num_files: int = 3, per_file: int = 64) -> None:
    """Files ``part-*`` of examples, and a vocabulary."""
    draw = random.Random(7)  # noqa: S311 - made-up data
    for number in range(num_files):
        with RecordWriter(str(folder / f"part-{number}"), Framing.of("tfrecord")) as writer:
            for _ in range(per_file):
                users = [draw.randrange(1000) for _ in range(draw.randrange(1, 4))]
                item = draw.randrange(-5, 300)
                example = Example()
                feature = example.features.feature
                feature["fc_user"].int64_list.value.extend(users)
                feature["fc_friend"].int64_list.value.extend(users[:1])
                feature["fc_item"].int64_list.value.append(item)
                feature["age"].float_list.value.append(draw.random())
                feature["label"].float_list.value.append(float(users[0] % 2))
                writer.write(example.SerializeToString())
    (folder / "vocab.tsv").write_text("slot\tcount\n200\t500\n201\t200000000\n", encoding="utf-8")


def params_for(folder: Path) -> Params:
    p = Ranker.params()
    p.vocab_file_path = str(folder / "vocab.tsv")
    p.train.file_pattern = str(folder / "part-*")
    p.train.per_replica_batch_size = 16
    p.input.eval_examples, p.eval.per_replica_batch_size = 100, 32
    p.deterministic = True
    return p
