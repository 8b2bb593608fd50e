"""``monolith doctor``: what runs here, and what is missing."""

from __future__ import annotations

import dataclasses
import json
import platform
import re
import sys
from importlib import metadata
from typing import TYPE_CHECKING

import numpy as np
import torch

from monolith import _core
from monolith._load_core import INSTRUCTION_SET_VARIABLE
from monolith._version import __version__

if TYPE_CHECKING:
    import argparse

DISTRIBUTION = "monolith-torch"
"""Name of the distribution; it is imported as `monolith`, which on the package index is an unrelated project."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Extra:
    """An optional part of the package, found or missing."""

    name: str
    missing: list[str]
    """Required distributions that are not installed; versions are not checked."""
    install: str
    """The command that installs it; what is installed already stays as it is."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Diagnosis:
    """What `diagnose` found; plain data, so that ``--json`` prints it as it is."""

    versions: dict[str, str]
    core_file: str
    cpu_features: list[str]
    """Instruction sets that the core uses here."""
    instruction_set: str
    """Which of its compiled forms the core runs: the fastest one, or what ``MONOLITH_CORE_ISA`` names."""
    instruction_sets: list[str]
    """All that this processor can run."""
    cpus: int
    """Processors that this process may run on."""
    threads: int
    """Threads that one call of the core uses."""
    threads_why: str
    """What their number comes from."""
    huge_pages: str
    """The kernel's mode: always, madvise, never or unknown."""
    extras: list[Extra]
    advice: list[str]


def run(args: argparse.Namespace) -> int:
    """Print the diagnosis and return 0: a missing extra is no failure."""
    diagnosis = diagnose()
    sys.stdout.write(json.dumps(dataclasses.asdict(diagnosis), indent=2) if args.json else describe(diagnosis))
    sys.stdout.write("\n")
    return 0


def diagnose() -> Diagnosis:
    """Inspects the machine; changes nothing."""
    huge_pages = _core.huge_pages()
    share = _core.cpu_share()
    threads = _core.num_threads()
    return Diagnosis(
        versions={
            "monolith": __version__,
            "core": _core.VERSION,
            "python": platform.python_version(),
            "torch": torch.__version__,
            "numpy": np.__version__,
        },
        core_file=str(_core.__file__),
        cpu_features=_core.cpu_features(),
        instruction_set=_core.instruction_set(),
        instruction_sets=_core.instruction_sets(),
        cpus=share.affinity,
        threads=threads,
        threads_why=share.why if threads == share.cpus else "the program set it",
        huge_pages=huge_pages,
        extras=[_examine_extra(name, distributions) for name, distributions in extras_of(DISTRIBUTION).items()],
        advice=_advise(huge_pages),
    )


def describe(diagnosis: Diagnosis) -> str:
    """Returns the diagnosis as lines of ``name  value``, aligned."""
    rows = list(diagnosis.versions.items())
    rows += [
        ("core file", diagnosis.core_file),
        ("cpu features", " ".join(diagnosis.cpu_features) or "none"),
        ("instruction set", _describe_instruction_set(diagnosis)),
        ("threads", f"{diagnosis.threads} of {diagnosis.cpus} cpus: {diagnosis.threads_why}"),
        ("huge pages", diagnosis.huge_pages),
    ]
    rows += [(f"extra {extra.name}", _describe_extra(extra)) for extra in diagnosis.extras]
    rows += [("advice", line) for line in diagnosis.advice]
    width = max(len(name) for name, _ in rows)
    return "\n".join(f"{name:<{width}}  {value}" for name, value in rows)


def _describe_instruction_set(diagnosis: Diagnosis) -> str:
    others = [name for name in diagnosis.instruction_sets if name != diagnosis.instruction_set]
    if not others:
        return diagnosis.instruction_set
    return f"{diagnosis.instruction_set} ({INSTRUCTION_SET_VARIABLE} can make it {' or '.join(others)})"


def _describe_extra(extra: Extra) -> str:
    return f"missing {', '.join(extra.missing)}: {extra.install}" if extra.missing else "found"


def extras_of(distribution: str) -> dict[str, list[str]]:
    """Returns the optional parts of a distribution and what each of them needs, as it was installed."""
    try:
        requirements = metadata.requires(distribution) or []
    except metadata.PackageNotFoundError:  # used from its sources, without being installed
        requirements = []
    needed: dict[str, list[str]] = {}
    for requirement in requirements:
        name = re.match(r"[\w.-]+", requirement)
        extra = re.search(r"extra\s*==\s*['\"]([\w-]+)['\"]", requirement)
        if name is not None and extra is not None and name[0] != distribution:  # "test" needs extras of our own
            needed.setdefault(extra[1], []).append(name[0])
    return needed


def _examine_extra(name: str, distributions: list[str]) -> Extra:
    missing = [distribution for distribution in distributions if not _is_installed(distribution)]
    return Extra(name=name, missing=missing, install=f"pip install '{DISTRIBUTION}[{name}]'")


def _is_installed(distribution: str) -> bool:
    try:
        metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return False
    return True


def _advise(huge_pages: str) -> list[str]:
    if huge_pages != "never":
        return []
    # Random row access is bound by address translation: small pages cost up to half of the lookups per second.
    return ["huge pages are off: echo madvise | sudo tee /sys/kernel/mm/transparent_hugepage/enabled"]
