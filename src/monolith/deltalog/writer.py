"""Writes one part: claims it from its previous writer, numbers the increments, and reopens it after an error."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Any, Self

from monolith.clock import SystemClock
from monolith.deltalog.increment import Increment, IncrementKind
from monolith.tables.history import ChangePosition

if TYPE_CHECKING:
    from monolith.clock import Clock
    from monolith.deltalog.transport import Appender, Claim, Transport
    from monolith.tables.schema import Schema

BEFORE_ALL = ChangePosition(0, 0, 0)


class PartWriter:
    """The writer of one part. Not thread-safe: calls must not overlap.

    The constructor opens a generation. After a failed `append` it is unknown whether its increment is in the log. The
    next `append` therefore opens another generation first, after which records of the failed one no longer count,
    unless another writer has the part by then.

    Args:
        transport: The log.
        part: Its name.
        schema: Schema of the serving rows; None: dense weights.
        needs: Part -> number that a follower must have applied before this generation.
        base: Base from which the records after the opening start, instead of continuing the records before it.
        clock: Clock of this machine; None: the system clock.
    """

    def __init__(
        self,
        transport: Transport,
        part: str,
        *,
        schema: Schema | None = None,
        needs: dict[str, int] | None = None,
        base: str | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.part = part
        self._transport = transport
        self._schema = schema
        self._clock = clock or SystemClock()
        self._writer = secrets.randbits(63)
        self._needs = dict(needs or {})
        self._base = base
        self.generation = 0
        """Current generation of this writer."""
        self.last_number = -1
        """Number of the last durable increment."""
        self.mark = BEFORE_ALL
        """Mark of the last increment."""
        self._appender: Appender | None = None
        self._open(after_writer=None)

    @property
    def transport(self) -> Transport:
        """Storage of the log."""
        return self._transport

    def append(self, *, mark: ChangePosition | None = None, **fields: Any) -> Increment:
        """Appends an increment, which is durable when this returns.

        Args:
            mark: Every change up to here is in the log with this increment; None: the mark of the previous increment.
            fields: Fields of `Increment` except part, generation, writer, number, digest and time.

        Raises:
            AbortedError: another writer has the part; this writer cannot continue.
            UnavailableError, ResourceExhaustedError, PermissionDeniedError: not written; the call may be retried.
        """
        if self._appender is None:
            self._open(after_writer=self._writer)
        made = self._made(
            number=self.last_number + 1, generation=self.generation, mark=self.mark if mark is None else mark, **fields
        )
        appender, self._appender = self._appender, None
        assert appender is not None  # noqa: S101 - it was opened
        try:
            appender.append(made.number, made.encode())
        except BaseException:
            appender.close()
            raise
        self._appender = appender
        self.last_number, self.mark = made.number, made.mark
        return made

    def close(self) -> None:
        """Releases files and connections; the log is unchanged."""
        if self._appender is not None:
            self._appender.close()
            self._appender = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _open(self, *, after_writer: int | None) -> None:
        claimed: list[Claim] = []

        def opening(claim: Claim) -> bytes:
            claimed.append(claim)
            text = b"" if self._schema is None else self._schema.text.encode()
            return self._made(
                kind=IncrementKind.OPENING,
                number=claim.number,
                generation=claim.generation,
                mark=self.mark,
                needs=self._needs,
                base=self._base,
                follows=claim.follows,
                payload=text,
            ).encode()

        self._appender = self._transport.open(self.part, opening, after_writer=after_writer)
        self.generation, self.last_number = claimed[-1].generation, claimed[-1].number
        self._base = None  # reopened after an error, the part continues from here

    def _made(self, **fields: Any) -> Increment:
        return Increment(
            part=self.part,
            writer=self._writer,
            schema_digest=0 if self._schema is None else self._schema.digest,
            published_ms=int(1000 * self._clock.now()),
            **fields,
        )
