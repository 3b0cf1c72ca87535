"""The two ELF files for the host: the fat object that ptoas writes, and the image that bisheng links.

Both carry the device's file in sections of their own. Their names, types, flags and alignment, the record and the
number of sections (31) were read off images that bisheng linked. The image is a proper shared library of the host:
the dynamic linker loads it, and finds nothing to run in it.
"""

from __future__ import annotations

import hashlib
import struct

from . import elf

BINARY, RELOCATABLE, RECORD = ".aicore_binary", "__aicore_rel_binary", ".aicoreBinRec"

RECORD_MAGIC = 0x43554245
"""The first word of the record, the bytes `EBUC`; the size of the device file is a u64 at byte 16 of 24."""

DEVICE_ALIGN = 256
PAGE = {"x86_64": 0x1000, "aarch64": 0x10000}
"""The page size that images are linked for: the largest that a kernel of that machine may use."""

_MACHINE = {"x86_64": elf.EM_X86_64, "aarch64": elf.EM_AARCH64}
_RETURN = {"x86_64": b"\xc3", "aarch64": b"\xc0\x03\x5f\xd6"}

_LIBC, _LIBC_VERSION = "libc.so.6", "GLIBC_2.17"
"""What the image needs. 2.17 is the first version for AArch64, and x86-64 has it too."""

_DATA = elf.ALLOC | elf.WRITE


class NotFatObject(ValueError):
    """Some bytes are not a fat object; the message says why."""


def record(size: int) -> bytes:
    """The 24 bytes that tell the runtime how large the device file is."""
    return struct.pack("<IIQQ", RECORD_MAGIC, 1, 0, size)


def fat_object(device: bytes, version: str, machine: str) -> bytes:
    """Wrap a relocatable device object in a relocatable object of the host."""
    sections = [
        elf.Section(".text", b"", flags=elf.ALLOC | elf.EXEC, align=4),
        elf.Section(RELOCATABLE, device, flags=elf.ALLOC, align=DEVICE_ALIGN),
        elf.Section(RECORD, record(len(device)), flags=elf.ALLOC, align=8),
        elf.Section(".comment", _comment(version), flags=elf.MERGE | elf.STRINGS, entsize=1),
        elf.Section(".note.GNU-stack", b""),
    ]
    strings = elf.StringTable()
    symbols = [
        elf.Symbol("kernel.pto", "*ABS*", type_=elf.FILE, binding=elf.LOCAL),
        elf.Symbol("__aicore_rel_binary_start", RELOCATABLE, 0, len(device), elf.OBJECT),
        elf.Symbol("__aicore_rel_binary_record", RECORD, 0, 24, elf.OBJECT),
    ]
    table, first_global = elf.symbol_table(symbols, [section.name for section in sections], strings)
    sections += [
        elf.Section(".symtab", table, elf.SYMTAB, align=8, link=".strtab", info=first_global, entsize=24),
        elf.Section(".strtab", bytes(strings), elf.STRTAB),
        elf.Section(".shstrtab", b"", elf.STRTAB),
    ]
    sections[-1].data = elf.section_names(sections)
    elf.layout(sections, 0)
    return elf.write(elf.ET_REL, _MACHINE[machine], sections)


def device_object(fat: bytes) -> bytes:
    """The relocatable device object inside a fat object.

    Raises:
        NotFatObject: there is none, or what says how large it is disagrees.
    """
    try:
        type_, _, _, sections = elf.read(fat)
    except elf.ElfError as error:
        raise NotFatObject(str(error)) from error
    contents = {section.name: section.data for section in sections}
    if type_ != elf.ET_REL:
        raise NotFatObject(f"expected a relocatable object, found ELF type {type_}")
    if RELOCATABLE not in contents or RECORD not in contents:
        raise NotFatObject("it carries no device object")
    if contents[RECORD] != record(len(contents[RELOCATABLE])):
        raise NotFatObject(f"{RECORD} does not describe the device object")
    return contents[RELOCATABLE]


