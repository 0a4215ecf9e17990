//! Gemma, from the first to the third.

use super::*;

/// gemma-7b-it.
fn gemma_7b() -> Value {
    json!({"architectures": ["GemmaForCausalLM"], "attention_bias": false, "bos_token_id": 2, "eos_token_id": 1,
        "head_dim": 256, "hidden_act": "gelu", "hidden_activation": null, "hidden_size": 3072, "intermediate_size": 24576,
        "max_position_embeddings": 8192, "model_type": "gemma", "num_attention_heads": 16, "num_hidden_layers": 28,
        "num_key_value_heads": 16, "pad_token_id": 0, "rms_norm_eps": 1e-6, "rope_scaling": null, "rope_theta": 10000.0,
        "torch_dtype": "bfloat16", "vocab_size": 256_000})
}

/// gemma-2-27b-it.
fn gemma_2_27b() -> Value {
    json!({"architectures": ["Gemma2ForCausalLM"], "attention_bias": false, "attn_logit_softcapping": 50.0,
        "bos_token_id": 2, "eos_token_id": 1, "final_logit_softcapping": 30.0, "head_dim": 128,
        "hidden_act": "gelu_pytorch_tanh", "hidden_activation": "gelu_pytorch_tanh", "hidden_size": 4608,
        "intermediate_size": 36864, "max_position_embeddings": 8192, "model_type": "gemma2", "num_attention_heads": 32,
        "num_hidden_layers": 46, "num_key_value_heads": 16, "pad_token_id": 0, "query_pre_attn_scalar": 144,
        "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "sliding_window": 4096, "torch_dtype": "bfloat16",
        "vocab_size": 256_000})
}

/// gemma-3-1b-it.
fn gemma_1b() -> Value {
    json!({"architectures": ["Gemma3ForCausalLM"], "attention_bias": false, "attn_logit_softcapping": null, "bos_token_id": 2,
        "eos_token_id": [1, 106], "final_logit_softcapping": null, "head_dim": 256,
        "hidden_activation": "gelu_pytorch_tanh", "hidden_size": 1152, "intermediate_size": 6912,
        "max_position_embeddings": 32768, "model_type": "gemma3_text", "num_attention_heads": 4, "num_hidden_layers": 26,
        "num_key_value_heads": 1, "pad_token_id": 0, "query_pre_attn_scalar": 256, "rms_norm_eps": 1e-6,
        "rope_local_base_freq": 10000, "rope_scaling": null, "rope_theta": 1_000_000, "sliding_window": 512,
        "sliding_window_pattern": 6, "torch_dtype": "bfloat16", "vocab_size": 262_144})
}

/// gemma-3-4b-it, which sees images too: its decoder leaves out what the class knows.
fn gemma_4b() -> Value {
    json!({"architectures": ["Gemma3ForConditionalGeneration"], "boi_token_index": 255_999, "eoi_token_index": 256_000,
        "eos_token_id": [1, 106], "image_token_index": 262_144, "mm_tokens_per_image": 256, "model_type": "gemma3",
        "text_config": {"hidden_size": 2560, "intermediate_size": 10240, "model_type": "gemma3_text", "num_hidden_layers": 34,
            "rope_scaling": {"factor": 8.0, "rope_type": "linear"}, "sliding_window": 1024},
        "torch_dtype": "bfloat16", "vision_config": {"hidden_size": 1152, "model_type": "siglip_vision_model"}})
}

#[test]
fn gemmas_have_as_many_weights_as_were_published() {
    let all = [(gemma_7b(), 8_537_680_896), (gemma_2_27b(), 27_227_128_320), (gemma_1b(), 999_885_952)];
    for (config, weights) in all {
        assert_eq!(read(config).parameters(), weights);
    }
}

