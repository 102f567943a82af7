"""Kernels of the legacy dialect, one for each rule: `mended` is right, else the marked line breaks it.

x: [128, 512] in fp32, of whole numbers from 0 to 7.
"""

import neuronxcc.nki.compiler as ncc
import neuronxcc.nki.isa as nisa
import neuronxcc.nki.language as nl
import numpy as np
from neuronxcc.nki.language import par_dim


def sink(*tiles):
    """Stores tiles to outputs of their shapes."""
    outputs = []
    for tile in tiles:
        output = nl.ndarray(tile.shape, dtype=tile.dtype, buffer=nl.shared_hbm)
        nl.store(output, tile)
        outputs.append(output)
    return tuple(outputs)


def product(t):
    """Returns a product in PSUM, [128, 128]."""
    return nisa.nc_matmul(t[0:128, 0:128], t[0:128, 0:128])


def partitions(x, mended):
    size = 128 if mended else 256
    t = nl.zeros((size, 8), dtype=nl.float32)  # broken
    return sink(t)


def partition_axis(x, mended):
    t = nl.load(x)
    step = 1 if mended else 2
    rows, columns = nl.arange(32)[:, None], nl.arange(512)[None, :]
    y = nl.square(t[step * rows, columns])  # broken
    return sink(y)


def start_partition(x, mended):
    t = nl.load(x)
    start = 32 if mended else 16
    y = nl.square(t[start : start + 16, 0:512])  # broken
    return sink(y)


def free_elements(x, mended):
    size = 65536 if mended else 65537
    t = nl.zeros((1, size), dtype=nl.uint8)  # broken
    return sink(t)


def psum_elements(x, mended):
    size = 4096 if mended else 4097
    t = nl.ndarray((1, size), dtype=nl.bfloat16, buffer=nl.psum)
    t[...] = nisa.memset((1, size), 1.0, dtype=nl.bfloat16)  # broken
    return sink(t)


def free_axes(x, mended):
    t = nl.zeros((1, 3, 3, 3, 3, 3), dtype=nl.float32)
    last = 1 if mended else 2
    y = nl.square(t[0:1, 0:2, 0:2, 0:2, 0:2, 0:last])  # broken
    return sink(y)


def free_stride(x, mended):
    t = nl.ndarray((1, 2, 30000 if mended else 33000), dtype=nl.uint8)
    t[0:1, 0:1, :] = 0
    t[0:1, 1:2, :] = 0
    y = nl.add(t[0:1, 0:2, 0:1], 1)  # broken
    return sink(y)


def memory(x, mended):
    t = nl.load(x) if mended else x
    y = nl.square(t)  # broken
    return sink(y)


def gpsimd_psum(x, mended):
    p = product(nl.load(x))
    y = nisa.tensor_copy(p, engine=nisa.vector_engine if mended else nisa.gpsimd_engine)  # broken
    return sink(y)


def dma_psum(x, mended):
    p = product(nl.load(x))
    y = nl.copy(p) if mended else p
    output = nl.ndarray((128, 128), dtype=nl.float32, buffer=nl.shared_hbm)
    nisa.dma_copy(dst=output, src=y)  # broken
    return output


def bounds(x, mended):
    t = nl.load(x)
    start = 0 if mended else 100
    y = nl.square(t[0:128, start : start + 512])  # broken
    return sink(y)


def matmul_operands(x, mended):
    t = nl.load(x)
    p = product(t)
    moving = nl.copy(p) if mended else p
    y = nisa.nc_matmul(t[0:128, 0:128], moving)  # broken
    return sink(y)


def matmul_result(x, mended):
    t = nl.load(x)
    y = nl.zeros((128, 128), dtype=nl.float32, buffer=nl.psum if mended else nl.sbuf)
    y[...] = nisa.nc_matmul(t[0:128, 0:128], t[0:128, 0:128])  # broken
    return sink(y)


def matmul_bank(x, mended):
    t = nl.load(x)
    p = nl.zeros((128, 1024), dtype=nl.float32, buffer=nl.psum)
    start = 512 if mended else 256
    p[0:128, start : start + 512] += nisa.nc_matmul(t[0:128, 0:128], t)  # broken
    return sink(p)


def matmul_contraction(x, mended):
    t = nl.load(x)
    y = nisa.nc_matmul(t[0:64, 0:128], t[0 : 64 if mended else 128, 0:128])  # broken
    return sink(y)


def matmul_rows(x, mended):
    t = nl.load(x)
    y = nisa.nc_matmul(t[0:128, 0 : 128 if mended else 256], t[0:128, 0:128])  # broken
    return sink(y)


