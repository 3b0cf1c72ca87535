from ptodsl import pto
# Shows a loop of vector instructions that scales and shifts a tile, with a broadcast load and hexadecimal constants.
import tilelang.contrib.ptodsl as tl

@pto.jit(name="scale_shift", kernel_kind="vector", target="a5", mode="explicit")
def scale_shift(X: pto.ptr(pto.f32, "gm"), S: pto.ptr(pto.f32, "gm"), Y: pto.ptr(pto.f32, "gm")):
  pto.init_core()
  tile = pto.castptr(pto.const(0, dtype=pto.i64), pto.ptr(pto.ui8, "ub"))
  pto.mte_gm_ub(pto.castptr(X, pto.ptr(pto.ui8, "gm")), tile, 0, 2048, nburst=(1, 2048, 2048))
  pto.mte_gm_ub(pto.castptr(S, pto.ptr(pto.ui8, "gm")), pto.addptr(tile, 4096), 0, 32, nburst=(1, 32, 32))
  pto.set_flag("MTE2", "V", event_id=1)
  pto.wait_flag("MTE2", "V", event_id=1)
  with pto.vecscope():
    everything = pto.pset_b32("PAT_ALL")
    scale = pto.vlds(pto.castptr(pto.addptr(tile, 4096), pto.ptr(pto.f32, "ub")), pto.const(0), pto.vreg_type(64, pto.f32), dist="BRC_B32")
    shift = pto.vdup(pto.const(float.fromhex('0x1.8p-1'), dtype=pto.f32), everything)
    for _tl_range_chunk in range(0, 8, 1):
      chunk = pto.cast(_tl_range_chunk, pto.i32)
      x = pto.vlds(pto.addptr(pto.castptr(tile, pto.ptr(pto.f32, "ub")), chunk * 64), pto.const(0), pto.vreg_type(64, pto.f32))
      y = pto.vadd(pto.vmul(x, scale, everything), shift, everything)
      pto.vsts(y, pto.addptr(pto.castptr(tile, pto.ptr(pto.f32, "ub")), (chunk * 64) + 512), pto.const(0), everything, dist="NORM_B32")
  pto.set_flag("V", "MTE3", event_id=1)
  pto.wait_flag("V", "MTE3", event_id=1)
  pto.mte_ub_gm(pto.addptr(pto.castptr(tile, pto.ptr(pto.f32, "ub")), 512), Y, 2048, nburst=(1, 2048, 2048), l2_cache="naci")
