"""Properties and load of the machine: memory, CPU, page cache, disk."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from monolith._version import __version__
from monolith.cli._bench.measurement import RowSkippedError
from monolith.errors import UnimplementedError
from monolith.observe import process_resources

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

CHUNK_BYTES: Final = 8 << 20
DROP_CACHES: Final = Path("/proc/sys/vm/drop_caches")


def resident_bytes() -> int:
    """Returns the resident memory of this process."""
    return _or_skip(process_resources.resident_bytes)


def peak_resident_bytes() -> int:
    """Returns the most memory that this process ever had in RAM."""
    return _or_skip(process_resources.peak_resident_bytes)


def available_bytes() -> int | None:
    """Returns the memory that can be allocated without swapping; None if the system does not report it."""
    try:
        return _kilobytes(Path("/proc/meminfo").read_text(), "MemAvailable")
    except OSError:
        return None


def busy_ratio(seconds: float = 0.5) -> float | None:
    """Returns the share of all CPU time used during the next `seconds`; None if the system does not report it."""
    try:
        before = _processor_times()
        time.sleep(seconds)
        after = _processor_times()
    except OSError:
        return None
    used, total = after[0] - before[0], after[1] - before[1]
    return used / total if total else 0.0


def forget_pages(files: list[Path]) -> None:
    """Drops the files from the page cache, so that the next read is cold; everything is written back first."""
    os.sync()
    for file in files:
        descriptor = os.open(file, os.O_RDONLY)
        try:
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)
    try:
        DROP_CACHES.write_text("3\n")
    except OSError:
        return  # not root: the advice above has to do


@contextmanager
def scratch_folder(directory: str, *, needed_bytes: int) -> Iterator[Path]:
    """Yields an empty folder on the measured disk, removed at the end."""
    free = shutil.disk_usage(directory).free
    if free < needed_bytes:
        raise RowSkippedError(
            f"needs {needed_bytes / 2**30:.1f} GiB in {directory}, {free / 2**30:.1f} GiB are free; give --directory"
        )
    with tempfile.TemporaryDirectory(prefix="monolith-bench-", dir=directory) as folder:
        yield Path(folder)


def files_under(folder: Path) -> list[Path]:
    """Returns every file below a folder, in the order of their names."""
    return sorted(path for path in folder.rglob("*") if path.is_file())


def bytes_of(files: list[Path]) -> int:
    """Returns the total size of files."""
    return sum(file.stat().st_size for file in files)


def read_plainly(files: list[Path]) -> int:
    """Reads the files one after the other and returns how many bytes came."""
    buffer, total = bytearray(CHUNK_BYTES), 0
    for file in files:
        with file.open("rb", buffering=0) as source:
            while got := source.readinto(buffer):
                total += got
    return total


def describe() -> dict[str, str]:
    """Returns hardware, system, versions and commit, for the head of a report."""
    return {
        "processor": f"{_processor_name()}, {os.cpu_count()} cores, {platform.machine()}",
        "memory": _total_memory(),
        "system": f"{platform.system()} {platform.release()}",
        "huge pages": _first_line("/sys/kernel/mm/transparent_hugepage/enabled"),
        "python": platform.python_version(),
        "monolith": f"{__version__} ({_commit()})",
        "time": time.strftime("%Y-%m-%d %H:%M:%S %z"),
    }


def _or_skip(measure: Callable[[], int]) -> int:
    try:
        return measure()
    except UnimplementedError as error:
        raise RowSkippedError(str(error)) from None


def _kilobytes(text: str, field: str) -> int:
    line = next(line for line in text.splitlines() if line.startswith(f"{field}:"))
    return int(line.split()[1]) * 1024


def _processor_times() -> tuple[int, int]:
    """Returns (busy, all) in ticks since boot."""
    ticks = [int(tick) for tick in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]]
    idle = ticks[3] + ticks[4]
    return sum(ticks[:8]) - idle, sum(ticks[:8])


def _processor_name() -> str:
    lscpu = shutil.which("lscpu")
    lines = _output([lscpu]).splitlines() if lscpu else []
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("Model name")), "unknown")


def _total_memory() -> str:
    try:
        return f"{_kilobytes(Path('/proc/meminfo').read_text(), 'MemTotal') / 2**30:.1f} GiB"
    except OSError:
        return "unknown"


def _first_line(path: str) -> str:
    try:
        return Path(path).read_text().split("\n", 1)[0]
    except OSError:
        return "unknown"


def _commit() -> str:
    """Returns the commit of the checkout that the package lies in, with a mark for local changes."""
    git = shutil.which("git")
    folder = str(Path(__file__).parent)
    commit = _output([git, "-C", folder, "rev-parse", "--short", "HEAD"]) if git else ""
    if not git or not commit:
        return "no commit"
    return commit + ("+changes" if _output([git, "-C", folder, "status", "--porcelain", "-uno"]) else "")


def _output(command: list[str]) -> str:
    # Fixed programs found on the path; nothing of the user is in the command.
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()  # noqa: S603
