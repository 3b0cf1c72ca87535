"""ptocache below TileLang and away again, shown on small packages of the same layout; each check in its own process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from conftest import run_ptocache

#: A TileLang as far as `ptocache.hooks` knows it. Its compiler hands out one device binary that was made before.
PACKAGE = {
    "tilelang/__init__.py": '__version__ = "0.0.fake"\n',
    "tilelang/contrib/__init__.py": "from .bisheng import compile_ascend as exported\n",
    "tilelang/contrib/bisheng.py": '''
import os

calls = []

def find_bisheng_path():
    return os.environ["FAKE_TOOLS"] + "/bisheng"

def find_ld_lld_path():
    return os.environ["FAKE_TOOLS"] + "/ld.lld"

def normalize_options(options):
    return options.split() if isinstance(options, str) else list(options or ())

def get_npu_arch(npu_arch=None):
    return npu_arch or "dav-3510"

def get_bisheng_compile_options(npu_arch=None, options=None):
    return ["-O2", "--npu-arch=" + get_npu_arch(npu_arch), *normalize_options(options)]

def get_aibin_linker_options():
    return ["-m", "aicorelinux"]

def compile_ascend(code, target_format="o", npu_arch=None, options=None, path_target=None, verbose=False):
    """The docstring of the original."""
    calls.append(code)
    if "error" in code:
        raise RuntimeError(code)
    with open(os.environ["FAKE_AIBIN"], "rb") as file:
        return bytearray(file.read())
''',
    "tilelang/cache/__init__.py": "from .kernel_cache import KernelCache\n",
    "tilelang/cache/kernel_cache.py": """
class KernelCache:
    def _generate_key(self, func, out_idx=None, target="auto"):
        return f"{func} for {target}"
""",
    "tilelang/cache/ascend_binary_cache.py": """
class AscendBinaryCache:
    @classmethod
    def make_key(cls, *, code, options=None):
        return f"{cls.__name__}: {code} {options}"
""",
    "tilelang/autotuner/__init__.py": "",
    "tilelang/autotuner/tuner.py": """
from types import SimpleNamespace

class AutoTuner:
    def __init__(self, target="ascend"):
        self.compile_args = SimpleNamespace(target=target)

    def generate_cache_key(self, parameters, extra_parameters):
        return None if parameters is None else f"tuned {parameters}"
""",
    # Two that have bound the functions by name before ptocache comes.
    "reexports/inner.py": "from tilelang.contrib.bisheng import compile_ascend\n",
    "reexports/__init__.py": """
from .inner import compile_ascend
from tilelang.contrib.bisheng import compile_ascend as f
""",
    "user.py": "from tilelang.contrib.bisheng import compile_ascend\nfrom tilelang.contrib import exported\n",
}

PATCHED = (
    "tilelang.contrib.bisheng",
    "tilelang.cache.kernel_cache",
    "tilelang.cache.ascend_binary_cache",
    "tilelang.autotuner.tuner",
)

#: What the snippets below have at hand.
HELPERS = """
import importlib, json, sys, threading

def load():
    import reexports, user
    for name in {patched}:
        importlib.import_module(name)

def calls():
    return len(sys.modules["tilelang.contrib.bisheng"].calls)

def compile(code, function=None):
    import tilelang.contrib.bisheng as bisheng
    return bytes((function or bisheng.compile_ascend)(code, "aibin"))

def snapshot():
    '''Every attribute of every module, and of TileLang's classes, but for ptocache's own.'''
    seen = {{}}
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] in ("ptocache", "__main__"):
            continue
        for attribute, value in list(vars(module).items()):
            seen[name, attribute] = value
            if isinstance(value, type) and value.__module__.startswith("tilelang"):
                seen.update({{(name, attribute, key): entry for key, entry in vars(value).items()}})
    return seen

def changed(before):
    after = snapshot()
    return sorted(".".join(key) for key, value in before.items() if after.get(key) is not value)

def tell(**facts):
    print(json.dumps(facts))
"""


class Fake:
    """A directory with a package that calls itself TileLang, and processes that find it there."""

    def __init__(self, folder: Path, environ: dict[str, str]) -> None:
        self.folder = folder
        self.environ = environ
        for name, text in PACKAGE.items():
            self.write(name, text)
        self.write("helpers.py", HELPERS.format(patched=repr(PATCHED)))

    def write(self, name: str, text: str) -> None:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def edit(self, name: str, old: str, new: str) -> None:
        text = (self.folder / name).read_text()
        assert old in text
        self.write(name, text.replace(old, new))

    def run(self, code: str, timeout: float = 60, **environ: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-c", f"from helpers import *\n{code}"],
            env={**os.environ, **self.environ, **environ},
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )

    def facts(self, code: str, **environ: str) -> dict[str, Any]:
        """What a snippet tells; it succeeds, and prints nothing else."""
        result = self.run(code, **environ)
        assert (result.returncode, result.stderr) == (0, ""), result.stderr
        facts: dict[str, Any] = json.loads(result.stdout)
        return facts

    def warned(self, code: str, **environ: str) -> tuple[dict[str, Any], str]:
        """What a snippet tells, and the one line of warning that comes with it."""
        result = self.run(code, **environ)
        assert result.returncode == 0, result.stderr
        assert result.stderr.count("\n") == 1, result.stderr
        return json.loads(result.stdout), result.stderr


@pytest.fixture(scope="module")
def aibin(cann: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A device binary."""
    folder = tmp_path_factory.mktemp("aibin")
    (folder / "k.asc").write_text('extern "C" __global__ __vector__ void kernel(__gm__ float* x) {}\n')
    for command in (
        ["bisheng", "--cce-aicore-only", "k.asc", "-o", "k.o"],
        ["ld.lld", "-m", "aicorelinux", "-Ttext", "0", "--no-mmap-output-file", "k.o", "-o", "k.aibin"],
    ):
        subprocess.run([cann / "bin" / command[0], *command[1:]], cwd=folder, check=True)
    return folder / "k.aibin"


