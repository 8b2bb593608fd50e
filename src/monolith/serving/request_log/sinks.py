"""Destinations of records: files in a folder, or a topic of Kafka."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import socket
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from monolith.clock import Clock, SystemClock
from monolith.data.kafka import confluent_kafka, new_library_log
from monolith.errors import InvalidArgumentError, ResourceExhaustedError, UnavailableError
from monolith.files import named_errors

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from monolith.online.joiner import KafkaPlace

OutcomeCallback: TypeAlias = "Callable[[int, Exception | None], None]"
"""Called once for each record, immediately or later: with a number of records, and None or why they are lost."""


SUFFIX = ".requests"
"""Suffix of the file names."""
_LONGEST_HOST = 64


class RolledFiles:
    """Sink that appends records to a file, and rotates it by size and age. Not thread-safe."""

    def __init__(
        self, folder: str, report: OutcomeCallback, *, roll_bytes: int, roll_seconds: float, clock: Clock | None = None
    ) -> None:
        self._folder = Path(folder)
        self._report = report
        self._roll_bytes, self._roll_seconds = roll_bytes, roll_seconds
        self._clock = clock or SystemClock()
        host = re.sub(r"[^A-Za-z0-9.]+", "-", socket.gethostname())[:_LONGEST_HOST] or "host"
        self._server = f"{host}-{os.getpid()}-{secrets.token_hex(4)}"
        self._number = 0
        self._descriptor: int | None = None
        self.path = self._folder
        """Current file; the folder before the first one."""
        self._end = 0
        self._began = 0.0
        self._require_writable()

    def append(self, request_id: bytes, records: Sequence[bytes]) -> None:  # noqa: ARG002 - a topic needs the request
        """Writes the records of a request, all or none."""
        framed = b"".join(len(record).to_bytes(8, "little") + record for record in records)
        try:
            self._roll_if_due()
            with named_errors(str(self._folder), "written"):
                self._write(framed)
        except Exception as error:  # noqa: BLE001 - reported; the next write may succeed
            self._report(len(records), error)
        else:
            self._report(len(records), None)

    def flush(self) -> None:
        """Closes a file that is due for rotation; records are already visible to readers."""
        if self._descriptor is not None and self._is_due():
            self._end_file()

    def close(self, seconds: float) -> None:  # noqa: ARG002 - a file needs no wait
        """Closes the file."""
        self._end_file()

    def _require_writable(self) -> None:
        if self._folder.exists() and not self._folder.is_dir():
            raise InvalidArgumentError(f"request log '{self._folder}': must be a folder, and is a file")
        with named_errors(str(self._folder), "written"):
            self._folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=self._folder):
                pass

    def _is_due(self) -> bool:
        return self._end >= self._roll_bytes or self._clock.monotonic() - self._began >= self._roll_seconds

    def _roll_if_due(self) -> None:
        if self._descriptor is not None and self._is_due():
            self._end_file()
        if self._descriptor is None:
            self._begin_file()

    def _begin_file(self) -> None:
        moment = datetime.fromtimestamp(self._clock.now(), UTC)
        path = self._folder / f"{moment:%Y%m%dT%H%M%S}-{self._server}-{self._number:06d}{SUFFIX}"
        with named_errors(str(path), "written"):
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
            self._descriptor = os.open(path, flags, 0o644)
        self.path = path
        self._number += 1
        self._end, self._began = 0, self._clock.monotonic()

    def _end_file(self) -> None:
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            with contextlib.suppress(OSError):  # too late to handle an error
                os.fsync(descriptor)
            os.close(descriptor)

    def _write(self, framed: bytes) -> None:
        assert self._descriptor is not None  # noqa: S101 - `_roll_if_due` has begun one
        begin, rest = self._end, memoryview(framed)
        try:
            while rest:
                written = os.pwrite(self._descriptor, rest, self._end)
                rest, self._end = rest[written:], self._end + written
        except OSError:
            self._take_back(begin)
            raise

    def _take_back(self, begin: int) -> None:
        """Truncates a partial write; if that fails, the file is abandoned with a torn end."""
        assert self._descriptor is not None  # noqa: S101 - it was just written to
        try:
            os.ftruncate(self._descriptor, begin)
            self._end = begin
        except OSError:
            os.close(self._descriptor)
            self._descriptor = None


_PATIENCE_SECONDS = 60
"""How long a record waits for an unreachable broker."""


class Topic:
    """Sink that sends records; librdkafka buffers those that brokers have not acknowledged. Not thread-safe.

    Outcomes are reported within `append`, `flush` and `close`. Records beyond `most_bytes` that wait for the brokers
    are lost.
    """

    def __init__(
        self, place: KafkaPlace, report: OutcomeCallback, *, most_bytes: int, settings: Mapping[str, str]
    ) -> None:
        self._place = place
        self._report = report
        library = confluent_kafka()
        try:
            self._producer: Any = library.Producer(
                {
                    "linger.ms": 50,
                    "message.timeout.ms": _PATIENCE_SECONDS * 1000,
                    "reconnect.backoff.max.ms": 2000,
                    "queue.buffering.max.kbytes": max(1, most_bytes >> 10),
                    "queue.buffering.max.messages": 1_000_000,
                    # The default of Kafka's Java clients, so that actions written by them are in the same partitions.
                    "partitioner": "murmur2_random",
                    **settings,
                    "bootstrap.servers": place.brokers,
                },
                logger=new_library_log(id(self)),
            )
        except library.KafkaException as error:
            raise ValueError(f"request log: kafka: {error.args[0].str()}") from error

    def append(self, request_id: bytes, records: Sequence[bytes]) -> None:
        """Passes the records of a request to librdkafka."""
        for number, record in enumerate(records):
            try:
                self._producer.produce(self._place.topic, record, request_id, on_delivery=self._delivered)
            except BufferError:
                self._producer.poll(0)
                self._report(len(records) - number, self._refusal("more records wait for the brokers than may"))
                break
            except Exception as error:  # noqa: BLE001 - such as a record too large; later ones may succeed
                self._report(1, self._refusal(str(error)))
        self._producer.poll(0)

    def flush(self) -> None:
        """Processes delivery reports."""
        self._producer.poll(0)

    def close(self, seconds: float) -> None:
        """Waits up to `seconds` for the brokers; records not acknowledged by then are lost."""
        left = self._producer.flush(seconds)
        if left:
            self._report(left, UnavailableError(f"{self._name}: the brokers have not taken them in {seconds:g} s"))
        self._report = lambda *_: None  # all records are reported
        self._producer.purge()

    @property
    def _name(self) -> str:
        return f"topic '{self._place.topic}' at {self._place.brokers}"

    def _refusal(self, reason: str) -> ResourceExhaustedError:
        return ResourceExhaustedError(f"{self._name}: {reason}")

    def _delivered(self, error: Any, _: Any) -> None:
        if error is None:
            self._report(1, None)
        else:
            self._report(1, UnavailableError(f"{self._name}: {error.str()} ({error.name()})"))
