"""The two ELF files for the NPU: the relocatable object that ptoas or bisheng makes, and what ld.lld links of it.

Machine, flags, types and the names of the sections were read off images that bisheng linked. What the sections
hold is the emulator's own: code that is a stream of bytes, and small tables that name the kernels and the sizes of
their arguments.
"""

from __future__ import annotations

import hashlib
import struct

from . import elf

TYPE_CHECKING = False  # as `typing` has it; only ptoas needs the reader of MLIR, and to compile it takes 20 ms
if TYPE_CHECKING:
    from .mlir import Function, Module

MACHINE = 0x1029
FLAGS = 0x940000
"""`e_machine` and `e_flags` of device files, read off images that bisheng linked for one a5 target."""

CODE_BASE, CODE_STEP, CODE_ALIGN = 12 << 10, 128, 256
"""Code bytes of a kernel, and more an operation: small kernels come out at 16 to 32 KiB, as small real ones do."""

STACK_BYTES = 32 << 10
"""The stack that every kernel records. Any constant would do; the runtime of the real thing reads one there."""

_NOTE_OWNER = b"ascend\0\0"


class NotDeviceObject(ValueError):
    """Some bytes are not a relocatable device object; the message says why."""


def kernel_symbols(function: Function) -> list[str]:
    """The symbols that a function becomes: one, or one a core type for a kernel that uses both."""
    if "pto.mixed" in function.attributes:
        return [function.name + "_mix_aic", function.name + "_mix_aiv"]
    return [function.name]


def assemble(module: Module, arch: str, flags: list[str], version: str) -> bytes:
    """Make the relocatable object.

    Args:
        module: the parsed text. Only its words count, so neither comments nor white space reach the code.
        arch: the target, such as `a5`.
        flags: the further options, in order.
        version: of the CANN install.
    """
    parts = ("ptocache emulated code 1", version, arch, *flags, "", *module.words)
    helpers = sum(function.operations for function in module.functions if not function.is_kernel)
    kernels = [
        (name, function.operations + helpers, 8 * len(function.parameters))
        for function in module.functions
        if function.is_kernel
        for name in kernel_symbols(function)
    ]
    return compile_kernels([part.encode("utf-8", "surrogateescape") for part in parts], kernels, version)


def compile_kernels(parts: list[bytes], kernels: list[tuple[str, int, int]], version: str) -> bytes:
    """Make a relocatable object.

    Args:
        parts: all that the code depends on.
        kernels: of each symbol its name, how many operations its code has, and how many bytes its arguments.
        version: of the CANN install.
    """
    seed = hashlib.sha256()
    for part in parts:
        seed.update(len(part).to_bytes(8, "little") + part)
    code = bytearray()
    placed = []
    for name, operations, arguments in kernels:
        size = elf.align_up(CODE_BASE + CODE_STEP * operations, CODE_ALIGN)
        placed.append((name, len(code), size, arguments))
        code += hashlib.shake_256(seed.digest() + name.encode()).digest(size)
    comment = b"ptocache emulated CANN " + version.encode() + b"\0"
    return _write(elf.ET_REL, bytes(code), placed, comment)


def link(data: bytes, version: str) -> bytes:
    """Link one relocatable object into an executable device binary.

    Raises:
        NotDeviceObject: the object is not one that `compile_kernels` made.
    """
    try:
        type_, machine, _, sections = elf.read(data)
        symbols = elf.read_symbols(sections)
    except elf.ElfError as error:
        raise NotDeviceObject(str(error)) from error
    if (type_, machine) != (elf.ET_REL, MACHINE):
        raise NotDeviceObject(f"not a relocatable device object: ELF type {type_}, machine {machine:#x}")
    contents = {section.name: section.data for section in sections}
    missing = {".text", ".comment", "__CCE_KernelArgSize"} - contents.keys()
    if missing:
        raise NotDeviceObject(f"the device object has no section {min(missing)}")
    sizes = struct.unpack(f"<{len(contents['__CCE_KernelArgSize']) // 4}I", contents["__CCE_KernelArgSize"])
    found = [symbol for symbol in symbols if symbol.type == elf.FUNC]
    kernels = [(found[i].name, found[i].value, found[i].size, sizes[i]) for i in range(len(found))]
    comment = contents[".comment"] + b"linker: ptocache emulated CANN " + version.encode() + b"\0"
    return _write(elf.ET_EXEC, contents[".text"], kernels, comment)


def _write(type_: int, code: bytes, kernels: list[tuple[str, int, int, int]], comment: bytes) -> bytes:
    """Lay a device file out; the relocatable and the linked one have the same sections."""
    strings = elf.StringTable()
    meta = b"".join(struct.pack("<IIQQQ", strings.add(k[0]), 0, k[1], k[2], k[3]) for k in kernels)
    sections = [
        elf.Section(".text", code, flags=elf.ALLOC | elf.EXEC, align=CODE_ALIGN),
        elf.Section("__CCE_KernelMetaData", meta, align=8),
        elf.Section(".ascend.stack.size.record", struct.pack("<Q", STACK_BYTES) * len(kernels), align=8),
        elf.Section("__CCE_KernelArgSize", b"".join(struct.pack("<I", k[3]) for k in kernels), align=4),
    ]
    for name, _, size, arguments in kernels:
        sections.append(elf.Section(f".ascend.meta.{name}", _note(size, arguments), elf.NOTE, align=4))
    last_note = sections[-1].name
    symbols = [elf.Symbol(name, ".text", at, size, elf.FUNC) for name, at, size, _ in kernels]
    table, first_global = elf.symbol_table(symbols, [section.name for section in sections], strings)
    sections += [
        elf.Section(".comment", comment, flags=elf.MERGE | elf.STRINGS, entsize=1),
        elf.Section(".symtab", table, elf.SYMTAB, align=8, link=".strtab", info=first_global, entsize=24),
        elf.Section(".shstrtab", b"", elf.STRTAB),
        elf.Section(".strtab", bytes(strings), elf.STRTAB),
    ]
    sections[-2].data = elf.section_names(sections)
    segments = []
    if type_ == elf.ET_EXEC:
        segments = [
            elf.Segment(elf.PT_LOAD, 5, ".text", align=CODE_ALIGN),
            elf.Segment(elf.PT_NOTE, 4, f".ascend.meta.{kernels[0][0]}", last_note, align=4),
            elf.Segment(elf.PT_GNU_STACK, 6),
        ]
    elf.layout(sections, len(segments))
    return elf.write(type_, MACHINE, sections, segments, FLAGS)


def _note(size: int, arguments: int) -> bytes:
    """An ELF note about one kernel: how large its code and its arguments are."""
    description = struct.pack("<QQ", size, arguments)
    return struct.pack("<III", len(_NOTE_OWNER) - 1, len(description), 1) + _NOTE_OWNER + description
