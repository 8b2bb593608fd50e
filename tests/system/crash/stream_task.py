"""The task of a disturbed run on a stream: counts every event, and every item, in a row each.

Rows start at 0; each occurrence has the gradient -1, and the learning rate is 1: the row of an event is 1 if it was
trained once, and the row of an item is the number of its examples. Only ``taste`` learns the probability of a click.

Predictions return the rows and weights themselves, so that a client can check which state an answer was computed with.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from monolith.data import Ids, Label, LineIdField, Parser
from monolith.data.protos.example_pb2 import Example
from monolith.nn import Embeddings, Slot
from monolith.tables.compressors import Fp32
from monolith.tables.initializers import Zeros
from monolith.tables.row_optimizers import Sgd
from monolith.train import InstantiableParams, Mode, Spec, Task

COLUMNS = ("event", "item", "passing", "whole", "liked", "taste")
_COUNTED = COLUMNS[:4]
_EVENT_COLUMNS = ("event", "passing")
_LEARNING_RATE = 0.3
_WHOLE_DIM = 16


def counted_sample(event: int, item: int) -> bytes:
    """Returns the sample of an impression, for `StreamCountingTask`."""
    example = Example()
    for name in COLUMNS:
        value = event if name in _EVENT_COLUMNS else item
        example.named_feature.add(name=name).feature.fid_v2_list.value.append(value)
    return example.SerializeToString()


class StreamCountingTask(Task):
    """Counts events and items in rows, those of ``passing`` for a day only, and clicks in ``liked``.

    The row of an item in `whole` counts like that in `item`, in each of its many columns, so that a torn row shows. The
    row in ``taste`` is the logit of a click.
    """

    @classmethod
    def params(cls) -> InstantiableParams:
        """Returns the parameters, with the size of its batches."""
        p = super().params()
        p.define("batch_size", 32, "Examples of a batch, at most.")
        return p

    def build(self) -> None:
        """Creates one number for each id, and one for all examples."""
        slot, passing = Slot(1, initializer=Zeros()), Slot(1, initializer=Zeros(), expire_days=1)
        taste = Slot(1, initializer=Zeros(), learning_rate=_LEARNING_RATE)
        whole = Slot(_WHOLE_DIM, initializer=Zeros(), compressor=Fp32())
        slots = {"event": slot, "item": slot, "passing": passing, "whole": whole, "liked": slot, "taste": taste}
        self.emb = Embeddings(slots, Sgd(learning_rate=1.0))
        self.total = nn.Linear(1, 1, bias=False)
        nn.init.zeros_(self.total.weight)

    def input_fn(self, mode: Mode) -> Any:
        """Returns the stream of the run."""
        parser = Parser("example", [*map(Ids, COLUMNS), LineIdField("req_time"), Label()])
        return self.ctx.examples(self.p.batch_size).parse(parser)

    def model_fn(self, features: Any, mode: Mode) -> Spec:
        """Returns a loss with gradient -1 for each occurrence and each click in ``liked``; ``taste`` learns clicks."""
        looked_up = self.emb(features)
        if mode == "predict":
            shown = {name: looked_up[name][:, 0] for name in ("event", "passing", "taste")}
            total = self.total(torch.ones_like(looked_up["event"]))[:, 0]
            return Spec(predictions={**shown, "whole": looked_up["whole"], "total": total})
        counts = sum(looked_up[name].sum() for name in _COUNTED)
        labels = features["label"].reshape(-1)
        clicks = (looked_up["liked"][:, 0] * labels).sum()
        surprise = nn.functional.binary_cross_entropy_with_logits(looked_up["taste"][:, 0], labels, reduction="sum")
        examples = self.total(torch.ones(features.num_rows, 1)).sum()
        return Spec(loss=surprise - counts - clicks - examples)

    def optimizers(self, model: nn.Module) -> torch.optim.Optimizer:
        """Returns SGD with learning rate 1, which adds the negative gradient."""
        return torch.optim.SGD(model.parameters(), lr=1.0)
