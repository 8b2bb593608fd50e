"""Horovod and BytePS by stand-in packages that record what they are asked: the real ones are not to be had here."""

from __future__ import annotations

import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
import torch.distributed as dist

from monolith import collective
from monolith.collective import Call, LockStep
from monolith.errors import FailedPreconditionError, UnavailableError, UnimplementedError
from monolith.hooks import BroadcastGlobalVariablesHook
from monolith.testing import StepLoop

RECORDING = """
import torch

calls = []


def init():
    calls.append(("init",))


def shutdown():
    calls.append(("shutdown",))


def rank():
    return 3


def size():
    return 4


def broadcast_parameters(params, root_rank):
    calls.append(("broadcast_parameters", sorted(params), root_rank))
    for tensor in params.values():
        tensor.fill_(root_rank)
"""
GATHERING = """
def allgather(tensor, name=None):
    calls.append(("allgather", tensor.tolist()))
    return torch.cat([tensor] * size())


def broadcast(tensor, root_rank, name=None):
    calls.append(("broadcast", tensor.tolist(), root_rank))
    return torch.full_like(tensor, root_rank)
"""

EXCHANGING = """
Sum = "sum"


def allreduce(tensor, op=None):
    calls.append(("allreduce", tensor.tolist(), op))
    return tensor * size()


def alltoall(tensor, splits=None):
    calls.append(("alltoall", tensor.tolist(), splits.tolist()))
    part = tensor[: splits[0]]
    return torch.cat([part] * size()), torch.full((size(),), len(part), dtype=torch.int32)
"""
BARRIER = """
def barrier():
    calls.append(("barrier",))
"""
PUSHING = """
def push_pull(tensor, average=True, name=None):
    calls.append(("push_pull", tensor.tolist(), average, name))
    return tensor * size()
"""

