"""Language models of packages: Hugging Face Transformers (Flax), RecurrentGemma, Penzai."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.packages.record import Problem, cross_entropy, integers, load, problem

VOCABULARY = 512


def _tokens(rows: int, length: int) -> jax.Array:
    return integers(VOCABULARY, rows, length)


def _hugging_face(model: Any, inputs: dict[str, jax.Array], labels: jax.Array) -> Problem:
    """A Flax model of Transformers, dropout on."""

    def loss(params: Any, batch: Any) -> jax.Array:
        inputs, labels, key = batch
        return cross_entropy(model(**inputs, params=params, dropout_rng=key, train=True).logits, labels)

    return Problem(loss, model.params, (inputs, labels, jax.random.PRNGKey(1)))


@problem("transformers", "BERT, masked language model, dropout")
def bert() -> Problem:
    """4 layers of width 128 on 8 x 128 tokens."""
    hf = load("transformers")
    config = hf.BertConfig(VOCABULARY, 128, 4, 4, 512, max_position_embeddings=128)
    tokens = _tokens(8, 128)
    return _hugging_face(hf.FlaxBertForMaskedLM(config, seed=0), {"input_ids": tokens}, tokens)


@problem("transformers", "BART, encoder and decoder, dropout")
def bart() -> Problem:
    """3 and 3 layers of width 128 on 8 x 96 and 8 x 64 tokens."""
    hf = load("transformers")
    config = hf.BartConfig(VOCABULARY, 128, 3, 512, 4, 3, 512, 4, d_model=128)
    model = hf.FlaxBartForConditionalGeneration(config, seed=0)
    source, goal = _tokens(8, 96), _tokens(8, 64)
    return _hugging_face(model, {"input_ids": source, "decoder_input_ids": goal}, goal)


@problem("transformers", "Llama, causal language model")
def llama() -> Problem:
    """4 layers of width 128, 4 heads for queries and 2 for keys, on 8 x 128 tokens."""
    hf = load("transformers")
    config = hf.LlamaConfig(VOCABULARY, 128, 344, 4, 4, 2, max_position_embeddings=128)
    tokens = _tokens(8, 128)
    return _hugging_face(hf.FlaxLlamaForCausalLM(config, seed=0), {"input_ids": tokens}, tokens)


@problem("transformers", "Wav2Vec2, speech, CTC logits")
def wav2vec2() -> Problem:
    """A convolutional encoder of 7 layers and 3 transformer layers of width 96 on 4 x 8000 samples."""
    hf = load("transformers")
    config = hf.Wav2Vec2Config(
        *(32, 96, 3, 4, 384), conv_dim=(64,) * 7, num_conv_pos_embeddings=16, num_conv_pos_embedding_groups=4,
        feat_extract_norm="layer", do_stable_layer_norm=True, apply_spec_augment=False,
    )  # fmt: skip
    model = hf.FlaxWav2Vec2ForCTC(config, input_shape=(1, 8000), seed=0)
    wave = jnp.sin(jnp.arange(4 * 8000, dtype=jnp.float32).reshape(4, 8000) / 7)
    frames = jax.eval_shape(lambda x: model(x).logits, wave).shape[1]
    return _hugging_face(model, {"input_values": wave}, integers(32, 4, frames))


@problem("recurrentgemma", "Griffin: recurrent and local attention layers")
def griffin() -> Problem:
    """Six layers of width 128, on 4 x 128 tokens."""
    common, model = load("recurrentgemma.common"), load("recurrentgemma.jax.griffin")
    kind = common.TemporalBlockType
    layers = (kind.RECURRENT, kind.RECURRENT, kind.ATTENTION) * 2
    config = common.GriffinConfig(
        VOCABULARY, 128, 384, 4, layers, True, 64, 30.0, scan_type=common.ScanType.ASSOCIATIVE_NATIVE
    )
    module, tokens = model.Griffin(config), _tokens(4, 128)
    places = jnp.broadcast_to(jnp.arange(128), tokens.shape)
    params = module.init(jax.random.key(0), tokens, places)

    def loss(params: Any, batch: Any) -> jax.Array:
        tokens, places = batch
        return cross_entropy(module.apply(params, tokens, places)[0], tokens)

    return Problem(loss, params, (tokens, places))


@problem("penzai", "Llama-like transformer of named arrays")
def penzai() -> Problem:
    """4 layers of width 128 on 8 x 128 tokens."""
    pz = load("penzai.pz")
    common = load("penzai.models.transformer.variants.llamalike_common")
    config = common.LlamalikeTransformerConfig(
        num_kv_heads=2, query_head_multiplier=2, embedding_dim=128, projection_dim=32, mlp_hidden_dim=384,
        num_decoder_blocks=4, vocab_size=VOCABULARY, mlp_variant="swiglu", tie_embedder_and_logits=False,
    )  # fmt: skip
    model = common.build_llamalike_transformer(config, jax.random.key(0))
    whole, params = pz.unbind_params(model, freeze=True)

    def loss(params: Any, tokens: jax.Array) -> jax.Array:
        named = pz.nx.wrap(tokens).tag("batch", "seq")
        places = pz.nx.arange("seq", tokens.shape[1])
        logits = pz.bind_variables(whole, params)(named, token_positions=places)
        return cross_entropy(logits.unwrap("batch", "seq", "vocabulary"), tokens)

    return Problem(loss, params, _tokens(8, 128))
