"""The core's mutexes are declared with what they guard, and clang refuses code that breaks a declaration."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

CLANG = next(filter(None, map(shutil.which, ("clang++-14", "clang++"))), None)

PROGRAM = """
#include "base/mutex.h"
class Counter {
 public:
  void Right() { monolith::MutexLock lock(mutex_); while (count_ == 0) changed_.Wait(mutex_); ++count_; }
  void NotLocked() { ++count_; }
  void UnlockedBefore() { monolith::MutexLock lock(mutex_); lock.Unlock(); ++count_; }
  void WaitsWithout() { changed_.Wait(mutex_); }
  void KeepsIt() { mutex_.Lock(); }
  void LocksTwice() { monolith::MutexLock lock(mutex_); monolith::MutexLock again(mutex_); }
 private:
  monolith::Mutex mutex_;
  monolith::CondVar changed_;
  int count_ GUARDED_BY(mutex_) = 0;
};
"""

WRONG = {
    "NotLocked": "requires holding mutex 'mutex_'",
    "UnlockedBefore": "requires holding mutex 'mutex_'",
    "WaitsWithout": "requires holding mutex 'mutex_'",
    "KeepsIt": "is still held at the end of function",
    "LocksTwice": "that is already held",
}


def sources(project_root: Path) -> list[Path]:
    """The core without its tests."""
    files = [*(project_root / "core").rglob("*.h"), *(project_root / "core").rglob("*.cc")]
    return [path for path in files if not re.search(r"_test\.cc$|_for_test\.h$", path.name)]


def test_every_mutex_of_the_core_is_one_that_clang_checks(project_root: Path) -> None:
    unchecked = [
        str(path.relative_to(project_root))
        for path in sources(project_root)
        if path.name != "mutex.h"
        and re.search(
            r"^[^/\n]*std::(shared_|recursive_|timed_)*(mutex|condition_variable)",
            path.read_text("utf-8"),
            re.MULTILINE,
        )
    ]
    assert unchecked == []


def test_every_guarded_member_names_its_mutex_in_a_declaration(project_root: Path) -> None:
    said = [path.name for path in sources(project_root) if "guards the members below" in path.read_text("utf-8")]
    assert said == []


def test_clang_builds_have_the_check_as_an_error(project_root: Path) -> None:
    assert "$<$<CXX_COMPILER_ID:Clang>:-Wthread-safety>" in (project_root / "CMakeLists.txt").read_text("utf-8")


@pytest.mark.skipif(CLANG is None, reason="needs clang; on Debian: apt-get install clang-14")
def test_a_member_without_its_mutex_does_not_compile(project_root: Path, tmp_path: Path) -> None:
    program = tmp_path / "counter.cc"
    program.write_text(PROGRAM, encoding="utf-8")
    command = [str(CLANG), "-std=c++20", "-fsyntax-only", "-Wthread-safety", "-Werror", f"-I{project_root / 'core'}"]
    result = subprocess.run([*command, str(program)], capture_output=True, text=True, check=False)
    lines = PROGRAM.splitlines()
    found = {}
    for number, message in re.findall(r"counter\.cc:(\d+):\d+: error: (.*)", result.stderr):
        method = re.search(r"void (\w+)\(", lines[int(number) - 1])
        assert method, result.stderr
        found[method[1]] = message
    assert found.keys() == WRONG.keys(), result.stderr
    assert all(WRONG[method] in message for method, message in found.items()), found
