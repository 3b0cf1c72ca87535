"""Lowers one PTODSL module: `python ptodsl_compile.py SOURCE KERNEL_NAMES_JSON OUT`, a process of its own.

Exit status 2: the source or the frontend cannot be imported; 3: the kernels cannot be lowered.
"""

import importlib.util
import json
import os
import sys
import traceback
import types

HERE = os.path.dirname(os.path.abspath(__file__))


def offer_helpers() -> None:
    """Let the source import `tilelang.contrib.ptodsl`, and nothing else of TileLang."""
    for name, path in (("tilelang", []), ("tilelang.contrib", [HERE])):
        sys.modules[name] = types.ModuleType(name)
        sys.modules[name].__path__ = path


def main(source: str, names: str, out: str) -> int:
    """The script; its exit status."""
    sys.path.remove(HERE)  # or the helpers, which are called as the frontend is, would hide it
    offer_helpers()
    try:
        spec = importlib.util.spec_from_file_location("_tilelang_ptodsl_source", source)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        from ptodsl import pto
    except Exception:  # noqa: BLE001 - whatever it is, the exit status tells which half failed
        traceback.print_exc()
        return 2
    try:
        kernels = [getattr(module, name) for name in json.loads(names)]
        text = kernels[0].compile().mlir_text() if len(kernels) == 1 else str(pto.merge_jit_modules(*kernels))
    except Exception:  # noqa: BLE001 - whatever it is, the exit status tells which half failed
        traceback.print_exc()
        return 3
    with open(out, "w", encoding="utf-8") as file:
        file.write(text)
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
