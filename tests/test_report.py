"""The report: what is in it, that nothing breaks it, and how it works in a browser."""

from __future__ import annotations

import base64
import hashlib
import json
import math
import os
import re
import stat
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from html.parser import HTMLParser
from pathlib import Path
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import pytest
from conftest import EXAMPLES, run_ptocache
from report_demo import NOW, demo_statistics

from ptocache.report import charts, render
from ptocache.report.figures import share_text, zone_text
from ptocache.report.markup import Html, element, foreign, join
from ptocache.report.timeline import make_timeline
from ptocache.statistics import KernelUse, Statistics, Toolchain

if TYPE_CHECKING:
    from browser import Browser

ROOT = Path(__file__).parent.parent
HOSTILE = "</script></style></title>\"'`--><img src=x onerror=alert(1)>\x00\u202e\udcff{}$body"
VOID = {"br", "col", "meta"}


def empty_statistics() -> Statistics:
    counts = dict.fromkeys(("entries", "bytes", "requests", "misses", "compiles", "failures"), 0)
    more = dict.fromkeys(("failures_remembered", "errors", "damaged", "evictions"), 0)
    return Statistics(
        directory="/var/cache/ptocache",
        since=None,
        limit_bytes=5 << 30,
        hits=dict.fromkeys(("memory", "local", "shared", "pto"), 0),
        seconds_compiling=0.0,
        seconds_saved=0.0,
        engines={},
        hours={},
        toolchains=[],
        kernels_saved=[],
        kernels_used=[],
        kernels_slowest=[],
        **counts,
        **more,
    )


def hostile_statistics() -> Statistics:
    use = KernelUse("0" * 32, [HOSTILE, HOSTILE * 100], HOSTILE, 3, math.nan, math.inf)
    engine = next(iter(demo_statistics().engines.values()))
    return demo_statistics()._replace(
        directory=HOSTILE,
        engines={HOSTILE: engine},
        toolchains=[Toolchain(HOSTILE, HOSTILE, HOSTILE, HOSTILE, 1, 1, None), Toolchain("", "", "", "", 1, 0, None)],
        kernels_saved=[],
        kernels_used=[use, use._replace(key=HOSTILE, kernels=[])],
        kernels_slowest=[use],
    )


