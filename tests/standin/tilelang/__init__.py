"""A stand-in for the parts of a newer TileLang that compile PTO kernels: no released wheel has them yet.

It has the layout and the documented functions of `tilelang.contrib.pto_toolchain`, and runs ptoas, bisheng and the
PTODSL frontend that the environment names, each in a process of its own. It is the tests' own code.
"""

import os

__version__ = "0.2.0+standin"

# The process that lowers a kernel must not come here: the real initialiser takes the device.
if os.environ.get("TILELANG_STANDIN_LOWERING"):
    raise ImportError("tilelang was imported in the process that lowers a kernel")
