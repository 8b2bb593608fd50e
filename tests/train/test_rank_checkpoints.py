"""Checkpoints of ranks: in a directory each, of other numbers of ranks, of servers; and options of ranks."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from tensorboard.backend.event_processing.event_file_loader import RawEventFileLoader
from tensorboard.compat.proto.event_pb2 import Event

from monolith.checkpoint import Saver, TrainState
from monolith.checkpoint.model_dir_lock import GENERATION
from monolith.errors import NotFoundError
from programs import Programs
from train.job_threads import ThreadJob
from train.rank_checkpoint_cases import DAYS, Counted, counted
from train.sync_cases import Thirteen, digest_of, restored
from train.sync_ranks import results_of, run_ranks
from train.sync_saving_cases import saved_steps
from train.test_sync_training import accumulated

CASES = ["apart", "named", "merged_first", "disk", "begun", "lost", "counted", "metrics", "accelerator", "unreadable"]
CASES += ["killed", "command", "hangs"]  # the last one ends the run


NUM_FILES, LINES = 12, 6


@pytest.fixture(scope="module")
def days(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("days")
    for number in range(NUM_FILES):
        lines = [json.dumps({"id": number * LINES + line}) for line in range(LINES)]
        (folder / f"day-{number}.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(DAYS, str(folder))
        yield str(folder)


class Killed(NamedTuple):
    """What ranks left of which one was killed."""

    codes: list[int]
    said: str
    """By rank 0."""
    steps: list[list[int]]
    """That each had saved."""


@pytest.fixture(scope="module")
def killed(programs: Programs, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Killed]:
    """The folder, too, in which `two` goes on."""
    folder = tmp_path_factory.mktemp("two")
    ended = run_ranks(programs, "rank_checkpoint_cases", folder, ["killed"], size=2)
    found = Killed([code for code, _ in ended], ended[0][1], steps_of(folder / "killed" / "model"))
    (folder / "killed" / "again").touch()
    return folder, found


@pytest.fixture(scope="module")
def two(programs: Programs, days: str, killed: tuple[Path, Killed]) -> Path:
    folder, _ = killed
    variables = {"MONOLITH_SAVE_SUMMARY_INTERVAL": "2", DAYS: days}
    run_ranks(programs, "rank_checkpoint_cases", folder, CASES, size=2, **variables)
    return folder


@pytest.fixture(scope="module")
def three(programs: Programs, two: Path, days: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three ranks, behind two of them; and behind servers and one process, which went on from what the two left."""
    folder = tmp_path_factory.mktemp("three")
    begun, goes_on = two / "counted", folder / "to_the_end"
    for source, target in (("one", "one"), ("each", "each"), ("each", "served"), ("each", "merged")):
        shutil.copytree(begun / source, goes_on / target)
    for name in ("one", "served"):
        with_servers(goes_on / name / "model", max_steps=6)
    for name in ("one", "merged"):
        counted(goes_on / name, max_steps=8)
    run_ranks(programs, "rank_checkpoint_cases", folder, ["to_the_end"], size=3, **{DAYS: days})
    return folder


def with_servers(model_dir: Path, *, max_steps: int) -> None:
    """Three, so that each has other buckets than a rank."""
    options = {"enable_dynamic_sharding": True}
    settings = {"max_steps": max_steps}
    ThreadJob(model_dir, num_ps=3, num_workers=2, params=Counted.params, options=options, settings=settings).run()


def steps_of(folder: Path) -> list[list[int]]:
    return [saved_steps(each) for each in sorted(folder.glob("index-*"))]


@pytest.mark.slow
def test_each_rank_keeps_its_checkpoints_and_resumes_from_them(two: Path) -> None:
    assert results_of(two, "apart") == [[3, 7, 7]] * 2
    assert steps_of(two / "apart" / "model") == [[6, 7], [6, 7]]
    assert saved_steps(two / "apart" / "model") == []
    claims = [json.loads((two / "apart" / "model" / f"index-000{rank}" / GENERATION).read_text()) for rank in range(2)]
    assert claims[0]["generation"] == claims[1]["generation"] == 3


@pytest.mark.slow
def test_one_process_restores_what_the_ranks_have_saved_together(two: Path) -> None:
    assert digest_of(restored(Thirteen, two / "apart")) == digest_of(accumulated(Thirteen, 2))


@pytest.mark.slow
def test_the_name_of_the_run_is_a_folder_between(two: Path) -> None:
    assert results_of(two, "named") == [7, 7]
    assert steps_of(two / "named" / "model" / "run7") == [[1, 2, 3, 4, 5, 6, 7]] * 2


@pytest.mark.slow
def test_ranks_change_between_one_directory_and_many(two: Path) -> None:
    assert results_of(two, "merged_first") == [[2, 4, 7]] * 2
    assert steps_of(two / "merged_first" / "model") == [[4], [4]]
    assert saved_steps(two / "merged_first" / "model") == [2, 7]
    assert digest_of(restored(Thirteen, two / "merged_first")) == digest_of(accumulated(Thirteen, 2))


@pytest.mark.slow
def test_a_save_that_fails_on_one_rank_is_made_again_on_all(two: Path) -> None:
    assert results_of(two, "disk") == [[3, 0], [3, 1]]
    assert steps_of(two / "disk" / "model") == [[1, 2, 3], [1, 2, 3]]


