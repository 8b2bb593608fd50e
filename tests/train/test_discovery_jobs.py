"""A job of two servers and two workers reaches the loss of one process, however its processes find each other.

How near is derived: one process trains in orders in which two workers might take turns, with every update of rows one
step late and without; these losses differ by little, and a job is one more such order. Three times that is allowed,
which a worker whose pushes are lost, or counted twice, is far from.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest
import torch

from checkpoint.zygote import Zygote
from consul_agent import ConsulAgent
from discovery_backends import mlp_variables
from monolith.train import PipelineConfig, Trainer, TrainerConfig
from other_packages import EXAMPLE
from ports import free_port
from train.shared_clicks import NUM_BATCHES, SharedClicks

TASK = "train.shared_clicks:SharedClicks"

_ROLE = """
import json, os, sys
log, name, variables, *flags = arguments
os.environ.update(json.loads(variables))
sys.path += filter(None, [os.environ.get("PYTHONPATH")])
sys.stderr = sys.stdout = open(log, "w", buffering=1)
from monolith import cli
import torch
torch.set_num_threads(1)
try:
    status = cli.main(flags)
except BaseException as error:
    import traceback
    traceback.print_exc()
    status = repr(error)
os.write(1, (json.dumps({"name": name, "status": status}) + "\\n").encode())
"""


@pytest.fixture(scope="module")
def reference() -> tuple[float, float]:
    """The mean loss of one process, and how far a job may be from it."""
    losses = []
    for seed, late in itertools.product((1, 2), (False, True)):
        params = SharedClicks.params()
        params.order_seed = seed
        pipeline = PipelineConfig(prefetch=2 * late, postpush=late)
        trainer = Trainer(params, TrainerConfig(deterministic=True, pipeline=pipeline))
        trainer.train()
        losses.append(trainer.evaluate()["loss"])
    tolerance = 3 * (max(losses) - min(losses))
    params.order_seed = 1
    half = Trainer(params, TrainerConfig(deterministic=True))
    half.train(steps=NUM_BATCHES * 9 // 10)
    assert abs(half.evaluate()["loss"] - sum(losses) / len(losses)) > tolerance, "a tenth that is missing would show"
    return sum(losses) / len(losses), tolerance


def free_addresses(count: int) -> list[str]:
    """Addresses that nobody has now; for schedulers that give them beforehand."""
    ports = set[int]()
    while len(ports) < count:
        ports.add(free_port())
    return [f"127.0.0.1:{port}" for port in ports]


class Found:
    """How the processes of a job find each other: flags of all, and what one of them has beside."""

    def __init__(self, flags: list[str]) -> None:
        self.flags = flags

    def of_role(self, role: str, index: int) -> tuple[list[str], dict[str, str]]:
        """Its own flags and variables."""
        return ["--index", str(index), "--host", "127.0.0.1"], {}


class FoundByFiles(Found):
    def __init__(self, folder: Path) -> None:
        super().__init__(["--discovery_type", "host", "--discovery_dir", str(folder / "addresses")])


class FoundByOtherPackage(Found):
    def __init__(self, folder: Path) -> None:
        super().__init__(["--discovery_type", f"board://{folder}/addresses"])

    def of_role(self, role: str, index: int) -> tuple[list[str], dict[str, str]]:
        return super().of_role(role, index)[0], {"PYTHONPATH": str(EXAMPLE)}


class FoundByConsul(Found):
    def __init__(self, agent: ConsulAgent) -> None:
        super().__init__(["--discovery_type", "consul", "--uuid", "run-7"])
        self._variables = {"CONSUL_HTTP_HOST": agent.host, "CONSUL_HTTP_PORT": str(agent.port)}

    def of_role(self, role: str, index: int) -> tuple[list[str], dict[str, str]]:
        return super().of_role(role, index)[0], self._variables


class FoundByTfConfig(Found):
    def __init__(self, num_workers: int) -> None:
        super().__init__(["--discovery_type", "primus"])
        addresses = free_addresses(2 + num_workers)
        self._cluster = {"ps": addresses[:2], "chief": addresses[2:3], "worker": addresses[3:]}

    def of_role(self, role: str, index: int) -> tuple[list[str], dict[str, str]]:
        task = {"type": role, "index": index}
        if role == "worker":
            task = {"type": "chief", "index": 0} if index == 0 else {"type": role, "index": index - 1}
        return ["--tf_config", json.dumps({"cluster": self._cluster, "task": task})], {}


class FoundByMlp(Found):
    def __init__(self, num_workers: int) -> None:
        super().__init__(["--discovery_type", "mlp"])
        addresses = free_addresses(2 + num_workers)
        self._addresses = {"ps": addresses[:2], "worker": addresses[2:]}
        self._variables = mlp_variables(self._addresses["ps"], self._addresses["worker"])

    def of_role(self, role: str, index: int) -> tuple[list[str], dict[str, str]]:
        port = self._addresses[role][index].rpartition(":")[2]
        return [], {**self._variables, "MLP_ROLE": role, "MLP_ROLE_INDEX": str(index), "MLP_PORT": port}


@pytest.fixture(scope="module", params=["zookeeper", "consul", "tf_config", "mlp", "host", "another package"])
def service(request: pytest.FixtureRequest) -> tuple[str, Any]:
    """Each way by name, with its server where all tests share one."""
    return request.param, request.getfixturevalue("zookeeper") if request.param == "zookeeper" else None


@pytest.fixture
def found(service: tuple[str, Any], tmp_path: Path) -> Iterator[Found]:
    """Each way, for two workers."""
    with ExitStack() as stack:
        match service:
            case "zookeeper", server:
                flags = ["--discovery_type", "zk", "--zk_server", server.address]
                yield Found([*flags, "--deep_insight_name", tmp_path.name])
            case "consul", _:
                yield FoundByConsul(stack.enter_context(ConsulAgent()))
            case "tf_config", _:
                yield FoundByTfConfig(2)
            case "mlp", _:
                yield FoundByMlp(2)
            case "another package", _:
                yield FoundByOtherPackage(tmp_path)
            case _:
                yield FoundByFiles(tmp_path)


class Roles:
    """The processes of a job, each by the command of its role."""

    def __init__(self, zygote: Zygote, folder: Path, found: Found, *, num_workers: int) -> None:
        self._zygote = zygote
        self._folder = folder
        self._pids: dict[str, int] = {}
        for role, count in (("worker", num_workers), ("ps", 2)):
            for index in range(count):
                self._start(role, index, found, num_workers)

    def _start(self, role: str, index: int, found: Found, num_workers: int) -> None:
        flags, variables = found.of_role(role, index)
        flags = [role, TASK, "--model_dir", str(self._folder / "model"), *found.flags, *flags]
        flags += ["--num_ps", "2", "--num_workers", str(num_workers), "--deterministic"]
        name = f"{role}{index}"
        log = str(self._folder / f"{name}.log")
        self._pids[name] = self._zygote.start(_ROLE, log, name, json.dumps(variables), *flags, beside=True)

    def wait(self) -> dict[str, Any]:
        """How each has ended."""
        told: dict[str, Any] = {}
        while told.keys() != self._pids.keys():
            line = self._zygote.line()
            told[line["name"]] = line["status"]
        return told

    def logs(self) -> str:
        """What all of them have written, for a test that fails."""
        return "\n".join(f"== {path.name}\n{path.read_text()}" for path in sorted(self._folder.glob("*.log")))

    def close(self) -> None:
        """Ends those that are left."""
        for pid in self._pids.values():
            self._zygote.end(pid)


@pytest.mark.slow
def test_two_workers_reach_the_loss_of_one_process(
    zygote: Zygote, tmp_path: Path, found: Found, reference: tuple[float, float]
) -> None:
    with closing(Roles(zygote, tmp_path, found, num_workers=2)) as roles:
        ended = roles.wait()
        assert set(ended.values()) == {0}, roles.logs()
    evaluated = Trainer(SharedClicks, TrainerConfig(model_dir=str(tmp_path / "model"))).evaluate()
    loss, tolerance = reference
    assert evaluated["global_step"] == NUM_BATCHES
    assert evaluated["loss"] == pytest.approx(loss, abs=tolerance)


@pytest.mark.slow
def test_one_worker_equals_one_process_bit_for_bit(zygote: Zygote, tmp_path: Path) -> None:
    with closing(Roles(zygote, tmp_path, FoundByFiles(tmp_path), num_workers=1)) as roles:
        ended = roles.wait()
        assert set(ended.values()) == {0}, roles.logs()
    alone = Trainer(SharedClicks, TrainerConfig(deterministic=True))
    alone.train()
    job = Trainer(SharedClicks, TrainerConfig(model_dir=str(tmp_path / "model")))
    assert all(torch.equal(one, other) for one, other in zip(alone.predict(), job.predict(), strict=True))
    assert alone.evaluate() == job.evaluate()
