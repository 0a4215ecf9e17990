"""The table of checkpoints: one for every architecture, RoPE variant and shape that a loader can get wrong."""
import copy
from dataclasses import dataclass, field

PROMPT = 44    # tokens; past one 32-token KV block, past every window and original RoPE length below
LONG = 300     # past two of the 128-position steps of attention


@dataclass(frozen=True)
class Variant:
    """One checkpoint. `config` is committed as config.json, word for word."""
    name: str
    config: dict
    # Changes to the config that must change the logits, or the variant would test nothing; see reference.check_power.
    without: tuple = ()
    seed: int = 0
    dtype: str = "bfloat16"          # of the stored tensors
    shards: int = 1
    prompt: int = PROMPT
    # What files call a tensor that transformers now calls otherwise.
    names: dict = field(default_factory=dict)
    # What they begin names with, where transformers now begins them otherwise.
    before: dict = field(default_factory=dict)
    tokenizer: str = ""              # where the chat template goes: "config" or "jinja"; "" for no tokenizer


def llama(**changes):
    """Llama's config, 2 layers of 4 heads of 16, in the dialect of transformers 4 (rope_theta at the top)."""
    base = dict(
        architectures=["LlamaForCausalLM"], model_type="llama", torch_dtype="bfloat16", vocab_size=96,
        hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=4,
        hidden_act="silu", rms_norm_eps=1e-5, max_position_embeddings=512, rope_theta=10000.0,
        tie_word_embeddings=False, attention_bias=False, mlp_bias=False, bos_token_id=1, eos_token_id=2)
    return edit(base, **changes)


def edit(config, **changes):
    """A copy with these keys set; None removes a key."""
    out = copy.deepcopy(config) | changes
    return {k: v for k, v in out.items() if v is not None}


# RoPE variants share one set of weights: heads of 32, so that every band of llama3 and yarn has frequencies in it.
ROPE = llama(num_attention_heads=2, num_key_value_heads=1, intermediate_size=64,
             max_position_embeddings=128)
LLAMA3 = dict(factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=32)
YARN = dict(factor=4.0, original_max_position_embeddings=32)


def rope4(name, scaling, **changes):
    """A scaled RoPE as transformers 4 wrote it: rope_theta beside rope_scaling."""
    config = edit(ROPE, rope_scaling=scaling, **changes)
    return Variant(name, config, without=(dict(rope_scaling=None),))


def rope5(name, parameters, **changes):
    """The same as transformers 5 writes it: everything in rope_parameters, dtype for torch_dtype."""
    plain = dict(rope_theta=10000.0, rope_type="default")
    config = edit(ROPE, rope_parameters=dict(rope_theta=10000.0) | parameters, rope_theta=None, torch_dtype=None,
                  dtype="bfloat16", **changes)
    return Variant(name, config, without=(dict(rope_parameters=plain),))


MISTRAL = edit(llama(architectures=["MistralForCausalLM"], model_type="mistral", num_key_value_heads=2,
                     sliding_window=20), attention_bias=None, mlp_bias=None)
QWEN2 = edit(llama(architectures=["Qwen2ForCausalLM"], model_type="qwen2", num_key_value_heads=2, rms_norm_eps=1e-6,
                   rope_theta=1000000.0, tie_word_embeddings=True, use_sliding_window=False, sliding_window=16,
                   max_window_layers=2), attention_bias=None, mlp_bias=None)
QWEN2_WINDOW = edit(QWEN2, use_sliding_window=True, max_window_layers=1, num_hidden_layers=3)
QWEN3 = edit(QWEN2, architectures=["Qwen3ForCausalLM"], model_type="qwen3", head_dim=32, attention_bias=False,
             tie_word_embeddings=False, sliding_window=None, max_window_layers=None, rope_theta=None, torch_dtype=None,
             dtype="bfloat16", vocab_size=304, rope_parameters=dict(rope_theta=1000000.0, rope_type="default"))
# As it was published: the decoder's fields outside, what sees as small as it can be.
QWEN25_VL = edit(QWEN2, architectures=["Qwen2_5_VLForConditionalGeneration"], model_type="qwen2_5_vl", tie_word_embeddings=False,
                 rope_scaling=dict(type="mrope", mrope_section=[2, 3, 3]), image_token_id=0, video_token_id=1, vision_start_token_id=2,
                 vision_end_token_id=2, vision_config=dict(
                     depth=1, hidden_size=16, intermediate_size=16, num_heads=1, out_hidden_size=64, patch_size=2,
                     temporal_patch_size=1, spatial_merge_size=1, fullatt_block_indexes=[0]))
