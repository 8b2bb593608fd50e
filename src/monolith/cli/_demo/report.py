"""A race as one HTML page: the results, the plots, how the models were made, and the data of the plots."""

from __future__ import annotations

import dataclasses
import math
import os
import platform
import tempfile
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from monolith._version import __version__
from monolith.cli._demo.contestants import ITEM_DAYS, USER_DAYS, bars_of
from monolith.cli._demo.contestants import STYLE as STAGE_STYLE
from monolith.cli._demo.race import BATCH_SIZE, MEMORY_BYTES, MODELS, WORLD
from monolith.cli._demo.view import names_of
from monolith.observe import Axes, Series, charts, line_chart

if TYPE_CHECKING:
    from monolith.cli._demo.race import RaceProgress

_MEANS = "The numbers, here and above, are means of the shaded last\nquarter of the run: one day alone means little."
_PAGE = Path(__file__).with_name("page.html")


def summary_of(progress: RaceProgress) -> dict[str, Any]:
    """Returns the race as plain values; None for missing measurements, and for the result of an aborted race."""
    windows = progress.windows
    return {
        "version": __version__,
        "seed": progress.seed,
        "examples": progress.examples,
        "seconds": round(progress.seconds, 3),
        "examples_per_second": round(progress.examples_per_second, 1),
        "online_seconds": round(progress.online_seconds, 3),
        "stages": {stage: round(seconds, 3) for stage, seconds in progress.stages.items()},
        "frozen_day": progress.frozen_day,
        "complete": progress.is_complete,
        "auc": {name: _number(value) if progress.is_complete else None for name, value in progress.final_auc().items()},
        "rows": windows[-1].rows if windows else 0,
        "memory_bytes": {"online": max((window.memory_bytes for window in windows), default=0), "hashed": MEMORY_BYTES},
        "hashed_rows": progress.hashed_rows,
        "expired": sum(window.expired for window in windows),
        "kept_out": progress.kept_out,
        "windows": [
            {
                **dataclasses.asdict(window),
                "seconds": round(window.seconds, 3),
                "auc": {name: _number(value) for name, value in window.auc.items()},
            }
            for window in windows
        ],
    }


def conclusion_of(progress: RaceProgress) -> str:
    """Returns the result in one or two sentences."""
    auc = progress.final_auc()
    if not progress.is_complete:
        return (
            f"The run was stopped after {progress.examples:,} of {progress.limits.examples:,} examples: the models are"
            " not compared."
        )
    if not math.isfinite(auc["online"]):
        return "The run was too short to compare the models."
    against = [f"{_gap(auc['online'] - auc['hashed'])} the same model with hashed ids in as much memory"]
    if progress.frozen_day is not None:
        against.append(
            f"{_gap(auc['online'] - auc['frozen'])} a copy that stopped learning on day {progress.frozen_day:g}"
        )
    span = "At the end (mean of the last quarter of the run)"
    return f"{span} the online model reaches an AUC of {auc['online']:.3f}: {', and '.join(against)}."


def html_of(progress: RaceProgress, *, docs: str | None = None) -> str:
    """Returns the complete page; `docs` is the relative path to the folder of documents, if known."""
    summary = summary_of(progress)
    fields = {
        "chart_style": charts.STYLE + STAGE_STYLE,
        "conclusion": escape(conclusion_of(progress)),
        "ended": "" if progress.is_complete else '<p class="note">This is what was seen until then.</p>',
        "means": _MEANS if progress.is_complete else "The run was stopped early, so there is no result.",
        "tiles": _tiles(progress),
        "auc_chart": _auc_chart(progress),
        "rows_chart": _rows_chart(progress),
        "flow_chart": _flow_chart(progress),
        "stages": bars_of(progress.stages, progress.examples),
        "next": _next(docs),
        "settings": _settings(progress),
        "table": _table(progress),
        "memory": _memory_note(summary["memory_bytes"]["online"]),
        "hashed_rows": f"{progress.hashed_rows:,}",
        "budget": f"{MEMORY_BYTES / 1e6:.1f}",
        "user_days": str(USER_DAYS),
        "item_days": str(ITEM_DAYS),
        "expiry": "That is why the table stops growing while the traffic continues."
        if summary["expired"]
        else "The run was too short for that to happen.",
        "frozen": "It had not happened yet when the run ended."
        if progress.frozen_day is None
        else f"Here that was after {progress.frozen_day:g} days.",
    }
    page = _PAGE.read_text(encoding="utf-8")
    for name, value in fields.items():
        page = page.replace(f"{{{{{name}}}}}", value)
    return page


