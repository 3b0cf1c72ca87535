"""Rewrites the control flow of a kernel's body, so that `for`, `if`, `and`, `or`, `not` work on traced values.

    for i in range(n):          def _ptodsl_body_1(_ptodsl_item):
        total = total + i   ->      nonlocal i, total
                                    i = _ptodsl_item
                                    total = total + i
                                _ptodsl.loop(range, (n,), _ptodsl_body_1, ("total",), (lambda: total,), <sets total>)

What is rewritten decides at run time whether it is one of the device's, so Python values keep Python's meaning. A
statement with `return`, `break`, `continue` or `yield` that leads out of it is left as it is: then it works on Python
values, and a traced one is an error that says so.

Only variables that matter are carried or merged: those that the body reads before it sets them, or that are read
afterwards. A temporary that two loops use under one name is none of them.
"""

from __future__ import annotations

import ast
import copy
import functools
import linecache
import types
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from . import _rewritten

_RUNTIME = "_ptodsl"
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
_SCOPES = (*_FUNCTIONS, ast.ClassDef)
_FUTURE_ANNOTATIONS = 0x1000000


def rewrite(function: types.FunctionType) -> Callable[..., Any]:
    """The function with its control flow rewritten; the function itself if its source cannot be found."""
    code = function.__code__
    definition = _definition(code.co_filename, code.co_name, code.co_firstlineno, function.__globals__)
    if definition is None:
        return function
    definition = copy.deepcopy(definition)
    definition.decorator_list = []
    definition.returns = None
    for argument in ast.walk(definition.args):
        if isinstance(argument, ast.arg):
            argument.annotation = None
    definition.args.defaults = []
    definition.args.kw_defaults = [None] * len(definition.args.kwonlyargs)
    _Rewriter(definition).run()
    cells = dict(zip(code.co_freevars, function.__closure__ or (), strict=True))
    cells[_RUNTIME] = types.CellType(_rewritten)
    compiled = _compile(definition, list(cells), code)
    closure = tuple(cells[name] for name in compiled.co_freevars)
    made = types.FunctionType(compiled, function.__globals__, function.__name__, function.__defaults__, closure)
    made.__kwdefaults__ = function.__kwdefaults__
    return made


def _definition(path: str, name: str, line: int, namespace: dict[str, Any]) -> ast.FunctionDef | None:
    """The definition of a function, from the file that it came from."""
    linecache.checkcache(path)
    tree = _parsed("".join(linecache.getlines(path, namespace)))
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and node.name == name:
            first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
            if first == line:
                return node
    return None


@functools.lru_cache(maxsize=8)
def _parsed(source: str) -> ast.Module:
    """The syntax tree of a file; an empty one if it is none."""
    try:
        return ast.parse(source)
    except SyntaxError:
        return ast.Module([], [])


def _compile(definition: ast.FunctionDef, free: list[str], original: types.CodeType) -> types.CodeType:
    """The code of a rewritten function, compiled inside of another that has its free variables."""
    factory = _definition_of("_ptodsl_factory", free, [definition])
    if "type_params" in definition._fields:
        vars(definition)["type_params"] = []
    module = ast.fix_missing_locations(ast.Module([factory], []))
    flags = original.co_flags & _FUTURE_ANNOTATIONS
    code = compile(module, original.co_filename, "exec", flags=flags, dont_inherit=True)
    return _nested(_nested(code, factory.name), definition.name)


def _nested(code: types.CodeType, name: str) -> types.CodeType:
    """The code of a function that is defined in some code."""
    return next(inner for inner in code.co_consts if isinstance(inner, types.CodeType) and inner.co_name == name)


def _definition_of(name: str, parameters: list[str], body: list[ast.stmt]) -> ast.FunctionDef:
    """A function."""
    made = ast.FunctionDef(name, _arguments(parameters), body, [], None, None)
    if "type_params" in made._fields:  # since Python 3.12
        vars(made)["type_params"] = []
    return made


def _arguments(names: list[str]) -> ast.arguments:
    """The parameters of a function, by position."""
    return ast.arguments([], [ast.arg(name) for name in names], None, [], [], None, [])


