"""Writes one part: takes it from whoever had it, numbers the increments, and opens it anew after an error."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Any, Self

from monolith.clock import SystemClock
from monolith.deltalog.increment import Increment, IncrementKind
from monolith.tables.history import Mark

if TYPE_CHECKING:
    from monolith.clock import Clock
    from monolith.deltalog.transport import Appender, Claim, Transport
    from monolith.tables.schema import Schema

BEFORE_ALL = Mark(0, 0, 0)


class PartWriter:
    """The writer of one part. One thread at a time may call it.

    It opens a generation when it is made. An `append` that fails leaves open whether its increment is in the log; the
    next one therefore opens another generation first, behind which nothing of the failed one counts, unless somebody
    else has the part by then.

    Args:
        transport: The log.
        part: Its name.
        schema: What serving rows look like; None: of dense weights.
        needs: Part -> number that a follower must have applied before this generation.
        base: What is behind the opening begins with this base, and not with what was before it.
        clock: Of this machine.
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
        """Of this writer, now."""
        self.last_number = -1
        """Of the last increment that is in the log for good."""
        self.mark = BEFORE_ALL
        """Of the last increment."""
        self._appender: Appender | None = None
        self._open(after_writer=None)

    @property
    def transport(self) -> Transport:
        """The log."""
        return self._transport

    def append(self, *, mark: Mark | None = None, **fields: Any) -> Increment:
        """Writes an increment; it is in the log for good when this returns.

        Args:
            mark: Every change up to here is in the log with it; None: that of the increment before it.
            fields: Those of `Increment` but part, generation, writer, number, digest and time.

        Raises:
            AbortedError: another writer has the part; this one is at its end.
            UnavailableError, ResourceExhaustedError, PermissionDeniedError: not now; the same may be tried again.
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
        """Gives back what it holds; the part stays as it is."""
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
        self._base = None  # opened anew after an error, the part goes on from here

    def _made(self, **fields: Any) -> Increment:
        return Increment(
            part=self.part,
            writer=self._writer,
            schema_digest=0 if self._schema is None else self._schema.digest,
            published_ms=int(1000 * self._clock.now()),
            **fields,
        )
