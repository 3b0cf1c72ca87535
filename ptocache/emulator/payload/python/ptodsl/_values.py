"""What the body of a kernel sees of a value: something that computes like a number, and writes down what it did.

A `Value` may stand for a node of the program (`Traced`), for an attribute of another value (`Member`, read where it
is used), or for a call that was made outside of a kernel (`Deferred`, recorded where it is used).
"""

from __future__ import annotations

import dis
import sys
from collections.abc import Callable, Iterator
from types import FunctionType, TracebackType
from typing import Any

from . import _ir
from ._ir import Node
from ._types import F32, I1, I64, INDEX, OPAQUE, Scalar, Tile, Type, Vector

Number = (bool, int, float)

_ARITHMETIC = {
    # operator: the names for signed integers, unsigned ones, floats, and what is no scalar
    "add": ("arith.addi", "arith.addi", "arith.addf", "pto.add"),
    "sub": ("arith.subi", "arith.subi", "arith.subf", "pto.sub"),
    "mul": ("arith.muli", "arith.muli", "arith.mulf", "pto.mul"),
    "truediv": ("arith.divsi", "arith.divui", "arith.divf", "pto.div"),
    "floordiv": ("arith.floordivsi", "arith.divui", "pto.floordivf", "pto.floordiv"),
    "mod": ("arith.remsi", "arith.remui", "arith.remf", "pto.mod"),
    "pow": ("math.ipowi", "math.ipowi", "math.powf", "pto.pow"),
    "lshift": ("arith.shli", "arith.shli", "pto.shl", "pto.shl"),
    "rshift": ("arith.shrsi", "arith.shrui", "pto.shr", "pto.shr"),
    "and": ("arith.andi", "arith.andi", "pto.and", "pto.and"),
    "or": ("arith.ori", "arith.ori", "pto.or", "pto.or"),
    "xor": ("arith.xori", "arith.xori", "pto.xor", "pto.xor"),
    "matmul": ("pto.matmul", "pto.matmul", "pto.matmul", "pto.matmul"),
}

_COMPARISONS = {
    # operator: the predicates for signed integers, unsigned ones, and floats
    "lt": ("slt", "ult", "olt"),
    "le": ("sle", "ule", "ole"),
    "gt": ("sgt", "ugt", "ogt"),
    "ge": ("sge", "uge", "oge"),
    "eq": ("eq", "eq", "oeq"),
    "ne": ("ne", "ne", "une"),
}

_COLUMN = {"i": 0, "x": 0, "u": 1, "f": 2}

_INDEX_MEMBERS = ("shape", "strides", "valid_shape", "offsets", "sizes")