@pytest.fixture
def fake(tmp_path: Path, cann: Path, aibin: Path) -> Fake:
    return Fake(
        tmp_path / "fake",
        {
            "FAKE_TOOLS": str(cann / "bin"),
            "FAKE_AIBIN": str(aibin),
            "ASCEND_HOME_PATH": str(cann),
            "PYTHONPATH": os.pathsep.join(filter(None, [str(tmp_path / "fake"), os.environ.get("PYTHONPATH")])),
            "PYTHONDONTWRITEBYTECODE": "1",
        },
    )


class TestInstall:
    @pytest.mark.parametrize("order", ["install(); load()", "load(); install()"])
    def test_before_and_after_the_import_compilations_are_answered(self, fake: Fake, order: str) -> None:
        facts = fake.facts(f"""
from ptocache import install
{order}
first, second = compile("a"), compile("a")
tell(same=first == second, calls=calls(), other=bool(compile("b")), then=calls())
""")
        assert facts == {"same": True, "calls": 1, "other": True, "then": 2}

    @pytest.mark.parametrize("order", ["install(); load()", "load(); install()"])
    def test_what_was_bound_by_name_is_replaced_too(self, fake: Fake, order: str) -> None:
        facts = fake.facts(f"""
from ptocache import install
{order}
import reexports, tilelang.contrib, user
names = [user.compile_ascend, user.exported, reexports.compile_ascend, reexports.f, reexports.inner.compile_ascend,
         tilelang.contrib.exported, tilelang.contrib.bisheng.compile_ascend]
tell(same=len(set(names)), calls=[(compile("a", name), calls())[1] for name in names])
""")
        assert facts == {"same": 1, "calls": [1] * 7}

    def test_a_module_that_is_imported_while_the_compiler_is_gets_the_replacement(self, fake: Fake) -> None:
        fake.edit("tilelang/contrib/__init__.py", "from .bisheng", "from . import bisheng\nfrom .bisheng")
        with (fake.folder / "tilelang/contrib/bisheng.py").open("a") as file:
            file.write("\nimport user_of_half\n")
        fake.write("user_of_half.py", "from tilelang.contrib.bisheng import compile_ascend\n")
        facts = fake.facts("""
from ptocache import install
install(); load()
import user_of_half
compile("a"); compile("a", user_of_half.compile_ascend)
tell(calls=calls())
""")
        assert facts == {"calls": 1}

    def test_it_may_be_called_again(self, fake: Fake) -> None:
        facts = fake.facts("""
import ptocache
ptocache.install(); load(); import tilelang.contrib.bisheng as b
first = b.compile_ascend
for _ in range(3):
    ptocache.install()
same = b.compile_ascend is first
compile("a"); compile("a")
once = sum(type(finder).__module__ == "ptocache.hooks" for finder in sys.meta_path)
ptocache.uninstall()
tell(same=same, calls=calls(), finders=once, plain=b.compile_ascend.__module__,
     left=sum(type(finder).__module__ == "ptocache.hooks" for finder in sys.meta_path))
""")
        # It stays, and finds nothing.
        assert facts == {"same": True, "calls": 1, "finders": 1, "plain": "tilelang.contrib.bisheng", "left": 1}

    def test_it_works_again_where_an_earlier_list_of_finders_was_put_back(self, fake: Fake) -> None:
        facts = fake.facts("""
import ptocache
before = list(sys.meta_path)
ptocache.install()
sys.meta_path[:] = before
ptocache.install(); load()
compile("a"); compile("a")
tell(calls=calls())
""")
        assert facts == {"calls": 1}

    def test_who_holds_the_list_of_finders_is_not_cut_off(self, fake: Fake) -> None:
        facts = fake.facts("""
import ptocache
finders = sys.meta_path
ptocache.install(); ptocache.uninstall()
tell(same=finders is sys.meta_path)
""")
        assert facts == {"same": True}

    def test_the_replacement_looks_like_the_original(self, fake: Fake) -> None:
        facts = fake.facts("""
import inspect, ptocache
load()
import tilelang.contrib.bisheng as b
before = [b.compile_ascend.__name__, b.compile_ascend.__doc__, str(inspect.signature(b.compile_ascend))]
ptocache.install()
tell(same=before == [b.compile_ascend.__name__, b.compile_ascend.__doc__, str(inspect.signature(b.compile_ascend))])
""")
        assert facts == {"same": True}

    def test_neither_tilelang_nor_torch_is_imported(self, fake: Fake) -> None:
        fake.write("torch.py", "raise SystemExit('torch was imported')\n")
        facts = fake.facts("""
import ptocache
ptocache.install()
tell(found=[name for name in sys.modules if name.partition(".")[0] in ("tilelang", "torch", "wrapt", "typing")],
     ours=sorted(name for name in sys.modules if name.startswith("ptocache")))
""")
        assert facts["ours"] == ["ptocache", "ptocache.hooks"]
        assert [name for name in facts["found"] if name != "typing"] == []

    def test_without_it_nothing_of_tilelang_is_touched(self, fake: Fake) -> None:
        facts = fake.facts("""
load()
before, finders = snapshot(), list(sys.meta_path)
import ptocache, ptocache.hooks, ptocache.tilelang
compile("a"); compile("a")
tell(changed=changed(before), finders=finders == sys.meta_path, calls=calls())
""")
        assert facts == {"changed": [], "finders": True, "calls": 2}

    def test_a_module_that_is_reloaded_is_patched_again(self, fake: Fake) -> None:
        facts = fake.facts("""
import ptocache
ptocache.install(); load()
import tilelang.contrib.bisheng as b, tilelang.cache.kernel_cache as k
compile("a")
importlib.reload(b)
importlib.reload(k)
compile("a"); compile("b"); compile("b")
key = k.KernelCache()._generate_key("f", target="ascend")
reloaded = calls()
ptocache.uninstall()
compile("b")
plain = k.KernelCache()._generate_key("f", target="ascend")
tell(calls=reloaded, after=calls(), key=key != plain, plain=plain, module=b.compile_ascend.__module__)
""")
        plain = "f for ascend"
        assert facts == {"calls": 1, "after": 2, "key": True, "plain": plain, "module": "tilelang.contrib.bisheng"}

    def test_a_reload_changes_no_key(self, fake: Fake) -> None:
        facts = fake.facts("""
import ptocache
ptocache.install(); load()
import tilelang.contrib.bisheng as b, tilelang.cache.kernel_cache as k
keys = [k.KernelCache()._generate_key("f", target="ascend")]
importlib.reload(b)
keys.append(k.KernelCache()._generate_key("f", target="ascend"))
importlib.reload(k)
keys.append(k.KernelCache()._generate_key("f", target="ascend"))
tell(keys=len(set(keys)))
""")
        assert facts == {"keys": 1}

    def test_asking_for_a_spec_patches_nothing(self, fake: Fake) -> None:
        facts = fake.facts("""
import importlib.util, ptocache
ptocache.install()
spec = importlib.util.find_spec("tilelang.contrib.bisheng")
import tilelang.contrib.bisheng as b
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)      # a second one, beside the imported one
compile("a"); compile("a")
ptocache.uninstall()
tell(calls=calls(), plain=b.compile_ascend.__module__)
""")
        assert facts == {"calls": 1, "plain": "tilelang.contrib.bisheng"}

    def test_another_tool_that_watches_imports_does_not_patch_twice(self, fake: Fake) -> None:
        """Such a finder asks all others, and is asked by them; ours among them."""
        facts = fake.facts("""
class Watcher:
    busy = False
    def find_spec(self, name, path=None, target=None):
        if self.busy or not name.startswith("tilelang"):
            return None
        self.busy = True
        try:
            for finder in sys.meta_path:
                if finder is not self and (spec := finder.find_spec(name, path, target)) is not None:
                    return spec
        finally:
            self.busy = False
before = Watcher()
import ptocache
sys.meta_path.insert(0, before)
ptocache.install()
sys.meta_path.insert(0, Watcher())
load()
import tilelang.contrib.bisheng as b, tilelang.cache.kernel_cache as k
key = k.KernelCache()._generate_key("f", target="ascend")
compile("a"); compile("a")
ptocache.uninstall(); ptocache.install()
again = k.KernelCache()._generate_key("f", target="ascend")
ptocache.uninstall()
tell(calls=calls(), same=key == again, plain=b.compile_ascend.__module__)
""")
        assert facts == {"calls": 1, "same": True, "plain": "tilelang.contrib.bisheng"}

    def test_two_finders_that_ask_each_other_end(self, fake: Fake) -> None:
        facts = fake.facts("""
class Asking:
    '''Asks all others, as ours does, and knows of nobody that asks back.'''
    def find_spec(self, name, path=None, target=None):
        if name.startswith("tilelang."):
            for finder in sys.meta_path:
                if finder is not self and (spec := finder.find_spec(name, path, target)) is not None:
                    return spec
import ptocache
sys.meta_path.insert(0, Asking())
ptocache.install()
load()
compile("a"); compile("a")
tell(calls=calls())
""")
        assert facts == {"calls": 1}

    @pytest.mark.parametrize("text", ["loaded = True", "raise RuntimeError('this one must not be loaded')"])
    def test_modules_that_load_when_they_are_looked_at_are_left_alone(self, fake: Fake, text: str) -> None:
        fake.write("lazy.py", f"import os\nopen('loaded', 'w').close()\n{text}\n")
        facts = fake.facts("""
import importlib.util, os, ptocache
spec = importlib.util.find_spec("lazy")
spec.loader = importlib.util.LazyLoader(spec.loader)
module = sys.modules["lazy"] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
sys.modules["blocked"] = None
load()
ptocache.install()
compile("a"); compile("a")
during = calls()
ptocache.uninstall()
compile("a")
import tilelang.contrib.bisheng as b
tell(during=during, after=calls(), loaded=os.path.exists("loaded"), plain=b.compile_ascend.__module__)
""")
        assert facts == {"during": 1, "after": 2, "loaded": False, "plain": "tilelang.contrib.bisheng"}

    def test_a_module_that_takes_no_attributes_keeps_what_it_has(self, fake: Fake) -> None:
        fake.write(
            "strict.py",
            """
import sys, types
from tilelang.contrib.bisheng import compile_ascend

class Strict(types.ModuleType):
    def __setattr__(self, name, value):
        raise TypeError("this module is read only")

sys.modules[__name__].__class__ = Strict
""",
        )
        facts = fake.facts("""
import ptocache, strict
load()
ptocache.install()
compile("a"); compile("a"); compile("a", strict.compile_ascend)
ptocache.uninstall()
import tilelang.contrib.bisheng as b
tell(calls=calls(), same=b.compile_ascend is strict.compile_ascend)
""")
        assert facts == {"calls": 2, "same": True}

    def test_keys_are_the_same_in_every_round_of_installing(self, fake: Fake) -> None:
        """Else TileLang's own caches would be lost each time."""
        facts = fake.facts("""
import ptocache
load()
from tilelang.cache.kernel_cache import KernelCache
from tilelang.cache.ascend_binary_cache import AscendBinaryCache
from tilelang.autotuner.tuner import AutoTuner
keys = set()
for _ in range(3):
    with ptocache.installed():
        keys.add((KernelCache()._generate_key("f", target="ascend"), AscendBinaryCache.make_key(code="c"),
                  AutoTuner().generate_cache_key("p", {})))
tell(rounds=len(keys))
""")
        assert facts == {"rounds": 1}