@pytest.mark.slow
def test_missing_directories_are_named_on_all_ranks(two: Path) -> None:
    for first, second in results_of(two, "lost"):
        assert first[0] == "FailedPreconditionError"
        assert "got some of ranks [1], none of ranks [0]" in first[1]
        assert second[0] == "NotFoundError"
        assert "bucket 512 must be in one of its parts" in second[1]


@pytest.mark.slow
def test_a_part_alone_is_refused_by_one_process(two: Path, tmp_path: Path) -> None:
    shutil.copytree(two / "begun" / "model" / "index-0001", tmp_path / "model" / "index-0000")
    with pytest.raises(NotFoundError, match=r"bucket 0 must be in one of its parts"):
        restored(Thirteen, tmp_path)


@pytest.mark.slow
def test_three_ranks_resume_from_the_directories_of_two(two: Path, three: Path) -> None:
    assert results_of(two, "counted") == [[2, 2]] * 2
    folder = three / "to_the_end" / "each"
    last = results_of(three, "to_the_end", 3)[0]["each"]
    assert steps_of(folder / "model") == [[2, last], [2, last], [last]]
    require_each_once(folder)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["one", "served", "merged"])
def test_ranks_servers_one_process_and_more_ranks_resume_from_each_other(three: Path, name: str) -> None:
    folder = three / "to_the_end" / name
    *before, last = saved_steps(folder / "model")
    assert last == results_of(three, "to_the_end", 3)[0][name]
    assert len(before) >= {"one": 3, "served": 1, "merged": 1}[name], "each of them has saved"
    require_each_once(folder)


def require_each_once(folder: Path) -> None:
    task = Counted()
    state = TrainState(model=task.make_model())
    with Saver(folder / "model") as saver:
        assert saver.restore(state) is not None
    assert task.emb.lookup("id", torch.arange(NUM_FILES * LINES)).flatten().tolist() == [1.0] * (NUM_FILES * LINES)


@pytest.mark.slow
def test_rank_0_shows_what_the_exchanges_carry(two: Path) -> None:
    (lines, _, refused), (nothing, *_) = results_of(two, "metrics")
    assert nothing == []
    assert [line.partition(":")[0] for line in lines] == ["step 2", "step 4"]
    assert "Alltoall_id_max_size" in lines[0]
    assert "2-adagrad_size 8" in lines[0]
    assert "must name a table of the model" in refused
    tags = {value.tag: value for event in events_of(two / "metrics" / "model") for value in event.summary.value}
    assert tags["2-adagrad_size"].simple_value == 8
    assert tags["shard_sizes"].histo.num == 2
    assert tags["shard_sizes"].histo.sum == tags["Alltoall_id_sizes"].simple_value


@pytest.mark.slow
def test_each_rank_logs_the_sizes_of_its_part_of_the_tables(two: Path) -> None:
    (first,), (other,) = (lines for _, lines, _ in results_of(two, "metrics"))
    sizes = [re.fullmatch(r"tables at step 1: (\d+) rows in .* MiB: .*", line) for line in (first, other)]
    assert all(size is not None and int(size[1]) > 0 for size in sizes)
    assert first != other, "they share them"


def events_of(folder: Path) -> list[Any]:
    files = sorted(folder.glob("events.out.tfevents.*"))
    return [Event.FromString(record) for path in files for record in RawEventFileLoader(str(path)).Load()]


@pytest.mark.slow
def test_an_accelerator_means_ranks_wherever_a_task_is_trained(two: Path) -> None:
    assert results_of(two, "accelerator") == [[2, 4, 6, 0, 2], [2, 4, 6, 1, 2]]


@pytest.mark.slow
def test_rank_0_alone_prints_what_came_of_a_command(two: Path) -> None:
    (status, out, err), other = results_of(two, "command")
    assert other == [0, "", ""]
    assert status == 0
    assert json.loads(out.partition("\n")[0])["global_step"] == 3
    assert "global_step: 3" in out
    assert f"is saved in {two}/command/model" in err


@pytest.mark.slow
def test_what_one_rank_cannot_read_is_named_on_all(two: Path) -> None:
    first, other = results_of(two, "unreadable")
    assert first == other
    assert first[0] == "DataLossError"
    assert first[1].startswith("rank 1: file '")
    assert first[1].endswith("model.ckpt-2.safetensors': torn")
    assert first[2] == "FailedPreconditionError"
    assert first[3].startswith("rank 0: restore: the model is not the one that was saved: 'more.bias' is new")
    assert first[4] == 3


@pytest.mark.slow
def test_ranks_that_wait_for_one_that_hangs_end_within_the_limit(two: Path) -> None:
    waiting, _ = results_of(two, "hangs")
    assert waiting[0] == "DeadlineExceededError"
    assert waiting[1].startswith("collective: ")
    assert "rank 0 of 2 could not exchange it with the others; one of them has ended or hangs" in waiting[1]
    assert "5000ms" in waiting[1]


@pytest.mark.slow
def test_a_rank_killed_while_it_commits_leaves_one_that_all_have(killed: tuple[Path, Killed], two: Path) -> None:
    _, before = killed
    assert before.codes == [1, -9]
    assert "UnavailableError" in before.said
    assert before.steps == [[2, 4], [2]], "rank 0 had committed"
    assert results_of(two, "killed") == [7, 7]
    assert steps_of(two / "killed" / "model") == [[7], [7]]
    assert digest_of(restored(Thirteen, two / "killed")) == digest_of(accumulated(Thirteen, 2))
