"""Paths and copies, on this machine and on every file system that fsspec supports.

Imports nothing above `monolith.errors`. Read `paths` first.
"""

from __future__ import annotations

from monolith.files.copying import CopyFile, CopyRecursively
from monolith.files.local_files import named_errors, open_if_there, read_regular_file
from monolith.files.paths import (
    basename,
    dirname,
    exists,
    find_main,
    get_libops_path,
    is_name,
    isabs,
    join,
    local_path,
    refuse_special_file,
    remove_folder,
)
from monolith.files.replacement import replaced_file

__all__ = [
    "CopyFile",
    "CopyRecursively",
    "basename",
    "dirname",
    "exists",
    "find_main",
    "get_libops_path",
    "is_name",
    "isabs",
    "join",
    "local_path",
    "named_errors",
    "open_if_there",
    "read_regular_file",
    "refuse_special_file",
    "remove_folder",
    "replaced_file",
]
