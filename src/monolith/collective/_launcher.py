"""Rank and size of a run, from the environment of the launcher: torchrun's variables, else Open MPI's."""

from __future__ import annotations

from dataclasses import dataclass

from monolith import environment


@dataclass(frozen=True, slots=True)
class Launch:
    """This process in a run of several."""

    rank: int
    size: int
    master: str
    """Address and port where the ranks meet."""


def read_launch() -> Launch | None:
    """Reads the launcher's variables; None without a launcher, or where it started one process without a meeting point.

    Raises:
        ValueError: A variable is missing or is not a number.
    """
    rank = environment.first_of("RANK", "OMPI_COMM_WORLD_RANK")
    size = environment.first_of("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE")
    address, port = environment.first_of("MASTER_ADDR"), environment.first_of("MASTER_PORT")
    if size is None and rank is None:
        return None
    if size == "1" and not (address and port):
        return None
    values = {"RANK": rank, "WORLD_SIZE": size, "MASTER_ADDR": address, "MASTER_PORT": port}
    missing = [name for name, value in values.items() if value is None]
    if missing:
        raise ValueError(
            f"collective: a launcher started this process, but {', '.join(missing)} {_are(missing)} not set; start it "
            "with torchrun, or set them"
        )
    launch = Launch(_number("RANK", rank), _number("WORLD_SIZE", size), f"{address}:{port}")
    if not 0 <= launch.rank < launch.size:
        raise ValueError(f"collective: RANK must be in [0, {launch.size}) of WORLD_SIZE, got {launch.rank}")
    return launch


def _number(name: str, text: str | None) -> int:
    try:
        return int(text or "")
    except ValueError as error:
        raise ValueError(f"collective: {name} must be an integer, got {text!r}") from error


def _are(names: list[str]) -> str:
    return "is" if len(names) == 1 else "are"
