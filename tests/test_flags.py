"""The flags of ptoas: one form for what is the same; some are refused, and some are in no key."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from conftest import KERNEL, ToolLog, run_ptocache
from hypothesis import given
from hypothesis import strategies as st

from ptocache import CompileCache
from ptocache.errors import SettingsError
from ptocache.request import DEFAULT_BACKEND, key_flags, make_key, make_request, pto_parts, source_parts

QUIET = ["-v", "--verbose", "-q", "--quiet"]

#: Flags that are refused: (as they are given, the option that the message must name)
REFUSED = [
    (["-o", "x"], "-o"),
    (["-o=x"], "-o=x"),
    (["--o=x"], "--o=x"),
    (["--output", "x"], "--output"),
    (["--output=x"], "--output=x"),
    (["-output", "x"], "-output"),
    (["--pto-arch=a3"], "--pto-arch=a3"),
    (["--pto-arch", "a3"], "--pto-arch"),
    (["-pto-arch=a3"], "-pto-arch=a3"),
    (["--version"], "--version"),
    (["-version"], "-version"),
    (["--help"], "--help"),
    (["-h"], "-h"),
    (["--pto-level=level3", "-o", "x"], "-o"),
]


def keys(flags: list[str] | str) -> tuple[object, object]:
    request = make_request(KERNEL, "a5", flags)
    return make_key(source_parts(request, "stamp")), make_key(pto_parts("module {}", request, "stamp"))


@pytest.mark.parametrize(
    "flags",
    [
        ["--pto-backend", "vpto"],
        ["--pto-backend=vpto"],
        ["-pto-backend=vpto"],
        ["-pto-backend", "vpto"],
        "--pto-backend vpto",
        "",
    ],
)
def test_all_ways_to_name_the_back_end_are_one_request(flags: list[str] | str) -> None:
    assert make_request(KERNEL, "a5", flags).flags == (DEFAULT_BACKEND,)


def test_the_back_end_keeps_its_place_among_the_flags() -> None:
    assert make_request(KERNEL, "a5", "-a --pto-backend vpto -b").flags == ("-a", "--pto-backend=vpto", "-b")
    assert make_request(KERNEL, "a5", "--pto-backend x --pto-backend=y").flags == ("--pto-backend=x", "--pto-backend=y")


@pytest.mark.parametrize("flags", [["--pto-backend"], ["--pto-backend="], ["--pto-backend", ""]])
def test_a_back_end_without_a_name_is_refused(flags: list[str]) -> None:
    with pytest.raises(SettingsError, match=r"--pto-backend.* needs a value"):
        make_request(KERNEL, "a5", flags)


@given(st.permutations(["--x=1", "--y", "-O3", "--x=2"]))
def test_the_order_of_flags_matters(flags: list[str]) -> None:
    ordered = ["--x=1", "--y", "-O3", "--x=2"]
    assert make_request(KERNEL, "a5", flags).flags == (*flags, DEFAULT_BACKEND)
    for key, other in zip(keys(ordered), keys(flags), strict=True):
        assert (key == other) == (flags == ordered)


@pytest.mark.parametrize(
    "flag", ["--new", "-new", "--outputs", "--opt", "-O", "-oo", "--versions", "--pto-archs=a3", "o", "h", "--", "-"]
)
def test_unknown_flags_stay_as_they_are_and_count(flag: str) -> None:
    assert make_request(KERNEL, "a5", [flag]).flags == (flag, DEFAULT_BACKEND)
    assert keys([flag]) != keys([])


@pytest.mark.parametrize(("flags", "named"), REFUSED)
def test_flags_that_direct_the_output_or_make_none_are_refused(flags: list[str], named: str) -> None:
    with pytest.raises(SettingsError) as caught:
        make_request(KERNEL, "a5", flags)
    assert repr(named) in str(caught.value)
    assert "cannot be passed on: " in str(caught.value)


def test_the_refusal_says_what_to_do_instead() -> None:
    with pytest.raises(SettingsError, match="use --arch or PTO_ARCH"):
        make_request(KERNEL, "a5", ["--pto-arch=a3"])


@pytest.mark.parametrize("flag", QUIET)
def test_flags_that_only_print_are_in_no_key(flag: str) -> None:
    assert keys([flag]) == keys([])
    assert keys(["--x", flag, "--y"]) == keys(["--x", "--y"])
    assert key_flags(["--x", flag]) == ["--x"]
    assert key_flags(["-mllvm", flag]) == ["-mllvm", flag], "a word of somebody else's"
    assert make_request(KERNEL, "a5", [flag]).flags == (flag, DEFAULT_BACKEND)


@pytest.mark.usefixtures("toolchain")
def test_flags_that_only_print_reach_ptoas_and_do_not_make_it_run_again(tool_log: ToolLog) -> None:
    with CompileCache() as cache:
        first = cache.compile(KERNEL, flags=["--x", *QUIET])
        second = cache.compile(KERNEL, flags=["--x"])
        third = cache.compile(KERNEL, flags=["--quiet", "--x"])
    assert (first.origin, second.origin, third.origin) == ("compiled", "memory", "memory")
    assert first.key == second.key == third.key
    (line,) = [line for line in tool_log.path.read_text().splitlines() if line.startswith("ptoas ")]
    assert f" --x {' '.join(QUIET)} --pto-backend=vpto " in line


@pytest.mark.usefixtures("toolchain")
def test_one_back_end_in_two_ways_is_compiled_once(tool_log: ToolLog) -> None:
    with CompileCache() as cache:
        origins = [cache.compile(KERNEL, flags=flags).origin for flags in (["--pto-backend", "vpto"], "", None)]
    assert origins == ["compiled", "memory", "memory"]
    assert tool_log.count("ptoas") == 1


class TestCommand:
    @pytest.fixture
    def source(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, toolchain: Path) -> Path:
        path = tmp_path / "kernel.py"
        path.write_text(KERNEL)
        monkeypatch.chdir(tmp_path)
        return path

    @pytest.mark.parametrize(("command", "flag"), [("compile", "-o"), ("compile", "--pto-arch=a3"), ("explain", "-h")])
    def test_a_refused_flag_is_wrong_use(self, source: Path, command: str, flag: str, tool_log: ToolLog) -> None:
        result = run_ptocache(command, source, f"--flag={flag}")
        assert result.returncode == 2
        assert result.stderr.count("\n") == 1
        assert repr(flag) in result.stderr
        assert result.stdout == ""
        assert tool_log.count("frontend") == 0

    def test_a_refused_flag_of_the_environment_is_wrong_use_too(
        self, source: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("PTO_FLAGS", "--pto-level=level3 -o elsewhere")
        result = run_ptocache("compile", source)
        assert result.returncode == 2
        assert result.stderr.count("\n") == 1
        assert "'-o'" in result.stderr
        assert "PTO_FLAGS" in result.stderr
        assert not (Path.cwd() / "elsewhere").exists()

    def test_flags_of_the_command_and_of_the_environment_are_the_same_request(
        self, source: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        given = run_ptocache("compile", source, "--flag=--pto-backend", "--flag=vpto", "--flag=--x", "--json")
        monkeypatch.setenv("PTO_FLAGS", "--verbose --pto-backend=vpto --x")
        found = run_ptocache("compile", source, "--json")
        assert [json.loads(result.stdout)["origin"] for result in (given, found)] == ["compiled", "local"]
        assert json.loads(found.stdout)["key"] == json.loads(given.stdout)["key"]
