"""Topics of Kafka as a dataset whose position holds every offset. Needs the extra ``kafka``.

Read `dataset` first, then `fetching` (each message once, up to the end), `ordering` (blocks) and `position`. May import
what `monolith.data` may.
"""

from monolith.data.kafka.config import KafkaConfig
from monolith.data.kafka.dataset import KafkaDataset
from monolith.data.kafka.position import KafkaPosition, Partition, merge_positions
from monolith.data.kafka.reading import KafkaReading

__all__ = [
    "KafkaConfig",
    "KafkaDataset",
    "KafkaPosition",
    "KafkaReading",
    "Partition",
    "merge_positions",
]