class TestUninstall:
    @pytest.mark.parametrize("order", ["install(); load()", "load(); install()"])
    def test_every_attribute_is_what_it_was(self, fake: Fake, order: str) -> None:
        """None has code of ptocache's."""
        facts = fake.facts(f"""
from ptocache import install, uninstall
import ptocache.tilelang
{order}
compile("a")
uninstall()
load()
def home(value):
    return getattr(getattr(value, "__func__", value), "__code__", None)
wrong = []
for key, value in snapshot().items():
    code = home(value)
    if key[0].partition(".")[0] in ("tilelang", "reexports", "user") and code and "ptocache" in code.co_filename:
        wrong.append(key)
finder, = (f for f in sys.meta_path if "ptocache" in type(f).__module__)
tell(wrong=wrong, found=finder.find_spec("tilelang.contrib.bisheng"))
""")
        assert facts == {"wrong": [], "found": None}

    def test_of_all_modules_nothing_is_another_object_than_before(self, fake: Fake) -> None:
        facts = fake.facts("""
import ptocache
load()
import ptocache.tilelang, tilelang.contrib.bisheng as b
with ptocache.installed():
    compile("a")             # what a compilation loads is loaded
b.calls.clear()
before = snapshot()
ptocache.install()
during = changed(before)
compile("b"); compile("b")
ptocache.uninstall()
tell(during=during, after=changed(before), calls=calls())
""")
        assert facts["during"] == [
            "reexports.compile_ascend",
            "reexports.f",
            "reexports.inner.compile_ascend",
            "tilelang.autotuner.tuner.AutoTuner.generate_cache_key",
            "tilelang.cache.KernelCache._generate_key",
            "tilelang.cache.ascend_binary_cache.AscendBinaryCache.make_key",
            "tilelang.cache.kernel_cache.KernelCache._generate_key",
            "tilelang.contrib.bisheng.compile_ascend",
            "tilelang.contrib.exported",
            "user.compile_ascend",
            "user.exported",
        ]
        assert (facts["after"], facts["calls"]) == ([], 1)

    def test_a_function_that_somebody_kept_behaves_plainly(self, fake: Fake) -> None:
        facts = fake.facts("""
import ptocache
load()
from tilelang.cache.kernel_cache import KernelCache
from tilelang.cache.ascend_binary_cache import AscendBinaryCache
from tilelang.autotuner.tuner import AutoTuner
import tilelang.contrib.bisheng as b
ptocache.install()
kept = [b.compile_ascend, KernelCache()._generate_key, AscendBinaryCache.make_key, AutoTuner().generate_cache_key]
ptocache.uninstall()
compile("a", kept[0]); compile("a", kept[0])
tell(calls=calls(), keys=[kept[1]("f", target="ascend"), kept[2](code="c"), kept[3]("p", {})])
""")
        assert facts == {"calls": 2, "keys": ["f for ascend", "AscendBinaryCache: c None", "tuned p"]}

    def test_what_is_imported_later_is_left_alone(self, fake: Fake) -> None:
        facts = fake.facts("""
import ptocache
ptocache.install()
import tilelang
ptocache.uninstall()
load()
compile("a"); compile("a")
tell(calls=calls(), ours="ptocache.tilelang" in sys.modules)
""")
        assert facts == {"calls": 2, "ours": False}

    def test_what_somebody_else_has_put_there_stays(self, fake: Fake) -> None:
        facts = fake.facts("""
import ptocache
ptocache.install(); load()
import tilelang.contrib.bisheng as b
ours = b.compile_ascend
b.compile_ascend = theirs = lambda *a, **k: ours(*a, **k)
compile("a"); compile("a")
ptocache.uninstall()
stays = b.compile_ascend is theirs
compile("a")
tell(stays=stays, calls=calls())
""")
        assert facts == {"stays": True, "calls": 2}

    def test_it_works_where_somebody_has_reset_the_finders(self, fake: Fake) -> None:
        facts = fake.facts("""
import ptocache
saved = list(sys.meta_path)
load()
ptocache.install()
sys.meta_path[:] = saved
ptocache.uninstall()
compile("a"); compile("a")
import tilelang.contrib.bisheng as b
tell(calls=calls(), plain=b.compile_ascend.__module__)
""")
        assert facts == {"calls": 2, "plain": "tilelang.contrib.bisheng"}

    def test_without_an_install_it_does_nothing(self, fake: Fake) -> None:
        facts = fake.facts("""
import ptocache
load()
before = snapshot()
ptocache.uninstall()
tell(changed=changed(before))
""")
        assert facts == {"changed": []}


