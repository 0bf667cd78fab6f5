"""Plans on a GPU: bytes and seconds of a card against what was said without it.

``ahead`` makes plans for an H100 that need not be here and keeps them in ``plans/``; ``device`` runs them on the card
that is here, beside the models as written and with ``jax.checkpoint`` around every block; ``table`` puts both together.
"""
