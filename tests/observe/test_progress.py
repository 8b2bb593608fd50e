from __future__ import annotations

import io
import os

import pytest

from monolith.observe.progress import Progress
from monolith.testing import FakeClock


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture(autouse=True)
def _wide_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.get_terminal_size", lambda *_, **__: os.terminal_size((100, 24)))


def drawings(file: io.StringIO) -> list[str]:
    return file.getvalue().removesuffix("\n").split("\r\x1b[2K")[1:]


def test_a_terminal_is_drawn_at_most_ten_times_a_second(clock: FakeClock) -> None:
    file = Terminal()
    with Progress(total=1000, file=file, clock=clock) as bar:
        for _ in range(1000):
            clock.advance(0.001)
            bar.update()
    drawn = drawings(file)
    assert 9 <= len(drawn) <= 12
    assert drawn[-1] == "[####################] 1,000/1,000 steps (100 %)"
    assert file.getvalue().endswith("\n")


def test_elsewhere_a_plain_line_is_written_every_ten_seconds(clock: FakeClock) -> None:
    file = io.StringIO()
    with Progress(unit="batches", file=file, clock=clock) as bar:
        for _ in range(25):
            clock.advance(1.0)
            bar.update(2)
    assert file.getvalue().splitlines() == ["20 batches", "40 batches", "50 batches"]


def test_the_last_state_is_not_written_twice(clock: FakeClock) -> None:
    file = io.StringIO()
    with Progress(file=file, clock=clock) as bar:
        clock.advance(10.0)
        bar.update()
    bar.close()
    assert file.getvalue() == "1 steps\n"


def test_nothing_done_writes_nothing(clock: FakeClock) -> None:
    file = io.StringIO()
    with Progress(file=file, clock=clock):
        pass
    assert file.getvalue() == ""


def test_functions_are_called_only_for_what_is_shown(clock: FakeClock) -> None:
    asked: list[int] = []

    def loss() -> float:
        asked.append(1)
        return 0.123456

    file = io.StringIO()
    with Progress(file=file, clock=clock) as bar:
        for _ in range(100):
            bar.update(loss=loss)
    assert len(asked) == 1
    assert file.getvalue() == "100 steps, loss 0.1235\n"


def test_fields_keep_place_and_value_and_numbers_are_readable(clock: FakeClock) -> None:
    file = io.StringIO()
    with Progress(file=file, clock=clock) as bar:
        bar.update(1, examples_per_second=1234567.8, rows=12345, auc=float("nan"), phase="warm")
        bar.update(1, rows=12346)
    assert file.getvalue() == "2 steps, examples per second 1,234,568, rows 12,346, auc nan, phase warm\n"


def test_a_line_in_between_is_not_mixed_with_the_bar(clock: FakeClock) -> None:
    file = Terminal()
    with Progress(file=file, clock=clock) as bar:
        bar.update()
        bar.write("saved model.ckpt-1")
    assert drawings(file) == ["1 steps", "saved model.ckpt-1\n", "1 steps"]


def test_a_narrow_terminal_cuts_the_line(clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.get_terminal_size", lambda *_, **__: os.terminal_size((12, 24)))
    file = Terminal()
    with Progress(total=10, file=file, clock=clock) as bar:
        bar.update(5, rows=1)
    assert drawings(file) == ["[##########"]


def test_the_bar_is_closed_when_the_command_fails(clock: FakeClock) -> None:
    file = Terminal()
    bar = Progress(file=file, clock=clock)
    bar.update()
    with pytest.raises(ValueError, match="broken"), bar:
        raise ValueError("broken")
    assert file.getvalue().endswith("1 steps\n")


@pytest.mark.parametrize(
    ("total", "done", "shown"), [(0, 0, "100 %"), (3, 1, "33 %"), (3, 5, "100 %"), (1000, 999, "99 %")]
)
def test_the_share_is_never_rounded_up(clock: FakeClock, total: int, done: int, shown: str) -> None:
    file = io.StringIO()
    with Progress(total=total, file=file, clock=clock) as bar:
        bar.update(done, phase="x")
    assert shown in file.getvalue()


def test_a_negative_total_is_refused() -> None:
    with pytest.raises(ValueError, match=r"total must be >= 0 or None, got -1"):
        Progress(total=-1)


def test_a_notebook_covers_what_it_drew_before(
    clock: FakeClock, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("monolith.observe.progress._is_notebook", lambda: True)
    with Progress(clock=clock) as bar:
        for text in ("a long text", "b"):
            bar.update(note=text)
            clock.advance(0.4)
        bar.write("a line of its own")
    first, second = "1 steps, note a long text", "2 steps, note b"
    assert capsys.readouterr().err == (f"\r\r{first}\r{' ' * len(first)}\ra line of its own\n\r\r{second}\n")
