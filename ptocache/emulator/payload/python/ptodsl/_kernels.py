"""The decorators: `@pto.jit` makes a kernel, `@pto.simt`, `@pto.func` and their like a sub-kernel."""

from __future__ import annotations

import inspect
import os
import sys
import types
from collections.abc import Callable
from typing import Any

from . import _attributes, _ir, _print, _record, _rewrite, _run
from ._ir import Block, Node
from ._types import OPAQUE, Type
from ._values import Deferred, Traced, Value, node_like

INLINE = ("inline_proc", "inline")
"""Sub-kernels that are traced where they are called, and are no functions of their own."""

_NOT_IN_TEXT = ("name", "entry", "target", "kernel_kind", "source", "ast_rewrite", "frontend_options")
_DEFAULTS = {"mode": "auto", "backend": "vpto"}


class ConstExpr:
    """`pto.const_expr`, the annotation of a parameter that is known when a kernel is compiled.

    As a function it says of a value that it is known.
    """

    def __call__(self, value: Any) -> Any:
        """The value, if it is one of Python's."""
        if isinstance(value, Value):
            raise TypeError("pto.const_expr(...) takes a Python value; this one is known on the device only")
        return value


CONST_EXPR = ConstExpr()


class Unit:
    """The module that is being traced: its functions, by name, in order."""

    def __init__(self, target: str) -> None:
        self.target = target
        self.functions: dict[str, str] = {}
        self.sections: set[str] = set()

    def add(self, name: str, render: Callable[[str], str], *, exact: bool) -> str:
        """Add a function, unless the same is there already; its name.

        Args:
            name: what it wants to be called.
            render: gives its text under a name.
            exact: whether another function of that name is an error; if not, a number is added.
        """
        candidate = name
        number = 0
        while True:
            text = render(candidate)
            known = self.functions.setdefault(candidate, text)
            if known == text:
                return candidate
            if exact:
                raise ValueError(f"two functions of one module are called {name!r}; give one of them another name=")
            number += 1
            candidate = f"{name}_{number}"


_units: list[Unit] = []


class Module:
    """A compiled module. Its text is what `ptoas` reads."""

    def __init__(self, unit: Unit) -> None:
        self._unit = unit

    def __str__(self) -> str:
        return self.mlir_text()

    def mlir_text(self) -> str:
        """The text."""
        header = f"module attributes {{pto.target_arch = {_attributes.string(self._unit.target)}}} {{"
        lines = [header]
        for text in self._unit.functions.values():
            lines += [f"  {line}" for line in text.split("\n")]
        return _run.deliver("\n".join([*lines, "}", ""]))

    def verify(self) -> bool:
        """Whether the module is well formed; a traced one is."""
        return True


class Function(_record.Symbol):
    """A Python function that is traced: what kernels and sub-kernels have in common."""

    def __init__(self, function: Callable[..., Any], options: dict[str, Any]) -> None:
        if not isinstance(function, types.FunctionType):
            raise TypeError(f"expected a Python function to decorate, found a {type(function).__name__}")
        self._function = function
        self._options = options
        self.__name__ = function.__name__
        self.__doc__ = function.__doc__
        self.__wrapped__ = function
        self.__module__ = function.__module__
        nested = options.get("frontend_options") or {}
        self._rewrites = options.get("ast_rewrite", nested.get("ast_rewrite", True))
        if options.get("ast_rewrite", self._rewrites) != nested.get("ast_rewrite", self._rewrites):
            raise ValueError("ast_rewrite= and frontend_options= say different things")

    def _body(self) -> Callable[..., Any]:
        """The function to trace."""
        return _rewrite.rewrite(self._function) if self._rewrites else self._function

    def _annotation(self, parameter: inspect.Parameter) -> Any:
        """What a parameter is annotated with; a string is evaluated where the function was defined."""
        annotation, function = parameter.annotation, self._function
        cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
        names = {name: cell.cell_contents for name, cell in cells}
        while isinstance(annotation, str):  # a quoted one is a string of a string, with `from __future__`
            annotation = eval(annotation, function.__globals__, names)  # noqa: S307
        return annotation

    def _parameters(self) -> list[tuple[inspect.Parameter, Any]]:
        """The parameters with their annotations."""
        parameters = list(inspect.signature(self._function).parameters.values())
        for parameter in parameters:
            if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
                raise TypeError(f"{self.__name__}: *args and **kwargs cannot be parameters of a traced function")
        return [(parameter, self._annotation(parameter)) for parameter in parameters]