def write_report(path: Path, progress: RaceProgress) -> None:
    """Writes the page atomically."""
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(html_of(progress, docs=_way_to_docs(path.resolve().parent)))
        Path(name).chmod(0o644)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


_TO_READ = {
    "tutorial.md": "from a task of your own to a run that is stopped and resumed",
    "how-to/embeddings.md": "what a slot can do: combiners, admission, expiry, shared rows",
    "how-to/train.md": "tasks, trainers and hooks, or the same parts in your own loop",
    "README.md": "all pages",
}
"""Pages below the folder of documents, and what they show."""


def _way_to_docs(folder: Path) -> str | None:
    """Returns the way from a folder to the project's documents, where it lies in a clone; else None."""
    for number, parent in enumerate([folder, *folder.parents][:4]):
        if all((parent / "docs" / page).is_file() for page in _TO_READ):
            return "../" * number + "docs"
    return None


def _next(docs: str | None) -> str:
    """Returns what to read now: links where the pages are at hand, else where they are in the project."""
    items = []
    for page, text in _TO_READ.items():
        name = f"<code>docs/{page}</code>"
        link = name if docs is None else f'<a href="{docs}/{page}">{name}</a>'
        items.append(f"<li>{link}: {text}</li>")
    return "".join(items)


def _number(value: float) -> float | None:
    return round(value, 6) if math.isfinite(value) else None


def _gap(difference: float) -> str:
    return f"{abs(difference):.3f} {'above' if difference >= 0 else 'below'}"


def _tiles(progress: RaceProgress) -> str:
    auc, names = progress.final_auc(), names_of(progress)
    expired = sum(window.expired for window in progress.windows)
    rows = progress.windows[-1].rows if progress.windows else 0
    measured = MODELS if progress.is_complete else ()
    tiles = [(f"AUC of the last quarter, {names[name]}", f"{auc[name]:.3f}", name) for name in measured]
    tiles += [
        ("examples", f"{progress.examples:,}", ""),
        ("examples/s, all models", f"{progress.examples_per_second:,.0f}", ""),
        ("rows at the end", f"{rows:,}", ""),
        ("rows expired", f"{expired:,}", ""),
    ]
    colours = {key: f' style="color:var(--series-{key})"' if key else "" for _, _, key in tiles}
    return "".join(
        f'<div class="tile"><div class="value"{colours[key]}>{value.replace("nan", "-")}</div>'
        f'<div class="name">{escape(name)}</div></div>'
        for name, value, key in tiles
    )


def _auc_chart(progress: RaceProgress) -> str:
    labels = {"online": "online", "hashed": "hashed ids", "frozen": "frozen", "best": "best possible"}
    final = progress.final_auc()
    series = [
        Series(
            name,
            labels[name],
            [(window.day, window.auc[name]) for window in progress.windows],
            is_dashed=name == "best",
            told=final[name] if progress.is_complete else None,
        )
        for name in MODELS
    ]
    frozen = None if progress.frozen_day is None else (progress.frozen_day, "frozen here")
    axes = Axes(
        title="AUC by day of traffic",
        x_label="day of traffic",
        y_label="AUC of each day",
        y_text=lambda value: f"{value:.3f}",
        mark=frozen,
        span_from=_first_of_last_quarter(progress) if progress.is_complete else None,
    )
    return line_chart(series, axes)