class Value:
    """A value of the program. Names that start with `_` are ours; any other attribute is one of the device's."""

    __hash__ = object.__hash__

    def _node(self) -> Node:
        """The node that this stands for, here and now."""
        raise NotImplementedError

    def _kind(self) -> Type:
        """The type, without recording anything."""
        return OPAQUE

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        kind = self._kind()
        if name == "type":
            return kind
        if name in ("dtype", "element_type") and kind.element is not None:
            return kind.element
        if name == "dtype" and isinstance(kind, Scalar):
            return kind
        if name == "size" and isinstance(kind, Vector):
            return kind.size
        if name == "shape" and isinstance(kind, Tile) and kind.shape is not None:
            return kind.shape
        return Member(self, name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return _call("pto.value.call", (self, *args), kwargs)

    def __getitem__(self, index: Any) -> Any:
        return _call("pto.subscript", (self, index), {})

    def __setitem__(self, index: Any, value: Any) -> None:
        _call("pto.assign", (self, index, value), {})

    def __iter__(self) -> Iterator[Any]:
        count = _targets(sys._getframe(1))
        if not count:
            raise TypeError("a traced value cannot be iterated; it can be unpacked, as in `a, b = pto.op(...)`")
        return iter(self._unpack(count))

    def _unpack(self, count: int) -> list[Value]:
        """The value as so many."""
        operation = _ir.emit("pto.unpack", [self._node()], [OPAQUE] * count)
        operation.optional = True
        return [Traced(node) for node in operation.results]

    def __enter__(self) -> Value:
        operation = self._node().operation
        block = _ir.current()
        if operation is None or operation.regions or operation not in block.operations:
            raise TypeError("`with` cannot enter this traced value: it is no scope, was entered, or was made elsewhere")
        block.operations.remove(operation)
        block.operations.append(operation)  # a scope starts where it is entered
        region = _ir.Block(block)
        region.optional = True
        operation.regions.append(region)
        _ir.enter(region)
        return Traced(region.argument(OPAQUE))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        _ir.leave()

    def __bool__(self) -> bool:
        raise TypeError(
            "a traced value has no truth in Python: its value is known on the device only. Use a plain `if` in a "
            "kernel's own body without return, break or continue, or pto.if_ or pto.select; `while`, `assert` and "
            "`in` on traced values cannot be compiled"
        )

    def __index__(self) -> int:
        raise TypeError(
            "a traced value cannot be used as a Python integer (an index of a list, a bound of a Python range): its "
            "value is known on the device only. Use `for ... in range(...)` in a kernel's own body, or pto.for_"
        )

    __int__ = __index__

    def __float__(self) -> float:
        raise TypeError("a traced value cannot be used as a Python float: its value is known on the device only")

    def __neg__(self) -> Any:
        node = self._node()
        if not isinstance(node.type, Scalar):
            return _plain("pto.neg", [node], node.type)
        if node.type.kind == "f":
            return _plain("arith.negf", [node], node.type)
        return _plain("arith.subi", [_ir.constant(0, node.type), node], node.type)

    def __pos__(self) -> Any:
        return self

    def __invert__(self) -> Any:
        node = self._node()
        if not isinstance(node.type, Scalar) or node.type.kind == "f":
            return _plain("pto.not", [node], node.type)
        ones = _ir.constant(node.type == I1 or -1, node.type)
        return _plain("arith.xori", [node, ones], node.type)

    def __abs__(self) -> Any:
        node = self._node()
        if not isinstance(node.type, Scalar):
            return _plain("pto.abs", [node], node.type)
        return _plain("math.absf" if node.type.kind == "f" else "math.absi", [node], node.type)

    def __divmod__(self, other: Any) -> Any:
        return self // other, self % other

    def __repr__(self) -> str:
        return f"<traced {self._kind()}>"


class Traced(Value):
    """A node of the program."""

    def __init__(self, node: Node) -> None:
        self._ir_node = node

    def _node(self) -> Node:
        return self._ir_node

    def _kind(self) -> Type:
        return self._ir_node.type

    def _unpack(self, count: int) -> list[Value]:
        """The results of the operation that this is the first of: as many as are asked for."""
        node, operation = self._ir_node, self._ir_node.operation
        if operation is None or operation.results[0] is not node:
            return super()._unpack(count)
        results = operation.results
        if len(results) == 1 and operation.name.startswith(("pto.", "scalar.", "tl.")):
            results += [Node(node.type, node.block, operation) for _ in range(count - 1)]
        return [Traced(result) for result in results] if len(results) == count else super()._unpack(count)


class Member(Value):
    """An attribute of another value: `tile.valid_shape`, `pipe.push`. Read, or called, where it is used."""

    def __init__(self, owner: Value, name: str) -> None:
        self._owner = owner
        self._name = name

    def _node(self) -> Node:
        operation = _ir.emit("pto.get", [self._owner._node()], [OPAQUE], {"name": f'"{self._name}"'})
        return operation.results[0]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return _call(f"pto.value.{self._name}", (self._owner, *args), kwargs)

    def __getitem__(self, index: Any) -> Any:
        item = super().__getitem__(index)
        if self._name in _INDEX_MEMBERS and isinstance(item, Traced):
            item._ir_node.type = INDEX
        return item

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(f"traced member has no attribute {name!r}")
        return Member(self, name)


class Deferred(Value):
    """A call that was made outside of any kernel; it is recorded in each kernel that uses it.

    It may be a scope, `with` of which records it then, or a decorator, which makes a sub-kernel.
    """

    def __init__(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._name = name
        self._args = args
        self._kwargs = kwargs
        self._entered: list[Value] = []

    def _node(self) -> Node:
        value = _call(self._name, self._args, self._kwargs)
        if not isinstance(value, Value):
            raise TypeError(f"{self._name} gives a Python value here; use it inside a kernel")
        return value._node()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if len(args) != 1 or kwargs or not isinstance(args[0], FunctionType):
            return super().__call__(*args, **kwargs)
        from ._kernels import SubKernel  # which is built on this module

        given = {"arguments": self._args} if self._args else {}
        return SubKernel(args[0], self._name, {**given, **self._kwargs})

    def __enter__(self) -> Value:
        self._entered.append(Traced(self._node()))
        return self._entered[-1].__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._entered.pop().__exit__(kind, error, traceback)


def node_of(value: Any) -> Node:
    """The node of a value or a Python number.

    Raises:
        TypeError: it is neither.
    """
    if isinstance(value, Value):
        return value._node()
    if isinstance(value, bool):
        return _ir.constant(value, I1)
    if isinstance(value, int):
        return _ir.constant(value, I64)
    if isinstance(value, float):
        return _ir.constant(value, F32)
    raise TypeError(f"expected a traced value or a number, found a {type(value).__name__}")


def node_like(value: Any, type_: Type) -> Node:
    """The same, where a Python number takes the type of what it meets, if it can be one."""
    if isinstance(value, Number) and isinstance(type_, Scalar):
        fits = type_.kind == "f" or (isinstance(value, int) and (type_ != I1 or isinstance(value, bool)))
        if fits:
            return _ir.constant(value, type_)
    return node_of(value)


def unify(left: Node, right: Node) -> tuple[Node, Node]:
    """Two nodes; scalars as of one type."""
    if not right.followers:
        _ir.settle(left, right.type)
    elif not left.followers:
        _ir.settle(right, left.type)
    a, b = left.type, right.type
    if not (isinstance(a, Scalar) and isinstance(b, Scalar)):
        return left, right
    return _ir.convert(left, _ir.wider(a, b)), _ir.convert(right, _ir.wider(a, b))


def _operands(left: Any, right: Any) -> tuple[Node, Node]:
    """The nodes of two operands, one of which may be a Python number."""
    if isinstance(left, Value):
        first = left._node()
        return unify(first, node_like(right, first.type))
    kind = right._kind()
    first = node_like(left, kind)
    return unify(first, right._node())


def _plain(name: str, operands: list[Node], type_: Type) -> Traced:
    """An operation with one result."""
    return Traced(_ir.emit(name, operands, [type_]).results[0])


def arithmetic(operator: str, left: Any, right: Any) -> Any:
    """Record an arithmetic operator; `NotImplemented` if an operand is no number."""
    if not all(isinstance(operand, (Value, *Number)) for operand in (left, right)):
        return NotImplemented
    a, b = _operands(left, right)
    scalars = isinstance(a.type, Scalar) and isinstance(b.type, Scalar)
    column = _COLUMN[a.type.kind] if isinstance(a.type, Scalar) and scalars else 3
    type_ = b.type if isinstance(a.type, Scalar) and not scalars else a.type
    return _plain(_ARITHMETIC[operator][column], [a, b], type_)


def comparison(operator: str, left: Any, right: Any) -> Any:
    """Record a comparison; `NotImplemented` if an operand is no number."""
    if not all(isinstance(operand, (Value, *Number)) for operand in (left, right)):
        return NotImplemented
    a, b = _operands(left, right)
    column = _COLUMN[a.type.kind] if isinstance(a.type, Scalar) else 0
    scalars = isinstance(a.type, Scalar) and isinstance(b.type, Scalar)
    name = ("arith.cmpf" if column == 2 else "arith.cmpi") if scalars else "pto.cmp"
    attributes = {"predicate": f'"{_COMPARISONS[operator][column]}"'}
    return Traced(_ir.emit(name, [a, b], [I1], attributes).results[0])


def _install_operators() -> None:
    """Give `Value` Python's operators, and the reflected ones."""

    def forward(record: Callable[[str, Any, Any], Any], operator: str) -> Callable[[Any, Any], Any]:
        return lambda self, other: record(operator, self, other)

    def reflected(operator: str) -> Callable[[Any, Any], Any]:
        return lambda self, other: arithmetic(operator, other, self)

    for operator in _ARITHMETIC:
        setattr(Value, f"__{operator}__", forward(arithmetic, operator))
        setattr(Value, f"__r{operator}__", reflected(operator))
    for operator in _COMPARISONS:
        setattr(Value, f"__{operator}__", forward(comparison, operator))


_install_operators()


def _targets(frame: Any) -> int:
    """How many names an unpacking assigns to, from the instruction that is running; 0 for another iteration."""
    code = frame.f_code.co_code
    at = frame.f_lasti
    return int(code[at + 1]) if dis.opname[code[at]] == "UNPACK_SEQUENCE" else 0


def _call(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Record a call; the module that knows how is built on this one."""
    from ._record import record

    return record(name, args, kwargs)
