"""Showing an entry: all of it, whatever it is named by, and what is damaged."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from conftest import KERNEL
from test_catalog import directory, facts, made, put, run, tier
from test_ls import on_terminal
from test_sharing import key

from ptocache import CompileCache, CompileResult
from ptocache.aibin import sections, symbols
from ptocache.cli.show import complete_key
from ptocache.errors import DeviceBinaryError, SourceImportError
from ptocache.inputs import Input, encode_inputs
from ptocache.store.local import LocalTier

__all__ = ["directory", "tier"]  # fixtures


@pytest.fixture
def result(toolchain: Path) -> CompileResult:
    with CompileCache() as cache:
        result = cache.compile(KERNEL, "a5", ["--pto-level=level3"])
        cache.compile(KERNEL, "a5", ["--pto-level=level3"])
    return result


def output_of(result: CompileResult) -> Path:
    return Path(os.environ["PTOCACHE_DIR"]) / "outputs" / result.sha256


def one_line(words: tuple[str, ...], status: int) -> str:
    found, out, err = run("show", *words)
    assert (found, out, err.count("\n")) == (status, "", 1), err
    return err


class TestPage:
    def test_it_has_all_that_is_known(self, result: CompileResult) -> None:
        status, out, err = run("show", result.key)
        assert (status, err) == (0, "")
        for words in (
            f"key {result.key}",
            "main_kernel",
            "--pto-level=level3 --pto-backend=vpto",
            "emulated-9.0.0-",
            "(today's)",
            "kept, ",
            "ptoas --version",
            "package_name=Ascend-cann-toolkit",
            "tilelang/contrib/ptodsl.py" if result.action.inputs else "",
            result.sha256,
            ".symtab",
            "FUNC    GLOBAL",
        ):
            assert words in out
        assert "uses              1\n" in out

    def test_json_has_the_same(self, result: CompileResult) -> None:
        found = facts("show", result.key)
        assert list(found) == ["key", "source_bytes", "uses", "actions", "failure"]
        assert (found["key"], found["uses"], found["failure"]) == (result.key, 1, None)
        assert found["source_bytes"] == len(KERNEL)
        (action,) = found["actions"]
        assert action["sha256"] == result.sha256
        assert action["bytes"] == len(result.aibin)
        assert (action["stale"], action["of_pto_key"], action["problem"]) == (False, False, "")
        assert action["stamp"]["python"].startswith("cpython 3.")
        assert [one["name"] for one in action["symbols"]] == ["main_kernel"]
        assert ".text" in [one["name"] for one in action["sections"]]

    def test_control_characters_do_nothing_to_a_terminal(self, tier: LocalTier) -> None:
        put(tier, 1, 1, "a\x1b[2Jb")
        assert r"a\x1b[2Jb" in run("show", key(1).name)[1]

    def test_the_variants_of_a_key_come_one_after_the_other(self, tier: LocalTier) -> None:
        for number in (1, 2):
            put(tier, "a", number, inputs=encode_inputs((Input("variable", f"X{number}", "d"),)))
        out = run("show", key("a").name)[1]
        assert out.index("compilation 1 of 2") < out.index("X2") < out.index("compilation 2 of 2") < out.index("X1")

    def test_what_only_a_pto_key_has(self, result: CompileResult) -> None:
        with CompileCache() as cache:
            (name,) = {name for name, _ in cache.local.all_actions()} - {result.key}
        assert "the text that a source was lowered to" in run("show", name)[1]
        assert "the source of" in one_line((name, "--source"), 1)

    def test_it_does_not_count_as_a_use(self, result: CompileResult) -> None:
        before = output_of(result).stat()
        run("show", result.key)
        after = output_of(result).stat()
        assert (before.st_atime_ns, before.st_mtime_ns) == (after.st_atime_ns, after.st_mtime_ns)


class TestNames:
    def test_the_first_digits_will_do(self, result: CompileResult) -> None:
        for name in (result.key[:4], result.key[:12].upper(), result.sha256[:8], result.sha256):
            assert facts("show", name)["key"] == result.key

    def test_several_that_begin_so_are_named(self, tier: LocalTier) -> None:
        for number in range(5):
            tier.put([key(number)._replace(name=f"abcd{number}" + "0" * 27)], made(number))
        error = one_line(("abcd",), 2)
        assert "abcd stands for 5 keys: abcd00000000, abcd10000000, abcd20000000 and 2 more" in error
        assert run("show", "abcd4")[1].startswith("key abcd4000")

    @pytest.mark.parametrize("name", ["abc", "", "xyz12", "../../etc", "0" * 65, "ab cd"])
    def test_what_is_no_key_is_wrong_use(self, name: str) -> None:
        assert "at least 4 hexadecimal digits" in one_line((name,), 2)

    def test_what_is_not_stored_is_said(self) -> None:
        assert "nothing is stored under a key that begins with abcd" in one_line(("abcd",), 1)

    def test_a_shell_completes_keys(self, result: CompileResult) -> None:
        assert complete_key(result.key[:2]) == [result.key]
        assert complete_key("") == complete_key("xy") == []


class TestOutput:
    def test_the_device_binary_is_written(self, result: CompileResult, tmp_path: Path) -> None:
        first, second = tmp_path / "first.aibin", tmp_path / "second.aibin"
        status, out, err = run("show", result.key, "-o", str(first))
        assert (status, err) == (0, "")
        assert out == f"{first}: 14.7 KiB, SHA-256 {result.sha256}\n"
        assert first.read_bytes() == result.aibin
        assert facts("show", result.key, "-o", str(second))["key"] == result.key
        assert second.read_bytes() == result.aibin

    def test_of_several_one_has_to_be_named(self, tier: LocalTier, tmp_path: Path) -> None:
        out = str(tmp_path / "out")
        for number in (1, 2):
            put(tier, "a", number, inputs=encode_inputs((Input("variable", "X", str(number)),)))
        error = one_line((key("a").name, "-o", out), 2)
        sha256 = made(1).action.sha256.hex()
        assert "has 2 device binaries" in error
        assert sha256[:12] in error
        run("show", sha256, "-o", out)
        assert Path(out).read_bytes() == made(1).aibin

    def test_where_it_cannot_be_written_is_said(self, result: CompileResult) -> None:
        assert "/no/such/place" in one_line((result.key, "-o", "/no/such/place"), 2)

    def test_the_source_is_printed_as_it_was(self, result: CompileResult) -> None:
        assert run("show", result.key, "--source") == (0, KERNEL, "")

    def test_on_a_terminal_a_source_does_nothing_to_it(self, toolchain: Path) -> None:
        with CompileCache() as cache:
            name = cache.compile(f"{KERNEL}# \x1b[2J\n").key
        _, shown = on_terminal("show", name, "--source")
        assert "\x1b" not in shown
        assert r"# \x1b[2J" in shown

    def test_source_and_json_do_not_go_together(self, result: CompileResult) -> None:
        assert "--json" in one_line((result.key, "--source", "--json"), 2)


class TestDamage:
    @pytest.mark.parametrize("is_gone", [False, True])
    def test_a_damaged_output_is_said_and_the_rest_is_shown(
        self, result: CompileResult, is_gone: bool, tmp_path: Path
    ) -> None:
        path = output_of(result)
        if is_gone:
            path.unlink()
        else:
            path.write_bytes(result.aibin[:-1] + b"!")
        status, out, err = run("show", result.key)
        assert (status, err) == (1, "")
        assert ("the output is gone" if is_gone else "does not match the digest") in out
        assert "--pto-level=level3" in out
        status, out, _ = run("show", result.key, "--json")
        assert status == 1
        assert json.loads(out)["actions"][0]["sections"] == []
        assert "nothing is written" in one_line((result.key, "-o", str(tmp_path / "out")), 1)
        assert not (tmp_path / "out").exists()
        assert path.exists() is not is_gone
        assert run("show", result.key, "--source") == (0, KERNEL, "")

    def test_what_is_no_elf_file_is_said(self, tier: LocalTier) -> None:
        put(tier, 1, 1)
        status, out, _ = run("show", key(1).name)
        assert status == 1
        assert "expected an ELF64 file" in out

    def test_damaged_actions_are_one_line_and_stay(self, result: CompileResult) -> None:
        path = Path(os.environ["PTOCACHE_DIR"]) / "actions" / result.key
        path.write_bytes(b"x")
        assert "damaged" in one_line((result.key,), 1)
        assert path.read_bytes() == b"x"

    def test_a_device_binary_that_is_cut_short_has_no_sections(self, result: CompileResult) -> None:
        for look in (sections, symbols):
            for size in (0, 10, 64, len(result.aibin) - 1):
                with pytest.raises(DeviceBinaryError):
                    look(result.aibin[:size])


class TestFailures:
    def test_a_remembered_failure_is_shown_with_what_the_tool_said(self, toolchain: Path) -> None:
        bad = f"{KERNEL}\n1 / 0\n"
        with CompileCache() as cache:
            with pytest.raises(SourceImportError):
                cache.compile(bad)
            name = cache.prepare(bad).key.name
        status, out, err = run("show", name[:8])
        assert (status, err) == (0, "")
        assert "remembered failure of frontend, exit status 4, " in out
        assert "ZeroDivisionError: division by zero" in out
        found: dict[str, Any] = facts("show", name)
        assert (found["actions"], found["failure"]["tool"]) == ([], "frontend")
        assert "a failure that is remembered" in one_line((name, "-o", "/dev/null"), 1)