QWEN3_VL = dict(
    architectures=["Qwen3VLForConditionalGeneration"], model_type="qwen3_vl", tie_word_embeddings=False, image_token_id=0, video_token_id=1,
    vision_start_token_id=2, vision_end_token_id=2, eos_token_id=2, text_config=edit(
        QWEN3, architectures=None, model_type="qwen3_vl_text", vocab_size=96, use_sliding_window=None, rope_parameters=None, rope_theta=5000000.0,
        rope_scaling=dict(rope_type="default", mrope_interleaved=True, mrope_section=[6, 5, 5])),
    vision_config=dict(model_type="qwen3_vl", depth=1, hidden_size=16, intermediate_size=16, num_heads=1, out_hidden_size=64, patch_size=2,
                       temporal_patch_size=1, spatial_merge_size=1, num_position_embeddings=4, deepstack_visual_indexes=[0]))
PHI3 = edit(llama(architectures=["Phi3ForCausalLM"], model_type="phi3", num_key_value_heads=2, pad_token_id=0,
                  original_max_position_embeddings=512), attention_bias=None, mlp_bias=None)
# 12 of 16 pairs of dimensions turn.
LONGROPE = edit(PHI3, num_attention_heads=2, num_key_value_heads=1, partial_rotary_factor=0.75, max_position_embeddings=128,
                original_max_position_embeddings=32, rope_scaling=dict(
                    type="longrope", short_factor=[1.0 + 0.1 * i for i in range(12)],
                    long_factor=[1.0 + 0.5 * i for i in range(12)]))
SMOLLM3 = edit(llama(architectures=["SmolLM3ForCausalLM"], model_type="smollm3", num_key_value_heads=2, pad_token_id=0,
                     num_hidden_layers=4, intermediate_size=64, tie_word_embeddings=True, use_sliding_window=False,
                     rope_theta=50000.0))
GRANITE = llama(architectures=["GraniteForCausalLM"], model_type="granite", num_key_value_heads=2, pad_token_id=0,
                embedding_multiplier=3.0, attention_multiplier=0.5, residual_multiplier=0.4,
                logits_scaling=2.0)
# The last of three layers sees everything, by frequencies of its own.
GEMMA3 = dict(
    architectures=["Gemma3ForCausalLM"], model_type="gemma3_text", torch_dtype="bfloat16", vocab_size=96, hidden_size=64,
    intermediate_size=96, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2, head_dim=32,
    hidden_activation="gelu_pytorch_tanh", rms_norm_eps=1e-6, max_position_embeddings=512, rope_theta=20000.0,
    rope_local_base_freq=100.0, rope_scaling=dict(rope_type="linear", factor=4.0), sliding_window=20,
    sliding_window_pattern=3, query_pre_attn_scalar=16, attention_bias=False, tie_word_embeddings=False, bos_token_id=2, eos_token_id=1,
    pad_token_id=0)
# The same as transformers 5 writes it.
GEMMA3_V5 = edit(GEMMA3, rope_theta=None, rope_local_base_freq=None, rope_scaling=None, sliding_window_pattern=None,
                 torch_dtype=None, dtype="bfloat16",
                 layer_types=["sliding_attention", "full_attention", "sliding_attention"],
                 rope_parameters=dict(full_attention=dict(rope_type="linear", factor=4.0, rope_theta=20000.0),
                                      sliding_attention=dict(rope_type="default", rope_theta=100.0)))
# Every other layer has a window; caps so low that scores and logits come near them.
GEMMA2 = edit(GEMMA3, architectures=["Gemma2ForCausalLM"], model_type="gemma2", rope_local_base_freq=None, rope_scaling=None,
              sliding_window_pattern=None, attn_logit_softcapping=0.5, final_logit_softcapping=12.0)
GEMMA = edit(GEMMA2, architectures=["GemmaForCausalLM"], model_type="gemma", attn_logit_softcapping=None,
             final_logit_softcapping=None, sliding_window=None, query_pre_attn_scalar=None, hidden_activation=None,
             hidden_act="gelu_pytorch_tanh", num_hidden_layers=2, num_key_value_heads=1)
OLMO2 = edit(llama(architectures=["Olmo2ForCausalLM"], model_type="olmo2", num_key_value_heads=2, pad_token_id=0,
                   rope_theta=500000.0), mlp_bias=None)
# The last of three layers sees everything, by frequencies that yarn stretches.
OLMO3 = edit(OLMO2, architectures=["Olmo3ForCausalLM"], model_type="olmo3", num_hidden_layers=3, num_attention_heads=2,
             num_key_value_heads=1, intermediate_size=64, max_position_embeddings=128, sliding_window=20,
             layer_types=["sliding_attention", "sliding_attention", "full_attention"],
             rope_scaling=YARN | dict(rope_type="yarn", attention_factor=1.25))