class TestInstalled:
    def test_it_holds_for_the_block(self, fake: Fake) -> None:
        facts = fake.facts("""
import ptocache
from ptocache.hooks import is_installed
load()
seen = [is_installed()]
with ptocache.installed():
    seen.append(is_installed())
    compile("a"); compile("a")
seen.append(is_installed())
try:
    with ptocache.installed():
        raise ValueError
except ValueError:
    seen.append(is_installed())
compile("a")
tell(seen=seen, calls=calls())
""")
        assert facts == {"seen": [False, True, False, False], "calls": 2}

    def test_blocks_in_blocks(self, fake: Fake) -> None:
        facts = fake.facts("""
import ptocache
from ptocache.hooks import is_installed
load()
seen = []
with ptocache.installed():
    with ptocache.installed():
        with ptocache.installed():
            pass
        seen.append(is_installed())
    seen.append(is_installed())
seen.append(is_installed())
ptocache.install()
with ptocache.installed():
    pass
seen.append(is_installed())
tell(seen=seen)
""")
        assert facts == {"seen": [True, True, False, True]}

    def test_one_object_may_be_used_in_itself(self, fake: Fake) -> None:
        facts = fake.facts("""
import ptocache
from ptocache.hooks import is_installed
block = ptocache.installed()
seen = []
with block:
    with block:
        pass
    seen.append(is_installed())
seen.append(is_installed())
tell(seen=seen)
""")
        assert facts == {"seen": [True, False]}

    def test_a_block_is_not_cut_short_by_one_of_another_thread(self, fake: Fake) -> None:
        facts = fake.facts("""
import ptocache
from ptocache.hooks import is_installed
load()
entered, left = threading.Event(), threading.Event()
seen = []
def other():
    with ptocache.installed():
        entered.set()
        left.wait(30)
        seen.append(is_installed())
thread = threading.Thread(target=other)
with ptocache.installed():
    thread.start()
    entered.wait(30)
left.set()
thread.join()
seen.append(is_installed())
tell(seen=seen)
""")
        assert facts == {"seen": [True, False]}


