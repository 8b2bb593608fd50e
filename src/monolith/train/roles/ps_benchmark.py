"""Benchmark that selects the fastest parameter servers of a job.

All servers run some arithmetic concurrently for the configured time; workers share their measurements, and the chief
chooses. A job with extra servers calls `choose_servers` at its start.
"""

from __future__ import annotations

import itertools
import json
import logging
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, TypeVar

import torch

from monolith.clock import SystemClock
from monolith.cluster import split_address
from monolith.errors import AbortedError, DeadlineExceededError, InvalidArgumentError, OutOfRangeError, UnavailableError
from monolith.files import join
from monolith.hook import Hook
from monolith.ps import StandbyServers, measure_throughput
from monolith.train.config.trainer_config import TrainerConfig
from monolith.train.task import Spec, Task
from monolith.train.trainer import Trainer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from torch import Tensor

    from monolith.clock import Clock
    from monolith.hook import HookedSession, StepContext
    from monolith.train.parameters.instantiable_params import InstantiableParams
    from monolith.train.task import Mode

_log = logging.getLogger(__name__)
T = TypeVar("T")

POLL_SECONDS = 0.5
WAIT_SECONDS = 3600.0
END_SECONDS = 10.0
READY_RATIO = 0.9
SETTLE_SECONDS = 1.0
"""Seconds between the arrival of enough workers and the first round, so that all start at about the same time."""
JOB_SECONDS = 120.0
"""Seconds that the servers of a job compute."""
ANSWER_SECONDS = 30.0
"""Additional seconds until the response: 150 s in total for the servers of a job."""
MEASURING_WORKERS = 16
"""Maximum number of measuring workers: servers have as many compute threads, and more would not change the mean."""


class BenchmarkedServers(Protocol):
    """The servers that are compared, and where workers leave texts for each other."""

    def benchmark(self, seconds: float) -> Sequence[float]:
        """Rounds a second of each, in the order of ``ps_list``."""

    def note(self, name: str, value: str) -> None:
        """Leaves a text, in the place of one of the same name."""

    def notes(self) -> Mapping[str, str]:
        """Returns all notes."""


class LocalServers:
    """Servers as threads of this process, with the notes of its only worker."""

    def __init__(self, num_ps: int) -> None:
        self._num_ps = num_ps
        self._notes: dict[str, str] = {}

    def benchmark(self, seconds: float) -> list[float]:
        """Runs the benchmark of each server in a thread of its own."""
        with ThreadPoolExecutor(self._num_ps, thread_name_prefix="benchmark") as threads:
            return list(threads.map(measure_throughput, [seconds] * self._num_ps))

    def note(self, name: str, value: str) -> None:
        """Keeps a text."""
        self._notes[name] = value

    def notes(self) -> Mapping[str, str]:
        """Returns all notes."""
        return self._notes


@dataclass
class BenchmarkConfig:
    """Servers and workers of the benchmark; ``ps_list`` is replaced by the chosen servers."""

    ps_list: list[str]
    """The servers, ``host:port``, or any names where they are in this process."""
    num_ps_required: int
    """Number of servers to choose."""
    num_workers: int
    """Workers that take part, the chief among them."""
    index: int
    """Which of them this is; 0 is the chief, which chooses."""
    benchmark_secs: float = 60.0
    """How long servers compute."""
    ps_str_overridden: str = ""
    """The choice, separated by commas: nothing is measured then."""
    servers: BenchmarkedServers | None = field(default=None, repr=False)
    """Servers that compute; None: threads of this process."""

    def __post_init__(self) -> None:
        if not 1 <= self.num_ps_required <= len(self.ps_list):
            raise InvalidArgumentError(
                f"BenchmarkConfig: num_ps_required must be from 1 to {len(self.ps_list)}, the length of ps_list, got"
                f" {self.num_ps_required}"
            )
        if not 0 <= self.index < self.num_workers:
            raise InvalidArgumentError(
                f"BenchmarkConfig: index must be from 0 to num_workers - 1 = {self.num_workers - 1}, got {self.index}"
            )
        if self.servers is None:
            if self.num_workers > 1:
                raise InvalidArgumentError(
                    f"BenchmarkConfig: {self.num_workers} workers need servers to coordinate through, got"
                    " none; give StandbyServers, or num_workers=1"
                )
            self.servers = LocalServers(len(self.ps_list))


