"""Below TileLang: its compilations for Ascend, answered by the front end.

Two recipes, one a path to a device binary: AscendC text through `tilelang.contrib.bisheng.compile_ascend`, as the
released TileLang compiles, and PTODSL through `tilelang.contrib.pto_toolchain`, as newer ones do. On a miss TileLang's
own functions do the work, so its version of the pipeline is the one that runs. TileLang's own caches lie above and do
not know the tools' identity: their keys get it, for Ascend only.

Nothing here makes a compilation fail: what the tools reject is raised as TileLang raises it, and where anything else
goes wrong TileLang compiles as if ptocache were not there.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import hashlib
import inspect
import json
import os
import re
import shlex
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from types import ModuleType
from typing import Any

from ptocache import hooks
from ptocache.errors import DeviceBinaryError, LoweringError, PtocacheError, ToolError, ToolNotFoundError
from ptocache.frontend import CompileCache, default_cache
from ptocache.headers import Headers, all_files, included_files, read_dependencies, split_directories
from ptocache.inputs import FILE, Input, Inputs, Unstable
from ptocache.inputs import Checker as Modules
from ptocache.log import get_logger
from ptocache.recipe import Identity, Recipe, Stages
from ptocache.request import CompileRequest, make_request
from ptocache.stamp import Fact, Recheck, Stamp, add_facts, make_compiler_stamp, make_stamp
from ptocache.tools import import_roots, locate, tool_environ

#: Options with which the compiler reads or writes what neither the text nor a header tells. Where one names a file
#: that is there, it does so too.
_OPAQUE_OPTIONS = (
    *("--include-directory", "--sysroot", "-isysroot", "-iprefix", "-iwithprefix", "-iframework", "-cxx-isystem"),
    *("@", "-B", "-M", "-Wp,", "--config", "-dependency-file", "-fcrash-diagnostics-dir", "-fdiagnostics-add-output"),
    *("-fmodule", "-fpass-plugin", "-fplugin", "-fprofile", "-fsave-optimization-record", "-fstack-usage"),
    *("-ftime-trace", "-load", "-save-", "--serialize-diagnostics", "-serialize-diagnostic"),
)

#: Options whose file is one of the headers that are looked after.
_HEADER_OPTIONS = ("-include", "-imacros", "--include", "--imacros")

#: What a PTODSL source of TileLang's may import beside its helpers: modules that read nothing.
_PURE_MODULES = frozenset(
    {"__future__", "dataclasses", "enum", "functools", "itertools", "math", "operator", "ptodsl", "typing"}
)
_HELPERS = "tilelang.contrib.ptodsl"
_IMPURE_CALLS = frozenset({"open", "eval", "exec", "compile", "__import__"})

_OUTPUT_OF_TOOL = re.compile(r"\nCompiler output:\n(.*?)\nSource:\n", re.DOTALL)

#: What was patched: the compilers whose tools' identity goes into the keys of TileLang's own caches.
_compilers: dict[str, AscendC | Pto] = {}

#: The arguments with which TileLang's functions are called here.
_COMPILE_ASCEND = ("code", "target_format", "npu_arch", "options", "path_target", "verbose")
_COMPILE_PTODSL = ("ptodsl_source", "pto_arch", "pto_flags", "verbose")

_warned: set[str] = set()

#: Stands for tools that cannot be identified.
_UNKNOWN = os.urandom(16).hex()


def patch(module: ModuleType, function: str) -> None:
    """Patch one of the modules in `ptocache.hooks.PATCHED`; where it is not as it was, warn and leave it alone."""
    try:
        globals()[function](module)
    except Exception as error:  # noqa: BLE001 - TileLang must be imported whatever it has become
        version = getattr(sys.modules.get("tilelang"), "__version__", "of an unknown version")
        what = str(error) or type(error).__name__
        _warn_once(module.__name__, "TileLang %s: %s: it compiles without ptocache there", version, what)


def patch_bisheng(module: ModuleType) -> None:
    """Answer `compile_ascend` for device binaries."""
    _use_emulated_tools()
    hooks.replace(module, "compile_ascend", lambda original: AscendC(module).wrap(original))


def patch_pto_toolchain(module: ModuleType) -> None:
    """Answer `compile_ptodsl_to_aibin`."""
    _use_emulated_tools()
    hooks.replace(module, "compile_ptodsl_to_aibin", lambda original: Pto(module).wrap(original))


def patch_kernel_cache(module: ModuleType) -> None:
    """Put the tools' identity into the keys of TileLang's cache of whole kernels, for Ascend."""

    def wrap(original: Callable[..., str]) -> Callable[..., str]:
        signature = _signature(original, ("target",))

        @functools.wraps(original)
        def _generate_key(*args: Any, **kwargs: Any) -> str:
            key = original(*args, **kwargs)
            return _with_tools(key, signature.bind(*args, **kwargs).arguments.get("target"))

        return _generate_key

    hooks.replace(module.KernelCache, "_generate_key", wrap)


def patch_binary_cache(module: ModuleType) -> None:
    """Put the tools' identity into the keys of TileLang's cache of Ascend binaries."""

    def wrap(original: classmethod[Any, Any, str]) -> classmethod[Any, Any, str]:
        if not isinstance(original, classmethod):
            raise TypeError("AscendBinaryCache.make_key is no class method")

        @functools.wraps(original.__func__)
        def make_key(cls: type, *args: Any, **kwargs: Any) -> str:
            return _with_tools(original.__func__(cls, *args, **kwargs), "ascend")

        return classmethod(make_key)

    hooks.replace(module.AscendBinaryCache, "make_key", wrap)


def patch_autotuner(module: ModuleType) -> None:
    """Put the tools' identity into the keys of TileLang's cache of tuning results, for Ascend."""

    def wrap(original: Callable[..., str | None]) -> Callable[..., str | None]:
        @functools.wraps(original)
        def generate_cache_key(self: Any, *args: Any, **kwargs: Any) -> str | None:
            key = original(self, *args, **kwargs)
            if key is None:
                return None
            try:
                target = self.compile_args.target
            except AttributeError as error:
                _warn_once("tuner", "tuning results are not told apart by their tools: %s", error)
                return key
            return _with_tools(key, target)

        return generate_cache_key

    hooks.replace(module.AutoTuner, "generate_cache_key", wrap)


class AscendC:
    """Compiles AscendC text to device binaries, with TileLang's own function for it.

    Args:
        bisheng: TileLang's module `tilelang.contrib.bisheng`.
    """

    def __init__(self, bisheng: ModuleType) -> None:
        self._bisheng = bisheng
        self._find = tuple(getattr(bisheng, name) for name in ("find_bisheng_path", "find_ld_lld_path"))
        self._options = bisheng.get_bisheng_compile_options
        self._linker_options = bisheng.get_aibin_linker_options
        self._arch = bisheng.get_npu_arch
        self._normalize = bisheng.normalize_options
        self._has_dependencies = True
        self._known = Recheck(self.stamp)
        _compilers[bisheng.__name__] = self

    def wrap(self, original: Callable[..., bytearray]) -> Callable[..., bytearray]:
        """What stands in for `compile_ascend`."""
        signature = _signature(original, _COMPILE_ASCEND)

        @functools.wraps(original)
        def compile_ascend(*args: Any, **kwargs: Any) -> bytearray:
            try:
                call = signature.bind(*args, **kwargs)
            except TypeError:  # it will say so itself
                return original(*args, **kwargs)
            given = set(call.arguments)
            call.apply_defaults()
            values = [call.arguments[name] for name in _COMPILE_ASCEND]
            code, target_format, npu_arch, options, path_target, verbose = values
            is_known = given <= set(_COMPILE_ASCEND) and isinstance(code, str)
            if target_format != "aibin" or not is_known or not hooks.is_installed():
                return original(*args, **kwargs)

            try:
                flags = list(self._options(npu_arch, options))
            except Exception:  # noqa: BLE001 - it will say so itself
                return original(*args, **kwargs)
            made: list[bytes] = []

            def compile_plainly(more_options: Sequence[str] = ()) -> bytes:
                words = [*self._normalize(options), *more_options] if more_options else []
                with_more = [shlex.quote(word) for word in words] or options  # it reads each as a shell does
                made.append(bytes(original(code, target_format, npu_arch, with_more, None, verbose)))
                return made[-1]

            def answer(cache: CompileCache) -> bytes:
                return self._answer(cache, code, npu_arch, flags, verbose, compile_plainly)

            aibin = _answer_or(answer, lambda: made[-1] if made else compile_plainly())
            if path_target:
                path = os.fspath(path_target)
                os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
                with open(path, "wb") as file:
                    file.write(aibin)
            return bytearray(aibin)

        return compile_ascend

    def stamp(self) -> Stamp:
        """The identity of the tools that TileLang itself would find; raises `ToolNotFoundError`."""
        try:
            bisheng, linker = (find() for find in self._find)
        except RuntimeError as error:
            raise ToolNotFoundError(str(error)) from error
        return make_compiler_stamp(bisheng, linker, os.environ, default_cache().digests)

    def tools(self) -> str:
        """What TileLang's own keys lack: that identity, the NPU arch that the environment names, its templates."""
        digests = default_cache().digests
        templates = os.path.join(os.environ.get("TL_TEMPLATE_PATH", ""), "tl_templates", "ascend")
        files = [path for path in all_files([templates]) if os.path.isfile(path)]  # not an editor's lock
        contents = [f"{os.path.relpath(path, templates)} {digests.of(path).hex()}" for path in files]
        return "\n".join([self._known().name, self._arch(None), *contents])

    def _answer(
        self,
        cache: CompileCache,
        code: str,
        npu_arch: str | None,
        flags: Sequence[str],
        verbose: bool,
        compile_plainly: Callable[..., bytes],
    ) -> bytes:
        kept, directories = split_directories(flags, os.environ)
        if _is_opaque(kept):
            return compile_plainly()
        headers = Headers(directories, cache.digests, self._places())
        request = CompileRequest(code, self._arch(npu_arch), ())
        included = included_files(kept)
        recipe = Recipe(
            kind="ascendc",
            extra=(
                ("tilelang", _tilelang_version()),
                ("options", json.dumps(kept)),  # all of them: what ptoas does not care about this compiler may
                ("linker options", json.dumps(list(self._linker_options()))),
            ),
            identify=lambda: Identity(self._known(), headers),
            start=lambda _request, work, _verbose: _AscendCStages(self, code, work, headers, included, compile_plainly),
        )
        return cache.run(cache.job(request, recipe, verbose)).aibin

    def compile(self, compile_plainly: Callable[..., bytes], dependencies: str) -> bytes:
        """Compile, and have the compiler list what it read; a compiler that cannot do that compiles without."""
        if self._has_dependencies:
            more_options = ["-MD", "-MF", dependencies]
            try:
                return bytes(_run_tool("ascendc", compile_plainly, more_options))
            except ToolError as error:
                if not re.search(r"(?:unknown|unsupported|unrecognized|invalid)\b.*-M[DF]\b", error.stderr):
                    _forget_words(error, f" {shlex.join(more_options)}")
                    raise
            aibin = bytes(_run_tool("ascendc", compile_plainly))
            self._has_dependencies = False  # it was that
            return aibin
        return bytes(_run_tool("ascendc", compile_plainly))

    def _places(self) -> dict[str, str]:
        """Where headers are beside the directories that options name."""
        with contextlib.suppress(RuntimeError, OSError):
            bisheng = os.path.dirname(os.path.dirname(os.path.realpath(self._find[0]())))
            cann = os.environ.get("ASCEND_HOME_PATH") or os.environ.get("ASCEND_TOOLKIT_HOME") or ""
            return {"cann": cann, "bisheng": bisheng, "cwd": os.getcwd()}
        return {}


