"""Hostile command lines and files: every command of ``monolith`` ends with a status and a line, not a traceback."""

from __future__ import annotations

import contextlib
import io
import itertools
import os
import random
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

from monolith.cli import main
from monolith.train import Trainer, TrainerConfig
from system.attack.attempt import Attempt
from system.attack.mutations import MUTATIONS
from system.crash.tasks import CountingTask

_STATUSES = frozenset({0, 1, 2})
_LONGEST_SECONDS = 30
_WORDS = (
    *("", " ", "-", "--", "-1", "0", "1", "1.5", "1e309", "nan", "9" * 300, "0x10", "true", "None", "{}", "[1", "%s%n"),
    *(".", "*", "[", "memory://", "nosuch://x", "http:", ":", "a:b:c", "--help-me", "--json", "os:system", "$(true)"),
    *("\u202e", "\udcff", "é", "a\nb", "A" * 4000, "monolith:nothing"),
)
"""None of them names a path outside the folder: some are used as output paths, and the tester may be root."""
_SAMPLE_FILES = ("a.tfrecord", "b.tfrecord.gz", "c.tfrecord.snappy", "d.tfrecord.zst", "e.parquet", "f.tfrecord.zlib")


def attempts(seed: int, folder: Path) -> Iterator[Attempt]:
    """Yields wrong words in command lines, and damaged files in correct ones."""
    draw = random.Random(f"{seed} inputs")  # noqa: S311 - to repeat, not secrets
    os.chdir(folder)
    files = _make_files(folder)
    for number in itertools.count():
        if number % 3 == 0:
            yield _attempt(_spoilt(draw.choice(_LINES), draw))
            continue
        path, (name, spoil) = draw.choice(files), draw.choice(list(MUTATIONS.items()))
        whole = path.read_bytes()
        path.write_bytes(spoil(bytearray(whole), draw))
        try:
            yield _attempt(_line_for(path, draw, number), f"{name} in {path.relative_to(folder)}: ")
        finally:
            path.write_bytes(whole)


def _attempt(line: list[str], about: str = "") -> Attempt:
    what = f"{about}monolith {' '.join(ascii(each)[:60] for each in line)}"
    out, err = io.StringIO(), io.StringIO()
    signal.signal(signal.SIGALRM, _too_long)
    signal.alarm(_LONGEST_SECONDS)
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            status: Any = main(line)
    except SystemExit as ended:  # from the argument parser
        status = ended.code
    except Exception as error:  # noqa: BLE001 - whatever it is, a user would see a traceback
        return Attempt(what, "failed", f"{type(error).__name__}: {error}")
    finally:
        signal.alarm(0)
    if status not in _STATUSES:
        return Attempt(what, "failed", f"status {status!r}, expected 0, 1 or 2")
    lines = err.getvalue().splitlines()
    if status and ("Traceback" in err.getvalue() or not lines):
        return Attempt(what, "failed", f"status {status} with the words {err.getvalue()!r}")
    return Attempt(what, f"{line[0] if line and line[0] in _COMMANDS else 'a word'}: status {status}")


def _too_long(*_: object) -> NoReturn:
    raise TimeoutError(f"did not end within {_LONGEST_SECONDS} s")


def _make_files(folder: Path) -> list[Path]:
    """Creates sample files, and a checkpoint."""
    for name in _SAMPLE_FILES:
        with contextlib.redirect_stderr(io.StringIO()):
            main(["data", "generate", "--examples", "40", "--out", name])
    params = CountingTask.params()
    params.set(num_steps=2, batch_size=16)
    Trainer(CountingTask(params), TrainerConfig(model_dir=str(folder / "model"))).train()
    return sorted(path for path in folder.rglob("*") if path.is_file())


def _spoilt(line: list[str], draw: random.Random) -> list[str]:
    """Returns a line with one to three words replaced, removed or added; rarely the command itself."""
    words = list(line)
    for _ in range(draw.choice([1, 1, 2, 3])):
        at = draw.randrange(0 if draw.random() < 0.1 else 2, max(3, len(words)))
        words[at : at + draw.choice([0, 1, 1, 1])] = [draw.choice(_WORDS)] if draw.random() < 0.9 else []
    return words


def _line_for(path: Path, draw: random.Random, number: int) -> list[str]:
    """Returns a correct command for a damaged file."""
    target = f"out-{number}"
    if "model" not in path.parts:
        line = draw.choice(
            [["peek", path.name], ["stats", "--json", path.name], ["convert", path.name, "--out", f"{target}.tfrecord"]]
        )
        return ["data", *line, *draw.choice([[], ["--max-bad", "5"], ["--framing", "none"], ["--sample", "instance"]])]
    action = draw.choice(["list", "show", "verify", "export", "reshard", "diff"])
    other = {"export": [target], "reshard": [target, "--files", "2"], "diff": ["model"]}.get(action, [])
    return ["checkpoint", action, "model", *other]


_LINES = (
    ["data", "peek", "a.tfrecord", "-n", "3", "--framing", "tfrecord", "--sample", "example"],
    ["data", "peek", "b.tfrecord.gz", "--compression", "gzip", "--max-bad", "1", "--ids", "a,b"],
    ["data", "stats", "a.tfrecord", "--dim", "8", "--optimizer", "adagrad", "--exact-limit", "100"],
    ["data", "convert", "a.tfrecord", "--out", "g.parquet", "--to", "example", "--batch-size", "4", "--force"],
    ["data", "convert", "a.tfrecord", "--out", "h", "--out-framing", "tfrecord", "--look-ahead", "10", "--force"],
    ["data", "generate", "--out", "i.tfrecord", "--examples", "5", "--users", "10", "--items", "10", "--force"],
    ["checkpoint", "list", "model", "--json"],
    ["checkpoint", "show", "model/model.ckpt-2"],
    ["checkpoint", "verify", "model"],
    ["checkpoint", "diff", "model", "model"],
    ["checkpoint", "export", "model", "exported"],
    ["checkpoint", "reshard", "model", "resharded", "--files", "3"],
    ["control", "status", "--model_dir", "model"],
    ["train", "monolith.testing:ExampleTask", "--print-config", "--config_file", "model/checkpoint"],
    ["train", "monolith.testing:ExampleTask", "--dry-run", "--steps", "2", "--num_ps", "2"],
    ["doctor", "--json"],
)
_COMMANDS = frozenset(line[0] for line in _LINES)