Install = Callable[[str, str], None]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Puts a package on the path whose ``torch`` module has the given source."""

    def write(package: str, source: str) -> None:
        folder = tmp_path / package
        folder.mkdir()
        (folder / "__init__.py").write_text("")
        (folder / "torch.py").write_text(textwrap.dedent(source))

    def forget() -> None:
        for name in [name for name in sys.modules if name.partition(".")[0] in {"horovod", "byteps"}]:
            del sys.modules[name]

    forget()
    monkeypatch.syspath_prepend(tmp_path)
    yield write
    collective.shutdown()
    forget()


def recorded(package: str) -> list[Any]:
    module: ModuleType = sys.modules[f"{package}.torch"]
    calls: list[Any] = module.calls
    return calls


def test_horovod_is_imported_on_first_use_and_given_every_call(
    install: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    install("horovod", RECORDING + GATHERING)
    monkeypatch.setenv("MONOLITH_WITH_HOROVOD", "1")
    with pytest.raises(FailedPreconditionError, match=r"call monolith\.collective\.init\(\) first"):
        collective.rank()
    assert "horovod" not in sys.modules
    collective.init()
    collective.init()
    weights = {"b": torch.zeros(1), "a": torch.zeros(1)}
    assert (collective.rank(), collective.size()) == (3, 4)
    assert collective.allgather(torch.tensor([1, 2])).tolist() == [1, 2] * 4
    assert collective.broadcast(torch.ones(2), 2).tolist() == [2, 2]
    BroadcastGlobalVariablesHook(lambda: weights, root_rank=1).after_create_session(StepLoop())
    assert weights == {"b": torch.ones(1), "a": torch.ones(1)}
    calls = recorded("horovod")
    collective.shutdown()
    assert calls == [
        ("init",),
        ("allgather", [1, 2]),
        ("broadcast", [1.0, 1.0], 2),
        ("broadcast_parameters", ["a", "b"], 1),
        ("shutdown",),
    ]
    assert not dist.is_initialized()


def test_horovod_sums_and_exchanges(install: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    install("horovod", RECORDING + EXCHANGING + BARRIER)
    monkeypatch.setenv("MONOLITH_WITH_HOROVOD", "1")
    collective.init()
    assert collective.allreduce(torch.tensor([2.0])).tolist() == [8]
    assert collective.allreduce(torch.tensor([2.0]), average=True).tolist() == [2]
    rows, sizes = collective.alltoall(torch.tensor([[1], [2], [3], [4], [5]]), [2, 1, 0, 2])
    assert (rows.tolist(), sizes) == ([[1], [2]] * 4, [2] * 4)
    collective.barrier()
    assert recorded("horovod") == [
        ("init",),
        ("allreduce", [2.0], "sum"),
        ("allreduce", [2.0], "sum"),
        ("alltoall", [[1], [2], [3], [4], [5]], [2, 1, 0, 2]),
        ("barrier",),
    ]


def test_an_older_horovod_meets_by_a_sum(install: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    install("horovod", RECORDING + EXCHANGING)
    monkeypatch.setenv("MONOLITH_WITH_HOROVOD", "1")
    collective.init()
    collective.barrier()
    assert recorded("horovod") == [("init",), ("allreduce", [0.0], "sum")]


def test_ranks_of_horovod_agree_by_its_calls_and_have_one_line(
    install: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    install("horovod", RECORDING + GATHERING + EXCHANGING)
    monkeypatch.setenv("MONOLITH_WITH_HOROVOD", "1")
    collective.init()
    step = LockStep(collective.training_line())
    agreed = step.call(Call("read"), sizes=torch.tensor([[7]] * 4), flags=5, work=lambda agreed: agreed).result()
    assert (agreed.sizes.tolist(), agreed.flags, agreed.active) == ([[7]] * 4, 5, [True] * 4)
    thread_names = {thread.name for thread in threading.enumerate()}
    assert "monolith-training" in thread_names
    with pytest.raises(UnimplementedError, match=r"horovod\.torch has no second sequence.*unset MONOLITH_WITH_HOROVOD"):
        collective.saving_line()
    collective.shutdown()
    assert "monolith-training" not in {thread.name for thread in threading.enumerate()}


def test_a_horovod_error_about_a_lost_rank_ends_the_line(install: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    install("horovod", RECORDING + "def allgather(tensor):\n    raise RuntimeError('Horovod has been shut down')")
    monkeypatch.setenv("MONOLITH_WITH_HOROVOD", "1")
    collective.init()
    with pytest.raises(UnavailableError, match=r"allgather: rank 3 of 4 could not.*Horovod has been shut down"):
        collective.allgather(torch.ones(1))
    with pytest.raises(UnavailableError, match="the training line ended when allgather failed"):
        collective.broadcast(torch.ones(1))


def test_byteps_sums_by_push_pull_and_reports_what_it_lacks(install: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    install("byteps", RECORDING + PUSHING)
    monkeypatch.setenv("MONOLITH_WITH_BYTEPS", "1")
    collective.init()
    assert collective.allreduce(torch.tensor([2.0])).tolist() == [8]
    assert collective.allreduce(torch.tensor([2.0]), average=True).tolist() == [2]
    collective.barrier()
    with pytest.raises(UnimplementedError, match=r"byteps\.torch has no alltoall; unset MONOLITH_WITH_BYTEPS"):
        collective.alltoall(torch.ones(4, 1), [1] * 4)
    name = "monolith.sum.torch.float32.[1]"
    assert recorded("byteps") == [
        ("init",),
        ("push_pull", [2.0], False, name),
        ("push_pull", [2.0], False, name),
        ("push_pull", [0.0], False, name),
    ]


def test_byteps_wins_over_horovod(install: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    install("byteps", RECORDING + GATHERING)
    monkeypatch.setenv("MONOLITH_WITH_HOROVOD", "1")
    monkeypatch.setenv("MONOLITH_WITH_BYTEPS", "2")
    collective.init()
    assert collective.allgather(torch.tensor([1])).tolist() == [1] * 4
    assert collective.broadcast(torch.tensor([1]), 2).tolist() == [2]
    assert recorded("byteps") == [("init",), ("allgather", [1]), ("broadcast", [1], 2)]
    assert "horovod" not in sys.modules


def test_what_a_release_of_byteps_lacks_is_made_from_what_it_has_or_refused(
    install: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    install("byteps", RECORDING)
    monkeypatch.setenv("MONOLITH_WITH_BYTEPS", "1")
    collective.init()
    mine = torch.ones(2)
    assert collective.broadcast(mine, 2).tolist() == [2, 2]
    assert collective.broadcast(torch.ones(3), 1).tolist() == [1, 1, 1]
    assert mine.tolist() == [1, 1]
    names = [call[1] for call in recorded("byteps") if call[0] == "broadcast_parameters"]
    assert names == [["monolith.broadcast.0"], ["monolith.broadcast.1"]]
    with pytest.raises(UnimplementedError, match=r"byteps\.torch has no allgather; unset MONOLITH_WITH_BYTEPS"):
        collective.allgather(torch.ones(1))


@pytest.mark.parametrize(
    ("choice", "weight", "calls"),
    [
        ("", 2.0, {"byteps": ["init", "broadcast_parameters", "shutdown"]}),
        ("1", 2.0, {"byteps": ["init", "broadcast_parameters", "shutdown"]}),
        ("0", 2.0, {"byteps": ["init", "shutdown"], "horovod": ["init", "broadcast_parameters", "shutdown"]}),
        ("-1", 0.0, {"byteps": ["init", "shutdown"]}),
    ],
)
def test_an_environment_variable_selects_the_library_that_broadcasts_the_weights_under_byteps(
    choice: str, weight: float, calls: dict[str, list[str]], install: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    for package in ("byteps", "horovod"):
        install(package, RECORDING)
    monkeypatch.setenv("MONOLITH_WITH_BYTEPS", "1")
    monkeypatch.setenv("MONOLITH_WITH_BYTEPS_BCAST", choice)
    collective.init()
    weights = {"a": torch.zeros(1)}
    collective.broadcast_parameters(weights, 2)
    assert weights["a"].tolist() == [weight]
    modules = {package: sys.modules[f"{package}.torch"] for package in calls}
    collective.shutdown()
    assert {package: [call[0] for call in module.calls] for package, module in modules.items()} == calls
    assert ("horovod" in sys.modules) == ("horovod" in calls)


@pytest.mark.parametrize(
    "variables",
    [
        {},
        {"MONOLITH_WITH_HOROVOD": ""},
        {"MONOLITH_WITH_HOROVOD": "0"},
        {"MONOLITH_WITH_BYTEPS": "0"},
        {"MONOLITH_WITH_BYTEPS": ""},
    ],
)
def test_torch_distributed_is_the_default(variables: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    collective.init()
    assert collective.size() == 1


def test_the_choice_is_made_at_first_use_and_kept_until_shutdown(
    install: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    install("horovod", RECORDING + GATHERING)
    collective.init()
    monkeypatch.setenv("MONOLITH_WITH_HOROVOD", "1")
    assert collective.size() == 1
    collective.shutdown()
    collective.init()
    assert collective.size() == 4


def test_a_variable_that_is_no_number_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MONOLITH_WITH_BYTEPS", "yes")
    with pytest.raises(ValueError, match="MONOLITH_WITH_BYTEPS must be an integer, got 'yes'"):
        collective.init()


@pytest.mark.parametrize(
    ("variable", "package"), [("MONOLITH_WITH_HOROVOD", "horovod"), ("MONOLITH_WITH_BYTEPS", "byteps")]
)
@pytest.mark.usefixtures("install")
def test_a_missing_package_is_named_with_what_to_do(
    variable: str, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.setenv(variable, "1")
    message = rf"{variable} requires {package}\.torch.*install {package} with PyTorch support, or unset {variable}"
    with pytest.raises(ModuleNotFoundError, match=message):
        collective.init()


def test_a_package_that_was_built_without_torch_raises_a_distinct_error(
    install: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    install("horovod", "raise ImportError('Extension horovod.torch has not been built')")
    monkeypatch.setenv("MONOLITH_WITH_HOROVOD", "1")
    with pytest.raises(ImportError, match=r"cannot be imported: Extension horovod\.torch has not been built"):
        collective.init()
    with pytest.raises(FailedPreconditionError):
        collective.size()
