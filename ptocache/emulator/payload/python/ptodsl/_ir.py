"""The program that a trace builds: operations with regions, and the stack of blocks that they go to."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ._types import I1, Scalar, Type


class Node:
    """A value of the program: a result of an operation, or an argument of a block.

    Attributes:
        type: its type. That of a loop's argument is settled only when the body has been traced.
        block: where it is defined.
        operation: what it is a result of, if anything.
        used: whether an operation takes it.
        followers: for a value that has no type of its own yet, the nodes that are to have the same one.
    """

    __slots__ = ("block", "followers", "operation", "type", "used")

    def __init__(self, type_: Type, block: Block, operation: Operation | None = None) -> None:
        self.type = type_
        self.block = block
        self.operation = operation
        self.used = False
        self.followers: tuple[Node, ...] = ()


class Operation:
    """One operation.

    Attributes:
        name: with its dialect, such as `pto.vadd`.
        operands: what it takes.
        attributes: the rest that it says, as MLIR text by key.
        results: what it gives. More may be asked for later: `a, b = pto.op()`.
        regions: the blocks nested in it.
        optional: its results are printed only if something uses them.
        constant: the Python number that `arith.constant` stands for.
    """

    __slots__ = ("attributes", "constant", "name", "operands", "optional", "regions", "results")

    def __init__(self, name: str, operands: list[Node], attributes: dict[str, str]) -> None:
        self.name = name
        self.operands = operands
        self.attributes = attributes
        self.results: list[Node] = []
        self.regions: list[Block] = []
        self.optional = False
        self.constant: float = 0


class Block:
    """A list of operations, with arguments. A function's body has no parent.

    Attributes:
        optional: its arguments are printed only if something uses them.
    """

    __slots__ = ("arguments", "operations", "optional", "parent")

    def __init__(self, parent: Block | None = None) -> None:
        self.parent = parent
        self.arguments: list[Node] = []
        self.operations: list[Operation] = []
        self.optional = False

    def argument(self, type_: Type) -> Node:
        """A further argument."""
        self.arguments.append(Node(type_, self))
        return self.arguments[-1]

    def resolve(self, node: Node) -> Node | None:
        """A value as it is called here; `None` if it is defined neither here nor around here.

        Inside of a scope, the scope itself is an argument of the block: its operation is not complete.
        """
        regions = node.operation.regions if node.operation is not None else []
        block: Block | None = self
        while block is not None:
            if block in regions:
                return block.arguments[0]
            if block is node.block:
                return node
            block = block.parent
        return None


_stack: list[Block] = []


def is_tracing() -> bool:
    """Whether the body of a kernel is being traced."""
    return bool(_stack)


def current() -> Block:
    """The block that operations go to."""
    if not _stack:
        raise RuntimeError("PTO operations are recorded only inside a kernel or a sub-kernel")
    return _stack[-1]


@contextmanager
def inside(block: Block) -> Iterator[Block]:
    """Send operations to a block."""
    enter(block)
    try:
        yield block
    finally:
        leave()


def enter(block: Block) -> None:
    """Send operations to a block until `leave`."""
    _stack.append(block)


def leave() -> None:
    """Send operations to where they went before."""
    _stack.pop()


def emit(name: str, operands: list[Node], types: list[Type], attributes: dict[str, str] | None = None) -> Operation:
    """Append an operation to the current block.

    Raises:
        TypeError: an operand was made in a loop, a branch or a kernel that is over.
    """
    block = current()
    seen = []
    for operand in operands:
        node = block.resolve(operand)
        if node is None:
            raise TypeError(
                f"{name} uses a value outside of the loop, branch, scope or kernel that made it. A variable that has a "
                "value before a loop, or gets one in both branches, is carried out; nothing leaves a `with` scope"
            )
        node.used = True
        seen.append(node)
    operation = Operation(name, seen, attributes or {})
    operation.results = [Node(type_, block, operation) for type_ in types]
    block.operations.append(operation)
    return operation


def constant(value: float, type_: Type) -> Node:
    """A constant of a type."""
    operation = emit("arith.constant", [], [type_])
    operation.constant = value if type_ == I1 else value + 0  # a bool is a number, but for i1
    return operation.results[0]


def settle(node: Node, type_: Type) -> None:
    """Give a type to a value that has none of its own yet, if this is one for it."""
    if node.followers and not node.used and isinstance(type_, Scalar):
        for follower in (node, *node.followers):
            follower.type = type_


def convert(node: Node, type_: Type) -> Node:
    """A scalar as another scalar type."""
    source = node.type
    if source == type_ or not (isinstance(source, Scalar) and isinstance(type_, Scalar)):
        return node
    integers = "ixu"
    if source.kind in integers and type_.kind in integers:
        if "x" in (source.kind, type_.kind):
            name = "index_cast"
        elif source.bits == type_.bits:
            name = "bitcast"
        else:
            name = "trunci" if source.bits > type_.bits else "extui" if source.kind == "u" else "extsi"
    elif source.kind == "f" and type_.kind == "f":
        name = "truncf" if source.bits > type_.bits else "extf"
    elif type_.kind == "f":
        name = "uitofp" if source.kind == "u" else "sitofp"
    else:
        name = "fptoui" if type_.kind == "u" else "fptosi"
    return emit(f"arith.{name}", [node], [type_]).results[0]


def wider(a: Scalar, b: Scalar) -> Scalar:
    """The type in which two scalars meet: floats win over integers, the index type over others, wide over narrow."""
    rank = {"i": 0, "u": 0, "x": 1, "f": 2}
    return max((a, b), key=lambda type_: (rank[type_.kind], type_.bits))


def truth(node: Node) -> Node:
    """A value as a condition: itself if it is one, else whether it is not zero."""
    if not isinstance(node.type, Scalar):
        return emit("pto.truth", [node], [I1]).results[0]
    if node.type.bits == 1:
        return node
    zero = constant(0, node.type)
    letter, predicate = ("f", "une") if node.type.kind == "f" else ("i", "ne")
    return emit(f"arith.cmp{letter}", [node, zero], [I1], {"predicate": f'"{predicate}"'}).results[0]
