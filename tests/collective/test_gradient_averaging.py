from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from collective import ranks
from collective.averaging_suite import CASES, EVERY_WAY
from monolith import collective
from monolith.collective import gradient_averaging
from monolith.collective.gradient_averaging import AveragingConfig, average_gradients, told
from monolith.collective.wire import LoneWire
from monolith.errors import InvalidArgumentError
from programs import Programs

SUITE = Path(__file__).with_name("averaging_suite.py")
FUSION, HALF, SKIP = "MONOLITH_WITH_ALLREDUCE_FUSION", "MONOLITH_WITH_ALLREDUCE_FP16", "MONOLITH_SKIP_ALLREDUCE"


@pytest.fixture(scope="module", params=[2, 3], ids=["two", "three"])
def ran(
    request: pytest.FixtureRequest, programs: Programs, tmp_path_factory: pytest.TempPathFactory
) -> list[dict[str, Any]]:
    """The suite's results, of each rank; one start for all tests."""
    return ranks.results(programs, SUITE, tmp_path_factory.mktemp("ranks"), size=request.param)


@pytest.mark.parametrize("name", CASES)
def test_it_holds_alone(name: str) -> None:
    collective.init()
    CASES[name](0, 1)


@pytest.mark.parametrize("name", CASES)
def test_it_holds_among_ranks(name: str, ran: list[dict[str, Any]]) -> None:
    assert all(name in rank["ran"] for rank in ran)
    assert "\n".join(rank["failures"].get(name, "") for rank in ran).strip() == ""


class Recorder(LoneWire):
    """Of what travels."""

    def __init__(self) -> None:
        self.sent: list[tuple[int, torch.dtype]] = []

    def gather(self, tensor: Tensor) -> list[Tensor]:
        self.sent.append((tensor.numel(), tensor.dtype))
        return super().gather(tensor)

    def add(self, tensor: Tensor) -> None:
        self.sent.append((tensor.numel(), tensor.dtype))


def sent_of(*, deterministic: bool = False) -> list[tuple[int, torch.dtype]]:
    """What travels, by the options of the environment."""
    gradients = [torch.ones(2, 3), torch.ones(4), torch.ones(5, dtype=torch.float64), torch.ones(7), None]
    wire = Recorder()
    average_gradients(
        wire,
        gradients,
        weights=[torch.ones(1) if gradient is None else gradient for gradient in gradients],
        present=told(gradients).unsqueeze(0),
        num_active=1,
        options=AveragingConfig.from_environment(deterministic=deterministic),
    )
    return wire.sent


@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize(
    ("fusion", "lengths"), [("none", [6, 4, 7, 5]), ("one", [17, 5]), ("grouped", [10, 7, 5]), ("", [10, 7, 5])]
)
def test_an_environment_variable_sets_which_gradients_are_fused(
    fusion: str, lengths: list[int], deterministic: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gradient_averaging, "_GROUP_BYTES", 40)
    monkeypatch.setenv(FUSION, fusion)
    assert [length for length, _ in sent_of(deterministic=deterministic)] == lengths


@pytest.mark.parametrize("fusion", ["multi", "two", "None"])
def test_another_fusion_is_refused_with_those_there_are(fusion: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FUSION, fusion)
    with pytest.raises(ValueError, match=f"{FUSION} must be none, one or grouped, got '{fusion}'"):
        AveragingConfig.from_environment()


@pytest.mark.parametrize(("value", "dtype"), [("", torch.float32), ("0", torch.float32), ("1", torch.float16)])
@pytest.mark.parametrize("deterministic", [False, True])
def test_an_environment_variable_selects_whether_floats_are_sent_in_half_precision(
    value: str, dtype: torch.dtype, deterministic: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(HALF, value)
    assert sent_of(deterministic=deterministic)[0][1] == dtype


@pytest.mark.parametrize(("value", "is_sent"), [("", True), ("0", True), ("1", False)])
def test_a_variable_leaves_averaging_out(value: str, is_sent: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SKIP, value)
    assert bool(sent_of()) == is_sent


@pytest.mark.parametrize("variable", [HALF, SKIP])
def test_a_switch_that_is_no_number_is_named(variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(variable, "yes")
    with pytest.raises(ValueError, match=f"{variable} must be an integer, 0 for off, got 'yes'"):
        AveragingConfig.from_environment()


def test_options_that_differ_differ_in_words() -> None:
    assert len({str(options) for options in EVERY_WAY}) == len(EVERY_WAY) == 12
    assert str(AveragingConfig(skip=True)) not in {str(options) for options in EVERY_WAY}


def test_presence_is_reported_for_more_gradients_than_an_integer_has_bits() -> None:
    gradients = [torch.ones(1) if place % 3 else None for place in range(200)]
    wire = Recorder()
    got = average_gradients(
        wire,
        gradients,
        weights=[torch.ones(1)] * 200,
        present=told(gradients).unsqueeze(0),
        num_active=1,
        options=AveragingConfig(),
    )
    assert [mean is None for mean in got] == [place % 3 == 0 for place in range(200)]


def test_presence_reported_by_ranks_must_fit_the_weights() -> None:
    with pytest.raises(InvalidArgumentError, match=r"each rank must send 1 numbers for 2 gradients, got \[1, 2\]"):
        average_gradients(
            LoneWire(),
            [None, None],
            weights=[torch.ones(1)] * 2,
            present=torch.zeros(1, 2, dtype=torch.int64),
            num_active=1,
            options=AveragingConfig(),
        )
