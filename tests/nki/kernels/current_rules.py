"""Kernels of the current dialect, one for each rule: `mended` is right, else the marked line breaks it.

x: [128, 512] in fp32, of whole numbers from 0 to 7.
"""

import nki.isa as nisa
import nki.language as nl

TARGETS = {"double_row": "trn2", "double_row_of_fp32": "trn2"}


def sink(*tiles):
    """Stores tiles to outputs of their shapes."""
    outputs = []
    for tile in tiles:
        output = nl.ndarray(tile.shape, dtype=tile.dtype, buffer=nl.shared_hbm)
        nisa.dma_copy(dst=output, src=tile)
        outputs.append(output)
    return tuple(outputs)


def loaded(x, *shape, dtype=nl.float32):
    """Returns the input in SBUF, as it is or in another shape."""
    t = nl.ndarray(shape or x.shape, dtype=dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=t, src=x.reshape(shape) if shape else x)
    return t


def tile(*shape, dtype=nl.float32, buffer=nl.sbuf):
    return nl.ndarray(shape, dtype=dtype, buffer=buffer)


def copied(t):
    """Returns a copy in SBUF of a tile in PSUM."""
    out = tile(*t.shape, dtype=t.dtype)
    nisa.tensor_copy(dst=out, src=t)
    return out


def product(t):
    """Returns a product in PSUM, [128, 128]."""
    p = tile(128, 128, buffer=nl.psum)
    nisa.nc_matmul(dst=p, stationary=t[:, 0:128], moving=t[:, 0:128])
    return p


def partitions(x, mended):
    t = tile(128 if mended else 256, 8)
    nisa.memset(t, 0)  # broken
    return sink(t)


def partition_axis(x, mended):
    t, y = loaded(x), tile(32, 512)
    step = 512 if mended else 1024
    nisa.tensor_copy(dst=y, src=t.ap([[step, 32], [1, 512]]))  # broken
    return sink(y)


def start_partition(x, mended):
    t, y = loaded(x), tile(64, 512)
    start = 64 if mended else 32
    nisa.tensor_copy(dst=y, src=t[start : start + 64, :])  # broken
    return sink(y)


def free_elements(x, mended):
    t = tile(1, 65536 if mended else 65537, dtype=nl.uint8)
    nisa.memset(t, 0)  # broken
    return sink(t)


def psum_elements(x, mended):
    t = tile(1, 4096 if mended else 4097, dtype=nl.bfloat16, buffer=nl.psum)
    nisa.memset(t, 0)  # broken
    return sink(copied(t))


def free_axes(x, mended):
    t, last = tile(1, 3, 3, 3, 3, 3), 1 if mended else 2
    nisa.memset(t, 0)
    y = tile(1, 2, 2, 2, 2, last)
    nisa.tensor_copy(dst=y, src=t[:, 0:2, 0:2, 0:2, 0:2, 0:last])  # broken
    return sink(y)


def free_stride(x, mended):
    t, y = tile(1, 2, 30000 if mended else 33000, dtype=nl.uint8), tile(1, 2, 1, dtype=nl.uint8)
    nisa.memset(t[:, 0, :], 0)
    nisa.memset(t[:, 1, :], 0)
    nisa.tensor_copy(dst=y, src=t[:, :, 0:1])  # broken
    return sink(y)


def memory(x, mended):
    y = tile(128, 512)
    nisa.reciprocal(dst=y, data=loaded(x) if mended else x)  # broken
    nisa.tensor_scalar(dst=y, data=y, op0=nl.minimum, operand0=1.0)
    return sink(y)


def gpsimd_psum(x, mended):
    p, y = product(loaded(x)), tile(128, 128)
    nisa.tensor_copy(dst=y, src=p, engine=nisa.engine.vector if mended else nisa.engine.gpsimd)  # broken
    return sink(y)


def dma_psum(x, mended):
    p = product(loaded(x))
    output = tile(128, 128, buffer=nl.shared_hbm)
    nisa.dma_copy(dst=output, src=copied(p) if mended else p)  # broken
    return output


