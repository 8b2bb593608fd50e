"""The example of the proof shows the numbers that its page promises, and fails where its claims do not hold."""

from __future__ import annotations

import importlib.util
import json
import math
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from torch import Tensor

from monolith.errors import InvalidArgumentError, NotFoundError
from monolith.tensors import Ragged
from monolith.validation import (
    CopyOutcome,
    Scores,
    SyncRule,
    Traffic,
    Window,
    criteo,
    movielens,
    validate,
)

DAY = 86_400


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """As the example has it: its operations are small."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def example(project_root: Path) -> ModuleType:
    path = project_root / "examples" / "online" / "proof.py"
    assert len(path.read_text(encoding="utf-8").splitlines()) <= 150
    spec = importlib.util.spec_from_file_location("example_proof", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def promised(project_root: Path, table: str) -> dict[str, list[float]]:
    """Contestant -> its AUC by seed, as the page has it."""
    text = (project_root / "examples" / "online" / "README.md").read_text(encoding="utf-8")
    found = re.search(rf"^\| {table} \| seed 0 .*?\n\n", text, re.MULTILINE | re.DOTALL)
    assert found is not None
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in found[0].splitlines()[2:] if line]
    return {name: [float(cell) for cell in cells] for name, *cells in rows}


def told(name: str, *aucs: float) -> CopyOutcome:
    windows = tuple(
        Window(begin=n, end=n + 1, examples=5, auc=auc, log_loss=0.5, calibration=1.0) for n, auc in enumerate(aucs)
    )
    total = Scores(examples=5, auc=aucs[0], log_loss=0.5, calibration=1.0)
    return CopyOutcome(rule=SyncRule(), windows=windows, total=total, num_takes=1, bytes_taken=0)


@pytest.mark.slow
def test_the_orderings_and_numbers_of_the_first_seed_are_those_of_the_page(
    example: ModuleType,
    project_root: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    page, numbers = tmp_path / "sync.html", tmp_path / "sync.json"
    monkeypatch.setattr(sys, "argv", ["proof.py", "sync", "--out", str(page), "--json", str(numbers)])
    example.main()
    expected = {name: aucs[0] for name, aucs in promised(project_root, "sync").items()}
    found = re.findall(r"^seed 0: (.*?) +AUC (\S+)", capsys.readouterr().out, re.MULTILINE)
    assert {name: float(auc) for name, auc in found} == pytest.approx(expected, abs=0.002)
    assert list(json.loads(numbers.read_text(encoding="utf-8"))) == ["seed", *expected]
    assert page.read_text(encoding="utf-8").count("<polyline") == 4 * 3 * 2


@pytest.mark.parametrize("table", ["sync", "rows"])
def test_the_page_promises_nothing_that_the_example_would_refuse(
    table: str, example: ModuleType, project_root: Path
) -> None:
    aucs = promised(project_root, table)
    assert {len(values) for values in aucs.values()} == {5}
    check = example.EXPERIMENTS[table][1]
    for seed in range(5):
        check({name: told(name, values[seed]) for name, values in aucs.items()})


@pytest.mark.parametrize(
    ("experiment", "aucs"),
    [
        ("sync", (0.70, 0.701, 0.71, 0.72)),
        ("sync", (0.70, 0.72, 0.7205, 0.73)),
        ("sync", (0.70, 0.72, 0.73, 0.725)),
        ("rows", (0.70, 0.72, 0.70)),
        ("rows", (0.70, 0.72, 0.7015)),
        ("rows", (0.70, 0.72, 0.715)),
    ],
)
def test_the_example_fails_where_a_claim_does_not_hold(
    experiment: str, aucs: tuple[float, ...], example: ModuleType
) -> None:
    with pytest.raises(AssertionError, match="expected"):
        example.EXPERIMENTS[experiment][1]({str(number): told("", auc) for number, auc in enumerate(aucs)})


# Files


def ratings(path: Path, *, has_header: bool) -> None:
    draw = np.random.default_rng(0)
    lines = [
        [str(draw.integers(1, 40)), str(draw.integers(1, 30)), str(draw.integers(1, 6)), str(time)]
        for time in draw.permutation(np.arange(1_000_000, 1_000_600))
    ]
    separator = "," if has_header else "\t"
    head = ["userId,movieId,rating,timestamp"] if has_header else []
    path.write_text("\n".join([*head, *(separator.join(line) for line in lines)]) + "\n", encoding="utf-8")


@pytest.mark.parametrize("name", ["u.data", "ratings.csv"])
def test_movielens_is_read_from_its_files_in_the_order_of_time(name: str, tmp_path: Path, example: ModuleType) -> None:
    ratings(tmp_path / name, has_header=name == "ratings.csv")
    traffic = movielens(tmp_path, batch_size=50)
    assert traffic.seconds == 599
    times = torch.cat([values for batch in traffic.batches if isinstance(values := batch["req_time"], Tensor)])
    assert times.tolist() == list(range(1_000_000, 1_000_600))
    strict = movielens(tmp_path, liked_from=6, batch_size=50)
    labels = [values for batch in strict.batches if isinstance(values := batch["label"], Tensor)]
    assert float(torch.cat(labels).sum()) == 0
    outcomes = example.run_sync(traffic, 0)
    assert list(outcomes) == ["batch", "every 1/10", "every 1/50", "every 1/100"]
    assert [each.total.examples for each in outcomes.values()] == [600 - math.ceil(599 * 5 / 7)] * 4


def test_a_folder_without_ratings_is_named(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match=rf"expected u\.data or ratings\.csv in the folder '{tmp_path}'"):
        movielens(tmp_path)


@pytest.mark.parametrize(("name", "text"), [("u.data", ""), ("ratings.csv", "userId,movieId,rating,timestamp\n")])
def test_a_file_without_ratings_is_named(name: str, text: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text, encoding="utf-8")
    with pytest.raises(
        InvalidArgumentError, match=rf"expected ratings, found none in CsvDataset\('{tmp_path}/{name}'\)"
    ):
        movielens(tmp_path)


def lines_of_criteo(path: Path, count: int) -> Path:
    draw = np.random.default_rng(0)
    with path.open("w", encoding="utf-8") as file:
        for _ in range(count):
            words = [f"{word:08x}" for word in draw.integers(0, 50, 26)]
            words[3] = ""
            numbers = [str(number) for number in draw.integers(-1, 9, 13)]
            file.write("\t".join([str(int(words[0] < "00000019")), *numbers, *words]) + "\n")
    return path


def test_criteo_is_read_as_seven_days_in_the_order_of_its_files(tmp_path: Path) -> None:
    files = [lines_of_criteo(tmp_path / name, 1200) for name in ("a.txt", "b.txt")]
    traffic = criteo(files, batch_size=40)
    batches = list(traffic.batches)
    times = torch.cat([values for batch in batches if isinstance(values := batch["req_time"], Tensor)])
    assert len(times) == 2400
    assert traffic.seconds == 7 * DAY
    assert torch.equal(times, times.sort().values)
    assert 7 * DAY - 600 < times[-1] - times[0] < 7 * DAY
    empty = batches[0]["C4"]
    assert isinstance(empty, Ragged)
    assert len(empty.flat_values) == 0
    outcome = validate(
        traffic.ranker, traffic.batches, copies={"now": SyncRule(rows_seconds=0)}, warm_up_seconds=4 * DAY
    )
    assert outcome["now"].total.auc > 0.8  # the first text decides


def test_criteo_without_a_line_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "none.txt").write_text("", encoding="utf-8")
    with pytest.raises(InvalidArgumentError, match="expected lines, found none"):
        list(criteo([tmp_path / "none.txt"]).batches)


def test_hashed_traffic_shares_the_rows_that_it_is_given(tmp_path: Path) -> None:
    ratings(tmp_path / "u.data", has_header=False)
    hashed: Traffic = movielens(tmp_path).hashed(16)
    outcome = validate(hashed.ranker, hashed.batches)
    assert outcome.rows == 16
    assert sum(1 for _ in hashed.batches) == sum(1 for _ in hashed.batches) > 0
