"""Listing entries: for people at a terminal, for scripts, as JSON."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pty
import re
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path

import pytest
from conftest import KERNEL, numbered_kernel, run_ptocache
from test_catalog import DAY, NEW, OLD, directory, facts, made, put, run, tier, use
from test_sharing import key

from ptocache import CompileCache
from ptocache.errors import SourceImportError
from ptocache.store.local import LocalTier
from ptocache.text import short_bytes, short_seconds

__all__ = ["directory", "tier"]  # fixtures

MARKS = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def on_terminal(*arguments: str, columns: int = 80, answer: bytes = b"", **more: str) -> tuple[int, str]:
    """Run a command with all of its streams on a terminal: its exit status, and what it showed."""
    outer, inner = pty.openpty()
    fcntl.ioctl(inner, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    environ = {name: value for name, value in os.environ.items() if name not in {"COLUMNS", "LINES", "NO_COLOR"}}
    if answer:
        os.write(outer, answer)
    process = subprocess.Popen(
        [sys.executable, "-m", "ptocache", *arguments],
        stdin=inner,
        stdout=inner,
        stderr=inner,
        env={**environ, "TERM": "xterm-256color", **more},
    )
    os.close(inner)
    seen = b""
    with contextlib.suppress(OSError):  # EIO: the other side is closed
        while chunk := os.read(outer, 65536):
            seen += chunk
    os.close(outer)
    return process.wait(timeout=60), seen.decode().replace("\r\n", "\n")


def plain(text: str) -> list[str]:
    return MARKS.sub("", text).splitlines()


@pytest.fixture
def some(tier: LocalTier) -> LocalTier:
    """Three entries that differ in all that can be sorted by."""
    for number, kernel, age, words in ((1, "b", 3, 3000), (2, "c", 1, 1000), (3, "a", 2, 2000)):
        put(tier, number, number, kernel, age=age * DAY, words=words)
    tier.close()
    return tier


class TestLines:
    def test_each_entry_is_a_line_with_its_fields_between_tabs(self, tier: LocalTier) -> None:
        put(tier, 1, 1, "attention", age=DAY)
        use(tier, 1, 3600)
        status, out, err = run("ls")
        assert (status, err, out.count("\n")) == (0, "", 1)
        name, kernels, arch, size, created, used, uses, seconds, toolchain, age = out.rstrip("\n").split("\t")
        assert (name, kernels, arch, size, uses) == (key(1).name, "attention", "a5", "4000", "0")
        assert abs(int(created) - time.time() + DAY) < 10
        assert abs(int(used) - time.time() + 3600) < 10
        assert (seconds, toolchain, age) == ("1.500", NEW, "-")

    def test_what_is_not_known_is_a_dash_and_no_field_is_empty(self, tier: LocalTier) -> None:
        tier.put([key(1)], made(1)._replace(action=made(1).action._replace(facts=b"{}")))
        fields = run("ls")[1].rstrip("\n").split("\t")
        assert (fields[1], fields[2], *fields[8:]) == ("-", "-", "-", "-")

    def test_a_kernel_with_a_tab_in_its_name_spoils_no_line(self, tier: LocalTier) -> None:
        put(tier, 1, 1, "a\tb\n\x1b[2J")
        _, out, _ = run("ls")
        assert out.count("\n") == 1
        assert out.split("\t")[1] == r"a\tb\n\x1b[2J"

    def test_nothing_is_no_line(self, directory: Path) -> None:
        assert run("ls") == (0, "", "")
        assert run("ls", "--json") == (0, "[]\n", "")
        assert not directory.exists()

    def test_rich_is_not_loaded(self, some: LocalTier) -> None:
        code = "import sys; from ptocache.cli import main; main(['ls']); sys.exit('rich' in sys.modules)"
        assert subprocess.run([sys.executable, "-c", code], stdout=subprocess.DEVNULL, check=False).returncode == 0

    def test_a_reader_that_leaves_is_no_error_message(self, some: LocalTier) -> None:
        read, write = os.pipe()
        os.close(read)
        result = subprocess.run(
            [sys.executable, "-m", "ptocache", "ls"], stdout=write, stderr=subprocess.PIPE, check=False
        )
        os.close(write)
        assert result.stderr == b""


class TestOrder:
    @pytest.mark.parametrize(
        ("words", "names"),
        [
            ((), "cab"),
            (("--sort", "age", "-r"), "bac"),
            (("--sort", "size"), "bac"),
            (("--sort", "kernel"), "abc"),
            (("--sort", "kernel", "--reverse", "--limit", "2"), "cb"),
            (("--sort", "size", "--limit", "1"), "b"),
            (("--limit", "9"), "cab"),
        ],
    )
    def test_entries_come_in_the_order_that_is_asked_for(
        self, some: LocalTier, words: tuple[str, ...], names: str
    ) -> None:
        assert "".join(row["kernels"][0] for row in facts("ls", *words)) == names

    def test_uses_and_seconds_are_those_that_were_counted(self, toolchain: Path) -> None:
        with CompileCache() as cache:
            results = [cache.compile(numbered_kernel(number)) for number in range(2)]
            for _ in range(3):
                cache.compile(numbered_kernel(1))
        first, second = facts("ls", "--sort", "uses")
        assert (first["key"], first["uses"]) == (results[1].key, 3)
        assert (second["key"], second["uses"]) == (results[0].key, 0)
        slow = max(results, key=lambda result: result.action.seconds)
        assert facts("ls", "--sort", "seconds")[0]["key"] == slow.key

    @pytest.mark.parametrize(
        ("words", "said"),
        [
            (("--limit", "0"), "--limit: expected a number from 1 on"),
            (("--limit", "x"), "--limit: expected a number from 1 on"),
            (("--sort", "colour"), "--sort"),
            (("extra",), "extra"),
        ],
    )
    def test_wrong_use_is_one_line(self, words: tuple[str, ...], said: str) -> None:
        status, out, err = run("ls", *words)
        assert (status, out, err.count("\n")) == (2, "", 1)
        assert said in err


class TestJson:
    def test_an_entry_has_all_that_is_known(self, tier: LocalTier) -> None:
        put(tier, 1, 1, "attention", toolchain=OLD)
        (row,) = facts("ls")
        assert set(row) == {
            *("key", "kind", "kernels", "arch", "toolchain", "version", "stale", "bytes"),
            *("variants", "created", "used", "uses", "seconds"),
        }
        assert (row["version"], row["stale"], row["kind"]) == ("8.5.0", None, "source")

    def test_stale_is_told_where_there_is_a_toolchain(self, tier: LocalTier, toolchain: Path) -> None:
        put(tier, 1, 1, toolchain=OLD)
        put(tier, 2, 2, kind="ascendc", toolchain=OLD)
        with CompileCache() as cache:
            cache.compile(KERNEL)
        stale = {row["toolchain"] + row["kind"]: row["stale"] for row in facts("ls")}
        assert [stale.pop(f"{OLD}{kind}") for kind in ("source", "ascendc")] == [True, None]
        assert list(stale.values()) == [False]
        assert [row["toolchain"] for row in facts("ls", "--stale")] == [OLD]

    def test_it_is_one_array_with_an_entry_a_line(self, some: LocalTier) -> None:
        out = run("ls", "--json")[1]
        assert out.count("\n") == 3
        assert len(json.loads(out)) == 3


class TestTable:
    def test_it_fits_a_terminal_of_80_columns(self, tier: LocalTier) -> None:
        put(tier, 1, 1, "a_kernel_with_quite_a_long_name_that_does_not_fit", toolchain="emulated-9.0.0.alpha1-aa-bb")
        put(tier, 2, 2, "核心" * 20, age=400 * DAY, words=250_000)
        put(tier, 3, 3, "short")
        status, shown = on_terminal("ls")
        lines = plain(shown)
        assert (status, len(lines)) == (0, 5)
        assert lines[0].split() == ["KERNEL", "ARCH", "SIZE", "AGE", "USED", "USES", "TIME", "TOOLCHAIN", "KEY"]
        assert all(len(line) <= 80 for line in lines)
        wide = next(line for line in lines if "核" in line)
        assert len(wide) + wide.count("核") + wide.count("心") <= 80
        assert "976.6K" in wide
        assert " 1y " in wide
        assert wide.endswith(key(2).name[:12])
        assert lines[-1].startswith("3 entries, ")

    def test_columns_give_way_where_there_is_no_room_and_not_the_one_that_is_sorted_by(self, some: LocalTier) -> None:
        _, shown = on_terminal("ls", "--sort", "seconds", columns=40)
        lines = plain(shown)
        assert "TIME" in lines[0]
        assert "USED" not in lines[0]
        assert all(len(line) <= 40 for line in lines)
        assert "TIME" in plain(on_terminal("ls", columns=120)[1])[0]

    def test_keys_that_begin_alike_are_shown_longer(self, tier: LocalTier) -> None:
        names = ["0" * 20 + digit * 12 for digit in "12"]
        for number, name in enumerate(names):
            tier.put([key(number)._replace(name=name)], made(number))
        _, shown = on_terminal("ls")
        assert {line.split()[-1] for line in plain(shown)[1:3]} == {name[:21] for name in names}

    def test_what_is_stale_is_marked_with_and_without_colours(self, tier: LocalTier, toolchain: Path) -> None:
        put(tier, 1, 1, toolchain=OLD)
        _, coloured = on_terminal("ls")
        _, grey = on_terminal("ls", NO_COLOR="1")
        assert "\x1b[33m" in coloured
        assert "\x1b" not in grey
        for shown in (coloured, grey):
            assert "8.5.0*" in shown
            assert "1 of another toolchain than today's (*)" in shown

    def test_nothing_is_said(self) -> None:
        assert on_terminal("ls") == (0, "no entries\n")

    def test_clear_lists_what_it_would_remove_and_asks_for_what_is_chosen(self, some: LocalTier) -> None:
        assert plain(on_terminal("clear", "--kernel", "[ab]", "--dry-run")[1])[-1].startswith("2 entries, ")
        status, shown = on_terminal("clear", "--kernel", "[ab]", answer=b"n\n")
        assert status == 1
        assert "Remove 2 entries, 19.5 KiB of device binaries, from " in shown
        assert len(facts("ls")) == 3
        status, shown = on_terminal("clear", "--kernel", "[ab]", answer=b"y\n")
        assert status == 0
        assert "removed 2 entries, " in shown
        assert [row["kernels"] for row in facts("ls")] == [["c"]]
        status, shown = on_terminal("clear", "--kernel", "nothing")
        assert (status, "Remove" in shown) == (0, False)


class TestFailures:
    def test_those_that_are_remembered_are_listed(self, toolchain: Path) -> None:
        assert run("ls", "--failures") == (0, "", "")
        with CompileCache() as cache, pytest.raises(SourceImportError):
            cache.compile(f"{KERNEL}\n1 / 0\n")
        (row,) = facts("ls", "--failures")
        assert (row["tool"], 0 <= row["age"] < 60) == ("frontend", True)
        assert run("ls", "--failures")[1].split("\t")[::3] == [row["key"], f"{row['summary']}\n"]
        (line,) = plain(on_terminal("ls", "--failures", columns=60)[1])
        assert row["key"][:12] in line
        assert len(line) <= 60


def test_looking_changes_nothing(some: LocalTier) -> None:
    def state() -> dict[Path, tuple[int, ...]]:
        found = Path(some.directory).glob("*/*")
        return {path: (path.stat().st_mtime_ns, path.stat().st_atime_ns) for path in found if "outputs" in path.parts}

    before = state()
    run("ls")
    run("clear", "--dry-run")
    assert state() == before


@pytest.mark.parametrize(
    ("seconds", "text"), [(-5, "0s"), (59.9, "59s"), (60, "1m"), (86399, "23h"), (40 * DAY, "40d"), (800 * DAY, "2y")]
)
def test_ages_are_short(seconds: float, text: str) -> None:
    assert short_seconds(seconds) == text


@pytest.mark.parametrize(
    ("size", "text"), [(0, "0B"), (999, "999B"), (1000, "1.0K"), (1023.96 * 1024, "1.0M"), (5 << 30, "5.0G")]
)
def test_sizes_are_short(size: float, text: str) -> None:
    assert short_bytes(size) == text


def test_the_help_has_examples() -> None:
    for name in ("ls", "show", "clear", "prune"):
        assert f"for example:\n  ptocache {name}" in run_ptocache(name, "--help").stdout