def bounds(x, mended):
    t, y = loaded(x), tile(128, 512)
    nisa.tensor_copy(dst=y, src=t.ap([[512, 128], [1, 512]], offset=0 if mended else 12))  # broken
    return sink(y)


def matmul_operands(x, mended):
    t, y = loaded(x), tile(128, 128, buffer=nl.psum)
    p = product(t)
    nisa.nc_matmul(dst=y, stationary=t[:, 0:128], moving=copied(p) if mended else p)  # broken
    return sink(copied(y))


def matmul_result(x, mended):
    t, y = loaded(x), tile(128, 128, buffer=nl.psum if mended else nl.sbuf)
    nisa.nc_matmul(dst=y, stationary=t[:, 0:128], moving=t[:, 0:128])  # broken
    return sink(copied(y))


def matmul_bank(x, mended):
    t, y = loaded(x), tile(128, 1024, buffer=nl.psum)
    start = 512 if mended else 256
    nisa.nc_matmul(dst=y[:, start : start + 512], stationary=t[:, 0:128], moving=t)  # broken
    return sink(copied(y[:, start : start + 512]))


def matmul_contraction(x, mended):
    t, y = loaded(x), tile(128, 128, buffer=nl.psum)
    nisa.nc_matmul(dst=y, stationary=t[0:64, 0:128], moving=t[0 : 64 if mended else 128, 0:128])  # broken
    return sink(copied(y))


def matmul_rows(x, mended):
    rows = 128 if mended else 256
    t, y = loaded(x), tile(rows, 128, buffer=nl.psum)
    nisa.nc_matmul(dst=y, stationary=t[:, 0:rows], moving=t[:, 0:128])  # broken
    return sink(copied(y))


def matmul_columns(x, mended):
    wide = tile(128, 512 if mended else 513)
    nisa.memset(wide, 1)
    y = tile(128, wide.shape[1], buffer=nl.psum)
    nisa.nc_matmul(dst=y, stationary=loaded(x)[:, 0:128], moving=wide)  # broken
    return sink(copied(y))


def matmul_shape(x, mended):
    t, y = loaded(x), tile(128, 128 if mended else 64, buffer=nl.psum)
    nisa.nc_matmul(dst=y, stationary=t[:, 0:128], moving=t[:, 0:128])  # broken
    return sink(copied(y))


def matmul_types(x, mended):
    t, half = loaded(x), loaded(x, dtype=nl.bfloat16)
    y = tile(128, 128, buffer=nl.psum)
    nisa.nc_matmul(dst=y, stationary=(half if mended else t)[:, 0:128], moving=half[:, 0:128])  # broken
    return sink(copied(y), t)


def matmul_result_type(x, mended):
    t, y = loaded(x), tile(128, 128, dtype=nl.float32 if mended else nl.bfloat16, buffer=nl.psum)
    nisa.nc_matmul(dst=y, stationary=t[:, 0:128], moving=t[:, 0:128])  # broken
    return sink(copied(y))


def double_row(x, mended):
    t = tile(128, 2, 128, dtype=nl.float8_e4m3)
    nisa.memset(t, 1)
    y = tile(128, 128, buffer=nl.psum)
    operand = t if mended else t.reshape((128, 256))
    nisa.nc_matmul(  # broken
        dst=y, stationary=operand, moving=operand, perf_mode=nisa.matmul_perf_mode.double_row
    )
    return sink(copied(y))


def double_row_of_fp32(x, mended):
    t = tile(128, 2, 128, dtype=nl.float8_e4m3 if mended else nl.float32)
    nisa.memset(t, 1)
    y = tile(128, 128, buffer=nl.psum)
    nisa.nc_matmul(dst=y, stationary=t, moving=t, perf_mode=nisa.matmul_perf_mode.double_row)  # broken
    return sink(copied(y))


def tile_position(x, mended):
    t, y = loaded(x), tile(128, 512, buffer=nl.psum)
    at = (64 if mended else 32, 0)
    nisa.nc_matmul(y, t[64:128, 0:128], t[64:128, :], tile_position=at, tile_size=(64, 128))  # broken
    return sink(copied(y))