# Queries grow at every sixteenth position.
MINISTRAL3 = edit(MISTRAL, architectures=["Ministral3ForCausalLM"], model_type="ministral3", sliding_window=None,
                  rope_theta=None, num_attention_heads=2, num_key_value_heads=1, head_dim=32, intermediate_size=64,
                  max_position_embeddings=128, torch_dtype=None, dtype="bfloat16", pad_token_id=0,
                  rope_parameters=dict(rope_theta=10000.0, rope_type="yarn", factor=8.0, beta_fast=32.0, beta_slow=1.0,
                                       original_max_position_embeddings=16, mscale=1.0, mscale_all_dim=1.0,
                                       llama_4_scaling_beta=0.5))
SEED_OSS = edit(llama(architectures=["SeedOssForCausalLM"], model_type="seed_oss", num_key_value_heads=2, head_dim=32, pad_token_id=1,
                      bos_token_id=0, attention_bias=True, attention_out_bias=False, residual_dropout=0.1, rope_theta=100000.0))
# The last of three layers sees everything, and turns nothing.
EXAONE4 = edit(llama(architectures=["Exaone4ForCausalLM"], model_type="exaone4", num_key_value_heads=2, num_hidden_layers=3,
                     intermediate_size=64, pad_token_id=0, sliding_window=20, sliding_window_pattern="LLG",
                     layer_types=["sliding_attention", "sliding_attention", "full_attention"]), attention_bias=None, mlp_bias=None)
GRANITE4 = edit(GRANITE, architectures=["GraniteMoeHybridForCausalLM"], model_type="granitemoehybrid", mlp_bias=None,
                shared_intermediate_size=96, intermediate_size=40, num_local_experts=0, num_experts_per_tok=0,
                position_embedding_type="rope", layer_types=["attention"] * 2, mamba_n_heads=8)
# Half of each head turns, pair by pair.
GLM4 = edit(llama(architectures=["Glm4ForCausalLM"], model_type="glm4", num_key_value_heads=2, head_dim=32, attention_bias=True,
                  partial_rotary_factor=0.5, pad_token_id=0, eos_token_id=[2, 3], intermediate_size=64), bos_token_id=None, mlp_bias=None)
GLM = edit(GLM4, architectures=["GlmForCausalLM"], model_type="glm")
ERNIE45 = edit(llama(architectures=["Ernie4_5ForCausalLM"], model_type="ernie4_5", num_key_value_heads=2, head_dim=32, rope_theta=500000.0,
                     tie_word_embeddings=False, use_bias=True, pad_token_id=0), attention_bias=None, mlp_bias=None)
# Attention and MLP read one norm; logits have a factor, and heads turn pair by pair.
COHERE = edit(llama(architectures=["CohereForCausalLM"], model_type="cohere", num_key_value_heads=2, head_dim=16, layer_norm_eps=1e-5,
                    logit_scale=1.5, tie_word_embeddings=True, pad_token_id=0, intermediate_size=64), rms_norm_eps=None, mlp_bias=None)
# The last of three layers sees everything, and turns nothing.
COHERE2 = edit(COHERE, architectures=["Cohere2ForCausalLM"], model_type="cohere2", num_hidden_layers=3, sliding_window=20,
               sliding_window_pattern=3, torch_dtype=None, dtype="bfloat16")
PHI = edit(llama(architectures=["PhiForCausalLM"], model_type="phi", hidden_act="gelu_new", layer_norm_eps=1e-5, partial_rotary_factor=0.5,
                 num_attention_heads=2, num_key_value_heads=2, qk_layernorm=False, embd_pdrop=0.0, resid_pdrop=0.1), rms_norm_eps=None, mlp_bias=None,
           attention_bias=None)
NEOX = edit(llama(architectures=["GPTNeoXForCausalLM"], model_type="gpt_neox", hidden_act="gelu", layer_norm_eps=1e-5, rotary_pct=0.25,
                  rotary_emb_base=5000, use_parallel_residual=True, num_attention_heads=2, torch_dtype="float16"),
            rms_norm_eps=None, mlp_bias=None, attention_bias=None, rope_theta=None, num_key_value_heads=None)
STARCODER2 = edit(llama(architectures=["Starcoder2ForCausalLM"], model_type="starcoder2", hidden_act="gelu_pytorch_tanh", norm_epsilon=1e-5,
                        num_key_value_heads=2, use_bias=True, sliding_window=20), rms_norm_eps=None, mlp_bias=None, attention_bias=None)