def image(binary: bytes, device: bytes, version: str, machine: str) -> bytes:
    """Make the shared image.

    Args:
        binary: the linked device binary, for `.aicore_binary`.
        device: the relocatable device object that it was linked from.
        version: of the CANN install.
        machine: `x86_64` or `aarch64`.
    """
    exported = [
        elf.Symbol("__aicore_binary_start", BINARY, 0, len(binary), elf.OBJECT),
        elf.Symbol("__aicore_binary_record", RECORD, 0, 24, elf.OBJECT),
    ]
    file = elf.Symbol("kernel.pto", "*ABS*", type_=elf.FILE, binding=elf.LOCAL)
    dynamic_strings, strings = elf.StringTable(), elf.StringTable()
    sections = [
        elf.Section(".note.gnu.build-id", _build_id(binary, device, version), elf.NOTE, elf.ALLOC, align=4),
        elf.Section(".gnu.hash", _gnu_hash(exported), elf.GNU_HASH, elf.ALLOC, align=8, link=".dynsym"),
        elf.Section(".dynsym", b"", elf.DYNSYM, elf.ALLOC, align=8, link=".dynstr", info=1, entsize=24),
        elf.Section(".dynstr", b"", elf.STRTAB, elf.ALLOC),
        elf.Section(".gnu.version", _versions(exported), elf.GNU_VERSYM, elf.ALLOC, align=2, link=".dynsym", entsize=2),
        elf.Section(
            ".gnu.version_r",
            _version_needs(dynamic_strings),
            elf.GNU_VERNEED,
            elf.ALLOC,
            align=8,
            link=".dynstr",
            info=1,
        ),
        elf.Section(".rela.dyn", b"", elf.RELA, elf.ALLOC, align=8, link=".dynsym", entsize=24),
        elf.Section(".rela.plt", b"", elf.RELA, elf.ALLOC, align=8, link=".dynsym", entsize=24),
        elf.Section(".rodata", _comment(version), flags=elf.ALLOC),
        elf.Section(BINARY, binary, flags=elf.ALLOC, align=DEVICE_ALIGN),
        elf.Section(RELOCATABLE, device, flags=elf.ALLOC, align=DEVICE_ALIGN),
        elf.Section(RECORD, record(len(binary)), flags=elf.ALLOC, align=8),
        elf.Section(".eh_frame_hdr", bytes(12), flags=elf.ALLOC, align=4),
        elf.Section(".eh_frame", bytes(4), flags=elf.ALLOC, align=8),
        elf.Section(".init", _RETURN[machine], flags=elf.ALLOC | elf.EXEC, align=4),
        elf.Section(".plt", b"", flags=elf.ALLOC | elf.EXEC, align=16),
        elf.Section(".text", b"", flags=elf.ALLOC | elf.EXEC, align=16),
        elf.Section(".fini", _RETURN[machine], flags=elf.ALLOC | elf.EXEC, align=4),
        elf.Section(".init_array", b"", elf.INIT_ARRAY, _DATA, align=8, entsize=8),
        elf.Section(".fini_array", b"", elf.FINI_ARRAY, _DATA, align=8, entsize=8),
        elf.Section(".data.rel.ro", b"", flags=_DATA, align=8),
        elf.Section(".dynamic", b"", elf.DYNAMIC, _DATA, align=8, link=".dynstr", entsize=16),
        elf.Section(".got", b"", flags=_DATA, align=8, entsize=8),
        elf.Section(".got.plt", bytes(24), flags=_DATA, align=8, entsize=8),
        elf.Section(".data", b"", flags=_DATA, align=8),
        elf.Section(".bss", b"", elf.NOBITS, _DATA, align=1),
        elf.Section(".comment", _comment(version), flags=elf.MERGE | elf.STRINGS, entsize=1),
        elf.Section(".symtab", b"", elf.SYMTAB, align=8, link=".strtab", info=2, entsize=24),
        elf.Section(".strtab", b"", elf.STRTAB),
        elf.Section(".shstrtab", b"", elf.STRTAB),
    ]
    sections[-1].data = elf.section_names(sections)
    by_name = {section.name: section for section in sections}
    page = PAGE[machine]
    segments = [
        elf.Segment(elf.PT_LOAD, 4, ".note.gnu.build-id", ".eh_frame", page, headers=True),
        elf.Segment(elf.PT_LOAD, 5, ".init", ".fini", page),
        elf.Segment(elf.PT_LOAD, 6, ".init_array", ".bss", page),
        elf.Segment(elf.PT_DYNAMIC, 6, ".dynamic", align=8),
        elf.Segment(elf.PT_NOTE, 4, ".note.gnu.build-id", align=4),
        elf.Segment(elf.PT_GNU_STACK, 6),
    ]

    # Addresses depend on sizes alone. So the tables that hold addresses are made twice: to know their sizes, and,
    # when all is laid out, to hold the right values.
    for _ in range(2):
        names = [section.name for section in sections]
        placed = [_placed(symbol, by_name) for symbol in exported]
        by_name[".dynsym"].data, _first = elf.symbol_table(placed, names, dynamic_strings)
        by_name[".dynstr"].data = bytes(dynamic_strings)
        by_name[".symtab"].data, _first = elf.symbol_table([file, *placed], names, strings)
        by_name[".strtab"].data = bytes(strings)
        by_name[".dynamic"].data = _dynamic(by_name, dynamic_strings)
        by_name[".got.plt"].data = struct.pack("<QQQ", by_name[".dynamic"].address, 0, 0)
        by_name[".eh_frame_hdr"].data = _eh_frame_header(by_name)
        elf.layout(sections, len(segments), page)
    return elf.write(elf.ET_DYN, _MACHINE[machine], sections, segments)