class TestThreads:
    def test_16_threads_install_and_uninstall_while_others_import(self, fake: Fake) -> None:
        result = fake.run(
            f"""
import faulthandler, time
faulthandler.dump_traceback_later(25, exit=True)
import ptocache
errors = []
end = time.monotonic() + 2
def safely(work):
    try:
        while time.monotonic() < end:
            work()
    except BaseException as error:
        errors.append(repr(error))
def toggle():
    ptocache.install()
    ptocache.uninstall()
def block():
    with ptocache.installed():
        time.sleep(0.0001)
importing = threading.Lock()     # Python itself does not stand its modules being forgotten while they are imported
def forget_and_import():
    with importing:
        for name in {PATCHED!r}:
            sys.modules.pop(name, None)
            importlib.import_module(name)
def use():
    try:
        compile("a")
    except KeyError:         # gone from sys.modules, just now
        pass
works = [toggle] * 6 + [block] * 4 + [forget_and_import] * 3 + [use] * 3
load()
threads = [threading.Thread(target=safely, args=(work,), daemon=True) for work in works]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
while ptocache.hooks.is_installed():
    ptocache.uninstall()
for name in {PATCHED!r}:
    sys.modules.pop(name, None)
importlib.import_module({PATCHED[0]!r})
compile("b"); compile("b")
plain = calls()
ptocache.install()
compile("b"); compile("b")
tell(errors=errors, plain=plain, then=calls())
""",
            timeout=90,
        )
        assert result.returncode == 0, result.stderr
        facts = json.loads(result.stdout)
        assert facts["errors"] == []
        assert facts["plain"] == 2
        assert facts["then"] in {2, 3}  # an earlier round may have stored it

    def test_it_does_not_wait_for_an_import_that_waits_for_it(self, fake: Fake) -> None:
        """One thread is in the import of a patched module, which imports another one; meanwhile ptocache comes."""
        fake.edit(
            "tilelang/cache/kernel_cache.py",
            "class KernelCache:",
            """import os, time
open("begun", "w").close()
while not os.path.exists("go"):
    time.sleep(0.01)
time.sleep(0.3)
import tilelang.contrib.bisheng

class KernelCache:""",
        )
        result = fake.run("""
import faulthandler, os, time
faulthandler.dump_traceback_later(15, exit=True)
import ptocache, ptocache.tilelang
thread = threading.Thread(target=importlib.import_module, args=("tilelang.cache.kernel_cache",), daemon=True)
thread.start()
while not os.path.exists("begun"):
    time.sleep(0.01)
open("go", "w").close()
ptocache.install()
thread.join()
load()
compile("a"); compile("a")
key = sys.modules["tilelang.cache.kernel_cache"].KernelCache()._generate_key("f", target="ascend")
tell(calls=calls(), key=key != "f for ascend")
""")
        assert result.returncode == 0, result.stderr
        assert json.loads(result.stdout) == {"calls": 1, "key": True}

    def test_a_forked_child_is_not_stuck(self, fake: Fake) -> None:
        facts = fake.facts("""
import os, warnings, ptocache
from ptocache import hooks
warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 and later warn of forks in threads
load()
held, go = threading.Event(), threading.Event()
def hold():
    with hooks._lock:
        held.set()
        go.wait(30)
thread = threading.Thread(target=hold)
thread.start()
held.wait(30)
pid = os.fork()
if not pid:
    ptocache.install()
    compile("a"); compile("a")
    os._exit(calls())
go.set()
tell(status=os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
""")
        assert facts == {"status": 1}