# A plain MLP of squares; of Nemotron half of each head turns, and norms are held less 1.
ARCEE = edit(llama(architectures=["ArceeForCausalLM"], model_type="arcee", hidden_act="relu2", num_key_value_heads=2, pad_token_id=0))
NEMOTRON = edit(llama(architectures=["NemotronForCausalLM"], model_type="nemotron", hidden_act="relu2", norm_eps=1e-5, num_attention_heads=2,
                      num_key_value_heads=1, partial_rotary_factor=0.5, pad_token_id=0), rms_norm_eps=None)
STABLELM = edit(llama(architectures=["StableLmForCausalLM"], model_type="stablelm", layer_norm_eps=1e-5, num_attention_heads=2,
                      num_key_value_heads=1, partial_rotary_factor=0.25, use_qkv_bias=True, use_parallel_residual=False),
                rms_norm_eps=None, mlp_bias=None, attention_bias=None)
OPT = dict(
    architectures=["OPTForCausalLM"], model_type="opt", torch_dtype="float16", vocab_size=96, hidden_size=64,
    ffn_dim=128, num_hidden_layers=2, num_attention_heads=4, word_embed_proj_dim=64, max_position_embeddings=128,
    activation_function="relu", do_layer_norm_before=True, enable_bias=True, layer_norm_elementwise_affine=True,
    dropout=0.1, attention_dropout=0.0, layerdrop=0.0, init_std=0.02, bos_token_id=2, eos_token_id=2, pad_token_id=1)
OPT_350M = edit(OPT, do_layer_norm_before=False, word_embed_proj_dim=32, _remove_final_layer_norm=False)

