"""A private copy of the tree with its own Python environment, to which mutants are applied and in which tests run."""

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

    from mutation.areas import Config
    from mutation.mutant import Mutant

_NOT_COPIED = shutil.ignore_patterns(
    ".git", ".venv*", ".*_cache", ".hypothesis", ".cache", "build", "dist", "__pycache__", "*.egg-info", "*.so"
)
_SCRIPTS = Path(__file__).resolve().parent.parent
_MEGABYTES = 6_000.0
_NO_TEST_RAN = 5
"""Exit status of pytest when no test is collected."""


class WorkingCopy:
    """One copy of the tree. It is not thread-safe."""

    def __init__(self, config: Config, root: Path, folder: Path, *, stop: threading.Event, threads: int) -> None:
        self.root = root
        self.threads = threads
        self.folder = folder
        self.tree = folder / "tree"
        self.source = self.tree / config.source
        self._stop = stop
        # Python takes a cached .pyc for current if size and second of its source are unchanged: every write of this
        # copy gets another second.
        self._last_write = 0
        copy_tree(root, self.tree)
        self._make_environment()
        if config.extension is not None:
            self.install_extension(config.extension, _installed_extension(config.extension))

    @property
    def python(self) -> str:
        """The interpreter that imports the package from this copy."""
        return str(self.folder / "venv" / "bin" / "python")

    def _make_environment(self) -> None:
        """Create a virtual environment with all packages of this interpreter, and with the project from this copy.

        The packages are on the path through `copy.pth`. Python reads no `.pth` files of folders that a `.pth` file
        adds, so an editable install of the project has no effect here.
        """
        folder = self.folder / "venv"
        venv.EnvBuilder(symlinks=True).create(folder)
        standard = {sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib"), str(_SCRIPTS)}
        packages = [
            entry
            for entry in sys.path
            if Path(entry).is_dir() and entry not in standard and not entry.endswith("lib-dynload")
        ]
        (library,) = (folder / "lib").glob("python*/site-packages")
        (library / "copy.pth").write_text(
            "\n".join([str(self.source), *packages, str(_SCRIPTS)]) + "\n", encoding="utf-8"
        )

    def install_extension(self, name: str, library: Path) -> None:
        """Install a file as the compiled module ``name`` of this copy."""
        package = self.source.joinpath(*name.split(".")[:-1])
        for old in package.glob(name.rpartition(".")[2] + ".*so"):
            old.unlink()
        shutil.copy2(library, package / library.name)

    def apply(self, mutant: Mutant) -> None:
        """Write the file of a mutant with the fault."""
        self._write(mutant.path, mutant.edit.apply((self.root / mutant.path).read_text(encoding="utf-8")))

    def restore(self, mutant: Mutant) -> None:
        """Write the file of a mutant without the fault."""
        self._write(mutant.path, (self.root / mutant.path).read_text(encoding="utf-8"))

    def _write(self, name: str, text: str) -> None:
        path = self.tree / name
        path.write_text(text, encoding="utf-8")
        self._last_write = max(self._last_write + 1, int(time.time()))
        os.utime(path, (self._last_write, self._last_write))

    def run(self, command: Sequence[str], *, seconds: float) -> Ended:
        """Run a command in the copy, without `PYTHONPATH` and `PYTHONHOME` of this process."""
        isolated = ["env", "-u", "PYTHONPATH", "-u", "PYTHONHOME", *command]
        return run_process(isolated, folder=self.tree, seconds=seconds, megabytes=_MEGABYTES, stop=self._stop)

    def run_tests(self, files: Sequence[str], tests: Sequence[str], *, seconds: float) -> Ended:
        """Run tests until the first failure."""
        listing = self.folder / "tests.json"
        listing.write_text(json.dumps(list(tests)), encoding="utf-8")
        command = [*self._pytest(seconds), "-x", *files]
        ended = self.run([*command, f"--only-tests={listing}"], seconds=seconds)
        if ended.code == _NO_TEST_RAN:  # the mutant has changed the ids of all tests
            ended = self.run(command, seconds=seconds)
        return ended

    def record_calls(self, file: str, *, seconds: float) -> tuple[Ended, Path]:
        """Run a test file and record which functions its tests call; returns the file with the record."""
        target = self.folder / "calls.json"
        target.unlink(missing_ok=True)
        options = [f"--calls-to={target}", f"--calls-below={self.tree}"]
        return self.run([*self._pytest(seconds), *options, file], seconds=seconds), target

    def _pytest(self, seconds: float) -> list[str]:
        plugins = ["-p", "mutation.calls_plugin", "-p", "no:cacheprovider", "-p", "no:xdist"]
        folders = [f"--rootdir={self.tree}", f"--basetemp={self.folder / 'temporary'}"]
        # A test must not fail on a busy machine: the limit of one test is the limit of the command.
        limit = [f"--timeout={seconds:.0f}"] if importlib.util.find_spec("pytest_timeout") else []
        return [self.python, "-m", "pytest", "-q", "--tb=line", *plugins, *folders, *limit]


def copy_tree(root: Path, target: Path) -> None:
    """Copy a project without build outputs; replaces an earlier copy."""
    if target.parent.exists():
        shutil.rmtree(target.parent)
    shutil.copytree(root, target, ignore=_NOT_COPIED, symlinks=True)


def _installed_extension(name: str) -> Path:
    spec = importlib.util.find_spec(name)
    if spec is None or spec.origin is None:
        raise SystemExit(f"{name} is not installed for {sys.executable}: install the project first")
    return Path(spec.origin)
