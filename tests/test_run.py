"""`ptocache run`: what follows it runs as it would with Python alone, and finds ptocache below TileLang."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import venv
import zipfile
from collections.abc import Sequence
from pathlib import Path

import pytest
from conftest import EXAMPLES, KERNEL, run_ptocache

import ptocache

PACKAGE = Path(ptocache.__file__).parent
PROJECT = PACKAGE.parent

#: Tells whether ptocache is below TileLang in this process.
IS_THERE = (
    "import sys; hooks = sys.modules.get('ptocache.hooks'); "
    "print(bool(hooks and hooks.is_installed()), 'tilelang' in sys.modules, 'ptocache.frontend' in sys.modules)"
)
THERE, NOT_THERE = "True False False\n", "False False False\n"


@pytest.fixture(autouse=True)
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory in which everything runs."""
    place = tmp_path / "work"
    place.mkdir()
    monkeypatch.chdir(place)
    return place


@pytest.fixture(scope="module")
def _startup_file() -> None:
    """Of the Python that runs the tests: they are about what it does."""
    environ = {**os.environ, "PTOCACHE_INSTALL": "1"}
    result = subprocess.run([sys.executable, "-c", IS_THERE], env=environ, capture_output=True, text=True, check=True)
    if result.stdout != THERE:
        pytest.skip("ptocache is not installed in this Python's site-packages, so it has no ptocache.pth")


needs_startup_file = pytest.mark.usefixtures("_startup_file")

Outcome = tuple[int, bytes, bytes]


def plainly(*arguments: str, **options: object) -> Outcome:
    """What Python does with a command line."""
    return outcome([sys.executable, *arguments], **options)


def cached(*arguments: str, **options: object) -> Outcome:
    """What `ptocache run` does with it."""
    return outcome([sys.executable, "-m", "ptocache", "run", *arguments], **options)


def outcome(command: Sequence[str], **options: object) -> Outcome:
    environ = options.pop("env", None) or dict(os.environ)
    assert isinstance(environ, dict)
    result = subprocess.run(command, capture_output=True, timeout=120, check=False, env=environ, **options)
    return result.returncode, result.stdout, result.stderr


def until_asleep(pid: int) -> None:
    """Wait until a process does nothing, so that a signal finds it at a certain place."""
    deadline = time.monotonic() + 60
    while Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] != "S":
        assert time.monotonic() < deadline
        time.sleep(0.01)


