"""Keys: equal wherever, whenever and by whom the same is compiled, and different whenever anything that counts is."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from conftest import EXAMPLES, KERNEL, ToolLog
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from ptocache import CompileCache, Settings
from ptocache.digests import Digests
from ptocache.emulator import environment, write_install
from ptocache.inputs import FILE, Checker, Input, encode_inputs
from ptocache.request import (
    ARCHS,
    CompileRequest,
    encode,
    key_flags,
    make_key,
    make_request,
    pto_parts,
    source_parts,
)
from ptocache.stamp import make_stamp
from ptocache.tools import locate

#: Compiles in a process of its own, and tells the keys that it stored under.
PROGRAM = """\
import json, sys
from ptocache import CompileCache
with CompileCache() as cache:
    result = cache.compile(open(sys.argv[1], encoding="utf-8").read())
    job = cache.prepare("x")
    names = {name: "pto" in action.details() for name, action in cache.local.all_actions()}
print(json.dumps({
    "source": result.key,
    "pto": sorted(name for name, is_pto in names.items() if is_pto),
    "sha256": result.sha256,
    "found": [result.origin, result.via],
    "stamp": job.stamp.name,
    "backend": job.stamp.backend_name,
}))
"""

#: Where another interpreter finds ptocache, too.
REPOSITORY = Path(__file__).parent.parent

HELPED = "from helpers import EVENT\n" + KERNEL.replace("event_id=0", "event_id=EVENT")


def run(source: Path, environ: dict[str, str], cwd: Path, python: str = sys.executable) -> dict[str, object]:
    result = subprocess.run(
        [python, "-c", PROGRAM, str(source)],
        env=environ,
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    found: dict[str, object] = json.loads(result.stdout)
    return found


class Host:
    """A host with an install, an import root with a helper, a home, a temporary and a working directory of its own."""

    def __init__(self, place: Path) -> None:
        for name in ("home", "temp", "cwd", "site"):
            (place / name).mkdir(parents=True)
        self.place = place
        self.cann = write_install(place / "opt" / "cann")
        (place / "site" / "helpers.py").write_text("EVENT = 3\n")
        self.source = place / "cwd" / "kernel.py"
        self.source.write_text(HELPED)

    def environ(self, **variables: str) -> dict[str, str]:
        plain = {
            "PATH": os.environ["PATH"],
            "HOME": str(self.place / "home"),
            "TMPDIR": str(self.place / "temp"),
            "PTOCACHE_DIR": str(self.place / "cache"),
            "PYTHONPATH": f"{self.place / 'site'}:{REPOSITORY}",
            **variables,
        }
        return environment(self.cann, plain)

    def compile(self, python: str = sys.executable, **variables: str) -> dict[str, object]:
        return run(self.source, self.environ(**variables), self.place / "cwd", python)


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> tuple[Host, dict[str, object]]:
    """A host, and what it compiled."""
    host = Host(tmp_path_factory.mktemp("first"))
    return host, host.compile(PYTHONHASHSEED="0")


class TestEqual:
    def test_two_hosts_make_the_same_keys_and_share_a_cache(
        self, first: tuple[Host, dict[str, object]], tmp_path: Path
    ) -> None:
        """Two prefixes, homes, temporary and working directories, times and hash seeds, at once."""
        host, expected = first
        other = Host(tmp_path / "second host")
        for number, path in enumerate(sorted(other.place.rglob("*"))):
            os.utime(path, (number, number), follow_symlinks=False)
        found = other.compile(PYTHONHASHSEED="random", LANG="C", USER="somebody")
        assert found == expected
        assert found["found"] == ["compiled", None]
        shutil.rmtree(other.place / "cache")
        shutil.copytree(host.place / "cache", other.place / "cache")
        assert other.compile() == {**expected, "found": ["local", "source"]}

    @pytest.mark.parametrize("version", ["3.10", "3.12", "3.13"])
    def test_another_python_makes_the_same_pto_key(
        self, first: tuple[Host, dict[str, object]], tmp_path: Path, version: str
    ) -> None:
        """The frontend is traced by it, and so is another one; what it lowered is the same text."""
        host, expected = first
        python = find_python(version)
        shutil.copytree(host.place / "cache", tmp_path / "cache")
        found = host.compile(python, PTOCACHE_DIR=str(tmp_path / "cache"))
        assert found["found"] == ["local", "pto"]
        for part in ("pto", "backend", "sha256"):
            assert found[part] == expected[part]
        assert found["stamp"] != expected["stamp"]

    @pytest.mark.usefixtures("toolchain")
    def test_where_a_process_stands_and_what_it_holds_does_not_show(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def keys() -> list[str]:
            with CompileCache() as cache:
                return [cache.prepare(path.read_text()).key.name for path in sorted(EXAMPLES.glob("*.py"))]

        before = keys()
        assert len(set(before)) == len(before)
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("COLUMNS", "7")
        monkeypatch.setenv("PTOCACHE_COMPILE_TIMEOUT", "77")
        monkeypatch.setenv("PTOCACHE_EMULATOR_DELAY", "ptoas=0")
        monkeypatch.setattr(sys, "argv", ["/elsewhere/train.py"])
        assert keys() == before

    @pytest.mark.usefixtures("toolchain")
    def test_other_words_for_the_same_options(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def key(flags: Sequence[str] | str) -> bytes:
            return encode(source_parts(make_request(KERNEL, "a5", flags), "stamp"))

        for same in ("--pto-backend vpto", "--pto-backend=vpto", ["--pto-backend", "vpto"], "--pto-backend='vpto'", ""):
            assert key(same) == key("--verbose --pto-backend=vpto")
        assert key("--x --y") != key("--y --x")
        assert key("--x=1 --pto-backend=vpto") != key("--pto-backend=vpto --x=1")


def find_python(version: str) -> str:
    """Another interpreter with the package's dependencies."""
    if version == f"{sys.version_info[0]}.{sys.version_info[1]}":
        pytest.skip("it is this one")
    python = shutil.which(f"python{version}")
    needs = "import xxhash, diskcache, filelock, elftools"
    if python is None:
        pytest.skip(f"there is no python{version} on PATH")
    check = subprocess.run([python, "-c", needs], capture_output=True, check=False, timeout=60)
    if check.returncode:
        pytest.skip(f"{python} lacks the package's dependencies")
    return python


