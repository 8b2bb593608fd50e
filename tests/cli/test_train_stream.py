"""``monolith train --stream``: each example is trained once, whatever ends the command, and its rows go to a log."""

from __future__ import annotations

import json
import os
import re
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from monolith.cli import main
from monolith.deltalog import DeltaLog, GapError, rows_part
from monolith.errors import NotFoundError
from online.streams import TASK, TASK_OF_FILES, append, counted, now_ms, numbered


def command(folder: Path, *more: str) -> list[str]:
    return [
        *("train", TASK, "--model_dir", str(folder / "model"), "--stream", str(folder / "examples-{partition}")),
        *("--stream_partitions", "2", *more),
    ]


def published_to(log: Path) -> tuple[str, ...]:
    return "--enable_realtime_training", "--delta_log", str(log), "--delta_log_interval_secs", "0.1"


def write(folder: Path, numbers: range) -> None:
    append(folder / "examples-00000", numbered(numbers))
    append(folder / "examples-00001", numbered(numbers, first_event=1000))


def ends_with(folder: Path, last: int) -> bool:
    """Whether every event of both partitions up to this number was trained once."""
    events = [*range(1, last + 1), *range(1001, 1001 + last)]
    return counted(folder / "model", events) == [1.0] * len(events)


def test_the_same_command_resumes_after_the_last_example(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for last in (40, 60):
        write(tmp_path, range(1 if last == 40 else 41, last + 1))
        log = (*published_to(tmp_path / "log"), "--delta_log_dense_interval_secs", "5")
        assert main(command(tmp_path, "--stream_stop_at_end", "--json", *log)) == 0
        found = json.loads(capsys.readouterr().out)
        assert found["stream"]["examples"] == (80 if last == 40 else 40)
        assert ends_with(tmp_path, last)
    increments = list(DeltaLog(str(tmp_path / "log")).behind(rows_part("emb"), -1))
    assert sum(each.examples for each in increments) == 120
    assert all(now_ms() - 600_000 < each.oldest_event_ms for each in increments if each.examples)


def test_a_model_of_files_continues_with_a_stream(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path, range(1, 41))
    model, stream = str(tmp_path / "model"), command(tmp_path, "--stream_stop_at_end")
    assert main(["train", TASK_OF_FILES, "--model_dir", model]) == 0
    assert main(stream) == 1
    assert "begin a new model_dir with --restore_dir OLD --restart_input" in capsys.readouterr().err
    started = [*stream, "--model_dir", str(tmp_path / "live"), "--restore_dir", model, "--restart_input"]
    for last in (40, 60):
        write(tmp_path, range(41, last + 1))
        assert main(started) == 0
        events = [*range(1, last + 1), *range(1001, 1001 + last)]
        assert counted(tmp_path / "live", events) == [2.0] * 20 + [1.0] * (len(events) - 20)


def _published(folder: Path) -> int:
    """Examples whose rows are in the log."""
    try:
        return sum(each.examples for each in DeltaLog(str(folder / "log")).behind(rows_part("emb"), -1))
    except (NotFoundError, GapError):  # there is no increment yet
        return 0


def _when_published(folder: Path, examples: int, then: Callable[[], None]) -> threading.Thread:
    """Calls a function when so many examples are in the log."""

    def wait() -> None:
        deadline = time.monotonic() + 60
        while _published(folder) < examples and time.monotonic() < deadline:
            time.sleep(0.02)
        then()

    thread = threading.Thread(target=wait)
    thread.start()
    return thread


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_a_silent_stream_with_a_checkpoint_and_its_rows_are_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], number: signal.Signals
) -> None:
    write(tmp_path, range(1, 11))
    log = (*published_to(tmp_path / "log"), "--enable_embedding_postpush")
    thread = _when_published(tmp_path, 20, lambda: os.kill(os.getpid(), number))
    assert main(command(tmp_path, *log)) == 130
    thread.join()
    told = capsys.readouterr().err
    assert f"{number.name}: stopping after this step" in told
    assert "resume with: monolith train" in told
    assert re.search(r"lag 0\.0 s \(0 bytes\)", told)
    assert ends_with(tmp_path, 10)
    write(tmp_path, range(11, 13))
    assert main(command(tmp_path, *log, "--stream_stop_at_end")) == 0
    assert ends_with(tmp_path, 12)


def test_skipped_examples_are_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    append(tmp_path / "examples-00000", numbered([1, 2, 2, 5], known_ms=now_ms() - 1000))
    append(tmp_path / "examples-00001", numbered([1], first_event=1000, known_ms=now_ms() - 3_600_000))
    assert main(command(tmp_path, "--stream_stop_at_end")) == 1
    assert "example 5 follows 2, 2 are missing" in capsys.readouterr().err
    more = ("--stream_missing", "count", "--stream_max_lag", "60", "--stream_stop_at_end")
    assert main([*command(tmp_path, *more), "--model_dir", str(tmp_path / "other")]) == 0
    told = capsys.readouterr().err
    for text in ("repeated 1", "missing 2", "too old 1"):
        assert text in told
    assert counted(tmp_path / "other", [1, 2, 5, 1001]) == [1.0, 1.0, 1.0, 0.0]


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--stream_partitions", "2"], "--stream_partitions: is of --stream PLACE"),
        (["--stream_stop_at_end"], "--stream_stop_at_end: is of --stream PLACE"),
        (["--stream", "x", "--deterministic"], "--deterministic: batches of a stream"),
        (["--stream", "x", "--num_workers", "2"], "--stream: one process trains on a stream"),
        (["--stream", "x", "--enable_sync_training"], "--stream: one process"),
        (["--stream", "x", "--mode", "eval"], "--stream: is of --mode train, got --mode eval"),
        (["--stream", "x-{partition}"], "partitions must be given"),
        (["--stream", "x", "--stream_kafka", "nothing"], "--stream_kafka takes KEY=VALUE"),
        (["--stream", "x", "--stream_kafka", "a=b"], "is no topic"),
        (["--stream", "x", *published_to(Path("x")), "--delta_log_interval_secs", "0.01"], "must be at least 0.1"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], more: list[str], message: str
) -> None:
    assert main(["train", TASK, "--model_dir", str(tmp_path / "m"), *more]) != 0
    assert message in capsys.readouterr().err
    assert not (tmp_path / "m").exists()


def test_a_task_of_files_reports_that_it_ignores_the_stream(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = str(tmp_path / "examples")
    given = ["train", "monolith.testing:ExampleTask", "--model_dir", str(tmp_path / "m"), "--stream", place]
    assert main(given) == 1
    assert "input_fn did not read it" in capsys.readouterr().err
    assert main(["train", TASK, "--model_dir", str(tmp_path / "m")]) == 1
    assert "run it with `monolith train TASK --stream PLACE`" in capsys.readouterr().err