def write(name: str, text: str) -> str:
    path = Path(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return name


#: All that a script can see of how it was started, but for the one variable.
EVERYTHING = """
import json, locale, os, resource, signal, sys
environ = dict(os.environ)
environ.pop("PTOCACHE_INSTALL", None)
spec = __spec__ and (__spec__.name, __spec__.origin)
signals = {number: str(signal.getsignal(number)) for number in signal.valid_signals() if number not in (9, 19)}
limits = {name: resource.getrlimit(getattr(resource, name)) for name in dir(resource) if name.startswith("RLIMIT_")}
umask = os.umask(0)
streams = [(s.encoding, s.errors, s.line_buffering, s.isatty()) for s in (sys.stdin, sys.stdout, sys.stderr)]
print(json.dumps({
    "argv": sys.argv, "orig_argv": sys.orig_argv, "path": sys.path, "name": __name__, "file": globals().get("__file__"),
    "spec": spec, "package": __package__, "flags": repr(sys.flags), "xoptions": sys._xoptions,
    "warnings": sys.warnoptions, "executable": sys.executable, "prefix": sys.prefix, "environ": environ,
    "directory": os.getcwd(), "signals": signals, "mask": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, ())),
    "limits": limits, "umask": umask, "streams": streams, "descriptors": sorted(os.listdir("/proc/self/fd")),
    "encoding": [sys.getfilesystemencoding(), locale.getpreferredencoding()], "nice": os.nice(0),
    "session": os.getsid(0) == os.getpid(), "group": os.getpgrp() == os.getpid(),
}, sort_keys=True, indent=1))
"""


def differences(one: Outcome, other: Outcome) -> dict[str, tuple[object, object]]:
    """What two processes saw that was not the same; both succeeded."""
    assert (one[0], other[0], one[2], other[2]) == (0, 0, b"", b"")
    first, second = json.loads(one[1]), json.loads(other[1])
    assert first.keys() == second.keys()
    return {name: (first[name], second[name]) for name in first if first[name] != second[name]}


@needs_startup_file
class TestLikePython:
    @pytest.mark.parametrize(
        "arguments",
        [
            ["facts.py"],
            ["facts.py", "--steps", "10", "-m", "x", "--emulate", "--help", "-h", "--"],
            ["facts.py", "", "two words", "$HOME", "*", "ü", os.fsdecode(b"\xff")],
            ["sub/facts.py"],
            ["-m", "facts", "x"],
            ["-m", "package", "x"],
            ["-m", "package.facts"],
            ["-c", EVERYTHING, "x", "-y"],
            ["package"],
            ["zipped.zip", "x"],
            ["-I", "facts.py"],
            ["-E", "-s", "-u", "-W", "error", "-X", "dev", "facts.py"],
            ["-OO", "-B", "facts.py"],
            ["--", "facts.py", "x"],
        ],
        ids=" ".join,
    )
    def test_a_script_sees_what_it_would_see(self, arguments: list[str]) -> None:
        for name in ("facts.py", "sub/facts.py", "package/__main__.py", "package/facts.py"):
            write(name, EVERYTHING)
        with zipfile.ZipFile("zipped.zip", "w") as archive:
            archive.writestr("__main__.py", EVERYTHING)
        assert differences(cached(*arguments), plainly(*arguments)) == {}

    @pytest.mark.parametrize("variables", [{}, {"LC_ALL": "C"}, {"LANG": "C.UTF-8"}, {"LC_CTYPE": "POSIX"}])
    def test_in_any_locale(self, variables: dict[str, str]) -> None:
        kept = {name: value for name, value in os.environ.items() if name != "LANG" and not name.startswith("LC_")}
        environ = {**kept, **variables}
        script = write("facts.py", EVERYTHING)
        assert differences(cached(script, env=environ), plainly(script, env=environ)) == {}

    @pytest.mark.parametrize(
        "code",
        [
            "pass",
            "raise SystemExit",
            "import sys; sys.exit(3)",
            "import sys; sys.exit('a text')",
            "import sys; print('out'); sys.exit(None)",
            "import sys; sys.exit(256 + 4)",
            "import os; os._exit(7)",
            "import os; os.abort()",
            "raise ValueError('wrong')",
            "def f():\n  1 / 0\ntry:\n  f()\nexcept ZeroDivisionError as error:\n  raise RuntimeError('so') from error",
            "raise KeyboardInterrupt",
            "raise ExceptionGroup('all', [ValueError(1), TypeError(2)])",
            "import no_such_module",
            "this is no Python",
            "import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
            "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)",
            "import atexit; atexit.register(print, 'at exit'); raise SystemExit(2)",
            "import sys; sys.stderr.write('e'); sys.stdout.write('o'); assert False, 'asserted'",
            "import warnings; warnings.warn('a warning')",
            "import logging; logging.getLogger('ptocache').info('x'); logging.warning('y')",
        ],
    )
    def test_it_ends_in_the_same_way(self, code: str) -> None:
        if "ExceptionGroup" in code and sys.version_info < (3, 11):
            pytest.skip("this Python has none")
        script = write("script.py", code + "\n")
        assert cached(script) == plainly(script)
        assert cached("-c", code) == plainly("-c", code)

    @pytest.mark.parametrize(
        "arguments",
        [["missing.py"], ["-m", "missing"], ["-m"], ["-c"], ["--no-such-option"], ["."], ["-V"]],
        ids=" ".join,
    )
    def test_what_python_refuses_it_refuses(self, arguments: list[str]) -> None:
        expected = plainly(*arguments)
        assert expected[0] == (0 if arguments == ["-V"] else expected[0] or 1)
        assert cached(*arguments) == expected

    @pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1])
    @pytest.mark.parametrize("handler", ["", "signal.signal(signal.{}, lambda *_: sys.exit(5))\n"])
    def test_it_dies_of_a_signal_as_python_does(self, number: signal.Signals, handler: str) -> None:
        script = write(
            "script.py",
            f"import signal, sys, time\n{handler.format(number.name)}print('ready', flush=True)\ntime.sleep(60)\n",
        )

        def end(command: list[str]) -> Outcome:
            process = subprocess.Popen(
                [sys.executable, *command],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                # Where the tests run under nohup it would be ignored.
                preexec_fn=lambda: signal.signal(number, signal.SIG_DFL),  # noqa: PLW1509 - no threads here
            )
            try:
                assert process.stdout is not None
                assert process.stdout.readline() == b"ready\n"
                until_asleep(process.pid)
                process.send_signal(number)
                out, err = process.communicate(timeout=60)
            finally:
                process.kill()
            return process.returncode, out, err

        status, out, err = end([script])
        assert status == (5 if handler else -number)
        assert end(["-m", "ptocache", "run", script]) == (status, out, err)

    def test_ignored_signals_stay_ignored(self) -> None:
        script = write("facts.py", EVERYTHING)

        def ignore() -> None:
            for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
                signal.signal(number, signal.SIG_IGN)

        assert differences(cached(script, preexec_fn=ignore), plainly(script, preexec_fn=ignore)) == {}

    def test_its_standard_input_is_the_scripts(self) -> None:
        text = b"line\n" * 100_000 + b"\xff no newline"
        script = write("cat.py", "import shutil, sys; shutil.copyfileobj(sys.stdin.buffer, sys.stdout.buffer)\n")
        assert cached(script, input=text) == (0, text, b"")

    def test_a_script_on_standard_input(self) -> None:
        for arguments in (["-"], ["-", "x"]):
            text = EVERYTHING.encode()
            assert differences(cached(*arguments, input=text), plainly(*arguments, input=text)) == {}

    @pytest.mark.parametrize("closed", [0, 1, 2])
    def test_a_stream_that_is_closed(self, closed: int) -> None:
        script = write("script.py", "import sys; open('seen', 'w').write(repr([sys.stdin, sys.stdout, sys.stderr]))\n")
        seen = []
        for command in ([sys.executable], [sys.executable, "-m", "ptocache", "run"]):
            subprocess.run([*command, script], check=True, preexec_fn=lambda: os.close(closed))
            seen.append(Path("seen").read_text())
        assert seen[0] == seen[1]

    def test_it_is_one_process(self) -> None:
        script = write("script.py", "import os; print(os.getpid(), os.getppid())\n")
        process = subprocess.Popen([sys.executable, "-m", "ptocache", "run", script], stdout=subprocess.PIPE, text=True)
        out, _ = process.communicate(timeout=60)
        assert out.split() == [str(process.pid), str(os.getpid())]


