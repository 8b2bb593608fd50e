"""What another program hears of progress: not too often, and the last state always."""

from __future__ import annotations

from typing import Any

import pytest

from monolith.observe.progress import ProgressLines
from monolith.testing import FakeClock


def test_it_reports_at_most_once_a_second_and_always_the_last_state() -> None:
    heard: list[dict[str, Any]] = []
    clock = FakeClock()
    with ProgressLines(heard.append, total=30, clock=clock) as bar:
        for _ in range(25):
            bar.update(1, rate=lambda: 7.0, text="t")
            clock.advance(0.5)
    assert [each["done"] for each in heard] == [*range(1, 26, 2)]
    assert heard[-1] == {"done": 25, "total": 30, "fields": {"rate": 7.0, "text": "t"}}
    bar.update(1)
    bar.close()
    assert heard[-1]["done"] == 26


def test_lines_go_where_all_others_go(capsys: pytest.CaptureFixture[str]) -> None:
    with ProgressLines(lambda _: None) as bar:
        bar.update(1)
        bar.write("saved")
    assert capsys.readouterr().err == "saved\n"
