"""Checkpoints with flipped bits, missing ends, holes and foreign bytes: rejected, or restored unchanged."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import torch

from monolith.checkpoint import Saver, TrainState
from monolith.checkpoint.inspection import SavedState
from monolith.errors import OpError
from monolith.train import Trainer, TrainerConfig
from system.attack.attempt import Attempt
from system.attack.mutations import MUTATIONS
from system.crash.fingerprint import fingerprint
from system.crash.tasks import EverythingTask

_RESTORED = "restored, bit for bit"


def attempts(seed: int, folder: Path) -> Iterator[Attempt]:
    """Damages one file at a time of a checkpoint with all kinds of state, checks it, and restores the file."""
    torch.set_num_threads(1)
    draw = random.Random(f"{seed} damage")  # noqa: S311 - damage to repeat, not secrets
    saved = fingerprint(_trained(steps=4, model_dir=folder))
    other = _trained(steps=2)
    files = sorted(path for path in folder.rglob("*") if path.is_file() and "model.ckpt-" in str(path))
    for _ in itertools.count():
        path, (name, damage) = draw.choice(files), draw.choice(list(MUTATIONS.items()))
        whole = path.read_bytes()
        damaged = damage(bytearray(whole), draw)
        path.write_bytes(damaged)
        try:
            attempt = _attempt(f"{name} in {path.relative_to(folder)}", folder, saved, other)
            if attempt.problem is None:
                attempt = _verified(attempt, folder, is_whole=damaged == whole)
            yield attempt
        finally:
            path.write_bytes(whole)
        if attempt.outcome == _RESTORED:
            other = _trained(steps=2)  # so that the next restore has something to change


def _attempt(what: str, folder: Path, saved: Mapping[str, str], other: TrainState) -> Attempt:
    before = fingerprint(other)
    with Saver(folder) as saver:
        try:
            saver.restore(other, _checkpoint(folder))
        except OpError as error:
            problem = None if fingerprint(other) == before else "the model had changed already"
            return Attempt(what, f"refused: {type(error).__name__}", problem)
        except Exception as error:  # noqa: BLE001 - any other error is no proper rejection
            return Attempt(what, "failed", f"{type(error).__name__}: {error}")
    after = fingerprint(other)
    differing = [name for name, digest in saved.items() if after[name] != digest]
    return Attempt(what, _RESTORED, f"restored with other {', '.join(differing)}" if differing else None)


def _verified(attempt: Attempt, folder: Path, *, is_whole: bool) -> Attempt:
    """Checks that ``monolith checkpoint verify`` gives the same result for these files."""
    try:
        SavedState(_checkpoint(folder)).verify()
    except OpError as error:
        return replace(attempt, problem=f"verify: nothing was damaged: {error}") if is_whole else attempt
    except Exception as failure:  # noqa: BLE001 - any other error is no proper rejection
        return replace(attempt, problem=f"verify: {type(failure).__name__}: {failure}")
    return attempt if is_whole else replace(attempt, problem="verify found nothing")


def _checkpoint(folder: Path) -> str:
    return str(folder / "model.ckpt-4")


def _trained(steps: int, model_dir: Path | None = None) -> TrainState:
    params = EverythingTask.params()
    params.set(num_steps=steps, batch_size=64)
    config = TrainerConfig(model_dir=None if model_dir is None else str(model_dir))
    return Trainer(EverythingTask(params), config).train()
