"""Rules of the compiler, by dialect: each with its source and the measured kernels that it explains."""

from __future__ import annotations

from dataclasses import dataclass

COUNTERS = "profile counters of NKIBench's baselines on trn1, zhang677/AccelOpt 47e29a7"


@dataclass(frozen=True, slots=True)
class CompilerRule:
    """A rule.

    name: what `compiled` takes.  does: its effect, in words.  explains: kernels of the source whose counters
    show it.
    """

    name: str
    does: str
    source: str
    explains: tuple[str, ...] = ()


FUSED_LOOPS = CompilerRule(
    "fused_loops",
    "affine loops of as many turns are fused if a turn of the second needs the same turn of the first alone, "
    "and loads most of what that loads; what both load and transpose is then loaded and transposed once",
    COUNTERS,
    ("swiglu",),
)
MOVED_LOADS = CompilerRule(
    "moved_loads",
    "a load that is the same in all turns of a loop is moved out of it, if what it loads fits beside what a "
    "turn needs; tensors that live across the loop do not count, since they can be spilled",
    COUNTERS,
    ("matmul_add_rmsnorm", "add_rmsnorm_matmul", "rmsnorm_matmul", "mamba", "bmm", "bmm_softmax"),
)
MOVED_TRANSPOSES = CompilerRule(
    "moved_transposes",
    "transposes on TensorE of what such a load brings move with it, and so do their copies out of PSUM",
    COUNTERS + ": transpose_flops",
    ("bmm", "bmm_softmax"),
)
MOVED_RESULTS = CompilerRule(
    "moved_results",
    "a tensor_tensor whose operands are the same in all turns of a loop is executed once, if its result fits "
    "in a bank of PSUM",
    "NKI tutorial fused_mamba, SDK 2.26: times of mamba_v2 and mamba_v3 by length",
    ("mamba_v2", "mamba_v3"),
)
LARGE_TENSORS = CompilerRule(
    "large_tensors",
    "a tensor of more than half of SBUF that is gone through again and again, and does not fit beside "
    "smaller ones, is not kept in part: each use loads its block again, or saves and reloads it",
    COUNTERS,
    ("matmul", "lora", "gqa_full"),
)
SPILLS = CompilerRule(
    "spills",
    "beyond the memory the block leaves whose next use is furthest; it is saved once, unless HBM has it, and "
    "reloaded where it is used",
    COUNTERS,
    ("bmm_softmax", "gqa_full", "lora", "mamba"),
)
PSUM_RESULTS = CompilerRule(
    "psum_results",
    "the result of a tensor_scalar that the next instruction alone reads, a tensor_tensor, is placed in "
    "PSUM, which halves the time of the tensor_tensor",
    COUNTERS + ": psum_write_bytes",
    ("adamw",),
)
ROTATION = CompilerRule(
    "rotation",
    "as many blocks of a tensor exist as are alive together, and more where memory is free, so that "
    "transfers run ahead; addresses that the kernel gives fix the number",
    "NKI programming guide, SDK 2.26: block dimensions and num_free_tiles",
)

PROFILES = {
    True: (
        MOVED_RESULTS,
        FUSED_LOOPS,
        MOVED_LOADS,
        MOVED_TRANSPOSES,
        LARGE_TENSORS,
        SPILLS,
        PSUM_RESULTS,
        ROTATION,
    ),
    False: (ROTATION,),
}
"""Rules of the legacy dialect's compiler (True) and of the current one's, which keeps programs as written."""