def tensor_transpose(x, mended):
    columns = 128 if mended else 256
    t, y = loaded(x), tile(columns, 128, buffer=nl.psum)
    nisa.nc_transpose(dst=y, data=t[:, 0:columns])  # broken
    return sink(copied(y))


def vector_transpose(x, mended):
    size = 32 if mended else 64
    t, y = loaded(x), tile(size, size)
    nisa.nc_transpose(dst=y, data=t[0:size, 0:size], engine=nisa.engine.vector)  # broken
    return sink(y)


def transpose_type(x, mended):
    t, y = loaded(x), tile(128, 128, dtype=nl.float32 if mended else nl.bfloat16, buffer=nl.psum)
    nisa.nc_transpose(dst=y, data=t[:, 0:128])  # broken
    return sink(copied(y))


def dma_transpose(x, mended):
    kind = nl.bfloat16 if mended else nl.float32
    t, y = loaded(x, dtype=kind), tile(128, 128, dtype=kind)
    nisa.dma_transpose(dst=y, src=t[:, 0:128], dge_mode=nisa.dge_mode.hwdge)  # broken
    return sink(y)


def both_in_psum(x, mended):
    t, y = loaded(x), tile(128, 128)
    p, q = product(t), product(t)
    nisa.tensor_tensor(dst=y, data1=p, data2=copied(q) if mended else q, op=nl.add)  # broken
    return sink(y)


def bias_type(x, mended):
    t, y, bias = loaded(x), tile(128, 512), tile(128, 1, dtype=nl.float32 if mended else nl.int32)
    nisa.memset(bias, 1)
    nisa.activation(dst=y, op=nl.exp, data=t, bias=bias)  # broken
    return sink(y)


def scale_type(x, mended):
    t, y, scale = loaded(x), tile(128, 512), tile(128, 1, dtype=nl.float32 if mended else nl.bfloat16)
    nisa.memset(scale, 1)
    nisa.activation(dst=y, op=nl.exp, data=t, scale=scale)  # broken
    return sink(y)


def reduce_axes(x, mended):
    t, y = loaded(x, 128, 8, 64), tile(128, 8 if mended else 64)
    nisa.tensor_reduce(dst=y, op=nl.add, data=t, axis=2 if mended else 1)  # broken
    return sink(y)


def bn_stats_elements(x, mended):
    t, y = tile(128, 512 if mended else 513), tile(128, 6)
    nisa.memset(t, 1)
    nisa.bn_stats(dst=y, data=t)  # broken
    return sink(y)


def bn_aggr_elements(x, mended):
    t, stats, y = loaded(x), tile(128, 6), tile(128, 2)
    nisa.bn_stats(dst=stats, data=t)
    nisa.bn_aggr(dst=y, data=stats if mended else stats[:, 0:5])  # broken
    return sink(y)


def max8_elements(x, mended):
    t, y = loaded(x), tile(128, 8)
    nisa.max8(dst=y, src=t[:, 0 : 8 if mended else 7])  # broken
    return sink(y)


def reduced_elements(x, mended):
    t, total = tile(1, 16384 if mended else 16385), tile(1, 1)
    nisa.memset(t, 1)
    y = tile(*t.shape)
    nisa.activation_reduce(dst=y, op=nl.square, data=t, reduce_op=nl.add, reduce_res=total)  # broken
    return sink(y, total)


def scalar_copy(x, mended):
    t, y = loaded(x), tile(128, 512)
    nisa.tensor_copy(dst=y, src=t, engine=nisa.engine.vector if mended else nisa.engine.scalar)  # broken
    return sink(y)


def predicate_type(x, mended):
    t, y = loaded(x), loaded(x)
    where = loaded(x, dtype=nl.uint8 if mended else nl.float32)
    nisa.tensor_copy_predicated(dst=y, src=t, predicate=where)  # broken
    return sink(y)


