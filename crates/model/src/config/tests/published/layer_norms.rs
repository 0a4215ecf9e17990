//! Those with layer norms.

use super::*;
use spec::model::Mlp;

/// c4ai-command-r-v01.
fn command_r() -> Value {
    json!({"architectures": ["CohereForCausalLM"], "attention_bias": false, "bos_token_id": 5, "eos_token_id": 255_001,
        "hidden_act": "silu", "hidden_size": 8192, "intermediate_size": 22528, "layer_norm_eps": 1e-5, "logit_scale": 0.0625,
        "max_position_embeddings": 8192, "model_max_length": 131_072, "model_type": "cohere", "num_attention_heads": 64,
        "num_hidden_layers": 40, "num_key_value_heads": 64, "pad_token_id": 0, "rope_theta": 8_000_000.0,
        "torch_dtype": "float16", "use_qk_norm": false, "vocab_size": 256_000})
}

/// c4ai-command-r7b-12-2024.
fn command_r7b() -> Value {
    json!({"architectures": ["Cohere2ForCausalLM"], "attention_bias": false, "bos_token_id": 5, "eos_token_id": 255_001,
        "head_dim": 128, "hidden_act": "silu", "hidden_size": 4096, "intermediate_size": 14336, "layer_norm_eps": 1e-5,
        "layer_switch": 4, "logit_scale": 0.25, "max_position_embeddings": 132_096, "model_type": "cohere2",
        "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 8, "order_of_interleaved_layers": "local_attn_first",
        "pad_token_id": 0, "position_embedding_type": "rope_gptj", "rope_scaling": null, "rope_theta": 50000, "rotary_pct": 1.0,
        "sliding_window": 4096, "sliding_window_pattern": 4, "torch_dtype": "bfloat16", "use_embedding_sharing": true,
        "use_gated_activation": true, "use_parallel_block": true, "use_parallel_embedding": true, "vocab_size": 256_000})
}

fn phi_2() -> Value {
    json!({"architectures": ["PhiForCausalLM"], "bos_token_id": 50256, "embd_pdrop": 0.0, "eos_token_id": 50256,
        "hidden_act": "gelu_new", "hidden_size": 2560, "intermediate_size": 10240, "layer_norm_eps": 1e-5,
        "max_position_embeddings": 2048, "model_type": "phi", "num_attention_heads": 32, "num_hidden_layers": 32,
        "num_key_value_heads": 32, "partial_rotary_factor": 0.4, "qk_layernorm": false, "resid_pdrop": 0.1, "rope_scaling": null,
        "rope_theta": 10000.0, "tie_word_embeddings": false, "torch_dtype": "float16", "vocab_size": 51200})
}

/// pythia-160m.
fn pythia() -> Value {
    json!({"architectures": ["GPTNeoXForCausalLM"], "bos_token_id": 0, "eos_token_id": 0, "hidden_act": "gelu", "hidden_size": 768,
        "intermediate_size": 3072, "layer_norm_eps": 1e-5, "max_position_embeddings": 2048, "model_type": "gpt_neox",
        "num_attention_heads": 12, "num_hidden_layers": 12, "rotary_emb_base": 10000, "rotary_pct": 0.25,
        "tie_word_embeddings": false, "torch_dtype": "float16", "use_parallel_residual": true, "vocab_size": 50304})
}

/// starcoder2-3b.
fn starcoder_2() -> Value {
    json!({"architectures": ["Starcoder2ForCausalLM"], "bos_token_id": 0, "eos_token_id": 0, "hidden_act": "gelu_pytorch_tanh",
        "hidden_size": 3072, "intermediate_size": 12288, "max_position_embeddings": 16384, "mlp_type": "default",
        "model_type": "starcoder2", "norm_epsilon": 1e-5, "norm_type": "layer_norm", "num_attention_heads": 24,
        "num_hidden_layers": 30, "num_key_value_heads": 2, "rope_theta": 999_999.442_036_565_3, "sliding_window": 4096,
        "use_bias": true, "vocab_size": 49152})
}

/// stablelm-3b-4e1t.
fn stablelm() -> Value {
    json!({"architectures": ["StableLmForCausalLM"], "bos_token_id": 0, "eos_token_id": 0, "hidden_act": "silu", "hidden_size": 2560,
        "intermediate_size": 6912, "layer_norm_eps": 1e-5, "max_position_embeddings": 4096, "model_type": "stablelm",
        "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 32, "partial_rotary_factor": 0.25,
        "rope_theta": 10000, "tie_word_embeddings": false, "torch_dtype": "bfloat16", "use_qkv_bias": false, "vocab_size": 50304})
}

#[test]
fn they_have_as_many_weights_as_were_published() {
    let all = [
        (command_r(), 34_980_831_232),
        (phi_2(), 2_779_683_840),
        (pythia(), 162_322_944),
        (starcoder_2(), 3_030_371_328),
        (stablelm(), 2_795_443_200),
    ];
    for (config, weights) in all {
        assert_eq!(read(config.clone()).parameters(), weights, "{config}");
    }
    let thousands_of_millions = read(command_r7b()).parameters() as f64 / 1e9;
    assert_eq!((thousands_of_millions * 100.0).round(), 803.0);
}

