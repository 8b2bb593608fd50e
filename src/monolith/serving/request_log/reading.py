"""Reads logged requests: from files, which may have a torn end, or from a topic."""

from __future__ import annotations

import glob
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from monolith.data.protos.example_pb2 import Example
from monolith.data.records import BadRecords, Framing
from monolith.errors import DataLossError, NotFoundError
from monolith.online.joiner import FileInput, TopicInput, decode_events, kafka_place, num_partitions, request_of
from monolith.serving.request_log.records import SERVED
from monolith.serving.request_log.sinks import SUFFIX

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from numpy.typing import NDArray

    from monolith.online.joiner import JoinInput

_AT_ONCE = 4096
_OUTPUT = f"{SERVED}/"


class LoggedExample(NamedTuple):
    """One example of a request."""

    number: int
    """Index of the example in its request."""
    sample: bytes
    """An ``Example`` with the features of the request and of the answer."""
    outputs: dict[str, NDArray[np.float64]]
    """Outputs of the answer, as flat numbers."""


class LoggedRequest(NamedTuple):
    """Consecutive examples of one request in the log; usually all of them."""

    request_id: bytes
    model: str
    signature: str
    export: int
    """Version of the export that answered."""
    dense: int
    """Number of the dense weights in the followed log; -1: those of the export."""
    sparse: dict[str, int]
    """Part of the followed log -> its last increment; empty: no log was followed."""
    time_ms: int
    examples: list[LoggedExample]

    @property
    def has_moved_on(self) -> bool:
        """Whether the answer used rows or weights of a log, which are in no export."""
        return self.dense >= 0 or bool(self.sparse)


def read_requests(
    place: str, *, max_bad_records: int = 0, kafka: Mapping[str, str] | None = None
) -> Iterator[LoggedRequest]:
    """Reads the requests of a log, up to its end; a torn end of a file is skipped.

    Args:
        place: Its folder, a file, a pattern of files, or ``kafka://HOST:PORT/TOPIC``.
        max_bad_records: Number of records that are not logged examples and may be skipped.
        kafka: Further settings of librdkafka.

    Raises:
        NotFoundError: there are no files, or the topic does not exist.
        DataLossError: there are more bad records; the message names the first.
    """
    bad = BadRecords(max_bad_records)
    for source in _sources(place, bad, kafka or {}):
        source.open(None)
        try:
            yield from _requests_of(source, bad)
        finally:
            source.close()


def _sources(place: str, bad: BadRecords, settings: Mapping[str, str]) -> Iterable[JoinInput]:
    topic = kafka_place(place)
    if topic is not None:
        return [TopicInput(topic, number, settings) for number in range(num_partitions(topic, settings))]
    is_folder = Path(place).is_dir()
    paths = sorted(glob.glob(f"{glob.escape(place)}/*{SUFFIX}" if is_folder else place))  # noqa: PTH207 - it is a pattern
    if not paths:
        problem = f"has no files *{SUFFIX}" if is_folder else "does not exist"
        raise NotFoundError(f"request log '{place}': {problem}")
    return [FileInput(path, Framing.PLAIN, bad) for path in paths]


def _requests_of(source: JoinInput, bad: BadRecords) -> Iterator[LoggedRequest]:
    request: LoggedRequest | None = None
    while True:
        came = source.read(_AT_ONCE)
        events, problems = decode_events(came.records)
        for index, reason in problems:
            bad.add(f"{source.name}: offset {came.places[index]}: {reason}")
        for key, time_ms, sample, _ in events:
            try:
                said, example = _logged(sample)
            except DataLossError as error:
                bad.add(f"{source.name}: request {request_of(key)!r}: {error.message}")
                continue
            begun = LoggedRequest(request_of(key), *said, time_ms, [example])
            if request is not None and _continues(request, begun):
                request.examples.append(example)
                continue
            if request is not None:
                yield request
            request = begun
        if not came.records and source.is_at_end():
            break
    if request is not None:
        yield request


def _continues(request: LoggedRequest, following: LoggedRequest) -> bool:
    is_same = request._replace(examples=[]) == following._replace(examples=[])
    return is_same and following.examples[0].number > request.examples[-1].number


def _logged(sample: bytes) -> tuple[tuple[str, str, int, int, dict[str, int]], LoggedExample]:
    """Parses the metadata and outputs of the answer from an example."""
    try:
        example = Example.FromString(sample)
    except Exception as error:  # protobuf raises several types
        raise DataLossError("the sample is no Example") from error
    served: dict[str, Any] | None = None
    outputs: dict[str, NDArray[np.float64]] = {}
    for named in example.named_feature:
        if named.name == SERVED:
            served = _served(named.feature.bytes_list.value)
        elif named.name.startswith(_OUTPUT):
            kind = named.feature.WhichOneof("type")
            values = () if kind is None else getattr(named.feature, kind).value
            outputs[named.name.removeprefix(_OUTPUT)] = np.array(values, np.float64)
    if served is None:
        raise DataLossError(f"the sample has no feature {SERVED}: it is no record of a request log")
    said = (served["model"], served["signature"], served["export"], served["dense"], served["sparse"])
    return said, LoggedExample(served["example"], sample, outputs)


def _served(values: Any) -> dict[str, Any]:
    try:
        document = json.loads(values[0])
        for name, kind in _FIELDS.items():
            if type(document[name]) is not kind:
                raise TypeError(name)  # noqa: TRY301 - one handler reports every fault
    except (ValueError, LookupError, TypeError, RecursionError) as error:
        raise DataLossError(f"its feature {SERVED} is not that of a request log: {error!r}") from error
    served: dict[str, Any] = document
    return served


_FIELDS = {"model": str, "signature": str, "export": int, "dense": int, "sparse": dict, "example": int}
