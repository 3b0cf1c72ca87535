from ptodsl import pto
# Shows how a kernel moves two vectors in, adds them, and moves the sum out, with flags between the pipes.
import tilelang.contrib.ptodsl as tl

@pto.jit(name="vector_add", kernel_kind="vector", target="a5", mode="explicit")
def vector_add(A: pto.ptr(pto.f32, "gm"), B: pto.ptr(pto.f32, "gm"), C: pto.ptr(pto.f32, "gm")):
  pto.init_core()
  bx = pto.cast(pto.get_block_idx(), pto.i32)
  ub = pto.castptr(pto.const(0, dtype=pto.i64), pto.ptr(pto.f32, "ub"))
  pto.mte_gm_ub(pto.addptr(A, bx * 1024), ub, 0, 4096, nburst=(1, 4096, 4096))
  pto.mte_gm_ub(pto.addptr(B, bx * 1024), pto.addptr(ub, 1024), 0, 4096, nburst=(1, 4096, 4096))
  pto.set_flag("MTE2", "V", event_id=0)
  pto.wait_flag("MTE2", "V", event_id=0)
  with pto.vecscope():
    for _tl_range_i in range(0, 16, 1):
      i = pto.cast(_tl_range_i, pto.i32)
      a = pto.vlds(pto.addptr(ub, i * 64), pto.const(0), pto.vreg_type(64, pto.f32))
      b = pto.vlds(pto.addptr(ub, (i * 64) + 1024), pto.const(0), pto.vreg_type(64, pto.f32))
      pto.vsts(pto.vadd(a, b, pto.pset_b32("PAT_ALL")), pto.addptr(ub, (i * 64) + 2048), pto.const(0), pto.pset_b32("PAT_ALL"), dist="NORM_B32")
  pto.set_flag("V", "MTE3", event_id=0)
  pto.wait_flag("V", "MTE3", event_id=0)
  pto.mte_ub_gm(pto.addptr(ub, 2048), pto.addptr(C, bx * 1024), 4096, nburst=(1, 4096, 4096), l2_cache="naci")
