"""Ops: the nodes of Graphs and Programs; each knows its values, its cost and its kernel."""

from corepipe.neuron.formats import Function
from corepipe.neuron.ops.attention import Attention, CrossAttention, LatentAttention, Rope
from corepipe.neuron.ops.base import Op
from corepipe.neuron.ops.collectives import AllGather, AllReduce, Receive, Send
from corepipe.neuron.ops.convolution import (
    Concatenate,
    Convolution,
    Pixels,
    Upconvolution,
    Upsample,
    WindowPool,
)
from corepipe.neuron.ops.elementwise import (
    Add,
    Clamp,
    ElementwiseActivation,
    GatedActivation,
    ScaleRows,
    SelectRows,
)
from corepipe.neuron.ops.embeddings import AddEmbedding, PatchEmbed, RowIndex, TokenEmbedding, patches_of
from corepipe.neuron.ops.experts import ExpertRange, Experts, GatherSlots, Groups, Scoring
from corepipe.neuron.ops.linear import Linear
from corepipe.neuron.ops.norms import L2Norm, LayerNorm, RMSNorm
from corepipe.neuron.ops.pooling import PoolingMode, SequencePooling
from corepipe.neuron.ops.scans import CausalConvolution, SelectiveScan

__all__ = [
    "Add",
    "AddEmbedding",
    "AllGather",
    "AllReduce",
    "Attention",
    "CausalConvolution",
    "Clamp",
    "Concatenate",
    "Convolution",
    "CrossAttention",
    "ElementwiseActivation",
    "ExpertRange",
    "Experts",
    "Function",
    "GatedActivation",
    "GatherSlots",
    "Groups",
    "L2Norm",
    "LatentAttention",
    "LayerNorm",
    "Linear",
    "Op",
    "PatchEmbed",
    "Pixels",
    "PoolingMode",
    "RMSNorm",
    "Receive",
    "Rope",
    "RowIndex",
    "ScaleRows",
    "Scoring",
    "SelectRows",
    "SelectiveScan",
    "Send",
    "SequencePooling",
    "TokenEmbedding",
    "Upconvolution",
    "Upsample",
    "WindowPool",
    "patches_of",
]
