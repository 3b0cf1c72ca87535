"""What a lowering read beside its source: helpers, data files and variables decide whether a stored action answers."""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import KERNEL, ToolLog, numbered_kernel
from hypothesis import given
from hypothesis import strategies as st

from ptocache import CompileCache, Settings, emulator
from ptocache.digests import Digests
from ptocache.frontend import CompileResult
from ptocache.inputs import (
    ABSENT,
    FILE,
    VARIABLE,
    Checker,
    Input,
    Unstable,
    decode_inputs,
    encode_inputs,
    read_report,
)

pytestmark = pytest.mark.usefixtures("toolchain")

#: A kernel whose text has a number in it that EVENT gives.
USES_EVENT = KERNEL.replace("event_id=0", "event_id=EVENT")


class Runs:
    """Compiles in one cache after the other, and tells of each compilation whether the frontend ran for it."""

    def __init__(self, log: ToolLog) -> None:
        self._log = log

    def __call__(self, source: str, cache: CompileCache | None = None) -> tuple[bool, CompileResult]:
        before = self._log.count("frontend")
        if cache is None:
            with CompileCache() as cache:
                result = cache.compile(source)
        else:
            result = cache.compile(source)
        return self._log.count("frontend") > before, result


@pytest.fixture(scope="module")
def known(cann: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache that knows the device binaries of all kernels here by their lowered text: only lowering takes time."""
    directory = tmp_path_factory.mktemp("known") / "cache"
    with pytest.MonkeyPatch.context() as patch:
        for name, value in emulator.environment(cann, os.environ).items():
            patch.setenv(name, value)
        with CompileCache(Settings.load(dir=directory)) as cache:
            for number in range(1, 8):
                cache.compile(numbered_kernel(number))
    return directory


@pytest.fixture
def run(tool_log: ToolLog, known: Path, tmp_path: Path) -> Runs:
    shutil.copytree(known, tmp_path / "cache")
    return Runs(tool_log)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An import root of the test's own, first on PYTHONPATH."""
    path = tmp_path / "site"
    path.mkdir()
    monkeypatch.setenv("PYTHONPATH", f"{path}:{os.environ['PYTHONPATH']}")
    return path


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def stored(cache: CompileCache, result: CompileResult) -> set[tuple[str, str]]:
    """The kinds and names of the inputs of all actions under a result's key."""
    found = set()
    for action in cache.local.actions(result.key):
        inputs = decode_inputs(action.inputs)
        assert inputs is not None
        found |= {(item.kind, item.name) for item in inputs}
    return found


def inputs_of(result: CompileResult) -> set[tuple[str, str]]:
    with CompileCache() as cache:
        return stored(cache, result)


class TestHelpers:
    def test_a_changed_helper_is_compiled_and_changed_back_is_a_hit_without_a_lowering(
        self, run: Runs, site: Path
    ) -> None:
        """The two versions differ in one character and follow at once: no size and no second tells them apart."""
        source = "import tilelang.contrib.ptodsl as tl\n" + USES_EVENT.replace("EVENT", "tl.EVENT")
        helper = site / "tilelang" / "contrib" / "ptodsl" / "__init__.py"
        for parent in ("tilelang", "tilelang/contrib"):  # or an installed TileLang would be found first
            write(site / parent / "__init__.py", "")
        write(helper, "EVENT = 1\n")
        lowered, first = run(source)
        assert lowered
        assert not run(source)[0]
        write(helper, "EVENT = 2\n")
        lowered, second = run(source)
        assert (lowered, second.key) == (True, first.key)
        assert second.aibin != first.aibin
        write(helper, "EVENT = 1\n")
        lowered, third = run(source)
        assert (lowered, third.origin, third.via) == (False, "local", "source")
        assert third.aibin == first.aibin
        write(helper, "EVENT = 2\n")
        assert run(source)[1].aibin == second.aibin

    def test_the_memory_tier_honours_inputs_and_holds_variants(self, run: Runs, site: Path) -> None:
        source = "from helper import EVENT\n" + USES_EVENT
        with CompileCache() as cache:
            write(site / "helper.py", "EVENT = 1\n")
            first = run(source, cache)[1]
            write(site / "helper.py", "EVENT = 2\n")
            lowered, second = run(source, cache)
            assert (lowered, second.via) == (True, "pto")
            for number, expected in ((1, first), (2, second)):
                write(site / "helper.py", f"EVENT = {number}\n")
                lowered, again = run(source, cache)
                assert (lowered, again.origin, again.aibin) == (False, "memory", expected.aibin)

    def test_a_compiled_file_of_an_earlier_helper_is_not_believed(self, run: Runs, site: Path) -> None:
        """As Python leaves it when a helper is changed twice in a second: size and second are noted in it."""
        import py_compile

        helper = write(site / "helper.py", "EVENT = 1\n")
        py_compile.compile(str(helper), doraise=True)
        status = helper.stat()
        write(helper, "EVENT = 2\n")
        os.utime(helper, ns=(status.st_atime_ns, status.st_mtime_ns))
        changed = run("from helper import EVENT\n" + USES_EVENT)[1]
        assert changed.aibin == run(USES_EVENT.replace("EVENT", "2"))[1].aibin

    def test_a_compiled_file_beside_an_installed_module_is_used_where_it_is_surely_of_it(
        self, run: Runs, site: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        import py_compile

        packages = site / "site-packages"
        monkeypatch.setenv("PYTHONPATH", f"{packages}:{os.environ['PYTHONPATH']}")
        helper = write(packages / "helper.py", "EVENT = 1\n")
        long_ago = time.time_ns() - 3600 * 10**9
        os.utime(helper, ns=(long_ago, long_ago))
        compiled = py_compile.compile(str(helper), doraise=True)
        before = Path(str(compiled)).read_bytes()
        run("from helper import EVENT\n" + USES_EVENT)
        assert Path(str(compiled)).read_bytes() == before
        # Written as long after the change as the change is old itself: it may be of what was there before.
        os.utime(str(compiled), ns=(long_ago, long_ago))
        run("from helper import EVENT  # again\n" + USES_EVENT)
        assert Path(str(compiled)).stat().st_mtime_ns > long_ago

    def test_a_helper_at_another_prefix_is_the_same(
        self, run: Runs, site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        source = "from helpers.inner import EVENT\n" + USES_EVENT
        write(site / "helpers" / "__init__.py", "")
        write(site / "helpers" / "inner.py", "EVENT = 3\n")
        first = run(source)[1]
        monkeypatch.setenv("PYTHONPATH", os.environ["PYTHONPATH"].replace(str(site), str(tmp_path / "other place")))
        site.rename(tmp_path / "other place")
        lowered, moved = run(source)
        assert (lowered, moved.origin, moved.aibin) == (False, "local", first.aibin)
        assert inputs_of(first) == {(FILE, "helpers/__init__.py"), (FILE, "helpers/inner.py")}

    def test_a_helper_earlier_on_the_path_is_a_miss(
        self, run: Runs, site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        write(site / "helper.py", "EVENT = 1\n")
        source = "from helper import EVENT\n" + USES_EVENT
        first = run(source)[1]
        write(tmp_path / "earlier" / "helper.py", "EVENT = 2\n")
        monkeypatch.setenv("PYTHONPATH", f"{tmp_path / 'earlier'}:{os.environ['PYTHONPATH']}")
        lowered, second = run(source)
        assert lowered
        assert second.aibin != first.aibin

    @pytest.mark.parametrize("hiding", ["helpers/__init__.py", "helpers.py"])
    def test_a_package_that_hides_the_one_with_the_helper_is_never_a_hit(
        self, run: Runs, site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hiding: str
    ) -> None:
        """Its initialiser is the same, and it has no such module: the source cannot be imported any more."""
        write(site / "helpers" / "__init__.py", "")
        write(site / "helpers" / "inner.py", "EVENT = 3\n")
        source = "from helpers.inner import EVENT\n" + USES_EVENT
        run(source)
        write(tmp_path / "earlier" / hiding, "")
        monkeypatch.setenv("PYTHONPATH", f"{tmp_path / 'earlier'}:{os.environ['PYTHONPATH']}")
        with pytest.raises(Exception, match=r"helpers"):
            run(source)

    def test_a_deleted_helper_is_not_a_stale_hit(
        self, run: Runs, site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Not even if the program that asks would find it itself, in a place that no frontend process looks in."""
        helper = write(site / "helper.py", "EVENT = 1\n")
        source = "from helper import EVENT\n" + USES_EVENT
        run(source)
        write(tmp_path / "here" / "helper.py", helper.read_text())
        monkeypatch.chdir(tmp_path / "here")
        monkeypatch.syspath_prepend("")
        helper.unlink()
        with pytest.raises(Exception, match="helper"):
            run(source)

    @pytest.mark.parametrize(
        "rival", ["helper/__init__.py", f"helper{__import__('importlib.machinery').machinery.EXTENSION_SUFFIXES[0]}"]
    )
    def test_what_comes_before_a_module_of_its_name_is_noticed(
        self, run: Runs, site: Path, rival: str, tmp_path: Path
    ) -> None:
        write(site / "helper.py", "EVENT = 1\n")
        source = "from helper import EVENT\n" + USES_EVENT
        first = run(source)[1]
        write(site / rival, "EVENT = 2\n")
        if rival.endswith(".so"):
            with pytest.raises(Exception, match=r"helper"):  # it is no library, and is loaded first all the same
                run(source)
        else:
            assert run(source)[1].aibin != first.aibin

    def test_helpers_of_helpers_count(self, run: Runs, site: Path) -> None:
        write(site / "one.py", "from two import EVENT\n")
        write(site / "two.py", "import three\nEVENT = three.EVENT\n")
        write(site / "three.py", "EVENT = 1\n")
        source = "from one import EVENT\n" + USES_EVENT
        first = run(source)[1]
        assert inputs_of(first) == {(FILE, f"{name}.py") for name in ("one", "two", "three")}
        write(site / "three.py", "EVENT = 2\n")
        assert run(source)[1].aibin != first.aibin

    def test_a_helper_that_is_imported_while_a_kernel_is_traced_counts(self, run: Runs, site: Path) -> None:
        write(site / "late.py", "EVENT = 1\n")
        source = USES_EVENT.replace("  pto.init_core()\n", "  from late import EVENT\n  pto.init_core()\n")
        first = run(source)[1]
        write(site / "late.py", "EVENT = 2\n")
        assert run(source)[1].aibin != first.aibin

    def test_an_optional_module_that_appears_is_noticed(self, run: Runs, site: Path) -> None:
        source = "try:\n  from optional import EVENT\nexcept ImportError:\n  EVENT = 1\n" + USES_EVENT
        first = run(source)[1]
        assert not run(source)[0]
        assert inputs_of(first) == {(ABSENT, "optional.py")}
        write(site / "optional" / "__init__.py", "EVENT = 2\n")
        assert run(source)[1].aibin != first.aibin

    def test_an_initialiser_that_appears_in_a_namespace_is_noticed(
        self, run: Runs, site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("PYTHONPATH", f"{os.environ['PYTHONPATH']}:{tmp_path / 'later'}")
        write(site / "space" / "one.py", "EVENT = 1\n")
        write(tmp_path / "later" / "space" / "two.py", "")
        source = "import space.two\nfrom space.one import EVENT\n" + USES_EVENT
        run(source)
        assert not run(source)[0]
        write(tmp_path / "later" / "space" / "__init__.py", "")
        with pytest.raises(Exception, match=r"space\.one"):
            run(source)

    def test_a_package_of_a_third_party_counts_and_libraries_that_are_identified_do_not(
        self, run: Runs, site: Path
    ) -> None:
        package = site / "numlike"
        write(package / "__init__.py", "import json, decimal, unittest.mock\nfrom .core import EVENT\n")
        write(package / "core.py", "import ptodsl.scalar\nEVENT = 1\n")
        source = "import csv, numlike\nEVENT = numlike.EVENT\n" + USES_EVENT
        first = run(source)[1]
        assert inputs_of(first) == {(FILE, "numlike/__init__.py"), (FILE, "numlike/core.py")}
        write(package / "core.py", "EVENT = 2\n")
        assert run(source)[1].aibin != first.aibin

    def test_names_with_spaces_and_other_letters_are_names(self, run: Runs, site: Path) -> None:
        write(
            site / "größe.py",
            "from pathlib import Path\nEVENT = int(Path(__file__).with_name('a b\\n.txt').read_text())\n",
        )
        write(site / "a b\n.txt", "1")
        source = "from größe import EVENT\n" + USES_EVENT
        first = run(source)[1]
        assert inputs_of(first) == {(FILE, "größe.py"), (FILE, "a b\n.txt")}
        assert not run(source)[0]
        write(site / "a b\n.txt", "2")
        assert run(source)[1].aibin != first.aibin

    def test_helpers_in_an_archive_are_compiled_each_time(self, run: Runs, tmp_path: Path, site: Path) -> None:
        """No name of theirs is a file's; the text is known all the same."""
        with zipfile.ZipFile(site / "helpers.zip", "w") as archive:
            archive.writestr("zipped.py", "EVENT = 1\n")
        source = (
            "import sys\nsys.path.insert(0, __import__('os').environ['PYTHONPATH'].split(':')[0] + '/helpers.zip')\n"
        )
        source += "from zipped import EVENT\n" + USES_EVENT
        run(source)
        lowered, again = run(source)
        assert (lowered, again.via) == (True, "pto")
        with zipfile.ZipFile(site / "helpers.zip", "w") as archive:
            archive.writestr("zipped.py", "EVENT = 2\n")
        assert run(source)[1].aibin != again.aibin

    def test_very_many_helpers_are_one_action(self, run: Runs, site: Path) -> None:
        for number in range(1000):
            write(site / "many" / f"a_helper_with_quite_a_long_name_{number}.py", f"N = {number}\n")
        source = (
            "import importlib\nEVENT = sum(importlib.import_module("
            "f'many.a_helper_with_quite_a_long_name_{i}').N for i in range(1000)) % 7\n"
        ) + USES_EVENT
        first = run(source)[1]
        lowered, again = run(source)
        assert (lowered, again.origin) == (False, "local")
        write(site / "many" / "a_helper_with_quite_a_long_name_999.py", "N = 1000\n")
        assert run(source)[1].aibin != first.aibin


READERS = {
    "open": "EVENT = int(open(os.path.join(os.path.dirname(__file__), 'table.txt')).read())",
    "os.open": "EVENT = int(os.read(os.open(pathlib.Path(__file__).with_name('table.txt'), os.O_RDONLY), 9))",
    "resources": "EVENT = int(importlib.resources.files('reader').joinpath('table.txt').read_text())",
    "bytes": "EVENT = int(open(os.fsencode(os.path.dirname(__file__)) + b'/table.txt', 'rb').read())",
}


class TestFiles:
    @pytest.mark.parametrize("reader", READERS)
    def test_changed_data_beside_a_helper_is_noticed(self, run: Runs, site: Path, reader: str) -> None:
        imports = "import importlib.resources, os, pathlib\n"
        write(site / "reader" / "__init__.py", imports + READERS[reader] + "\n")
        table = write(site / "reader" / "table.txt", "1")
        source = "from reader import EVENT\n" + USES_EVENT
        first = run(source)[1]
        assert not run(source)[0]
        assert inputs_of(first) == {(FILE, "reader/__init__.py"), (FILE, "reader/table.txt")}
        write(table, "2")
        assert run(source)[1].aibin != first.aibin
        write(table, "1")
        assert not run(source)[0]

    def test_a_file_that_was_looked_for_in_vain_and_appears_is_noticed(self, run: Runs, site: Path) -> None:
        write(
            site / "reader.py",
            "import os\ntry:\n  EVENT = int(open(os.path.dirname(__file__) + '/tuning.txt').read())\n"
            "except FileNotFoundError:\n  EVENT = 1\n",
        )
        source = "from reader import EVENT\n" + USES_EVENT
        first = run(source)[1]
        assert not run(source)[0]
        assert inputs_of(first) == {(FILE, "reader.py"), (ABSENT, "tuning.txt")}
        write(site / "tuning.txt", "2")
        assert run(source)[1].aibin != first.aibin
        (site / "tuning.txt").unlink()
        assert not run(source)[0]

    def test_a_file_outside_all_import_roots_keeps_the_source_key_out_and_the_pto_key_answers(
        self, run: Runs, tmp_path: Path
    ) -> None:
        table = write(tmp_path / "elsewhere.txt", "1")
        source = f"EVENT = int(open({str(table)!r}).read())\n" + USES_EVENT
        first = run(source)[1]
        lowered, again = run(source)
        assert (lowered, again.origin, again.via, again.aibin) == (True, "local", "pto", first.aibin)
        write(table, "2")
        assert run(source)[1].aibin != first.aibin

    def test_what_a_source_writes_for_itself_is_no_input(self, run: Runs, site: Path) -> None:
        source = "open('scratch', 'w').write('1')\nEVENT = int(open('scratch').read())\n" + USES_EVENT
        first = run(source)[1]
        assert not run(source)[0]
        assert inputs_of(first) == set()

    def test_a_pipe_that_a_source_reads_does_not_keep_the_cache_waiting(self, run: Runs, site: Path) -> None:
        source = (
            "import os\npath = os.environ['PYTHONPATH'].split(':')[0] + '/pipe'\n"
            "os.mkfifo(path) if not os.path.exists(path) else None\n"
            "os.close(os.open(path, os.O_RDONLY | os.O_NONBLOCK))\nEVENT = 1\n"
        ) + USES_EVENT
        run(source)
        assert run(source)[1].via == "pto"


VARIABLE_READERS = {
    "subscript": "EVENT = os.environ['KERNEL_X'] if 'KERNEL_X' in os.environ else 'unset'",
    "get": "EVENT = os.environ.get('KERNEL_X', 'unset')",
    "getenv": "EVENT = os.getenv('KERNEL_X', 'unset')",
    "bytes": "EVENT = os.fsdecode(os.environb.get(b'KERNEL_X', b'unset'))",
    "getenvb": "EVENT = os.fsdecode(os.getenvb(b'KERNEL_X', b'unset'))",
    "expandvars": "EVENT = os.path.expandvars('$KERNEL_X').replace('$KERNEL_X', 'unset')",
    "contains": "EVENT = 'set' if 'KERNEL_X' in os.environ else 'unset'",
    "missing": "try:\n  EVENT = os.environ['KERNEL_X']\nexcept KeyError:\n  EVENT = 'unset'",
}


ASKS = "import os\n%s\nEVENT = {'unset': 7, '': 6, 'set': 5, '1': 1, '2': 2}[EVENT]\n" + USES_EVENT


class TestVariables:
    @pytest.mark.parametrize("reader", VARIABLE_READERS)
    def test_a_changed_value_is_noticed(self, run: Runs, monkeypatch: pytest.MonkeyPatch, reader: str) -> None:
        with CompileCache() as cache:
            unset = run(ASKS % VARIABLE_READERS[reader], cache)[1]
            monkeypatch.setenv("KERNEL_X", "1")
            lowered, changed = run(ASKS % VARIABLE_READERS[reader], cache)
            assert lowered
            assert changed.aibin != unset.aibin
            monkeypatch.delenv("KERNEL_X")
            lowered, back = run(ASKS % VARIABLE_READERS[reader], cache)
            assert (lowered, back.aibin) == (False, unset.aibin)

    def test_a_helper_asks_too_and_unset_is_not_empty(
        self, run: Runs, site: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        write(site / "asks.py", ASKS.partition("from ptodsl")[0] % VARIABLE_READERS["get"])
        seen = []
        for value in (None, "", "1", "2"):
            if value is not None:
                monkeypatch.setenv("KERNEL_X", value)
            seen.append(run("from asks import EVENT\n" + USES_EVENT)[1].aibin)
        assert len(set(seen)) == 4

    @pytest.mark.parametrize("reader", ["os.environ.copy()", "dict(os.environ.items())", "{**os.environ}"])
    def test_a_source_that_goes_through_all_variables_is_lowered_each_time(
        self, run: Runs, monkeypatch: pytest.MonkeyPatch, reader: str
    ) -> None:
        source = ASKS % f"EVENT = {reader}.get('KERNEL_X', 'unset')"
        unset = run(source)[1]
        lowered, again = run(source)
        assert (lowered, again.via, again.aibin) == (True, "pto", unset.aibin)
        monkeypatch.setenv("KERNEL_X", "1")
        assert run(source)[1].aibin != unset.aibin

    def test_variables_that_the_library_asks_for_itself_are_no_inputs(self, run: Runs) -> None:
        first = run("import tempfile, subprocess, locale\ntempfile.gettempdir()\nEVENT = 1\n" + USES_EVENT)[1]
        assert {name for kind, name in inputs_of(first) if kind == VARIABLE} == set()

    def test_a_name_that_no_variable_can_have_harms_nothing(self, run: Runs) -> None:
        code = "import os\nfor name in ('a\\0b', 'a\\ud800b', ''):\n"
        code += "  try:\n    os.environ.get(name)\n  except ValueError:\n    pass\n"
        source = f"{code}EVENT = 1\n{USES_EVENT}"
        assert [run(source)[0] for _ in range(2)] == [True, False]


class TestChangesMeanwhile:
    """What changes while the source is lowered has no one content that could be stored."""

    CHANGES = {  # noqa: RUF012
        "rewritten": "open(__file__, 'a').write('#')",
        "replaced": "open(__file__ + '.new', 'w').write('EVENT = 2'); os.replace(__file__ + '.new', __file__)",
        "removed": "os.unlink(__file__)",
        "touched": "os.utime(__file__)",
    }

    @pytest.mark.parametrize("change", CHANGES)
    def test_a_helper_is_not_stored(self, run: Runs, site: Path, change: str) -> None:
        write(site / "helper.py", f"import os\n{self.CHANGES[change]}\nEVENT = 1\n")
        source = "from helper import EVENT\n" + USES_EVENT
        result = run(source)[1]
        with CompileCache() as cache:
            assert cache.local.actions(result.key) == []

    @pytest.mark.parametrize(
        "change", ["os.unlink(path)", "open(path, 'w').write('2')", "os.replace(path + '2', path)"]
    )
    def test_a_data_file_is_not_stored(self, run: Runs, site: Path, change: str) -> None:
        path = write(site / "table.txt", "1")
        write(site / "table.txt2", "1")
        source = f"import os\npath = {str(path)!r}\nEVENT = int(open(path).read())\n{change}\n" + USES_EVENT
        result = run(source)[1]
        with CompileCache() as cache:
            assert cache.local.actions(result.key) == []

    def test_a_file_that_appears_is_not_stored_as_absent(self, run: Runs, site: Path) -> None:
        source = (
            f"import os\npath = {str(site / 'table.txt')!r}\n"
            "try:\n  open(path)\nexcept FileNotFoundError:\n  EVENT = 1\nopen(path, 'w').write('2')\n"
        ) + USES_EVENT
        result = run(source)[1]
        with CompileCache() as cache:
            assert cache.local.actions(result.key) == []

    @pytest.mark.parametrize("report", [None, b"", b"[1, 2", b"\xff\xfe"])
    def test_a_report_that_is_none_is_unstable(self, tmp_path: Path, report: bytes | None) -> None:
        if report is not None:
            (tmp_path / "report").write_bytes(report)
        with pytest.raises(Unstable):
            read_report(str(tmp_path / "report"), Digests(), os.environ.get)


class TestChecker:
    @pytest.fixture
    def secret(self, tmp_path: Path) -> Iterator[Path]:
        (tmp_path / "root").mkdir()
        return (tmp_path / "secret.txt").write_text("secret") and tmp_path / "secret.txt"  # type: ignore[return-value]

    @pytest.mark.parametrize(
        "name",
        [
            "../secret.txt",
            "a/../../secret.txt",
            "./../secret.txt",
            "{secret}",
            "/{secret}",
            "//{secret}",
            "",
            ".",
            "..",
            "a//b",
            "a/" * 3000 + "b",
            "x" * 5000,
        ],
    )
    def test_a_name_that_leads_out_of_the_roots_is_never_followed(
        self, tmp_path: Path, secret: Path, name: str
    ) -> None:
        digests = Digests()
        checker = Checker(digests, [str(tmp_path / "root")], os.environ.get)
        item = Input(FILE, name.replace("{secret}", str(secret)), digests.of(str(secret)).hex())
        assert not checker.unchanged(encode_inputs((item,)))
        assert checker.state(item) in {"?", ""}
        absent = Input(ABSENT, name.replace("{secret}", str(secret)), "")
        assert checker.state(absent) == checker.state(item)

    def test_a_name_in_lines_or_with_surrogates_is_looked_for_as_it_is(self, tmp_path: Path) -> None:
        digests = Digests()
        checker = Checker(digests, [str(tmp_path)], os.environ.get)
        for name in ("a\nb", "\udcff", "a\\b", "*", "~", "$HOME", "%2e%2e"):
            (tmp_path / name).write_text(name.encode("utf-8", "replace").decode())
            item = Input(FILE, name, digests.of(str(tmp_path / name)).hex())
            assert checker.unchanged(encode_inputs((item,)))

    def test_a_pipe_in_the_place_of_a_helper_is_no_helper(self, tmp_path: Path) -> None:
        os.mkfifo(tmp_path / "helper.py")
        checker = Checker(Digests(), [str(tmp_path)], os.environ.get)
        assert checker.state(Input(FILE, "helper.py", "00")) == ""

    def test_a_directory_that_changes_between_two_looks_is_read_again(self, tmp_path: Path) -> None:
        digests = Digests()
        checker = Checker(digests, [str(tmp_path)], os.environ.get)
        helper = write(tmp_path / "helper.py", "EVENT = 1\n")
        inputs = encode_inputs(
            (Input(ABSENT, "optional.py", ""), Input(FILE, "helper.py", digests.of(str(helper)).hex()))
        )
        time.sleep(0.05)  # so that what is listed is remembered
        for rival in ("optional.py", "helper/__init__.py", "optional/__init__.py") * 10:
            assert checker.unchanged(inputs)
            write(tmp_path / rival, "")
            assert not checker.unchanged(inputs)
            (tmp_path / rival).unlink()
            assert checker.unchanged(inputs)

    def test_modules_that_only_an_import_hook_knows_are_found(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """An editable install of today's setuptools is such a hook."""
        import importlib.util
        from importlib.machinery import ModuleSpec

        package = write(tmp_path / "project" / "hooked" / "__init__.py", "")
        module = write(tmp_path / "project" / "single.py", "")

        class Finder:
            @staticmethod
            def find_spec(name: str, path: object = None, target: object = None) -> ModuleSpec | None:
                where = {"hooked": package, "single": module}.get(name)
                return where and importlib.util.spec_from_file_location(name, where)  # type: ignore[return-value]

        digests = Digests()
        checker = Checker(digests, [str(tmp_path)], os.environ.get)
        items = tuple(
            Input(FILE, name, digests.of(str(path)).hex())
            for name, path in (("hooked/__init__.py", package), ("single.py", module))
        )
        assert not checker.unchanged(encode_inputs(items))
        monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, Finder])
        assert checker.unchanged(encode_inputs(items))
        write(package, "changed")
        assert checker.changed(items) == [items[0]]


TEXT = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]) | st.sampled_from("\udc80\udcff"))
ITEMS = st.builds(Input, st.sampled_from([FILE, ABSENT, VARIABLE]), TEXT, st.sampled_from(["", "00ff", "ab" * 16]))


class TestEncoding:
    @given(st.lists(ITEMS))
    def test_what_was_encoded_is_decoded(self, items: list[Input]) -> None:
        assert decode_inputs(encode_inputs(tuple(items))) == tuple(items)

    @given(st.lists(ITEMS, max_size=3), st.lists(ITEMS, max_size=3))
    def test_different_inputs_have_different_encodings(self, one: list[Input], other: list[Input]) -> None:
        assert (encode_inputs(tuple(one)) == encode_inputs(tuple(other))) == (one == other)

    @given(st.binary() | st.lists(st.sampled_from([b"file", b"absent", b"x", b"", b"\xff"])).map(b"\0".join))
    def test_garbage_is_none_or_means_what_it_says(self, data: bytes) -> None:
        decoded = decode_inputs(data)
        assert decoded is None or encode_inputs(decoded) == data

    @given(st.binary() | st.lists(st.sampled_from([b"file", b"absent", b"variable", b"", b"../x"])).map(b"\0".join))
    def test_garbage_is_checked_without_an_exception(self, data: bytes) -> None:
        Checker(Digests(), ["/nonexistent"], {}.get).unchanged(data)


def test_a_report_names_files_as_they_were_opened_first(tmp_path: Path, site: Path) -> None:
    """The frontend's script, run as the pipeline runs it."""
    import subprocess

    import ptocache.ptodsl_compile

    write(site / "helper.py", "EVENT = 1\n")
    source = write(tmp_path / "work" / "kernel.py", "from helper import EVENT\n" + USES_EVENT)
    script = ptocache.ptodsl_compile.__file__
    command = [sys.executable, script, str(source), '["main_kernel"]', "out", "report"]
    subprocess.run(command, check=True, cwd=source.parent, timeout=60)
    report = json.loads((source.parent / "report").read_text())
    status = (site / "helper.py").stat()
    assert report["files"] == [
        ["helper.py", str(site / "helper.py"), [status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns]]
    ]
