"""How the report writes numbers, in words and in the cells of tables."""

from __future__ import annotations

import math
from datetime import datetime

from ptocache.report.tables import Cell
from ptocache.text import bytes_text, plural, seconds_text

#: Where there is no number.
NONE = "\N{EN DASH}"


def share_text(share: float | None) -> str:
    """A share, from 0 to 1, as `96.4%`; what is not nothing or not all never looks as if it were."""
    if share is None:
        return NONE
    if 0 < share < 0.001:
        return "<0.1%"
    if 0.999 < share < 1:
        return ">99.9%"
    return f"{share:.1%}"


def time_text(seconds: float) -> str:
    """A length of time; what is stored may be no number."""
    return seconds_text(finite(seconds)) if finite(seconds) else "0 s"


def counted(count: float, word: str) -> str:
    """A count with its noun: `12,345 requests`."""
    return f"{count:,.0f} {plural(round(count), word).partition(' ')[2]}"


def zone_text(now: datetime) -> str:
    """The time zone of a moment, as what it adds to UTC: `UTC+02:00`."""
    offset = f"{now:%z}"
    return f"UTC{offset[:3]}:{offset[3:5]}" if offset.strip("+-0") else "UTC"


def count_cell(count: float) -> Cell:
    """A cell with a count."""
    return Cell(f"{count:,.0f}", count)


def share_cell(share: float | None) -> Cell:
    """A cell with a share; where there is none it counts as the least."""
    return Cell(share_text(share), -1.0 if share is None else share)


def time_cell(seconds: float | None) -> Cell:
    """A cell with a length of time; where there is none it counts as the least."""
    return Cell(NONE, -1.0) if seconds is None else Cell(time_text(seconds), finite(seconds))


def bytes_cell(size: float) -> Cell:
    """A cell with a size."""
    return Cell(bytes_text(size), size)


def finite(number: float) -> float:
    """A number that can be drawn and sorted: 0 for what is none, or less."""
    return max(0.0, number) if math.isfinite(number) else 0.0
