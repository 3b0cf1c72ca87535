"""What rewritten Python statements and expressions call. `_rewrite` writes the calls.

A statement comes as functions: its body, and for each variable that it may change one that reads it, and one that sets
them all. So a body can be traced with its variables as arguments of a loop, or once a side of a branch. Where nothing
is traced, all of this does what Python does.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

from . import _ir
from ._control import Branch, Loop
from ._types import I1
from ._values import Number, Traced, Value, node_of

Reads = tuple[Callable[[], Any], ...]
Assign = Callable[[Sequence[Any]], None]


class Unset:
    """What a variable holds that has no value on every path. Any use of it fails, and says why."""

    def __init__(self, name: str, reason: str) -> None:
        self._message = f"{name!r} {reason}"

    def __getattr__(self, name: str) -> Any:
        raise TypeError(self._message)

    def __repr__(self) -> str:
        return self._message


def _peek(names: tuple[str, ...], reads: Reads) -> list[Any]:
    """What the variables hold now."""
    values = []
    for name, read in zip(names, reads, strict=True):
        try:
            values.append(read())
        except NameError:
            values.append(Unset(name, "has no value on every path of a device loop or branch"))
    return values


def loop(
    make: Any, args: tuple[Any, ...], body: Callable[[Any], None], names: tuple[str, ...], reads: Reads, assign: Assign
) -> None:
    """`for ... in range(...)`: a loop of the device, whose body is traced once.

    Args:
        make: what the name `range` means there; if it is not Python's, the loop stays one of Python's.
        args: what it is called with.
        body: the body; its argument is the loop variable.
        names: the variables that may have to be carried.
        reads: what reads each of them.
        assign: sets them all.
    """
    if make is not range or not _ir.is_tracing():
        for item in make(*args):
            body(item)
        return
    if not 1 <= len(args) <= 3:
        range(*args)  # for its error
    start, stop, step = (0, *args, 1) if len(args) == 1 else (*args, 1)[:3]
    backwards = isinstance(step, int) and step <= 0
    before = _peek(names, reads)
    carried = [number for number, value in enumerate(before) if isinstance(value, (Value, *Number))]
    initial = [before[number] for number in carried]
    # A loop of the device counts up, so a Python range that counts down becomes one over its length.
    device = Loop(0, len(range(start, stop, step)), 1, initial) if backwards else Loop(start, stop, step, initial)
    with _ir.inside(device.body):
        assign(_replaced(before, carried, device.arguments))
        body(device.iv * step + start if backwards else device.iv)
        after = _peek(names, reads)
        for number in carried:
            if not isinstance(after[number], (Value, *Number)):
                kind = type(after[number]).__name__
                raise TypeError(
                    f"{names[number]!r} is a number or a traced value before a device loop, and a {kind} in it"
                )
        device.close([after[number] for number in carried])
    assign(_replaced(after, carried, device.results))


def _replaced(values: list[Any], places: list[int], new: Sequence[Any]) -> list[Any]:
    """A list with other values in some places."""
    out = list(values)
    for place, value in zip(places, new, strict=True):
        out[place] = value
    return out


def branch(
    condition: Any,
    then: Callable[[], None],
    otherwise: Callable[[], None],
    names: tuple[str, ...],
    reads: Reads,
    assign: Assign,
) -> None:
    """`if condition: then() else: otherwise()`: a branch of the device if the condition is a traced value."""
    if not isinstance(condition, Value):
        (then if condition else otherwise)()
        return
    before = _peek(names, reads)
    device = Branch(condition)
    sides = []
    for number, side in enumerate((then, otherwise)):
        assign(before)
        with device.side(number):
            side()
        sides.append(_peek(names, reads))
    assign([_merge(device, *values) for values in zip(names, *sides, strict=True)])
    device.close()


def _merge(device: Branch, name: str, one: Any, other: Any) -> Any:
    """What a variable holds after a branch."""
    if one is other or (isinstance(one, Number) and type(one) is type(other) and repr(one) == repr(other)):
        return one
    if all(isinstance(value, (Value, *Number)) for value in (one, other)):
        return device.merge(one, other)
    return Unset(name, "has no value that can be merged on both paths of a branch on a traced value")


def choose(condition: Any, one: Callable[[], Any], other: Callable[[], Any]) -> Any:
    """`one() if condition else other()`."""
    if not isinstance(condition, Value):
        return one() if condition else other()
    device = Branch(condition)
    values = []
    for number, side in enumerate((one, other)):
        with device.side(number):
            values.append(side())
    merged = _merge(device, "the conditional expression", *values)
    device.close()
    return merged


def conjunction(*terms: Callable[[], Any]) -> Any:
    """`a and b and ...`, where a term that follows a traced value is evaluated in any case."""
    return _connect("arith.andi", terms, stop_at=False)


def disjunction(*terms: Callable[[], Any]) -> Any:
    """`a or b or ...`, likewise."""
    return _connect("arith.ori", terms, stop_at=True)


def _connect(name: str, terms: tuple[Callable[[], Any], ...], *, stop_at: bool) -> Any:
    """Connect terms from left to right, until a Python value decides."""
    value = terms[0]()
    for term in terms[1:]:
        if not isinstance(value, Value):
            if bool(value) is stop_at:
                return value
            value = term()
            continue
        other = term()
        if not isinstance(other, Value):
            if bool(other) is stop_at:
                return stop_at
            continue  # a neutral Python value
        operands = [_ir.truth(node_of(value)), _ir.truth(node_of(other))]
        value = Traced(_ir.emit(name, operands, [I1]).results[0])
    return value


def negation(value: Any) -> Any:
    """`not value`."""
    if not isinstance(value, Value):
        return not value
    condition = _ir.truth(node_of(value))
    return Traced(_ir.emit("arith.xori", [condition, _ir.constant(True, I1)], [I1]).results[0])


_COMPARE: dict[str, Callable[[Any, Any], Any]] = {
    "Lt": operator.lt,
    "LtE": operator.le,
    "Gt": operator.gt,
    "GtE": operator.ge,
    "Eq": operator.eq,
    "NotEq": operator.ne,
    "Is": operator.is_,
    "IsNot": operator.is_not,
    "In": lambda a, b: a in b,
    "NotIn": lambda a, b: a not in b,
}


def chain(operators: tuple[str, ...], *terms: Callable[[], Any]) -> Any:
    """`a < b <= c`: each term is evaluated once."""
    values = [terms[0]()]

    def comparison(number: int) -> Callable[[], Any]:
        def compare() -> Any:
            values.append(terms[number + 1]())
            return _COMPARE[operators[number]](values[number], values[number + 1])

        return compare

    return conjunction(*(comparison(number) for number in range(len(operators))))