class TestOtherTileLangs:
    """What is inside TileLang moves from version to version; then it compiles as it would without ptocache."""

    @pytest.mark.parametrize("order", ["install(); load()", "load(); install()"])
    @pytest.mark.parametrize(
        "gone",
        ["find_bisheng_path", "find_ld_lld_path", "get_npu_arch", "get_aibin_linker_options", "normalize_options"],
    )
    def test_a_function_is_gone(self, fake: Fake, gone: str, order: str) -> None:
        fake.edit("tilelang/contrib/bisheng.py", f"def {gone}(", f"def _other_{gone}(")
        facts, warning = fake.warned(f"""
from ptocache import install
{order}
compile("a"); compile("a")
tell(calls=calls())
""")
        assert facts == {"calls": 2}
        assert "TileLang 0.0.fake" in warning
        assert gone in warning

    def test_the_compile_function_itself_is_gone(self, fake: Fake) -> None:
        for name in ("tilelang/contrib/__init__.py", "reexports/__init__.py", "reexports/inner.py", "user.py"):
            fake.write(name, "")
        fake.edit("tilelang/contrib/bisheng.py", "def compile_ascend(", "def compile_text(")
        facts, warning = fake.warned("""
import ptocache
ptocache.install(); load()
import tilelang.contrib.bisheng as b
compile("a", b.compile_text); compile("a", b.compile_text)
tell(calls=calls())
""")
        assert facts == {"calls": 2}
        assert "compile_ascend" in warning

    @pytest.mark.parametrize(
        ("signature", "call"),
        [
            ("code, npu_arch, *, target_format='aibin'", "b.compile_ascend('a', 'dav-3510')"),
            ("code, target_format='o', options=None", "b.compile_ascend('a', 'aibin')"),
            ("source, target_format='o', npu_arch=None", "b.compile_ascend(source='a', target_format='aibin')"),
            (
                "code, target_format='o', npu_arch=None, options=None, path_target=None, verbose=False, level=2",
                "b.compile_ascend('a', 'aibin', None, None, None, False, 3)",
            ),
            (
                "code, target_format='o', npu_arch=None, options=None, path_target=None, verbose=False, *, level=2",
                "b.compile_ascend('a', 'aibin', level=3)",
            ),
        ],
    )
    def test_the_compile_function_takes_other_arguments(self, fake: Fake, signature: str, call: str) -> None:
        """Every call that TileLang's own function takes works, and gives what it gives."""
        text = (fake.folder / "tilelang/contrib/bisheng.py").read_text()
        text, _, _ = text.partition("def compile_ascend(")
        fake.write(
            "tilelang/contrib/bisheng.py",
            f"{text}def compile_ascend({signature}):\n"
            "    calls.append(dict(locals()))\n"
            "    with open(os.environ['FAKE_AIBIN'], 'rb') as file:\n"
            "        return bytearray(file.read())\n",
        )
        code = f"""
import tilelang.contrib.bisheng as b
results = [bytes({call}) for _ in range(2)]
tell(call=b.calls[0], count=len(set(results)))
"""
        plain = fake.run(code)
        assert plain.returncode == 0, plain.stderr
        patched = fake.run(f"import ptocache\nptocache.install(); load()\n{code}")
        assert (patched.returncode, patched.stdout) == (0, plain.stdout), patched.stderr
        assert patched.stderr.count("\n") <= 1

    def test_the_classes_are_gone(self, fake: Fake) -> None:
        fake.write("tilelang/cache/__init__.py", "")
        fake.write("tilelang/cache/kernel_cache.py", "")
        facts, warning = fake.warned("""
import ptocache
ptocache.install(); load()
compile("a"); compile("a")
tell(calls=calls())
""")
        assert facts == {"calls": 1}
        assert "KernelCache" in warning

    def test_each_module_that_is_another_is_told_of_once(self, fake: Fake) -> None:
        fake.write("tilelang/autotuner/tuner.py", "class AutoTuner: pass\n")
        fake.write("tilelang/cache/ascend_binary_cache.py", "class AscendBinaryCache: pass\n")
        result = fake.run("""
import ptocache
for _ in range(3):
    ptocache.install(); load()
    compile("a")
    ptocache.uninstall()
tell(calls=calls())
""")
        assert (result.returncode, json.loads(result.stdout)) == (0, {"calls": 1})
        assert result.stderr.count("generate_cache_key") == result.stderr.count("make_key") == 1
        assert result.stderr.count("\n") == 2

    @pytest.mark.parametrize("kind", ["@staticmethod", ""])
    def test_a_key_that_is_made_in_another_way(self, fake: Fake, kind: str) -> None:
        fake.write(
            "tilelang/cache/ascend_binary_cache.py",
            f"class AscendBinaryCache:\n    {kind}\n    def make_key(code):\n        return 'key of ' + code\n",
        )
        facts, warning = fake.warned("""
import ptocache
ptocache.install(); load()
from tilelang.cache.ascend_binary_cache import AscendBinaryCache
tell(key=AscendBinaryCache.make_key("c"))
""")
        assert facts == {"key": "key of c"}
        assert "TileLang 0.0.fake" in warning

    def test_a_kernel_key_without_a_target_is_told_of(self, fake: Fake) -> None:
        """Its entries would outlive an upgrade of CANN, and nobody would know."""
        fake.edit("tilelang/cache/kernel_cache.py", 'target="auto"', 'context="auto"')
        fake.edit("tilelang/cache/kernel_cache.py", "{target}", "{context}")
        facts, warning = fake.warned("""
import ptocache
ptocache.install(); load()
from tilelang.cache.kernel_cache import KernelCache
tell(key=KernelCache()._generate_key("f", context="ascend"))
""")
        assert facts == {"key": "f for ascend"}
        assert "_generate_key" in warning

    def test_a_tuner_without_compile_arguments_still_tunes(self, fake: Fake) -> None:
        fake.edit("tilelang/autotuner/tuner.py", "self.compile_args =", "self.arguments =")
        result = fake.run("""
import ptocache
ptocache.install(); load()
from tilelang.autotuner.tuner import AutoTuner
tell(key=AutoTuner().generate_cache_key("p", {}))
""")
        assert (result.returncode, json.loads(result.stdout or "{}")) == (0, {"key": "tuned p"}), result.stderr

    def test_a_tuner_that_has_no_key_keeps_none(self, fake: Fake) -> None:
        facts = fake.facts("""
import ptocache
ptocache.install(); load()
from tilelang.autotuner.tuner import AutoTuner
keys = [AutoTuner().generate_cache_key(None, {}), AutoTuner("c").generate_cache_key("p", {}),
        AutoTuner().generate_cache_key("p", {}) != "tuned p"]
tell(keys=keys)
""")
        assert facts == {"keys": [None, "tuned p", True]}

    @pytest.mark.parametrize("error", ["ImportError('no such thing')", "ValueError(3)", "KeyboardInterrupt()"])
    def test_an_error_of_tilelangs_import_is_its_own(self, fake: Fake, error: str) -> None:
        with (fake.folder / "tilelang/contrib/bisheng.py").open("a") as file:
            file.write(f"raise {error}\n")
        code = "import tilelang.contrib.bisheng"
        plain = fake.run(code)
        patched = fake.run(f"import ptocache; ptocache.install()\n{code}")
        assert patched.returncode == plain.returncode != 0

        def told(text: str) -> list[str]:
            """The error, and where in TileLang it was raised."""
            return [line for line in text.splitlines() if str(fake.folder) in line or not line.startswith(" ")]

        assert told(patched.stderr) == told(plain.stderr)

    def test_a_failed_import_can_be_tried_again(self, fake: Fake) -> None:
        with (fake.folder / "tilelang/contrib/bisheng.py").open("a") as file:
            file.write("if os.environ.pop('FAIL_ONCE', None): raise ImportError('once')\n")
        facts = fake.facts(
            """
import ptocache
ptocache.install()
try:
    import tilelang.contrib.bisheng
except ImportError:
    pass
load()
compile("a"); compile("a")
tell(calls=calls())
""",
            FAIL_ONCE="1",
        )
        assert facts == {"calls": 1}


