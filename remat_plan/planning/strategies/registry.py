"""The table of strategies.

In: names. Out: ``Strategy`` records.
"""

from __future__ import annotations

from remat_plan.planning.strategies.records import (
    AS_WRITTEN,
    BY_RULE,
    CHAIN,
    CHECKED,
    MILP_MOST_OPS,
    MOVES,
    NEEDED,
    SEARCHED,
    Finder,
    Strategy,
)
from remat_plan.small.wording import did_you_mean

_CHEN = "Chen et al. 2016, arXiv 1604.06174"
_OPENAI = "OpenAI gradient-checkpointing 2018"
_STOCK = "jax.checkpoint"

_ROWS = (
    Strategy(
        "auto",
        "Beaumont 2019, Rockmate 2023, and the policies below",
        "dynamic programming with options for each block, and the uniform policies below; the fastest that fits",
        "you have no budget, or want to fix in advance what is saved",
        NEEDED,
        sources=(CHAIN, BY_RULE, MOVES, AS_WRITTEN),
    ),
    Strategy(
        "chain",
        "Beaumont et al. 2019, arXiv 1911.13214, Theorem 1",
        "dynamic programming alone",
        "outside comparisons: auto includes its schedules",
        NEEDED,
        sources=(CHAIN,),
    ),
    Strategy(
        "memory",
        f"{_CHEN}, Algorithm 1; {_OPENAI}, 'memory'",
        "saves about sqrt(n) block inputs and recomputes the rest once",
        "you have a budget: auto recomputes less",
        SEARCHED,
        "",
        Finder("sublinear", "find_memory"),
        Finder("laws", "square_root"),
        Finder("uniform", "layer_of_nothing"),
    ),
    Strategy(
        "budgeted",
        f"{_CHEN}, Algorithm 3",
        "one greedy pass that saves a block input whenever b bytes have accumulated, for several b",
        "planning time does not matter: memory and auto do better",
        SEARCHED,
        "",
        Finder("sublinear", "find_budgeted"),
        Finder("laws", "any_size"),
        Finder("uniform", "layer_of_nothing"),
    ),
    Strategy(
        "log",
        f"{_CHEN}, section 4.4",
        "recursive halving: saves about log2(n) block inputs, runs up to n log2(n) blocks",
        "there are many layers outside a lax.scan (code grows to n log2(n) blocks), or memory is not tight",
        CHECKED,
        "",
        Finder("sublinear", "find_log"),
        Finder("laws", "logarithmic"),
        Finder("uniform", "layer_of_nothing"),
    ),
    Strategy(
        "binomial",
        "Griewank & Walther 2000, Algorithm 799 (revolve)",
        "the fewest block runs for a given number of slots, if blocks are equal",
        "blocks differ in cost, or you need forward-mode derivatives of scanned layers",
        SEARCHED,
        "Binomial",
        Finder("binomial", "find_binomial"),
        Finder("laws", "slotted"),
    ),
    Strategy(
        "speed",
        f"{_OPENAI}, 'speed'",
        "saves the outputs of matrix products and convolutions, recomputes the rest",
        "memory is tight: those outputs are most of it",
        CHECKED,
        "",
        Finder("uniform", "find_speed"),
        Finder("laws", "each_step"),
        Finder("uniform", "layer_of_products"),
    ),
    Strategy(
        "collection",
        f"{_OPENAI}, 'collection'",
        "saves exactly the values named with checkpoint_name",
        "you do not know which values to save: the names must separate the layers",
        CHECKED,
        "Collection",
        Finder("named", "find_collection"),
        Finder("laws", "each_step"),
    ),
    Strategy(
        "mirror",
        f"{_CHEN}, Algorithm 2",
        "how often named values may be recomputed, by counts you give (0: saved)",
        "you do not have a schedule in mind",
        CHECKED,
        "Mirror",
        Finder("named", "find_mirror"),
        Finder("laws", "each_step"),
    ),
    Strategy(
        "milp",
        "Checkmate, Jain et al. 2020, arXiv 1910.02653",
        "chooses the values to save by exact integer programming",
        f"the program has more than {MILP_MOST_OPS} equations, or planning must be quick",
        NEEDED,
        "",
        Finder("exact", "find_milp"),
        Finder("laws", "mixtures"),
    ),
    Strategy(
        "each_block",
        f"{_STOCK} on each block, nothing_saveable",
        "jax.checkpoint on every block",
        "a third more time is too much",
        CHECKED,
        "",
        Finder("uniform", "find_each_block"),
        Finder("laws", "each_step"),
        Finder("uniform", "layer_of_nothing"),
    ),
    Strategy(
        "dots",
        f"{_STOCK} on each block, dots_saveable",
        "saves matrix products and convolutions, on every block",
        "attention scores are large: they are products, too",
        CHECKED,
        "",
        Finder("uniform", "find_dots"),
        Finder("laws", "each_step"),
        Finder("uniform", "layer_of_products"),
    ),
    Strategy(
        "dots_no_batch",
        f"{_STOCK} on each block, dots_with_no_batch_dims_saveable",
        "saves matrix products without batch dimensions, on every block",
        "most of the work is in convolutions: they are recomputed",
        CHECKED,
        "",
        Finder("uniform", "find_dots_no_batch"),
        Finder("laws", "each_step"),
        Finder("uniform", "layer_of_plain_dots"),
    ),
    Strategy(
        "split",
        "Luo et al. 2024, arXiv 2407.15892 (mini-sequences)",
        "runs the blocks that need most memory slice by slice, recomputes nothing else",
        "what all layers keep sets the peak; auto splits too, and recomputes",
        SEARCHED,
        "",
        Finder("split", "find_split"),
        Finder("laws", "each_step"),
    ),
    Strategy(
        "nothing",
        f"{_STOCK} on the function, nothing_saveable",
        "one jax.checkpoint around everything, saving nothing",
        "outside comparisons: it costs a forward pass and hardly lowers the peak",
        CHECKED,
        "",
        Finder("uniform", "find_nothing"),
    ),
    Strategy(
        "everything",
        f"{_STOCK} on the function, everything_saveable",
        "saves every value, as JAX does by itself",
        "memory is tight; it is the other end of the scale",
        CHECKED,
        "",
        Finder("uniform", "find_everything"),
    ),
)
_BY_NAME = {row.name: row for row in _ROWS}


def strategies() -> tuple[Strategy, ...]:
    """All strategies, in the order of the table."""
    return tuple(_BY_NAME.values())


def lookup(name: str) -> Strategy:
    """Return a strategy by name.

    Raises:
        ValueError: there is none of that name; the message lists those there are.
    """
    if name not in _BY_NAME:
        raise ValueError(
            f"strategy={name!r} is unknown. Choose one of {', '.join(map(repr, _BY_NAME))} (rp.strategies() explains)."
            + did_you_mean(name, _BY_NAME)
        )
    return _BY_NAME[name]


def register(strategy: Strategy) -> None:
    """Make a strategy known under its name.

    Raises:
        ValueError: there is one of that name.
    """
    if strategy.name in _BY_NAME:
        raise ValueError(f"strategy {strategy.name!r} exists already; give yours another name.")
    _BY_NAME[strategy.name] = strategy


def check_budget(strategy: Strategy, has_budget: bool) -> None:
    """Raise ``ValueError`` if a strategy lacks the budget that it needs."""
    if strategy.budget == NEEDED and not has_budget:
        raise ValueError(
            f"strategy={strategy.name!r} needs a budget, such as budget='8GiB' or budget='60%'. Without one, use "
            "strategy='memory', which saves about the square root of what plain JAX saves."
        )
