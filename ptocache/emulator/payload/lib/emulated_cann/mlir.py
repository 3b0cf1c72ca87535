"""Reads the MLIR text that the emulated frontend writes, and says precisely where it is malformed.

The grammar, a small regular part of MLIR's (`?` optional, `*` repeated, `|` or):

    file       := alias* (module | function)*
    alias      := (`#name` | `!name`) `=` (attribute | type)
    module     := `module` symbol? (`attributes` dict)? `{` (module | function)* `}`
    function   := `func.func` visibility? symbol `(` parameters? `)` (`->` types)? (`attributes` dict)? region?
    visibility := `private` | `public`
    region     := `{` (label | operation)* `}`
    label      := `^name` (`(` parameters `)`)? `:`
    parameters := `%name` `:` type dict? (`,` ...)*
    operation  := (results `=`)? (generic | for | if | custom)
    results    := `%name` (`:` count)? (`,` ...)*
    generic    := `"dialect.name"` `(` values `)` (`<` dict `>`)? (`(` region (`,` region)* `)`)? dict? `:` signature
    signature  := `(` types `)` `->` (type | `(` types `)`)
    for        := `scf.for` `%name` `=` value `to` value `step` value carried? (`:` type)? region dict?
    carried    := `iter_args` `(` `%name` `=` value (`,` ...)* `)` `->` types
    if         := `scf.if` value (`->` types)? region (`else` region)? dict?
    custom     := `dialect.name` (region | dict | token)*     up to the end of the line
    dict       := `{` (key (`=` attribute)?) (`,` ...)* `}`

A generic operation is checked in full: its values are defined, there are as many of them as the signature says,
and of the types that they were defined with. A custom one (`arith.constant`, `return`, and what people write by hand)
ends with its line; its values must be defined, its brackets must balance, and a `%name =` inside it names an argument
of its region. Comments, blank lines and `loc(...)` say nothing about the program: they are
dropped, and so is all white space. What is left, `Module.words`, is the program.
"""

from __future__ import annotations

import re

DIALECTS = frozenset(
    ("arith", "builtin", "cf", "func", "llvm", "math", "memref", "pto", "scalar", "scf", "tl", "vector")
)
"""The dialects whose operations are known; a name in another is an error, as it is to the real tool."""

_TOKEN = re.compile(
    r"""
      (?P<space>[ \t\r\f\v]+)
    | (?P<line>\n)
    | (?P<comment>//[^\n]*)
    | (?P<string>"(?:[^"\\\n]|\\[^\n])*")
    | (?P<value>%[\w$.-]+(?:\#[0-9]+)?)
    | (?P<symbol>@(?:[\w$.-]+|"(?:[^"\\\n]|\\[^\n])*"))
    | (?P<block>\^[\w$.-]+)
    | (?P<hash>\#[\w$.]+)
    | (?P<bang>![\w$.]+)
    | (?P<number>-?(?:0x[0-9A-Fa-f]+|[0-9]+(?:\.[0-9]*(?:[eE][-+]?[0-9]+)?)?))
    | (?P<id>[A-Za-z_][\w$]*(?:\.[\w$]+)*)
    | (?P<punctuation>->|::|[{}()\[\]<>,=:*+?/-])
    """,
    re.VERBOSE | re.ASCII,
)

_CLOSING = {"(": ")", "[": "]", "<": ">", "{": "}"}


class ParseError(ValueError):
    """The text is malformed.

    Attributes:
        offset: where, in characters from the start of the text.
    """

    def __init__(self, message: str, offset: int) -> None:
        super().__init__(message)
        self.offset = offset

    def render(self, name: str, text: str) -> str:
        """The diagnostic as compilers print it: place, message, source line and caret."""
        line = text.count("\n", 0, self.offset) + 1
        start = text.rfind("\n", 0, self.offset) + 1
        end = text.find("\n", start)
        source = text[start : len(text) if end < 0 else end]
        column = self.offset - start
        caret = "".join("\t" if character == "\t" else " " for character in source[:column]) + "^"
        return f"{name}:{line}:{column + 1}: error: {self}\n{source}\n{caret}\n"


class Token:
    """One token; `opens_line` says that nothing but space is before it on its line."""

    __slots__ = ("kind", "offset", "opens_line", "text")

    def __init__(self, kind: str, text: str, offset: int, opens_line: bool) -> None:
        self.kind = kind
        self.text = text
        self.offset = offset
        self.opens_line = opens_line