def _first_of_last_quarter(progress: RaceProgress) -> float | None:
    """Returns the day on which the windows begin that the result is the mean of."""
    before = len(progress.windows) - len(progress.last_quarter)
    return progress.windows[before - 1].day if before else 0.0


def _rows_chart(progress: RaceProgress) -> str:
    rows = [(0.0, 0.0), *((window.day, float(window.rows)) for window in progress.windows)]
    met = [(0.0, 0.0)]
    for window in progress.windows:
        met.append((window.day, met[-1][1] + window.inserted))
    series = [
        Series("online", "rows held", rows if progress.windows else []),
        Series("best", "rows ever made", met if progress.windows else [], is_dashed=True),
    ]
    axes = Axes(
        title="Rows of the online model", x_label="day of traffic", y_label="rows", y_text=_whole, from_zero=True
    )
    return line_chart(series, axes)


def _flow_chart(progress: RaceProgress) -> str:
    windows = progress.windows
    days = [window.day - (windows[number - 1].day if number else 0.0) for number, window in enumerate(windows)]
    new = [(window.day, window.inserted / day) for window, day in zip(windows, days, strict=True)]
    old = [(window.day, window.expired / day) for window, day in zip(windows, days, strict=True)]
    series = [Series("online", "new", new), Series("gone", "expired", old)]
    axes = Axes(
        title="Rows that came and went", x_label="day of traffic", y_label="rows per day", y_text=_whole, from_zero=True
    )
    return line_chart(series, axes)


def _whole(value: float) -> str:
    return f"{value:,.0f}"


def _memory_note(most: int) -> str:
    used = f"its rows, keys, index and admission filter took {most / 1e6:.1f} MB at most"
    if most > MEMORY_BYTES:
        return f"{used}, which is more than the hashed model was given"
    return used


def _settings(progress: RaceProgress) -> str:
    online = progress.online_seconds
    rows = {
        "command": _command(progress),
        "traffic": f"{WORLD.num_users:,} users and {WORLD.num_items:,} items at any one time, "
        f"{WORLD.visitors:.0%} of impressions to one-time visitors, {WORLD.examples_per_day:,} examples a day",
        "lifetimes": f"a user leaves after {WORLD.user_life_days:g} days, an item after {WORLD.item_life_days:g};"
        f" tastes come round in {WORLD.drift_days:g} days",
        "batches": f"{BATCH_SIZE:,} examples, in time order, each seen once",
        "time": f"{progress.seconds:.1f} s in all, {online:.1f} s of them in the online model"
        + (f" ({progress.examples / online:,.0f} examples/s alone)" if online else ""),
        "machine": f"{os.cpu_count()} CPUs, {platform.machine()}, {platform.system()}; torch {torch.__version__} with"
        f" {torch.get_num_threads()} threads; monolith {__version__}",
    }
    return "".join(f"<tr><th>{escape(name)}</th><td>{escape(text)}</td></tr>" for name, text in rows.items())


def _command(progress: RaceProgress) -> str:
    limits = progress.limits
    values = {"examples": limits.examples, "seconds": limits.seconds, "seed": progress.seed}
    flags = [f"--{name} {value}" for name, value in values.items() if value is not None]
    return " ".join(["monolith demo", *flags])


def _table(progress: RaceProgress) -> str:
    rows = []
    for window in progress.windows:
        auc = "".join(f"<td>{window.auc[name]:.4f}</td>" for name in MODELS)
        rows.append(
            f"<tr><td>{window.day:g}</td><td>{window.examples:,}</td>{auc}<td>{window.rows:,}</td>"
            f"<td>{window.memory_bytes / 1e6:.2f}</td><td>{window.inserted:,}</td><td>{window.expired:,}</td></tr>"
        )
    return "".join(rows)
