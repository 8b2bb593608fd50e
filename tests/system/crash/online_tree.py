"""The processes of an online tree: producer, joiners, trainer, and its readers: followers or servers.

Each process is restarted after every kill. `TreeWatch` waits for their progress.
"""

from __future__ import annotations

import json
import logging
import signal
import time
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from monolith import cli
from system.crash.online_client import Clients
from system.crash.online_events import OnlineTraffic, Sent
from system.crash.online_follower import follow
from system.crash.online_places import Places
from system.crash.online_servers import SERVERS, ServerPorts, export_untrained, serve_arguments
from system.crash.processes import BatchLimit, Child, Life, Tell, begin_role
from system.crash.trial import ProgressWatch, StuckError

PRODUCER, TRAINER = "producer", "trainer"
JOINERS = ("joiner-0", "joiner-1")
FOLLOWERS = ("follower-0", "follower-1")
CLIENTS = "clients"

INTERRUPTED = 130
"""Exit status of a run that was requested to stop."""
TASK = "system.crash.stream_task:StreamCountingTask"
_BATCH_RECORDS = 8
_PAUSE_SECONDS = 0.002
_IDLE_SECONDS = 3600


@dataclass(frozen=True, slots=True, kw_only=True)
class OnlineSettings:
    """Settings of the tree."""

    task: str = TASK
    is_live: bool = False
    """Whether events are written at their event time; else as soon as allowed."""
    trainer: tuple[str, ...] = field(default=())
    """Additional arguments of the trainer."""
    serve: bool = False
    """Whether the readers are servers, which clients query; else followers."""
    watched: int = 1
    """In a live tree, clients check for every `watched`-th event."""


class OnlineTree:
    """All processes, forked from this one, which must have one thread. Closing it kills running processes.

    Args:
        traffic: Events of users.
        places: Files or topics by which the processes communicate.
        folder: Folder for the model, the state of the joiners, and the output of every process.
        settings: Settings of the tree.
    """

    def __init__(
        self, traffic: OnlineTraffic, places: Places, folder: Path, settings: OnlineSettings | None = None
    ) -> None:
        self.traffic = traffic
        self.places = places
        self.folder = folder
        self.settings = OnlineSettings() if settings is None else settings
        self.model_dir = folder / "model"
        readers = SERVERS if self.settings.serve else FOLLOWERS
        self.readers: tuple[str, ...] = readers
        """Names of the processes that follow the trainer."""
        self.roles = (PRODUCER, *JOINERS, TRAINER, *readers)
        """Names of the processes that may be killed."""
        self.helpers = (CLIENTS,) if self.settings.serve else ()
        """Names of the processes that must run all the time."""
        self.export = folder / "export"
        self.lives: dict[str, list[Life]] = {}
        """Lifetimes of each process, in order."""
        self._ports = {role: ServerPorts.draw() for role in readers} if self.settings.serve else {}
        self._limit = BatchLimit()
        self._children: dict[str, Child] = {}

    def allow(self, chunks: int) -> None:
        """Allows the producer to write the given number of chunks."""
        self._limit.set(chunks)

    def start(self, role: str) -> None:
        """Starts a process, or restarts it after its end."""
        for command in ("joiner", "train", *(["serve"] if self.settings.serve else [])):
            cli.load_command(command)  # imported once for all forked processes
        if role in self._ports and not self.export.exists():
            export_untrained(self.export)
        if role in self._children:
            self._children.pop(role).close()
        self.lives.setdefault(role, []).append(Life(time.monotonic()))
        self._children[role] = Child(partial(self._run, role))

    def kill(self, role: str) -> None:
        """Sends SIGKILL, and waits until the process has ended."""
        life = self.lives[role].pop()
        self.lives[role].append(life._replace(ended=time.monotonic()))
        self._children[role].kill()

    def ask_to_end(self, role: str) -> None:
        """Sends SIGTERM."""
        self._children[role].send(signal.SIGTERM)

    def dump_stacks(self) -> None:
        """Makes every process write the stacks of its threads to its log."""
        for child in self._children.values():
            child.send(signal.SIGUSR1)

    def has_ended(self, role: str) -> bool:
        """Returns whether the process has ended."""
        return self._children[role].has_ended()

    def told(self, role: str) -> dict[str, Any]:
        """Returns the reports of a process since its last start.

        Raises:
            RuntimeError: it failed without a kill.
        """
        return self._children[role].told()

    def seen(self, reader: str) -> dict[str, Any]:
        """Returns the reports about a reader: its chunks and events. For a server the clients report them."""
        if not self.settings.serve:
            return self.told(reader)
        seen: dict[str, Any] = self.told(CLIENTS).get(reader, {}) if CLIENTS in self._children else {}
        return seen

    def found(self, name: str) -> dict[str, Any]:
        """Returns the final record of a reader, or of the ``bases`` of a log; see `follow` and `Clients`."""
        teller = CLIENTS if self.settings.serve else name
        path = Path(self.told(teller)["result"]["found"])
        written: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        found: dict[str, Any] = written[name] if self.settings.serve else written
        return found

    @property
    def asked(self) -> Path:
        """Path of the answers to clients, one per line."""
        return self._written(CLIENTS).with_suffix(".asked")

    def last_words(self, role: str) -> str:
        """Returns the end of the log of a process."""
        try:
            return self._log(role).read_text(encoding="utf-8", errors="replace")[-1500:]
        except OSError:
            return ""

    def close(self) -> None:
        """Kills running processes."""
        for child in self._children.values():
            child.close()
        self._children.clear()

    def _log(self, role: str) -> Path:
        return self.folder / f"{role}.log"

    # In the children

    def _run(self, role: str, tell: Tell) -> dict[str, Any]:
        begin_role(self._log(role))
        logging.getLogger(__name__).info("incarnation %d of %s", len(self.lives[role]), role)
        if role == PRODUCER:
            return self._produce(tell)
        if role in FOLLOWERS:
            return follow(self.traffic, self.places.open_log(), self._written(role), tell)
        if role == CLIENTS:
            return self._ask(tell)
        return {"status": cli.main(self._command(role))}

    def _written(self, role: str) -> Path:
        """Returns the prefix of the files that the current incarnation of a process writes."""
        return self.folder / f"{role}-{len(self.lives[role])}"

    def _ask(self, tell: Tell) -> dict[str, Any]:
        watched = self.settings.watched if self.settings.is_live else None
        log = self.places.open_log()
        return Clients(self.traffic, self._ports, log, self._written(CLIENTS), tell, watched=watched).run()

    def _command(self, role: str) -> list[str]:
        if role in SERVERS:
            return serve_arguments(self.export, self.places.log(), self._ports[role])
        return self._joiner() if role in JOINERS else self._trainer()

    def _joiner(self) -> list[str]:
        seconds = self.traffic.window_ms / 1000
        rules = [f"--window_seconds={seconds}", "--disorder_seconds=0", f"--idle_seconds={_IDLE_SECONDS}"]
        shared = [f"--state_dir={self.folder / 'state'}", f"--num_joiners={len(JOINERS)}", "--memory_bytes=65536"]
        return ["joiner", *self.places.joiner(), *rules, *shared]

    def _trainer(self) -> list[str]:
        publishing = ["--enable_realtime_training", "--delta_log_interval_secs=0.1"]
        publishing += ["--serve_controller=false"]  # a killed trainer would not remove its socket
        return [
            *("train", self.settings.task, f"--model_dir={self.model_dir}"),
            *self.places.trainer(),
            *publishing,
            *self.settings.trainer,
        ]

    def _produce(self, tell: Tell) -> dict[str, Any]:
        """Writes chunk after chunk; a killed producer writes its chunk again, and joiners skip the duplicates."""
        sender = self.places.open_sender()
        progress = self.folder / "produced"
        done = int(progress.read_text(encoding="ascii")) if progress.exists() else 0
        for number in range(done, self.traffic.num_chunks):
            self._limit.wait_below(number)
            records = self.traffic.chunks[number]
            while records:
                count = _due(records) if self.settings.is_live else _BATCH_RECORDS
                sender.send(records[:count])
                records = records[count:]
                time.sleep(_PAUSE_SECONDS)
            new = self.folder / "produced.new"
            new.write_text(str(number + 1), encoding="ascii")
            new.rename(progress)
            tell({"produced": number + 1})
        return {}