class _AscendCStages(Stages):
    """One compilation of AscendC text (a `ptocache.recipe.Stages`): all of it is in the second part."""

    def __init__(
        self,
        compiler: AscendC,
        source: str,
        work: str,
        headers: Headers,
        included: Sequence[str],
        compile_plainly: Callable[..., bytes],
    ) -> None:
        self._compiler = compiler
        self._source = source
        self._dependencies = os.path.join(work, "kernel.d")
        self._headers = headers
        self._included = included
        self._compile_plainly = compile_plainly
        self._started = time.time_ns()
        self._problem = ""
        self._kernels: list[str] = []

    @property
    def kernels(self) -> list[str]:
        """The kernels' symbols in the device binary."""
        return self._kernels

    def lower(self) -> None:
        """Nothing: the text is compiled as it is."""

    def build(self) -> bytes:
        """Compile. What is no device binary is returned, as TileLang does, and not stored."""
        from ptocache.aibin import check_device_binary, kernel_symbols  # only a miss needs it

        aibin = self._compiler.compile(self._compile_plainly, self._dependencies)
        try:
            check_device_binary(aibin, [])
            self._kernels = kernel_symbols(aibin)
        except DeviceBinaryError as error:
            self._problem = str(error)
            _warn_once("aibin", "bisheng made something that no Ascend runtime would load, it is not stored: %s", error)
        return aibin

    def inputs(self) -> Inputs:
        """The headers that were read; where the compiler did not tell, those that the source leads to."""
        if self._problem:
            raise Unstable(self._problem)
        if not os.path.exists(self._dependencies):
            return self._headers.scan(self._started, self._source, self._included)
        files = read_dependencies(self._dependencies)
        return self._headers.inputs(files, self._started, self._source, self._included)

    def stamp(self) -> Stamp:
        """The tools, as they are now."""
        return self._compiler.stamp()

    def check(self, aibin: bytes) -> None:
        """Nothing: no other text leads here."""


