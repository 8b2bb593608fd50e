"""Compares outcomes on one HTML page: plots over time, and tables of their values. The page loads no resources."""

from __future__ import annotations

import math
from html import escape
from typing import TYPE_CHECKING

from monolith.files import replaced_file
from monolith.observe import STYLE, Axes, Series, line_chart

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Mapping

    from monolith.validation.outcome import CopyOutcome, Window

_DAY = 86_400
_LIGHT = ("#1f5fd6", "#b45309", "#c2255c", "#0f766e", "#6d28d9", "#4d7c0f", "#6b7280", "#9a3412")
_DARK = ("#7cb0ff", "#f5b04a", "#ff7fae", "#5eead4", "#c4b5fd", "#bef264", "#a8b0bd", "#fdba74")
_PAGE_STYLE = """
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--text); font: 16px/1.5 system-ui, sans-serif; }
main { max-width: 860px; margin: 0 auto; padding: 24px 16px 48px; }
section { background: var(--card); border: 1px solid var(--grid); border-radius: 10px; padding: 18px; margin: 16px 0; }
h1 { font-size: 1.6rem; } h2 { font-size: 1.1rem; margin: 0 0 .5rem; }
svg { display: block; width: 100%; height: auto; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: .92rem; font-variant-numeric: tabular-nums; }
th, td { text-align: right; padding: 4px 10px 4px 0; border-bottom: 1px solid var(--grid); white-space: nowrap; }
th:first-child { text-align: left; }
"""


def write_page(path: str | os.PathLike[str], outcomes: Mapping[str, CopyOutcome], *, title: str) -> None:
    """Writes a page that compares outcomes of one or several runs. The file is replaced atomically.

    Args:
        path: A local file.
        outcomes: Name -> outcome; an `Outcome` is such a mapping.
        title: Title of the page.

    Raises:
        OpError: the file cannot be written.
    """
    with replaced_file(path) as temporary:
        temporary.write_text(page_of(outcomes, title=title), encoding="utf-8")


def page_of(outcomes: Mapping[str, CopyOutcome], *, title: str) -> str:
    """Returns the page as text."""
    colours = "".join(f"--series-{number}: {colour}; " for number, colour in enumerate(_LIGHT))
    dark = "".join(f"--series-{number}: {colour}; " for number, colour in enumerate(_DARK))
    light_page = "--page: #fbfbfa; --card: #fff; --text: #1d2430; --faint: #5d6675; --grid: #e6e8ec;"
    dark_page = "--page: #12151b; --card: #1a1f28; --text: #e7eaf0; --faint: #9aa4b5; --grid: #2c3340;"
    style = (
        f":root {{ {light_page} {colours}}}\n"
        f"@media (prefers-color-scheme: dark) {{ :root {{ {dark_page} {dark}}} }}\n{_PAGE_STYLE}{STYLE}"
    )
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<meta name="color-scheme" content="light dark">\n<title>{escape(title)}</title>\n'
        f"<style>{style}</style>\n</head>\n<body>\n<main>\n<h1>{escape(title)}</h1>\n"
        f"<section>{_total_table(outcomes)}</section>\n{_sections(outcomes)}"
        f"<section><h2>Windows</h2>{_window_table(outcomes)}</section>\n</main>\n</body>\n</html>\n"
    )


def _sections(outcomes: Mapping[str, CopyOutcome]) -> str:
    plots: list[tuple[str, Callable[[Window], float], Callable[[CopyOutcome], float]]] = [
        ("AUC", lambda window: window.auc, lambda outcome: outcome.mean_auc),
        ("log loss", lambda window: window.log_loss, lambda outcome: outcome.total.log_loss),
        ("calibration", lambda window: window.calibration, lambda outcome: outcome.total.calibration),
    ]
    first = min((window.begin for outcome in outcomes.values() for window in outcome.windows), default=0)
    sections = []
    for name, figure_of, told_of in plots:
        series = [
            Series(
                str(number % len(_LIGHT)),
                label,
                [((window.end - first) / _DAY, figure_of(window)) for window in outcome.windows],
                is_dashed=number >= len(_LIGHT),
                told=told_of(outcome),
            )
            for number, (label, outcome) in enumerate(outcomes.items())
        ]
        axes = Axes(
            title=f"{name} over time",
            x_label="days of event time since measuring began",
            y_label=name,
            y_text=lambda value: f"{value:.4f}",
        )
        sections.append(f"<section><h2>{escape(axes.title)}</h2>{line_chart(series, axes)}</section>\n")
    return "".join(sections)


def _total_table(outcomes: Mapping[str, CopyOutcome]) -> str:
    columns = ("", "mean AUC", "total AUC", "log loss", "calibration", "examples", "take-overs", "MB loaded")
    rows = [
        f"<tr><th>{escape(name)}</th><td>{_text(outcome.mean_auc)}</td><td>{_text(outcome.total.auc)}</td>"
        f"<td>{_text(outcome.total.log_loss)}</td><td>{_text(outcome.total.calibration)}</td><td>{outcome.total.examples:,}</td>"
        f"<td>{outcome.num_takes:,}</td><td>{outcome.bytes_taken / 1e6:,.1f}</td></tr>"
        for name, outcome in outcomes.items()
    ]
    return _table(columns, rows)


def _window_table(outcomes: Mapping[str, CopyOutcome]) -> str:
    columns = ("", "begin", "examples", "AUC", "log loss", "calibration")
    rows = [
        f"<tr><th>{escape(name)}</th><td>{window.begin}</td><td>{window.examples:,}</td><td>{_text(window.auc)}</td>"
        f"<td>{_text(window.log_loss)}</td><td>{_text(window.calibration)}</td></tr>"
        for name, outcome in outcomes.items()
        for window in outcome.windows
    ]
    return _table(columns, rows)


def _table(columns: tuple[str, ...], rows: list[str]) -> str:
    head = "".join(f"<th>{escape(column)}</th>" for column in columns)
    return f'<div class="scroll"><table><tr>{head}</tr>{"".join(rows)}</table></div>'


def _text(value: float) -> str:
    return f"{value:.4f}" if math.isfinite(value) else "-"
