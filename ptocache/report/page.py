"""The page around the parts of the report: what it is of, how it looks, and that it loads nothing."""

from __future__ import annotations

import base64
import hashlib
from datetime import datetime
from importlib import resources
from string import Template

import ptocache
from ptocache.report.costs import costs
from ptocache.report.figures import counted, zone_text
from ptocache.report.markup import Html, element, foreign, join
from ptocache.report.overview import glance, history, nothing_yet, outcomes
from ptocache.report.storage import engines, toolchains
from ptocache.report.timeline import day_text, make_timeline
from ptocache.statistics import Statistics


def render(statistics: Statistics, now: datetime) -> str:
    """Make the report.

    Args:
        statistics: what to show.
        now: when it is made. Hours and days are those of its time zone.

    Returns:
        A page of HTML that loads nothing, the same for the same arguments.
    """
    style, script, page = (_asset(name) for name in ("page.css", "page.js", "page.html"))
    body = join(
        _header(statistics, now),
        element("main", glance(statistics), *_requests(statistics, now), *_kept(statistics)),
        _footer(statistics, now),
    )
    return Template(page).substitute(
        style=style, script=script, style_digest=_digest(style), script_digest=_digest(script), body=body
    )


def _requests(statistics: Statistics, now: datetime) -> list[Html]:
    if not statistics.requests:
        return [nothing_yet()]
    timeline = make_timeline(statistics, now)
    found = [history(timeline)] if timeline.buckets else []
    return [*found, outcomes(statistics, timeline)]


def _kept(statistics: Statistics) -> list[Html | None]:
    return [costs(statistics), toolchains(statistics), engines(statistics)]


def _header(statistics: Statistics, now: datetime) -> Html:
    since = ""
    if statistics.since is not None:
        since = f"Counted since {day_text(datetime.fromtimestamp(statistics.since, now.tzinfo))}. "
    return element(
        "header",
        element("h1", "ptocache"),
        element("p", element("code", foreign(statistics.directory))),
        element("p", f"{since}Made on {day_text(now)} at {now:%H:%M} ({zone_text(now)})."),
    )


def _footer(statistics: Statistics, now: datetime) -> Html:
    troubles = (
        (statistics.evictions, "entry", "removed to make room"),
        (statistics.damaged, "damaged file", "found"),
        (statistics.errors, "error", "of the cache, none of which failed a compilation"),
    )
    found = "; ".join(f"{counted(count, noun)} {what}" for count, noun, what in troubles if count)
    return element(
        "footer",
        element("p", f"{found}.") if found else None,
        element("p", f"Hours and days are those of {zone_text(now)}. This page is complete: it loads nothing."),
        element("p", f"ptocache {ptocache.__version__}"),
    )


def _asset(name: str) -> str:
    return resources.files("ptocache.report").joinpath(name).read_text(encoding="utf-8")


def _digest(text: str) -> str:
    """What a Content-Security-Policy knows a style or a script by."""
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