class Pto:
    """Compiles PTODSL sources to device binaries, with TileLang's own stages.

    Args:
        toolchain: TileLang's module `tilelang.contrib.pto_toolchain`.
    """

    def __init__(self, toolchain: ModuleType) -> None:
        self.toolchain = toolchain
        self._known = Recheck(self.stamp)
        self._theirs: dict[str, str] = {}
        for name in ("parse_pto_kernel_names", "toolchain_stamp", *(name for name, _ in _PTO_STAGES)):
            getattr(toolchain, name)  # an AttributeError now, rather than in the middle of a compilation
        _compilers[toolchain.__name__] = self

    def wrap(self, original: Callable[..., bytes]) -> Callable[..., bytes]:
        """What stands in for `compile_ptodsl_to_aibin`."""
        signature = _signature(original, _COMPILE_PTODSL)

        @functools.wraps(original)
        def compile_ptodsl_to_aibin(*args: Any, **kwargs: Any) -> bytes:
            def compile_plainly() -> bytes:
                return original(*args, **kwargs)

            try:
                call = signature.bind(*args, **kwargs)
            except TypeError:  # it will say so itself
                return compile_plainly()
            given = set(call.arguments)
            call.apply_defaults()
            ptodsl_source, pto_arch, pto_flags, verbose = (call.arguments[name] for name in _COMPILE_PTODSL)
            if not given <= set(_COMPILE_PTODSL) or not hooks.is_installed():
                return compile_plainly()

            def answer(cache: CompileCache) -> bytes:
                request = make_request(ptodsl_source, pto_arch, pto_flags)
                stages = functools.partial(_PtoStages, self, cache, (pto_arch, pto_flags))
                # TileLang hands them to ptoas as they are: without our default, and without our canonical form.
                options = json.dumps([pto_arch, pto_flags if isinstance(pto_flags, str) else list(pto_flags)])
                extra = (("tilelang", _tilelang_version()), ("options", options))
                recipe = Recipe("tilelang-pto", extra, self._identify, stages)
                return cache.run(cache.job(request, recipe, verbose)).aibin

            return _answer_or(answer, compile_plainly)

        return compile_ptodsl_to_aibin

    def stamp(self) -> Stamp:
        """Our identity of the tools, and TileLang's own beside it; raises `ToolNotFoundError`."""
        cache = default_cache()
        ours = make_stamp(locate(tool_environ(cache.settings.toolchain)), cache.digests)
        if ours.name not in self._theirs:  # it may be costly to make, and changes only with the tools
            self._theirs = {ours.name: str(self.toolchain.toolchain_stamp())}
        return add_facts(ours, [Fact("tilelang toolchain_stamp", self._theirs[ours.name])])

    def tools(self) -> str:
        """What TileLang's own keys lack: that identity."""
        return self._known().name

    def _identify(self) -> Identity:
        roots = import_roots(os.environ)
        return Identity(self._known(), Modules(default_cache().digests, roots, os.environ.get))


