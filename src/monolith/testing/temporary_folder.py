"""The folder for files of tests."""

from __future__ import annotations

from monolith import environment

__all__ = ["get_test_tmp_dir"]


def get_test_tmp_dir() -> str:
    """Returns the folder for temporary files of tests: ``TEST_TMPDIR``, or ``/tmp``."""
    return environment.get("TEST_TMPDIR") or "/tmp"  # noqa: S108 - the default of ByteDance Monolith