class TestTrouble:
    """Where something in ptocache fails, TileLang compiles as it would without it, and that is said once."""

    CODE = """
import ptocache
{before}
ptocache.install(); load()
results = {{compile(code) for code in ("a", "a", "b")}}
tell(calls=calls(), results=[len(result) for result in results])
"""

    @pytest.mark.parametrize(
        ("variable", "value"),
        [
            ("PTOCACHE_SIZE_LIMIT", "x"),
            ("PTOCACHE_LOCK_TIMEOUT", "-1"),
            ("PTOCACHE_TOOLCHAIN", "none"),
            ("PTOCACHE_UMASK", "999"),
            ("PTOCACHE_FAILURE_TTL", "often"),
        ],
    )
    def test_a_setting_that_cannot_be_used(self, fake: Fake, aibin: Path, variable: str, value: str) -> None:
        facts, warning = fake.warned(self.CODE.format(before=""), **{variable: value})
        assert facts == {"calls": 3, "results": [aibin.stat().st_size]}
        assert variable in warning

    def test_a_setting_that_becomes_unusable_later(self, fake: Fake) -> None:
        facts, warning = fake.warned("""
import os, ptocache
ptocache.install(); load()
compile("a"); compile("a")
os.environ["PTOCACHE_SIZE_LIMIT"] = "x"
compile("a"); compile("a")
tell(calls=calls())
""")
        assert facts == {"calls": 3}
        assert "PTOCACHE_SIZE_LIMIT" in warning

    @pytest.mark.parametrize("place", ["/proc/nowhere", "/dev/null/cache"])
    def test_a_directory_that_cannot_be(self, fake: Fake, aibin: Path, place: str) -> None:
        facts, warning = fake.warned(self.CODE.format(before=""), PTOCACHE_DIR=place)
        assert facts["results"] == [aibin.stat().st_size]
        assert facts["calls"] in {2, 3}
        assert place in warning

    def test_a_configuration_file_that_is_none(self, fake: Fake, tmp_path: Path) -> None:
        (tmp_path / "config/ptocache").mkdir(parents=True)
        (tmp_path / "config/ptocache/config.toml").write_text("size_limit = [\n")
        facts, warning = fake.warned(self.CODE.format(before=""), XDG_CONFIG_HOME=str(tmp_path / "config"))
        assert facts["calls"] == 3
        assert "config.toml" in warning

    @pytest.mark.parametrize("function", ["run", "job", "__init__"])
    @pytest.mark.parametrize("error", ["RuntimeError('boom')", "AssertionError()", "MemoryError()"])
    def test_an_error_in_the_front_end(self, fake: Fake, aibin: Path, function: str, error: str) -> None:
        before = f"""
import ptocache.frontend
def fail(*arguments, **more):
    raise {error}
ptocache.frontend.CompileCache.{function} = fail
"""
        facts, warning = fake.warned(self.CODE.format(before=before))
        assert facts == {"calls": 3, "results": [aibin.stat().st_size]}
        assert ("boom" if "boom" in error else error.partition("(")[0]) in warning

    def test_an_interruption_is_no_trouble_of_ours(self, fake: Fake) -> None:
        fake.edit("tilelang/contrib/bisheng.py", "raise RuntimeError(code)", "raise KeyboardInterrupt")
        facts = fake.facts("""
import ptocache
ptocache.install(); load()
try:
    compile("error")
except KeyboardInterrupt:
    tell(calls=calls())
""")
        assert facts == {"calls": 1}

    @pytest.mark.parametrize("order", ["ptocache.install(); load()", "load(); ptocache.install()"])
    @pytest.mark.parametrize("module", ["xxhash", "diskcache", "filelock"])
    def test_a_dependency_of_ours_is_broken(self, fake: Fake, module: str, order: str) -> None:
        fake.write(f"{module}.py", "raise ImportError('built for another Python')\n")
        facts, _ = fake.warned(f"""
import ptocache
{order}
compile("a"); compile("a")
tell(calls=calls())
""")
        assert facts["calls"] in {1, 2}

    def test_tools_that_are_not_there(self, fake: Fake) -> None:
        """There is nothing to know them by: TileLang says itself what is missing."""
        facts, warning = fake.warned(
            """
import ptocache
ptocache.install(); load()
from tilelang.cache.kernel_cache import KernelCache
compile("a"); compile("a")
tell(calls=calls(), key=KernelCache()._generate_key("f", target="ascend"))
""",
            FAKE_TOOLS="/nowhere",
        )
        assert facts == {"calls": 2, "key": "f for ascend"}
        assert "/nowhere" in warning

    def test_what_is_no_device_binary_is_returned_as_it_is_and_not_stored(self, fake: Fake, tmp_path: Path) -> None:
        (tmp_path / "other").write_bytes(b"something else")
        facts, warning = fake.warned(
            """
import ptocache
ptocache.install(); load()
tell(results=[compile("a").decode(), compile("a").decode()], calls=calls())
""",
            FAKE_AIBIN=str(tmp_path / "other"),
        )
        assert facts == {"results": ["something else"] * 2, "calls": 2}
        assert "not stored" in warning