def matmul_columns(x, mended):
    wide = nl.zeros((128, 512 if mended else 513), dtype=nl.float32)
    y = nisa.nc_matmul(nl.load(x)[0:128, 0:128], wide)  # broken
    return sink(y)


def tile_position(x, mended):
    t = nl.load(x)
    y = nisa.nc_matmul(  # broken
        t[0:32, 0:128], t[0:32, 0:512], tile_position=(32 if mended else 16, 0), tile_size=(32, 128)
    )
    return sink(y)


def tensor_transpose(x, mended):
    t = nl.load(x)
    y = nisa.nc_transpose(t[0:128, 0 : 128 if mended else 256])  # broken
    return sink(y)


def vector_transpose(x, mended):
    t = nl.load(x)
    size = 32 if mended else 64
    y = nisa.nc_transpose(t[0:size, 0:size], engine=nisa.vector_engine)  # broken
    return sink(y)


def both_in_psum(x, mended):
    t = nl.load(x)
    p, q = product(t), product(t)
    other = nl.copy(q) if mended else q
    y = nisa.tensor_tensor(p, other, op=nl.add)  # broken
    return sink(y)


def bias_type(x, mended):
    t = nl.load(x)
    bias = nisa.memset((128, 1), 1, dtype=nl.float32 if mended else nl.int32)
    y = nisa.activation(nl.exp, t, bias=bias)  # broken
    return sink(y)


def scale_type(x, mended):
    t = nl.load(x)
    scale = nisa.memset((128, 1), 1, dtype=nl.float32 if mended else nl.bfloat16)
    y = nisa.activation(nl.exp, t, scale=scale)  # broken
    return sink(y)


def reduce_axes(x, mended):
    t = nl.load(x).reshape((128, 8, 64))
    y = nisa.tensor_reduce(np.add, t, axis=[1, 2] if mended else [0, 1])  # broken
    return sink(y)


def bn_stats_elements(x, mended):
    t = nl.zeros((128, 512 if mended else 513), dtype=nl.float32)
    y = nisa.bn_stats(t)  # broken
    return sink(y)


def bn_aggr_elements(x, mended):
    t = nl.load(x)
    y = nisa.bn_aggr(nisa.bn_stats(t) if mended else t[0:128, 0:7])  # broken
    return sink(y)


def max8_elements(x, mended):
    t = nl.load(x)
    y = nisa.max8(src=t[0:128, 0 : 8 if mended else 7])  # broken
    return sink(y)


def reduced_elements(x, mended):
    t = nl.zeros((1, 16384 if mended else 16385), dtype=nl.float32)
    total = nl.ndarray((1, 1), dtype=nl.float32)
    y = nisa.activation_reduce(nl.square, t, reduce_op=np.add, reduce_res=total)  # broken
    return sink(y, total)


def shape(x, mended):
    t = nl.load(x)
    y = nisa.tensor_tensor(t[0:128, 0:64], t[0:128, 0 : 64 if mended else 128], op=nl.add)  # broken
    return sink(y)


def engine(x, mended):
    t = nl.load(x)
    y = nisa.tensor_copy(t, engine=nisa.scalar_engine if mended else nisa.tensor_engine)  # broken
    return sink(y)


def operation(x, mended):
    t = nl.load(x)
    y = nisa.activation(np.exp if mended else np.hypot, t)  # broken
    return sink(y)


def operand(x, mended):
    t = nl.load(x)
    y = nl.add(t, 1 if mended else "1")  # broken
    return sink(y)


def dtype(x, mended):
    t = nl.load(x, dtype=nl.int32 if mended else nl.float32)
    y = nisa.tensor_scalar(t, np.bitwise_and, 3)  # broken
    return sink(y)


def mask(x, mended):
    i, j = nl.mgrid[0:128, 0:512]
    t = nl.ndarray((128, 512), dtype=nl.float32)
    t[i, j] = nl.load(x[i, j], mask=(j < 600) if mended else (nl.arange(100)[None, :] < 50))  # broken
    return sink(t)


def value(x, mended):
    t = nl.load(x)
    if mended or t:  # broken
        t = nl.square(t)
    return sink(t)


def address(x, mended):
    base = 1024 if mended else 400000
    t = nl.ndarray((128, 512), dtype=nl.float32, buffer=ncc.sbuf.mod_alloc(base_addr=base))  # broken
    t[...] = nl.load(x)
    return sink(t)


def carried_dependence(x, mended):
    total = nl.zeros((128, 64), dtype=nl.float32)
    for i in nl.sequential_range(8) if mended else nl.affine_range(8):
        t = nl.load(x[0:128, i * 64 : i * 64 + 64])
        total[...] = nl.subtract(t, total)  # broken
    return sink(total)