class TestHelp:
    @pytest.mark.parametrize("option", ["--help", "-h"])
    def test_it_explains_itself(self, option: str) -> None:
        result = run_ptocache("run", option)
        assert (result.returncode, result.stderr) == (0, "")
        assert result.stdout.startswith("usage: ptocache run [--emulate] SCRIPT")
        assert "--emulate" in result.stdout

    def test_its_example_exists(self) -> None:
        for word in run_ptocache("run", "--help").stdout.split():
            if word.startswith("examples/"):
                assert (EXAMPLES.parent / word).is_file(), word

    @pytest.mark.parametrize("arguments", [[], ["--emulate"], ["--debug"]])
    def test_without_a_script_it_says_what_it_needs(self, arguments: list[str]) -> None:
        result = run_ptocache("run", *arguments)
        assert (result.returncode, result.stdout) == (2, "")
        assert "a script is missing: ptocache run SCRIPT" in result.stderr

    def test_it_is_among_the_commands(self) -> None:
        assert "\n  run " in run_ptocache("--help").stdout


@needs_startup_file
class TestInstalling:
    @pytest.mark.parametrize("arguments", [["-c", IS_THERE], ["script.py"], ["-m", "script"], ["-I", "-c", IS_THERE]])
    def test_ptocache_is_below_tilelang(self, arguments: list[str]) -> None:
        write("script.py", IS_THERE)
        assert cached(*arguments) == (0, THERE.encode(), b"")

    @pytest.mark.parametrize(
        ("value", "expected"),
        [
            *((value, THERE) for value in ("1", "true", "on")),
            *((value, NOT_THERE) for value in ("0", "false", "No", " off ", "", None)),
        ],
    )
    def test_without_it_the_variable_decides(self, value: str | None, expected: str) -> None:
        environ = {**os.environ, **({} if value is None else {"PTOCACHE_INSTALL": value})}
        assert plainly("-c", IS_THERE, env=environ) == (0, expected.encode(), b"")

    def test_it_prevails_over_the_variable(self) -> None:
        environ = {**os.environ, "PTOCACHE_INSTALL": "0"}
        assert cached("-c", IS_THERE, env=environ) == (0, THERE.encode(), b"")

    def test_a_child_that_is_started_with_python(self) -> None:
        code = f"import subprocess, sys; sys.stdout.flush(); subprocess.run([sys.executable, '-c', {IS_THERE!r}])"
        assert cached("-c", code) == (0, THERE.encode(), b"")

    def test_a_child_of_a_child_through_a_shell(self) -> None:
        write("script.py", IS_THERE)
        code = f"import os; os.system('sh -c \"{sys.executable} script.py\"')"
        assert cached("-c", code) == (0, THERE.encode(), b"")

    def test_what_it_becomes_with_exec(self) -> None:
        code = f"import os, sys; os.execv(sys.executable, [sys.executable, '-c', {IS_THERE!r}])"
        assert cached("-c", code) == (0, THERE.encode(), b"")

    @pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
    def test_the_children_of_multiprocessing(self, method: str) -> None:
        write(
            "script.py",
            f"""
import multiprocessing, sys
def tell():
    {IS_THERE}
    sys.stdout.flush()
if __name__ == "__main__":
    context = multiprocessing.get_context({method!r})
    child = context.Process(target=tell)
    child.start()
    child.join()
    with context.Pool(1) as pool:
        pool.apply(tell)
""",
        )
        environ = {name: value for name, value in os.environ.items() if name != "TMPDIR"}  # a socket's name is short
        assert cached("script.py", env=environ) == (0, THERE.encode() * 2, b"")

    def test_a_child_without_the_variable_has_none(self) -> None:
        code = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {IS_THERE!r}], env={{}})"
        assert cached("-c", code) == (0, NOT_THERE.encode(), b"")