class _Rewriter(ast.NodeTransformer):
    """Rewrites one function, and those that are defined in it."""

    def __init__(self, definition: ast.FunctionDef) -> None:
        self.definition = definition
        self.count = 0
        self.fixed = _declared(definition.body, ast.Global)
        self.outer = _declared(definition.body, ast.Nonlocal)
        self.parameters = {node.arg for node in ast.walk(definition.args) if isinstance(node, ast.arg)}
        self.lifted: set[str] = set()
        self.liveness = _Liveness(definition)

    def run(self) -> None:
        """Rewrite the body in place."""
        body = self._statements(self.definition.body)
        declared = sorted(self.lifted - self.outer - self.parameters)
        # `name: None` makes a name a local variable, and does nothing else.
        locals_ = [ast.AnnAssign(_name(name, ast.Store()), ast.Constant(None), None, 1) for name in declared]
        self.definition.body = [*locals_, *body]

    def _statements(self, statements: list[ast.stmt]) -> list[ast.stmt]:
        """Rewrite a list of statements."""
        out: list[ast.stmt] = []
        for statement in statements:
            new = self.visit(statement)
            out.extend(new if isinstance(new, list) else [new])
        return out

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.FunctionDef:
        _Rewriter(node).run()
        return node

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.ClassDef:
        return node

    def visit_For(self, node: ast.For) -> Any:
        call = node.iter
        plain = (
            isinstance(call, ast.Call)
            and isinstance(call.func, ast.Name)
            and call.func.id == "range"
            and not call.keywords
            and not any(isinstance(argument, ast.Starred) for argument in call.args)
            and isinstance(node.target, ast.Name)
            and not node.orelse
        )
        if not plain or _escapes(node.body):
            return self.generic_visit(node)
        assert isinstance(call, ast.Call) and isinstance(node.target, ast.Name)  # noqa: S101, PT018 - for mypy
        set_here = _assigned(node.body)
        exposed = _exposed(node.body, {node.target.id})
        live = self.liveness.after(node)
        names = [name for name in set_here if name not in self.fixed and (name in exposed or name in live)]
        arguments = [self.visit(argument) for argument in call.args]
        item = "_ptodsl_item"
        first = ast.Assign([_name(node.target.id, ast.Store())], _name(item))
        body = self._function("body", [item], [first, *self._statements(node.body)], [*set_here, node.target.id])
        given = [call.func, ast.Tuple(arguments, ast.Load()), _name(body.name)]
        return self._call("loop", given, [body], names, node)

    def visit_If(self, node: ast.If) -> Any:
        if _escapes(node.body) or _escapes(node.orelse):
            return self.generic_visit(node)
        set_here = _assigned([*node.body, *node.orelse])
        live = self.liveness.after(node)
        names = [name for name in set_here if name not in self.fixed and name in live]
        test = self.visit(node.test)
        then = self._function("then", [], self._statements(node.body), set_here)
        otherwise = self._function("else", [], self._statements(node.orelse), set_here)
        return self._call("branch", [test, _name(then.name), _name(otherwise.name)], [then, otherwise], names, node)

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.expr:
        name = "conjunction" if isinstance(node.op, ast.And) else "disjunction"
        return self._expression(name, node, [], node.values)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.expr:
        self.generic_visit(node)
        return self._runtime("negation", [node.operand], node) if isinstance(node.op, ast.Not) else node

    def visit_IfExp(self, node: ast.IfExp) -> ast.expr:
        if _binds(node):
            return node
        return self._expression("choose", node, [self.visit(node.test)], [node.body, node.orelse])

    def visit_Compare(self, node: ast.Compare) -> ast.expr:
        if len(node.ops) == 1:
            self.generic_visit(node)
            return node
        names = ast.Tuple([ast.Constant(type(op).__name__) for op in node.ops], ast.Load())
        return self._expression("chain", node, [names], [node.left, *node.comparators])

    def _expression(self, name: str, node: ast.expr, given: list[ast.expr], lazy: list[ast.expr]) -> ast.expr:
        """A call of the runtime, with arguments that it evaluates when it wants to."""
        if _binds(node):
            return node
        thunks = [_thunk(self.visit(argument)) for argument in lazy]
        return self._runtime(name, [*given, *thunks], node)

    def _runtime(self, name: str, arguments: list[ast.expr], node: ast.expr) -> ast.expr:
        function = ast.Attribute(_name(_RUNTIME), name, ast.Load())
        return ast.copy_location(ast.Call(function, arguments, []), node)

    def _function(
        self, role: str, parameters: list[str], body: list[ast.stmt], names: Iterable[str]
    ) -> ast.FunctionDef:
        """A function inside of the rewritten one, that sets the variables of the rewritten one."""
        self.count += 1
        declarations: list[ast.stmt] = []
        free = sorted(set(names) - self.fixed)
        fixed = sorted(set(names) & self.fixed)
        self.lifted.update(free)
        if free:
            declarations.append(ast.Nonlocal(free))
        if fixed:
            declarations.append(ast.Global(fixed))
        body = [statement for statement in body if not isinstance(statement, (ast.Nonlocal, ast.Global))]
        return _definition_of(f"_ptodsl_{role}_{self.count}", parameters, [*declarations, *body, ast.Pass()])

    def _call(
        self, name: str, given: list[ast.expr], functions: list[ast.FunctionDef], names: list[str], node: ast.stmt
    ) -> list[ast.stmt]:
        """The functions of a statement, and the call of the runtime that it becomes."""
        values = "_ptodsl_values"
        targets = ast.Tuple([_name(variable, ast.Store()) for variable in names], ast.Store())
        body: list[ast.stmt] = [ast.Assign([targets], _name(values))] if names else []
        assign = self._function("assign", [values], body, names)
        variables = ast.Tuple([ast.Constant(variable) for variable in names], ast.Load())
        reads = ast.Tuple([_thunk(_name(variable)) for variable in names], ast.Load())
        function = ast.Attribute(_name(_RUNTIME), name, ast.Load())
        call = ast.Expr(ast.Call(function, [*given, variables, reads, _name(assign.name)], []))
        statements = [*functions, assign, call]
        for statement in statements:
            ast.copy_location(statement, node)
        return [ast.fix_missing_locations(statement) for statement in statements]


