from ptodsl import pto
# Shows a module with three kernels, which are lowered and linked together, in this order.
import tilelang.contrib.ptodsl as tl

@pto.jit(name="fill", kernel_kind="vector", target="a5", mode="explicit")
def fill(O: pto.ptr(pto.f32, "gm"), value: pto.f32):
  pto.init_core()
  ub = pto.castptr(pto.const(0, dtype=pto.i64), pto.ptr(pto.f32, "ub"))
  with pto.vecscope():
    for _tl_range_i in range(0, 4, 1):
      i = pto.cast(_tl_range_i, pto.i32)
      pto.vsts(pto.vdup(value, pto.pset_b32("PAT_ALL")), pto.addptr(ub, i * 64), pto.const(0), pto.pset_b32("PAT_ALL"), dist="NORM_B32")
  pto.set_flag("V", "MTE3", event_id=0)
  pto.wait_flag("V", "MTE3", event_id=0)
  pto.mte_ub_gm(ub, O, 1024, nburst=(1, 1024, 1024), l2_cache="naci")

@pto.jit(name="copy", kernel_kind="vector", target="a5", mode="explicit")
def copy(A: pto.ptr(pto.i32, "gm"), O: pto.ptr(pto.i32, "gm")):
  pto.init_core()
  ub = pto.castptr(pto.const(0, dtype=pto.i64), pto.ptr(pto.i32, "ub"))
  for _tl_range_half in range(0, 2, 1):
    half = pto.cast(_tl_range_half, pto.i32)
    pto.mte_gm_ub(pto.addptr(A, half * 256), ub, 0, 1024, nburst=(1, 1024, 1024))
    pto.set_flag("MTE2", "MTE3", event_id=0)
    pto.wait_flag("MTE2", "MTE3", event_id=0)
    pto.mte_ub_gm(ub, pto.addptr(O, half * 256), 1024, nburst=(1, 1024, 1024), l2_cache="naci")
    pto.set_flag("MTE3", "MTE2", event_id=0)
    pto.wait_flag("MTE3", "MTE2", event_id=0)

@pto.jit(name="clamp", kernel_kind="vector", target="a5", mode="explicit")
def clamp(X: pto.ptr(pto.f32, "gm"), low: pto.f32, high: pto.f32):
  pto.init_core()
  with pto.simt(128, 1, 1):
    at = (pto.cast(pto.get_block_idx(), pto.i32) * 128) + pto.get_tid_x()
    pto.store(pto.fmin(pto.fmax(pto.load(X, at), low), high), X, at)
