"""Why a request hits or misses: `ptocache explain`, and the line that a miss writes with `PTOCACHE_LOG=debug`."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import KERNEL, ToolLog, numbered_kernel, run_ptocache

from ptocache import CompileCache, Settings
from ptocache.emulator import write_install
from ptocache.errors import SourceError, SourceImportError
from ptocache.explain import Explanation, explain
from ptocache.request import Key
from ptocache.store.entry import make_entry
from ptocache.store.local import LocalTier
from ptocache.store.upkeep import clear

OTHER = KERNEL.replace("main_kernel", "other_kernel")
HELPED = KERNEL.replace("pto.init_core()", "pto.init_core()\n  tiles.prepare()").replace(
    "from ptodsl import pto\n", "from ptodsl import pto\nimport tiles\n"
)


@pytest.fixture
def install(toolchain: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An install of the test's own, which it may change."""
    return use(Path(shutil.copytree(toolchain, tmp_path / "cann", symlinks=True)), monkeypatch)


def use(home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make an install the one that is used."""
    monkeypatch.setenv("ASCEND_HOME_PATH", str(home))
    monkeypatch.setenv("PTOAS_BIN", str(home / "bin" / "ptoas"))
    monkeypatch.setenv("PYTHONPATH", str(home / "python"))
    return home


@pytest.fixture
def helper(install: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A helper module that `HELPED` imports."""
    path = tmp_path / "lib" / "tiles.py"
    path.parent.mkdir()
    path.write_text("from ptodsl import pto\n\n\ndef prepare():\n  pto.barrier(1)\n")
    monkeypatch.setenv("PYTHONPATH", f"{install / 'python'}:{path.parent}")
    return path


@pytest.fixture(scope="module")
def compiled(cann: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache directory that holds `KERNEL`, for being copied: most tests begin with it."""
    directory = tmp_path_factory.mktemp("compiled") / "cache"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", f"{cann / 'bin'}:{os.environ['PATH']}")
        use(cann, patch)
        with CompileCache(Settings.load({}, dir=directory)) as cache:
            assert cache.compile(KERNEL, "a5", []).origin == "compiled"
    return directory


@pytest.fixture
def kernel_stored(toolchain: Path, compiled: Path, tmp_path: Path) -> None:
    """`KERNEL` has been compiled."""
    shutil.copytree(compiled, tmp_path / "cache")


def stored(source: str) -> None:
    with CompileCache() as cache:
        cache.compile(source)


def explained(source: str = KERNEL, **arguments: object) -> Explanation:
    with CompileCache() as cache:
        return explain(cache, cache.prepare(source, **arguments))  # type: ignore[arg-type]


def differences(explanation: Explanation) -> dict[str, tuple[str, str]]:
    assert explanation.hit is None
    assert explanation.nearest is not None
    return {part: (old, new) for part, old, new in explanation.nearest.differences}


@pytest.mark.usefixtures("toolchain")
class TestHits:
    def test_a_hit_tells_where_it_is_and_what_its_key_is_made_of(self) -> None:
        with CompileCache() as cache:
            compiled = cache.compile(KERNEL)
        found = explained()
        assert (found.key, found.hit, found.nearest, found.failure) == (compiled.key, "local", None, None)
        names = [name for name, _ in found.parts]
        assert names[:3] == ["source", "arch", "flags"]
        assert {"cann", "bisheng", "ld.lld", "ptoas", "ptodsl", "python", "variables"} <= set(names)
        parts = dict(found.parts)
        assert (parts["arch"], parts["flags"]) == ("a5", "--pto-backend=vpto")
        assert "version=9.0.0" in parts["cann"]

    def test_it_names_what_the_lowering_read(self, helper: Path) -> None:
        stored(HELPED)
        assert ("file", "tiles.py") in [(item.kind, item.name) for item in explained(HELPED).inputs]

    @pytest.mark.parametrize("setting", ["disable", "recompile", "verify"])
    @pytest.mark.usefixtures("kernel_stored")
    def test_a_setting_that_makes_it_compile_all_the_same_is_named(
        self, setting: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        assert explained().notes == []
        monkeypatch.setenv(f"PTOCACHE_{setting.upper()}", "1")
        (note,) = explained().notes
        assert f"PTOCACHE_{setting.upper()}" in note


class TestDifferences:
    def test_nothing_is_stored(self, toolchain: Path) -> None:
        found = explained()
        assert (found.hit, found.nearest, found.failure) == (None, None, None)

    @pytest.mark.usefixtures("kernel_stored")
    def test_a_changed_source_is_a_diff(self, toolchain: Path) -> None:
        found = explained(numbered_kernel(3))
        assert list(differences(found)) == ["source"]
        assert found.nearest is not None
        assert found.nearest.kernels == ["main_kernel"]
        assert found.nearest.diff.startswith("--- stored\n+++ now\n@@ ")
        assert '-  pto.set_flag("MTE2", "MTE3", event_id=0)\n' in found.nearest.diff
        assert '+  pto.set_flag("MTE2", "MTE3", event_id=3)\n' in found.nearest.diff
        assert len(found.nearest.diff.splitlines()) < len(KERNEL.splitlines())

    @pytest.mark.usefixtures("kernel_stored")
    def test_a_diff_shows_line_ends(self, toolchain: Path) -> None:
        found = explained(KERNEL.removesuffix("\n"))
        assert found.nearest is not None
        assert found.nearest.diff.endswith("\n\\ No newline at end of file\n")
        changed = explained(KERNEL.replace("\n", "\r\n", 1)).nearest
        assert changed is not None
        assert "+from ptodsl import pto\r\n" in changed.diff

    @pytest.mark.usefixtures("kernel_stored")
    def test_another_arch(self, toolchain: Path) -> None:
        assert differences(explained(arch="a3")) == {"arch": ("a5", "a3")}

    @pytest.mark.usefixtures("kernel_stored")
    def test_another_flag(self, toolchain: Path) -> None:
        found = differences(explained(flags=["--pto-level=level3"]))
        assert found == {"flags": ("--pto-backend=vpto", "--pto-level=level3 --pto-backend=vpto")}

    @pytest.mark.usefixtures("kernel_stored")
    def test_a_flag_that_only_prints_is_no_difference(self, toolchain: Path) -> None:
        assert explained(flags=["-v"]).hit == "local"

    @pytest.mark.usefixtures("kernel_stored")
    def test_another_cann_shows_both_versions(
        self, install: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        use(write_install(tmp_path / "newer", "9.1.0"), monkeypatch)
        old, new = differences(explained())["cann"]
        assert "version=9.0.0" in old.splitlines()
        assert "version=9.1.0" in new.splitlines()
        assert "os=linux" not in (old + new).splitlines(), "what is the same is no difference"

    @pytest.mark.usefixtures("kernel_stored")
    def test_another_bisheng(self, install: Path) -> None:
        append(install / "bin" / "bisheng")
        found = differences(explained())
        assert list(found) == ["bisheng"]
        old, new = found["bisheng"]
        assert re.fullmatch("[0-9a-f]{32}", old)
        assert re.fullmatch("[0-9a-f]{32}", new)
        assert old != new

    @pytest.mark.usefixtures("kernel_stored")
    def test_another_ptodsl(self, install: Path) -> None:
        append(install / "python" / "ptodsl" / "__init__.py")
        assert list(differences(explained())) == ["ptodsl"]

    @pytest.mark.usefixtures("kernel_stored")
    def test_a_variable_of_the_tools(self, toolchain: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("CPATH", "/headers")
        assert differences(explained()) == {"variables": ("", "CPATH=/headers")}

    @pytest.mark.parametrize(
        ("change", "now"),
        [(lambda path: path.write_text(path.read_text() + "# more\n"), "[0-9a-f]{32}"), (os.unlink, "")],
    )
    def test_a_helper_is_named(self, helper: Path, change: Callable[[Path], object], now: str) -> None:
        stored(HELPED)
        change(helper)
        found = differences(explained(HELPED))
        assert list(found) == ["file tiles.py"]
        old, new = found["file tiles.py"]
        assert re.fullmatch("[0-9a-f]{32}", old)
        assert re.fullmatch(now, new)
        assert old != new

    @pytest.mark.usefixtures("kernel_stored")
    def test_an_output_that_is_gone_is_a_miss_without_a_difference(self, toolchain: Path, tmp_path: Path) -> None:
        shutil.rmtree(tmp_path / "cache" / "outputs")
        assert differences(explained()) == {}
        assert "its output is gone" in run_explain(KERNEL, tmp_path)


@pytest.mark.usefixtures("toolchain")
class TestNearest:
    def test_the_same_kernels_come_first(self) -> None:
        """The other source differs in nothing else; the one with the same kernel differs in three parts."""
        with CompileCache() as cache:
            expected = cache.compile(numbered_kernel(1), arch="a3", flags=["--x"]).key
            cache.compile(OTHER)
        nearest = explained(KERNEL).nearest
        assert nearest is not None
        assert nearest.key == expected

    def test_then_the_most_equal_parts_then_the_newest(self) -> None:
        with CompileCache() as cache:
            cache.compile(numbered_kernel(1), arch="a3")
            equal = cache.compile(numbered_kernel(2)).key
            cache.compile(numbered_kernel(3), flags=["--x"])
        nearest = explained(KERNEL).nearest
        assert nearest is not None
        assert nearest.key == equal
        with CompileCache() as cache:
            newest = cache.compile(numbered_kernel(4)).key
        nearest = explained(KERNEL).nearest
        assert nearest is not None
        assert nearest.key == newest

    @pytest.mark.usefixtures("kernel_stored")
    def test_what_was_cleared_is_not_there(self) -> None:
        with CompileCache() as cache:
            clear(cache.local)
        found = explained(numbered_kernel(1))
        assert (found.hit, found.nearest) == (None, None)

    @pytest.mark.parametrize("damage", ["foreign", "truncated", "empty", "directory", "other", "missing"])
    @pytest.mark.usefixtures("kernel_stored")
    def test_a_damaged_source_gives_no_diff_and_no_crash(self, damage: str, tmp_path: Path) -> None:
        (kept,) = [path for path in (tmp_path / "cache" / "sources").rglob("*") if path.is_file()]
        data = kept.read_bytes()
        assert zlib.decompress(data).decode() == KERNEL
        kept.unlink()
        if damage == "directory":
            kept.mkdir()
        elif damage != "missing":
            texts = {"foreign": b"no zlib", "truncated": data[:-9], "empty": b"", "other": zlib.compress(b"x = 1\n")}
            kept.write_bytes(texts[damage])
        found = explained(numbered_kernel(1))
        assert list(differences(found)) == ["source"]
        assert found.nearest is not None
        assert found.nearest.diff == ""

    @pytest.mark.parametrize("facts", [{}, {"kernels": ["main_kernel"]}, {"kernels": 1, "flags": 2}])
    def test_an_action_that_is_not_ours_is_passed_over(self, facts: dict[str, object], tmp_path: Path) -> None:
        foreign = make_entry(b"x", seconds=1, created=time.time(), facts=facts)
        LocalTier(str(tmp_path / "cache")).put([Key("ab" * 16, b"c" * 32)], foreign)
        found = explained()
        assert (found.hit, found.nearest) == (None, None)
        stored(KERNEL)
        assert list(differences(explained(numbered_kernel(1)))) == ["source"]

    @pytest.mark.parametrize("source", ["def broken(:\n", "x = 1\n"])
    @pytest.mark.usefixtures("kernel_stored")
    def test_a_source_that_cannot_be_compiled_says_why(self, source: str) -> None:
        with pytest.raises(SourceError):
            explained(source)

    def test_a_remembered_failure_is_told(self) -> None:
        broken = f"{KERNEL}\n1 / 0\n"
        with CompileCache() as cache, pytest.raises(SourceImportError):
            cache.compile(broken)
        failure = explained(broken).failure
        assert failure is not None
        assert "ZeroDivisionError" in failure
        assert "remembered" in failure


@pytest.mark.usefixtures("toolchain")
def test_it_compiles_nothing_and_changes_nothing(tmp_path: Path, tool_log: ToolLog) -> None:
    """But for the digests of files, which it may add. Not even what is damaged or outdated is removed."""
    cache_directory = tmp_path / "cache"
    broken = f"{KERNEL}\n1 / 0\n"
    with CompileCache() as cache:
        damaged = cache.compile(numbered_kernel(1))
        cache.compile(numbered_kernel(2))
        with pytest.raises(SourceImportError):
            cache.compile(broken)
    output = cache_directory / "outputs" / damaged.sha256
    output.write_bytes(b"damaged")
    for path in [*(cache_directory / "outputs").rglob("*"), *(cache_directory / "failures").rglob("*")]:
        os.utime(path, (1e9, 1e9))
    runs = tool_log.path.read_text()

    before = snapshot(cache_directory)
    assert len(before) > 8
    hits = [explained(source).hit for source in (numbered_kernel(1), numbered_kernel(2), broken, OTHER)]
    assert hits == [None, "local", None, None]
    assert snapshot(cache_directory) == before
    assert tool_log.path.read_text() == runs


def test_in_an_empty_place_it_makes_nothing(toolchain: Path, tmp_path: Path) -> None:
    explained()
    assert not (tmp_path / "cache").exists()


def append(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b"\n# changed\n")


def snapshot(directory: Path) -> dict[str, tuple[int, bytes]]:
    return {
        str(path.relative_to(directory)): (path.stat().st_mtime_ns, path.read_bytes() if path.is_file() else b"")
        for path in directory.rglob("*")
        if path.name != "digests"
    }


def run_explain(source: str, folder: Path, *arguments: str) -> str:
    path = folder / "kernel.py"
    path.write_bytes(source.encode())
    result = run_ptocache("explain", path, *arguments)
    assert result.returncode == 0, result.stderr
    assert result.stderr == ""
    return result.stdout


class TestCommand:
    def test_people_read_a_miss_then_a_hit(self, tmp_path: Path) -> None:
        page = run_explain(KERNEL, tmp_path, "--emulate")
        assert re.match(r"miss: key [0-9a-f]{32}\n\nparts of the key\n  source  +[0-9a-f]{32}\n  arch  +a5\n", page)
        assert page.endswith("\nnothing is stored yet to compare it with\n")
        assert run_ptocache("compile", tmp_path / "kernel.py", "--emulate", "-o", tmp_path / "out").returncode == 0
        assert re.match(r"hit, local: key [0-9a-f]{32}\n", run_explain(KERNEL, tmp_path, "--emulate"))

    def test_people_read_what_differs(self, toolchain: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        with CompileCache() as cache:
            key = cache.compile(KERNEL).key
        use(write_install(tmp_path / "newer", "9.1.0"), monkeypatch)
        page = run_explain(numbered_kernel(3), tmp_path, "--arch=a3", "--flag=--x")
        assert f"\nnearest stored: {key} (main_kernel), of 20" in page
        assert re.search(r"\n  arch  +a5 -> a3\n", page)
        assert re.search(r"\n  flags  +--pto-backend=vpto -> --x --pto-backend=vpto\n", page)
        assert re.search(r"\n  cann  +version=9\.0\.0, .* -> version=9\.1\.0, ", page)
        assert "\n--- stored\n+++ now\n" in page
        assert max(map(len, page.splitlines())) < 500

    @pytest.mark.usefixtures("kernel_stored")
    def test_json_is_one_object(self, toolchain: Path, tmp_path: Path) -> None:
        hit = json.loads(run_explain(KERNEL, tmp_path, "--json"))
        text = run_explain(numbered_kernel(1), tmp_path, "--json")
        assert text.count("\n") == 1
        miss = json.loads(text)
        for facts in (hit, miss):
            assert {"key", "hit", "parts", "inputs", "nearest", "failure", "notes"} == set(facts)
            assert facts["parts"]["arch"] == "a5"
        assert (hit["hit"], hit["nearest"]) == ("local", None)
        assert miss["hit"] is None
        assert miss["nearest"]["key"] == hit["key"]
        assert [difference["part"] for difference in miss["nearest"]["differences"]] == ["source"]
        assert "event_id=1" in miss["nearest"]["diff"]

    def test_a_kept_source_cannot_command_the_terminal(self, toolchain: Path, tmp_path: Path) -> None:
        stored(f"{KERNEL}# \x1b[2J\x9b\r\n")
        page = run_explain(KERNEL, tmp_path)
        assert "-# \\x1b[2J\\x9b" in page
        assert not re.search(r"[^\n -~]", page)

    def test_a_remembered_failure_is_shown_whole(self, toolchain: Path, tmp_path: Path) -> None:
        broken = f"{KERNEL}\n1 / 0\n"
        with CompileCache() as cache, pytest.raises(SourceImportError):
            cache.compile(broken)
        page = run_explain(broken, tmp_path)
        assert page.startswith("miss: ")
        assert "\nremembered failure" in page
        assert "ZeroDivisionError: division by zero" in page
        assert "PTOCACHE_FAILURE_TTL" in page

    def test_a_source_that_does_not_parse_is_one_message(self, toolchain: Path, tmp_path: Path) -> None:
        path = tmp_path / "kernel.py"
        path.write_text("def broken(:\n")
        result = run_ptocache("explain", path)
        assert (result.returncode, result.stdout) == (1, "")
        assert result.stderr.startswith("ptocache: line 1: ")
        assert result.stderr.count("\n") == 1

    def test_without_a_toolchain_it_is_one_message(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("PATH", str(tmp_path))
        path = tmp_path / "kernel.py"
        path.write_text(KERNEL)
        result = run_ptocache("explain", path)
        assert (result.returncode, result.stdout) == (1, "")
        assert result.stderr.startswith("ptocache: cannot compile PTO kernels here")
        assert "Traceback" not in result.stderr

    def test_a_missing_file_is_wrong_use(self, toolchain: Path, tmp_path: Path) -> None:
        result = run_ptocache("explain", tmp_path / "missing.py")
        assert (result.returncode, result.stdout) == (2, "")
        assert "missing.py" in result.stderr


class TestLog:
    """One line a miss that says why."""

    COMPILE = """
import sys, ptocache
for source in sys.stdin.read().split("\\f"):
    try:
        ptocache.compile(source)
    except ptocache.PtocacheError:
        pass
"""

    def reasons(self, *sources: str, **settings: str) -> list[str]:
        environ = {**os.environ, "PTOCACHE_LOG": "debug", **settings}
        command = [sys.executable, "-c", self.COMPILE]
        done = subprocess.run(
            command, input="\f".join(sources), env=environ, capture_output=True, text=True, check=True
        )
        return re.findall(r"^ptocache: DEBUG: miss [0-9a-f]{32}: (.*)$", done.stderr, re.MULTILINE)

    def test_a_miss_is_one_line_and_a_hit_none(self, toolchain: Path) -> None:
        (reason,) = self.reasons(KERNEL, KERNEL)
        assert reason == "nothing is stored yet"
        (reason,) = self.reasons(KERNEL, numbered_kernel(1))
        assert re.fullmatch(
            r"of the stored compilations [0-9a-f]{32} \(main_kernel\) is nearest; different: source", reason
        )

    def test_a_changed_helper_is_named(self, helper: Path) -> None:
        stored(HELPED)
        append(helper)
        (reason,) = self.reasons(HELPED)
        assert reason.endswith("different: file tiles.py")

    @pytest.mark.usefixtures("kernel_stored")
    def test_a_changed_tool_is_named(self, install: Path) -> None:
        append(install / "bin" / "ld.lld")
        (reason,) = self.reasons(KERNEL)
        assert reason.endswith("different: ld.lld")

    @pytest.mark.usefixtures("kernel_stored")
    def test_recompiling_is_a_reason(self, toolchain: Path) -> None:
        assert self.reasons(KERNEL, PTOCACHE_RECOMPILE="1") == ["PTOCACHE_RECOMPILE is set"]

    def test_a_source_that_cannot_be_compiled_is_one_line_too(self, toolchain: Path) -> None:
        assert len(self.reasons("def broken(:\n")) == 1

    def test_a_remembered_failure_is_a_reason(self, toolchain: Path) -> None:
        broken = f"{KERNEL}\n1 / 0\n"
        assert self.reasons(broken, broken) == ["nothing is stored yet", "a failure is remembered"]

    def test_a_cache_that_cannot_be_explained_compiles(self, toolchain: Path, tmp_path: Path) -> None:
        foreign = make_entry(b"x", seconds=1, created=time.time(), facts={})._replace()
        foreign = foreign._replace(action=foreign.action._replace(facts=b"no JSON"))
        LocalTier(str(tmp_path / "cache")).put([Key("ab" * 16, b"c" * 32)], foreign)
        assert self.reasons(KERNEL) == ["nothing is stored yet"]
        with CompileCache(Settings.load(readonly=True)) as cache:
            assert cache.compile(KERNEL).origin == "local"
