"""ELF64 little-endian files: a writer that lays a list of sections out, and a reader that gives them back.

The writer gives every section a file offset in list order. Where a section has an address, the offset is
congruent to it modulo the page size, which is what a loader needs to map the file.
"""

from __future__ import annotations

import struct

ET_REL, ET_EXEC, ET_DYN = 1, 2, 3
EM_X86_64, EM_AARCH64 = 62, 183
PROGBITS, SYMTAB, STRTAB, RELA, DYNAMIC, NOTE, NOBITS, DYNSYM = 1, 2, 3, 4, 6, 7, 8, 11
INIT_ARRAY, FINI_ARRAY = 14, 15
GNU_HASH, GNU_VERNEED, GNU_VERSYM = 0x6FFFFFF6, 0x6FFFFFFE, 0x6FFFFFFF
WRITE, ALLOC, EXEC, MERGE, STRINGS, INFO_LINK = 0x1, 0x2, 0x4, 0x10, 0x20, 0x40
PT_LOAD, PT_DYNAMIC, PT_NOTE, PT_GNU_STACK = 1, 2, 4, 0x6474E551
LOCAL, GLOBAL = 0, 1
NOTYPE, OBJECT, FUNC, SECTION, FILE = 0, 1, 2, 3, 4
ABS = 0xFFF1

HEADER_SIZE, SEGMENT_SIZE, SECTION_SIZE, SYMBOL_SIZE = 64, 56, 64, 24

_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SEGMENT = struct.Struct("<IIQQQQQQ")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")


class ElfError(ValueError):
    """Some bytes are not an ELF file that this module can read; the message says why."""


class Section:
    """One section: its header fields by their usual names, and its bytes.

    `link` names another section; `offset` and `size` are known once the file is laid out, or was read.
    """

    __slots__ = ("address", "align", "data", "entsize", "flags", "info", "link", "name", "offset", "size", "type")

    def __init__(
        self,
        name: str,
        data: bytes,
        type_: int = PROGBITS,
        flags: int = 0,
        *,
        align: int = 1,
        link: str = "",
        info: int = 0,
        entsize: int = 0,
        address: int = 0,
    ) -> None:
        self.name = name
        self.data = data
        self.type = type_
        self.flags = flags
        self.align = align
        self.link = link
        self.info = info
        self.entsize = entsize
        self.address = address
        self.offset = 0
        self.size = len(data)


class Symbol:
    """One symbol. `section` is a section's name, empty for undefined, or `*ABS*`."""

    __slots__ = ("binding", "name", "section", "size", "type", "value")

    def __init__(
        self, name: str, section: str = "", value: int = 0, size: int = 0, type_: int = NOTYPE, binding: int = GLOBAL
    ) -> None:
        self.name = name
        self.section = section
        self.value = value
        self.size = size
        self.type = type_
        self.binding = binding


class Segment:
    """One program header: the sections from `first` to `last`, by name, or an empty range.

    With `headers` it starts at the beginning of the file, so that the loaded program finds the ELF header.
    """

    __slots__ = ("align", "first", "flags", "headers", "last", "type")

    def __init__(
        self, type_: int, flags: int, first: str = "", last: str = "", align: int = 0, *, headers: bool = False
    ) -> None:
        self.headers = headers
        self.type = type_
        self.flags = flags
        self.first = first
        self.last = last or first
        self.align = align


class StringTable:
    """The bytes of a string table, each string once."""

    def __init__(self) -> None:
        self._offsets = {"": 0}
        self._bytes = bytearray(1)

    def add(self, text: str) -> int:
        """The offset of a string in the table."""
        if text not in self._offsets:
            self._offsets[text] = len(self._bytes)
            self._bytes += text.encode() + b"\0"
        return self._offsets[text]

    def __bytes__(self) -> bytes:
        return bytes(self._bytes)


def align_up(value: int, align: int) -> int:
    """The first multiple of `align` that is not below `value`."""
    return (value + align - 1) // align * align


def symbol_table(symbols: list[Symbol], sections: list[str], strings: StringTable) -> tuple[bytes, int]:
    """Encode a symbol table.

    Args:
        symbols: the symbols, local ones first.
        sections: the names of the file's sections in order, without the null section.
        strings: the table that takes the names.

    Returns:
        The bytes, and the index of the first global symbol, which is the table's `sh_info`.
    """
    index = {"": 0, "*ABS*": ABS}
    for number, name in enumerate(sections, start=1):
        index.setdefault(name, number)
    rows = [bytes(SYMBOL_SIZE)]
    first_global = 1
    for symbol in symbols:
        first_global += symbol.binding == LOCAL
        info = symbol.binding << 4 | symbol.type
        row = (strings.add(symbol.name), info, 0, index[symbol.section], symbol.value, symbol.size)
        rows.append(_SYMBOL.pack(*row))
    return b"".join(rows), first_global


def layout(sections: list[Section], segments: int, page: int = 1) -> int:
    """Give every section its file offset.

    Args:
        sections: the sections, in file order; `offset` and, where it is to follow the offset, `address` are set.
        segments: how many program headers there are.
        page: where a change of permissions starts a new page, in bytes; 1 for a file that is not mapped.

    Returns:
        The offset behind the last section.
    """
    offset = HEADER_SIZE + SEGMENT_SIZE * segments
    permissions = ALLOC
    for section in sections:
        if section.flags & ALLOC and section.flags & (ALLOC | WRITE | EXEC) != permissions:
            permissions = section.flags & (ALLOC | WRITE | EXEC)
            offset = align_up(offset, page)
        offset = align_up(offset, section.align)
        section.offset = offset
        section.size = len(section.data)
        if page > 1 and section.flags & ALLOC:
            section.address = offset
        if section.type != NOBITS:
            offset += section.size
    return offset


