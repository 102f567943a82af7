"""Steps of a random mixture of 1.3 billion weights, of which a token takes 0.3, as shares of the limits.

    python benchmarks/mixture.py [--format int8] [--context 128] [--rounds 5]

One stream, eight, and a prompt of 512 tokens, as `step.py` measures them.  What memory allows counts the
weights of the experts that so many random rows take between them.
"""

from __future__ import annotations

from pathlib import Path

from step import LONGEST, Demand, Drawn, native_executor, options, report  # the script beside this one

from corepipe.kernels import native
from corepipe.models.fields import Fields
from corepipe.models.registry import Architecture
from corepipe.neuron.formats import FORMATS
from corepipe.neuron.host.weights import InMemoryWeights

CONFIG = {
    "model_type": "qwen3_moe",
    "vocab_size": 32000,
    "hidden_size": 1024,
    "num_hidden_layers": 16,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "head_dim": 64,
    "num_experts": 48,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 512,
    "norm_topk_prob": True,
    "max_position_embeddings": 2048,
    "tie_word_embeddings": True,
}


def main() -> None:
    args = options(__doc__).parse_args()

    model = Architecture("mixture", Fields(Path("config.json"), CONFIG))
    graph = model.graph(FORMATS[args.format], LONGEST)
    drawn = Drawn({graph.tied.get(spec.name, spec.name): spec.shape for spec in graph.weights()})
    weights = InMemoryWeights(graph, drawn.read)
    pool = native().Pool(args.threads)
    cases = [(1, 1, args.context), (8, 1, args.context), (1, 512, 0)]
    executor = native_executor(graph, weights, cases, pool)
    demand = Demand.of(graph, weights)
    taken = (demand.head + demand.layers) / 2
    print(f"{model.parameters / 1e9:.2f} billion weights, of which a token takes {taken / 1e9:.2f}")
    report(executor, graph, demand, cases, args)
    pool.close()


if __name__ == "__main__":
    main()
