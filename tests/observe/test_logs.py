from __future__ import annotations

import io
import json
import logging
import re
import sys
import threading
from collections.abc import Iterator
from datetime import datetime
from typing import Any

import pytest
import torch

from monolith.observe import configure_logging
from monolith.observe.logs import LoggingSetup

LOGGER = logging.getLogger("monolith.test")
NO_ROWS: dict[str, int] = {}


@pytest.fixture(autouse=True)
def root_logger_of_before() -> Iterator[None]:
    root = logging.getLogger()
    before = (root.level, list(root.handlers))
    yield
    assert (root.level, list(root.handlers)) == before


def readable(**options: Any) -> tuple[LoggingSetup, io.StringIO]:
    lines = io.StringIO()
    return configure_logging(stream=lines, **options), lines


def one_json_line(lines: io.StringIO) -> dict[str, Any]:
    def no_constant(name: str) -> None:
        raise AssertionError(f"{name} is not JSON")

    (line,) = lines.getvalue().splitlines()
    made: dict[str, Any] = json.loads(line, parse_constant=no_constant)
    return made


def test_a_readable_line_shows_time_level_rank_and_logger() -> None:
    setup, lines = readable(role="ps", rank=3)
    with setup:
        LOGGER.warning("%d rows lost", 7)
    pattern = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z WARNING ps/3 monolith\.test: 7 rows lost\n"
    assert re.fullmatch(pattern, lines.getvalue())


def test_every_line_of_a_message_and_its_traceback_names_the_rank() -> None:
    setup, lines = readable(role="worker", rank=12)
    with setup:
        try:
            NO_ROWS["user"]
        except KeyError:
            LOGGER.exception("two\nlines", stack_info=True)
        LOGGER.info("")
    written = lines.getvalue().splitlines()
    assert len(written) > 8
    assert all(" worker/12 monolith.test: " in line for line in written)
    assert any(line.endswith("KeyError: 'user'") for line in written)
    assert any("Stack (most recent call last)" in line for line in written)


def test_a_json_line_is_one_object_in_fixed_order() -> None:
    setup, lines = readable(style="json", role="chief", rank=0)
    with setup:
        LOGGER.error('a "quoted"\nline', extra={"step": 5, "table": "user"})
    line = one_json_line(lines)
    assert list(line) == ["time", "level", "role", "rank", "logger", "message", "step", "table"]
    moment = datetime.fromisoformat(line.pop("time"))
    assert moment.utcoffset() is not None
    assert line == {
        "level": "ERROR",
        "role": "chief",
        "rank": 0,
        "logger": "monolith.test",
        "message": 'a "quoted"\nline',
        "step": 5,
        "table": "user",
    }


def test_a_json_line_carries_exception_and_stack() -> None:
    setup, lines = readable(style="json")
    with setup:
        try:
            NO_ROWS["user"]
        except KeyError:
            LOGGER.exception("failed", stack_info=True)
    line = one_json_line(lines)
    assert line["exception"].endswith("KeyError: 'user'")
    assert "test_a_json_line_carries_exception_and_stack" in line["stack"]


def test_what_json_does_not_have_becomes_text_and_heads_cannot_be_forged() -> None:
    setup, lines = readable(style="json", rank=1)
    extra = {"loss": float("nan"), "tensor": torch.ones(1), "none": None, "bad": {1}, "ratio": 0.5, "rank": 99}
    with setup:
        LOGGER.info("x", extra=extra)
    line = one_json_line(lines)
    assert line["loss"] == "nan"
    assert line["tensor"] == "tensor([1.])"
    assert line["none"] is None
    assert line["bad"] == "{1}"
    assert line["ratio"] == 0.5
    assert line["rank"] == 1


@pytest.mark.parametrize("level", ["warning", "WARNING", logging.WARNING])
def test_what_is_below_the_level_is_not_written(level: int | str) -> None:
    setup, lines = readable(level=level)
    with setup:
        LOGGER.info("quiet")
        LOGGER.warning("loud")
    assert "quiet" not in lines.getvalue()
    assert lines.getvalue().endswith("loud\n")


def test_a_second_call_takes_the_place_of_the_first() -> None:
    first, first_lines = readable()
    second, second_lines = readable(level="ERROR")
    first.close()  # no longer its business
    LOGGER.error("once")
    second.close()
    second.close()
    assert first_lines.getvalue() == ""
    assert second_lines.getvalue().count("once") == 1


def test_handlers_of_others_stay() -> None:
    theirs = io.StringIO()
    handler = logging.StreamHandler(theirs)
    logging.getLogger().addHandler(handler)
    try:
        setup, lines = readable()
        with setup:
            LOGGER.info("both")
    finally:
        logging.getLogger().removeHandler(handler)
    assert theirs.getvalue() == "both\n"
    assert "both" in lines.getvalue()


def test_the_default_is_the_current_standard_error(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with configure_logging():
        LOGGER.info("first")
        replaced = io.StringIO()
        monkeypatch.setattr(sys, "stderr", replaced)
        LOGGER.info("second")
        monkeypatch.undo()
    assert capsys.readouterr().err.endswith("INFO worker/0 monolith.test: first\n")
    assert replaced.getvalue().endswith("second\n")


def test_a_wrong_style_or_level_is_refused_and_changes_nothing() -> None:
    setup, lines = readable()
    with setup:
        with pytest.raises(ValueError, match=r"style must be 'readable' or 'json', got 'xml'"):
            readable(style="xml")
        for level in ("LOUD", None, True):
            with pytest.raises(ValueError, match=r"level must be a number or one of .*DEBUG, INFO"):
                readable(level=level)
        LOGGER.info("still here")
    assert "still here" in lines.getvalue()


def test_an_exception_that_ends_a_thread_is_logged(monkeypatch: pytest.MonkeyPatch) -> None:
    printed: list[BaseException | None] = []
    monkeypatch.setattr(threading, "excepthook", lambda ended: printed.append(ended.exc_value))
    before = threading.excepthook
    setup, lines = readable(role="ps", rank=3)
    with setup:
        thread = threading.Thread(target=NO_ROWS.__getitem__, args=("user",), name="reader")
        thread.start()
        thread.join()
    assert "CRITICAL ps/3 monolith.observe.logs: thread reader was ended by KeyError('user')" in lines.getvalue()
    assert [type(error) for error in printed] == [KeyError]
    assert threading.excepthook is before