#: The functions of TileLang's pipeline, with how each is called in what is said of a failure.
_PTO_STAGES = (
    ("compile_ptodsl_to_pto", "frontend"),
    ("run_ptoas", "ptoas"),
    ("bisheng_fatobj_link", "bisheng"),
    ("extract_aicore_binary", "bisheng"),
)


class _PtoStages(Stages):
    """One compilation of a PTODSL source (a `ptocache.recipe.Stages`)."""

    def __init__(
        self,
        compiler: Pto,
        cache: CompileCache,
        options: tuple[str, Sequence[str] | str],
        request: CompileRequest,
        work: str,
        verbose: bool,
    ) -> None:
        self._compiler = compiler
        self._digests = cache.digests
        self._options = options
        self._request = request
        self._verbose = verbose
        self._started = time.time_ns()
        names = ("kernel.ptodsl.py", "kernel.pto", "kernel.fatobj.o", "lib_kernel.so")
        self._source, self._pto, self._fatobj, self._image = (os.path.join(work, name) for name in names)
        self._kernels: list[str] = []

    @property
    def kernels(self) -> list[str]:
        """The Python names of the kernels."""
        return self._kernels

    def lower(self) -> str:
        """Lower the source; the MLIR text, without its locations where they make no difference."""
        from ptocache.mlir import text_for_key

        self._kernels = list(_run_tool("frontend", self._toolchain.parse_pto_kernel_names, self._request.source))
        self._stage("compile_ptodsl_to_pto", self._request.source, self._kernels, self._source, self._pto)
        with open(self._pto, encoding="utf-8", newline="", errors="surrogateescape") as file:
            return text_for_key(file.read(), self._request.flags)

    def build(self) -> bytes:
        """Assemble, link, extract, and check."""
        self._stage("run_ptoas", self._pto, self._fatobj, *self._options)
        self._stage("bisheng_fatobj_link", self._fatobj, self._image)
        aibin = bytes(_run_tool("bisheng", self._toolchain.extract_aicore_binary, self._image))
        self.check(aibin)
        return aibin

    def inputs(self) -> Inputs:
        """TileLang's helper modules, all of them: its own lowering does not tell which it read.

        Raises:
            Unstable: the source does more than import them.
        """
        reason = _impurity(self._request.source)
        if reason:
            raise Unstable(f"the source {reason}, and TileLang's lowering does not tell what it read")
        inputs = set()
        for name, path in _helper_files():
            status = os.stat(path)
            if status.st_ctime_ns >= self._started:
                raise Unstable(f"{path} changed while the source was lowered")
            inputs.add(Input(FILE, name, self._digests.of(path).hex()))
        self._digests.save()
        return tuple(sorted(inputs))

    def stamp(self) -> Stamp:
        """The tools, as they are now."""
        return self._compiler.stamp()

    def check(self, aibin: bytes) -> None:
        """See that it is a device binary; raises `DeviceBinaryError`."""
        from ptocache.aibin import check_device_binary

        check_device_binary(aibin, [])

    @property
    def _toolchain(self) -> ModuleType:
        return self._compiler.toolchain

    def _stage(self, function: str, *arguments: Any) -> None:
        _run_tool(dict(_PTO_STAGES)[function], getattr(self._toolchain, function), *arguments, self._verbose)