def _comment(version: str) -> bytes:
    """What says in every host file that it is no real one."""
    return b"ptocache emulated CANN " + version.encode() + b"\0"


def _build_id(binary: bytes, device: bytes, version: str) -> bytes:
    """The build-id note. It names the contents, as a linker's does."""
    digest = hashlib.sha256(b"%d:" % len(binary) + binary + device + version.encode()).digest()[:20]
    return struct.pack("<III", 4, len(digest), 3) + b"GNU\0" + digest


def _gnu_hash(symbols: list[elf.Symbol]) -> bytes:
    """The hash table of the exported symbols: one bucket, and a filter that lets every name through."""
    hashes = []
    for symbol in symbols:
        value = 5381
        for byte in symbol.name.encode():
            value = (value * 33 + byte) & 0xFFFFFFFF
        hashes.append(value & ~1)
    hashes[-1] |= 1  # the last of a bucket
    return struct.pack(f"<IIIIQI{len(hashes)}I", 1, 1, 1, 0, 0xFFFFFFFFFFFFFFFF, 1, *hashes)


def _versions(symbols: list[elf.Symbol]) -> bytes:
    """The version of every dynamic symbol: none for the null one, the global one for the others."""
    return struct.pack(f"<{1 + len(symbols)}H", 0, *[1] * len(symbols))


def _version_needs(strings: elf.StringTable) -> bytes:
    """The versions that the image needs: one, of libc."""
    value = 0
    for byte in _LIBC_VERSION.encode():
        value = (value << 4) + byte
        high = value & 0xF0000000
        value = (value ^ high >> 24) & ~high
    need = struct.pack("<HHIII", 1, 1, strings.add(_LIBC), 16, 0)
    return need + struct.pack("<IHHII", value, 0, 2, strings.add(_LIBC_VERSION), 0)


def _placed(symbol: elf.Symbol, by_name: dict[str, elf.Section]) -> elf.Symbol:
    """A symbol at its section's address."""
    return elf.Symbol(symbol.name, symbol.section, by_name[symbol.section].address, symbol.size, symbol.type)


def _dynamic(by_name: dict[str, elf.Section], strings: elf.StringTable) -> bytes:
    """The dynamic section: what the dynamic linker reads first."""
    entries = [
        (1, strings.add(_LIBC)),  # NEEDED
        (12, by_name[".init"].address),  # INIT
        (13, by_name[".fini"].address),  # FINI
        (0x6FFFFEF5, by_name[".gnu.hash"].address),  # GNU_HASH
        (5, by_name[".dynstr"].address),  # STRTAB
        (10, len(by_name[".dynstr"].data)),  # STRSZ
        (6, by_name[".dynsym"].address),  # SYMTAB
        (11, elf.SYMBOL_SIZE),  # SYMENT
        (0x6FFFFFF0, by_name[".gnu.version"].address),  # VERSYM
        (0x6FFFFFFE, by_name[".gnu.version_r"].address),  # VERNEED
        (0x6FFFFFFF, 1),  # VERNEEDNUM
        (0, 0),  # NULL
    ]
    return b"".join(struct.pack("<QQ", tag, value) for tag, value in entries)


def _eh_frame_header(by_name: dict[str, elf.Section]) -> bytes:
    """The search table of `.eh_frame`: no entries, as there is no code to unwind."""
    distance = by_name[".eh_frame"].address - by_name[".eh_frame_hdr"].address - 4
    return struct.pack("<BBBBiI", 1, 0x1B, 0x03, 0x3B, distance, 0)
