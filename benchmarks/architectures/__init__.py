"""Architectures that the rules of the evaluator were not read off: how far off are its peaks on them?

In: models in bare JAX at small sizes, as ``Model``. Out: ``results/architectures.md``.

    layers      what several of them share
    sequences   attention with rotary positions, state-space models, recurrences, convolutions over time
    images      windows, mixers, depthwise convolutions, upscaling, a codebook
    routed      message passing on a graph, a mixture of experts
    table       the models by name, and the table
"""
