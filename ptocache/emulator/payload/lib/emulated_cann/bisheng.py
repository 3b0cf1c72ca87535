"""bisheng: links a fat object into a shared image, and compiles an AscendC text into a device object.

    bisheng -fPIC -shared --cce-fatobj-link kernel.fatobj.o -o lib.so
    bisheng [options] --cce-aicore-only kernel.asc -o kernel.rel.o

To link, it hands the device object to the `ld.lld` beside it, as the real driver does, and puts what comes back into
the image. How it compiles is in `ascendc`. Other uses, such as compiling for the host, are not emulated.
"""

from __future__ import annotations

import os
import sys

from . import knobs
from .install import ROOT, Failure, cann_version, complain, host_machine, read_input, write_output

DEVICE_LINK_FLAGS = ("-m", "aicorelinux", "-Ttext", "0", "--no-mmap-output-file")
"""What the driver passes to the linker of the device."""


def parse(arguments: list[str]) -> tuple[str, str]:
    """The input and the output of a command line that links.

    Raises:
        Failure: it asks for something that is not emulated.
    """
    inputs = []
    flags = set()
    output = ""
    words = iter(arguments)
    for word in words:
        if word == "-o":
            output = next(words, "")
            if not output:
                raise Failure("bisheng: error: argument to '-o' is missing (expected 1 value)\n")
        elif word.startswith("-"):
            flags.add(word)
        else:
            inputs.append(word)
    if not {"-shared", "--cce-fatobj-link"} <= flags:
        raise Failure(
            "bisheng: error: not emulated: only `--cce-aicore-only` of one AscendC text, "
            "and `-shared --cce-fatobj-link` of one fat object, are\n"
        )
    if len(inputs) != 1:
        raise Failure(f"bisheng: error: expected one input file, found {len(inputs)}\n")
    if not output:
        raise Failure("bisheng: error: no output file: use -o <file>\n")
    return inputs[0], output


def link_device(device: bytes, output: str) -> bytes:
    """Link the device object with the `ld.lld` beside this program.

    Args:
        device: the relocatable object.
        output: the image to be; the files between the two programs are beside it.
    """
    import subprocess  # 15 ms, and compiling needs none of it

    source, target = (f"{output}.{os.getpid()}.{suffix}" for suffix in ("device.o", "device.aibin"))
    try:
        write_output("bisheng", source, device)
        command = [os.path.join(ROOT, "bin", "ld.lld"), *DEVICE_LINK_FLAGS, source, "-o", target]
        try:
            status = subprocess.run(command, check=False).returncode
        except OSError as error:
            raise Failure(f"bisheng: error: cannot run the linker: {command[0]}: {error.strerror}\n") from error
        if status:
            how = f"exit code {status}" if status > 0 else f"signal {-status}"
            raise Failure(f"bisheng: error: linker command failed with {how}: {command[0]}\n")
        return read_input("bisheng", target)
    finally:
        for path in (source, target):
            if os.path.lexists(path):
                os.unlink(path)


def run(arguments: list[str], fault: str) -> None:
    """Compile one text, or link one image.

    Raises:
        Failure: the command line, the input, a file or the linker is at fault.
    """
    if "--cce-aicore-only" in arguments:
        from . import ascendc  # each way costs 15 ms, and none needs the other

        ascendc.run(arguments, fault)
        return
    from . import host

    source, output = parse(arguments)
    version = cann_version()
    try:
        device = host.device_object(read_input("bisheng", source))
    except host.NotFatObject as error:
        raise Failure(f"bisheng: error: {source}: not a fat object: {error}\n") from error
    linked = host.image(link_device(device, output), device, version, host_machine())
    write_output("bisheng", output, knobs.damage(fault, linked))


def main(arguments: list[str]) -> int:
    """The program; its exit status."""
    if "--version" in arguments:
        try:
            version = cann_version()
        except Failure as failure:
            complain(str(failure))
            return 1
        sys.stdout.write(f"bisheng version {version} (emulated)\n")
        return 0
    try:
        run(arguments, knobs.begin("bisheng", arguments))
    except knobs.KnobError as error:
        complain(f"bisheng: {error}\n")
        return 2
    except Failure as failure:
        complain(str(failure))
        return 1
    return 0