def carried_dependence_from_a_neighbour(x, mended):
    t = nl.load(x)
    for i in nl.sequential_range(1, 8) if mended else nl.affine_range(1, 8):
        now, before = i * 64, i * 64 - 32
        t[0:128, now : now + 64] = nl.square(t[0:128, before : before + 64])  # broken
    return sink(t)


def overlapping_writes(x, mended):
    t = nl.load(x)
    parts = nl.ndarray((4, par_dim(128), 128), dtype=nl.float32)
    output = nl.ndarray((128, 512), dtype=nl.float32, buffer=nl.shared_hbm)
    for i in nl.affine_range(4):
        parts[i if mended else 0] = nl.square(t[0:128, i * 128 : i * 128 + 128])  # broken
        nl.store(output[0:128, i * 128 : i * 128 + 128], parts[i if mended else 0])
    return output


def outer_buffer(x, mended):
    output = nl.ndarray((128, 512), dtype=nl.float32, buffer=nl.shared_hbm)
    held = nl.ndarray((128, 128), dtype=nl.float32)  # broken
    for i in nl.sequential_range(4):
        if mended:
            held = nl.ndarray((128, 128), dtype=nl.float32)
        held[...] = nl.load(x[0:128, i * 128 : i * 128 + 128])
        for j in nl.affine_range(2):
            at = i * 128 + j * 64
            nl.store(output[0:128, at : at + 64], held[0:128, j * 64 : j * 64 + 64])
    return output


def scope(x, mended):
    kept = nl.ndarray((128, 512), dtype=nl.float32)
    for _ in nl.sequential_range(2):
        t = nl.square(nl.load(x))
        kept[...] = nl.add(t, 1)
    y = nl.square(kept if mended else t)  # broken
    return sink(y, kept)


def scope_of_a_turn(x, mended):
    total = nl.zeros((128, 512), dtype=nl.float32)
    for _ in nl.sequential_range(3):
        t = nl.load(x)
        if mended:
            total[...] = nl.add(total, t)
        else:
            total = nl.add(total, t)  # broken
    return sink(total if mended else t)


def uninitialised(x, mended):
    t = nl.ndarray((128, 512), dtype=nl.float32)
    t[0:128, 0 : 512 if mended else 500] = nl.load(x[0:128, 0 : 512 if mended else 500])
    y = nl.square(t)  # broken
    return sink(y)


def registers(x, mended):
    t = nl.load(x)
    total = nl.ndarray((128, 1), dtype=nl.float32)
    command = nisa.reduce_cmd.reset_reduce if mended else nisa.reduce_cmd.idle
    y = nisa.activation(nl.square, t, reduce_op=np.add, reduce_res=total, reduce_cmd=command)  # broken
    return sink(y, total) if mended else sink(y)


def activation_range(x, mended):
    t = nl.load(x)
    y = nl.log(nl.add(t, 1) if mended else t)  # broken
    return sink(y)


def unwritten_output(x, mended):
    output = nl.ndarray((128, 512), dtype=nl.float32, buffer=nl.shared_hbm)  # broken
    for i in nl.affine_range(4 if mended else 3):
        nl.store(output[0:128, i * 128 : i * 128 + 128], nl.load(x[0:128, i * 128 : i * 128 + 128]))
    return output


def nan_output(x, mended):
    t = nl.load(x)
    divisor = nl.add(t, 1) if mended else t
    y = nl.divide(t, divisor)
    output = nl.ndarray((128, 512), dtype=nl.float32, buffer=nl.shared_hbm)
    nl.store(output, y)  # broken
    return output


def input_written(x, mended):
    t = nl.square(nl.load(x))
    output = nl.ndarray((128, 512), dtype=nl.float32, buffer=nl.shared_hbm)
    nl.store(output, t)
    nl.store(output if mended else x, t)  # broken
    return output


def ignored_keyword(x, mended):
    given = {"lazy_initialization": True} if mended else {"lazy_initialisation": True}
    t = nl.zeros((par_dim(128), 512), dtype=nl.float32, **given)  # broken
    t[...] = nl.load(x)
    return sink(t)


def unused_result(x, mended):
    t = nl.load(x)
    y = nl.square(t)  # broken
    return sink(y if mended else t)


def spill(x, mended):
    output = nl.ndarray((128, 512), dtype=nl.float32, buffer=nl.shared_hbm)
    parts = nl.ndarray((2 if mended else 200, par_dim(128), 512), dtype=nl.float32)
    for i in nl.affine_range(2 if mended else 200):
        parts[i] = nl.square(nl.load(x))  # broken
    total = nl.zeros((128, 512), dtype=nl.float32)
    for i in nl.affine_range(2 if mended else 200):
        total[...] += parts[i]
    nl.store(output, total)
    return output
