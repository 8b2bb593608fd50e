"""When the copy of a variable follows it, by call and by hook, and that gradients go to the variable."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import nn
from torch.optim import SGD

from checkpoint.zygote import Zygote
from monolith.checkpoint.remote_dense import DenseState
from monolith.errors import InvalidArgumentError
from monolith.hooks import FetchAllCachedVariablesHook
from monolith.ps import DenseClient, PsCluster
from monolith.ps.client.cached_variables import (
    CACHED_VARIABLES,
    CachedVariable,
    CachedVariableMeta,
    assign_all_cached_variables,
    cached_value,
    cached_variable_creator,
    fetch_all_cached_variables,
    use_cached_variables,
)
from monolith.tables.batch import BatchStamp
from monolith.testing import StepLoop
from ps.served import ServerProcess

FIRST = DenseState(weights={"var": torch.tensor(5.0)}, optimizers={"dense": {"state": {}, "groups": [{}]}}, clocks=())


@pytest.fixture
def meta() -> Iterator[CachedVariableMeta]:
    with use_cached_variables() as made:
        yield made


@pytest.fixture(scope="module")
def cluster(zygote: Zygote) -> Iterator[PsCluster]:
    process = ServerProcess(zygote, (0, 2), (1, 2))
    with PsCluster(process.addresses) as made:
        yield made
    process.kill()


@pytest.fixture
def variable(meta: CachedVariableMeta, cluster: PsCluster) -> Iterator[Callable[[], tuple[nn.Parameter, DenseClient]]]:
    """Makes a variable on servers, 5.0, which is moved by its gradient alone."""
    made: list[DenseClient] = []

    def make() -> tuple[nn.Parameter, DenseClient]:
        parameter = nn.Parameter(torch.tensor(5.0))
        made.append(DenseClient({"var": parameter}, SGD([parameter], lr=1.0), cluster))
        made[-1].scatter(FIRST)  # the servers may have that of the test before
        return cached_variable_creator(lambda: parameter), made[-1]

    yield make
    for client in made:
        client.close()


def assign_add(client: DenseClient, value: float, seq: int = 0) -> None:
    """Changes the variable where it lives, as somebody else would."""
    parameter = client.parameters["var"]
    kept, parameter.grad = parameter.grad, torch.tensor(-value)
    client.push(BatchStamp(worker=7, seq=seq), step=0).result()
    parameter.grad = kept


Make = Callable[[], tuple[nn.Parameter, DenseClient]]


def test_basic(variable: Make, meta: CachedVariableMeta) -> None:
    var, client = variable()
    cached = meta.collections[CACHED_VARIABLES][0]
    assert (cached.value * 1.0).item() == 5.0
    assign_add(client, 2.0)
    assert (cached.value * 1.0).item() == 5.0
    assert cached.read().item() == 7.0
    fetch_all_cached_variables()
    assert (cached.value * 1.0).item() == 5.0
    assign_all_cached_variables()
    assert (cached.value * 1.0).item() == 7.0
    assert var.item() == 7.0


def test_cached_variables_are_a_collection_by_upstreams_name(variable: Make, meta: CachedVariableMeta) -> None:
    var, _ = variable()
    assert [each.parameter is var for each in meta.collections["monolith_cached_variables"]] == [True]
    assert list(meta.var_id_to_assoc) == [id(var)]


def test_hook(variable: Make, meta: CachedVariableMeta) -> None:
    var, client = variable()
    cached = meta.cached[0]
    seen = []
    with StepLoop([FetchAllCachedVariablesHook()]) as loop:
        loop.run(lambda: seen.append(cached.value.item()))
        assign_add(client, -1.0)
        for _ in range(2):
            loop.run(lambda: seen.append(cached.value.item()))
    assert seen[0] == 5.0
    assert 4.0 in seen
    assert var.item() == 4.0


def test_gradient(variable: Make, meta: CachedVariableMeta) -> None:
    var, client = variable()
    cached = meta.cached[0]
    loss = cached.value
    loss.backward()  # type: ignore[no-untyped-call]
    client.push(BatchStamp(worker=0, seq=0), step=0).result()
    assert cached.read().item() == 4.0
    assert (cached.value * 1.0).item() == 5.0
    assert var.grad is not None
    assert var.grad.item() == 1.0


def test_the_first_step_of_a_session_waits_for_what_the_servers_have(variable: Make, meta: CachedVariableMeta) -> None:
    _, client = variable()
    hook, seen = FetchAllCachedVariablesHook(meta), []
    for seq, expected in enumerate((3.0, 1.0)):
        assign_add(client, -2.0, seq)
        with StepLoop([hook]) as loop:
            loop.run(lambda: seen.append(meta.cached[0].value.item()))
        assert seen[-1] == expected


def test_the_value_is_that_of_the_copy_and_the_gradient_that_of_the_variable() -> None:
    var, copy = torch.tensor([1.0, 2.0], requires_grad=True), torch.tensor([5.0, 7.0], requires_grad=True)
    value = cached_value(var, copy)
    (value * torch.tensor([10.0, 20.0])).sum().backward()  # type: ignore[no-untyped-call]
    assert value.tolist() == [5.0, 7.0]
    assert var.grad is not None
    assert var.grad.tolist() == [10.0, 20.0]
    assert copy.grad is None


def test_a_parameter_of_this_process_stays_uncached(meta: CachedVariableMeta) -> None:
    own = nn.Parameter(torch.ones(1))
    assert cached_variable_creator(lambda: own) is own
    assert meta.cached == []
    with pytest.raises(InvalidArgumentError, match=r"shape \(1,\) of this process; give it to a DenseClient"):
        CachedVariable(own)


def test_a_non_parameter_is_rejected_with_the_upstream_message() -> None:
    said = r"^Only ResourceVariable is supported\. Do you disable V2 behavior or use strategy\?$"
    with pytest.raises(ValueError, match=said):
        cached_variable_creator(lambda: torch.ones(1))  # type: ignore[arg-type,return-value]


def test_a_variable_is_cached_once(variable: Make) -> None:
    var, _ = variable()
    said = r"^The variable has already been cached\. Consider about removing cache_device\.$"
    with pytest.raises(ValueError, match=said):
        cached_variable_creator(lambda: var)


def test_the_arguments_of_the_creator_reach_the_one_that_makes_the_variable(meta: CachedVariableMeta) -> None:
    made = cached_variable_creator(lambda *, size: nn.Parameter(torch.zeros(size)), size=3)
    assert made.shape == (3,)


def test_a_client_that_was_closed_keeps_nothing(variable: Make) -> None:
    var, client = variable()
    assert CachedVariable(var).client is client
    client.close()
    with pytest.raises(InvalidArgumentError, match="give it to a DenseClient"):
        CachedVariable(var)
