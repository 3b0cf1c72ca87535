"""The identity of the tools: what changes it, and what does not, on emulated installs and hand-made ones."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from ptocache import stamp
from ptocache.digests import Digests
from ptocache.emulator import environment, write_install
from ptocache.errors import ToolNotFoundError
from ptocache.stamp import TOOL_INPUTS, Stamp, make_stamp
from ptocache.tools import Toolchain, locate

SYSTEM = {"PATH": "/usr/bin:/bin", "HOME": "/nonexistent"}


def tools_of(home: Path, **variables: str) -> Toolchain:
    """The tools of an install, in an environment that has little else."""
    return locate({**environment(home, SYSTEM), **variables})


def stamp_of(home: Path, **variables: str) -> Stamp:
    return make_stamp(tools_of(home, **variables))


@pytest.fixture(scope="module")
def plain(cann: Path) -> Stamp:
    return stamp_of(cann)


@pytest.fixture
def home(cann: Path, tmp_path: Path) -> Path:
    """A copy of the emulated install to change."""
    return copied(cann, tmp_path / "copied cann")


def copied(cann: Path, place: Path) -> Path:
    return Path(shutil.copytree(cann, place, symlinks=True, ignore=shutil.ignore_patterns("__pycache__")))


def edit(path: Path, change: Callable[[bytes], bytes]) -> None:
    """Change a file, which must make it another one."""
    before = path.read_bytes()
    after = change(before)
    assert after != before
    path.write_bytes(after)


def flip(data: bytes) -> bytes:
    return bytes([*data[:-1], data[-1] ^ 0x20])


def differing(one: Stamp, other: Stamp) -> set[str]:
    """The names of the parts in which two stamps differ."""
    pairs = zip([*one.frontend, *one.backend], [*other.frontend, *other.backend], strict=True)
    return {now.name for before, now in pairs if before != now}


class TestSame:
    def test_written_at_another_prefix(self, plain: Stamp, tmp_path: Path) -> None:
        assert stamp_of(write_install(tmp_path / "another place" / "cann")) == plain

    def test_copied_with_other_times(self, plain: Stamp, home: Path) -> None:
        for number, path in enumerate(sorted(home.rglob("*"))):
            os.utime(path, (number, number), follow_symlinks=False)
        assert stamp_of(home) == plain

    def test_a_symlink_called_latest(self, plain: Stamp, cann: Path, tmp_path: Path) -> None:
        (tmp_path / "latest").symlink_to(cann)
        assert stamp_of(tmp_path / "latest") == plain

    def test_another_order_of_path_that_finds_the_same_tools(self, plain: Stamp, cann: Path, tmp_path: Path) -> None:
        (tmp_path / "empty").mkdir()
        for order in (f"/bin:{cann}/bin:/usr/bin", f"{tmp_path}/empty:/usr/bin:{cann}/bin", f".::{cann}/bin:"):
            environ = {**SYSTEM, "PATH": order, "ASCEND_HOME_PATH": str(cann), "PYTHONPATH": f"{cann}/python"}
            assert make_stamp(locate(environ)) == plain

    def test_bisheng_and_its_linker_as_links_into_the_compilers_directory(self, plain: Stamp, home: Path) -> None:
        compiler = home / "compiler" / "ccec_compiler" / "bin"
        compiler.mkdir(parents=True)
        for tool in ("bisheng", "ld.lld"):
            (home / "bin" / tool).rename(compiler / tool)
        (home / "bin" / "bisheng").symlink_to(compiler / "bisheng")
        linked = stamp_of(home)
        assert linked == plain
        edit(compiler / "ld.lld", flip)
        assert differing(linked, stamp_of(home)) == {"ld.lld"}

    @pytest.mark.parametrize(
        "variables",
        [
            {"PTOCACHE_EMULATOR_LOG": "/dev/null"},
            {"PTOCACHE_EMULATOR_DELAY": "ptoas=0"},
            {"PTOCACHE_EMULATOR_FAULT": "ptoas=exit:1"},
            {"PTODSL_CACHE_DIR": "/somewhere"},
            {"HOME": "/home/other", "TMPDIR": "/elsewhere", "LANG": "de_DE", "PWD": "/x", "COLUMNS": "7"},
            {"PYTHONHASHSEED": "77", "PYTHONOPTIMIZE": "2"},
        ],
        ids=min,
    )
    def test_variables_that_change_nothing_of_the_output(
        self, plain: Stamp, cann: Path, variables: dict[str, str]
    ) -> None:
        assert stamp_of(cann, **variables) == plain

    def test_paths_dates_comments_and_empty_lines_of_version_files(self, plain: Stamp, home: Path) -> None:
        for path in version_files(home):
            edit(
                path,
                lambda text: (
                    b"\n# a comment\nInstallPath=/x\ninstall_dir=relative\npath = '/y'\ntimestamp=20260101_1\n"
                    b'buildTime=now\ndate=today\nwhere="/z"\n/opt/cann\n  \n' + text.replace(b"\n", b"\r\n")
                ),
            )
        assert stamp_of(home) == plain

    def test_bytecode_of_the_ptodsl_package(self, plain: Stamp, home: Path) -> None:
        (home / "python" / "ptodsl" / "__pycache__").mkdir()
        (home / "python" / "ptodsl" / "__pycache__" / "x.cpython-311.pyc").write_bytes(b"x")
        (home / "python" / "ptodsl" / "y.pyc").write_bytes(b"y")
        assert stamp_of(home) == plain

    def test_what_editors_leave_in_the_ptodsl_package(self, plain: Stamp, home: Path) -> None:
        """A lock is a link that leads nowhere, and no reason not to compile."""
        (home / "python" / "ptodsl" / ".#pto.py").symlink_to("user@host.1234:5678")
        os.mkfifo(home / "python" / "ptodsl" / "pipe")
        (home / "python" / "ptodsl" / "again").symlink_to(home / "python" / "ptodsl")
        assert stamp_of(home) == plain

    def test_asked_twice_and_in_another_process(self, plain: Stamp, cann: Path, tmp_path: Path) -> None:
        program = (
            "import os; from ptocache.stamp import make_stamp; from ptocache.tools import locate; "
            "print(make_stamp(locate(os.environ)))"
        )
        command = [sys.executable, "-c", program]
        roots = {**SYSTEM, "PYTHONPATH": str(Path(__file__).parent.parent)}  # for ptocache itself
        environ = {**environment(cann, roots), "PYTHONHASHSEED": "123"}
        result = subprocess.run(command, env=environ, cwd=tmp_path, capture_output=True, text=True, check=True)
        assert result.stdout.strip() == str(plain) == str(stamp_of(cann))


def version_files(home: Path) -> list[Path]:
    names = ("version.info", "compiler/version.info", "version.cfg")
    return [*(home / name for name in names), *home.glob("*-linux/ascend_toolkit_install.info")]


class TestDifferent:
    @pytest.mark.parametrize(("tool", "part"), [("bisheng", "bisheng"), ("ld.lld", "ld.lld"), ("ptoas", "ptoas")])
    def test_one_bit_of_a_tool(self, plain: Stamp, home: Path, tool: str, part: str) -> None:
        edit(home / "bin" / tool, lambda data: data + b"#")
        one = stamp_of(home)
        assert differing(plain, one) == {part}
        edit(home / "bin" / tool, lambda data: data[:-1] + b"\x22")
        assert differing(one, stamp_of(home)) == {part}
        assert one.backend_name != plain.backend_name

    def test_another_cann_version(self, plain: Stamp, tmp_path: Path) -> None:
        other = stamp_of(write_install(tmp_path / "newer", "9.0.1"))
        assert differing(plain, other) == {"cann"}
        assert other.version == "emulated-9.0.1"
        assert other.backend_name != plain.backend_name

    @pytest.mark.parametrize(
        "line",
        [
            b"runtime_running_version=[7.6:8.1]",
            b"update_package=3",
            b"compatible_version=[V100R001C13]",
            b"compiler_upgrade=9",
            b"innerversion=V2",
            b"a line",
        ],
    )
    def test_a_line_that_says_what_is_installed(self, plain: Stamp, home: Path, line: bytes) -> None:
        for path in version_files(home):
            before = path.read_bytes()
            path.write_bytes(before + b"\n" + line + b"\n")
            assert differing(plain, stamp_of(home)) == {"cann"}, path
            path.write_bytes(before)

    @pytest.mark.parametrize(
        "change",
        [
            lambda package: edit(package / "_kernels.py", lambda text: text.replace(b"pto.jit", b"pto.jjj", 1)),
            lambda package: edit(package / "scalar.py", lambda text: text + b"\n"),
            lambda package: (package / "new.py").write_text(""),
            lambda package: (package / "sub").mkdir() or (package / "sub" / "data.bin").write_text("x"),
            lambda package: (package / "scalar.py").rename(package / "scala.py"),
            lambda package: (package / "scalar.py").unlink(),
        ],
        ids=["a line", "one byte", "a new file", "a new directory", "a renamed file", "a file less"],
    )
    def test_the_ptodsl_package(self, plain: Stamp, home: Path, change: Callable[[Path], object]) -> None:
        change(home / "python" / "ptodsl")
        other = stamp_of(home)
        assert differing(plain, other) == {"ptodsl"}
        assert other.backend_name == plain.backend_name
        assert other.name != plain.name

    def test_a_part_of_the_ptodsl_package_that_is_a_link(self, plain: Stamp, home: Path, tmp_path: Path) -> None:
        (tmp_path / "contrib").mkdir()
        (tmp_path / "contrib" / "ops.py").write_text("A = 1\n")
        (home / "python" / "ptodsl" / "contrib").symlink_to(tmp_path / "contrib")
        linked = stamp_of(home)
        assert differing(plain, linked) == {"ptodsl"}
        (tmp_path / "contrib" / "ops.py").write_text("A = 2\n")
        assert differing(linked, stamp_of(home)) == {"ptodsl"}

    @pytest.mark.parametrize("name", [*TOOL_INPUTS, "PTOAS_NEW_KNOB", "PTODSL_TRACE"])
    def test_a_variable_that_changes_what_tools_do(self, plain: Stamp, cann: Path, name: str) -> None:
        values = ["", "x", "y"] if name != "LD_PRELOAD" else ["", ":"]
        stamps = [plain, *(stamp_of(cann, **{name: value}) for value in values)]
        assert len({one.name for one in stamps}) == len(stamps)
        assert differing(plain, stamps[1]) == {"variables"}

    def test_no_value_imitates_another_variable(self, cann: Path) -> None:
        one = stamp_of(cann, CPATH="a\nLIBRARY_PATH=b")
        assert one != stamp_of(cann, CPATH="a", LIBRARY_PATH="b")
        assert one != stamp_of(cann, CPATH="a\\nLIBRARY_PATH=b")

    def test_headers_count_by_content_and_not_by_place(self, cann: Path, tmp_path: Path) -> None:
        stamps = []
        for place in ("one", "two"):
            (tmp_path / place / "include" / "pto").mkdir(parents=True)
            (tmp_path / place / "include" / "pto" / "tile.hpp").write_text("#define A 1\n")
            stamps.append(stamp_of(cann, PTO_ISA_PATH=str(tmp_path / place)))
        assert stamps[0] == stamps[1]
        (tmp_path / "two" / "include" / "pto" / "tile.hpp").write_text("#define A 2\n")
        assert stamp_of(cann, PTO_ISA_PATH=str(tmp_path / "two")) != stamps[0]
        (tmp_path / "one" / "include" / "new.hpp").write_text("")
        assert stamp_of(cann, PTO_ISA_PATH=str(tmp_path / "one")) != stamps[0]


class TestMissing:
    def test_a_version_file_counts_if_it_said_something_that_no_other_says(self, plain: Stamp, home: Path) -> None:
        changed = {}
        for path in version_files(home):
            before = path.read_bytes()
            path.unlink()
            changed[path.name] = differing(plain, stamp_of(home))
            path.write_bytes(before)
        assert changed == {
            "version.info": set(),  # there are two that say the same
            "version.cfg": {"cann"},
            "ascend_toolkit_install.info": {"cann"},
        }

    def test_without_any_version_file_there_is_an_identity(self, plain: Stamp, home: Path) -> None:
        for path in version_files(home):
            path.unlink()
        assert stamp_of(home).version == "unknown"
        assert differing(plain, stamp_of(home)) == {"cann"}

    @pytest.mark.parametrize("what", ["directory", "pipe"])
    def test_a_version_file_that_cannot_be_read_is_named(self, home: Path, what: str) -> None:
        path = home / "version.cfg"
        path.unlink()
        path.mkdir() if what == "directory" else os.mkfifo(path)
        with pytest.raises(ToolNotFoundError, match=str(path)):
            stamp_of(home)

    @pytest.mark.parametrize("what", ["directory", "dangling link", "pipe"])
    @pytest.mark.parametrize("tool", ["bisheng", "ld.lld", "ptoas"])
    def test_a_tool_that_cannot_be_read_is_named(self, home: Path, tool: str, what: str) -> None:
        path = home / "bin" / tool
        path.unlink()
        if what == "directory":
            path.mkdir()
        elif what == "pipe":
            os.mkfifo(path, 0o755)
        else:
            path.symlink_to(home / "nowhere")
        with pytest.raises(ToolNotFoundError, match=str(path)):
            stamp_of(home)

    def test_a_working_directory_that_was_removed_does_not_matter(
        self, plain: Stamp, cann: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "gone").mkdir()
        monkeypatch.chdir(tmp_path / "gone")
        (tmp_path / "gone").rmdir()
        assert stamp_of(cann, PYTHONPATH=f"relative:{cann}/python") == plain
        monkeypatch.undo()


def test_each_part_can_be_asked_for_by_itself(cann: Path, plain: Stamp) -> None:
    tools, digests = tools_of(cann), Digests()
    cann_fact, ptoas = stamp.cann_versions(tools), stamp.ptoas_identity(tools, digests)
    parts = [
        cann_fact,
        stamp.bisheng_identity(tools, digests),
        stamp.linker_identity(tools, digests),
        ptoas,
        stamp.ptoas_version(tools, (cann_fact, ptoas), digests),
        stamp.tool_variables(tools, digests),
        stamp.ptodsl_identity(tools, digests),
        stamp.script_identity(digests),
        stamp.python_version(),
    ]
    assert sorted(parts) == sorted([*plain.backend, *plain.frontend])
    assert "emulated, abi 33" in dict(parts)["ptoas --version"]
    assert "version=9.0.0" in dict(parts)["cann"]
    assert f"{sys.version_info[0]}.{sys.version_info[1]}" in dict(parts)["python"]


# ---- ptoas in its other forms


def script(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


WHEEL_MODULE = "def main():\n    print('ptoas 0.33')\n"


class Venv:
    """A hand-made environment with a wheel of ptoas in it, laid out as pip does."""

    def __init__(self, prefix: Path, python: str = "python3.11", packages: str = "site-packages") -> None:
        self.prefix = prefix
        self.site = prefix / "lib" / python / packages
        self.info = self.site / "ptoas-1.0.dist-info"
        self.info.mkdir(parents=True)
        self.launcher = prefix / "bin" / "ptoas"
        self.launch(f"#!{prefix}/bin/python3\n")
        self.record("ptoas/__init__.py,sha256=AAA,40")

    def launch(self, start: str) -> None:
        script(self.launcher, f"{start}import sys\nprint('ptoas 0.33')\n")

    def record(self, *lines: str) -> None:
        launcher = f"../../../bin/ptoas,sha256={self.prefix.name},200"
        notes = [f"ptoas-1.0.dist-info/{name},sha256={self.prefix.name},4" for name in ("INSTALLER", "direct_url.json")]
        own = ["ptoas-1.0.dist-info/RECORD,,", "ptoas/__pycache__/__init__.cpython-311.pyc,,"]
        (self.info / "RECORD").write_text("\n".join([launcher, *notes, *own, *lines]) + "\n")

    def identity(self, cann: Path, launcher: Path | None = None) -> str:
        tools = locate({**environment(cann, SYSTEM), "PTOAS_BIN": str(launcher or self.launcher)})
        return stamp.ptoas_identity(tools, Digests()).value


class TestConsoleScript:
    def test_the_wheel_counts_and_neither_prefix_nor_launcher(self, cann: Path, tmp_path: Path) -> None:
        one, two = Venv(tmp_path / "one"), Venv(tmp_path / "two", "python3.13")
        assert one.identity(cann) == two.identity(cann)
        two.launch(f"#!/bin/sh\n'''exec' \"{tmp_path}/two with spaces/bin/python3\" \"$0\" \"$@\"\n' '''\n")
        assert two.identity(cann) == one.identity(cann)
        two.launch("#!/usr/bin/env python3\n")
        assert two.identity(cann) == one.identity(cann)

    @pytest.mark.parametrize(
        "lines",
        [
            ["ptoas/__init__.py,sha256=AAB,40"],
            ["ptoas/__init__.py,sha256=AAA,40", "ptoas/core.so,sha256=CCC,9"],
            ["ptoas/__init__.py,sha256=AAA,40", "../../../lib/libPTO.so,sha256=CCC,9"],
            ["ptoas/__init__.py,sha256=AAA,40", "ptoas-1.0.dist-info/METADATA,sha256=CCC,9"],
        ],
        ids=["a file", "another file", "a library outside", "the metadata"],
    )
    def test_a_changed_record_is_another_ptoas(self, cann: Path, tmp_path: Path, lines: list[str]) -> None:
        venv = Venv(tmp_path / "venv")
        before = venv.identity(cann)
        venv.record(*lines)
        assert venv.identity(cann) != before

    def test_a_program_that_the_wheel_brings_counts_and_its_other_launchers_do_not(
        self, cann: Path, tmp_path: Path
    ) -> None:
        venv = Venv(tmp_path / "venv")
        before = venv.identity(cann)
        (venv.prefix / "bin" / "other").write_bytes(b"#!/x/python\n")
        venv.record("ptoas/__init__.py,sha256=AAA,40", "../../../bin/other,sha256=XXX,9")
        assert venv.identity(cann) == before
        (venv.prefix / "bin" / "other").write_bytes(b"\x7fELF")
        assert venv.identity(cann) != before

    def test_links_and_copies_of_a_launcher_lead_to_the_wheel(self, cann: Path, tmp_path: Path) -> None:
        venv = Venv(tmp_path / "venv")
        (tmp_path / "bin").mkdir()
        (tmp_path / "bin" / "ptoas").symlink_to(venv.launcher)
        assert venv.identity(cann, tmp_path / "bin" / "ptoas") == venv.identity(cann)
        (tmp_path / "bin" / "ptoas").unlink()
        shutil.copy(venv.launcher, tmp_path / "bin" / "ptoas")
        assert venv.identity(cann, tmp_path / "bin" / "ptoas") == venv.identity(cann)

    def test_debians_directory_and_another_name_of_the_distribution(self, cann: Path, tmp_path: Path) -> None:
        one = Venv(tmp_path / "one", packages="dist-packages")
        two = Venv(tmp_path / "two")
        assert one.identity(cann) == two.identity(cann)
        named = two.site / "huawei_pto-1.0.dist-info"
        two.info.rename(named)
        (named / "entry_points.txt").write_text("[console_scripts]\nptoas = ptoas:main\n")
        before = two.identity(cann)
        (named / "RECORD").write_text("../../../bin/ptoas,,\nptoas/__init__.py,sha256=ZZZ,40\n")
        assert two.identity(cann) != before

    def test_without_a_wheel_the_script_itself_counts_but_for_its_interpreter(self, cann: Path, tmp_path: Path) -> None:
        venv = Venv(tmp_path / "venv")
        shutil.rmtree(venv.site)
        before = venv.identity(cann)
        venv.launch(f"#!{tmp_path}/another/bin/python3.12\n")
        assert venv.identity(cann) == before
        edit(venv.launcher, lambda text: text + b"print()\n")
        assert venv.identity(cann) != before

    @pytest.mark.parametrize(
        "module", ["src/ptoas/__init__.py", "ptoas/__init__.py", "python/ptoas.py", "lib/pto_assembler/__init__.py"]
    )
    def test_the_sources_of_an_editable_install_count(self, cann: Path, tmp_path: Path, module: str) -> None:
        project = tmp_path / "a project" / "größe"
        (project / module).parent.mkdir(parents=True)
        (project / module).write_text("VERSION = 1\n")
        venv = Venv(tmp_path / "venv")
        (venv.info / "direct_url.json").write_text(f'{{"url": "{project.as_uri()}", "dir_info": {{"editable": true}}}}')
        before = venv.identity(cann)
        (project / ".git").mkdir()
        (project / ".git" / "index").write_text("x")
        assert venv.identity(cann) == before
        (project / module).write_text("VERSION = 2\n")
        changed = venv.identity(cann)
        assert changed != before
        if "assembler" not in module:
            (project / "README").write_text("x")
            assert venv.identity(cann) == changed

    @pytest.mark.parametrize("url", ["{}", "[]", "null", "not json", '{"url": 5, "dir_info": {"editable": true}}'])
    def test_a_direct_url_that_says_nothing_is_no_error(self, cann: Path, tmp_path: Path, url: str) -> None:
        venv = Venv(tmp_path / "venv")
        (venv.info / "direct_url.json").write_text(url)
        assert venv.identity(cann)


@pytest.fixture(scope="module")
def pip_installs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Path]:
    """The launchers of a real wheel that pip installed at two prefixes, and of the next version of it at a third."""
    import base64
    import hashlib
    import zipfile

    tmp = tmp_path_factory.mktemp("pip")

    def wheel(version: str, code: str) -> Path:
        info = f"ptoas-{version}.dist-info"
        files = {
            "ptoas.py": code,
            f"{info}/METADATA": f"Metadata-Version: 2.1\nName: ptoas\nVersion: {version}\n",
            f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: hand\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
            f"{info}/entry_points.txt": "[console_scripts]\nptoas = ptoas:main\n",
        }
        lines = []
        for name, text in files.items():
            digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
            lines.append(f"{name},sha256={digest},{len(text)}")
        path = tmp / f"ptoas-{version}-py3-none-any.whl"
        with zipfile.ZipFile(path, "w") as archive:
            for name, text in {**files, f"{info}/RECORD": "\n".join([*lines, f"{info}/RECORD,,", ""])}.items():
                archive.writestr(name, text)
        return path

    old, new = wheel("1.0", WHEEL_MODULE), wheel("1.1", WHEEL_MODULE.replace("0.33", "0.34"))
    launchers = []
    for name, archive in (("one", old), ("two with spaces", old), ("three", new)):
        prefix = tmp / name
        command = [
            sys.executable,
            "-m",
            "pip",
            "install",
            "--no-index",
            "--no-deps",
            "--quiet",
            "--prefix",
            str(prefix),
        ]
        result = subprocess.run([*command, str(archive)], capture_output=True, text=True, check=False)
        if "No module named pip" in result.stderr:
            pytest.skip("this Python has no pip")
        assert result.returncode == 0, result.stderr
        launchers.append(next(prefix.rglob("bin/ptoas")))
    return launchers[0], launchers[1], launchers[2]


def test_a_wheel_that_pip_installed_is_the_same_at_two_prefixes_and_another_version_is_not(
    cann: Path, pip_installs: tuple[Path, Path, Path]
) -> None:
    one, two, new = (
        stamp.ptoas_identity(locate({**environment(cann, SYSTEM), "PTOAS_BIN": str(path)}), Digests())
        for path in pip_installs
    )
    assert one == two
    assert new != one
    edit(pip_installs[1], lambda text: b"#!/another/python3\n" + text.partition(b"\n")[2])
    tools = locate({**environment(cann, SYSTEM), "PTOAS_BIN": str(pip_installs[1])})
    assert stamp.ptoas_identity(tools, Digests()) == one


class TestNativeBinary:
    @pytest.mark.parametrize("library", ["bin/libpto.so", "lib/libpto.so.19", "lib/libMLIR.so"])
    def test_the_libraries_beside_it_count(self, cann: Path, tmp_path: Path, library: str) -> None:
        binary = script(tmp_path / "one" / "bin" / "ptoas", "\x7fELF")
        (tmp_path / "one" / "lib").mkdir()
        tools = locate({**environment(cann, SYSTEM), "PTOAS_BIN": str(binary)})
        seen = [stamp.ptoas_identity(tools, Digests())]
        path = tmp_path / "one" / library
        for text in ("1", "2"):
            path.write_text(text)
            seen.append(stamp.ptoas_identity(tools, Digests()))
        path.rename(path.with_name("liba.so"))
        seen.append(stamp.ptoas_identity(tools, Digests()))
        assert len(set(seen)) == 4
        copy = Path(shutil.copytree(tmp_path / "one", tmp_path / "two"))
        tools = locate({**environment(cann, SYSTEM), "PTOAS_BIN": str(copy / "bin" / "ptoas")})
        assert stamp.ptoas_identity(tools, Digests()) == seen[-1]

    def test_what_only_looks_like_a_library_is_none(self, cann: Path, tmp_path: Path) -> None:
        binary = script(tmp_path / "bin" / "ptoas", "\x7fELF")
        tools = locate({**environment(cann, SYSTEM), "PTOAS_BIN": str(binary)})
        before = stamp.ptoas_identity(tools, Digests())
        (tmp_path / "bin" / "x.so").symlink_to("nowhere")
        (tmp_path / "bin" / "y.so.d").mkdir()
        os.mkfifo(tmp_path / "bin" / "z.so")
        assert stamp.ptoas_identity(tools, Digests()) == before


def running_in(group: str) -> list[str]:
    """The processes of a group, but for dead ones that nobody has waited for."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            state, _, pgrp = path.read_text().rpartition(")")[2].split()[:3]
            if pgrp == group and state not in {"Z", "X"}:
                found.append(path.parent.name)
    return found


