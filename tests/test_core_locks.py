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
class Counter {{
 public:
  void Add() {{ {body} }}
 private:
  monolith::Mutex mutex_;
  monolith::CondVar changed_;
  int count_ GUARDED_BY(mutex_) = 0;
}};
"""


def sources(project_root: Path) -> list[Path]:
    """The core without its tests."""
    files = [*(project_root / "core").rglob("*.h"), *(project_root / "core").rglob("*.cc")]
    return [path for path in files if not re.search(r"_test\.cc$|_for_test\.h$", path.name)]


def test_every_mutex_of_the_core_is_one_that_clang_checks(project_root: Path) -> None:
    unchecked = [
        str(path.relative_to(project_root))
        for path in sources(project_root)
        if path.name != "mutex.h"
        and re.search(r"std::(shared_|recursive_|timed_)*(mutex|condition_variable)", path.read_text(encoding="utf-8"))
    ]
    assert unchecked == []


def test_every_guarded_member_names_its_mutex_in_a_declaration(project_root: Path) -> None:
    said = [path.name for path in sources(project_root) if "guards the members below" in path.read_text("utf-8")]
    assert said == []


def test_clang_builds_have_the_check_as_an_error(project_root: Path) -> None:
    assert "$<$<CXX_COMPILER_ID:Clang>:-Wthread-safety>" in (project_root / "CMakeLists.txt").read_text("utf-8")


@pytest.mark.skipif(CLANG is None, reason="needs clang; on Debian: apt-get install clang-14")
@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("monolith::MutexLock lock(mutex_); ++count_;", None),
        ("monolith::MutexLock lock(mutex_); while (count_ == 0) changed_.Wait(mutex_);", None),
        ("++count_;", "requires holding mutex 'mutex_'"),
        ("monolith::MutexLock lock(mutex_); lock.Unlock(); ++count_;", "requires holding mutex 'mutex_'"),
        ("changed_.Wait(mutex_);", "requires holding mutex 'mutex_'"),
        ("mutex_.Lock();", "is still held at the end of function"),
        ("monolith::MutexLock lock(mutex_); monolith::MutexLock again(mutex_);", "already held"),
    ],
)
def test_a_member_without_its_mutex_does_not_compile(
    project_root: Path, tmp_path: Path, body: str, message: str | None
) -> None:
    program = tmp_path / "counter.cc"
    program.write_text(PROGRAM.format(body=body), encoding="utf-8")
    command = [str(CLANG), "-std=c++20", "-fsyntax-only", "-Wthread-safety", "-Werror", f"-I{project_root / 'core'}"]
    result = subprocess.run([*command, str(program)], capture_output=True, text=True, check=False)
    if message is None:
        assert result.returncode == 0, result.stderr
    else:
        assert result.returncode != 0
        assert message in result.stderr