class Kernel(Function):
    """What `@pto.jit` makes: a kernel, or with `entry=False` a function that kernels call."""

    def __init__(self, function: Callable[..., Any], options: dict[str, Any]) -> None:
        super().__init__(function, options)
        self.name = options.get("name") or self.__name__
        self.is_entry = bool(options.get("entry", True))
        self.target = str(options.get("target") or "a5")
        self.is_mixed = options.get("kernel_kind") in ("mix", "mixed")

    def build(self, **constants: Any) -> Module:
        """Trace the kernel into a module of its own.

        Args:
            constants: values for its `pto.const_expr` parameters.
        """
        self._check_entry("build")
        _run.begin()
        unit = Unit(self.target)
        if self._options.get("source") is not None:
            return Source(self._source())
        self._trace_into(unit, constants)
        return Module(unit)

    def compile(self, **constants: Any) -> Module:
        """The same: an emulated install compiles to text only."""
        self._check_entry("compile")
        return self.build(**constants)

    def mlir_text(self, **constants: Any) -> str:
        """The text of the kernel in a module of its own."""
        return self.build(**constants).mlir_text()

    def cached_specializations(self) -> list[Module]:
        """What was compiled before and kept: nothing."""
        return []

    def __call__(self, *args: Any) -> None:
        if self.is_entry or not _units:
            raise TypeError(
                f"{self.name}: a kernel cannot be called; only pto.jit(entry=False) functions can, from kernels"
            )
        parameters = self._parameters()
        if len(args) != len(parameters):
            raise TypeError(f"{self.name} takes {len(parameters)} arguments, and is called with {len(args)}")
        operands = []
        for value, (_, annotation) in zip(args, parameters, strict=True):
            type_ = annotation if isinstance(annotation, Type) else OPAQUE
            operands.append(_ir.convert(node_like(value, type_), type_))
        _ir.emit("func.call", operands, [], {"callee": _attributes.symbol(self.symbol())})

    def symbol(self) -> str:
        """The name in the module that is being traced, to which the function is added."""
        self._trace_into(_units[-1], {})
        return self.name

    def _check_entry(self, what: str) -> None:
        if not self.is_entry:
            raise TypeError(f"{self.name}: {what}() is for kernels; this is a pto.jit(entry=False) function of others")

    def _source(self) -> str:
        """The text that `source=` gives: itself, or in a file beside the one that defines the function."""
        source = str(os.fspath(self._options["source"]))
        if "\n" in source or "{" in source:
            return source
        folder = os.path.dirname(self._function.__code__.co_filename)
        with open(os.path.join(folder, source), encoding="utf-8") as file:
            return file.read()

    def _trace_into(self, unit: Unit, constants: dict[str, Any]) -> None:
        """Trace the body, and add the function to a module."""
        body = Block()
        args: list[Any] = []
        kwargs: dict[str, Any] = {}
        left = dict(constants)
        for parameter, annotation in self._parameters():
            value: Any
            if annotation is CONST_EXPR or parameter.kind is parameter.KEYWORD_ONLY:
                value = left.pop(parameter.name, parameter.default)
                if value is parameter.empty:
                    raise TypeError(f"{self.name}: the constant {parameter.name} has no default; give it to compile()")
            else:
                value = Traced(body.argument(annotation if isinstance(annotation, Type) else OPAQUE))
            if parameter.kind is parameter.KEYWORD_ONLY:
                kwargs[parameter.name] = value
            else:
                args.append(value)
        if left:
            raise TypeError(f"{self.name} has no constant {min(left)}")
        _units.append(unit)
        unit.sections, outer_sections = set(), unit.sections
        try:
            with _ir.inside(body):
                self._body()(*args, **kwargs)
            attributes = self._attributes(mixed=self.is_mixed or {"cube", "vector"} <= unit.sections)
        finally:
            _units.pop()
            if not self.is_entry:  # what a part of a kernel needs, the kernel needs
                outer_sections |= unit.sections | {str(self._options.get("kernel_kind"))}
            unit.sections = outer_sections
        unit.add(
            self.name,
            lambda name: _print.function(name, body, attributes, [], private=not self.is_entry),
            exact=True,
        )

    def _attributes(self, *, mixed: bool) -> dict[str, str]:
        """The attributes of the function in the module."""
        attributes = {"pto.aicore": "unit"} if self.is_entry else {}
        if mixed:
            attributes["pto.mixed"] = "unit"
        kind = self._options.get("kernel_kind")
        if kind is not None:
            attributes["pto.kernel_kind"] = f"#pto.kernel_kind<{_attributes.key_text(str(kind))}>"
        for key, value in {**_DEFAULTS, **self._options}.items():
            if key not in _NOT_IN_TEXT and value is not None:
                attributes[f"pto.{key}"] = _attributes.text(value, _name_text)
        return attributes


class Source(Module):
    """A module whose text was given, by `@pto.jit(source=...)`."""

    def __init__(self, text: str) -> None:
        super().__init__(Unit(""))
        self._text = text

    def mlir_text(self) -> str:
        """The text."""
        return _run.deliver(self._text)


