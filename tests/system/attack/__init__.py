"""Attacks on a complete training: `scripts/attack`, and a shorter version in `tests/system/`.

Read `attempt.py` first: an attack makes attempts, one after another, and reports the outcome of each. Every attack runs
in a process of its own and has a file of its own; `ATTACKS` lists them. `system.crash` is the attack by
SIGKILL, which came first and whose processes and tasks these use.
"""

from __future__ import annotations

from system.attack import (
    damage,
    failures,
    file_operations,
    inputs,
    lines,
    manifests,
    requests,
    signals,
    steps,
    texts,
    threads,
    traffic,
)
from system.attack.attempt import Attack, Attempt, Report, run_attack

__all__ = ["ATTACKS", "Attack", "Attempt", "Report", "run_attack"]

ATTACKS = (
    Attack(
        name="signals",
        does="SIGTERM and Ctrl-C at random times, most inside a save",
        must="every example counted once",
        attempts=signals.attempts,
        count=14,
    ),
    Attack(
        name="lines",
        does="Ctrl-C before every line of `monolith.train` that a step runs",
        must="every example counted once",
        attempts=lines.attempts,
        count=60,
    ),
    Attack(
        name="failures",
        does="exceptions from task, hooks and input",
        must="every example counted once",
        attempts=failures.attempts,
        count=18,
    ),
    Attack(
        name="file-operations",
        does="a kill before each operation on files that a save or a compaction makes",
        must="every example counted once, every row of the log as published",
        attempts=file_operations.attempts,
        count=10,
    ),
    Attack(
        name="damage",
        does="flipped bits, missing ends and foreign bytes in files of a checkpoint",
        must="refused with the model unchanged, or restored bit for bit",
        attempts=damage.attempts,
        count=150,
    ),
    Attack(
        name="inputs",
        does="hostile command lines, and damaged files after valid ones",
        must="a status and a line, no traceback",
        attempts=inputs.attempts,
        count=150,
    ),
    Attack(
        name="texts",
        does="spoilt texts for the parsers of manifests, verdicts on exports, discovery and options",
        must="taken, or refused by an expected error",
        attempts=texts.attempts,
        count=3000,
    ),
    Attack(
        name="manifests",
        does="changed manifests and graphs of exports, checkpoints and snapshots, with right checksums",
        must="refused by an error of ours, or read; no other files, no more memory",
        attempts=manifests.attempts,
        count=200,
    ),
    Attack(
        name="requests",
        does="spoilt requests over HTTP and gRPC, for a server of models",
        must="a status and a sentence, and right answers to right requests",
        attempts=requests.attempts,
        count=300,
    ),
    Attack(
        name="traffic",
        does=f"valid requests for a server of models, checked every {traffic.REQUESTS_PER_ATTEMPT}",
        must="right answers, and no more memory, objects, threads or descriptors",
        attempts=traffic.attempts,
        count=3,
    ),
    Attack(
        name="threads",
        does=f"right and wrong calls on a table from {threads.NUM_THREADS} threads",
        must="rows consistent, sums exact",
        attempts=threads.attempts,
        count=20,
    ),
    Attack(
        name="steps",
        does=f"one training run, checked every {steps.STEPS_PER_ATTEMPT} steps",
        must="no more memory, objects, threads or descriptors",
        attempts=steps.attempts,
        count=6,
    ),
)
