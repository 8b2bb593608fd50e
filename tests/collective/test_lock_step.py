from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

from collective import ranks
from collective.lock_step_suite import CASES
from monolith import collective
from programs import Programs

SUITE = Path(__file__).with_name("lock_step_suite.py")


@pytest.fixture(scope="module", params=[2, 3], ids=["two", "three"])
def ran(
    request: pytest.FixtureRequest, programs: Programs, tmp_path_factory: pytest.TempPathFactory
) -> list[dict[str, Any]]:
    """The suite's results, of each rank; one start for all tests."""
    return ranks.results(programs, SUITE, tmp_path_factory.mktemp("ranks"), size=request.param)


@pytest.mark.parametrize("name", CASES)
def test_it_holds_alone_without_a_socket(name: str) -> None:
    collective.init()
    assert not dist.is_initialized()
    CASES[name](0, 1)


@pytest.mark.parametrize("name", CASES)
def test_it_holds_among_ranks(name: str, ran: list[dict[str, Any]]) -> None:
    assert all(name in rank["ran"] for rank in ran)
    assert "\n".join(rank["failures"].get(name, "") for rank in ran).strip() == ""


def test_no_thread_is_left_after_shutdown(ran: list[dict[str, Any]]) -> None:
    assert [rank["alive"] for rank in ran] == [[]] * len(ran)
