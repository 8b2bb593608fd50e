"""Files of days: those below a folder whose first part is a date of a range."""

from __future__ import annotations

import fsspec

from monolith.errors import InvalidArgumentError, NotFoundError
from monolith.files import join

__all__ = ["files_of_dates"]


def files_of_dates(folder: str, name_format: str, *, start_date: str | None, end_date: str) -> list[str]:
    """Returns the files of a folder from one date to another, both included, sorted.

    Args:
        folder: Folder with a subfolder for each date, on any file system of fsspec.
        name_format: A glob of date, further folders and file names, such as ``*/*/part*``.
        start_date: First date, as the folders are named, such as ``20201201``; None: from the first one.
        end_date: Last date.

    Raises:
        InvalidArgumentError: the range has no date.
        NotFoundError: it has no file.
    """
    if start_date is not None and start_date > end_date:
        raise InvalidArgumentError(f"dates: start_date must not be after end_date, got {start_date} and {end_date}")
    files, root = fsspec.core.url_to_fs(folder)
    found = []
    for path in sorted(files.glob(f"{root.rstrip('/')}/{name_format}")):
        date = str(path).removeprefix(root.rstrip("/")).lstrip("/").partition("/")[0]
        if (start_date is None or start_date <= date) and date <= end_date:
            found.append(str(files.unstrip_protocol(path)).removeprefix("file://"))
    if not found:
        raise NotFoundError(
            f"no file matches '{join(folder, name_format)}' from {start_date or 'the first day'} to {end_date}"
        )
    return found
