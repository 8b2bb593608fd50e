"""The clients of an online tree with servers: they query continuously, and record the answers.

Two threads are users, over REST and over gRPC: each queries the servers alternately, and retries once at the other one
after an error. One thread for each server polls whether it is ready, and which events it has.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from monolith.deltalog import DENSE_PART, DeltaLog
from monolith.errors import OpError
from system.crash.online_events import OnlineTraffic
from system.crash.online_servers import SERVERS, Asked, AskingError, GrpcLine, Line, RestLine, Rows, ServerPorts
from system.crash.processes import Tell

_LOOK_SECONDS = 0.01
_USER_SECONDS = {"rest": 0.005, "grpc": 0.02}
"""Seconds from an answer to the next request."""
_MOST_EVENTS = 256
"""Maximum number of events per request."""


class Clients:
    """Queries until SIGTERM, then until both servers have all of the log.

    Args:
        traffic: Events to check for.
        ports: Ports of each server.
        log: Log that the servers follow.
        written: Prefix of the names of the output files.
        tell: Reports to the parent for each server whether it is ready, which chunks it has, and how many events.
        watched: Every `watched`-th event is checked when it is due, in addition to the marks of chunks; None: only
            marks until all chunks have arrived.
    """

    def __init__(
        self,
        traffic: OnlineTraffic,
        ports: Mapping[str, ServerPorts],
        log: DeltaLog,
        written: Path,
        tell: Tell,
        *,
        watched: int | None = None,
    ) -> None:
        self._traffic = traffic
        self._ports = ports
        self._log = log
        self._written = written
        self._tell = tell
        self._watched = watched
        self._end = threading.Event()
        """Set when users make no more requests."""
        self._last: dict[str, int] = {}
        """Part of rows -> number that servers must have before the polling ends; set before `_end`."""
        self._listening = threading.Barrier(len(SERVERS) + len(_USER_SECONDS))
        """Users begin when every server listens."""
        self._numbers = itertools.count()
        self._asked = os.open(written.with_suffix(".asked"), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        self._failed: list[BaseException] = []
        self._bases: dict[str, dict[str, int]] = {}
        """Name -> numbers of every base that servers may have begun at."""

    def run(self) -> dict[str, Any]:
        """Runs in the main thread of a process. Returns the paths of the records of servers and of the log's bases."""
        asked_to_end: list[int] = []
        signal.signal(
            signal.SIGTERM, lambda number, _: asked_to_end.append(number)
        )  # not an Event: its lock may be held when the signal arrives
        looks = {server: _Look(self._traffic, self._watched) for server in SERVERS}
        threads = [threading.Thread(target=self._guard(self._look, server, looks[server])) for server in SERVERS]
        threads += [threading.Thread(target=self._guard(self._use, over)) for over in _USER_SECONDS]
        for thread in threads:
            thread.daemon = True
            thread.start()
        while not asked_to_end and not self._failed:
            time.sleep(_LOOK_SECONDS)
            self._note_bases()
        self._last = {part: number for part, number in self._log.position().items() if part != DENSE_PART}
        self._end.set()
        for thread in threads:
            while thread.is_alive() and not self._failed:
                thread.join(_LOOK_SECONDS)
        if self._failed:
            raise self._failed[0]
        found = {server: look.to_dict() for server, look in looks.items()}
        path = self._written.with_suffix(".found")
        path.write_text(json.dumps({**found, "bases": self._bases}), encoding="utf-8")
        return {"found": str(path)}

    def _guard(self, work: Callable[..., None], *arguments: Any) -> Callable[[], None]:
        def run() -> None:
            try:
                work(*arguments)
            except BaseException as error:  # noqa: BLE001 - raised again by the main thread
                self._failed.append(error)

        return run

    def _note_bases(self) -> None:
        """Records the bases before they are deleted with their checkpoints."""
        with suppress(OpError):  # the log does not exist yet
            self._bases |= {base.name: base.numbers for base in self._log.bases()}

    # Users

    def _use(self, over: str) -> None:
        lines: dict[str, Line] = {
            server: RestLine(ports.http) if over == "rest" else GrpcLine(ports.grpc)
            for server, ports in self._ports.items()
        }
        self._listening.wait()
        while not self._end.wait(_USER_SECONDS[over]):
            number = next(self._numbers)
            first = number % len(SERVERS)
            for server in (SERVERS[first], SERVERS[1 - first]):  # the second one only after an error
                if self._ask(server, lines[server], (), number).error is None:
                    break
        for line in lines.values():
            line.close()

    def _ask(self, server: str, line: Line, events: Sequence[int], number: int | None) -> Asked:
        sent = time.monotonic()
        known: dict[str, Any] = {"request": number, "server": server, "over": line.over, "sent": sent}
        try:
            version, rows = line.ask(events)
        except AskingError as error:
            found = Asked(**known, came=time.monotonic(), error=str(error))
        else:
            found = Asked(**known, came=time.monotonic(), rows=rows, **version)
        os.write(self._asked, found.to_line())
        return found

    # Polling

    def _look(self, server: str, look: _Look) -> None:
        line = RestLine(self._ports[server].http)
        told: dict[str, Any] = {}
        begun = False
        while not look.is_over:
            try:
                why = line.why_not_ready()
            except AskingError as error:
                why = f"it does not answer: {error}"
            else:
                if not begun:
                    begun = True
                    self._listening.wait()
                self._look_once(server, look, line)
            now = {"ready": why is None, "why": why, "chunks": look.chunks, "events": look.num_events}
            if now != told:
                told = now
                self._tell({server: now})
            time.sleep(_LOOK_SECONDS)
        line.close()

    def _look_once(self, server: str, look: _Look, line: RestLine) -> None:
        found = self._ask(server, line, look.wanted(), None)
        if found.error is not None:
            return
        if look.take(found.rows):
            look.tastes[look.chunks] = list(self._ask(server, line, (), None).rows.taste.values())
        if self._end.is_set() and all(found.sparse.get(part, -1) >= number for part, number in self._last.items()):
            self._look_at_everything(server, look, line)

    def _look_at_everything(self, server: str, look: _Look, line: RestLine) -> None:
        """Queries every event and every item, at the end, of a server that has the complete log."""
        events: dict[str, dict[int, float]] = {"event": {}, "passing": {}}
        for begin in range(0, self._traffic.num_events, _MOST_EVENTS):
            wanted = range(begin, min(begin + _MOST_EVENTS, self._traffic.num_events))
            found = self._ask(server, line, wanted, None)
            if found.error is not None:
                raise AskingError(f"{server}, at the end: {found.error}")
            events["event"] |= found.rows.event
            events["passing"] |= found.rows.passing
        items = self._ask(server, line, (), None)
        look.last = {**events, "whole": items.rows.whole, "total": items.rows.total}
        look.is_over = True


