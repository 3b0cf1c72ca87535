"""Adds two vectors, compiled by TileLang for Ascend.

On a machine without an NPU:   ptocache run --emulate examples/tilelang/vector_add.py
With CANN, after set_env.sh:   ptocache run examples/tilelang/vector_add.py
"""

import time

import tilelang
import tilelang.language as T
from tilelang.ascend import language as TA

N = 1 << 16
TILE = 1024


@T.prim_func
def vector_add(
  A: T.Tensor((N,), "float32"),
  B: T.Tensor((N,), "float32"),
  C: T.Tensor((N,), "float32"),
):
  with T.Kernel(N // TILE) as block:
    a = T.alloc_shared((TILE,), "float32")
    b = T.alloc_shared((TILE,), "float32")
    c = T.alloc_shared((TILE,), "float32")
    T.copy(A[block * TILE : (block + 1) * TILE], a)
    T.copy(B[block * TILE : (block + 1) * TILE], b)
    with TA.SimtVF(threads=TILE):
      for i in T.Parallel(TILE):
        c[i] = a[i] + b[i]
    T.copy(c, C[block * TILE : (block + 1) * TILE])


start = time.perf_counter()
kernel = tilelang.compile(vector_add, target="ascend", out_idx=-1)
print(f"vector_add is ready after {time.perf_counter() - start:.2f} s")