def _answer_or(answer: Callable[[CompileCache], bytes], compile_plainly: Callable[[], bytes]) -> bytes:
    """The front end's answer; where that cannot be had, what TileLang makes without it.

    What the tools rejected is raised as TileLang raised it; what is remembered of an earlier rejection with the same
    text, and a line that says so.
    """
    try:
        return answer(default_cache())
    except ToolError as error:
        cause = error.__cause__
        if isinstance(cause, Exception):
            raise cause from cause.__cause__
        if error.original:
            raise RuntimeError(f"{error.original}\n{error.note}") from None
        raise
    except Exception as error:  # noqa: BLE001 - a cache may fail in any way; the compilation does not
        _warn_once("answer", "a kernel was compiled without ptocache: %s", str(error) or type(error).__name__)
        return compile_plainly()


def _run_tool(tool: str, function: Callable[..., Any], *arguments: Any) -> Any:
    """Call one of TileLang's functions that run a tool; its error becomes a `ToolError` with that as its cause."""
    try:
        return function(*arguments)
    except Exception as error:
        text = str(error) or type(error).__name__
        output = _OUTPUT_OF_TOOL.search(text)
        summary, _, rest = text.partition("\n")
        said = output[1] if output else rest  # without the source, which may say anything
        # TileLang's text tells a rejection from a tool that was killed only by the number in it, if at all.
        is_killed = re.search(r"signal|(?:code|status)\W*-\d|timeout", f"{summary}\n{said}")
        is_rejection = isinstance(error, RuntimeError) and not is_killed and "device link" not in summary
        kind = LoweringError if tool == "frontend" and is_rejection else ToolError
        failure = kind(summary, tool=tool, command=[], returncode=1 if is_rejection else None, stderr=said)
        failure.original = text
        raise failure from error


