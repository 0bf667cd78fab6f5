"""Architectures beside those of ``benchmarks.models``: how far off are the evaluator's peaks on them?

In: models in bare JAX at small sizes, as ``Model``. Out: ``results/architectures.md``.

    layers      what several of them share
    sequences   attention with rotary positions, state-space models, recurrences, convolutions over time
    images      windows, mixers, depthwise convolutions, upscaling, a codebook
    routed      message passing on a graph, a mixture of experts
    fresh       eight that no rule is ever read off
    table       the models by name, and the table
"""
