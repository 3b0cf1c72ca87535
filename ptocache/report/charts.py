"""Charts as inline SVG, as wide as there is room: across they are drawn in percent, and upwards in pixels."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import NamedTuple

from ptocache.report.markup import Html, element, join
from ptocache.report.timeline import Tick

#: In pixels: the room above what is drawn, and below it for the dates.
_ABOVE, _BELOW = 8, 26

#: How much of its place a column takes.
_COLUMN = 0.72

#: In so few places a line's points are drawn too.
_FEW_POINTS = 35

#: About so many steps a scale has.
_STEPS = 4

#: What is a round number of seconds.
_ROUND_SECONDS = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400)

#: The units of a scale of times. Its steps are multiples of one, as nearly as a float is.
_UNITS = ((3600, "h"), (60, "min"), (1, "s"), (0, "ms"))


class Scale(NamedTuple):
    """The scale upwards.

    Attributes:
        top: the value at its upper end.
        marks: the values that are written at it, each with its text.
    """

    top: float
    marks: list[tuple[float, str]]


class Frame(NamedTuple):
    """The place of a chart.

    Attributes:
        places: how many places there are from left to right.
        ticks: the dates that are written below.
        height: how high what is drawn is, in pixels.
    """

    places: int
    ticks: Sequence[Tick]
    height: int = 150


def share_scale() -> Scale:
    """From 0 to 100%."""
    return Scale(1.0, [(quarter / 4, f"{quarter / 4:.0%}") for quarter in range(5)])


def count_scale(largest: float) -> Scale:
    """For numbers of requests."""
    return _scale(largest, max(1.0, _round_step(largest / _STEPS)), lambda value: f"{value:,.0f}")


def seconds_scale(largest: float) -> Scale:
    """For times: its steps are what is round in seconds, minutes or hours."""
    wanted = largest / _STEPS
    if wanted < _ROUND_SECONDS[0]:
        step = _round_step(wanted)
    else:
        days = 86400 * _round_step(wanted / 86400)
        step = next((step for step in _ROUND_SECONDS if step >= wanted), days)
    size, unit = next((size, unit) for size, unit in _UNITS if step >= size)
    return _scale(largest, step, lambda value: f"{value / (size or 0.001):,.4g} {unit}" if value else "0")


def line_chart(frame: Frame, values: Sequence[float | None], scale: Scale, tips: Iterable[str], label: str) -> Html:
    """A line, with gaps where there is no value.

    Args:
        frame: its place.
        values: a value for each place.
        scale: the scale upwards.
        tips: what is said of each place.
        label: the chart in words.
    """
    runs = [list(run) for known, run in groupby(enumerate(values), lambda item: item[1] is not None) if known]
    line, area, points = [], [], []
    for run in runs:
        where = [(index + 0.5, frame.height * _depth(value or 0.0, scale)) for index, value in run]
        path = "L".join(f"{x:g} {y:.2f}" for x, y in where)
        line.append(f"M{path}")
        area.append(f"M{where[0][0]:g} {frame.height}L{path}L{where[-1][0]:g} {frame.height}Z")
        if len(run) == 1 or frame.places <= _FEW_POINTS:
            points += where
    drawn = element(
        "svg",
        element("path", class_="area", d="".join(area)),
        element("path", class_="line", d="".join(line), vector_effect="non-scaling-stroke"),
        viewBox=f"0 0 {frame.places} {frame.height}",
        preserveAspectRatio="none",
        width="100%",
        height=frame.height,
        y=_ABOVE,
    )
    circles = [
        element("circle", class_="point", cx=_percent(x / frame.places), cy=f"{_ABOVE + y:.2f}", r=2.5)
        for x, y in points
    ]
    return _chart(frame, scale, join(drawn, *circles), tips, label)


def column_chart(
    frame: Frame, series: Mapping[str, Sequence[float]], scale: Scale, tips: Iterable[str], label: str
) -> Html:
    """Columns, each made of parts on top of each other.

    Args:
        frame: its place.
        series: by the name of a class of style, a value for each place; the first is at the bottom.
        scale: the scale upwards.
        tips: what is said of each place.
        label: the chart in words.
    """
    parts = []
    for index in range(frame.places):
        below = 0.0
        for name, values in series.items():
            if values[index] > 0:
                upper, lower = (_depth(value, scale) for value in (below + values[index], below))
                below += values[index]
                parts.append(_column(frame, index, name, upper, lower))
    return _chart(frame, scale, join(*parts), tips, label)


def bar(parts: dict[str, float], class_: str = "bar") -> Html:
    """A bar across, for the eye only.

    Args:
        parts: by the name of a class of style, the share of the bar, from 0 to 1.
        class_: the class of the bar itself.
    """
    rectangles, left = [], 0.0
    for name, share in parts.items():
        if share > 0:
            rectangles.append(element("rect", class_=name, x=_percent(left), width=_percent(share), height="100%"))
            left += share
    return element("svg", *rectangles, class_=class_, aria_hidden="true")


def _chart(frame: Frame, scale: Scale, drawn: Html, tips: Iterable[str], label: str) -> Html:
    return element(
        "svg",
        *_lines(frame, scale),
        *_dates(frame),
        drawn,
        *_bands(frame, tips),
        class_="chart",
        role="img",
        aria_label=label,
        height=_ABOVE + frame.height + _BELOW,
    )


def _lines(frame: Frame, scale: Scale) -> Iterator[Html]:
    for value, text in scale.marks:
        y = f"{_ABOVE + frame.height * _depth(value, scale):.2f}"
        yield element("line", class_="base" if not value else "grid", x1=0, x2="100%", y1=y, y2=y)
        yield element("text", text, class_="mark", x=-8, y=y, dy="0.32em")


def _dates(frame: Frame) -> Iterator[Html]:
    for tick in frame.ticks:
        middle = (tick.place + 0.5) / frame.places
        anchor = "end" if middle > 0.97 else "middle"
        class_ = "date" if tick.is_main else "date minor"
        y = _ABOVE + frame.height
        yield element("line", class_="grid", x1=_percent(middle), x2=_percent(middle), y1=y, y2=y + 5)
        yield element("text", tick.text, class_=class_, x=_percent(middle), y=y + 20, text_anchor=anchor)


def _bands(frame: Frame, tips: Iterable[str]) -> Iterator[Html]:
    for index, tip in enumerate(tips):
        x, width = _percent(index / frame.places), _percent(1 / frame.places)
        yield element("rect", element("title", tip), class_="band", x=x, y=_ABOVE, width=width, height=frame.height)


def _column(frame: Frame, index: int, name: str, upper: float, lower: float) -> Html:
    return element(
        "rect",
        class_=name,
        x=_percent((index + (1 - _COLUMN) / 2) / frame.places),
        y=f"{_ABOVE + frame.height * upper:.2f}",
        width=_percent(_COLUMN / frame.places),
        height=f"{frame.height * (lower - upper):.2f}",
    )


def _depth(value: float, scale: Scale) -> float:
    """How far below the top a value is, from 0 to 1."""
    return 1 - value / scale.top


def _scale(largest: float, step: float, text: Callable[[float], str]) -> Scale:
    steps = max(1, -int(-largest // step))
    return Scale(step * steps, [(step * number, text(step * number)) for number in range(steps + 1)])


def _round_step(wanted: float) -> float:
    """The next of 1, 2, 5, 10, 20, 50, …, also below 1."""
    if wanted <= 0:
        return 1.0
    power = 10.0 ** (len(f"{wanted:.0f}") - 1 if wanted >= 1 else int(f"{wanted:e}".partition("e")[2]))
    return next(power * factor for factor in (1, 2, 5, 10, 20) if power * factor >= wanted)


def _percent(share: float) -> str:
    return f"{share * 100:.3f}".rstrip("0").rstrip(".") + "%"
