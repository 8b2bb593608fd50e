"""What is judged of the answers of servers: every breach of a promise shows, and what keeps them does not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from system.crash.online_answers import (
    AskedCounts,
    BaseNumbers,
    DenseWeight,
    LifeOfAnswers,
    LogHistory,
    answers_by_life,
    dense_ahead_in_log,
    differing_rows,
    failures,
    read_asked,
    rows_too_old,
    torn_rows,
    versions_going_back,
    weights_ahead,
)
from system.crash.online_servers import Asked, Rows
from system.crash.processes import Life

PART = "emb.0000-1024"


def history() -> LogHistory:
    """Two items and two events: of increment 3 the run had gone back to a checkpoint."""
    items = [[0, 0], [0, 0], [2, 1], [5, 2], [2, 1], [4, 3]]
    events = [[0, 0], [0, 0], [1, 0], [1, 1], [1, 0], [1, 1]]
    return LogHistory(
        PART,
        [np.array(each, np.float32) for each in items],
        [np.array(each, np.float32) for each in events],
        dense={0: DenseWeight(3.0, needs=1), 2: DenseWeight(7.0, needs=4)},
        bases=[BaseNumbers(dense=1, rows=3), BaseNumbers(dense=1, rows=4)],
    )


def asked(sent: float = 1.0, came: float | None = None, **fields: Any) -> Asked:
    known: dict[str, Any] = {"request": 0, "server": "server-0", "over": "rest", "sparse": {}, "rows": Rows()}
    return Asked(sent=sent, came=sent + 0.5 if came is None else came, **{**known, **fields})


def shown(number: int, counts: tuple[float, float], events: tuple[float, float] = (1, 1), **fields: Any) -> Asked:
    """An answer that names a number of rows and has some."""
    whole = {item: [count] * 3 for item, count in enumerate(counts)}
    rows = Rows(whole=whole, event=dict(enumerate(events)), total=fields.pop("total", 0.0))
    return asked(sparse={PART: number}, rows=rows, **fields)


def life(*answers: Asked) -> LifeOfAnswers:
    return LifeOfAnswers("server-0, incarnation 1", list(answers))


# Clients


def test_an_unanswered_request_is_reported_and_one_retry_is_enough() -> None:
    away: Any = {"error": "refused"}
    attempts = [asked(request=0), asked(request=1, **away), asked(request=1, server="server-1")]
    attempts += [asked(request=None, **away)]  # a look at one server
    assert list(failures(attempts)) == []
    attempts += [asked(request=2, **away), asked(request=2, server="server-1", over="grpc", **away)]
    assert list(failures(attempts)) == [
        "request 2 was not answered: server-0 over rest: refused; server-1 over grpc: refused"
    ]
    assert AskedCounts.of(attempts) == AskedCounts(requests=3, retries=2, answers=2)


def test_what_is_written_down_is_read_again(tmp_path: Path) -> None:
    answer = shown(4, (2.0, 3.0), total=5.0, dense=2, export=7)
    path = tmp_path / "clients.asked"
    path.write_bytes(answer.to_line() + asked(error="no").to_line())
    assert read_asked(path) == [answer, asked(error="no")]


# Lives


def test_answers_belong_to_the_incarnation_that_they_lie_in() -> None:
    lives = {"server-0": [Life(0.0, 10.0), Life(12.0)], "server-1": [Life(0.0)]}
    answers = [asked(1.0), asked(9.8), asked(13.0), asked(2.0, server="server-1"), asked(11.0, error="refused")]
    found = {each.name: len(each.answers) for each in answers_by_life(answers, lives)}
    assert found == {
        "server-0, incarnation 1": 1,
        "server-0, incarnation 2": 1,
        "server-1, incarnation 1": 1,
        "server-0 at 9.8": 1,
    }


@pytest.mark.parametrize("field", ["sparse", "dense", "export"])
def test_a_version_that_goes_back_within_an_incarnation_is_reported(field: str) -> None:
    def at(number: int) -> dict[str, Any]:
        return {field: {PART: number} if field == "sparse" else number}

    assert list(versions_going_back(life(asked(1.0, **at(4)), asked(2.0, **at(4)), asked(3.0, **at(5))))) == []
    name = PART if field == "sparse" else field
    back = life(asked(1.0, **at(4)), asked(2.0, **at(3)))
    assert list(versions_going_back(back)) == [f"server-0, incarnation 1: {name} went back from 4 to 3"]
    overlapping = life(asked(1.0, 5.0, **at(4)), asked(2.0, **at(3)))  # it was sent before the other came
    assert list(versions_going_back(overlapping)) == []
    late = life(asked(1.0, 5.0, **at(4)), asked(2.0, **at(3)), asked(6.0, **at(3)))
    assert len(list(versions_going_back(late))) == 1


# Rows


def test_a_torn_row_shows() -> None:
    whole = life(asked(rows=Rows(whole={0: [3.0] * 16, 1: [0.0] * 16})))
    assert list(torn_rows(whole)) == []
    torn = life(asked(rows=Rows(whole={0: [3.0] * 16, 1: [4.0] * 15 + [5.0]})))
    assert "the row of item 1 is torn" in "".join(torn_rows(torn))


def test_rows_older_than_the_version_of_their_answer_are_reported() -> None:
    good = life(shown(2, (5, 2)), shown(4, (4, 3), sent=2.0))
    assert list(rows_too_old(good, history())) == []
    assert list(rows_too_old(life(shown(4, (3, 3))), history())) == [
        "server-0, incarnation 1: version 4: item 0 counts 3, it must be 4 at least"
    ]
    assert list(rows_too_old(life(shown(4, (4, 3), events=(1, 0))), history())) == [
        "server-0, incarnation 1: version 4: event 1 is missing"
    ]


def test_newer_rows_are_good_and_so_are_those_of_a_run_that_went_back_if_they_can_have_come() -> None:
    assert list(rows_too_old(life(shown(1, (9, 9))), history())) == []
    went_back = shown(2, (2, 1), events=(1, 0))
    assert list(rows_too_old(life(went_back), history())) == []  # increment 3 may have been here
    still = shown(2, (5, 2), sent=2.0)
    assert list(rows_too_old(life(went_back, still), history())) == []  # it was being applied
    before = life(shown(1, (1, 1), events=(1, 0)), shown(1, (2, 1), sent=2.0))
    assert len(list(rows_too_old(before, history()))) == 1  # increment 2, which has more, was the last that could


def test_an_answer_before_the_log_existed_promises_nothing_of_rows() -> None:
    assert list(rows_too_old(life(asked(rows=shown(0, (0, 0), (0, 0)).rows)), history())) == []


# Weights


def test_weights_with_their_rows_are_good() -> None:
    own = shown(-1, (0, 0), (0, 0))  # the export's own
    of_log = shown(4, (4, 3), dense=2, total=7.0, sent=2.0)
    of_base = shown(3, (2, 1), (1, 0), dense=1, total=7.0, sent=1.5)
    assert list(weights_ahead(life(own, of_base, of_log), history())) == []


def test_weights_ahead_of_the_rows_that_they_need_show() -> None:
    named = life(shown(1, (9, 9), dense=2, total=7.0))
    assert list(weights_ahead(named, history())) == [
        "server-0, incarnation 1: dense 2 needs rows 4, and the answer names 1",
    ]
    inside = life(shown(4, (4, 2), dense=2, total=7.0))
    assert list(weights_ahead(inside, history())) == [
        "server-0, incarnation 1: dense 2, which needs rows 4: item 1 counts 2, it must be 3 at least"
    ]
    hidden = life(shown(1, (2, 1), dense=0, total=7.0), shown(1, (2, 1), sent=2.0, dense=0, total=3.0))
    assert len(list(weights_ahead(hidden, history()))) > 1  # weights of increment 2 under the name of the first


@pytest.mark.parametrize(("dense", "total"), [(-1, 3.0), (0, 4.0), (2, 3.0), (1, 2.0)])
def test_weights_that_are_none_of_their_version_or_older_show(dense: int, total: float) -> None:
    found = list(weights_ahead(life(shown(4, (4, 3), dense=dense, total=total)), history()))
    assert "as no increment after it has" in found[0]


def test_a_log_whose_weights_count_more_than_the_rows_that_they_need_shows() -> None:
    log = history()
    assert list(dense_ahead_in_log(log)) == []
    log.dense[3] = DenseWeight(8.0, needs=4)
    assert list(dense_ahead_in_log(log)) == ["dense 3 counts 8 examples, and rows 4, which it needs, 7"]


# The end


def test_rows_that_differ_from_the_trainer_in_the_end_show() -> None:
    trained = {"event": {0: 1.0, 1: 1.0}, "passing": {0: 0.0, 1: 1.0}}
    served = {"event": {"0": 1.0, "1": 1.0}, "passing": {"0": 0.0, "1": 1.0}, "whole": {}}
    assert list(differing_rows(served, trained)) == []
    served["passing"] = {"0": 1.0}
    assert list(differing_rows(served, trained)) == ["passing 0: 1.0 served in the end, 0.0 trained (2 are wrong)"]