class TestVersionOfPtoas:
    """`ptoas --version` is asked of a script that answers as the test wants."""

    def ask(self, cann: Path, tmp_path: Path, text: str, digests: Digests | None = None) -> str:
        launcher = script(tmp_path / "ptoas", "#!/bin/sh\n" + textwrap.dedent(text))
        tools = locate({**environment(cann, SYSTEM), "PTOAS_BIN": str(launcher)})
        made = make_stamp(tools, digests)
        return dict(made.backend)["ptoas --version"]

    def test_another_answer_is_another_stamp(self, cann: Path, tmp_path: Path) -> None:
        assert self.ask(cann, tmp_path, "echo ptoas 0.33") == "ptoas 0.33"
        assert self.ask(cann, tmp_path, "echo ptoas 0.34") == "ptoas 0.34"

    def test_lines_about_the_host_do_not_count(self, cann: Path, tmp_path: Path) -> None:
        answer = self.ask(
            cann, tmp_path, "echo LLVM version 19\necho '  Host CPU: znver4'\necho\necho InstalledDir: /x"
        )
        assert answer == "LLVM version 19"

    @pytest.mark.parametrize(
        ("text", "answer"),
        [
            ("echo broken >&2; exit 3", "exit status 3"),
            ("kill -9 $$", "exit status -9"),
            ("exit 0", ""),
            ("printf '\\377\\000\\001\\n\\033[0m'", None),
            ("head -c 3000000 /dev/zero | tr '\\0' x", None),
        ],
        ids=["fails", "is killed", "says nothing", "prints garbage", "prints much"],
    )
    def test_whatever_it_answers_there_is_a_stamp(
        self, cann: Path, tmp_path: Path, text: str, answer: str | None
    ) -> None:
        found = self.ask(cann, tmp_path, text)
        assert len(found) < 2000
        assert answer is None or found == answer

    @pytest.mark.parametrize(
        "text", ["sleep 1000", "sleep 1000 &\nwait", "exec sleep 1000", "trap '' TERM; sleep 1000"]
    )
    def test_one_that_hangs_is_ended_and_not_waited_for_twice(
        self, cann: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
    ) -> None:
        monkeypatch.setattr(stamp, "_VERSION_TIMEOUT", 0.3)
        log = tmp_path / "asked"
        digests = Digests()
        start = time.monotonic()
        for _ in range(3):
            assert self.ask(cann, tmp_path, f"echo $$ >> {log}\n{text}", digests) == "no answer"
        assert time.monotonic() - start < 60  # and not 1000
        groups = log.read_text().split() if log.exists() else []  # it may have been ended before it began
        assert len(groups) <= 1
        for group in groups:
            while running_in(group):
                assert time.monotonic() - start < 60
                time.sleep(0.01)

    def test_what_it_leaves_running_is_not_waited_for(self, cann: Path, tmp_path: Path) -> None:
        assert self.ask(cann, tmp_path, "echo ptoas 1\nsleep 1000 &\n") == "ptoas 1"

    def test_one_that_cannot_be_started_is_known_by_its_content(self, cann: Path, tmp_path: Path) -> None:
        launcher = script(tmp_path / "ptoas", "\x7fELFrubbish")
        tools = locate({**environment(cann, SYSTEM), "PTOAS_BIN": str(launcher)})
        assert dict(make_stamp(tools).backend)["ptoas --version"] == "no answer"

    def test_an_answer_is_remembered_across_processes_and_a_failure_is_not(self, cann: Path, tmp_path: Path) -> None:
        (tmp_path / "memory").mkdir()
        log = tmp_path / "asked"
        for status, asked in ((0, 1), (1, 3)):
            log.unlink(missing_ok=True)
            for _ in range(3):
                self.ask(
                    cann, tmp_path, f"echo x >> {log}\necho ptoas\nexit {status}", Digests(str(tmp_path / "memory"))
                )
            assert len(log.read_text().split()) == asked