def _due(records: Sequence[Sent]) -> int:
    """Returns how many of the records are due."""
    return bisect_right(records, 1000 * time.time(), key=lambda each: each.time_ms)


class TreeWatch(ProgressWatch):
    """Monitors the processes of a tree. Used by the thread that started them.

    Args:
        tree: The processes.
        longest_seconds: Time without progress after which the tree counts as hung.
    """

    def __init__(self, tree: OnlineTree, longest_seconds: float) -> None:
        super().__init__(longest_seconds)
        self._tree = tree
        self._ending: str | None = None
        """The process that was requested to stop."""

    def start(self) -> None:
        """Starts all processes."""
        self.start_readers()
        self._tree.start(PRODUCER)

    def start_readers(self) -> None:
        """Starts all processes but the producer, and waits until the trainer has begun the log that readers follow."""
        tree = self._tree
        for role in (*tree.roles, *tree.helpers):
            if role != PRODUCER:
                tree.start(role)
        self.wait(self.are_ready, "the beginning of the log")

    def chunks(self) -> int:
        """Returns the number of chunks that both readers have."""
        return min(int(self._tree.seen(role).get("chunks", 0)) for role in self._tree.readers)

    def are_ready(self) -> bool:
        """Returns whether both readers report that they have caught up with the log."""
        return all(self._tree.seen(role).get("ready") for role in self._tree.readers)

    def end(self) -> None:
        """Processes the rest of the events, then stops one process after another, in the order of the data flow.

        Raises:
            StuckError: one hangs, fails, or ends with another status than it should.
        """
        tree = self._tree
        tree.allow(tree.traffic.num_chunks)
        self.wait(self._has_everything, "the last events")
        self.wait(lambda: tree.has_ended(PRODUCER), "the end of the producer")
        for role in (*JOINERS, TRAINER, *tree.helpers, *tree.readers):
            self._ending = role
            tree.ask_to_end(role)
            self.wait(lambda role=role: tree.has_ended(role), f"the end of {role}")  # type: ignore[misc]
            status = tree.told(role)["result"].get("status", 0)
            if status != (INTERRUPTED if role == TRAINER else 0):
                raise StuckError(f"{role} ended with status {status}; {tree.last_words(role)}")

    def progress(self) -> object:
        """Returns the reports of all processes."""
        return json.dumps([self._tree.told(role) for role in self._tree.lives])

    def look(self) -> None:
        """Checks that no process has ended by itself.

        Raises:
            StuckError: a process has ended.
        """
        tree = self._tree
        for role in tree.lives:
            try:
                told = tree.told(role)
            except RuntimeError as error:
                raise StuckError(f"{role}: {error}") from error
            if self._ending is None and role != PRODUCER and tree.has_ended(role):
                raise StuckError(f"{role} ended: {told.get('result')}; {tree.last_words(role)}")

    def _has_everything(self) -> bool:
        tree = self._tree
        return all(tree.seen(role).get("events") == tree.traffic.num_events for role in tree.readers)