class _Look:
    """The events that a server has shown, and when."""

    def __init__(self, traffic: OnlineTraffic, watched: int | None) -> None:
        self._traffic = traffic
        self._came = np.full(traffic.num_events, np.nan)
        known = range(0, traffic.num_events, watched) if watched is not None else range(0)
        self._due = sorted(known, key=traffic.known_ms)
        """Pending events, in the order in which they are due."""
        self.chunks = 0
        self.tastes: dict[int, list[float]] = {}
        """Number of visible chunks -> the logits of the items."""
        self.last: dict[str, Any] = {}
        """All rows in the end."""
        self.is_over = False

    @property
    def num_events(self) -> int:
        """Number of visible events; all events are checked once every chunk has arrived."""
        return int((~np.isnan(self._came)).sum()) if self.chunks == self._traffic.num_chunks else 0

    def wanted(self) -> list[int]:
        """Returns the marks of the next chunk, and the events that are due."""
        traffic = self._traffic
        if self.chunks == traffic.num_chunks:
            missing = np.flatnonzero(np.isnan(self._came))
            return missing[:_MOST_EVENTS].tolist() or [0]
        now = 1000 * time.time()
        due = itertools.takewhile(lambda event: traffic.known_ms(event) <= now, self._due[:_MOST_EVENTS])
        return [*traffic.marks(self.chunks), *due]

    def take(self, rows: Rows) -> bool:
        """Records the events of an answer; returns whether a new chunk is visible."""
        now = time.time()
        here = [event for event, row in rows.event.items() if row]
        self._came[here] = np.fmin(self._came[here], now)
        self._due = [event for event in self._due if np.isnan(self._came[event])]
        before = self.chunks
        traffic = self._traffic
        while self.chunks < traffic.num_chunks and set(traffic.marks(self.chunks)) <= set(here):
            self.chunks += 1
        return self.chunks > before

    def to_dict(self) -> dict[str, Any]:
        """Returns the record as JSON values; ``came`` and ``tastes`` as in `system.crash.online_follower`."""
        came = [None if np.isnan(each) else each for each in self._came.tolist()]
        return {"came": came, "tastes": self.tastes, "last": self.last}
