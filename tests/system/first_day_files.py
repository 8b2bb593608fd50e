"""The files of a new user: clicks as CSV, a task, and the impressions and actions of the following days."""

from __future__ import annotations

import random
import struct
from pathlib import Path

from monolith.data import text_ids
from monolith.data.protos.example_pb2 import Example
from monolith.online.joiner import action_record, impression_record

ROWS, EPOCHS, BATCH = 4000, 12, 64
FIRST_EVENT = 1000
"""Events have numbers of four digits: lines are alike, and so are the shares of workers and ranks."""
FIRST_DAYS, LATER_DAYS, EXPIRE_DAYS = 3, 7, 5
STREAM_ROWS, STREAM_BATCH = 640, 32
USERS, RETURNING_USERS, ITEMS = 60, 40, 40
"""Users below `RETURNING_USERS` are in the stream too; the others are last seen in the CSV file."""
LAST_USER = "user-last"
"""Only in the last example of the stream: a server that has this row has applied all updates."""
START = 1_700_000_000
DAY = 86_400

TASK = f"""
import sys

import torch
from torch import nn

import monolith as ml
from monolith.data import CsvDataset, Dense, Ids, Label, LineIdField, Parser
from monolith.train import RunnerConfig, Spec, distributed_sync_train, flags

MODEL_COLUMNS = [Ids("user"), Ids("item"), Dense("price"), Label()]


class Clicks(ml.Task):
    def build(self):
        slots = {{"user": ml.Slot(dim=8, expire_days={EXPIRE_DAYS}), "item": ml.Slot(dim=8)}}
        self.emb = ml.Embeddings(slots, ml.row_optimizers.Adagrad(learning_rate=0.3))
        times = ml.Slot(dim=1, initializer=ml.initializers.Zeros())
        self.counts = ml.Embeddings({{"event": times}}, ml.row_optimizers.Sgd(learning_rate=1.0))
        self.head = nn.Linear(17, 1)

    def input_fn(self, mode):
        clicks = CsvDataset("clicks.csv", ["event", "req_time", *MODEL_COLUMNS])
        return (clicks.repeat({EPOCHS}) if mode == "train" else clicks).batch({BATCH})

    def model_fn(self, features, mode):
        vectors = self.emb({{name: features[name] for name in ("user", "item")}}).concat()
        logits = self.head(torch.cat([vectors, features["price"]], 1))
        if mode == "predict":
            return Spec(predictions=logits.sigmoid().squeeze(1))
        loss = nn.functional.binary_cross_entropy_with_logits(logits, features["label"])
        if "event" in features:  # the row of an event counts how often it was trained
            loss = loss - self.counts({{"event": features["event"]}})["event"].sum()
        return Spec(loss, predictions=logits.sigmoid(), label=features["label"])


class Live(Clicks):
    def input_fn(self, mode):
        return self.ctx.examples({STREAM_BATCH}).parse(Parser("example", [*MODEL_COLUMNS, LineIdField("req_time")]))


if __name__ == "__main__":
    config = flags.parse(RunnerConfig(), sys.argv[1:])
    step = distributed_sync_train(config, Clicks.params()).global_step
    sys.stdout.write(f"ended at step {{step}}\\n")  # one write: print makes several, and ranks share the output
"""


def write_clicks(path: Path) -> None:
    """Clicks that follow from the numbers of user and item, with one exception in twenty."""
    draw = random.Random(7)  # noqa: S311 - the same clicks in every run
    lines = ["event,req_time,user,item,price,label"]
    for event in range(ROWS):
        user, item = draw.randrange(USERS), draw.randrange(ITEMS)
        label = int(user % 5 + item % 5 >= 4) ^ int(draw.random() < 0.05)
        seconds = START + event * FIRST_DAYS * DAY // ROWS
        lines.append(f"{FIRST_EVENT + event},{seconds},user-{user},{1000 + item},{draw.random():.3f},{label}")
    path.write_text("\n".join(lines) + "\n")


def write_events(folder: Path) -> None:
    """Impressions and actions of the following days, as the joiner reads them: every impression is clicked."""
    draw = random.Random(8)  # noqa: S311 - the same events in every run
    shown, done = [], []
    for number in range(STREAM_ROWS):
        request = b"request-%d" % number
        seconds = START + FIRST_DAYS * DAY + number * LATER_DAYS * DAY // STREAM_ROWS
        user = LAST_USER if number == STREAM_ROWS - 1 else f"user-{number % RETURNING_USERS}"
        sample = _sample(user, 1000 + draw.randrange(ITEMS), draw.random(), seconds)
        shown.append(impression_record(request, 1, time_ms=1000 * seconds, sample=sample))
        done.append(action_record(request, 1, time_ms=1000 * seconds + 500, actions=[1]))
    for name, records in (("shown-00000", shown), ("done-00000", done)):
        (folder / name).write_bytes(b"".join(struct.pack("<Q", len(record)) + record for record in records))


def _sample(user: str, item: int, price: float, seconds: int) -> bytes:
    example = Example()
    example.line_id.req_time = seconds
    for name, value in (("user", int(text_ids("user", [user])[0])), ("item", item)):
        example.named_feature.add(name=name).feature.fid_v2_list.value.append(value % 2**64)
    example.named_feature.add(name="price").feature.float_list.value.append(price)
    return example.SerializeToString()