def one_hour(moment: datetime, **counts: float) -> Statistics:
    """A cache that was used in one hour only."""
    hits = {"memory": 0, "local": 3, "shared": 0, "pto": 0}
    hour = {"hits.local": 3.0, "compiles": 1.0, "misses": 1.0, "seconds_saved": 4.0, **counts}
    return empty_statistics()._replace(
        requests=4, hits=hits, misses=1, compiles=1, hours={int(moment.timestamp() // 3600): hour}
    )


class Checker(HTMLParser):
    """Sees that each element is closed where it should be, and gathers what there is."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.names: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.text: list[str] = []
        self.feed(page)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.append(tag)
        names = [name for name, _ in attrs]
        assert len(names) == len(set(names))
        self.attributes += [(name, value or "") for name, value in attrs]
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] not in {"script", "style"}:
            self.text.append(data)


PAGES = {
    "demo": demo_statistics,
    "empty": empty_statistics,
    "hostile": hostile_statistics,
    "days": lambda: demo_statistics(days=2),
    "no limit": lambda: demo_statistics()._replace(limit_bytes=0),
    "overfull": lambda: demo_statistics()._replace(bytes=9 << 40),
    "no hours": lambda: demo_statistics()._replace(hours={}),
    "only failures": lambda: one_hour(NOW)._replace(hits=dict.fromkeys(("memory", "local", "shared", "pto"), 0)),
}


class TestPage:
    @pytest.mark.parametrize("name", PAGES)
    def test_it_is_well_formed_and_refers_to_nothing(self, name: str) -> None:
        page = render(PAGES[name](), NOW)
        page.encode()
        found = Checker(page)
        assert page.startswith("<!DOCTYPE html>\n")
        assert not {"img", "link", "a", "iframe", "object", "embed", "form", "base"} & set(found.names)
        assert found.names.count("script") == found.names.count("style") == found.names.count("h1") == 1
        names = {name for name, _ in found.attributes}
        assert not {"href", "src", "style", "srcset", "action", "xlink:href"} & names
        assert not [name for name in names if name.startswith("on")]

    def test_its_policy_allows_its_own_style_and_script_alone(self) -> None:
        page = render(demo_statistics(), NOW)
        policy = re.search(r'Content-Security-Policy" content="([^"]*)"', page)
        assert policy is not None
        for name in ("style", "script"):
            text = page.partition(f"<{name}>")[2].partition(f"</{name}>")[0]
            digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
            assert f"{name}-src 'sha256-{digest}'" in policy[1]
        assert policy[1].startswith("default-src 'none'; ")
        assert "unsafe" not in policy[1]
        assert "http:" not in page.replace("http-equiv", "")
        assert "https:" not in page

    def test_it_is_the_same_for_the_same_figures_and_moment(self) -> None:
        assert render(demo_statistics(), NOW) == render(demo_statistics(), NOW)
        assert render(demo_statistics(), NOW) != render(demo_statistics(), NOW + timedelta(minutes=1))

    def test_its_figures_are_those_of_the_statistics(self) -> None:
        statistics = demo_statistics()
        text = " ".join(Checker(render(statistics, NOW)).text)
        assert statistics.hit_rate is not None
        assert f"{statistics.hit_rate * 100:.1f} %" in text
        for count in (statistics.requests, *statistics.hits.values(), statistics.compiles):
            assert f"{count:,}" in text
        for expected in ("Counted since 2 Oct 2026.", "20 Nov 2026 at 16:25 (UTC+01:00)", "3.1  GiB", "of 5.0 GiB"):
            assert expected in text
        for use in (*statistics.kernels_used, *statistics.kernels_slowest):
            assert use.kernels[0] in text
        for label in statistics.engines:
            assert label in text

    def test_each_chart_is_told_in_words_and_each_table_has_a_caption(self) -> None:
        page = render(demo_statistics(), NOW)
        labels = re.findall(r'<svg class="chart" role="img" aria-label="([^"]*)"', page)
        assert [label.split()[0] for label in labels] == ["Hit", "Time", "Requests"]
        assert all("2 Oct 2026 to 20 Nov 2026" in label for label in labels)
        assert page.count("<table") == page.count("<caption") == 5
        assert re.findall(r' aria-sort="(\w+)">', page) == ["ascending", "descending", "descending"]

    def test_a_cache_without_requests_has_a_page_that_says_so(self) -> None:
        text = " ".join(Checker(render(empty_statistics(), NOW)).text)
        assert "Nothing was requested yet" in text
        assert "nan" not in text

    def test_a_cache_that_was_only_filled_shows_what_is_stored(self) -> None:
        toolchains = demo_statistics().toolchains
        text = " ".join(Checker(render(empty_statistics()._replace(toolchains=toolchains), NOW)).text)
        assert "Nothing was requested yet" in text
        assert "8.5.0" in text

    @pytest.mark.parametrize(("stale", "word"), [(True, "stale"), (False, "current"), (None, "unknown")])
    def test_a_toolchain_is_marked_where_it_is_not_todays(self, stale: bool | None, word: str) -> None:
        group = Toolchain("source", "a5", "9.0.0-aa-bb", "9.0.0", 1, 100, stale)
        page = render(empty_statistics()._replace(toolchains=[group]), NOW)
        assert f'<span class="badge {word}">{word}</span>' in page

    def test_what_is_shown_of_names_is_bounded(self) -> None:
        use = KernelUse("0" * 32, [f"kernel_{number}" for number in range(500)], "a5" * 10000, 1, 1.0, 1.0)
        page = render(one_hour(NOW)._replace(kernels_used=[use]), NOW)
        assert "kernel_3</bdi> and 496 more" in page
        assert "kernel_4<" not in page


class TestMarkup:
    def test_text_is_escaped_and_html_is_not(self) -> None:
        assert join("<a>", Html("<b>")) == "&lt;a&gt;<b>"
        assert element("td", "a&b", title='"<') == '<td title="&quot;&lt;">a&amp;b</td>'
        assert element("td", Html("<b>") + "</b>") == "<td>&lt;b&gt;&lt;/b&gt;</td>"

    def test_what_cannot_be_seen_is_spelled(self) -> None:
        assert foreign("a\x00\u202e\udcff\nb") == r"<bdi>a\x00\u202e\udcff\nb</bdi>"

    def test_a_long_name_is_cut(self) -> None:
        assert foreign("x" * 1000) == f"<bdi>{'x' * 159}…</bdi>"


class TestTimeline:
    def test_a_short_time_is_shown_by_hour_and_a_long_one_by_day(self) -> None:
        assert make_timeline(demo_statistics(days=2), NOW).unit == "hour"
        timeline = make_timeline(demo_statistics(), NOW)
        assert timeline.unit == "day"
        assert len(timeline.buckets) == 50

    @pytest.mark.parametrize("days", [0, 1, 2, 3, 10, 89])
    def test_no_request_is_lost_or_counted_twice(self, days: int) -> None:
        statistics = demo_statistics(days=days)
        timeline = make_timeline(statistics, NOW)
        assert sum(bucket.requests for bucket in timeline.buckets) == statistics.requests
        assert sum(bucket.hits for bucket in timeline.buckets) == sum(statistics.hits.values())
        assert sum(bucket.saved for bucket in timeline.buckets) == pytest.approx(statistics.seconds_saved, abs=0.001)

    def test_an_hour_is_of_the_local_day(self) -> None:
        late = datetime(2026, 11, 10, 23, 30, tzinfo=timezone.utc)  # the 11th, where it is made
        timeline = make_timeline(one_hour(late), NOW)
        assert timeline.name(next(bucket for bucket in timeline.buckets if bucket.requests)) == "Wed 11 Nov 2026"

    def test_a_clock_that_is_set_back_loses_no_hour(self) -> None:
        try:
            zone = ZoneInfo("Europe/Berlin")
        except ZoneInfoNotFoundError:
            pytest.skip("needs the system's time zones")
        now = datetime(2026, 10, 25, 12, tzinfo=zone)  # 03:00 becomes 02:00
        twice = [datetime(2026, 10, 25, hour, tzinfo=timezone.utc) for hour in (0, 1)]
        hours = {hour: counts for moment in twice for hour, counts in one_hour(moment).hours.items()}
        timeline = make_timeline(one_hour(now)._replace(hours=hours), now)
        assert [bucket.requests for bucket in timeline.buckets[:2]] == [4, 4]
        assert [bucket.start.hour for bucket in timeline.buckets[:3]] == [2, 2, 3]

    def test_a_clock_that_is_ahead_is_shown(self) -> None:
        assert make_timeline(one_hour(NOW + timedelta(hours=5)), NOW).buckets[-1].requests == 4

    def test_what_is_too_long_ago_is_left_out(self) -> None:
        assert make_timeline(one_hour(NOW - timedelta(days=5000)), NOW).buckets == []

    def test_the_time_since_counting_began_is_shown_too(self) -> None:
        statistics = one_hour(NOW)._replace(since=(NOW - timedelta(days=20)).timestamp())
        assert len(make_timeline(statistics, NOW).buckets) == 21

    @pytest.mark.parametrize("days", [0, 1, 2, 3, 10, 30, 60, 89])
    def test_there_is_room_for_its_dates(self, days: int) -> None:
        ticks = make_timeline(demo_statistics(days=days), NOW).ticks()
        assert len(ticks) <= 11
        assert len([tick for tick in ticks if tick.is_main]) <= 4


class TestCharts:
    @pytest.mark.parametrize("largest", [0, 1e-9, 0.004, 0.7, 1, 7, 59, 61, 3599, 5000, 86400, 1e6, 1e12])
    def test_a_scale_has_a_few_steps_and_room_for_the_largest(self, largest: float) -> None:
        for scale in (charts.seconds_scale(largest), charts.count_scale(largest)):
            assert scale.top >= largest
            assert 2 <= len(scale.marks) <= 6
            assert len({text for _, text in scale.marks}) == len(scale.marks)

    @pytest.mark.parametrize(
        ("largest", "texts"),
        [(3000, ["0", "15 min", "30 min", "45 min", "60 min"]), (0.003, ["0", "1 ms", "2 ms", "3 ms"])],
    )
    def test_times_have_units(self, largest: float, texts: list[str]) -> None:
        assert [text for _, text in charts.seconds_scale(largest).marks] == texts

    def test_a_line_has_gaps(self) -> None:
        chart = charts.line_chart(charts.Frame(5, []), [0.5, 1.0, None, 0.0, None], charts.share_scale(), [], "")
        assert 'd="M0.5 75.00L1.5 0.00M3.5 150.00"' in chart
        assert chart.count("<circle") == 3

    def test_parts_of_a_column_stand_on_each_other(self) -> None:
        series = {"a": [1.0, 0.0], "b": [3.0, 0.0]}
        chart = charts.column_chart(charts.Frame(2, []), series, charts.count_scale(4), [], "")
        assert re.findall(r'<rect class="(\w)" .*? y="([\d.]+)" .*? height="([\d.]+)"', chart) == [
            ("a", "120.50", "37.50"),
            ("b", "8.00", "112.50"),
        ]


@pytest.mark.parametrize(
    ("share", "text"),
    [(None, "\N{EN DASH}"), (0, "0.0%"), (1e-9, "<0.1%"), (0.9640, "96.4%"), (0.99999, ">99.9%"), (1, "100.0%")],
)
def test_a_share_never_looks_like_all_or_nothing_where_it_is_not(share: float | None, text: str) -> None:
    assert share_text(share) == text


@pytest.mark.parametrize(
    ("minutes", "text"), [(0, "UTC"), (60, "UTC+01:00"), (-210, "UTC-03:30"), (345, "UTC+05:45"), (30, "UTC+00:30")]
)
def test_a_time_zone_is_told_as_its_difference_to_utc(minutes: int, text: str) -> None:
    assert zone_text(NOW.astimezone(timezone(timedelta(minutes=minutes)))) == text


def test_colours_have_enough_contrast() -> None:
    style = (ROOT / "ptocache" / "report" / "page.css").read_text()
    schemes = [dict(re.findall(r"--(\w+): (#\w{6})", block)) for block in re.findall(r":root \{(.*?)\}", style, re.S)]
    for colours in schemes[:2]:
        for name in ("ink", "quiet", "warn"):
            assert min(contrast(colours[name], colours[behind]) for behind in ("page", "card")) >= 4.5
        for name in ("memory", "local", "shared", "pto", "compiled", "failed", "failure_remembered"):
            assert contrast(colours[name], colours["card"]) >= 3


def contrast(one: str, other: str) -> float:
    """The contrast of two colours as WCAG 2 defines it."""

    def luminance(colour: str) -> float:
        parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))

    lower, upper = sorted((luminance(one), luminance(other)))
    return (upper + 0.05) / (lower + 0.05)


class TestCommand:
    @pytest.fixture(autouse=True)
    def place(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        """A working directory."""
        place = tmp_path / "work"
        place.mkdir()
        monkeypatch.chdir(place)
        return place

    def test_it_writes_one_page_and_says_where(self, place: Path) -> None:
        for _ in range(2):
            assert run_ptocache("compile", EXAMPLES / "vector_add.py", "--emulate", "-o", os.devnull).returncode == 0
        result = run_ptocache("report")
        assert (result.returncode, result.stderr) == (0, "")
        assert re.fullmatch(r"ptocache-report\.html: [\d.]+ KiB, 2 requests\n", result.stdout)
        page = Path("ptocache-report.html").read_text()
        text = " ".join(Checker(page).text)
        assert "1 of 2 requests" in text
        assert "vector_add" in text
        assert os.listdir(place) == ["ptocache-report.html"]

    def test_its_figures_are_those_of_stats(self) -> None:
        run_ptocache("compile", EXAMPLES / "vector_add.py", "--emulate", "-o", os.devnull)
        figures = json.loads(run_ptocache("stats", "--json").stdout)
        page = run_ptocache("report", "-o", "-").stdout
        assert f"of {figures['requests']} request" in page
        assert figures["directory"] in page

    def test_a_cache_that_is_not_there_is_reported_and_not_made(self, tmp_path: Path) -> None:
        result = run_ptocache("report", "-o", "report.html")
        assert result.returncode == 0, result.stderr
        assert "Nothing was requested yet" in Path("report.html").read_text()
        assert not (tmp_path / "cache").exists()

    def test_standard_output_gets_the_page_alone(self, place: Path) -> None:
        environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
        command = [sys.executable, "-m", "ptocache", "report", "-o", "-"]
        result = subprocess.run(command, capture_output=True, env=environment, check=True)
        Checker(result.stdout.decode())
        assert os.listdir(place) == []

    def test_a_page_that_is_there_is_replaced_whole_and_keeps_no_traces(self, place: Path) -> None:
        page = place / "report.html"
        page.write_text("old")
        with page.open() as old:
            assert run_ptocache("report", "-o", page).returncode == 0
            assert old.read() == "old"
        assert stat.S_IMODE(page.stat().st_mode) & 0o444
        assert os.listdir(place) == ["report.html"]

    @pytest.mark.parametrize("arguments", [["-o", "missing/report.html"], ["-o", "."], ["extra"], ["-o"]])
    def test_wrong_use_is_exit_2_without_a_traceback(self, arguments: list[str]) -> None:
        result = run_ptocache("report", *arguments)
        assert result.returncode == 2
        assert result.stdout == ""
        assert "Traceback" not in result.stderr
        assert "ptocache" in result.stderr

    def test_a_directory_that_is_not_used_is_one_line(self, tmp_path: Path) -> None:
        (tmp_path / "cache").mkdir(mode=0o777)
        (tmp_path / "cache").chmod(0o777)
        result = run_ptocache("report")
        assert result.returncode == 1
        assert result.stderr.count("\n") == 1


def test_the_wheel_has_its_files(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        assert {f"ptocache/report/page.{kind}" for kind in ("html", "css", "js")} <= set(archive.namelist())


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    pytest.importorskip("selenium", reason="needs selenium")
    from browser import CHROMEDRIVER, CHROMIUM, open_browser

    if not (CHROMIUM and CHROMEDRIVER):
        pytest.skip("needs chromium and chromedriver")
    with open_browser(tmp_path_factory.mktemp("browser")) as browser:
        yield browser


@pytest.mark.browser
class TestBrowser:
    @pytest.fixture
    def page(self, tmp_path: Path) -> Path:
        path = tmp_path / "report.html"
        path.write_bytes(render(demo_statistics(), NOW).encode())
        return path

    @pytest.mark.parametrize("name", PAGES)
    def test_it_loads_nothing_and_complains_of_nothing(self, browser: Browser, tmp_path: Path, name: str) -> None:
        page = tmp_path / "report.html"
        page.write_bytes(render(PAGES[name](), NOW).encode())
        browser.open(page)
        assert browser.requests() == [page.as_uri()]
        assert browser.problems() == []
        assert browser.run("return document.compatMode") == "CSS1Compat"

    def test_hostile_names_do_nothing(self, browser: Browser, tmp_path: Path) -> None:
        page = tmp_path / "report.html"
        page.write_bytes(render(hostile_statistics(), NOW).encode())
        browser.open(page)
        assert browser.run("return document.images.length") == 0
        assert browser.run("return document.scripts.length") == 1
        assert "<img src=x onerror=alert(1)>" in browser.run("return document.querySelector('header code').textContent")
        assert browser.run("return document.querySelector('footer') !== null")

    def test_its_policy_is_in_force(self, browser: Browser, page: Path) -> None:
        browser.open(page)
        browser.run("document.body.append(Object.assign(new Image(), {src: 'https://ptocache.invalid/x.png'}))")
        browser.run("document.body.setAttribute('style', 'color: red')")
        problems = " ".join(browser.problems())
        assert "img-src" in problems
        assert "style-src" in problems

    def test_a_click_sorts_and_the_next_one_reverses(self, browser: Browser, page: Path) -> None:
        browser.open(page)
        assert sorted_by(browser) == {"Time saved": "descending"}
        click(browser, "Hits")
        assert sorted_by(browser) == {"Hits": "descending"}
        hits = [int(text.replace(",", "")) for text in column(browser, 3)]
        assert hits == sorted(hits, reverse=True)
        click(browser, "Hits")
        assert sorted_by(browser) == {"Hits": "ascending"}
        assert [int(text.replace(",", "")) for text in column(browser, 3)] == sorted(hits)
        click(browser, "Kernels")
        assert sorted_by(browser) == {"Kernels": "ascending"}
        assert column(browser, 0)[0].startswith("flash_attention")

    def test_times_are_sorted_as_times(self, browser: Browser, page: Path) -> None:
        browser.open(page)
        click(browser, "Time saved")
        first, last = column(browser, 5)[0], column(browser, 5)[-1]
        assert "min" in last
        assert float(browser.run(f"{KERNELS} return table.tBodies[0].rows[0].cells[5].dataset.value")) < 120, first

    def test_the_keyboard_sorts_too(self, browser: Browser, page: Path) -> None:
        from selenium.webdriver import ActionChains, Keys

        browser.open(page)
        browser.run(f"{KERNELS} table.tHead.rows[0].cells[2].querySelector('button').focus()")
        ActionChains(browser.driver).send_keys(Keys.TAB).send_keys(Keys.ENTER).perform()
        assert sorted_by(browser) == {"Hits": "descending"}
        ActionChains(browser.driver).send_keys(Keys.SPACE).perform()
        assert sorted_by(browser) == {"Hits": "ascending"}
        assert browser.run("return document.activeElement.textContent") == "Hits"

    def test_a_chart_says_what_is_under_the_pointer(self, browser: Browser, page: Path) -> None:
        from selenium.webdriver import ActionChains

        browser.open(page)
        band = browser.run("return document.querySelectorAll('figure .band')[3]")
        ActionChains(browser.driver).move_to_element(band).perform()
        readout = browser.run("return document.querySelector('.readout').textContent")
        assert re.fullmatch(r"Mon 5 Oct 2026: [\d.]+% of \d+ requests, .* saved", readout)

    def test_it_is_dark_where_that_is_preferred(self, browser: Browser, page: Path) -> None:
        colour = "return getComputedStyle(document.body).backgroundColor"
        browser.open(page)
        assert browser.run(colour) == "rgb(246, 246, 244)"
        browser.open(page, dark=True)
        assert browser.run(colour) == "rgb(20, 23, 26)"

    @pytest.mark.parametrize("name", PAGES)
    def test_a_narrow_page_does_not_scroll_sideways(self, browser: Browser, tmp_path: Path, name: str) -> None:
        page = tmp_path / "report.html"
        page.write_bytes(render(PAGES[name](), NOW).encode())
        browser.open(page, width=360, height=740)
        browser.run("document.querySelectorAll('details').forEach((each) => { each.open = true; })")
        assert browser.run("return [document.documentElement.scrollWidth, innerWidth]") == [360, 360]

    def test_without_its_script_its_tables_and_tooltips_are_there(self, browser: Browser, page: Path) -> None:
        browser.command("Emulation.setScriptExecutionDisabled", value=True)
        try:
            browser.open(page)
            tables = browser.driver.find_elements("css selector", "table")
            assert len(tables) == 5
            assert browser.driver.find_elements("css selector", "th button") == []
            assert browser.driver.find_elements("css selector", ".band title")
        finally:
            browser.command("Emulation.setScriptExecutionDisabled", value=False)

    def test_it_prints_in_light_colours_and_whole(self, browser: Browser, page: Path) -> None:
        browser.open(page, dark=True)
        features = [{"name": "prefers-color-scheme", "value": "dark"}]
        browser.command("Emulation.setEmulatedMedia", media="print", features=features)
        assert browser.run("return getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
        assert browser.run(f"{KERNELS} return getComputedStyle(table.parentElement).overflowY") == "visible"
        printed = base64.b64decode(browser.command("Page.printToPDF")["data"])
        assert printed.startswith(b"%PDF-")
        browser.command("Emulation.setEmulatedMedia", media="")


#: A script's beginning: the table of kernels.
KERNELS = "const table = document.querySelector('[aria-label=\"Kernels by cost\"] table');"


def click(browser: Browser, header: str) -> None:
    find = "return [...table.querySelectorAll('th button')].find((each) => each.textContent === arguments[0])"
    browser.run(f"{KERNELS} {find}", header).click()


def column(browser: Browser, number: int) -> list[str]:
    cells = "return [...table.tBodies[0].rows].map((row) => row.cells[arguments[0]].textContent)"
    found: list[str] = browser.run(f"{KERNELS} {cells}", number)
    return found


def sorted_by(browser: Browser) -> dict[str, str]:
    sorted_ = "[...table.querySelectorAll('th[aria-sort]')].map((each) => [each.textContent, each.ariaSort])"
    return dict(browser.run(f"{KERNELS} return {sorted_}"))
