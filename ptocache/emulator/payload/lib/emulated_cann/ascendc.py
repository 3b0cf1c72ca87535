"""Compiles an AscendC text into a relocatable device object, as `bisheng --cce-aicore-only` does.

    bisheng -O2 -std=c++20 --npu-arch=dav-3510 -I<dir> [options] --cce-aicore-only kernel.asc -o kernel.rel.o

Its includes are followed and its kernels are found as `preprocessor`, `search` and `kernels` tell. What comes out
depends on the bytes of the text and of every file that it includes, comments among them, on the options, and on the
version of the install: another one of these is another object. It does not depend on where any file is, and no path
and no time is in it.

Options that are not known are accepted, as clang has hundreds, and count in their order. Those that only say where
something is, or what else to write, do not count: `-I` and its like, `-o`, the `-M` family, the maps of path prefixes,
`-v` and `-c`. `-MD` and `-MMD`, with `-MF`, `-MT`, `-MQ` and `-MP`, write a dependency file.
"""

from __future__ import annotations

import os
import re

from . import depfile, device, kernels, knobs
from .install import Failure, cann_version, write_output
from .preprocessor import Unit
from .search import Search

SUFFIXES = (".asc", ".cce", ".cpp")
"""The files that are taken for AscendC without a `-x` that says so."""

# Options whose value is part of their word, or the next one.
_JOINED = ("-I", "-iquote", "-isystem", "-idirafter", "-include", "-D", "-U", "-x", "-L", "-MF", "-MT", "-MQ")
_SEPARATE = ("-o", "-mllvm", "-target", "-Xclang", "-Xlinker", "-Xassembler", "-Xpreprocessor")

# Those that change nothing of the object, but for what they lead to.
_PLACES = ("-I", "-iquote", "-isystem", "-idirafter", "-include", "-L", "-o")
_QUIET = ("-c", "-v", "--verbose", "-MD", "-MMD", "-MF", "-MT", "-MQ", "-MP", "-MG", "-MV")
_PREFIX_MAPS = ("-ffile-prefix-map=", "-fdebug-prefix-map=", "-fmacro-prefix-map=", "-fdebug-compilation-dir=")

_OTHER_OUTPUT = ("-E", "-S", "-M", "-MM", "-emit-llvm", "-fsyntax-only")

_ARCH_OPTIONS = ("--npu-arch=", "--cce-aicore-arch=")
_ARCH = re.compile(r"dav-[a-z]?[0-9]+(-[a-z]+)?")
"""What the targets are called: dav-2201, dav-3510, dav-c220-vec."""


class Command:
    """A parsed command line.

    Attributes:
        source: the text.
        output: the object.
        values: of every option with a value, its values in order.
        flags: the options without one.
        counted: the options that the object depends on, in order.
    """

    def __init__(self, arguments: list[str]) -> None:
        self.values: dict[str, list[str]] = {}
        self.flags: list[str] = []
        self.counted: list[str] = []
        inputs = []
        words = iter(arguments)
        for word in words:
            joined = next((name for name in _JOINED if word.startswith(name)), "")
            if joined or word in _SEPARATE:
                name = joined or word
                value = word[len(name) :] or next(words, "")
                if not value:
                    raise Failure(f"bisheng: error: argument to '{name}' is missing (expected 1 value)\n")
                self._option(name, value)
            elif word.startswith("-") and word != "-":
                self._flag(word)
            else:
                inputs.append(word)
        if len(inputs) != 1:
            found = f"expected one input file, found {len(inputs)}" if inputs else "no input files"
            raise Failure(f"bisheng: error: {found}\n")
        self.source = inputs[0]
        name, suffix = os.path.splitext(os.path.basename(self.source))
        if suffix not in SUFFIXES and "-x" not in self.values:
            raise Failure(f"bisheng: error: not emulated: '{self.source}' is no AscendC text: use *.asc, or -x asc\n")
        self.output = self.values.get("-o", [name + ".o"])[-1]

    def _option(self, name: str, value: str) -> None:
        """One option that has a value."""
        self.values.setdefault(name, []).append(value)
        if name not in _PLACES and name not in _QUIET:
            self.counted.append(f"{name} {value}")

    def _flag(self, word: str) -> None:
        """One option without a value, or with one behind an equals sign."""
        self.flags.append(word)
        if word in _OTHER_OUTPUT:
            raise Failure(f"bisheng: error: not emulated: {word} with --cce-aicore-only\n")
        option, equals, arch = word.partition("=")
        if option + equals in _ARCH_OPTIONS and not _ARCH.fullmatch(arch):
            raise Failure(f"bisheng: error: invalid value '{arch}' in '{word}': expected one such as dav-3510\n")
        if word not in _QUIET and not word.startswith(_PREFIX_MAPS):
            self.counted.append(word)

    def all(self, *names: str) -> list[str]:
        """The values of some options, those of each in order."""
        return [value for name in names for value in self.values.get(name, [])]

    @property
    def search(self) -> Search:
        """Where headers are looked for."""
        return Search(self.all("-iquote"), self.all("-I"), self.all("-isystem"), self.all("-idirafter"))


def run(arguments: list[str], fault: str) -> None:
    """Compile one text.

    Raises:
        Failure: the command line, the text or a file is at fault.
    """
    command = Command(arguments)
    version = cann_version()
    unit = Unit(command.source, command.search, command.all("-D"), command.all("-include"))
    operations = sum(source.cleaned.count(";") for source in unit.sources)
    found = [
        (symbol, operations, 8 * kernel.parameters)
        for kernel in kernels.find(unit.sources)
        for symbol in kernel.symbols
    ]
    parts = [b"ptocache emulated AscendC 1", os.fsencode(version), *map(os.fsencode, command.counted), b""]
    compiled = device.compile_kernels([*parts, *unit.contents], found, version)
    _write_dependencies(command, unit)
    write_output("bisheng", command.output, knobs.damage(fault, compiled))


def _write_dependencies(command: Command, unit: Unit) -> None:
    """Write the dependency file, if one was asked for."""
    asked = [flag for flag in command.flags if flag in ("-MD", "-MMD")]
    if not asked:
        return
    named = command.values.get("-MF")
    path = named[-1] if named else os.path.splitext(command.output)[0] + ".d"
    targets = command.all("-MT") + [depfile.escaped(target) for target in command.all("-MQ")]
    files = [name for name, system in unit.dependencies.items() if asked[-1] == "-MD" or not system]
    text = depfile.write(targets or [depfile.escaped(command.output)], files, phony="-MP" in command.flags)
    write_output("bisheng", path, os.fsencode(text))
