"""A private copy of the tree with a Python environment of its own, in which mutants are put and tests are run."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import sys
import sysconfig
import time
import venv
from pathlib import Path
from typing import TYPE_CHECKING

from mutation.process import Ended, run_process

if TYPE_CHECKING:
    import threading
    from collections.abc import Sequence

    from mutation.mutant import Mutant
    from mutation.rooms import Rooms

_NOT_COPIED = shutil.ignore_patterns(
    ".git", ".venv*", ".*_cache", ".hypothesis", ".cache", "build", "dist", "__pycache__", "*.egg-info", "*.so"
)
_SCRIPTS = Path(__file__).resolve().parent.parent
_MEGABYTES = 6_000.0
_NO_TEST_RAN = 5
"""How pytest ends when it was given tests and found none."""


class Workplace:
    """One copy; not to be used by two threads at once."""

    def __init__(self, rooms: Rooms, root: Path, folder: Path, *, stop: threading.Event, threads: int) -> None:
        self.root = root
        self.threads = threads
        self.folder = folder
        self.tree = folder / "tree"
        self.source = self.tree / rooms.source
        self._stop = stop
        # A compiled module is taken for that of a source of the same size and second: no two writes may share a time.
        self._last_write = 0
        copy_tree(root, self.tree)
        self._make_environment()
        if rooms.extension is not None:
            self.take_extension(rooms.extension, _installed_extension(rooms.extension))

    @property
    def python(self) -> str:
        """The interpreter that imports the package from this copy."""
        return str(self.folder / "venv" / "bin" / "python")

    def _make_environment(self) -> None:
        """An environment with everything that this interpreter has, the project itself from the copy.

        Path files in a folder that a path file names are not read: an editable install of the project has no effect.
        """
        place = self.folder / "venv"
        venv.EnvBuilder(symlinks=True).create(place)
        standard = {sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib"), str(_SCRIPTS)}
        packages = [
            entry
            for entry in sys.path
            if Path(entry).is_dir() and entry not in standard and not entry.endswith("lib-dynload")
        ]
        (library,) = (place / "lib").glob("python*/site-packages")
        (library / "copy.pth").write_text(
            "\n".join([str(self.source), *packages, str(_SCRIPTS)]) + "\n", encoding="utf-8"
        )

    def take_extension(self, name: str, library: Path) -> None:
        """Use this file as the compiled module of that name from now on."""
        package = self.source.joinpath(*name.split(".")[:-1])
        for old in package.glob(name.rpartition(".")[2] + ".*so"):
            old.unlink()
        shutil.copy2(library, package / library.name)

    def put(self, mutant: Mutant) -> None:
        """Put a mutant in its place."""
        self._write(mutant.path, mutant.edit.apply((self.root / mutant.path).read_text(encoding="utf-8")))

    def take_back(self, mutant: Mutant) -> None:
        """Put what was there before in its place."""
        self._write(mutant.path, (self.root / mutant.path).read_text(encoding="utf-8"))

    def _write(self, name: str, text: str) -> None:
        path = self.tree / name
        path.write_text(text, encoding="utf-8")
        self._last_write = max(self._last_write + 1, int(time.time()))
        os.utime(path, (self._last_write, self._last_write))

    def run(self, command: Sequence[str], *, seconds: float) -> Ended:
        """Run a command in the copy, without the paths that this process was given for Python."""
        bare = ["env", "-u", "PYTHONPATH", "-u", "PYTHONHOME", *command]
        return run_process(bare, folder=self.tree, seconds=seconds, megabytes=_MEGABYTES, stop=self._stop)

    def run_tests(self, files: Sequence[str], tests: Sequence[str], *, seconds: float) -> Ended:
        """Run tests up to the first that fails."""
        listed = self.folder / "tests.json"
        listed.write_text(json.dumps(list(tests)), encoding="utf-8")
        command = [*self._pytest(seconds), "-x", *files]
        ended = self.run([*command, f"--only-tests={listed}"], seconds=seconds)
        if ended.code == _NO_TEST_RAN:  # the mutant has changed the parameters of all of them
            ended = self.run(command, seconds=seconds)
        return ended

    def note_calls(self, file: str, *, seconds: float) -> tuple[Ended, Path]:
        """Run a test file and note which functions its tests call."""
        target = self.folder / "calls.json"
        target.unlink(missing_ok=True)
        options = [f"--calls-to={target}", f"--calls-below={self.tree}"]
        return self.run([*self._pytest(seconds), *options, file], seconds=seconds), target

    def _pytest(self, seconds: float) -> list[str]:
        plugins = ["-p", "mutation.calls_plugin", "-p", "no:cacheprovider", "-p", "no:xdist"]
        folders = [f"--rootdir={self.tree}", f"--basetemp={self.folder / 'temporary'}"]
        # A busy machine must not fail a test: the limit of a single one is the limit of the whole.
        limit = [f"--timeout={seconds:.0f}"] if importlib.util.find_spec("pytest_timeout") else []
        return [self.python, "-m", "pytest", "-q", "--tb=line", *plugins, *folders, *limit]


def copy_tree(root: Path, target: Path) -> None:
    """Copy a project without what is built, in the place of an earlier copy."""
    if target.parent.exists():
        shutil.rmtree(target.parent)
    shutil.copytree(root, target, ignore=_NOT_COPIED, symlinks=True)


def _installed_extension(name: str) -> Path:
    spec = importlib.util.find_spec(name)
    if spec is None or spec.origin is None:
        raise SystemExit(f"{name} is not installed for {sys.executable}: install the project first")
    return Path(spec.origin)
