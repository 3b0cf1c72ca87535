from ptodsl import pto, scalar
# Shows a kernel for both core types: a matrix product on the cube core, and a bias added on the vector core.
import tilelang.contrib.ptodsl as tl

@pto.jit(name="gemm_bias", target="a5", mode="explicit", insert_sync=True)
def gemm_bias(A: pto.ptr(pto.f16, "gm"), B: pto.ptr(pto.f16, "gm"), D: pto.ptr(pto.f32, "gm"), O: pto.ptr(pto.f32, "gm")):
  pto.init_core()
  gemm = tl.PTOGemmL1Template(64, 64, 128, 64, 2, 16, 4, 4096, 4096)
  with tl.mixed_kernel_section("cube"):
    a_l1 = pto.castptr(pto.const(0, dtype=pto.i64), pto.ptr(pto.f16, "l1"))
    b_l1 = pto.castptr(pto.const(65536, dtype=pto.i64), pto.ptr(pto.f16, "l1"))
    acc = pto.castptr(pto.const(0, dtype=pto.i64), pto.ptr(pto.f32, "acc"))
    for _tl_range_k in range(0, 8, 1):
      k = pto.cast(_tl_range_k, pto.i32)
      pto.mte_gm_l1(pto.addptr(A, k * 128), a_l1, 64, 128, nd2nz=(1, 64, 1024))
      pto.mte_gm_l1(pto.addptr(B, k * 128), b_l1, 64, 128, nd2nz=(1, 64, 1024))
      pto.set_flag("MTE2", "MTE1", event_id=0)
      pto.wait_flag("MTE2", "MTE1", event_id=0)
      gemm.run_l1_tile(a_l1, b_l1, pto.castptr(pto.const(0, dtype=pto.i64), pto.ptr(pto.f16, "left")), pto.castptr(pto.const(0, dtype=pto.i64), pto.ptr(pto.f16, "right")), acc, clear_accum=k == 0, unit_flag_ctrl=pto.select(k == 7, pto.const(3, dtype=pto.i32), pto.const(2, dtype=pto.i32)))
    pto.mte_l0c_ub(acc, pto.castptr(pto.const(0, dtype=pto.i64), pto.ptr(pto.f32, "ub")), 64, 64, unit_flag=pto.MadUnitFlagMode.CHECK_AND_SET)
    tl.ascend_cross_core_set_flag(4, "FIX", 0)
  with tl.mixed_kernel_section("vector"):
    tile = pto.castptr(pto.const(0, dtype=pto.i64), pto.ptr(pto.f32, "ub"))
    half = scalar.muli(pto.get_subblock_idx(), pto.const(2048, dtype=pto.i64))
    pto.mte_gm_ub(D, pto.addptr(tile, 4096), 0, 256, nburst=(1, 256, 256))
    tl.ascend_cross_core_wait_flag(4, "V", 0)
    with pto.vecscope():
      bias = pto.vlds(pto.addptr(tile, 4096), pto.const(0), pto.vreg_type(64, pto.f32))
      for _tl_range_r in range(0, 32, 1):
        r = pto.cast(_tl_range_r, pto.i32)
        line = pto.vlds(pto.addptr(tile, r * 64), pto.const(0), pto.vreg_type(64, pto.f32))
        pto.vsts(pto.vadd(line, bias, pto.pset_b32("PAT_ALL")), pto.addptr(tile, r * 64), pto.const(0), pto.pset_b32("PAT_ALL"), dist="NORM_B32")
    pto.set_flag("V", "MTE3", event_id=0)
    pto.wait_flag("V", "MTE3", event_id=0)
    pto.mte_ub_gm(tile, pto.addptr(O, half), 8192, nburst=(1, 8192, 8192), l2_cache="naci")

gemm_bias = tl.finalize_mixed_kernel(gemm_bias)