def _forget_words(error: ToolError, words: str) -> None:
    """Take what was added to a command line out of what TileLang says of it."""
    error.original = error.original.replace(words, "", 1)
    cause = error.__cause__
    if cause is not None:
        cause.args = tuple(part.replace(words, "", 1) if isinstance(part, str) else part for part in cause.args)


def _is_opaque(options: Sequence[str]) -> bool:
    """Whether the compiler may read or write more than its text, its headers and these words tell."""
    before = ""
    for option in options:
        if option.startswith(_OPAQUE_OPTIONS):
            return True
        is_header = before in _HEADER_OPTIONS or option.partition("=")[0] in _HEADER_OPTIONS
        if option.startswith(("-include", "-imacros")) and not is_header:  # a compiled header, or a name that follows
            return True
        if not is_header and any(os.path.isfile(part) for part in re.split("[=,]", option) if part):
            return True
        before = option
    return False


def _with_tools(key: str, target: Any) -> str:
    """A key of TileLang's with the identity of the tools in it, if it is one for Ascend."""
    kind = getattr(getattr(target, "kind", None), "name", None) or str(target).partition(" ")[0]
    if kind != "ascend" or not hooks.is_installed():
        return key
    names = []
    for _, compiler in sorted(_compilers.items()):
        try:
            names.append(compiler.tools())
        except PtocacheError as error:  # without tools there is nothing to tell apart
            get_logger(__name__).debug("the tools have no identity: %s", error)
        except Exception as error:  # noqa: BLE001 - they have one that we cannot see: no other process has this key
            _warn_once("tools", "TileLang's own caches are left out, as the tools cannot be identified: %s", error)
            names.append(_UNKNOWN)
    return hashlib.sha256("\n".join([key, *names]).encode()).hexdigest() if names else key


def _signature(function: Callable[..., Any], names: Sequence[str]) -> inspect.Signature:
    """The signature of a function of TileLang's; raises `TypeError` where it does not have these arguments.

    Those that are called here have them first, and in this order.
    """
    signature = inspect.signature(function)
    found = tuple(signature.parameters)
    if found[: len(names)] != tuple(names) if len(names) > 1 else names[0] not in found:
        raise TypeError(f"{function.__name__} takes other arguments: {signature}")
    return signature


def _use_emulated_tools() -> None:
    """Put the emulated tools where TileLang finds them, if they are what was asked for."""
    if default_cache().settings.toolchain == "emulated":
        environ = tool_environ("emulated")
        os.environ.pop("BISHENG_HOME", None)  # it would come first
        os.environ.update(environ)


def _tilelang_version() -> str:
    return str(getattr(sys.modules.get("tilelang"), "__version__", ""))


def _helper_files() -> Iterator[tuple[str, str]]:
    """TileLang's helper modules for PTODSL: their names below the import root, and where they are."""
    for parent in getattr(sys.modules.get("tilelang"), "__path__", ()):
        root = os.path.dirname(parent)
        top = os.path.join(root, *_HELPERS.split("."))
        for path in all_files([top]):
            if path.endswith(".py"):
                yield os.path.relpath(path, root), path


def _impurity(source: str) -> str:
    """What a PTODSL source does that may read more than its text tells; empty where it does nothing of the kind."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return "does not parse"
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or "." if not node.level else "."]
        elif isinstance(node, ast.Name) and node.id in _IMPURE_CALLS:
            return f"uses {node.id}"
        else:
            continue
        for name in names:
            if name.partition(".")[0] not in _PURE_MODULES and name != _HELPERS and not name.startswith(f"{_HELPERS}."):
                return f"imports {name}"
    return ""


def _warn_once(about: str, message: str, *arguments: object) -> None:
    logger = get_logger(__name__)
    log = logger.debug if about in _warned else logger.warning
    _warned.add(about)
    log(message, *arguments)
