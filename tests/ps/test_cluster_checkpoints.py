"""A checkpoint does not know whether rows were on servers, or on how many, when it was saved or when it is restored."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeAlias

import pytest

from checkpoint.runs import Run, whole
from monolith.checkpoint import Saver
from monolith.cli import main
from monolith.nn.table_defaults import TableDefaults, use_table_defaults
from monolith.ps import PsCluster
from monolith.tables import LocalShards, LocalStore
from ps.served import served

Place: TypeAlias = int | Literal["process", "shards"]
"""Where rows are: on so many servers, in this process, or there in three parts."""

PLACES: tuple[Place, ...] = ("process", "shards", 1, 2, 3, 5)
WIDE = 0x1E3779B97F4A7C15
"""Makes ids of 64 bits of small ones: their keys do not tell their buckets."""

Clusters: TypeAlias = Mapping[int, PsCluster]


@contextmanager
def rows_at(place: Place, clusters: Clusters) -> Iterator[None]:
    """Models that are built inside have their rows there."""
    if isinstance(place, int):
        with served(clusters[place]):
            yield
        return
    store = LocalStore if place == "process" else partial(LocalShards, num_shards=3)
    with use_table_defaults(TableDefaults(store=store)):
        yield


class Saved:
    """The same run, saved where its rows were in different places, and how it went on."""

    def __init__(self, folder: Path, clusters: Clusters) -> None:
        self._folder = folder
        self._clusters = clusters
        self._made: dict[Place, tuple[Path, Any, list[float]]] = {}

    def of(self, place: Place) -> tuple[Path, Any, list[float]]:
        """Where it was saved, what it was then, and its next losses."""
        if place not in self._made:
            folder = self._folder / str(place)
            with rows_at(place, self._clusters):
                run = Run(min_count=2, id_factor=WIDE)
                run.steps(6)
                save(run, folder)
                self._made[place] = folder, whole(run), run.steps(3)
        return self._made[place]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory, clusters: Clusters) -> Saved:
    return Saved(tmp_path_factory.mktemp("saved"), clusters)


def save(run: Run, folder: Path) -> None:
    with Saver(folder) as saver:
        saver.save(run.state)


@pytest.mark.parametrize("after", PLACES)
@pytest.mark.parametrize("before", PLACES)
def test_a_run_resumes_bit_for_bit_wherever_its_rows_are(
    saved: Saved, clusters: Clusters, before: Place, after: Place
) -> None:
    folder, at_save, losses = saved.of(before)
    with rows_at(after, clusters):
        run = Run(seed=9, min_count=2, id_factor=WIDE)
        run.steps(2)  # what it has is replaced
        Saver(folder).restore(run.state)
        assert whole(run) == at_save
        assert run.steps(3) == losses


def test_all_places_train_the_same(saved: Saved) -> None:
    first, *others = [saved.of(place)[1:] for place in PLACES]
    assert all(other == first for other in others)
    (stamps, blocks), *_ = first[0]
    assert stamps[0].seq == 5
    assert len({kind for kind, *_ in blocks}) == 2  # rows, and what admission has counted


def test_files_are_those_of_one_process_with_as_many_owners(saved: Saved) -> None:
    def files(place: Place) -> dict[str, bytes]:
        folder = saved.of(place)[0]
        return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*.rows")}

    assert files(3) == files("shards")
    assert files(1) == files("process")
    assert len(files(5)) == 5


@pytest.mark.parametrize("place", [1, 3])
def test_the_tools_for_checkpoints_take_it(saved: Saved, place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    path, other = (str(saved.of(each)[0] / "model.ckpt-6") for each in (place, "process"))
    assert main(["checkpoint", "verify", path]) == 0
    assert "all as written" in capsys.readouterr().out
    assert main(["checkpoint", "show", path]) == 0
    assert "emb  {'4-adagrad': 69}" in capsys.readouterr().out
    assert main(["checkpoint", "diff", path, other]) == 0
    assert capsys.readouterr().out == "equal\n"
