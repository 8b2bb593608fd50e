"""What a race looks like: charts, lines, screens and pages, also of races that were cut short."""

from __future__ import annotations

import io
import math
import re
import shutil
import xml.etree.ElementTree as ET
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monolith.cli._demo.contestants import PREDICT, STAGES, TRAFFIC, Stopwatch, bars_of
from monolith.cli._demo.race import MODELS, RaceConfig, RaceProgress, RaceWindow
from monolith.cli._demo.report import conclusion_of, html_of, summary_of, write_report
from monolith.cli._demo.view import View, line_of, screen_of, sparkline
from monolith.observe.charts import Axes, Series, line_chart, ticks
from monolith.testing import FakeClock

AXES = Axes(title="a <b> & c", x_label="day", y_label="rows", y_text=lambda value: f"{value:.1f}", mark=(1.0, "here"))


def window(day: int, **auc: float) -> RaceWindow:
    values = {"online": 0.75, "hashed": 0.73, "frozen": 0.6, "best": 0.8} | auc
    return RaceWindow(
        day=float(day),
        examples=40_000 * day,
        seconds=float(day),
        auc=values,
        rows=1000 * day,
        memory_bytes=100_000 * day,
        inserted=1100,
        expired=100,
    )


def race(num_windows: int, **auc: float) -> RaceProgress:
    progress = RaceProgress(
        limits=RaceConfig(examples=max(1, 40_000 * num_windows)), seed=7, examples=40_000 * num_windows
    )
    progress.windows = [window(day, **auc) for day in range(1, num_windows + 1)]
    progress.seconds = float(num_windows)
    progress.frozen_day = 2.5
    return progress


def wide_and_narrow(drawing: str) -> tuple[ET.Element, ET.Element]:
    """The two drawings of a chart."""
    wide, narrow = re.findall(r"<svg.*?</svg>", drawing)
    assert f'<div class="wide">{wide}</div><div class="narrow">{narrow}</div>' in drawing
    return ET.fromstring(wide), ET.fromstring(narrow)  # noqa: S314 - ours


@given(low=st.floats(-1e6, 1e6), span=st.floats(0, 1e6), count=st.integers(2, 12))
def test_ticks_cover_the_range_evenly_and_are_few(low: float, span: float, count: int) -> None:
    marks = ticks(low, low + span, count)
    steps = [after - before for before, after in pairwise(marks)]
    assert 2 <= len(marks) <= 2 * count + 3
    assert max(steps) - min(steps) <= 1e-6 * max(steps) + 1e-9 * max(map(abs, marks))
    slack = 1e-6 * max(1.0, abs(low), span)
    assert marks[0] <= low + slack
    assert marks[-1] >= low + span - slack


@pytest.mark.parametrize(
    "points",
    [
        [],
        [(1.0, math.nan)],
        [(1.0, 5.0)],
        [(1.0, 5.0), (2.0, 5.0)],
        [(1.0, 5.0), (2.0, math.nan), (3.0, 6.0)],
        [(0.001, 0.0), (0.002, 1e-9)],
        [(1.0, 1e9), (2.0, 2e9)],
    ],
)
def test_a_chart_is_drawn_of_whatever_was_measured(points: list[tuple[float, float]]) -> None:
    drawing = line_chart([Series("online", "one <1>", points), Series("best", "two", points, is_dashed=True)], AXES)
    assert "nan" not in re.sub(r"<title>.*?</title>", "", drawing)
    for root in wide_and_narrow(drawing):
        assert root.attrib["aria-label"] == "a <b> & c"
        drawn = [each for each in root if each.tag in {"polyline", "circle"}]
        assert len(drawn) == (2 if any(math.isfinite(y) for _, y in points) else 0)
        numbers = [float(found) for each in drawn for found in re.findall(r"-?[\d.]+", each.attrib.get("points", ""))]
        assert all(0 <= number <= float(root.attrib["viewBox"].split()[2]) for number in numbers)


def test_labels_at_the_ends_of_lines_do_not_overlap() -> None:
    series = [Series("online", f"line {number}", [(0.0, 0.0), (1.0, 1.0 + number / 1000)]) for number in range(6)]
    root, _ = wide_and_narrow(line_chart(series, AXES))
    places = sorted(float(text.attrib["y"]) for text in root if text.attrib.get("class") == "end")
    assert len(places) == 6
    assert all(after - before >= 15.9 for before, after in pairwise(places))
    assert places[0] > 0


