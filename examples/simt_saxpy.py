from ptodsl import pto
# Shows SIMT code: a grid of threads, each with a few elements, a guard, and scalar loads and stores.
import tilelang.contrib.ptodsl as tl

@pto.jit(name="saxpy", kernel_kind="vector", target="a5", mode="explicit")
def saxpy(X: pto.ptr(pto.f32, "gm"), Y: pto.ptr(pto.f32, "gm"), alpha: pto.f32, n: pto.i32):
  pto.init_core()
  bx = pto.cast(pto.get_block_idx(), pto.i32)
  with pto.simt(256, 1, 1):
    tx = pto.get_tid_x()
    for _tl_range_k in range(0, 4, 1):
      k = pto.cast(_tl_range_k, pto.i32)
      at = ((bx * 1024) + (k * 256)) + tx
      if tl.as_logical_bool(at < n):
        pto.store((alpha * pto.load(X, at)) + pto.load(Y, at), Y, at)
    pto.syncthreads()
