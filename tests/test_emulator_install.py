"""Emulated installs: what is in one, how it is written, and how it is used."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ptocache import emulator
from ptocache.emulator import ensure_install, environment, write_install
from ptocache.errors import PtocacheError, SettingsError

TEXT = "func.func @k() attributes {pto.aicore} { return }"
PLACES = ("set_env.sh", "ascend_toolkit_install.info")


def files(root: Path) -> dict[str, bytes]:
    """The contents of an install, by place."""
    found = (path for path in root.rglob("*") if path.is_file() and not path.is_symlink())
    return {str(path.relative_to(root)): path.read_bytes() for path in found}


def assemble(root: Path, folder: Path, environ: dict[str, str] | None = None) -> int:
    """Run the install's ptoas; its exit status."""
    (folder / "k.pto").write_text(TEXT)
    command = [str(root / "bin" / "ptoas"), "--pto-arch=a5", str(folder / "k.pto"), "-o", str(folder / "k.o")]
    return subprocess.run(command, env=environ, check=False).returncode


def test_an_install_has_what_a_real_one_has(tmp_path: Path) -> None:
    root = write_install(tmp_path / "cann", "9.1.0")
    arch = "aarch64" if os.uname().machine in {"aarch64", "arm64"} else "x86_64"
    lines = (root / f"{arch}-linux" / "ascend_toolkit_install.info").read_text().splitlines()
    info = dict(line.split("=", 1) for line in lines)
    assert {"package_name", "version", "innerversion", "arch", "path", "emulated"} <= info.keys()
    assert (info["version"], info["arch"], info["path"]) == ("9.1.0", arch, str(root))
    for name in ("version.info", "version.cfg", "compiler/version.info"):
        assert "9.1.0" in (root / name).read_text()
    for tool in ("ptoas", "bisheng", "ld.lld"):
        assert os.access(root / "bin" / tool, os.X_OK)
    assert (root / "python" / "ptodsl" / "__init__.py").exists()
    assert (root / "include" / "acl" / "acl.h").exists()
    assert not list(root.rglob("__pycache__"))


def test_two_places_have_the_same_bytes(tmp_path: Path) -> None:
    one, two = (files(write_install(tmp_path / name)) for name in ("one", "a/longer place"))
    assert one.keys() == two.keys()
    assert {path for path in one if one[path] != two[path]} == {path for path in one if path.endswith(PLACES)}
    info = next(path for path in one if path.endswith("install.info"))
    odd = [(a, b) for a, b in zip(one[info].splitlines(), two[info].splitlines(), strict=True) if a != b]
    assert odd == [(f"path={tmp_path / 'one'}".encode(), f"path={tmp_path / 'a/longer place'}".encode())]
    assert not any(sys.executable.encode() in data for data in one.values())


def test_the_version_and_the_emulator_are_in_the_inner_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = (write_install(tmp_path / "one") / "version.info").read_text()
    assert (write_install(tmp_path / "two", "8.3.RC1") / "version.info").read_text() != first
    payload = tmp_path / "payload"
    shutil.copytree(Path(emulator.__file__).parent / "payload", payload)
    with (payload / "lib" / "emulated_cann" / "elf.py").open("a") as file:
        file.write("# changed\n")
    monkeypatch.setattr("ptocache.emulator.install._PAYLOAD", str(payload))
    assert (write_install(tmp_path / "three") / "version.info").read_text() != first


@pytest.mark.parametrize("version", ["", "9", "../9.0.0", "9.0.0\n", "9.0 0", "latest", "9." + "0" * 70])
def test_a_version_must_be_one(version: str, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="not a CANN version"):
        write_install(tmp_path / "cann", version)
    with pytest.raises(SettingsError, match="not a CANN version"):
        ensure_install(version)
    assert not (tmp_path / "cann").exists()


