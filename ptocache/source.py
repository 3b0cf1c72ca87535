"""Reading a PTODSL source without running it: which kernels it defines, and what the device calls them."""

from __future__ import annotations

import ast
import warnings
from typing import NamedTuple

from ptocache.errors import SourceError


class Kernel(NamedTuple):
    """A launchable kernel of a source.

    Attributes:
        name: the Python name, which is an attribute of the module.
        symbol: the name in the device binary: that of `@pto.jit(name="…")`, else the Python name; `None` where
            the decorator computes it, so that only running the source would tell.
        lineno: the line of its `def`.
    """

    name: str
    symbol: str | None
    lineno: int


def find_kernels(source: str) -> list[Kernel]:
    """Find the top-level `@pto.jit` kernels of a PTODSL source, in the order of their definition.

    Nested functions, methods, helpers (`@pto.simt`, `@pto.func`, `@pto.tileop`) and kernel modules
    (`entry=False`) are not kernels.

    Args:
        source: the module's text.

    Returns:
        At least one kernel.

    Raises:
        SourceError: the source does not parse, defines no kernel, or defines a name or a device symbol twice;
            `lineno` tells where.
    """
    reader = _Reader()
    for statement in _parse(source).body:
        reader.read(statement)
    kernels = list(reader.kernels.values())
    if not kernels:
        raise SourceError(
            "the PTODSL source defines no kernel: expected a top-level function decorated with @pto.jit "
            "(entry=False marks a helper, which cannot be compiled by itself)"
        )
    symbols: dict[str, Kernel] = {}
    for kernel in kernels:
        if kernel.symbol is None:
            continue
        other = symbols.setdefault(kernel.symbol, kernel)
        if other is not kernel:
            raise SourceError(
                f"line {kernel.lineno}: kernel {kernel.name!r} has the device name {kernel.symbol!r}, "
                f"which kernel {other.name!r} on line {other.lineno} has already",
                kernel.lineno,
            )
    return kernels


def has_kernel(source: str) -> bool:
    """Whether a module defines a kernel at all, be it with a fault that `find_kernels` would refuse."""
    try:
        statements = _parse(source).body
    except SourceError:
        return False
    reader = _Reader()
    try:
        for statement in statements:
            reader.read(statement)
    except SourceError:  # a kernel's name stands for something else too
        return True
    return bool(reader.kernels)


def _parse(source: str) -> ast.Module:
    if not isinstance(source, str):
        raise SourceError(f"expected the PTODSL source as text, found {type(source).__name__}")
    try:
        return _parse_quietly(source)
    except SyntaxError as error:
        where = f"line {error.lineno}: " if error.lineno else ""
        raise SourceError(f"{where}the PTODSL source does not parse: {error.msg}", error.lineno) from None
    except (ValueError, RecursionError, MemoryError) as error:  # NUL characters; nesting beyond the parser
        raise SourceError(f"the PTODSL source does not parse: {str(error) or type(error).__name__}") from None


def _parse_quietly(source: str) -> ast.Module:
    """Parse; where Python was told to make errors of warnings (`-W error`), a warning is no reason to refuse."""
    try:
        return ast.parse(source)
    except SyntaxError:
        with warnings.catch_warnings():  # not thread-safe, so only where it may be needed
            warnings.simplefilter("ignore")
            return ast.parse(source)


class _Reader:
    """Reads a module's statements in order, following what the names `ptodsl`, `pto` and `jit` stand for."""

    def __init__(self) -> None:
        self.kernels: dict[str, Kernel] = {}
        self._meaning: dict[str, str] = {}
        self._defined: dict[str, int] = {}

    def read(self, statement: ast.stmt) -> None:
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            self._read_definition(statement)
        elif isinstance(statement, ast.Import | ast.ImportFrom):
            self._read_import(statement)
        elif isinstance(statement, ast.Assign | ast.AnnAssign) and statement.value is not None:
            targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
            for target in targets:
                self._read_assignment(target, statement.value)
        elif isinstance(statement, ast.If | ast.Try | ast.With):
            # Imports are often guarded; kernels are not looked for there, as they are no longer top-level.
            for child in ast.walk(statement):
                if isinstance(child, ast.Import | ast.ImportFrom):
                    self._read_import(child)

    def _read_definition(self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> None:
        kernel = self._as_kernel(node)
        first = self._defined.get(node.name)
        if first is not None and (kernel or node.name in self.kernels):
            raise SourceError(
                f"line {node.lineno}: {node.name!r} is defined again (first on line {first}); "
                "give each kernel a name of its own",
                node.lineno,
            )
        self._defined[node.name] = node.lineno
        self._meaning.pop(node.name, None)
        if kernel:
            self.kernels[node.name] = kernel

    def _as_kernel(self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> Kernel | None:
        if not isinstance(node, ast.FunctionDef):
            return None
        for decorator in node.decorator_list:
            call = decorator if isinstance(decorator, ast.Call) else None
            if not self._is_jit(call.func if call else decorator):
                continue
            options = {option.arg: option.value for option in call.keywords} if call else {}
            entry = options.get("entry")
            if isinstance(entry, ast.Constant) and not entry.value:
                return None
            return Kernel(node.name, _symbol(options.get("name"), node.name, unpacked=None in options), node.lineno)
        return None

    def _is_jit(self, node: ast.expr) -> bool:
        return self._dotted(node).split(".")[-2:] == ["pto", "jit"]

    def _dotted(self, node: ast.expr) -> str:
        """What a name such as `P.jit` stands for, as a dotted path; empty if it is no such thing."""
        words: list[str] = []
        while isinstance(node, ast.Attribute):  # a loop: the parser takes longer chains than Python can recurse
            words.append(node.attr)
            node = node.value
        base = self._meaning.get(node.id, node.id) if isinstance(node, ast.Name) else ""
        return ".".join((base, *reversed(words))) if base else ""

    def _read_import(self, node: ast.Import | ast.ImportFrom) -> None:
        for alias in node.names:
            if isinstance(node, ast.ImportFrom):
                self._bind(alias.asname or alias.name, f"{node.module or ''}.{alias.name}", node.lineno)
            elif alias.asname:
                self._bind(alias.asname, alias.name, node.lineno)
            else:  # `import a.b` binds `a`, and `a.b` is reached through it
                top = alias.name.partition(".")[0]
                self._bind(top, top, node.lineno)

    def _read_assignment(self, target: ast.expr, value: ast.expr) -> None:
        if isinstance(target, ast.Tuple | ast.List):
            for element in target.elts:
                self._read_assignment(element, value)
        elif isinstance(target, ast.Starred):
            self._read_assignment(target.value, value)
        elif isinstance(target, ast.Name):
            # `kernel = tl.finalize_mixed_kernel(kernel)` wraps a kernel and is how TileLang marks a mixed one.
            if any(isinstance(node, ast.Name) and node.id == target.id for node in ast.walk(value)):
                return
            self._bind(target.id, self._dotted(value), target.lineno)

    def _bind(self, name: str, meaning: str, lineno: int) -> None:
        if name in self.kernels:
            raise SourceError(
                f"line {lineno}: {name!r}, the kernel on line {self.kernels[name].lineno}, is given another "
                "meaning; give each kernel a name of its own",
                lineno,
            )
        self._defined[name] = lineno
        self._meaning[name] = meaning


def _symbol(name: ast.expr | None, default: str, *, unpacked: bool) -> str | None:
    if name is None:
        return None if unpacked else default
    if isinstance(name, ast.Constant) and name.value is None:
        return default
    return name.value if isinstance(name, ast.Constant) and isinstance(name.value, str) else None
