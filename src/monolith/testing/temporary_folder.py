"""Where tests put what they write."""

from __future__ import annotations

from monolith import environment

__all__ = ["get_test_tmp_dir"]


def get_test_tmp_dir() -> str:
    """The folder for temporary files of tests: ``TEST_TMPDIR``, or ``/tmp``."""
    return environment.get("TEST_TMPDIR") or "/tmp"  # noqa: S108 - the original's default