@needs_startup_file
class TestEmulate:
    def test_the_emulated_tools_are_found(self) -> None:
        code = (
            "import json, os, shutil; "
            "print(json.dumps([os.environ['ASCEND_HOME_PATH'], shutil.which('bisheng'), shutil.which('ptoas'), "
            "os.environ['PTOCACHE_TOOLCHAIN'], os.environ['PTOCACHE_INSTALL'], os.environ['OTHER']]))"
        )
        status, out, err = cached("--emulate", "-c", code, env={**os.environ, "OTHER": "kept"})
        assert (status, err) == (0, b"")
        root, bisheng, ptoas, *rest = json.loads(out)
        assert Path(root, "bin", "bisheng") == Path(bisheng)
        assert Path(ptoas) == Path(root, "bin", "ptoas")
        assert rest == ["emulated", "1", "kept"]

    def test_a_script_compiles_with_them(self) -> None:
        write("kernel.py", KERNEL)
        code = "import ptocache; print(ptocache.compile(open('kernel.py').read())[:4])"
        assert cached("--emulate", "-c", code) == (0, b"b'\\x7fELF'\n", b"")

    def test_where_the_install_has_no_place_to_stay_each_process_makes_and_removes_its_own(self) -> None:
        write("kernel.py", KERNEL)
        code = "import ptocache; print(ptocache.compile(open('kernel.py').read())[:4])"
        environ = {**os.environ, "HOME": "/proc/nowhere"}
        assert cached("--emulate", "-c", code, env=environ) == (0, b"b'\\x7fELF'\n", b"")
        assert os.listdir(os.environ["TMPDIR"]) == []

    def test_without_it_the_installed_tools_are_used(self, cann: Path) -> None:
        environ = {**os.environ, "ASCEND_HOME_PATH": str(cann)}
        code = "import os; print(os.environ['ASCEND_HOME_PATH'], os.environ.get('PTOCACHE_TOOLCHAIN'))"
        assert cached("-c", code, env=environ) == (0, f"{cann} None\n".encode(), b"")

    def test_its_position_is_before_the_script(self) -> None:
        script = write("script.py", "import os, sys; print(sys.argv[1:], os.environ.get('PTOCACHE_TOOLCHAIN'))\n")
        assert cached(script, "--emulate") == (0, b"['--emulate'] None\n", b"")


