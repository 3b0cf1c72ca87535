"""The name space `pto`: what a kernel's source calls. Any name that is not defined here is an operation or a type."""

from __future__ import annotations

from typing import Any

from . import _control, _kernels, _record
from ._types import Type, bits_of, lanes_of, pointer, vreg

jit = _kernels.jit
merge_jit_modules = _kernels.merge
const_expr = constexpr = _kernels.CONST_EXPR
static_range = range
for_ = _control.For
if_ = _control.If
ptr = pointer
vreg_type = vreg

simt = _kernels.Role("pto.simt")
simd = _kernels.Role("pto.simd")
cube = _kernels.Role("pto.cube")
tileop = _kernels.Role("pto.tileop")
func = _kernels.Role("pto.func")
inline_proc = _kernels.Role("pto.inline_proc")


def elements_per_vreg(dtype: Type) -> int:
    """How many elements of a type a vector register holds."""
    return lanes_of(dtype)


def bytewidth(dtype: Type) -> int:
    """How many bytes an element of a type has."""
    return bits_of(dtype) // 8


def __getattr__(name: str) -> Any:
    return _record.lookup("pto", name)