class TestStartup:
    """What `ptocache.pth` does; `test_run.py` has the rest of it."""

    @pytest.fixture(autouse=True)
    def _needs_the_startup_file(self) -> None:
        result = subprocess.run(
            [sys.executable, "-c", "import sys; print('ptocache.startup' in sys.modules)"],
            env={**os.environ, "PTOCACHE_INSTALL": "1"},
            capture_output=True,
            text=True,
            check=True,
        )
        if result.stdout.strip() != "True":
            pytest.skip("ptocache is not installed in this Python's site-packages, so it has no ptocache.pth")

    def modules(self, code: str = "", **environ: str) -> set[str]:
        result = subprocess.run(
            [sys.executable, "-c", f"{code}\nimport sys; print(*sys.modules)"],
            env={**os.environ, **environ},
            capture_output=True,
            text=True,
            check=True,
        )
        assert result.stderr == ""
        return set(result.stdout.split())

    def test_it_loads_nothing_but_itself(self) -> None:
        bare = self.modules()
        assert not any(name.startswith("ptocache") for name in bare)
        loaded = self.modules(PTOCACHE_INSTALL="1") - bare
        assert loaded - {"__future__"} == {"ptocache", "ptocache.hooks", "ptocache.startup"}

    def test_the_commands_import_of_the_package_loads_no_more(self) -> None:
        loaded = self.modules("import ptocache") - self.modules()
        assert loaded - {"__future__"} == {"ptocache"}

    @pytest.mark.parametrize("value", ["", "0"])
    def test_unless_it_is_asked_for_nothing_is_loaded(self, value: str) -> None:
        assert self.modules(PTOCACHE_INSTALL=value) == self.modules()

    def test_it_answers_without_a_word_in_the_program(self, fake: Fake) -> None:
        facts = fake.facts("load(); compile('a'); compile('a'); tell(calls=calls())", PTOCACHE_INSTALL="1")
        assert facts == {"calls": 1}

    def test_it_never_keeps_a_process_from_starting(self, fake: Fake) -> None:
        fake.write("sitecustomize.py", "")
        fake.write("ptocache/__init__.py", "")
        fake.write("ptocache/startup.py", (Path(__file__).parent.parent / "ptocache/startup.py").read_text())
        fake.write("ptocache/hooks.py", "raise OSError('unreadable')\n")
        result = fake.run("load(); compile('a'); compile('a'); tell(calls=calls())", PTOCACHE_INSTALL="1")
        assert (result.returncode, json.loads(result.stdout)) == (0, {"calls": 2})
        assert result.stderr == "ptocache: not installed below TileLang: OSError('unreadable')\n"


def test_two_processes_share_what_they_compiled(fake: Fake) -> None:
    code = "import ptocache; ptocache.install(); load(); compile('a'); tell(calls=calls())"
    assert fake.facts(code) == {"calls": 1}
    assert fake.facts(code) == {"calls": 0}
    stats = json.loads(run_ptocache("stats", "--json").stdout)
    assert (stats["compiles"], stats["hits"]["local"]) == (1, 1)