class TestStartupFile:
    """Where `ptocache.pth` is not in site-packages nothing would bring ptocache into the script."""

    @pytest.fixture
    def python(self, tmp_path: Path) -> str:
        """A Python that has no packages."""
        venv.create(tmp_path / "venv", with_pip=False, symlinks=True)
        return str(tmp_path / "venv/bin/python")

    @pytest.fixture
    def copy(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        """ptocache's own package, found through `PYTHONPATH`."""
        place = tmp_path / "copy"
        shutil.copytree(PACKAGE, place / "ptocache", ignore=shutil.ignore_patterns("__pycache__"))
        monkeypatch.setenv("PYTHONPATH", str(place))
        return place

    def test_a_missing_one_is_told_of(self, python: str, copy: Path) -> None:
        script = write("script.py", "open('ran', 'w')\n")
        status, out, err = outcome([python, "-m", "ptocache", "run", script])
        assert (status, out) == (2, b"")
        assert err.startswith(b"ptocache: ptocache.pth is in none of this Python's site-packages")
        assert b"install ptocache with pip" in err
        assert err.count(b"\n") == 1
        assert not Path("ran").exists()

    def test_one_that_python_does_not_read_is_as_good_as_missing(self, python: str, copy: Path) -> None:
        """A clone of this project, or `pip install --target`, on `PYTHONPATH`."""
        shutil.copy(PROJECT / "ptocache.pth", copy)
        status, out, err = outcome([python, "-m", "ptocache", "run", "-c", IS_THERE])
        assert (status, out) in {(0, THERE.encode()), (2, b"")}, out
        assert (b"ptocache.pth" in err) == (status == 2)

    def test_one_in_site_packages_is_enough(self, python: str, copy: Path) -> None:
        (packages,) = Path(python).parent.parent.glob("lib/python*/site-packages")
        shutil.copy(PROJECT / "ptocache.pth", packages)
        assert outcome([python, "-m", "ptocache", "run", "-c", IS_THERE]) == (0, THERE.encode(), b"")

    def test_one_that_outlived_its_package_keeps_no_process_from_starting(
        self, python: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.delenv("PYTHONPATH", raising=False)
        (packages,) = Path(python).parent.parent.glob("lib/python*/site-packages")
        shutil.copy(PROJECT / "ptocache.pth", packages)
        assert outcome([python, "-c", "print('runs')"]) == (0, b"runs\n", b"")
        status, out, _ = outcome([python, "-c", "print('runs')"], env={**os.environ, "PTOCACHE_INSTALL": "1"})
        assert (status, out) == (0, b"runs\n")

    def test_it_is_one_line_that_costs_nothing_where_it_is_not_asked_for(self) -> None:
        (line,) = (PROJECT / "ptocache.pth").read_text().splitlines()
        assert line.startswith("import os;")
        best = min(_seconds(line) for _ in range(5))
        assert best < 0.001


def _seconds(line: str) -> float:
    start = time.perf_counter()
    exec(line, {})
    return time.perf_counter() - start


def _needs(*modules: str) -> pytest.MarkDecorator:
    missing = [name for name in modules if importlib.util.find_spec(name) is None]
    return pytest.mark.skipif(bool(missing), reason=f"this Python has no {', '.join(missing)}")


@pytest.mark.skipif(not (PROJECT / "pyproject.toml").is_file(), reason="the tests are not beside the project")
@_needs("pip", "hatchling")
class TestPackaging:
    def pip(self, *arguments: object) -> None:
        result = subprocess.run(
            [sys.executable, "-m", "pip", "--disable-pip-version-check", "-q", *map(str, arguments)],
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "PIP_NO_INDEX": "1"},
        )
        assert result.returncode == 0, result.stderr

    def test_a_wheel_brings_the_startup_file_and_takes_it_away(self, tmp_path: Path) -> None:
        self.pip("wheel", "--no-build-isolation", "--no-deps", "-w", tmp_path / "wheels", PROJECT)
        (wheel,) = (tmp_path / "wheels").iterdir()
        with zipfile.ZipFile(wheel) as archive:
            assert archive.read("ptocache.pth") == (PROJECT / "ptocache.pth").read_bytes()
        venv.create(tmp_path / "venv", with_pip=False, symlinks=True)
        python = tmp_path / "venv/bin/python"
        (packages,) = (tmp_path / "venv").glob("lib/python*/site-packages")
        environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}

        self.pip("--python", python, "install", "--no-deps", wheel)
        assert (packages / "ptocache.pth").is_file()
        ran = outcome([str(tmp_path / "venv/bin/ptocache"), "run", "-c", IS_THERE], env=environ)
        assert ran == (0, THERE.encode(), b"")
        assert outcome([str(python), "-c", IS_THERE], env=environ) == (0, NOT_THERE.encode(), b"")

        self.pip("--python", python, "uninstall", "-y", "ptocache")
        assert not (packages / "ptocache.pth").exists()
        assert list(packages.glob("*ptocache*")) == []

    @_needs("editables")
    def test_an_editable_install_brings_it_too(self, tmp_path: Path) -> None:
        project = tmp_path / "project"
        project.mkdir()
        for name in ("pyproject.toml", "hatch_build.py", "ptocache.pth", "README.md", "LICENSE"):
            shutil.copy(PROJECT / name, project)
        shutil.copytree(PACKAGE, project / "ptocache", ignore=shutil.ignore_patterns("__pycache__"))
        venv.create(tmp_path / "venv", with_pip=False, symlinks=True, system_site_packages=True)
        python = tmp_path / "venv/bin/python"
        (packages,) = (tmp_path / "venv").glob("lib/python*/site-packages")
        # Its build needs what this Python has.
        here = [path for path in sys.path if path.endswith("site-packages")]
        (packages / "here.pth").write_text("".join(f"{path}\n" for path in here))
        self.pip("--python", python, "install", "--no-build-isolation", "--no-deps", "-e", project)
        assert (packages / "ptocache.pth").is_file()
        environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        code = f"{IS_THERE}; import ptocache; print(ptocache.__file__)"
        ran = outcome([str(python), "-m", "ptocache", "run", "-c", code], env=environ)
        assert ran == (0, f"{THERE}{project / 'ptocache' / '__init__.py'}\n".encode(), b"")
