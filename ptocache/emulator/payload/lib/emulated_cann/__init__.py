"""The tools of an emulated CANN install: an assembler, a compiler that also links, and a linker.

They do what `ptoas`, `bisheng` and `ld.lld` do for a PTO or an AscendC kernel, with the same arguments, files and exit
codes, on a machine without CANN. What they make has the shape of the real thing and none of its meaning: the
device code is a deterministic stream of bytes, and every binary says `emulated` in its `.comment`.

`ptoas`, `bisheng` and `lld` are the programs. `mlir` reads the text of a PTO kernel. `ascendc` compiles an AscendC
text: `preprocessor` follows its includes, which `search` finds, `kernels` finds its kernels, and `depfile` writes down
what it depends on. `device` and `host` know the two kinds of ELF file, `elf` writes and reads ELF, and `knobs` is what
tests turn. The modules avoid what is slow to import (argparse, dataclasses, tempfile): a tool must be up in about 20
ms, as the pipeline starts three of them.
"""