#[test]
fn gemma() {
    let spec = read(gemma_1b());
    let thetas = |spec: &ModelSpec, layer| spec.rope_of(layer).map(|rope| (rope.theta, rope.scaling.clone()));
    assert_eq!((spec.window_of(4), spec.window_of(5), spec.window_of(6)), (Some(512), None, Some(512)));
    assert_eq!(thetas(&spec, 4), Some((1e4, RopeScaling::None)));
    assert_eq!(thetas(&spec, 5), Some((1e6, RopeScaling::None)));
    assert_eq!(
        (spec.placement, spec.norm.from_one, spec.qk_norm),
        (NormPlacement::Around, true, QkNorm::Heads)
    );
    // 33.94 in numbers of the checkpoint.
    assert_eq!((spec.embed_scale, spec.attention_scale), (34.0, 0.0625));
    let mut silent = gemma_1b();
    silent.as_object_mut().unwrap().remove("torch_dtype");
    let mut config = parse_config(&silent.to_string(), "config.json").unwrap();
    assert!(!config.states_dtype && config.spec.embed_scale < 34.0);
    config.publish_in(DType::Bf16);
    assert_eq!(config.spec, spec);
    assert_eq!((spec.activation, spec.tied_head, spec.eos), (Activation::GeluTanh, true, vec![1, 106]));

    let larger = read(gemma_4b());
    assert_eq!((larger.vocab, larger.heads, larger.kv_heads, larger.head_dim), (262_208, 8, 4, 256));
    assert_eq!(thetas(&larger, 5), Some((1e6, RopeScaling::Linear { factor: 8.0 })));
    assert_eq!(thetas(&larger, 0), Some((1e4, RopeScaling::None)));
    assert_eq!((larger.max_positions, larger.dtype, larger.eos), (131_072, DType::Bf16, vec![1, 106]));

    for (field, value) in
        [("final_logit_softcapping", json!(30.0)), ("use_bidirectional_attention", json!(true))]
    {
        let mut config = gemma_1b();
        config[field] = value.clone();
        assert!(refused(config).contains(field));
        let mut config = gemma_4b();
        config["text_config"][field] = value;
        assert!(refused(config).contains(field));
    }
    let mut dynamic = gemma_1b();
    dynamic["rope_scaling"] = json!({"rope_type": "dynamic", "factor": 2.0});
    assert!(refused(dynamic).contains("dynamic or longrope"));
    let mut flat = gemma_1b();
    flat["rope_parameters"] = json!({"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4});
    assert!(refused(flat).contains("`rope_parameters` of no type of layers"));
}

#[test]
fn older_gemmas() {
    let first = read(gemma_7b());
    assert_eq!(
        (first.placement, first.activation, first.norm.from_one),
        (NormPlacement::Pre, Activation::GeluTanh, true)
    );
    assert_eq!(
        (first.embed_scale, first.tied_head, first.window, first.score_cap),
        (55.5, true, Window::Full, None)
    );

    let second = read(gemma_2_27b());
    assert_eq!(
        (second.score_cap, second.logit_cap, second.attention_scale),
        (Some(50.0), Some(30.0), 1.0 / 12.0)
    );
    assert_eq!([0, 1, 45].map(|layer| second.window_of(layer)), [Some(4096), None, None]);
    assert_eq!((second.placement, second.rope_layers.clone()), (NormPlacement::Around, RopeLayers::All));
    // What the class knows, and what there is not.
    let caps = |of: &dyn Fn(&mut serde_json::Map<String, Value>)| {
        let mut config = gemma_2_27b();
        of(config.as_object_mut().unwrap());
        let spec = read(config);
        (spec.score_cap, spec.logit_cap)
    };
    let fields = ["attn_logit_softcapping", "final_logit_softcapping"];
    assert_eq!(caps(&|all| fields.iter().for_each(|name| drop(all.remove(*name)))), (Some(50.0), Some(30.0)));
    assert_eq!(caps(&|all| fields.iter().for_each(|name| all[*name] = json!(null))), (None, None));
    let mut odd = gemma_2_27b();
    odd["attn_logit_softcapping"] = json!(-1.0);
    assert!(refused(odd).contains("attn_logit_softcapping"));
}