def test_a_narrow_drawing_is_readable_on_a_phone() -> None:
    values = [(0.0, 0.0), (30.0, 123_456.0)]
    series = [Series("online", "rows held", values), Series("best", "rows ever made", values)] * 2
    axes = Axes(title="t", x_label="day", y_label="rows", y_text=lambda value: f"{value:,.0f}")
    wide, narrow = wide_and_narrow(line_chart(series, axes))
    width = float(narrow.attrib["viewBox"].split()[2])
    assert width <= 350, "of 390 px a phone has this much between the margins, so that 13 px stay 13 px"
    assert float(wide.attrib["viewBox"].split()[2]) > 2 * width
    letter = 8.0  # px of a bold one, at most
    names = [text for text in narrow if text.attrib.get("class") == "end"]
    assert [text.text for text in names] == ["rows held 123,456", "rows ever made 123,456"] * 2
    assert all(float(text.attrib["x"]) + letter * len(text.text or "") <= width for text in names)
    assert len({(text.attrib["x"], text.attrib["y"]) for text in names}) == 4
    top = min(float(line.attrib["y1"]) for line in narrow if line.attrib.get("class") == "grid")
    assert all(float(text.attrib["y"]) < top for text in names), "names stand above the lines, not on them"


def test_tiles_and_labels_show_the_same_numbers_and_the_page_names_the_days() -> None:
    progress = race(8)
    progress.windows[-1].auc["online"] = 0.95  # the last day alone would say something else
    page = html_of(progress)
    auc = f"{progress.final_auc()['online']:.3f}"
    assert auc == "0.850"
    assert f'>{auc}</div><div class="name">AUC of the last quarter, online</div>' in page
    wide, narrow = wide_and_narrow(page[page.index('<div class="wide">') :].partition("</section>")[0])
    for root in (wide, narrow):
        assert f"online {auc}" in [text.text for text in root if text.attrib.get("class") == "end"]
        (shaded,) = [each for each in root if each.attrib.get("class") == "span"]
        first, last = float(shaded.attrib["x"]), float(shaded.attrib["x"]) + float(shaded.attrib["width"])
        (line,) = [
            each for each in root if "--series-online" in each.attrib.get("style", "") and each.tag == "polyline"
        ]
        days = [float(point.split(",")[0]) for point in line.attrib["points"].split()]
        assert first == pytest.approx(days[-3], abs=0.2), "the last quarter of eight days begins after the sixth"
        assert last == pytest.approx(days[-1], abs=0.2)
    assert "means of the shaded last\nquarter of the run" in page


def test_the_stopwatch_gives_each_stage_the_time_since_the_one_before() -> None:
    clock = FakeClock()
    watch = Stopwatch(clock)
    clock.advance(5.0)
    watch.begin()
    for seconds, stage in ((1.0, TRAFFIC), (2.0, PREDICT), (0.5, TRAFFIC)):
        clock.advance(seconds)
        watch.end(stage)
    assert watch.seconds == {TRAFFIC: 1.5, PREDICT: 2.0}


def test_the_time_of_each_stage_is_a_bar() -> None:
    seconds = dict.fromkeys(STAGES, 1.0) | {TRAFFIC: 4.0}
    shown = bars_of(seconds, num_examples=1_000_000)
    assert re.findall(r"width:([\d.]+%)", shown) == ["100.0%", *["25.0%"] * 6]
    assert re.findall(r'class="amount">(.*?)</div>', shown) == [
        "40% &middot; 4.0 &micro;s",
        *["10% &middot; 1.0 &micro;s"] * 6,
    ]
    assert "too short" in bars_of({}, 0)


def test_a_page_in_a_clone_links_what_to_read_next(tmp_path: Path, project_root: Path) -> None:
    target = tmp_path / "out" / "report.html"
    target.parent.mkdir()
    write_report(target, race(3))
    assert "<code>docs/tutorial.md</code>" in target.read_text(encoding="utf-8")
    assert "href" not in target.read_text(encoding="utf-8"), "there is nothing to link to"
    shutil.copytree(project_root / "docs", tmp_path / "docs")
    write_report(target, race(3))
    links = re.findall(r'href="(.*?)"', target.read_text(encoding="utf-8"))
    assert "../docs/tutorial.md" in links
    assert all((target.parent / link).is_file() for link in links)