def write(
    type_: int, machine: int, sections: list[Section], segments: list[Segment] | None = None, flags: int = 0
) -> bytes:
    """Write an ELF file whose sections have been laid out.

    Args:
        type_: `ET_REL`, `ET_EXEC` or `ET_DYN`.
        machine: `e_machine`.
        sections: all sections but the null one and `.shstrtab`'s contents, which are made here.
        segments: the program headers.
        flags: `e_flags`.
    """
    segments = segments or []
    names = StringTable()
    offsets = [names.add(section.name) for section in sections]
    index = {section.name: number for number, section in reversed(list(enumerate(sections, start=1)))}
    table = sections[index[".shstrtab"] - 1]
    if table.data != bytes(names):
        raise AssertionError(".shstrtab was not made by section_names()")
    end = max(section.offset + (section.size if section.type != NOBITS else 0) for section in sections)
    headers_at = align_up(end, 8)
    out = bytearray(headers_at)
    identity = b"\x7fELF\x02\x01\x01".ljust(16, b"\0")
    out[:HEADER_SIZE] = _HEADER.pack(
        *(identity, type_, machine, 1, 0, HEADER_SIZE if segments else 0, headers_at, flags, HEADER_SIZE),
        *(SEGMENT_SIZE if segments else 0, len(segments), SECTION_SIZE, len(sections) + 1, index[".shstrtab"]),
    )
    for number, segment in enumerate(segments):
        at = HEADER_SIZE + SEGMENT_SIZE * number
        out[at : at + SEGMENT_SIZE] = _segment(segment, sections, index)
    for section in sections:
        if section.type != NOBITS:
            out[section.offset : section.offset + section.size] = section.data
    out += bytes(SECTION_SIZE)
    for name, section in zip(offsets, sections):  # noqa: B905 - `strict` needs Python 3.10, a tool runs on 3.8
        link = index[section.link] if section.link else 0
        out += _SECTION.pack(
            *(name, section.type, section.flags, section.address, section.offset, section.size),
            *(link, section.info, section.align, section.entsize),
        )
    return bytes(out)


def section_names(sections: list[Section]) -> bytes:
    """The contents of `.shstrtab` for these sections."""
    names = StringTable()
    for section in sections:
        names.add(section.name)
    return bytes(names)


def _segment(segment: Segment, sections: list[Section], index: dict[str, int]) -> bytes:
    """One program header: the range of its sections, in the file and in memory."""
    if not segment.first:
        return _SEGMENT.pack(segment.type, segment.flags, 0, 0, 0, 0, 0, segment.align)
    first = sections[index[segment.first] - 1]
    last = sections[index[segment.last] - 1]
    offset, address = first.offset, first.address
    if segment.headers:
        offset = address = 0
    in_file = last.offset + (last.size if last.type != NOBITS else 0) - offset
    in_memory = last.offset + last.size - offset
    return _SEGMENT.pack(segment.type, segment.flags, offset, address, address, in_file, in_memory, segment.align)


def read(data: bytes) -> tuple[int, int, int, list[Section]]:
    """Read a file's type, machine, flags and sections (without the null section).

    Raises:
        ElfError: this is no ELF64 little-endian file, or it is cut short.
    """
    if data[:7] != b"\x7fELF\x02\x01\x01" or len(data) < HEADER_SIZE:
        raise ElfError("not an ELF64 little-endian file")
    fields = _HEADER.unpack_from(data)
    type_, machine, headers_at, flags = fields[1], fields[2], fields[6], fields[7]
    count, names_at = fields[12], fields[13]
    if headers_at + SECTION_SIZE * count > len(data) or not 0 < names_at < count:
        raise ElfError("the section table is cut short")
    rows = [_SECTION.unpack_from(data, headers_at + SECTION_SIZE * number) for number in range(count)]
    names = data[rows[names_at][4] : rows[names_at][4] + rows[names_at][5]]
    sections = []
    for row in rows[1:]:
        name = names[row[0] : names.find(b"\0", row[0])].decode("utf-8", "replace")
        if row[1] != NOBITS and row[4] + row[5] > len(data):
            raise ElfError(f"section {name} is cut short")
        contents = data[row[4] : row[4] + row[5]] if row[1] != NOBITS else b""
        section = Section(name, contents, row[1], row[2], align=row[8], info=row[7], entsize=row[9], address=row[3])
        section.offset, section.size = row[4], row[5]
        sections.append(section)
    return type_, machine, flags, sections


def read_symbols(sections: list[Section]) -> list[Symbol]:
    """The symbols of `.symtab`, without the null symbol."""
    by_name = {section.name: section for section in sections}
    if ".symtab" not in by_name or ".strtab" not in by_name:
        raise ElfError("no symbol table")
    table, strings = by_name[".symtab"].data, by_name[".strtab"].data
    symbols = []
    for at in range(SYMBOL_SIZE, len(table) - SYMBOL_SIZE + 1, SYMBOL_SIZE):
        name_at, info, _, index, value, size = _SYMBOL.unpack_from(table, at)
        name = strings[name_at : strings.find(b"\0", name_at)].decode("utf-8", "replace")
        section = "*ABS*" if index == ABS else sections[index - 1].name if 0 < index <= len(sections) else ""
        symbols.append(Symbol(name, section, value, size, info & 15, info >> 4))
    return symbols
