"""The rules of the language, and what is found in a run that goes on."""

from __future__ import annotations

from corepipe.nki.rules.rule import API, ARCHITECTURE, CURRENT, ERRORS, LEGACY, Kind, Rule

CALLS = (
    Rule(
        "shape",
        "operands have the same partitions and elements; scales and biases are numbers or [partitions, 1]",
        "",
        "",
        ERRORS + "num_partition_mismatch",
    ),
    Rule("engine", "an instruction runs on the engines that have it", "", "", API + "engine"),
    Rule("operation", "an engine applies the operations that it has", "", "", API + "supported operators"),
    Rule("operand", "an operand is a tile, a number or what else its instruction takes", "", "", API + "isa"),
    Rule("dtype", "operations on bits take integers", "", "", API + "tensor_scalar"),
    Rule(
        "mask",
        "a mask fits the tile that it is for",
        "",
        "",
        ERRORS + "unsupported_expression_in_mask",
        dialects=(LEGACY,),
    ),
    Rule(
        "value",
        "the values of tiles are not known when a kernel is compiled",
        "",
        "",
        ERRORS + "ambiguous_tensor_truth_value",
        dialects=(LEGACY,),
    ),
)
"""Rules of calls: the functions of the dialects and of `isa` check them, and write the messages."""

USABLE = {"v2": 176 << 10, "v3": 208 << 10, "v4": 240 << 10}
"""Bytes of a partition of SBUF that kernels can use: 16 KiB of 192, 224 and 256 are reserved.

The compiler says so for v2, users report it for v3, and for v4 it is assumed."""

MEMORY = (
    Rule(
        "capacity",
        "what is alive at a time fits in the memory, {limit} bytes of a partition for a kernel",
        "{found} bytes of {memory} are alive at a time; {operand} takes {size}, the most",
        "use smaller tiles, or free some earlier",
        ARCHITECTURE + "memory hierarchy",
        USABLE,
        (CURRENT,),
    ),
    Rule(
        "spill",
        "what is alive at a time and does not fit in {limit} bytes of a partition is moved to HBM and back",
        "{found} bytes are alive at a time, and {size} bytes move in all, of {operand} first",
        "use smaller tiles, or make less before it is used",
        ARCHITECTURE + "memory hierarchy",
        USABLE,
        (LEGACY,),
        Kind.FINDING,
    ),
    Rule(
        "address",
        "an address that a kernel gives lies in the memory, {limit} bytes of a partition",
        "it ends at byte {found}",
        "lower base_addr, or the number of tiles",
        "issue 1036 of aws-neuron-sdk",
        USABLE,
    ),
)
"""Rules of the memory that a kernel takes; the limits are those of the compiler."""

TURNS = (
    Rule(
        "carried_dependence",
        "turns of affine_range do not depend on one another, but for sums",
        "{operand} is read here, and another turn of the loop of {loop} writes it",
        "use sequential_range, or give each turn a part of its own",
        API + "affine_range",
        dialects=(LEGACY,),
        kind=Kind.FINDING,
    ),
    Rule(
        "overlapping_writes",
        "turns of affine_range write different parts of a tensor",
        "several turns of the loop of {loop} write the same part of {operand}",
        "index it by the turn, declare it in the loop, or use sequential_range",
        ERRORS + "unexpected_output_dependencies",
        dialects=(LEGACY,),
        kind=Kind.FINDING,
    ),
    Rule(
        "outer_buffer",
        "a tensor that each turn loads anew is declared in the loop; outside of it, users saw it right in "
        "simulators and wrong on devices",
        "{operand} is declared outside of the loop of {loop}",
        "declare it in the loop",
        "issue 1045 of aws-neuron-sdk",
        dialects=(LEGACY,),
        kind=Kind.FINDING,
    ),
    Rule(
        "scope",
        "a tile that is made in a turn of a loop is read in that turn alone",
        "{operand} was made in another turn, or in a loop that has ended",
        "declare a tensor before the loop, and assign to it by [...]",
        ERRORS + "local_variable_used_out_of_scope",
        dialects=(LEGACY,),
        kind=Kind.FINDING,
    ),
)
"""Findings of loops."""

VALUES = (
    Rule(
        "uninitialised",
        "memory that nothing has written holds anything",
        "{found} of the {count} elements of {operand} that are read here were never written",
        "write them first, or read what was written alone",
        "programming model, memory",
        kind=Kind.FINDING,
    ),
    Rule(
        "accumulation",
        "a product adds to what another product left, and to nothing else",
        "{operand} was last written by {writer}",
        "let the first product overwrite it (accumulate=False)",
        API + "nc_matmul",
        {"v2": 0, "v3": 0},
        (CURRENT,),
        Kind.FINDING,
    ),
    Rule(
        "registers",
        "a reduction is read after something has set the registers",
        "",
        "",
        API + "activation",
        kind=Kind.FINDING,
    ),
    Rule(
        "activation_range",
        "a function of ScalarE is right on a range of inputs",
        "",
        "",
        API + "supported activation functions",
        kind=Kind.FINDING,
    ),
    Rule(
        "unwritten_output",
        "a kernel writes all of each output",
        "{found} of the {count} elements of {operand} are never written",
        "store to all of it; a loop may have no turns",
        ERRORS + "tensor_output_not_written_to",
        kind=Kind.FINDING,
    ),
    Rule(
        "nan_output",
        "finite inputs give outputs that are numbers",
        "{found} of the {count} elements of {operand} are NaN",
        "look for memory that nothing wrote, and for 0/0 and inf - inf",
        "NKI simulator",
        kind=Kind.FINDING,
    ),
    Rule(
        "input_written",
        "a kernel changes no input that it does not return",
        "{operand} is written",
        "store to a tensor of the kernel's, or return it and mark it as mutable",
        ERRORS + "cannot_update_immutable_parameter",
        kind=Kind.FINDING,
    ),
    Rule(
        "ignored_keyword",
        "keywords that are no parameter speak to the compiler",
        "{operand} has no effect here",
        "check how it is spelled",
        "corepipe",
        dialects=(LEGACY,),
        kind=Kind.FINDING,
    ),
    Rule(
        "unused_result",
        "an instruction costs time",
        "nothing reads the result",
        "leave it out",
        "corepipe",
        kind=Kind.FINDING,
    ),
    Rule(
        "two_dialects",
        "a file imports one dialect; from NKI 0.4 on, neuronxcc.nki does not compile beside nki",
        "this file imports both",
        "import from nki alone",
        "release notes of NKI 0.4",
        kind=Kind.FINDING,
    ),
)
"""Findings of values, operands and imports."""