def shape(x, mended):
    t, y = loaded(x), tile(128, 64)
    nisa.tensor_tensor(dst=y, data1=t[:, 0:64], data2=t[:, 0 : 64 if mended else 128], op=nl.add)  # broken
    return sink(y)


def engine(x, mended):
    t, y = loaded(x), tile(128, 512)
    nisa.tensor_copy(dst=y, src=t, engine=nisa.engine.vector if mended else nisa.engine.tensor)  # broken
    return sink(y)


def operation(x, mended):
    t, y = loaded(x), tile(128, 512)
    nisa.activation(dst=y, op=nl.exp if mended else nl.bitwise_and, data=t)  # broken
    return sink(y)


def operand(x, mended):
    t, y = loaded(x), tile(128, 512)
    nisa.tensor_copy(dst=y, src=t if mended else 3.0)  # broken
    return sink(y)


def dtype(x, mended):
    t, y = loaded(x, dtype=nl.int32 if mended else nl.float32), tile(128, 512, dtype=nl.int32)
    nisa.tensor_scalar(dst=y, data=t, op0=nl.bitwise_and, operand0=3)  # broken
    return sink(y)


def address(x, mended):
    place = (0, 1024 if mended else 400000)
    t = nl.ndarray((128, 512), dtype=nl.float32, buffer=nl.sbuf, address=place)  # broken
    nisa.dma_copy(dst=t, src=x)
    return sink(t)


def capacity(x, mended):
    count = 2 if mended else 100
    parts = [nl.ndarray((128, 512), dtype=nl.float32, buffer=nl.sbuf) for _ in range(count)]  # broken
    for part in parts:
        nisa.dma_copy(dst=part, src=x)
    total = tile(128, 512)
    nisa.memset(total, 0)
    for part in parts:
        nisa.tensor_tensor(dst=total, data1=total, data2=part, op=nl.add)
    return sink(total)


def uninitialised(x, mended):
    t, y, count = tile(128, 512), tile(128, 512), 512 if mended else 500
    nisa.dma_copy(dst=t[:, 0:count], src=x[:, 0:count])
    nisa.tensor_copy(dst=y, src=t)  # broken
    return sink(y)


def accumulation(x, mended):
    t, y = loaded(x), tile(128, 128, buffer=nl.psum)
    nisa.memset(y, 0)
    nisa.nc_matmul(y, t[:, 0:128], t[:, 0:128], accumulate=not mended)  # broken
    return sink(copied(y))


def registers(x, mended):
    t, y, total = loaded(x), tile(128, 512), tile(128, 1)
    command = nisa.reduce_cmd.reset_reduce if mended else nisa.reduce_cmd.idle
    nisa.activation(y, nl.square, t, reduce_op=nl.add, reduce_res=total, reduce_cmd=command)  # broken
    return sink(y, total) if mended else sink(y)


def activation_range(x, mended):
    t, y = loaded(x), tile(128, 512)
    nisa.activation(dst=y, op=nl.log, data=t, bias=1.0 if mended else 0.0)  # broken
    return sink(y)


def unwritten_output(x, mended):
    output = nl.ndarray((128, 512), dtype=nl.float32, buffer=nl.shared_hbm)  # broken
    for i in range(4 if mended else 3):
        nisa.dma_copy(dst=output[:, i * 128 : i * 128 + 128], src=loaded(x)[:, i * 128 : i * 128 + 128])
    return output


def nan_output(x, mended):
    t, y, output = loaded(x), tile(128, 512), tile(128, 512, buffer=nl.shared_hbm)
    nisa.tensor_tensor(dst=y, data1=t, data2=t, op=nl.add if mended else nl.divide)
    nisa.dma_copy(dst=output, src=y)  # broken
    return output


def input_written(x, mended):
    t, output = loaded(x), tile(128, 512, buffer=nl.shared_hbm)
    nisa.dma_copy(dst=output, src=t)
    nisa.dma_copy(dst=output if mended else x, src=t)  # broken
    return output


def unused_result(x, mended):
    t, y = loaded(x), tile(128, 512)
    nisa.tensor_copy(dst=y, src=t)  # broken
    return sink(y if mended else t)