def test_a_screen_fits_the_terminal_and_shows_every_model() -> None:
    for num_windows in (0, 1, 30):
        for width in (20, 80, 200):
            lines = screen_of(race(num_windows), width=width)
            assert all(len(line) < width for line in lines)
            assert len(lines) <= 14
    text = "\n".join(screen_of(race(10), width=120))
    for part in ("online", "hashed ids, same memory", "frozen on day 2.5", "best possible", "0.7500", "-100 expired"):
        assert part in text
    assert "\n".join(screen_of(race(10), width=120, is_unicode=False)).isascii()


def test_lines_are_printed_once_without_a_terminal() -> None:
    file = io.StringIO()
    view = View(file, clock=FakeClock())
    progress = race(2)
    view.show(progress)
    view.show(progress)
    progress.windows.append(window(3))
    view.close(progress)
    assert file.getvalue().splitlines() == [line_of(window(day)) for day in (1, 2, 3)]
    assert "\x1b" not in file.getvalue()
    assert line_of(window(1)) == (
        "day 1.0: 40,000 examples, 40,000/s; AUC online 0.750, hashed 0.730, frozen 0.600, best 0.800;"
        " 1,000 rows in 0.1 MB, 1,100 new, 100 expired"
    )


def test_sparks_stay_inside_their_range() -> None:
    assert sparkline([-1.0, 0.0, 1.0, 2.0], low=0.0, high=1.0) == "▁▁██"
    assert sparkline([0.5], low=0.5, high=0.5) == "▁"


def test_the_conclusion_reports_which_model_is_above() -> None:
    assert "0.020 above the same model with hashed ids" in conclusion_of(race(8))
    assert "0.150 above a copy that stopped learning on day 2.5" in conclusion_of(race(8))
    assert "0.050 below the same model with hashed ids" in conclusion_of(race(8, hashed=0.8))
    never = race(8)
    never.frozen_day = None
    assert "stopped" not in conclusion_of(never)
    assert conclusion_of(race(0)) == "The run was stopped after 0 of 1 examples: the models are not compared."
    assert conclusion_of(race(1, online=math.nan)) == "The run was too short to compare the models."


@pytest.mark.parametrize("num_windows", [0, 1, 30])
def test_a_page_is_made_of_any_race(num_windows: int) -> None:
    page = html_of(race(num_windows, frozen=math.nan))
    assert "{{" not in page
    assert ("The run was stopped" in page) == (num_windows == 0)
    assert page.count("<svg") == page.count("</svg>") == 6
    assert len(summary_of(race(num_windows))["windows"]) == num_windows


def test_a_page_reports_when_the_online_model_took_more_memory() -> None:
    progress = race(70)
    assert "more than the hashed model was given" in html_of(progress)
    assert "more than the hashed model was given" not in html_of(race(10))


def test_a_race_that_was_stopped_early_has_no_result() -> None:
    progress = race(8)
    progress.limits = RaceConfig(examples=progress.examples + 1)
    page, summary = html_of(progress), summary_of(progress)
    said = "The run was stopped after 320,000 of 320,001 examples: the models are not compared."
    assert conclusion_of(progress) == said
    assert said in page
    assert "AUC of the last quarter" not in page
    assert 'class="span"' not in page
    assert (summary["complete"], set(summary["auc"].values())) == (False, {None})
    assert summary_of(race(8))["complete"]


def test_what_was_not_measured_is_null_in_json() -> None:
    assert summary_of(race(1, online=math.nan))["auc"]["online"] is None
    assert set(summary_of(race(0))["auc"]) == set(MODELS)


def test_a_report_is_written_atomically(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "report.html"
    write_report(target, race(3))
    before = target.read_text(encoding="utf-8")
    monkeypatch.setattr("monolith.cli._demo.report.html_of", lambda *_, **__: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        write_report(target, race(3))
    assert target.read_text(encoding="utf-8") == before
    assert list(tmp_path.iterdir()) == [target]