#[test]
fn where_their_norms_stand_and_what_turns() {
    let of = |config| {
        let spec = read(config);
        (spec.placement, spec.rope().map(|rope| rope.rotary_dims(spec.head_dim)))
    };
    assert_eq!(of(command_r()), (NormPlacement::Shared, Some(128)));
    assert_eq!(of(phi_2()), (NormPlacement::Shared, Some(32)));
    assert_eq!(of(pythia()), (NormPlacement::Parallel, Some(16)));
    assert_eq!(of(starcoder_2()), (NormPlacement::Pre, Some(128)));
    assert_eq!(of(stablelm()), (NormPlacement::Pre, Some(20)));
    let mut config = pythia();
    config["use_parallel_residual"] = json!(false);
    assert_eq!(of(config).0, NormPlacement::Pre);
    let mut config = stablelm();
    config["use_parallel_residual"] = json!(true);
    assert_eq!(of(config).0, NormPlacement::Shared);
    // Its layers that see everything know no positions.
    let spec = read(command_r7b());
    let layer = |layer| (spec.window_of(layer), spec.rope_of(layer).is_some());
    assert_eq!([2, 3, 4].map(layer), [(Some(4096), true), (None, false), (Some(4096), true)]);
}

#[test]
fn what_they_do_not_say_is_what_transformers_knows() {
    let without = |mut config: Value, fields: &[&str]| {
        fields.iter().for_each(|field| _ = config.as_object_mut().unwrap().remove(*field));
        read(config)
    };
    let known =
        ["layer_norm_eps", "logit_scale", "hidden_act", "bos_token_id", "eos_token_id", "attention_bias"];
    assert_eq!(without(command_r(), &known), read(command_r()));
    assert_eq!(without(command_r7b(), &["sliding_window", "sliding_window_pattern"]), read(command_r7b()));
    assert_eq!(
        without(
            pythia(),
            &["rotary_pct", "rotary_emb_base", "layer_norm_eps", "use_parallel_residual", "hidden_act"]
        ),
        read(pythia())
    );
    assert_eq!(
        without(starcoder_2(), &["use_bias", "norm_epsilon", "num_key_value_heads", "hidden_act"]),
        read(starcoder_2())
    );
    assert_eq!(
        without(stablelm(), &["partial_rotary_factor", "bos_token_id", "eos_token_id", "use_qkv_bias"]),
        read(stablelm())
    );
    assert_eq!(without(phi_2(), &["hidden_act", "layer_norm_eps", "num_key_value_heads"]), read(phi_2()));
    assert_eq!(
        without(phi_2(), &["partial_rotary_factor"]).rope().map(|rope| rope.rotary_fraction),
        Some(0.5)
    );
    // As transformers 5 writes it.
    let mut config = pythia();
    config["rope_parameters"] =
        json!({"partial_rotary_factor": 0.25, "rope_theta": 10000.0, "rope_type": "default"});
    assert_eq!(without(config, &["rotary_pct", "rotary_emb_base"]), read(pythia()));
}

#[test]
fn rotary_parameters_of_two_names_agree_or_are_refused() {
    let mut config = pythia();
    (config["rope_theta"], config["partial_rotary_factor"]) = (json!(10000), json!(0.25));
    assert_eq!(read(config.clone()), read(pythia()));
    for (name, known) in [("rope_theta", "rotary_emb_base"), ("partial_rotary_factor", "rotary_pct")] {
        let mut other = config.clone();
        other[name] = json!(0.5);
        other.as_object_mut().unwrap().remove(known);
        assert!(refused(other).contains(known), "{name}");
    }
}

/// Minitron-4B-Base.
fn minitron() -> Value {
    json!({"architectures": ["NemotronForCausalLM"], "attention_bias": false, "bos_token_id": 2, "eos_token_id": 3, "head_dim": 128,
        "hidden_act": "relu2", "hidden_size": 3072, "intermediate_size": 9216, "max_position_embeddings": 4096, "mlp_bias": false,
        "model_type": "nemotron", "norm_eps": 1e-5, "num_attention_heads": 24, "num_hidden_layers": 32, "num_key_value_heads": 8,
        "partial_rotary_factor": 0.5, "rope_theta": 10000, "tie_word_embeddings": false, "torch_dtype": "bfloat16",
        "vocab_size": 256_000})
}

#[test]
fn minitron_has_layer_norms_from_one_and_squares() {
    let spec = read(minitron());
    assert_eq!(
        (spec.parameters(), spec.mlp, spec.activation),
        (4_190_509_056, Mlp::Plain, Activation::Relu2)
    );
    assert!(spec.norm.from_one && spec.norm.shift && spec.norm.kind == NormKind::Layer);
    let mut silent = minitron();
    for known in
        ["hidden_act", "norm_eps", "partial_rotary_factor", "rope_theta", "bos_token_id", "eos_token_id"]
    {
        silent.as_object_mut().unwrap().remove(known);
    }
    assert_eq!(read(silent), spec);
}

#[test]
fn command_r_plus_has_layer_norms_of_heads() {
    let mut config = command_r();
    for (field, value) in [
        ("hidden_size", 12288),
        ("intermediate_size", 33792),
        ("num_attention_heads", 96),
        ("num_hidden_layers", 64),
        ("num_key_value_heads", 8),
    ] {
        config[field] = json!(value);
    }
    config["use_qk_norm"] = json!(true);
    let spec = read(config);
    assert_eq!((spec.parameters(), spec.qk_norm), (103_810_674_688, QkNorm::OwnHeads));
    assert_eq!((spec.qk_norm_width(), spec.qk_norm_parts()), (Some([96 * 128, 8 * 128]), [96, 8]));
}

#[test]
fn layer_norms_of_heads_are_refused() {
    for (mut config, field) in
        [(phi_2(), "qk_layernorm"), (stablelm(), "qk_layernorm"), (command_r7b(), "use_qk_norm")]
    {
        config[field] = json!(true);
        assert!(refused(config).contains(field), "{field}");
    }
}