class SubKernel(Function):
    """What `@pto.simt` and its like make: a function of the module, one for each kind of arguments."""

    def __init__(self, function: Callable[..., Any], role: str, options: dict[str, Any]) -> None:
        super().__init__(function, options)
        self.role = role

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not _units or self.role.rpartition(".")[2] in INLINE:
            return self._body()(*args, **kwargs)
        bound = inspect.signature(self._function).bind(*args, **kwargs)
        bound.apply_defaults()
        annotations = {parameter.name: annotation for parameter, annotation in self._parameters()}
        body = Block()
        operands: list[Node] = []

        def inner(value: Any, annotation: Any = None) -> Any:
            """A value as the body sees it: what is traced becomes a parameter."""
            if isinstance(value, (tuple, list)):
                return type(value)(inner(item) for item in value)
            if isinstance(annotation, Type) and isinstance(value, (bool, int, float, Value)):
                operands.append(_ir.convert(node_like(value, annotation), annotation))
            elif isinstance(value, Value):
                operands.append(value._node())
            else:
                return value
            return Traced(body.argument(operands[-1].type))

        given = {name: inner(value, annotations.get(name)) for name, value in bound.arguments.items()}
        with _ir.inside(body):
            result = self._body()(**given)
            leaves: list[Node] = []
            shape = _flatten(result, leaves)
        for node in leaves:
            node.used = True
        name = self._add(body, leaves)
        types_ = [node.type for node in leaves]
        call = _ir.emit("func.call", operands, types_, {"callee": _attributes.symbol(name)})
        return _unflatten(shape, iter(call.results))

    def symbol(self) -> str:
        """The name of the function, traced with parameters of the types that it is annotated with."""
        body = Block()
        for _, annotation in self._parameters():
            body.argument(annotation if isinstance(annotation, Type) else OPAQUE)
        with _ir.inside(body):
            self._body()(*map(Traced, body.arguments))
        return self._add(body, [])

    def _add(self, body: Block, results: list[Node]) -> str:
        """Add the function to the module; its name."""
        attributes = {"pto.role": _attributes.string(self.role.rpartition(".")[2])}
        for key, value in self._options.items():
            if key not in _NOT_IN_TEXT and value is not None:
                attributes[f"pto.{key}"] = _attributes.text(value, _name_text)
        wanted = self._options.get("name") or self.__name__
        return _units[-1].add(
            wanted, lambda name: _print.function(name, body, attributes, results, private=True), exact=False
        )


def _flatten(value: Any, leaves: list[Node]) -> Any:
    """Replace what is traced in a result by `...`, and collect it."""
    if isinstance(value, (tuple, list)):
        return type(value)(_flatten(item, leaves) for item in value)
    if isinstance(value, Value):
        leaves.append(value._node())
        return ...
    return value


def _unflatten(shape: Any, nodes: Any) -> Any:
    """The other way round."""
    if isinstance(shape, (tuple, list)):
        return type(shape)(_unflatten(item, nodes) for item in shape)
    return Traced(next(nodes)) if shape is ... else shape


def _name_text(value: Any) -> str | None:
    """An option that is a name of the name space, such as `pto.Mode.EXPLICIT`, as an attribute."""
    return f"#{value}" if isinstance(value, _record.Name) else None


def jit(function: Any = None, **options: Any) -> Any:
    """`@pto.jit`, bare or with options."""
    if function is None:
        return lambda decorated: Kernel(decorated, options)
    return Kernel(function, options)


def merge(*kernels: Any) -> Module:
    """`pto.merge_jit_modules(...)`: several kernels in one module, in this order."""
    _run.begin()
    for kernel in kernels:
        if not isinstance(kernel, Kernel):
            raise TypeError(f"pto.merge_jit_modules takes kernels, found a {type(kernel).__name__}")
        kernel._check_entry("merge_jit_modules")
        if kernel._options.get("source") is not None:
            raise ValueError(f"{kernel.name}: a kernel with source= is a module of its own, and cannot be merged")
    targets = sorted({kernel.target for kernel in kernels})
    if len(targets) > 1:
        raise ValueError(f"kernels for {' and '.join(targets)} cannot be in one module")
    unit = Unit(targets[0] if targets else "a5")
    for kernel in kernels:
        if kernel.name in unit.functions:
            raise ValueError(f"two kernels of one module are called {kernel.name!r}; give one of them another name=")
        kernel._trace_into(unit, {})
    return Module(unit)


def section(role: Any, *args: Any, **kwargs: Any) -> Any:
    """`with pto.section("cube"):`, a part for one core type. A kernel with parts for both is a mixed one."""
    if _units:
        _units[-1].sections.add(str(role).rpartition(".")[2].lower())
    return _record.record("pto.section", (role, *args), kwargs, plain=True)


def mark_mixed(kernel: Any) -> Any:
    """Make a kernel one for both core types."""
    if not isinstance(kernel, Kernel):
        raise TypeError(f"expected a @pto.jit kernel, found a {type(kernel).__name__}")
    if kernel._options.get("kernel_kind") not in (None, "mix", "mixed"):
        raise ValueError(f"{kernel.name}: a mixed kernel cannot have one kernel_kind")
    kernel.is_mixed = True
    return kernel


class Role(_record.Name):
    """A kind of sub-kernel: `@pto.simt` on a function, and `with pto.simt(128, 1, 1):` in a kernel's body."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if len(args) == 1 and isinstance(args[0], types.FunctionType):
            return SubKernel(args[0], self._path, kwargs)
        return Deferred(self._path, args, kwargs)


_record.DEFINED.update({"pto.section": section, "tl.mixed_kernel_section": section})
sys.setrecursionlimit(max(sys.getrecursionlimit(), 10_000))  # a trace nests as deeply as the expressions of its source
