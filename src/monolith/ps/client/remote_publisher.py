"""Makes servers publish their rows; each server has a part of the log, a timer, and a `HostedPublisher`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from monolith.errors import FailedPreconditionError
from monolith.ps._wire_values import mark_in
from monolith.rpc.protos import parameter_server_pb2 as messages

if TYPE_CHECKING:
    from monolith.deltalog import DeltaLog
    from monolith.deltalog.publish import StorePublishingConfig, Trained
    from monolith.ps.client.cluster import PsCluster
    from monolith.tables import ChangePosition


class RemotePublisher:
    """`monolith.deltalog.publish.StorePublisher` of the rows on all servers. Not thread-safe.

    Servers keep publishing when this process ends; its successor finds them publishing.

    Args:
        cluster: The servers.
        store: Name of the store on the servers.
        name: Name of the store in the names of the log's parts.
        log: The log of all servers.
        publishing_config: Options of the publication.
    """

    has_own_clock = True

    def __init__(
        self, cluster: PsCluster, store: str, name: str, log: DeltaLog, publishing_config: StorePublishingConfig
    ) -> None:
        self._cluster = cluster
        self._store = store
        self._request = messages.PublishRequest(
            store=store,
            name=name,
            log=log.place,
            base_folder=log.base_folder or "",
            interval_seconds=publishing_config.interval,
            record_bytes=publishing_config.record_bytes,
            position=b"" if publishing_config.restored is None else publishing_config.restored.to_bytes(),
        )
        self._numbers: dict[str, int] = {}
        self._is_open = False

    @property
    def numbers(self) -> dict[str, int]:
        """Part -> number of its last increment, as last reported by the servers."""
        return dict(self._numbers)

    def open(self) -> None:
        """Starts publication on every server; servers that publish already continue."""
        if not self._is_open:
            self._note(self._cluster.ask("Publish", self._request))
            self._is_open = True

    def publish(self, trained: Trained) -> int:  # noqa: ARG002 - servers derive it from the stamps of their rows
        """Makes every server publish its changes so far; returns the number of increments written."""
        self.open()
        try:
            answers = self._ask(now=True)
        except FailedPreconditionError:
            self._is_open = False  # a server was restarted
            raise
        self._note(answers)
        return sum(answer.written for answer in answers)

    def needs(self) -> dict[str, int]:
        """Returns the last published increments."""
        return self.numbers

    def before_cut(self) -> dict[str, int]:
        """Queries the servers for the position of the log."""
        answers = self._ask()
        self._note(answers)
        return {**self._numbers, **{part: number for answer in answers for part, number in answer.ended.items()}}

    def after_cut(self, mark: ChangePosition) -> dict[str, ChangePosition]:  # noqa: ARG002 - servers may have made marks of their own since
        """Returns part -> a mark after the cut, from its server."""
        answers = self._ask(saved=True)
        return {part: mark_in(answer.mark) for answer in answers for part in answer.numbers}

    def close(self) -> None:
        """Does nothing: servers keep publishing."""

    def _ask(self, *, now: bool = False, saved: bool = False) -> list[Any]:
        request = messages.PublishedRequest(store=self._store, now=now, saved=saved)
        return self._cluster.ask("Published", request)

    def _note(self, answers: list[Any]) -> None:
        self._numbers = {part: number for answer in answers for part, number in answer.numbers.items()}