class PsBenchMarkTask(Task):
    """Has servers compute in its only step, and leaves the fastest of them in ``bm_config.ps_list``. Saves nothing."""

    is_saved = False

    @classmethod
    def params(cls) -> InstantiableParams:
        """Returns the parameters, with the config of the benchmark."""
        p = super().params()
        p.define("bm_config", None, "BenchmarkConfig: what is compared, and then what was chosen.")
        return p

    def input_fn(self, mode: Mode) -> Iterable[Tensor]:  # noqa: ARG002 - the same for all
        """Yields the same four numbers forever; they are not used."""
        return self.ctx.unshared(itertools.repeat(torch.tensor([0.12, 0.23, 0.34, 0.45])))

    def model_fn(self, features: Tensor, mode: Mode) -> Spec:  # noqa: ARG002 - nothing is learned from them
        """Measures, in training; there is nothing to learn, and nothing to predict."""
        if mode == "predict":
            return Spec(predictions=torch.tensor(0.0))
        if mode == "train":
            _measure(self.p.bm_config)
        return Spec(torch.tensor(0.0))

    def training_hooks(self) -> Sequence[Hook]:
        """Returns the hook that waits for the other workers, and chooses."""
        return [BenchmarkHook(self.p.bm_config)]


class BenchmarkHook(Hook):
    """Starts and ends the measurement together with the other workers; the chief's hook chooses."""

    def __init__(self, bm_config: BenchmarkConfig, *, clock: Clock | None = None) -> None:
        if not isinstance(bm_config, BenchmarkConfig):
            raise TypeError(f"PsBenchMarkTask: set params.bm_config to a BenchmarkConfig, got {bm_config!r}")
        self._config = bm_config
        self._clock = clock or SystemClock()
        self._begin = 0.0

    def after_create_session(self, session: HookedSession) -> None:  # noqa: ARG002 - a hook's signature
        """Waits until nine of ten workers have joined, and a second more."""
        _servers_of(self._config).note(f"ready/{self._config.index}", "1")
        enough = int(self._config.num_workers * READY_RATIO)
        self._wait(lambda: self._count("ready") >= enough, WAIT_SECONDS, "workers to be ready")
        self._clock.sleep(SETTLE_SECONDS)
        self._begin = self._clock.monotonic()

    def before_run(self, context: StepContext) -> None:  # noqa: ARG002 - a hook's signature
        """Ends the run where the choice is made."""
        if self._config.ps_str_overridden:
            _servers_of(self._config).note("result", self._config.ps_str_overridden)
        if self._result:
            raise OutOfRangeError(f"servers are chosen already: {self._result}")

    def after_run(self, context: StepContext) -> None:
        """Stops the session after one step."""
        _log.info("the parameter servers computed for %.1f s", self._clock.monotonic() - self._begin)
        context.request_stop()

    def end(self, session: HookedSession) -> None:  # noqa: ARG002 - a hook's signature
        """Chooses, or waits for the choice."""
        config = self._config
        _servers_of(config).note(f"done/{config.index}", "1")
        self._wait(lambda: self._count("done") >= config.num_workers, END_SECONDS, None)
        if config.index == 0 and not self._result:
            _servers_of(config).note("result", ",".join(chosen_of(config, self._throughputs())))
        # Read only once: once the choice is made, the server with the notes is briefly unreachable.
        config.ps_list = _awaited(lambda: self._result, self._clock).split(",")

    def _wait(self, reached: Callable[[], bool], timeout_seconds: float, what: str | None) -> None:
        """Waits until reached, or until the choice is made, which ends every wait."""
        _wait(lambda: self._result != "" or reached(), timeout_seconds, what, self._clock)

    @property
    def _result(self) -> str:
        return _servers_of(self._config).notes().get("result", "")

    def _count(self, what: str) -> int:
        return sum(name.startswith(f"{what}/") for name in _servers_of(self._config).notes())

    def _throughputs(self) -> list[list[float]]:
        """Returns the measurements of each worker."""
        return [
            json.loads(text)
            for name, text in _servers_of(self._config).notes().items()
            if name.startswith("throughput/")
        ]


def _awaited(look: Callable[[], T | None], clock: Clock) -> T:
    """Polls until `look` returns a value, such as the chief's choice."""
    results: list[T] = []

    def is_there() -> bool:
        results.extend(result for result in [look()] if result)
        return bool(results)

    _wait(is_there, WAIT_SECONDS, "the chief to choose servers", clock)
    return results[0]


