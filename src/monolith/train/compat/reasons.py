"""Reasons that several refused names share."""

from __future__ import annotations

from typing import Final

SERVING: Final = "serving and what is sent to it are not part of this version"
ITEMS: Final = "candidate items are not predicted after training; use Trainer.predict over them"
FOUNTAIN: Final = "the external data service is not public"
TENSORFLOW: Final = "it tunes TensorFlow, which is not used"
DATA_SERVICE: Final = "TensorFlow's data service is not used"
INSIGHT: Final = "messages about single samples are not part of this version"
EXCHANGE: Final = "how ranks exchange is for torch.distributed to decide: Gloo on CPUs, NCCL on GPUs"
DEVICES: Final = "a task places its modules itself, with .to('cuda') in build()"
