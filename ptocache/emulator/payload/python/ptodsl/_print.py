"""The text of a traced program. The grammar is described where it is read, in `emulated_cann/mlir.py`."""

from __future__ import annotations

from . import _attributes
from ._ir import Block, Node, Operation
from ._types import Scalar


def function(name: str, body: Block, attributes: dict[str, str], results: list[Node], *, private: bool) -> str:
    """The text of one function, without indentation before its first line."""
    return _Printer().function(name, body, attributes, results, private=private)


class _Printer:
    """Numbers the values of one function in the order in which they are printed."""

    def __init__(self) -> None:
        self.names: dict[Node, str] = {}
        self.results = 0
        self.arguments = 0
        self.lines: list[str] = []

    def function(
        self, name: str, body: Block, attributes: dict[str, str], results: list[Node], *, private: bool
    ) -> str:
        parameters = ", ".join(f"{self.argument(node)}: {node.type}" for node in body.arguments)
        returns = f" -> {_types(results)}" if results else ""
        extra = f" attributes {_dictionary(attributes)}" if attributes else ""
        visibility = "private " if private else ""
        self.lines.append(f"func.func {visibility}{_attributes.symbol(name)}({parameters}){returns}{extra} {{")
        self.block(body, 1)
        values = f" {', '.join(self.names[node] for node in results)} : {_list(results)}" if results else ""
        self.lines += [f"  return{values}", "}"]
        return "\n".join(self.lines)

    def argument(self, node: Node) -> str:
        """Name an argument."""
        self.names[node] = f"%arg{self.arguments}"
        self.arguments += 1
        return self.names[node]

    def block(self, block: Block, depth: int) -> None:
        for operation in block.operations:
            self.operation(operation, depth)

    def operation(self, operation: Operation, depth: int) -> None:
        """One operation: the generic form, but for the few that everyone reads in their own."""
        pad = "  " * depth
        if operation.name == "arith.constant":
            type_ = operation.results[0].type
            floating = isinstance(type_, Scalar) and type_.kind == "f"
            value = _attributes.number(operation.constant, floating=floating)
            self.lines.append(f"{pad}{self.assign(operation)}arith.constant {value} : {type_}")
        elif operation.name == "scf.for":
            self.loop(operation, depth)
        elif operation.name == "scf.if":
            self.branch(operation, depth)
        elif operation.name == "scf.yield":
            if operation.operands:
                self.lines.append(f"{pad}scf.yield {self.uses(operation.operands)} : {_list(operation.operands)}")
        else:
            self.generic(operation, depth)

    def generic(self, operation: Operation, depth: int) -> None:
        pad = "  " * depth
        results = _printed(operation)
        head = f'{pad}{self.assign(operation)}"{operation.name}"({self.uses(operation.operands)})'
        signature = f"({_list(operation.operands)}) -> {_types(results)}"
        tail = f"{' ' + _dictionary(operation.attributes) if operation.attributes else ''} : {signature}"
        if not operation.regions:
            self.lines.append(head + tail)
            return
        for number, region in enumerate(operation.regions):
            self.lines.append(f"{head} ({{" if number == 0 else f"{pad}}}, {{")
            if region.arguments and not (region.optional and not any(node.used for node in region.arguments)):
                arguments = ", ".join(f"{self.argument(node)}: {node.type}" for node in region.arguments)
                self.lines.append(f"{pad}^bb0({arguments}):")
            self.block(region, depth + 1)
        self.lines.append(f"{pad}}}){tail}")

    def loop(self, operation: Operation, depth: int) -> None:
        pad = "  " * depth
        low, high, step, *initial = operation.operands
        body = operation.regions[0]
        bounds = f"{self.names[low]} to {self.names[high]} step {self.names[step]}"
        values = [self.names[node] for node in initial]
        result = self.assign(operation)
        iv = self.argument(body.arguments[0])
        carried = ""
        if initial:
            pairs = (f"{self.argument(node)} = {value}" for node, value in zip(body.arguments[1:], values, strict=True))
            carried = f" iter_args({', '.join(pairs)}) -> ({_list(operation.results)})"
        self.lines.append(f"{pad}{result}scf.for {iv} = {bounds}{carried} : {body.arguments[0].type} {{")
        self.block(body, depth + 1)
        self.lines.append(f"{pad}}}")

    def branch(self, operation: Operation, depth: int) -> None:
        pad = "  " * depth
        condition = self.names[operation.operands[0]]
        types = f" -> ({_list(operation.results)})" if operation.results else ""
        self.lines.append(f"{pad}{self.assign(operation)}scf.if {condition}{types} {{")
        self.block(operation.regions[0], depth + 1)
        if operation.regions[1].operations:
            self.lines.append(f"{pad}}} else {{")
            self.block(operation.regions[1], depth + 1)
        self.lines.append(f"{pad}}}")

    def assign(self, operation: Operation) -> str:
        """Name the results; the text to the left of the operation."""
        results = _printed(operation)
        if not results:
            return ""
        name = f"%{self.results}"
        self.results += 1
        if len(results) == 1:
            self.names[results[0]] = name
            return f"{name} = "
        for number, node in enumerate(results):
            self.names[node] = f"{name}#{number}"
        return f"{name}:{len(results)} = "

    def uses(self, nodes: list[Node]) -> str:
        return ", ".join(self.names[node] for node in nodes)


def _printed(operation: Operation) -> list[Node]:
    """The results that the text shows."""
    if operation.optional and not any(node.used for node in operation.results):
        return []
    return operation.results


def _list(nodes: list[Node]) -> str:
    return ", ".join(node.type.text for node in nodes)


def _types(nodes: list[Node]) -> str:
    return nodes[0].type.text if len(nodes) == 1 else f"({_list(nodes)})"


def _dictionary(attributes: dict[str, str]) -> str:
    entries = (key if value == "unit" else f"{key} = {value}" for key, value in attributes.items())
    return f"{{{', '.join(entries)}}}"
