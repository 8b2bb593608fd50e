"""A job on a Ray cluster: Ray places, restarts and names its processes; rows use our own sockets."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import signal
import sys
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO, TypeAlias

from monolith import environment
from monolith.clock import SystemClock
from monolith.cluster.discovery import LEASE_SECONDS, RegistryActor, ServiceDiscoveryType, start_registry
from monolith.cluster.runtimes import NAMESPACE
from monolith.launch.job_view import JobView, MergedLog
from monolith.launch.ray_places import RayPlaces, connected_ray
from monolith.launch.ray_role import RoleActor, RoleSpec
from monolith.launch.role import INTERRUPTED
from monolith.launch.supervision import Say, Send, ShutdownConfig, Start, Supervision
from monolith.observe import Progress

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from monolith.launch.plan import LaunchPlan
    from monolith.launch.role import Role
    from monolith.launch.supervision import Action

_ENDINGS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_LOOK_SECONDS = 0.5
"""Maximum wait: Ray handles signals only between waits."""
_END_SECONDS = 10.0
_DIED = -signal.SIGKILL
_GONE = "died, or its node has"
_FAILED = 1


class RayLauncher:
    """Runs a job on a Ray cluster, in the main thread: `run` returns when all its processes have ended.

    Every role is an actor in a bundle of its own, which Ray restarts when it dies, on another node if needed. The first
    SIGINT, SIGTERM or SIGHUP makes workers save and end, the second kills all. No process of the job outlives this
    process, however it ends.

    Args:
        plan: The job.
        address: Address of a running cluster, such as ``auto`` or ``host:6379``; None: that of ``RAY_ADDRESS``, else a
            cluster on this machine for the length of the job. A program that is already connected keeps its cluster.
        entry: ``module:function`` that runs a role: takes the arguments of its command, returns the exit code.
        patience: How long processes may take to end.
        file: File for log and progress; standard error by default. Ray shows the output of roles.
        has_progress: Whether to show a progress line.
    """

    def __init__(
        self,
        plan: LaunchPlan,
        *,
        address: str | None = None,
        entry: str = "monolith.cli:main",
        patience: ShutdownConfig | None = None,
        file: TextIO | None = None,
        has_progress: bool = True,
    ) -> None:
        self._job_name = plan.options.uuid or f"job-{uuid.uuid4().hex[:8]}"
        self._plan = _on_ray(plan, self._job_name)
        self._address = address
        self._entry = entry
        self._token = None if plan.options.is_set("token_file") else secrets.token_urlsafe(32)
        self._supervision = Supervision(plan.roles, plan.restarts, ShutdownConfig() if patience is None else patience)
        self._file = sys.stderr if file is None else file
        self._has_progress = has_progress
        self._clock = SystemClock()
        self._signals: list[int] = []
        self._roles = {str(role): role for role in plan.roles}
        self._actors: dict[Role, Any] = {}
        self._running: dict[Any, Role] = {}
        self._lives: dict[Role, str] = {}
        self._exit_codes: dict[Role, int] = {}
        self._ray: Any = None
        self._job: Any = None
        self._news: Any = None
        self.result: dict[str, Any] = {}
        """Final report of the chief: ``global_step``, ``rows`` and so on; empty if there was none."""
        self.global_step = 0
        """The last step that a worker reported."""

    @property
    def restarts(self) -> int:
        """Number of restarts of all roles."""
        return self._supervision.restarts

    def run(self) -> int:
        """Runs the job to its end.

        Returns:
            0: done; 130: stopped by a signal, and saved; else the exit code of the role that failed.

        Raises:
            ModuleNotFoundError: Ray is not installed; the message names the package to install.
            ConnectionError: There is no cluster at the address.
            ValueError: A job of this uuid runs on the cluster; or this is not the main thread, which receives signals.
        """
        self._ray, connected_here = connected_ray(self._plan, self._address)
        with contextlib.ExitStack() as stack:
            if connected_here:
                stack.callback(self._ray.shutdown)
            bar = stack.enter_context(Progress(total=self._plan.max_steps, file=self._file))
            stack.enter_context(self._listening())
            has_colours = self._file.isatty() and not environment.get("NO_COLOR")
            log = MergedLog(bar.write, self._plan.roles, has_colours=has_colours)
            view = JobView(bar if self._has_progress else None, self._supervision)
            self._job = start_registry(self._job_name, actor=JobActor)
            stack.callback(self._end_job)
            places = RayPlaces(self._ray, self._plan)
            stack.callback(places.close)
            if not places.wait(log.launcher_line, lambda: not self._signals):
                return INTERRUPTED
            stack.callback(self._end_all)
            self._news = self._job.next_news.remote()
            while True:
                for action in self._supervision.due(self._clock.monotonic()):
                    self._do(action, places, log)
                if self._supervision.is_over:
                    break
                self._wait(log, view)
                places.tell_of_missing(log.launcher_line)
            self._hear_the_last(view)
            self.result = view.result
        return self._supervision.exit_code

    def _do(self, action: Action, places: RayPlaces, log: MergedLog) -> None:
        match action:
            case Start(role) if role in self._actors:  # Ray has restarted it, and it waits for permission
                self._job.allow.remote(str(role), self._lives[role])
            case Start(role):
                self._lives.pop(role, None)
                self._actors[role] = self._new_actor(role, places)
                self._running[self._actors[role].run.remote()] = role
            case Send(role, signal.SIGKILL):
                if role in self._actors:
                    self._ray.kill(self._actors[role])
            case Send(role, number):
                self._job.send.remote(str(role), int(number))
            case Say(text):
                log.launcher_line(text)

    def _new_actor(self, role: Role, places: RayPlaces) -> Any:
        options = self._plan.options
        spec = RoleSpec(
            role=str(role),
            job=self._job_name,
            namespace=NAMESPACE,
            entry=self._entry,
            arguments=tuple(self._plan.arguments(role)),
            environment=dict(self._plan.environment),
            folder=str(Path.cwd()),
            search_path=tuple(sys.path),
            token=self._token,
            takes_host=not options.is_set("host"),
        )
        remote = self._ray.remote(RoleActor).options(
            name=f"{self._job_name}-{role.kind}-{role.index}",
            namespace=NAMESPACE,
            max_restarts=-1,
            max_task_retries=-1,
            **places.options_of(self._plan.roles.index(role)),
        )
        return remote.remote(spec)

    def _wait(self, log: MergedLog, view: JobView) -> None:
        """Waits for an event: news, the end of a role, a signal, or a deadline."""
        now = self._clock.monotonic()
        at = self._supervision.next_deadline()
        timeout = _LOOK_SECONDS if at is None else min(max(at - now, 0.0), _LOOK_SECONDS)
        ready, _ = self._ray.wait([self._news, *self._running], timeout=timeout)
        for ref in ready:
            if ref == self._news:
                news = self._ray.get(ref)
                self._news = self._job.next_news.remote()
                for event in news:
                    self._hear(event, view)
            else:
                self._bury(ref, log, view)
        while self._signals:
            log.launcher_line(f"got {signal.Signals(self._signals.pop(0)).name}")
            self._supervision.stop(self._clock.monotonic())

    def _hear(self, news: News, view: JobView) -> None:
        kind, name, said = news
        role = self._roles[name]
        if kind == "message":
            if isinstance(code := said.get("exit_code"), int):
                self._exit_codes[role] = code
            elif isinstance(step := said.get("done"), int):
                self.global_step = max(self.global_step, step)
            view.heard(role, said)
            return
        before = self._lives.get(role)
        self._lives[role] = said
        if before is None or before == said:
            self._job.allow.remote(name, said)
            return
        # A new process: the previous one has died, and Ray has started this one, which waits for permission.
        view.gone(role)
        exit_code = self._exit_codes.pop(role, None)
        if exit_code is None:
            self._supervision.ended(role, _DIED, self._clock.monotonic(), reason=_GONE)
        else:
            self._supervision.ended(role, exit_code, self._clock.monotonic())

    def _bury(self, ref: Any, log: MergedLog, view: JobView) -> None:
        """Handles the final end of a role, by itself or by us."""
        role, reason = self._running.pop(ref), None
        try:
            exit_code = int(self._ray.get(ref))
        except self._ray.exceptions.RayActorError:
            exit_code, reason = _DIED, _GONE
            self._actors.pop(role, None)
        except self._ray.exceptions.RayError as error:
            log.launcher_line(f"{role}: {error}")
            exit_code = _FAILED
        view.gone(role)
        self._supervision.ended(role, exit_code, self._clock.monotonic(), reason=reason)

    def _end_all(self) -> None:
        for actor in self._actors.values():
            self._ray.kill(actor)
        self._actors.clear()

    def _hear_the_last(self, view: JobView) -> None:
        """Receives the remaining messages of roles that have ended."""
        with contextlib.suppress(self._ray.exceptions.RayError):
            self._ray.get(self._job.end.remote(), timeout=_END_SECONDS)
            for event in self._ray.get(self._news, timeout=_END_SECONDS):
                if event[0] == "message":
                    self._hear(event, view)

    def _end_job(self) -> None:
        # Ray would repeat a pending call, and log it.
        with contextlib.suppress(self._ray.exceptions.RayError):
            self._ray.get(self._job.end.remote(), timeout=_END_SECONDS)
        self._ray.kill(self._job)

    @contextlib.contextmanager
    def _listening(self) -> Iterator[None]:
        """Signals that the launcher was started to ignore stay ignored, as under nohup."""
        heard = [number for number in _ENDINGS if signal.getsignal(number) is not signal.SIG_IGN]
        before = {number: signal.signal(number, lambda received, _: self._signals.append(received)) for number in heard}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def _on_ray(plan: LaunchPlan, job_name: str) -> LaunchPlan:
    """Returns the plan with the discovery settings of its roles; a discovery service that the options name stays."""
    if plan.options.is_set("discovery_type"):
        return plan
    return plan.with_options({"discovery_type": ServiceDiscoveryType.RAY.name.lower(), "uuid": job_name})


News: TypeAlias = tuple[str, str, Any]
"""Kind of event (``started`` or ``message``), the role, and the id of the started process or the message."""


class JobActor(RegistryActor):
    """Registry of addresses, and message broker: starts and messages to the launcher, permissions and signals to roles.

    A role is identified by its name. Each of its processes has an id, its `life`, which it chose. All calls run in one
    event loop. When Ray has restarted this actor, it repeats the calls that were waiting in it, so that only progress
    is lost.
    """

    def __init__(self, lease_seconds: float = LEASE_SECONDS) -> None:
        super().__init__(lease_seconds)
        self._changed = asyncio.Condition()
        self._news: list[News] = []
        self._allowed: dict[str, str] = {}
        self._listening: dict[str, str] = {}
        self._signals: dict[str, list[tuple[int, object]]] = {}
        self._is_over = False

    async def start(self, role: str, life: str) -> None:
        """Called by a role: returns when the launcher allows this process to begin."""
        async with self._changed:
            self._add(("started", role, life))
            await self._changed.wait_for(lambda: self._allowed.get(role) == life)

    async def allow(self, role: str, life: str) -> None:
        """Called by the launcher: allows a process to begin."""
        async with self._changed:
            self._allowed[role] = life
            self._changed.notify_all()

    async def tell(self, role: str, message: Mapping[str, Any]) -> None:
        """Called by a role: sends progress or a result to the launcher."""
        async with self._changed:
            self._add(("message", role, dict(message)))

    async def next_news(self) -> list[News]:
        """Called by the launcher: waits for events, and returns those since the last call."""
        async with self._changed:
            await self._changed.wait_for(lambda: self._is_over or bool(self._news))
            news, self._news = self._news, []
            return news

    async def end(self) -> None:
        """Called by the launcher: ends its pending calls."""
        async with self._changed:
            self._is_over = True
            self._changed.notify_all()

    async def send(self, role: str, number: int) -> None:
        """Called by the launcher: returns when a process of the role has received the signal."""
        async with self._changed:
            sent = (number, object())
            waiting = self._signals.setdefault(role, [])
            waiting.append(sent)
            self._changed.notify_all()
            await self._changed.wait_for(lambda: self._is_over or sent not in waiting)

    async def next_signal(self, role: str, life: str) -> int | None:
        """Called by a role: waits for a signal; None when a newer process of the role has replaced this one."""
        async with self._changed:
            self._listening[role] = life
            self._changed.notify_all()
            waiting = self._signals.setdefault(role, [])
            await self._changed.wait_for(lambda: bool(waiting) or self._listening[role] != life)
            if self._listening[role] != life:
                return None
            number, _ = waiting.pop(0)
            self._changed.notify_all()
            return number

    def _add(self, news: News) -> None:
        self._news.append(news)
        self._changed.notify_all()
