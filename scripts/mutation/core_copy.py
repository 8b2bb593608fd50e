"""A working copy that builds the C++ core, its tests and the extension."""

from __future__ import annotations

import re
import shutil
from typing import TYPE_CHECKING

from mutation.working_copy import WorkingCopy

if TYPE_CHECKING:
    import threading
    from pathlib import Path

    from mutation.areas import Config

_BUILD_SECONDS = 3600.0
_TESTS = "monolith_core_test"
_STRESS = "*Stress*"
"""Stress tests: they take seconds to check what other tests check in milliseconds."""


class CoreCopy(WorkingCopy):
    """A working copy whose extension is built from its own sources."""

    def __init__(self, config: Config, root: Path, folder: Path, *, stop: threading.Event, threads: int) -> None:
        super().__init__(config, root, folder, stop=stop, threads=threads)
        self._extension = config.extension or "_core"
        self._build = self.folder / "build"
        self.has_cpp_tests = True
        self._configure()
        for target in [*([_TESTS] if self.has_cpp_tests else []), "_core"]:
            is_built, output = self.build(target)
            if not is_built:
                raise SystemExit(f"the core does not build without a mutant:\n{output[-2000:]}")
        if reason := self.failing_cpp_test():
            raise SystemExit(f"a C++ test fails without a mutant: {reason}")

    def _configure(self) -> None:
        options = {
            "CMAKE_BUILD_TYPE": "Release",
            "CMAKE_CXX_FLAGS_RELEASE": "-O1 -DNDEBUG",  # compiles in half the time, with the same rounding
            "MONOLITH_WERROR": "OFF",  # a mutant without a call may leave a variable unused
            "MONOLITH_BUILD_EXTENSION": "ON",
            "MONOLITH_BUILD_TESTS": "ON",
            "Python_EXECUTABLE": self.python,
        }
        if shutil.which("ccache"):
            options["CMAKE_CXX_COMPILER_LAUNCHER"] = f"env;CCACHE_BASEDIR={self.tree};CCACHE_NOHASHDIR=1;ccache"
        generator = ["-G", "Ninja"] if shutil.which("ninja") else []
        command = ["cmake", "-S", str(self.tree), "-B", str(self._build), *generator]
        ended = self.run([*command, *(f"-D{name}={value}" for name, value in options.items())], seconds=300)
        if ended.code != 0 and "GTest" in ended.output:
            self.has_cpp_tests = False
            options["MONOLITH_BUILD_TESTS"] = "OFF"
            ended = self.run([*command, *(f"-D{name}={value}" for name, value in options.items())], seconds=300)
        if ended.code != 0:
            raise SystemExit(f"the core cannot be configured:\n{ended.output[-2000:]}")

    def build(self, target: str) -> tuple[bool, str]:
        """Build a target; returns whether that succeeded, and the output of the compiler."""
        command = ["cmake", "--build", str(self._build), "--target", target, "--parallel", str(self.threads)]
        ended = self.run(command, seconds=_BUILD_SECONDS)
        if ended.code == 0 and target == "_core":
            self.install_extension(self._extension, next(self._build.glob("_core.*so")))
        return ended.code == 0, ended.output

    def build_tests(self) -> tuple[bool, str]:
        """Build the target of the first check: the C++ tests, or the extension if GoogleTest is missing."""
        return self.build(_TESTS if self.has_cpp_tests else "_core")

    def failing_cpp_test(self) -> str:
        """Run the C++ tests; returns the first that fails, or an empty string."""
        if not self.has_cpp_tests:
            return ""
        command = [str(self._build / _TESTS), "--gtest_fail_fast", "--gtest_brief=1", f"--gtest_filter=-{_STRESS}"]
        ended = self.run(command, seconds=300)
        if ended.code == 0:
            return ""
        failed = re.search(r"\[  FAILED  \] (\S+)", ended.output)
        return ended.limit or (failed[1] if failed else f"the C++ tests ended with {ended.code}")