def _wait(reached: Callable[[], bool], timeout_seconds: float, what: str | None, clock: Clock) -> None:
    """Looks every half second; with `what`, raises when the time is over."""
    deadline = clock.monotonic() + timeout_seconds
    while not reached():
        if clock.monotonic() >= deadline:
            if what is not None:
                raise DeadlineExceededError(f"benchmark of parameter servers: waited {timeout_seconds} s for {what}")
            return
        clock.sleep(POLL_SECONDS)


def chosen_of(config: BenchmarkConfig, measured: Sequence[Sequence[float]]) -> list[str]:
    """Returns the fastest servers, by the mean of the workers' measurements.

    Servers of one machine compete for it: the speed of the fastest counts for the others, too.
    """
    if not measured:
        _log.warning("no worker has measured the parameter servers; the first ones are taken")
        return config.ps_list[: config.num_ps_required]
    means = [sum(throughputs) / len(throughputs) for throughputs in zip(*measured, strict=True)]
    slowest_first = sorted(zip(means, config.ps_list, strict=True), key=lambda measurement: measurement[0])
    of_machine: defaultdict[str, float] = defaultdict(float)
    adjusted: dict[str, float] = {}
    for throughput, name in slowest_first:
        _log.info("parameter server %s: %.1f rounds/s", name, throughput)
        of_machine[_machine_of(name)] += throughput
        adjusted[name] = of_machine[_machine_of(name)]
    fastest_first = sorted(config.ps_list, key=lambda name: -adjusted[name])
    return fastest_first[: config.num_ps_required]


def choose_servers(
    addresses: Sequence[str],
    num_required: int,
    *,
    num_workers: int,
    index: int,
    secs: float = JOB_SECONDS,
    token: str | None = None,
    model_dir: str | None = None,
) -> list[str]:
    """Benchmarks standby servers, assigns indices to the fastest of them, and dismisses the others.

    Every worker of a job calls it, with the same addresses in the same order. An earlier choice holds, made by a chief
    that has died since, or before this worker started.

    Args:
        addresses: Addresses of all servers.
        num_required: Number of servers that the job uses.
        num_workers: Number of workers of the job, including the chief.
        index: Index of this worker.
        secs: Seconds that servers compute.
        token: Their secret.
        model_dir: Model directory of the job; the benchmark runs in ``benchmark_dir`` there.

    Returns:
        The addresses of the job's servers, in the order of their index.
    """
    with StandbyServers(addresses, num_required, token=token, timeout_seconds=ANSWER_SECONDS) as servers:
        places = servers.places()
        if not places:
            config = BenchmarkConfig(list(addresses), num_required, num_workers, index, secs, servers=servers)
            chosen = _measured(config, model_dir)
        elif index == 0:
            chosen = _filled(places, addresses, num_required)
        else:
            chosen = _awaited(servers.chosen, SystemClock())  # a chief has started to apply the choice, or continues to
        if index == 0:
            servers.give_places(chosen)
            servers.send_away([address for address in addresses if address not in chosen])
        return chosen


def _measured(config: BenchmarkConfig, model_dir: str | None) -> list[str]:
    params = PsBenchMarkTask.params()
    params.bm_config = config
    folder = None if model_dir is None else join(model_dir, "benchmark_dir")
    Trainer(params, TrainerConfig(model_dir=folder, worker_index=config.index, num_workers=config.num_workers)).train()
    return config.ps_list


def _filled(places: Mapping[int, str], addresses: Sequence[str], num_required: int) -> list[str]:
    """Returns the servers by index: those that have one, and the next free servers in the gaps."""
    free = iter([address for address in addresses if address not in places.values()])
    return [places.get(number) or next(free) for number in range(num_required)]


def _measure(config: BenchmarkConfig) -> None:
    if config.index >= MEASURING_WORKERS:
        return
    try:
        measured = list(_servers_of(config).benchmark(config.benchmark_secs))
    except (AbortedError, DeadlineExceededError, UnavailableError) as error:
        _log.warning("this worker has no measurement of the parameter servers: %s", error)
        return
    _servers_of(config).note(f"throughput/{config.index}", json.dumps(measured))


def _servers_of(config: BenchmarkConfig) -> BenchmarkedServers:
    assert config.servers is not None  # noqa: S101 - made by the config itself
    return config.servers


def _machine_of(name: str) -> str:
    """Returns the host of an address; a name that is not an address is returned unchanged."""
    try:
        return split_address(name)[0]
    except ValueError:
        return name
