"""A disk that is full at one server, and chiefs that are killed inside a save or a restore, leave nothing behind."""

from __future__ import annotations

import resource
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from checkpoint.zygote import Zygote
from monolith.checkpoint import Saver
from monolith.errors import FailedPreconditionError, StorageFullError
from monolith.ps import PsCluster
from ps.counting import ENDS_HANGS_SECONDS, Counter
from ps.served import ServerProcess, served

IDS = range(2000)

CHIEF = """
import threading
from monolith.checkpoint import Saver
from monolith.nn.table_defaults import TableDefaults, use_table_defaults
from monolith.ps import PsCluster, PsStore
from monolith.ps.client.remote_cut import RemoteCut
from monolith.ps.client.remote_cut import RemoteRestore
from ps.counting import Counter

*addresses, name, folder, what = arguments
cluster = PsCluster(addresses)
with use_table_defaults(TableDefaults(store=lambda configs: PsStore(configs, servers=cluster, name=name))):
    counter = Counter(range(2000))

def tell(*_):
    print('"inside"', flush=True)
    threading.Event().wait()

def load_at_first_server(restore):
    cluster.ask_one(0, "LoadRestore", restore._requests[0])
    tell()

if what == "save":
    RemoteCut._written = tell  # both servers have written their files, and the manifest is missing
    Saver(folder).save(counter.state)
RemoteRestore.load = tell if what == "prepare" else load_at_first_server
Saver(folder).restore(counter.state)
"""


@pytest.fixture(scope="module")
def processes(zygote: Zygote) -> Iterator[list[ServerProcess]]:
    """Two servers, each a process of its own."""
    started = [ServerProcess(zygote, (index, 2)) for index in range(2)]
    yield started
    for process in started:
        process.kill()


@pytest.fixture(scope="module")
def cluster(processes: list[ServerProcess]) -> Iterator[PsCluster]:
    with PsCluster([process.addresses[0] for process in processes]) as cluster:
        yield cluster


def names(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def counted(steps: int) -> Counter:
    counter = Counter(IDS)
    for _ in range(steps):
        counter.step()
    return counter


def test_a_disk_that_is_full_at_one_server_costs_that_save_only(
    tmp_path: Path, processes: list[ServerProcess], cluster: PsCluster
) -> None:
    with served(cluster), Saver(tmp_path) as saver:
        counter = counted(2)
        saver.save(counter.state)
        before = names(tmp_path)
        counter.step()
        _, hard = resource.prlimit(processes[1].pid, resource.RLIMIT_FSIZE, (1000, -1))
        with pytest.raises(StorageFullError, match=r"parameter server 1 at .*: file '.*0512-1024.*': .*File too large"):
            saver.save(counter.state)
        assert names(tmp_path) == before
        counter.step()
        resource.prlimit(processes[1].pid, resource.RLIMIT_FSIZE, (hard, hard))
        assert saver.save(counter.state, background=False).step == 4
        counter.step()
        saver.restore(counter.state)
        assert set(counter.counts(IDS)) == {4}


def wait_until(is_so: Callable[[], bool]) -> None:
    """Servers notice at their own time that a client is gone."""
    deadline = time.monotonic() + ENDS_HANGS_SECONDS
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def has_room(counter: Counter) -> bool:
    """Whether nobody has a cut open."""
    try:
        counter.emb.store.cut().release()
    except FailedPreconditionError:
        return False
    return True


def test_a_chief_that_is_killed_inside_a_save_leaves_no_cut(tmp_path: Path, cluster: PsCluster, zygote: Zygote) -> None:
    with served(cluster) as place:
        counter = counted(2)
        chief = zygote.start(CHIEF, *cluster.addresses, place.name, str(tmp_path), "save", beside=True)
        assert zygote.line() == "inside"
        with pytest.raises(FailedPreconditionError, match="cut"):
            counter.emb.store.cut()
        counter.step()
        zygote.end(chief)
        wait_until(lambda: has_room(counter))
        assert any(name.endswith(".rows") for name in names(tmp_path))
        with Saver(tmp_path) as saver:
            saver.save(counter.state)
        assert not [name for name in names(tmp_path) if "model.ckpt-0." in name]
        counter.step()
        Saver(tmp_path).restore(counter.state)
        assert set(counter.counts(IDS)) == {3}


@pytest.mark.parametrize("what", ["prepare", "load"])
def test_a_restore_that_was_killed_half_way_is_made_again(
    tmp_path: Path, cluster: PsCluster, zygote: Zygote, what: str
) -> None:
    with served(cluster), Saver(tmp_path) as saver:
        saver.save(counted(2).state)
    with served(cluster) as place:
        counter = Counter(IDS)
        chief = zygote.start(CHIEF, *cluster.addresses, place.name, str(tmp_path), what, beside=True)
        assert zygote.line() == "inside"
        zygote.end(chief)
        wait_until(lambda: set(counter.counts(IDS)) == ({0} if what == "prepare" else {0, 2}))
        Saver(tmp_path).restore(counter.state)
        assert set(counter.counts(IDS)) == {2}
        counter.step()
        assert set(counter.counts(IDS)) == {3}
