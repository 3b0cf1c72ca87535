"""Loops and branches of the device: `Loop` and `Branch`, and `pto.for_` and `pto.if_`, which are made of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from types import TracebackType
from typing import Any

from . import _ir
from ._ir import Block, Node
from ._types import F32, I1, I64, INDEX, OPAQUE, Scalar, Type
from ._values import Number, Traced, Value, node_like, node_of


class Loop:
    """A loop of the device: an `scf.for`, and the values that it carries from iteration to iteration.

    A Python number that is carried takes the type of what it first meets in the body, or of what the body makes of it:
    `total = 0` before a loop that adds floats is a float.

    Attributes:
        iv: the loop variable.
        arguments: the carried values, in the body.
        results: the carried values, after the loop.
    """

    def __init__(self, start: Any, stop: Any, step: Any, initial: Sequence[Any]) -> None:
        bounds = [_bound(value) for value in (start, stop, step)]
        self._initial = [_carried(value) for value in initial]
        types = [node.type for node in self._initial]
        self._operation = _ir.emit("scf.for", [*bounds, *self._initial], types)
        self.body = Block(_ir.current())
        self._operation.regions.append(self.body)
        self.iv = Traced(self.body.argument(INDEX))
        self.arguments = [Traced(self.body.argument(type_)) for type_ in types]
        for number, value in enumerate(initial):
            if isinstance(value, Number):
                followers = (self._initial[number], self._operation.results[number])
                self.body.arguments[1 + number].followers = followers
        self.results: list[Traced] = []

    def close(self, values: Sequence[Any]) -> None:
        """End the body, inside of it: `values` are what the next iteration gets."""
        nodes = []
        for number, value in enumerate(values):
            argument = self.body.arguments[1 + number]
            node = node_like(value, argument.type)
            _ir.settle(argument, node.type)
            nodes.append(converted(node, argument.type))
        _ir.emit("scf.yield", nodes, [])
        self.results = [Traced(node) for node in self._operation.results]


def _bound(value: Any) -> Node:
    """A bound of a loop."""
    if isinstance(value, int):
        return _ir.constant(value, INDEX)
    return _ir.convert(node_of(value), INDEX)


def _carried(value: Any) -> Node:
    """The initial value of what a loop carries; a constant of its own, as its type may change."""
    if isinstance(value, Number):
        return _ir.constant(value, I1 if isinstance(value, bool) else I64 if isinstance(value, int) else F32)
    return node_of(value)


class Branch:
    """A branch of the device: an `scf.if`, and the values that its two sides give."""

    def __init__(self, condition: Any) -> None:
        self._operation = _ir.emit("scf.if", [_ir.truth(node_of(condition))], [])
        self._operation.regions = [Block(_ir.current()), Block(_ir.current())]
        self._yields: tuple[list[Node], list[Node]] = ([], [])

    def side(self, number: int) -> AbstractContextManager[Block]:
        """A context in which operations go to one side: 0 where the condition holds, 1 where not."""
        return _ir.inside(self._operation.regions[number])

    def merge(self, one: Any, other: Any) -> Traced:
        """The value that is `one` where the condition held, and `other` where not."""
        kinds = [value._kind() if isinstance(value, Value) else None for value in (one, other)]
        nodes = []
        for number, value in enumerate((one, other)):
            like = kinds[1 - number]
            with self.side(number):
                nodes.append(node_of(value) if like is None else node_like(value, like))
        type_ = _common(nodes[0].type, nodes[1].type)
        for number, node in enumerate(nodes):
            with self.side(number):
                self._yields[number].append(converted(node, type_))
        self._operation.results.append(Node(type_, _ir.current(), self._operation))
        return Traced(self._operation.results[-1])

    def close(self) -> None:
        """End both sides."""
        for number, nodes in enumerate(self._yields):
            if nodes:
                with self.side(number):
                    _ir.emit("scf.yield", nodes, [])


def _common(a: Type, b: Type) -> Type:
    """The type that two scalars have in common; the first one where they are no scalars."""
    return _ir.wider(a, b) if isinstance(a, Scalar) and isinstance(b, Scalar) else a


def converted(node: Node, type_: Type) -> Node:
    """A node as another type.

    Raises:
        TypeError: there is no conversion.
    """
    if node.type == type_ or (isinstance(node.type, Scalar) and isinstance(type_, Scalar)):
        return _ir.convert(node, type_)
    if OPAQUE in (node.type, type_):
        return _ir.emit("pto.cast", [node], [type_], {"arg1": type_.text}).results[0]
    raise TypeError(f"a variable is a {type_} on one path of a device loop or branch, and a {node.type} on another")


class For:
    """`with pto.for_(start, stop, step=1) as i:`, and its form that carries values by name."""

    def __init__(self, start: Any, stop: Any, step: Any = 1) -> None:
        self._bounds = (start, stop, step)
        self._values: dict[str, Any] = {}

    def carry(self, **values: Any) -> For:
        """Carry these values from iteration to iteration."""
        self._values.update(values)
        return self

    def update(self, **values: Any) -> None:
        """Say what the next iteration gets."""
        unknown = values.keys() - self._values.keys()
        if unknown:
            raise TypeError(f"pto.for_(...).update: {min(unknown)!r} is not carried; name it in .carry(...)")
        self._values.update(values)

    def final(self, name: str) -> Any:
        """What a carried value is after the loop."""
        if name not in self._values:
            raise TypeError(f"pto.for_(...).final: {name!r} is not carried; name it in .carry(...)")
        return self._values[name]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name not in self._values:
            raise AttributeError(f"pto.for_(...) carries no {name!r}; name it in .carry(...)")
        return self._values[name]

    def __enter__(self) -> Any:
        self._loop = Loop(*self._bounds, list(self._values.values()))
        self.iv = self._loop.iv
        self._values = dict(zip(self._values, self._loop.arguments, strict=True))
        _ir.enter(self._loop.body)
        return self if self._values else self.iv

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                self._loop.close(list(self._values.values()))
                self._values = dict(zip(self._values, self._loop.results, strict=True))
        finally:
            _ir.leave()


class If:
    """`with pto.if_(condition) as branch:`, with `branch.then_`, `branch.else_` and merged values."""

    def __init__(self, condition: Any) -> None:
        self._condition = condition
        self._assigned: tuple[dict[str, Any], dict[str, Any]] = ({}, {})
        self._side = 0

    @property
    def then_(self) -> AbstractContextManager[If]:
        """The branch that is taken where the condition holds."""
        return self._enter(0)

    @property
    def else_(self) -> AbstractContextManager[If]:
        """The other branch."""
        return self._enter(1)

    def assign(self, **values: Any) -> None:
        """Give values out of this branch. The other one is to give the same names."""
        self._assigned[self._side].update(values)

    @contextmanager
    def _enter(self, side: int) -> Iterator[If]:
        """Record into one of the branches."""
        previous, self._side = self._side, side
        try:
            with self._branch.side(side):
                yield self
        finally:
            self._side = previous

    def __enter__(self) -> If:
        self._branch = Branch(self._condition)
        self._then = self._branch.side(0)  # for what is recorded without saying which branch
        self._then.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._then.__exit__(None, None, None)
        if kind is not None:
            return
        one, other = self._assigned
        if one.keys() != other.keys():
            odd = min(one.keys() ^ other.keys())
            raise TypeError(f"pto.if_: {odd!r} is assigned in one branch only; assign it in both")
        for name, value in one.items():
            setattr(self, name, self._branch.merge(value, other[name]))
        self._branch.close()
