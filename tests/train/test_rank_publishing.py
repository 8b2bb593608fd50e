"""Every rank publishes the rows that it keeps, and rank 0 the dense weights; another number of ranks goes on."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from deltalog.followed import Followed, saved_rows
from monolith.deltalog import DeltaLog
from monolith.train import Trainer, TrainerConfig
from train.rank_checkpoint_cases import DAYS, Counted
from train.sync_ranks import results_of, run_ranks

if TYPE_CHECKING:
    from pathlib import Path

    from programs import Programs


@pytest.mark.slow
def test_followers_have_the_rows_of_two_ranks_and_of_three_that_resume(
    programs: Programs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(DAYS, str(tmp_path))
    for day in range(6):
        lines = [json.dumps({"id": 100 * day + each % 40}) for each in range(10)]
        (tmp_path / f"day-{day}.jsonl").write_text("\n".join(lines) + "\n")
    log = DeltaLog(tmp_path / "model" / "delta_log")
    seen = []
    with Followed(log.place, Counted) as early:
        for size in (2, 3):
            folder = tmp_path / f"of_{size}"
            run_ranks(programs, "publishing_cases", folder, ["publish"], size=size, **{DAYS: str(tmp_path)})
            assert len(set(results_of(folder, "publish"))) == 1
            trainer = Trainer(Counted(), TrainerConfig(model_dir=str(tmp_path / "model")))
            expected = saved_rows(trainer)
            seen.append(len(expected))
            assert early.catch_up() == expected
            with Followed(log.place, Counted) as late:
                assert late.catch_up() == expected
            assert {base.kind for base in log.bases()} == {"checkpoint"}, "it says where the log was"
        assert 0 < seen[0] < seen[1] == 60
        ranges = ("0000-0512", "0512-1024", "0000-0342", "0342-0683", "0683-1024")
        assert set(log.parts()) == {"dense", *(f"{early.name}.{buckets}" for buckets in ranges)}
