"""ld.lld: links one relocatable device object into a device binary.

ld.lld -m aicorelinux -Ttext 0 [options] kernel.device.o -o kernel.aibin
"""

from __future__ import annotations

import sys

from . import device, knobs
from .install import Failure, cann_version, complain, read_input, write_output

OPTIONS_WITH_VALUE = ("-m", "-Ttext", "-o")


def run(arguments: list[str], fault: str) -> None:
    """Link one object.

    Raises:
        Failure: the command line, the object or a file is at fault.
    """
    options: dict[str, str] = {}
    inputs = []
    words = iter(arguments)
    for word in words:
        if word in OPTIONS_WITH_VALUE:
            options[word] = next(words, "")
        elif not word.startswith("-"):
            inputs.append(word)
    if options.get("-m") != "aicorelinux":
        raise Failure(f"ld.lld: error: not emulated: expected -m aicorelinux, found {options.get('-m')}\n")
    if len(inputs) != 1:
        raise Failure(f"ld.lld: error: expected one input file, found {len(inputs)}\n")
    if not options.get("-o"):
        raise Failure("ld.lld: error: no output file: use -o <file>\n")
    try:
        linked = device.link(read_input("ld.lld", inputs[0]), cann_version())
    except device.NotDeviceObject as error:
        raise Failure(f"ld.lld: error: {inputs[0]}: {error}\n") from error
    write_output("ld.lld", options["-o"], knobs.damage(fault, linked))


def main(arguments: list[str]) -> int:
    """The program; its exit status."""
    if "--version" in arguments:
        sys.stdout.write("LLD (emulated, aicorelinux)\n")
        return 0
    try:
        run(arguments, knobs.begin("ld.lld", arguments))
    except knobs.KnobError as error:
        complain(f"ld.lld: {error}\n")
        return 2
    except Failure as failure:
        complain(str(failure))
        return 1
    return 0