@pytest.mark.usefixtures("toolchain")
class TestVariables:
    """A variable that the tools read counts from the next request on: nobody waits a second after setting it."""

    @pytest.mark.parametrize("name", ["PTOAS_NEW_KNOB", "PTODSL_TRACE", "CPATH"])
    def test_a_variable_of_the_tools_counts_at_once(self, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
        with CompileCache() as cache:
            before = cache.compile(KERNEL)
            monkeypatch.setenv(name, "1")
            changed = cache.compile(KERNEL)
            assert changed.key != before.key
            assert changed.origin == "compiled"
            monkeypatch.delenv(name)
            assert cache.compile(KERNEL).key == before.key


# ---- any single bit


SOURCES = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=40)
FLAGS = st.lists(
    st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=12)
    .filter(lambda word: word.partition("=")[0] not in {"-o", "--o", "--output", "--pto-arch", "-h"})
    .filter(lambda word: not word.startswith(("--version", "--help", "--pto-backend")))
    | st.sampled_from(["--a", "--a=b", "--pto-backend=vpto", "", "-v", "b", "--x y"]),
    max_size=4,
)
ARCH = st.sampled_from(ARCHS)
REQUESTS = st.builds(make_request, SOURCES, ARCH, FLAGS)


def meaning(request: CompileRequest) -> tuple[object, ...]:
    return (request.source, request.arch, *key_flags(request.flags))


