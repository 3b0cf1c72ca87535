"""An emulated PTODSL: traces PTO kernels into MLIR text, on a machine without CANN.

It takes the sources that TileLang generates and people write, runs each kernel's body once with stand-ins for the
values of the device, and writes down every operation that the body asks for. It knows the shape of the language, and
not its vocabulary: any `pto.name(...)` is an operation. So it accepts what a real frontend would refuse; but what two
sources differ in, other than comments, layout and the names of variables, their texts differ in.

- `pto` and `scalar` are what sources import; `_tilelang` stands in for TileLang's helper modules;
- `_kernels` has the decorators and the traced module, `_record` turns calls into operations, `_results` knows the
  types of what they return, `_values` is what a body sees of a value, `_control` has loops and branches, and
  `_rewrite` turns Python's `for` and `if` into them;
- `_ir` and `_print` are the program and its text, `_types` and `_attributes` the types and the constants in it;
- `_run` is for tests: the log of runs and the faults.
"""

from . import pto as pto
from . import scalar as scalar
from ._tilelang import offer

__all__ = ["pto", "scalar"]

offer()
