"""What every test runs under: fixed examples for hypothesis, and the project's root as a fixture."""

from __future__ import annotations

import dataclasses
import gc
import getpass
import logging
import signal
import sys
import tempfile
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import settings
from xdist.remote import Producer
from xdist.scheduler import WorkStealingScheduling

# Benchmarks, what tests of several folders share, and what scripts are made of have the names that mypy knows.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "scripts"))
sys.path.insert(0, str(Path(__file__).resolve().parent))

from checkpoint.zygote import Zygote
from forked_starts import ForkingProcess
from leak_check import holdings, left_behind
from monolith import environment
from parity_ledger import claimed_tests
from programs import Programs
from ray_nodes import RayCluster
from run_summary import RunSummary
from skipped_claims import SkippedClaims
from zookeeper_server import ZooKeeperServer, is_installed

# Tests import gRPC by themselves, too; `monolith.rpc.credentials` says why this comes before it.
if environment.get("GRPC_ENABLE_FORK_SUPPORT") is None:
    environment.put("GRPC_ENABLE_FORK_SUPPORT", "false")

# Ray looks at this once, when the first of us imports it; `monolith.cluster.runtimes.ray` says what for.
if environment.get("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER") is None:
    environment.put("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")

# A trial of a version takes seconds of processor time; tests of trials turn them on.
environment.put("MONOLITH_TRUST_EXPORTS", "1")

# Same examples in every run, so that a failure can be repeated; no deadline, because machines differ in speed and the
# time limit of a whole test is pytest's. `pytest --hypothesis-profile thorough` draws other examples in each run.
settings.register_profile("repeatable", derandomize=True, deadline=None, print_blob=True, max_examples=40)
settings.register_profile("thorough", deadline=None, print_blob=True, max_examples=500)
settings.load_profile("repeatable")

# Some of torch's warnings, which are errors here, come once in a process; then whether a test sees one would depend on
# those that ran before it.
torch.set_warn_always(True)

# pytest attaches its handlers, three times a test, to every logger that does not propagate; torch has dozens of them.
# For one that has a handler torch formats a trace of all that it compiles.
for _logger in list(logging.root.manager.loggerDict.values()):
    if isinstance(_logger, logging.Logger):
        _logger.propagate = True

# Several processes of tests share the cores; with a thread for each core they wait for one another. So do those that
# they start.
torch.set_num_threads(1)
if environment.get("OMP_NUM_THREADS") is None:
    environment.put("OMP_NUM_THREADS", "1")

# A shell lets what it runs in the background ignore Ctrl-C, and processes pass that on; tests send it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_configure(config: pytest.Config) -> None:
    """Registers the plugins that need all reports in the process that receives them."""
    if not hasattr(config, "workerinput"):
        watch = SkippedClaims(claimed_tests(), is_error=bool(environment.get("CI")))
        config.pluginmanager.register(watch, "skipped-claims")
        config.pluginmanager.register(RunSummary(), "run-summary")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> WorkStealingScheduling:
    """Gives each process one run of neighbouring tests, so that what a module shares is made once."""
    return WorkStealingScheduling(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Starts the longest tests first: at the end one process would run such a test while the others are idle."""
    items.sort(key=lambda item: item.get_closest_marker("starts_first") is None)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Keeps the bytecode of what it imports, also where the environment tells Python to write none.

    Hundreds of processes that tests start import the same modules, and the next run collects in half the time. Modules
    and tests live to the end of the run, so the garbage collector looks at them neither here nor later.
    """
    before, sys.dont_write_bytecode = sys.dont_write_bytecode, False
    gc.disable()
    try:
        return (yield)
    finally:
        sys.dont_write_bytecode = before
        gc.freeze()
        gc.enable()


@pytest.fixture(scope="session")
def project_root() -> Path:
    """The folder of the checkout."""
    return Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def forking() -> Iterator[ForkingProcess]:
    """Forks Python programs that need not import torch and the package each for itself."""
    with ForkingProcess.started() as process:
        yield process


@pytest.fixture
def forked_starts(forking: ForkingProcess) -> Iterator[None]:
    """Python programs that the test starts are forks; so are those that they start."""
    with forking.forked_starts(depth=1):
        yield


@pytest.fixture(scope="session")
def programs(forking: ForkingProcess) -> Programs:
    """Runs programs that need not import torch and the package each for itself."""
    return Programs(forking)


@pytest.fixture(scope="session")
def zygote(forking: ForkingProcess) -> Iterator[Zygote]:
    """Forks processes that need not import anything; a test ends those that it starts."""
    with forking.forked_starts():
        process = Zygote()
    with process:
        yield process


@pytest.fixture(scope="session")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperServer]:
    """A running ZooKeeper; a test that stops it starts it again, and uses a job of its own."""
    if not is_installed() and not environment.get("CI"):
        pytest.skip("ZooKeeper is not installed; on Debian: apt-get install default-jre-headless libzookeeper-java")
    with ZooKeeperServer(tmp_path_factory.mktemp("zookeeper")) as server:
        yield server


@pytest.fixture(scope="session")
def ray_cluster() -> Iterator[RayCluster]:
    """A Ray cluster of two nodes that this process is connected to; a test names what it starts there."""
    with RayCluster(num_cpus=4) as cluster:
        cluster.add_node(4)
        yield cluster


@pytest.fixture(scope="session", autouse=True)
def watched_folders(project_root: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, ...]]:
    """Where a test could leave files that pytest does not remove: among temporary files, or in the project.

    Set up before all others and torn down after them, it fails the run when a fixture that several tests share has left
    a process or a file; threads and sockets that a library keeps for good are started by such fixtures on purpose.
    """
    # What torch compiles is worth keeping from run to run, so it stays where it would be without us.
    compiled = environment.get("TORCHINDUCTOR_CACHE_DIR") or str(
        Path(tempfile.gettempdir()) / f"torchinductor_{getpass.getuser()}"
    )
    temporary = str(tmp_path_factory.mktemp("t", numbered=False))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tempfile, "tempdir", temporary)
        patch.setenv("TMPDIR", temporary)  # for processes that a test starts
        patch.setenv("TORCHINDUCTOR_CACHE_DIR", compiled)
        before = holdings([temporary])
        yield temporary, str(project_root)
        kept = dataclasses.replace(holdings(), files=before.files, processes=before.processes)
        assert left_behind(kept, [temporary]) == []


@pytest.fixture(autouse=True)
def nothing_left_behind(watched_folders: tuple[str, ...]) -> Iterator[None]:
    """Fails any test after which a thread, a process, a socket, an open file or a new file is still there."""
    before = holdings(watched_folders)
    yield
    assert left_behind(before, watched_folders) == []