def flipped(data: bytes, bit: int) -> bytes:
    bit %= len(data) * 8
    return data[: bit // 8] + bytes([data[bit // 8] ^ 1 << bit % 8]) + data[bit // 8 + 1 :]


class TestEncoding:
    @given(REQUESTS, REQUESTS)
    def test_two_requests_have_the_same_bytes_only_if_they_are_the_same(
        self, one: CompileRequest, other: CompileRequest
    ) -> None:
        same = meaning(one) == meaning(other)
        for parts in (source_parts, lambda request, stamp: pto_parts(request.source, request, stamp)):
            assert (encode(parts(one, "stamp")) == encode(parts(other, "stamp"))) == same
        assert (make_key(source_parts(one, "s")) == make_key(source_parts(other, "s"))) == same

    @given(SOURCES, ARCH, FLAGS, st.integers(min_value=0), st.integers(min_value=0))
    def test_what_moves_from_one_part_to_another_shows(
        self, source: str, arch: str, flags: list[str], cut: int, where: int
    ) -> None:
        """Neighbouring parts with the same letters in all, cut at another place."""
        assume(flags)
        index = where % len(flags)
        word = flags[index]
        cut %= len(word) + 1
        moved = [*flags[:index], word[:cut], word[cut:], *flags[index + 1 :]]
        one = CompileRequest(source, arch, tuple(flags))
        for other in (
            CompileRequest(source, arch, tuple(moved)),
            CompileRequest(source + word, arch, tuple(flags[:-1])),
        ):
            if meaning(one) != meaning(other):
                assert encode(source_parts(one, "stamp")) != encode(source_parts(other, "stamp"))

    @given(REQUESTS, st.integers(min_value=0))
    def test_any_bit_of_the_source_counts(self, request: CompileRequest, bit: int) -> None:
        changed = flipped(request.source.encode(), bit)
        with contextlib.suppress(UnicodeDecodeError):
            other = request._replace(source=changed.decode())
            assert make_key(source_parts(other, "stamp")) != make_key(source_parts(request, "stamp"))
            keys = [make_key(pto_parts(text, request, "stamp")) for text in (request.source, other.source)]
            assert keys[0] != keys[1]

    @given(REQUESTS, st.integers(min_value=0))
    def test_any_bit_of_the_flags_counts(self, request: CompileRequest, bit: int) -> None:
        index = bit % len(request.flags)
        assume(request.flags[index])
        word = flipped(request.flags[index].encode(), bit).decode("utf-8", "surrogateescape")
        flags = (*request.flags[:index], word, *request.flags[index + 1 :])
        other = request._replace(flags=flags)
        assume(key_flags(flags) != key_flags(request.flags))
        assert make_key(source_parts(other, "stamp")) != make_key(source_parts(request, "stamp"))

    @given(REQUESTS, ARCH, st.text(st.characters(max_codepoint=127)), st.text(st.characters(max_codepoint=127)))
    def test_arch_and_stamp_count(self, request: CompileRequest, arch: str, one: str, other: str) -> None:
        keys = {make_key(source_parts(request._replace(arch=a), s)) for a in (request.arch, arch) for s in (one, other)}
        assert len(keys) == len({request.arch, arch}) * len({one, other})

    @given(REQUESTS)
    def test_a_source_key_is_never_a_pto_key(self, request: CompileRequest) -> None:
        assert make_key(source_parts(request, "s")) != make_key(pto_parts(request.source, request, "s"))


@pytest.fixture(scope="module")
def workshop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A hand-made install of small files, with tools that cannot be run: each bit of them may be changed."""
    root = tmp_path_factory.mktemp("workshop")
    for name, data in {
        "bin/bisheng": b"\x7fELF bisheng",
        "bin/ld.lld": b"\x7fELF linker",
        "bin/ptoas": b"\x7fELF ptoas",
        "lib/libpto.so": b"\x7fELF library",
        "version.info": b"Version=1.0\n",
        "python/ptodsl/__init__.py": b"from . import pto\n",
        "python/ptodsl/pto.py": b"A = 1\n",
        "site/helpers/__init__.py": b"EVENT = 1\n",
        "site/helpers/table.bin": b"\0",
    }.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(data)
        (root / name).chmod(0o755)
    return root


TOOLS = ["bin/bisheng", "bin/ld.lld", "bin/ptoas", "lib/libpto.so", "python/ptodsl/__init__.py", "python/ptodsl/pto.py"]


@contextlib.contextmanager
def changed(path: Path, change: Callable[[bytes], bytes]) -> Iterator[None]:
    before = path.read_bytes()
    path.write_bytes(change(before))
    try:
        yield
    finally:
        path.write_bytes(before)


class TestAnyBit:
    @settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(name=st.sampled_from(TOOLS), bit=st.integers(min_value=0, max_value=1 << 16))
    def test_of_a_tool_changes_the_key(self, workshop: Path, name: str, bit: int) -> None:
        environ = {"ASCEND_HOME_PATH": str(workshop), "PATH": f"{workshop}/bin", "PYTHONPATH": f"{workshop}/python"}
        digests = Digests()

        def keys() -> tuple[object, object]:
            stamp = make_stamp(locate(environ), digests)
            request = make_request(KERNEL, "a5", "")
            return make_key(source_parts(request, stamp.name)), make_key(pto_parts("", request, stamp.backend_name))

        before = keys()
        with changed(workshop / name, lambda data: flipped(data, bit)):
            source_key, pto_key = keys()
            assert source_key != before[0]
            assert (pto_key != before[1]) == (not name.startswith("python/"))
        assert keys() == before

    @settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(name=st.sampled_from(["helpers/__init__.py", "helpers/table.bin"]), bit=st.integers(0, 1 << 16))
    def test_of_a_helper_makes_the_action_not_match(self, workshop: Path, name: str, bit: int) -> None:
        digests = Digests()
        checker = Checker(digests, [str(workshop / "site")], os.environ.get)
        inputs = encode_inputs((Input(FILE, name, digests.of(str(workshop / "site" / name)).hex()),))
        assert checker.unchanged(inputs)
        with changed(workshop / "site" / name, lambda data: flipped(data, bit)):
            assert not checker.unchanged(inputs)
        assert checker.unchanged(inputs)


@pytest.mark.usefixtures("toolchain")
def test_an_example_with_a_comment_more_runs_the_frontend_and_no_other_tool(tool_log: ToolLog, tmp_path: Path) -> None:
    text = (EXAMPLES / "vector_add.py").read_text()
    with CompileCache(Settings.load(dir=tmp_path / "cache")) as cache:
        compiled = cache.compile(text)
        commented = cache.compile(f"# first\n{text}\n# last\n")
    assert (commented.via, commented.aibin) == ("pto", compiled.aibin)
    assert [tool_log.count(tool) for tool in ("frontend", "ptoas", "bisheng")] == [2, 1, 1]
