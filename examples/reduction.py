from ptodsl import pto
# Shows a reduction: a running sum that a loop carries, across threads and then within one.
import tilelang.contrib.ptodsl as tl

@pto.jit(name="row_sum", kernel_kind="vector", target="a5", mode="explicit")
def row_sum(A: pto.ptr(pto.f32, "gm"), O: pto.ptr(pto.f32, "gm")):
  pto.init_core()
  row = pto.cast(pto.get_block_idx(), pto.i32)
  ub = pto.castptr(pto.const(0, dtype=pto.i64), pto.ptr(pto.f32, "ub"))
  pto.mte_gm_ub(pto.addptr(A, row << 11), ub, 0, 8192, nburst=(1, 8192, 8192))
  pto.set_flag("MTE2", "V", event_id=0)
  pto.wait_flag("MTE2", "V", event_id=0)
  with pto.simt(32, 1, 1):
    lane = pto.get_tid_x()
    total = float.fromhex('0x0p+0')
    for _tl_range_i in range(0, 64, 1):
      i = pto.cast(_tl_range_i, pto.i32)
      total = total + pto.load(ub, (i * 32) + lane)
    total = tl.simt_allreduce_sum(total, threads=32)
    if tl.as_logical_bool(lane == 0):
      pto.store(total, ub, 2048)
  pto.set_flag("V", "MTE3", event_id=0)
  pto.wait_flag("V", "MTE3", event_id=0)
  pto.mte_ub_gm(pto.addptr(ub, 2048), pto.addptr(O, row), 4, nburst=(1, 4, 4), l2_cache="naci")
