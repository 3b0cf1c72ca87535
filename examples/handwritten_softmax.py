# Shows what people write by hand: constants of the compilation, tiles, masks, a helper, Python's own for and if.
"""Softmax of the rows of a matrix, a row at a time."""

from ptodsl import pto, scalar


@pto.func
def row_maximum(tile: pto.Tile, columns: pto.i32):
    """The largest element of a row."""
    largest = scalar.load(tile[0, 0])
    for column in range(1, columns):
        largest = scalar.max(largest, scalar.load(tile[0, column]))
    return largest


@pto.jit(
    target="a5",
    mode="auto",
    insert_sync=True,
)
def softmax(
    scores: pto.ptr(pto.f32, "gm"),
    out: pto.ptr(pto.f32, "gm"),
    rows: pto.i32,
    columns: pto.i32,
    *,
    BLOCK: pto.constexpr = 1024,
    EXACT: pto.constexpr = False,
):
    """Normalise every row; rows are BLOCK wide at most."""
    lanes = pto.elements_per_vreg(pto.f32)
    source = pto.make_tensor_view(scores, shape=[rows, columns], strides=[columns, 1])
    target = pto.make_tensor_view(out, shape=[rows, columns], strides=[columns, 1])
    tile = pto.alloc_tile(shape=[1, BLOCK], dtype=pto.f32, valid_shape=[1, columns])
    first, count = pto.get_block_idx(), pto.get_block_num()
    with pto.for_(first, rows, step=count) as row:
        pto.tile.load(pto.partition_view(source, offsets=[row, 0], sizes=[1, columns]), tile)
        largest = row_maximum(tile, columns)
        total = 0.0
        left = columns
        for column in range(0, columns, lanes):
            active, left = pto.make_mask(pto.f32, left)
            shifted = pto.vsubs(pto.vlds(tile[0, column:]), largest, active)
            risen = pto.vexp(shifted, active)
            pto.vsts(risen, tile[0, column:], active)
            total = total + pto.vcadd(risen, active)[0]
        if pto.const_expr(EXACT):
            pto.tile.divs(tile, total, tile)
        else:
            pto.tile.muls(tile, scalar.rcp(total), tile)
        if total > 0.0 and not columns == 0:
            pto.tile.store(tile, pto.partition_view(target, offsets=[row, 0], sizes=[1, columns]))
    pto.pipe_barrier(pto.Pipe.ALL)