def test_an_empty_directory_is_taken_and_parents_are_made(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert assemble(write_install(tmp_path / "empty"), tmp_path) == 0
    assert assemble(write_install(tmp_path / "a" / "b" / "c"), tmp_path) == 0


def test_a_directory_with_something_else_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "precious.txt").write_text("mine")
    with pytest.raises(SettingsError, match=r"holds no emulated CANN install .*precious\.txt"):
        write_install(folder)
    with pytest.raises(SettingsError, match="is a file"):
        write_install(folder / "precious.txt")
    real = tmp_path / "real" / "x86_64-linux"
    real.mkdir(parents=True)
    (real / "ascend_toolkit_install.info").write_text("version=9.0.0\n")
    with pytest.raises(SettingsError, match="holds no emulated"):
        write_install(tmp_path / "real")


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(PtocacheError, match=r"cannot write an emulated CANN install to .*file/cann"):
        write_install(tmp_path / "file" / "cann")


def test_an_install_is_brought_up_to_date(tmp_path: Path) -> None:
    root = write_install(tmp_path / "cann", "9.0.0")
    stale = root / "lib" / "emulated_cann" / "removed_since.py"
    stale.write_text("")
    (root / "include" / "acl" / "removed_since.h").write_text("")
    (root / "bin" / "ptoas").write_text("damaged")
    (root / "bin" / "bisheng").chmod(0o600)
    kept = root / "notes.txt"
    kept.write_text("mine")
    write_install(root, "9.1.0")
    expected = files(write_install(tmp_path / "other", "9.1.0"))
    actual = files(root)
    assert actual.pop("notes.txt") == b"mine"
    assert {path: data for path, data in actual.items() if not path.endswith(PLACES)} == {
        path: data for path, data in expected.items() if not path.endswith(PLACES)
    }
    assert os.access(root / "bin" / "bisheng", os.X_OK)
    assert not list(root.rglob(".*"))


def test_an_install_that_is_updated_can_be_used_meanwhile(tmp_path: Path) -> None:
    root = write_install(tmp_path / "cann")
    script = (
        "import sys; from ptocache.emulator import write_install\n"
        "for number in range(30): write_install(sys.argv[1], f'9.0.{number % 2}')"
    )
    writer = subprocess.Popen([sys.executable, "-c", script, str(root)])
    while writer.poll() is None:
        assert assemble(root, tmp_path) == 0
    assert writer.returncode == 0


def test_many_processes_write_one_install(tmp_path: Path) -> None:
    script = "import sys; from ptocache.emulator import *; print(write_install(sys.argv[1]), ensure_install())"
    command = [sys.executable, "-c", script, str(tmp_path / "cann")]
    writers = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(8)]
    printed = {writer.communicate()[0] for writer in writers}
    assert [writer.returncode for writer in writers] == [0] * 8
    assert len(printed) == 1
    for root in map(Path, printed.pop().split()):
        assert assemble(root, tmp_path) == 0
        assert not [path for path in root.parent.iterdir() if path.name.endswith(".tmp")]


def test_the_kept_install_is_in_the_cache_directory_of_the_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = Path(os.environ["HOME"])
    assert ensure_install().parent == home / ".cache" / "ptocache-emulator"
    assert ensure_install("8.5.0") != ensure_install()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert ensure_install().parent == tmp_path / "xdg" / "ptocache-emulator"


def test_the_kept_install_is_found_again_quickly_and_repaired(tmp_path: Path) -> None:
    root = ensure_install()
    before = {path: path.stat().st_mtime_ns for path in root.rglob("*")}
    start = time.perf_counter()
    for _ in range(10):
        assert ensure_install() == root
    assert (time.perf_counter() - start) / 10 < 0.05
    assert {path: path.stat().st_mtime_ns for path in root.rglob("*")} == before
    for damage in (lambda p: p.write_text("x"), lambda p: p.unlink(), lambda p: p.chmod(0o600)):
        damage(root / "bin" / "ptoas")
        assert ensure_install() == root
        assert assemble(root, tmp_path) == 0


@pytest.mark.parametrize("place", ["file", "/proc"])
def test_without_a_place_to_keep_it_an_install_is_private(place: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    script = (
        "import os\n"
        "from ptocache.emulator import ensure_install\n"
        "root = ensure_install()\n"
        "assert ensure_install() == root\n"
        "assert (root / 'bin' / 'ptoas').exists()\n"
        "if os.fork() == 0:\n"
        "    raise SystemExit\n"
        "os.wait()\n"
        "assert root.exists()\n"
        "print(root)\n"
    )
    environ = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / place)}
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=True)
    root = Path(done.stdout.strip())
    assert root.is_relative_to(os.environ["TMPDIR"])
    assert not root.exists()


