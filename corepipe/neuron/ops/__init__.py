"""Ops: what Graphs and Programs are made of; each knows its values, its cost and its kernel."""

from corepipe.neuron.formats import Function
from corepipe.neuron.ops.attention import Attention, CrossAttention, LatentAttention, Rope
from corepipe.neuron.ops.base import Op
from corepipe.neuron.ops.collectives import AllGather, AllReduce, Receive, Send
from corepipe.neuron.ops.convolution import Concatenate, Convolution, Pixels, Pool, Upconvolution, Upsample
from corepipe.neuron.ops.elementwise import Activation, Add, Clamp, GatedActivation, Scale, SelectRows
from corepipe.neuron.ops.embeddings import AddEmbedding, Embed, PatchEmbed, RowIndex, patches_of
from corepipe.neuron.ops.experts import Experts, GatherSlots, Groups, Scoring, Share
from corepipe.neuron.ops.linear import Linear
from corepipe.neuron.ops.norms import LayerNorm, Normalize, RMSNorm
from corepipe.neuron.ops.pooling import Pooling, PoolingMode
from corepipe.neuron.ops.scans import CausalConvolution, SelectiveScan

__all__ = [
    "Activation",
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
    "Embed",
    "Experts",
    "Function",
    "GatedActivation",
    "GatherSlots",
    "Groups",
    "LatentAttention",
    "LayerNorm",
    "Linear",
    "Normalize",
    "Op",
    "PatchEmbed",
    "Pixels",
    "Pool",
    "Pooling",
    "PoolingMode",
    "RMSNorm",
    "Receive",
    "Rope",
    "RowIndex",
    "Scale",
    "Scoring",
    "SelectRows",
    "SelectiveScan",
    "Send",
    "Share",
    "Upconvolution",
    "Upsample",
    "patches_of",
]