class _Liveness:
    """Which variables may be read after a statement of a function.

    A place in the function is a number: the order in which a walk meets the nodes. What a nested function reads counts
    as read anywhere, as it may be called at any time; and so does, from inside of a loop, all that the loop reads.
    """

    def __init__(self, definition: ast.FunctionDef) -> None:
        self.spans: dict[ast.AST, tuple[int, int]] = {}
        self.reads: list[tuple[int, str]] = []
        self.always: set[str] = set()
        self.loops: list[ast.AST] = []
        self.count = 0
        for statement in definition.body:
            self._walk(statement, nested=False)

    def _walk(self, node: ast.AST, *, nested: bool) -> None:
        """Number a node and all below it."""
        start = self.count
        self.count += 1
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Store):
            self.reads.append((start, node.id))
            if nested:
                self.always.add(node.id)
        if isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
            self.reads.append((start, node.target.id))
        for child in ast.iter_child_nodes(node):
            self._walk(child, nested=nested or isinstance(node, _SCOPES))
        self.spans[node] = (start, self.count)
        if isinstance(node, (ast.For, ast.While)):
            self.loops.append(node)

    def after(self, node: ast.stmt) -> set[str]:
        """The variables that may be read after a statement has run."""
        start, end = self.spans[node]
        around = [self.spans[loop] for loop in self.loops if loop is not node]
        around = [(first, last) for first, last in around if first < start and end <= last]
        live = set(self.always)
        for place, name in self.reads:
            if place >= end or any(first <= place < last for first, last in around):
                live.add(name)
        return live