def test_a_relative_cache_directory_is_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "not/absolute")
    assert ensure_install().is_relative_to(os.environ["HOME"])


def test_environment_makes_an_install_the_toolchain(tmp_path: Path) -> None:
    root = write_install(tmp_path / "cann")
    before = {"PATH": "/usr/bin:/bin", "BISHENG_HOME": "/opt/other", "PYTHONPATH": "/lib/py", "OTHER": "kept"}
    after = environment(root, before)
    assert after == {
        "ASCEND_HOME_PATH": str(root),
        "ASCEND_TOOLKIT_HOME": str(root),
        "PTOAS_BIN": f"{root}/bin/ptoas",
        "PATH": f"{root}/bin:/usr/bin:/bin",
        "PYTHONPATH": f"{root}/python:/lib/py",
        "OTHER": "kept",
    }
    assert before["BISHENG_HOME"] == "/opt/other"
    assert environment(root, after) == after
    assert environment(root, {})["PATH"] == f"{root}/bin"


@pytest.mark.parametrize("shell", ["sh", "bash"])
def test_set_env_does_the_same_for_a_shell(shell: str, tmp_path: Path) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    root = write_install(tmp_path / "it's a place" / "cann")
    place = str(root).replace("'", "'\\''")
    names = "ASCEND_HOME_PATH ASCEND_TOOLKIT_HOME PTOAS_BIN PATH PYTHONPATH"
    source = f". '{place}/set_env.sh'"
    script = f"{source}; {source}; for n in {names}; do eval echo \\$n=\\$$n; done; ptoas --version"
    environ = {"PATH": os.environ["PATH"], "BISHENG_HOME": "/opt/other"}
    done = subprocess.run(
        [shell, "-eu", "-c", script], env=environ, cwd="/", capture_output=True, text=True, check=True
    )
    *lines, version = done.stdout.splitlines()
    assert done.stderr == ""
    expected = environment(root, environ)
    assert dict(line.split("=", 1) for line in lines) == {name: expected[name] for name in names.split()}
    assert "emulated" in version


def test_a_copied_install_finds_itself(tmp_path: Path) -> None:
    root = write_install(tmp_path / "cann")
    copy = tmp_path / "copy"
    shutil.copytree(root, copy, symlinks=True)
    shutil.rmtree(root)
    assert assemble(copy, tmp_path) == 0
    if shutil.which("bash"):
        script = f". {copy}/set_env.sh; echo $ASCEND_HOME_PATH"
        done = subprocess.run(["bash", "-c", script], cwd="/", capture_output=True, text=True, check=True)
        assert done.stdout.strip() == str(copy)


def test_tools_run_from_anywhere(tmp_path: Path) -> None:
    root = write_install(tmp_path / "cann")
    (tmp_path / "linked").symlink_to(root)
    (tmp_path / "tool").symlink_to("cann/bin/ptoas")
    (tmp_path / "struct.py").write_text("raise SystemExit('a module of the current directory was imported')")
    for command in (
        [str(root / "bin" / "ptoas")],
        ["linked/bin/ptoas"],
        ["./tool"],
        ["sh", "-c", "cd cann/bin; sh ptoas --version"],
    ):
        environ = {**os.environ, "PYTHONPATH": str(tmp_path), "CDPATH": str(tmp_path)}
        arguments = [*command, "--version"]
        done = subprocess.run(arguments, cwd=tmp_path, env=environ, capture_output=True, text=True, check=True)
        assert "emulated" in done.stdout
    assert not list(root.rglob("__pycache__"))


def test_launchers_find_a_python(tmp_path: Path) -> None:
    root = write_install(tmp_path / "cann")
    (root / "python3").unlink()
    assert assemble(root, tmp_path) == 0
    (root / "python3").symlink_to("/no/such/python")
    assert assemble(root, tmp_path) == 0
    assert assemble(root, tmp_path, {"PATH": "/no", "PTOCACHE_EMULATOR_PYTHON": sys.executable}) != 127
    launcher = root / "bin" / "ptoas"
    launcher.write_text(launcher.read_text() + "# a comment\n")
    assert assemble(root, tmp_path) == 0