class Function:
    """One function of a module.

    Attributes:
        name: its symbol, without `@` and quotes.
        attributes: the keys of its attribute dictionary.
        parameters: the types of its parameters.
        operations: how many operations its body has, nested ones included.
    """

    __slots__ = ("attributes", "name", "operations", "parameters")

    def __init__(self, name: str) -> None:
        self.name = name
        self.attributes: dict[str, str] = {}
        self.parameters: list[str] = []
        self.operations = 0

    @property
    def is_kernel(self) -> bool:
        """Whether the runtime can launch it."""
        return "pto.aicore" in self.attributes


class Module:
    """A parsed file: its functions in order, and its canonical words."""

    __slots__ = ("functions", "words")

    def __init__(self, functions: list[Function], words: list[str]) -> None:
        self.functions = functions
        self.words = words


def parse(text: str) -> Module:
    """Parse a file.

    Raises:
        ParseError: the text is malformed, or holds no kernel.
    """
    tokens = _drop_locations(list(_tokenize(text)))
    parser = _Parser(tokens)
    parser.file()
    if not any(function.is_kernel for function in parser.functions):
        raise ParseError("no kernel: expected a func.func with the attribute pto.aicore", 0)
    return Module(parser.functions, [token.text for token in tokens[:-1]])


def _tokenize(text: str) -> list[Token]:
    """Split the text; the last token is the end of the file."""
    tokens = []
    offset, opens_line = 0, True
    while offset < len(text):
        match = _TOKEN.match(text, offset)
        if match is None:
            what = "unterminated string" if text[offset] == '"' else f"unexpected character {text[offset]!r}"
            raise ParseError(what, offset)
        kind = match.lastgroup or ""
        if kind == "line":
            opens_line = True
        elif kind not in ("space", "comment"):
            tokens.append(Token(kind, match.group(), offset, opens_line))
            opens_line = False
        offset = match.end()
    tokens.append(Token("end", "end of file", offset, True))
    return tokens


def _drop_locations(tokens: list[Token]) -> list[Token]:
    """Leave out `loc(...)`, and the aliases that stand for one."""
    kept: list[Token] = []
    number = 0
    while number < len(tokens):
        token = tokens[number]
        if token.text != "loc" or tokens[number + 1].text != "(":
            kept.append(token)
            number += 1
            continue
        depth = 0
        number += 1
        while tokens[number].kind != "end":
            depth += {"(": 1, ")": -1}.get(tokens[number].text, 0)
            number += 1
            if not depth:
                break
        if len(kept) > 1 and kept[-1].text == "=" and kept[-2].kind == "hash":
            del kept[-2:]
    return kept


