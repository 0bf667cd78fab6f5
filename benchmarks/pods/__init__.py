"""Llama 3 70B and 405B on pods: whole training steps on hundreds of chips, each layer by hand and fitted."""
