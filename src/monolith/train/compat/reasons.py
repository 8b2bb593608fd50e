"""Reasons that several refused names share."""

from __future__ import annotations

from typing import Final

WARM_UP: Final = (
    "an export holds a request for each signature, made from its example, and answers it before it serves; give the"
    " example: Trainer.export(example=...)"
)
REPLICAS: Final = (
    "replicas of serving register with any discovery service by themselves, in any number, under the name of the model;"
    " monolith.serving.DiscoverySyncBackend finds them"
)
DATA_CENTRES: Final = (
    "replicas are not separated by data centre; give each its own discovery service and DiscoverySyncBackend"
)
LOOKUP_DEADLINE: Final = (
    "the reader of the rows sets the deadline: monolith.serving.ShardedRows(max_rpc_deadline_millis=...)"
)
FOUNTAIN: Final = "the external data service is not public"
TENSORFLOW: Final = "it tunes TensorFlow, which is not used"
DATA_SERVICE: Final = "TensorFlow's data service is not used"
INSIGHT: Final = "messages about single samples are not part of this version"
EXCHANGE: Final = "how ranks exchange is for torch.distributed to decide: Gloo on CPUs, NCCL on GPUs"
DEVICES: Final = "a task places its modules itself, with .to('cuda') in build()"
EXPORT_ON_GPU: Final = "an exported graph is run on the CPU"
EXPORT_DEVICES: Final = "an exported graph names no device that could be cleared"
REMOTE_GPU: Final = "the dense part is not served apart from the entry"
