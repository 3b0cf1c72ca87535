"""ptoas: assembles MLIR text into a fat object.

    ptoas --pto-arch=a5 [options] kernel.pto -o kernel.fatobj.o

Options come in any order. Those that it does not know are accepted, as the real tool has dozens, and are part of
what it makes: another option is another binary.
"""

from __future__ import annotations

import sys

from . import knobs
from .install import Failure, cann_version, complain, host_machine, read_input, write_output

ABI = 33
"""The version that real releases are gated on (`ptoas 0.33`); the emulated one says the same."""

ARCHES = ("a2", "a3", "a5")

USAGE = """\
OVERVIEW: PTO assembler (emulated)

USAGE: ptoas [options] <input file> -o <output file>

OPTIONS:
  --pto-arch=<a2|a3|a5>    target architecture
  --pto-backend=<vpto>     code generator; the emulated install has no other
  -o <file>                output file
  --help                   show this text
  --version                show the version
"""


# Options that change what a compiler prints and nothing of what it writes.
_QUIET = ("-v", "--verbose", "-q", "--quiet")


class Command:
    """A parsed command line.

    Attributes:
        arch: the target.
        flags: every other option, in order.
        source: the input file.
        output: the output file.
    """

    def __init__(self, arguments: list[str]) -> None:
        self.arch = ""
        self.source = ""
        self.output = ""
        self.flags: list[str] = []
        words = iter(arguments)
        for word in words:
            name, equals, value = word.partition("=")
            if word == "-o" or name in ("--pto-arch", "--pto-backend"):
                if not equals:
                    value = next(words, "")
                if not value:
                    raise Failure(f"ptoas: for the {name} option: requires a value!\n")
                self._option(name, value)
            elif word in _QUIET:
                continue
            elif word.startswith("-") and word != "-":
                self.flags.append(word)
            elif self.source:
                raise Failure(f"ptoas: Too many positional arguments specified: '{self.source}', '{word}'\n")
            else:
                self.source = word
        if not self.source:
            raise Failure("ptoas: no input file\n" + USAGE)
        if not self.output:
            raise Failure("ptoas: no output file: use -o <file>\n" + USAGE)
        if self.arch not in ARCHES:
            found = f"unknown architecture '{self.arch}'" if self.arch else "no architecture"
            raise Failure(f"ptoas: error: {found}: use --pto-arch with one of {', '.join(ARCHES)}\n")

    def _option(self, name: str, value: str) -> None:
        """One option that has a value."""
        if name == "-o":
            self.output = value
        elif name == "--pto-arch":
            self.arch = value
        elif value == "vpto":
            self.flags.append(f"{name}={value}")
        else:
            raise Failure(f"ptoas: error: back end '{value}' is not emulated: use --pto-backend=vpto\n")


def run(arguments: list[str], fault: str) -> None:
    """Assemble one file.

    Raises:
        Failure: the command line, the text or a file is at fault.
    """
    from . import device, host, mlir  # 20 ms, and `ptoas --version` needs none of them

    command = Command(arguments)
    version = cann_version()
    data = read_input("ptoas", command.source)
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        where = f"{command.source}: error: byte {error.start} is not UTF-8"
        raise Failure(f"{where}\n") from error
    try:
        module = mlir.parse(text)
    except mlir.ParseError as error:
        raise Failure(error.render(command.source, text)) from error
    compiled = device.assemble(module, command.arch, command.flags, version)
    fat = host.fat_object(compiled, version, host_machine())
    write_output("ptoas", command.output, knobs.damage(fault, fat))


def main(arguments: list[str]) -> int:
    """The program; its exit status."""
    if "--version" in arguments:
        sys.stdout.write(f"ptoas 0.{ABI} (emulated, abi {ABI})\n")
        return 0
    if "--help" in arguments:
        sys.stdout.write(USAGE)
        return 0
    try:
        run(arguments, knobs.begin("ptoas", arguments))
    except knobs.KnobError as error:
        complain(f"ptoas: {error}\n")
        return 2
    except Failure as failure:
        complain(str(failure))
        return 1
    return 0