class _Parser:
    """A recursive descent over the tokens. `scopes` holds the values of the function, a dictionary a region."""

    def __init__(self, tokens: list[Token]) -> None:
        self.tokens = tokens
        self.number = 0
        self.functions: list[Function] = []
        self.symbols: dict[str, int] = {}
        self.calls: list[tuple[str, int]] = []
        self.scopes: list[dict[str, list[str]]] = []

    # Tokens

    @property
    def token(self) -> Token:
        """The next token."""
        return self.tokens[self.number]

    def take(self) -> Token:
        """Consume the next token."""
        token = self.tokens[self.number]
        if token.kind == "end":
            raise ParseError("unexpected end of file", token.offset)
        self.number += 1
        return token

    def accept(self, text: str) -> bool:
        """Consume the next token if it is this one."""
        if self.token.text == text and self.token.kind != "string":
            self.number += 1
            return True
        return False

    def expect(self, text: str) -> Token:
        """Consume this token, or fail."""
        if self.token.text != text:
            raise self.error(f"expected '{text}', found {self.found()}")
        return self.take()

    def found(self) -> str:
        """The next token for a message."""
        return self.token.text if self.token.kind == "end" else f"'{self.token.text}'"

    def error(self, message: str, token: Token | None = None) -> ParseError:
        """An error at a token, by default the next one."""
        return ParseError(message, (token or self.token).offset)

    # Structure

    def file(self) -> None:
        """All of the text."""
        while self.token.kind in ("hash", "bang"):
            self.take()
            self.expect("=")
            self.attribute()
        self.declarations("end of file")
        for name, offset in self.calls:
            if name not in self.symbols:
                raise ParseError(f"'{name}' does not reference a function of the module", offset)

    def declarations(self, end: str) -> None:
        """Modules and functions, up to a closing token that is left in place."""
        while self.token.text != end:
            if self.accept("module"):
                if self.token.kind == "symbol":
                    self.take()
                self.attributes()
                self.expect("{")
                self.declarations("}")
                self.expect("}")
            elif self.accept("func.func"):
                self.function()
            else:
                raise self.error(f"expected 'module' or 'func.func', found {self.found()}")

    def function(self) -> None:
        """A function, behind its keyword."""
        if self.token.text in ("private", "public"):
            self.take()
        name = self.symbol()
        function = Function(name)
        self.scopes = [{}]
        self.expect("(")
        while not self.accept(")"):
            if function.parameters:
                self.expect(",")
            function.parameters.append(self.parameter())
        if self.accept("->"):
            self.types()
        function.attributes = self.attributes()
        self.functions.append(function)
        if self.token.text == "{":
            function.operations = self.region({})
        self.scopes = []

    def symbol(self) -> str:
        """The name of a new function, which must be the only one of this name."""
        token = self.take()
        if token.kind != "symbol":
            raise self.error(f"expected a symbol such as @kernel, found '{token.text}'", token)
        name = token.text[1:].strip('"')
        if name in self.symbols:
            raise self.error(f"redefinition of symbol named '{name}'", token)
        self.symbols[name] = token.offset
        return name

    def parameter(self) -> str:
        """One parameter of a function or a block; its type. A declaration has types alone."""
        token = self.token if self.token.kind == "value" else None
        if token:
            self.take()
            self.expect(":")
        type_ = self.type()
        if token:
            self.define(token, [type_])
        if self.token.text == "{":
            self.dictionary()
        return type_

    def region(self, arguments: dict[str, list[str]]) -> int:
        """A region; how many operations it has. `arguments` are the values that the operation gave it."""
        opening = self.expect("{")
        self.scopes.append(dict(arguments))
        count = 0
        while not self.accept("}"):
            if self.token.kind == "end":
                raise self.error("expected '}' to close this region, found end of file", opening)
            if self.token.kind == "block":
                self.label()
            else:
                count += self.operation()
        self.scopes.pop()
        return count

    def label(self) -> None:
        """A block label, with its arguments."""
        self.take()
        if self.accept("(") and not self.accept(")"):
            self.parameter()
            while self.accept(","):
                self.parameter()
            self.expect(")")
        self.expect(":")

    # Operations

    def operation(self) -> int:
        """One operation; how many it is, with what is nested in it."""
        results: list[tuple[Token, int]] = []
        types: list[str] | None
        if self.token.kind == "value":
            results.append(self.result())
            while self.accept(","):
                results.append(self.result())
            self.expect("=")
        name = self.token
        if name.kind == "string":
            nested, types = self.generic()
        elif name.text in ("scf.for", "scf.if"):
            nested, types = self.loop() if name.text == "scf.for" else self.branch()
        elif name.kind == "id":
            nested, types = self.custom()
        else:
            raise self.error(f"expected an operation, found {self.found()}")
        wanted = sum(count for _, count in results)
        if types is not None and results and wanted != len(types):
            raise self.error(f"operation {name.text} has {len(types)} results, and {wanted} are named", name)
        at = 0
        for token, count in results:
            self.define(token, [""] * count if types is None else types[at : at + count])
            at += count
        return 1 + nested

    def result(self) -> tuple[Token, int]:
        """One name to the left of `=`, and how many results it stands for."""
        token = self.take()
        if token.kind != "value" or "#" in token.text:
            raise self.error(f"expected the name of a result, found '{token.text}'", token)
        if not self.accept(":"):
            return token, 1
        count = self.take()
        if not count.text.isdecimal() or int(count.text) < 1:
            raise self.error(f"expected how many results {token.text} stands for, found '{count.text}'", count)
        return token, int(count.text)

    def generic(self) -> tuple[int, list[str]]:
        """An operation in the generic form; how many are nested in it, and its result types."""
        name = self.take()
        self.check_name(name, name.text[1:-1])
        operands: list[tuple[Token, str]] = []
        self.expect("(")
        while not self.accept(")"):
            if operands:
                self.expect(",")
            operands.append((self.token, self.use()))
        if self.accept("<"):
            self.dictionary()
            self.expect(">")
        nested = 0
        if self.accept("("):
            nested += self.region({})
            while self.accept(","):
                nested += self.region({})
            self.expect(")")
        attributes = self.dictionary() if self.token.text == "{" else {}
        if "callee" in attributes:
            self.calls.append((attributes["callee"][1:].strip('"'), name.offset))
        self.expect(":")
        signature = self.token
        self.expect("(")
        types = [] if self.accept(")") else self.list_of_types()
        if len(types) != len(operands):
            raise self.error(f"{name.text} has {len(operands)} operands, and its signature {len(types)}", signature)
        self.check_types(operands, types)
        self.expect("->")
        return nested, self.types()

    def loop(self) -> tuple[int, list[str]]:
        """An `scf.for`; how many operations are nested in it, and its result types."""
        self.take()
        names, types = [self.binding()], []
        initial: list[tuple[Token, str]] = []
        for word in ("to", "step", ""):
            self.use()
            if word:
                self.expect(word)
        if self.accept("iter_args"):
            self.expect("(")
            while not self.accept(")"):
                if initial:
                    self.expect(",")
                names.append(self.binding())
                initial.append((self.token, self.use()))
            arrow = self.expect("->")
            types = self.types()
            if len(types) != len(initial):
                raise self.error(f"scf.for carries {len(initial)} values, and has {len(types)} types for them", arrow)
            self.check_types(initial, types)
        iv = self.type() if self.accept(":") else "index"
        arguments = {token.text: [type_] for token, type_ in zip(names, [iv, *types])}  # noqa: B905 - see elf.py
        if len(arguments) < len(names):
            raise self.error("an argument of scf.for is named twice", names[0])
        nested = self.region(arguments)
        if self.token.text == "{":
            self.dictionary()
        return nested, types

    def branch(self) -> tuple[int, list[str]]:
        """An `scf.if`; how many operations are nested in it, and its result types."""
        self.take()
        self.use()
        types = self.types() if self.accept("->") else []
        nested = self.region({})
        if self.accept("else"):
            nested += self.region({})
        if self.token.text == "{":
            self.dictionary()
        return nested, types

    def custom(self) -> tuple[int, list[str] | None]:
        """An operation in a custom form: tokens up to the end of the line.

        Returns:
            How many operations are nested in it, and its result types, where it is one that says them.
        """
        name = self.take()
        start = self.number
        self.check_name(name, name.text)
        arguments: dict[str, list[str]] = {}
        brackets: list[Token] = []
        nested = 0
        while brackets or not (self.token.opens_line or self.token.text == "}" or self.token.kind == "end"):
            token = self.token
            if token.kind == "value":
                self.binding_or_use(arguments)
            elif token.text == "{" and not brackets and not self.is_dictionary():
                nested += self.region(arguments)
                if self.token.text == "else":
                    self.take()
            elif token.text == "{":
                self.dictionary()
            else:
                self.take()
                if token.kind == "symbol" and name.text.endswith("call"):
                    self.calls.append((token.text[1:].strip('"'), token.offset))
                if token.kind == "punctuation":
                    self.balance(brackets, token)
        words = [token.text for token in self.tokens[start : self.number]]
        if name.text != "arith.constant" or ":" not in words:
            return nested, None
        return nested, ["".join(words[len(words) - words[::-1].index(":") :])]

    def binding_or_use(self, arguments: dict[str, list[str]]) -> None:
        """A value inside a custom form: `%name =` names a region's argument, any other is a use."""
        if self.tokens[self.number + 1].text == "=":
            arguments[self.binding().text] = [""]
        else:
            self.use()

    def binding(self) -> Token:
        """`%name =`, which names an argument of a region."""
        token = self.take()
        if token.kind != "value":
            raise self.error(f"expected the name of an argument, found '{token.text}'", token)
        if self.lookup(token.text) is not None:
            raise self.error(f"redefinition of SSA value '{token.text}'", token)
        self.expect("=")
        return token

    def balance(self, brackets: list[Token], token: Token) -> None:
        """Follow the brackets of a custom form."""
        if token.text in _CLOSING:
            brackets.append(token)
        elif token.text in _CLOSING.values():
            if not brackets or _CLOSING[brackets[-1].text] != token.text:
                raise self.error(f"unbalanced '{token.text}'", token)
            brackets.pop()

    def check_types(self, values: list[tuple[Token, str]], types: list[str]) -> None:
        """Values are used with the types that they were defined with; there are as many of both."""
        for (token, defined), type_ in zip(values, types):  # noqa: B905 - see elf.py
            if defined and defined != type_:
                raise self.error(f"use of {token.text} as {type_}, but it was defined as {defined}", token)

    def check_name(self, token: Token, name: str) -> None:
        """An operation's name must be one of a known dialect; `return` and `call` are short forms."""
        dialect, dot, rest = name.partition(".")
        if name not in ("return", "call") and not (dot and rest and dialect in DIALECTS):
            raise self.error(f"unregistered operation '{name}'", token)

    # Values

    def lookup(self, name: str) -> list[str] | None:
        """The types of a value that is visible here, or `None`."""
        for scope in reversed(self.scopes):
            if name in scope:
                return scope[name]
        return None

    def define(self, token: Token, types: list[str]) -> None:
        """A new value."""
        if self.lookup(token.text) is not None:
            raise self.error(f"redefinition of SSA value '{token.text}'", token)
        self.scopes[-1][token.text] = types

    def use(self) -> str:
        """A value as an operand; its type, empty where a custom form left it unsaid."""
        token = self.take()
        if token.kind != "value":
            raise self.error(f"expected an SSA value, found '{token.text}'", token)
        name, _, number = token.text.partition("#")
        types = self.lookup(name)
        if types is None:
            raise self.error(f"use of undeclared SSA value name '{token.text}'", token)
        if int(number or 0) >= len(types):
            raise self.error(f"'{name}' has only {len(types)} results", token)
        return types[int(number or 0)]

    # Types and attributes

    def types(self) -> list[str]:
        """One type, or a list of them in parentheses."""
        if not self.accept("("):
            return [self.type()]
        return [] if self.accept(")") else self.list_of_types()

    def list_of_types(self) -> list[str]:
        """Types up to the closing parenthesis."""
        types = [self.type()]
        while self.accept(","):
            types.append(self.type())
        self.expect(")")
        return types

    def type(self) -> str:
        """One type, as text without space."""
        token = self.take()
        if token.text == "(":
            inner = [] if self.accept(")") else self.list_of_types()
            self.expect("->")
            return f"({','.join(inner)})->({','.join(self.types())})"
        if token.kind not in ("id", "bang"):
            raise self.error(f"expected a type, found '{token.text}'", token)
        return token.text + (self.balanced() if self.token.text == "<" else "")

    def balanced(self) -> str:
        """A bracket and all up to its partner, as text without space."""
        brackets: list[Token] = []
        words = []
        while True:
            token = self.take()
            words.append(token.text)
            if token.kind == "punctuation":
                self.balance(brackets, token)
            if not brackets:
                return "".join(words)

    def attributes(self) -> dict[str, str]:
        """`attributes` and a dictionary, if they are there."""
        return self.dictionary() if self.accept("attributes") else {}

    def is_dictionary(self) -> bool:
        """Whether the brace ahead opens a dictionary, and not a region."""
        key, behind = self.tokens[self.number + 1], self.tokens[min(self.number + 2, len(self.tokens) - 1)]
        return key.kind in ("id", "string") and behind.text in ("=", ",", "}")

    def dictionary(self) -> dict[str, str]:
        """An attribute dictionary; keys are unique."""
        entries: dict[str, str] = {}
        self.expect("{")
        while not self.accept("}"):
            if entries:
                self.expect(",")
            key = self.take()
            if key.kind not in ("id", "string"):
                raise self.error(f"expected the name of an attribute, found '{key.text}'", key)
            if key.text in entries:
                raise self.error(f"duplicate attribute '{key.text}'", key)
            entries[key.text] = self.attribute() if self.accept("=") else "unit"
        return entries

    def attribute(self) -> str:
        """One attribute value, as text without space."""
        token = self.token
        if token.text == "[":
            self.take()
            items = [] if self.accept("]") else [self.attribute()]
            while items and not self.accept("]"):
                self.expect(",")
                items.append(self.attribute())
            return f"[{','.join(items)}]"
        if token.text == "{":
            return str(self.dictionary())
        if token.kind in ("number", "string"):
            self.take()
            return token.text + (":" + self.type() if self.accept(":") else "")
        if token.kind in ("symbol", "hash"):
            self.take()
            return token.text + (self.balanced() if self.token.text == "<" else "")
        return self.type()
