"""Input options of a run, for the `input_fn` of tasks: ``self.ctx.input``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from monolith.config import Config, config

if TYPE_CHECKING:
    from monolith.data import Dataset
    from monolith.data.records import Records


class NumberedStream(Protocol):
    """A live stream of examples, such as `monolith.online.stream.ExampleStream`."""

    def blocks(self, size: int) -> Dataset[Records]:
        """Returns blocks of at most `size` examples, as they arrive."""


@config
class InputConfig(Config):
    """Location and framing of the input, named as on the command line; None if not set."""

    data_type: str | None = None
    """Format of the samples: Instance, Example or ExampleBatch."""
    feature_list: str | None = None
    """Name of a list of features."""
    lagrangex_header: bool = False
    """Framing: each record begins with a header of lagrangex."""
    sort_id: bool = True
    """Framing: with a sort id."""
    kafka_dump: bool = False
    """Framing: a dump of Kafka."""
    kafka_dump_prefix: bool = False
    """Framing: with its prefix."""
    kafka_topics: str | None = None
    """Topics of a stream, separated by commas."""
    kafka_group_id: str | None = None
    """Consumer group of the topics."""
    kafka_servers: str | None = None
    """Brokers of the topics."""
    data_service_dispatcher: str | None = None
    """``grpc://host:port`` of the data service of a job on the MLP platform that has one."""
    input_path: str | None = None
    """Path of the files."""
    wildcard: str | None = None
    """Which files."""
    start_date: str | None = None
    """First day, YYYYMMDD."""
    end_date: str | None = None
    """Day after the last one."""
    is_hourly: bool = False
    """Folders by hour."""
    start_hour: int | None = None
    """First hour."""
    end_hour: int | None = None
    """Hour after the last one."""
    dynamic_sharding: bool = False
    """Workers take files from a queue that they share, instead of a fixed share each."""
    num_readers: int = 1
    """Files that one worker reads at a time."""
    stream: NumberedStream | None = None
    """The examples of a joiner, see `TaskContext.examples`."""

    @property
    def topics(self) -> list[str]:
        """Topics of a stream, one by one."""
        return [topic.strip() for topic in (self.kafka_topics or "").split(",") if topic.strip()]