CHECKPOINTS = (
    Variant("llama", llama(vocab_size=304), tokenizer="config"),
    Variant("llama-gqa-tied", llama(num_key_value_heads=2, tie_word_embeddings=True), seed=1, prompt=PROMPT + 5),
    # Nothing divides: feed-forward 100, vocabulary 101, heads of 80, and biases everywhere.
    Variant("llama-odd", llama(hidden_size=160, num_attention_heads=2, num_key_value_heads=1, intermediate_size=100,
                               num_hidden_layers=1, vocab_size=101, attention_bias=True, mlp_bias=True), seed=2),
    Variant("llama-sharded", llama(num_key_value_heads=1), seed=3, shards=3),
    Variant("llama-long", llama(num_key_value_heads=2, tie_word_embeddings=True), seed=1, prompt=LONG),
    rope4("llama-linear-v4", dict(type="linear", factor=4.0)),
    rope4("llama-dynamic-v4", dict(type="dynamic", factor=4.0), max_position_embeddings=32),
    rope5("llama-linear-v5", dict(rope_type="linear", factor=4.0)),
    rope5("llama-dynamic-v5", dict(rope_type="dynamic", factor=4.0), max_position_embeddings=32),
    rope4("llama-llama3-v4", LLAMA3 | dict(rope_type="llama3")),
    rope5("llama-llama3-v5", LLAMA3 | dict(rope_type="llama3")),
    rope4("llama-yarn-v4", YARN | dict(rope_type="yarn")),
    rope5("llama-yarn-v5", YARN | dict(rope_type="yarn", beta_fast=8.0, beta_slow=2.0, attention_factor=1.25)),
    # DeepSeek's way to say the temperature, and a ramp between dimensions that are not whole.
    rope5("llama-yarn-mscale", YARN | dict(rope_type="yarn", mscale=0.9, mscale_all_dim=0.4)),
    rope5("llama-yarn-ramp", YARN | dict(rope_type="yarn", truncate=False)),
    Variant("mistral", MISTRAL, seed=4, without=(dict(sliding_window=None), dict(sliding_window=21))),
    Variant("mistral-long", MISTRAL | dict(sliding_window=100), seed=4, prompt=LONG,
            without=(dict(sliding_window=512), dict(sliding_window=101))),
    Variant("qwen2", QWEN2, seed=5, without=(dict(use_sliding_window=True, max_window_layers=0),)),
    Variant("qwen2-window", QWEN2_WINDOW, seed=6,
            without=(dict(use_sliding_window=False), dict(max_window_layers=0), dict(max_window_layers=2))),
    Variant("qwen3", QWEN3, seed=7, tokenizer="jinja"),
    Variant("qwen2.5-vl", QWEN25_VL, seed=46, before={"model.language_model.": "model.", "model.visual.": "visual."},
            without=(dict(rope_theta=10000.0),)),
    Variant("qwen3-vl", QWEN3_VL, seed=47),
    Variant("phi3", PHI3 | dict(sliding_window=20), seed=10, without=(dict(sliding_window=None),)),
    Variant("phi3-longrope", LONGROPE, seed=11, without=(dict(rope_scaling=None),)),
    # With what is generated it just fills the original context: short sequences' frequencies.
    Variant("phi3-longrope-short", LONGROPE, seed=11, prompt=16, without=(dict(rope_scaling=None),)),
    Variant("smollm3", SMOLLM3 | dict(num_hidden_layers=3, no_rope_layers=[1, 0, 1]), seed=12,
            without=(dict(no_rope_layers=[1, 1, 1]), dict(no_rope_layers=[1, 0, 0]))),
    Variant("granite", GRANITE, seed=13, without=tuple({name: 1.0} for name in (
        "embedding_multiplier", "attention_multiplier", "residual_multiplier", "logits_scaling"))),
    Variant("gemma", GEMMA, seed=35),
    Variant("gemma2", GEMMA2, seed=36,
            without=(dict(attn_logit_softcapping=50.0), dict(final_logit_softcapping=None), dict(sliding_window=512),
                     dict(query_pre_attn_scalar=128))),
    Variant("gemma3", GEMMA3, seed=14,
            without=(dict(sliding_window=512), dict(rope_local_base_freq=20000.0), dict(rope_scaling=None),
                     dict(query_pre_attn_scalar=64), dict(sliding_window_pattern=2))),
    Variant("gemma3-v5", GEMMA3_V5, seed=14),
    Variant("olmo2", OLMO2, seed=15),
    Variant("olmo3", OLMO3, seed=16,
            without=(dict(sliding_window=512), dict(rope_scaling=None), dict(layer_types=["full_attention"] * 3))),
    Variant("ministral3", MINISTRAL3, seed=17, without=(
        dict(rope_parameters=MINISTRAL3["rope_parameters"] | dict(llama_4_scaling_beta=0.0)),)),
    Variant("seed-oss", SEED_OSS, seed=18),
    Variant("exaone4", EXAONE4, seed=21, without=(dict(sliding_window=512), dict(layer_types=["sliding_attention"] * 3))),
    Variant("exaone4-full", EXAONE4 | dict(sliding_window=None, layer_types=["full_attention"] * 3),
            seed=31, without=(dict(sliding_window=512),)),
    Variant("granite4", GRANITE4, seed=20, without=(dict(position_embedding_type=None),)),
    Variant("glm", GLM, seed=32, without=(dict(partial_rotary_factor=1.0),)),
    Variant("glm4", GLM4, seed=33, without=(dict(partial_rotary_factor=1.0),)),
    Variant("ernie4_5", ERNIE45, seed=34, without=(dict(rope_theta=10000.0),)),
    Variant("cohere", COHERE, seed=45, without=(dict(logit_scale=1.0),)),
    Variant("cohere-plus", COHERE | dict(use_qk_norm=True), seed=48, without=(dict(use_qk_norm=False),)),
    Variant("cohere2", COHERE2, seed=38, without=(dict(sliding_window=512), dict(sliding_window_pattern=2))),
    Variant("phi", PHI, seed=39, without=(dict(partial_rotary_factor=1.0),)),
    Variant("gpt-neox", NEOX, seed=40, dtype="float16", names={"lm_head.weight": "embed_out.weight"},
            without=(dict(use_parallel_residual=False), dict(rotary_pct=1.0), dict(rotary_emb_base=100))),
    Variant("gpt-neox-behind", NEOX | dict(use_parallel_residual=False, attention_bias=False), seed=41, dtype="float16",
            without=(dict(use_parallel_residual=True),)),
    Variant("starcoder2", STARCODER2, seed=42, without=(dict(sliding_window=None),)),
    Variant("stablelm", STABLELM, seed=43, without=(dict(partial_rotary_factor=1.0),)),
    Variant("stablelm-beside", STABLELM | dict(use_parallel_residual=True, use_qkv_bias=False), seed=44),
    Variant("arcee", ARCEE, seed=50, without=(dict(hidden_act="relu"),)),
    Variant("nemotron", NEMOTRON, seed=51, without=(dict(hidden_act="relu"), dict(partial_rotary_factor=1.0))),
    Variant("opt", OPT, seed=8, dtype="float16"),
    Variant("opt-350m", OPT_350M | dict(torch_dtype="float32", hidden_size=32, word_embed_proj_dim=16, ffn_dim=64,
                                        num_attention_heads=2), seed=9, dtype="float32"),
)