def _exposed(statements: Iterable[ast.stmt], defined: set[str]) -> set[str]:
    """The variables that statements may read before they set them; `defined` grows by what they surely set."""
    exposed: set[str] = set()
    for statement in statements:
        if isinstance(statement, (ast.If, ast.For, ast.While, ast.Try)):
            heads = [getattr(statement, field) for field in ("test", "iter") if hasattr(statement, field)]
            for head in heads:
                exposed |= _reads(head) - defined
            sides = []
            for field in ("body", "orelse", "finalbody", "handlers"):
                for block in _blocks(getattr(statement, field, [])):
                    sides.append(set(defined))
                    if isinstance(statement, ast.For):
                        sides[-1] |= _targets(statement.target)
                    exposed |= _exposed(block, sides[-1])
            if isinstance(statement, ast.If) and statement.orelse:
                defined |= sides[0] & sides[1]
        elif isinstance(statement, ast.With):
            for item in statement.items:
                exposed |= _reads(item.context_expr) - defined
                defined |= _targets(item.optional_vars) if item.optional_vars else set()
            exposed |= _exposed(statement.body, defined)
        else:
            exposed |= _reads(statement) - defined
            defined.update(_assigned([statement]))
    return exposed


def _blocks(field: list[Any]) -> Iterator[list[ast.stmt]]:
    """The lists of statements in a field of a compound statement."""
    if field and isinstance(field[0], ast.ExceptHandler):
        yield from (handler.body for handler in field)
    elif field:
        yield field


def _reads(node: ast.AST) -> set[str]:
    """All names that a node may read, nested functions included."""
    names = {n.id for n in ast.walk(node) if isinstance(n, ast.Name) and not isinstance(n.ctx, ast.Store)}
    if isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
        names.add(node.target.id)
    return names


def _targets(node: ast.AST) -> set[str]:
    """The names that a target sets."""
    return {n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}


def _own(nodes: Iterable[ast.AST]) -> Iterator[ast.AST]:
    """The nodes of a scope, without what belongs to the functions, classes and comprehensions in it."""
    for node in nodes:
        yield node
        if isinstance(node, (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)):
            yield from (inner.target for inner in ast.walk(node) if isinstance(inner, ast.NamedExpr))
        elif not isinstance(node, _SCOPES):
            yield from _own(ast.iter_child_nodes(node))


def _assigned(statements: Iterable[ast.AST]) -> list[str]:
    """The variables of the scope that statements may set or delete, each once.

    In the order of the program, not of their names: two programs that differ in names alone have one text.
    """
    names: list[str] = []
    for node in _own(statements):
        if isinstance(node, ast.Name) and isinstance(node.ctx, (ast.Store, ast.Del)):
            names.append(node.id)  # the target of `:=` is one too
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            names.append(node.name)
        elif isinstance(node, (ast.ExceptHandler, ast.MatchAs, ast.MatchStar, ast.MatchMapping)):
            name = node.rest if isinstance(node, ast.MatchMapping) else node.name
            names.extend([name] if name else [])
        elif isinstance(node, ast.alias):
            names.append(node.asname or node.name.partition(".")[0])
    return list(dict.fromkeys(names))


def _declared(statements: Iterable[ast.AST], kind: type[ast.Global] | type[ast.Nonlocal]) -> set[str]:
    """The names in the `global` or `nonlocal` statements of a scope."""
    return {name for node in _own(statements) if isinstance(node, kind) for name in node.names}


def _escapes(statements: Iterable[ast.AST], *, in_loop: bool = False) -> bool:
    """Whether statements lead out of themselves: by return, yield, or break and continue of a loop around them."""
    for node in statements:
        if isinstance(node, (ast.Return, ast.Yield, ast.YieldFrom, ast.Await)):
            return True
        if isinstance(node, (ast.Break, ast.Continue)) and not in_loop:
            return True
        if isinstance(node, _SCOPES):
            continue
        inner = in_loop or isinstance(node, (ast.For, ast.While))
        if _escapes(ast.iter_child_nodes(node), in_loop=inner):
            return True
    return False


def _binds(node: ast.expr) -> bool:
    """Whether an expression sets a variable or suspends, and so cannot move into a lambda."""
    return any(isinstance(n, (ast.NamedExpr, ast.Yield, ast.YieldFrom, ast.Await)) for n in ast.walk(node))


def _name(name: str, context: ast.expr_context | None = None) -> ast.Name:
    return ast.Name(name, context or ast.Load())


def _thunk(value: ast.expr) -> ast.Lambda:
    """`lambda: value`."""
    return ast.Lambda(_arguments([]), value)
