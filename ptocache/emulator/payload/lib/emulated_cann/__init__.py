"""The tools of an emulated CANN install: an assembler, a link driver and a linker.

They do what `ptoas`, `bisheng` and `ld.lld` do for a PTO kernel, with the same arguments, files and exit
codes, on a machine without CANN. What they make has the shape of the real thing and none of its meaning: the
device code is a deterministic stream of bytes, and every binary says `emulated` in its `.comment`.

`ptoas`, `bisheng` and `lld` are the programs; `mlir` reads the text, `device` and `host` know the two kinds of
ELF file, `elf` writes and reads ELF, and `knobs` is what tests turn. The modules avoid what is slow to import
(argparse, dataclasses, tempfile): a tool must be up in about 20 ms, as the pipeline starts three of them.
"""
