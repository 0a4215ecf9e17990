//! Configurations as they were published, and how many weights those models have.

use super::*;
use spec::model::RopeLayers;

mod gemmas;
mod layer_norms;
mod qwens;

fn read(config: Value) -> ModelSpec {
    parse_config(&config.to_string(), "config.json").expect("sound").spec
}

fn refused(config: Value) -> String {
    parse_config(&config.to_string(), "config.json").expect_err("refused").to_string()
}

fn phi_3_mini() -> Value {
    json!({"architectures": ["Phi3ForCausalLM"], "attention_bias": false, "bos_token_id": 1, "eos_token_id": 32000,
        "hidden_act": "silu", "hidden_size": 3072, "intermediate_size": 8192, "max_position_embeddings": 4096,
        "model_type": "phi3", "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 32,
        "original_max_position_embeddings": 4096, "pad_token_id": 32000, "rms_norm_eps": 1e-5, "rope_scaling": null,
        "rope_theta": 10000.0, "sliding_window": 2047, "tie_word_embeddings": false, "torch_dtype": "bfloat16",
        "vocab_size": 32064})
}

fn phi_4_mini() -> Value {
    json!({"architectures": ["Phi3ForCausalLM"], "bos_token_id": 199_999, "eos_token_id": 199_999, "hidden_act": "silu",
        "hidden_size": 3072, "intermediate_size": 8192, "max_position_embeddings": 131_072, "model_type": "phi3",
        "num_attention_heads": 24, "num_hidden_layers": 32, "num_key_value_heads": 8,
        "original_max_position_embeddings": 4096, "partial_rotary_factor": 0.75, "rms_norm_eps": 1e-5,
        "rope_scaling": {"long_factor": vec![2.5; 48], "short_factor": vec![1.0; 48], "type": "longrope"},
        "rope_theta": 10000.0, "sliding_window": 262_144, "tie_word_embeddings": true, "torch_dtype": "bfloat16",
        "vocab_size": 200_064})
}

fn smollm3() -> Value {
    let turns: Vec<u8> = (1..=36).map(|layer| u8::from(layer % 4 != 0)).collect();
    json!({"architectures": ["SmolLM3ForCausalLM"], "attention_bias": false, "eos_token_id": 128_012, "hidden_act": "silu",
        "hidden_size": 2048, "intermediate_size": 11008, "layer_types": vec!["full_attention"; 36],
        "max_position_embeddings": 65536, "model_type": "smollm3", "no_rope_layer_interval": 4, "no_rope_layers": turns,
        "num_attention_heads": 16, "num_hidden_layers": 36, "num_key_value_heads": 4, "rms_norm_eps": 1e-6,
        "rope_scaling": null, "rope_theta": 5_000_000.0, "sliding_window": null, "torch_dtype": "bfloat16",
        "use_sliding_window": false, "vocab_size": 128_256})
}

/// granite-3.0-2b-instruct.
fn granite() -> Value {
    json!({"architectures": ["GraniteForCausalLM"], "attention_bias": false, "attention_multiplier": 0.015625,
        "bos_token_id": 0, "embedding_multiplier": 12.0, "eos_token_id": 0, "hidden_act": "silu", "hidden_size": 2048,
        "intermediate_size": 8192, "logits_scaling": 8.0, "max_position_embeddings": 4096, "mlp_bias": false,
        "model_type": "granite", "num_attention_heads": 32, "num_hidden_layers": 40, "num_key_value_heads": 8,
        "residual_multiplier": 0.22, "rms_norm_eps": 1e-5, "rope_scaling": null, "rope_theta": 10000.0,
        "tie_word_embeddings": true, "torch_dtype": "bfloat16", "vocab_size": 49155})
}

/// granite-4.0-micro.
fn granite_4() -> Value {
    json!({"architectures": ["GraniteMoeHybridForCausalLM"], "attention_bias": false, "attention_multiplier": 0.015625,
        "bos_token_id": 100_257, "embedding_multiplier": 12, "eos_token_id": 100_257, "hidden_act": "silu",
        "hidden_size": 2560, "intermediate_size": 8192, "layer_types": vec!["attention"; 40], "logits_scaling": 10,
        "mamba_n_heads": 128, "max_position_embeddings": 131_072, "model_type": "granitemoehybrid",
        "normalization_function": "rmsnorm", "num_attention_heads": 40, "num_experts_per_tok": 0,
        "num_hidden_layers": 40, "num_key_value_heads": 8, "num_local_experts": 0, "position_embedding_type": "rope",
        "residual_multiplier": 0.22, "rms_norm_eps": 1e-5, "rope_scaling": null, "rope_theta": 10_000_000,
        "shared_intermediate_size": 8192, "tie_word_embeddings": true, "torch_dtype": "bfloat16", "vocab_size": 100_352})
}

/// Seed-OSS-36B-Instruct.
fn seed_oss() -> Value {
    json!({"architectures": ["SeedOssForCausalLM"], "attention_bias": true, "attention_dropout": 0.1,
        "attention_out_bias": false, "bos_token_id": 0, "eos_token_id": 2, "head_dim": 128, "hidden_act": "silu",
        "hidden_size": 5120, "intermediate_size": 27648, "max_position_embeddings": 524_288, "mlp_bias": false,
        "model_type": "seed_oss", "num_attention_heads": 80, "num_hidden_layers": 64, "num_key_value_heads": 8,
        "pad_token_id": 1, "residual_dropout": 0.1, "rms_norm_eps": 1e-6, "rope_scaling": {"rope_type": "default"},
        "rope_theta": 10_000_000.0, "tie_word_embeddings": false, "torch_dtype": "bfloat16", "vocab_size": 155_136})
}

/// EXAONE-4.0-32B.
fn exaone_4() -> Value {
    let kinds: Vec<&str> =
        (1..=64).map(|layer| if layer % 4 == 0 { "full_attention" } else { "sliding_attention" }).collect();
    json!({"architectures": ["Exaone4ForCausalLM"], "bos_token_id": 1, "eos_token_id": 361, "head_dim": 128,
        "hidden_act": "silu", "hidden_size": 5120, "intermediate_size": 27392, "layer_types": kinds,
        "max_position_embeddings": 131_072, "model_type": "exaone4", "num_attention_heads": 40,
        "num_hidden_layers": 64, "num_key_value_heads": 8, "pad_token_id": 0, "rms_norm_eps": 1e-5,
        "rope_scaling": {"factor": 16.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0,
            "original_max_position_embeddings": 8192, "rope_type": "llama3"},
        "rope_theta": 1_000_000, "sliding_window": 4096, "sliding_window_pattern": "LLLG",
        "tie_word_embeddings": false, "torch_dtype": "bfloat16", "vocab_size": 102_400})
}

/// OLMo-2-0425-1B.
fn olmo_2() -> Value {
    json!({"architectures": ["Olmo2ForCausalLM"], "attention_bias": false, "attention_dropout": 0.0, "eos_token_id": 100_257,
        "hidden_act": "silu", "hidden_size": 2048, "intermediate_size": 8192, "max_position_embeddings": 4096,
        "model_type": "olmo2", "num_attention_heads": 16, "num_hidden_layers": 16, "num_key_value_heads": 16,
        "pad_token_id": 100_277, "rms_norm_eps": 1e-6, "rope_scaling": null, "rope_theta": 500_000,
        "tie_word_embeddings": false, "torch_dtype": "float32", "vocab_size": 100_352})
}

/// Olmo-3-7B-Instruct.
fn olmo_3() -> Value {
    let kinds: Vec<&str> =
        (1..=32).map(|layer| if layer % 4 == 0 { "full_attention" } else { "sliding_attention" }).collect();
    json!({"architectures": ["Olmo3ForCausalLM"], "attention_bias": false, "eos_token_id": 100_257, "hidden_act": "silu",
        "hidden_size": 4096, "intermediate_size": 11008, "layer_types": kinds, "max_position_embeddings": 65536,
        "model_type": "olmo3", "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 32,
        "pad_token_id": 100_277, "rms_norm_eps": 1e-6, "rope_theta": 500_000,
        "rope_scaling": {"attention_factor": 1.2079441541679836, "beta_fast": 32.0, "beta_slow": 1.0, "factor": 8.0,
            "original_max_position_embeddings": 8192, "rope_type": "yarn"},
        "sliding_window": 4096, "tie_word_embeddings": false, "dtype": "bfloat16", "vocab_size": 100_278})
}

/// Mistral-Small-3.1-24B-Instruct-2503, which sees images too.
fn mistral_small() -> Value {
    json!({"architectures": ["Mistral3ForConditionalGeneration"], "image_token_index": 10, "model_type": "mistral3",
        "multimodal_projector_bias": false, "projector_hidden_act": "gelu", "spatial_merge_size": 2,
        "text_config": {"attention_dropout": 0.0, "head_dim": 128, "hidden_act": "silu", "hidden_size": 5120,
            "intermediate_size": 32768, "max_position_embeddings": 131_072, "model_type": "mistral",
            "num_attention_heads": 32, "num_hidden_layers": 40, "num_key_value_heads": 8, "rms_norm_eps": 1e-5,
            "rope_theta": 1e9, "sliding_window": null, "vocab_size": 131_072},
        "torch_dtype": "bfloat16", "vision_config": {"hidden_size": 1024, "model_type": "pixtral"}})
}

/// The same around the decoder of Ministral-3-8B.
fn ministral_3() -> Value {
    json!({"architectures": ["Mistral3ForConditionalGeneration"], "model_type": "mistral3", "dtype": "bfloat16",
        "text_config": {"head_dim": 128, "hidden_act": "silu", "hidden_size": 4096, "intermediate_size": 14336,
            "max_position_embeddings": 262_144, "model_type": "ministral3", "num_attention_heads": 32,
            "num_hidden_layers": 34, "num_key_value_heads": 8, "rms_norm_eps": 1e-5,
            "rope_parameters": {"beta_fast": 32.0, "beta_slow": 1.0, "factor": 16.0, "llama_4_scaling_beta": 0.1,
                "mscale": 1.0, "mscale_all_dim": 1.0, "original_max_position_embeddings": 16384, "rope_theta": 1e6,
                "rope_type": "yarn", "type": "yarn"},
            "sliding_window": null, "vocab_size": 131_072},
        "vision_config": {"hidden_size": 1024, "model_type": "pixtral"}})
}

/// GLM-4-9B-0414.
fn glm_4() -> Value {
    json!({"architectures": ["Glm4ForCausalLM"], "attention_bias": true, "attention_dropout": 0.0,
        "eos_token_id": [151_329, 151_336, 151_338], "head_dim": 128, "hidden_act": "silu", "hidden_size": 4096,
        "intermediate_size": 13696, "max_position_embeddings": 32768, "model_type": "glm4", "num_attention_heads": 32,
        "num_hidden_layers": 40, "num_key_value_heads": 2, "pad_token_id": 151_329, "partial_rotary_factor": 0.5,
        "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": false, "torch_dtype": "bfloat16",
        "vocab_size": 151_552})
}

/// ERNIE-4.5-0.3B, as it was published first.
fn ernie() -> Value {
    json!({"architectures": ["Ernie4_5_ForCausalLM"], "bos_token_id": 1, "eos_token_id": 2, "head_dim": 128, "hidden_act": "silu",
        "hidden_size": 1024, "intermediate_size": 3072, "max_position_embeddings": 131_072, "model_type": "ernie4_5",
        "num_attention_heads": 16, "num_hidden_layers": 18, "num_key_value_heads": 2, "pad_token_id": 0, "rms_norm_eps": 1e-5,
        "rope_theta": 500_000, "tie_word_embeddings": true, "torch_dtype": "bfloat16", "use_bias": false, "vocab_size": 103_424})
}

#[test]
fn glm_turns_half_of_each_head_and_knows_its_ends() {
    let spec = read(glm_4());
    let turned = |spec: &ModelSpec| spec.rope().map(|rope| rope.rotary_dims(spec.head_dim));
    assert_eq!((turned(&spec), spec.placement), (Some(64), NormPlacement::Around));
    assert_eq!(spec.biases, Biases { qkv: true, o: false, mlp: false, head: false });
    let mut silent = glm_4();
    for field in
        ["partial_rotary_factor", "eos_token_id", "head_dim", "num_key_value_heads", "attention_bias"]
    {
        silent.as_object_mut().unwrap().remove(field);
    }
    assert_eq!(read(silent), spec);
    let mut before = glm_4();
    (before["architectures"], before["model_type"]) = (json!(["GlmForCausalLM"]), json!("glm"));
    assert_eq!((turned(&read(before.clone())), read(before).placement), (Some(64), NormPlacement::Pre));
    assert_eq!(turned(&read(ernie())), Some(128));
}

#[test]
fn models_have_as_many_weights_as_were_published() {
    let weights = |config| read(config).parameters();
    assert_eq!(weights(phi_3_mini()), 3_821_079_552);
    assert_eq!(weights(phi_4_mini()), 3_836_021_760);
    assert_eq!(weights(smollm3()), 3_075_098_624);
    assert_eq!(weights(granite()), 2_533_531_648);
    assert_eq!(weights(mistral_small()), 23_572_403_200);
    assert_eq!(weights(ministral_3()), 8_489_553_920);
    assert_eq!(weights(olmo_2()), 1_484_916_736);
    assert_eq!(weights(olmo_3()), 7_298_011_136);
    // As their cards say it, in thousands of millions.
    let rounded = |weights: u64| (weights as f64 / 1e7).round() / 100.0;
    assert_eq!(rounded(weights(granite_4())), 3.4);
    assert_eq!(rounded(weights(seed_oss())), 36.15);
    assert_eq!(rounded(weights(glm_4())), 9.4);
    assert_eq!(rounded(weights(ernie())), 0.36);
    assert_eq!(rounded(weights(exaone_4()) - 2 * 102_400 * 5120), 30.95, "without embeddings");
}

#[test]
fn exaone() {
    let spec = read(exaone_4());
    assert_eq!((spec.placement, spec.qk_norm_width()), (NormPlacement::Added, Some([128; 2])));
    // Layers that see everything turn nothing.
    let of = |spec: &ModelSpec, layer| (spec.window_of(layer), spec.rope_of(layer).is_some());
    assert_eq!(
        [2, 3, 4].map(|layer| of(&spec, layer)),
        [(Some(4096), true), (None, false), (Some(4096), true)]
    );
    let mut silent = exaone_4();
    for field in ["layer_types", "sliding_window", "sliding_window_pattern"] {
        silent.as_object_mut().unwrap().remove(field);
    }
    assert_eq!(read(silent), spec);
    let mut text = exaone_4();
    text["layer_types"] = Value::Null;
    assert!(refused(text).contains("sliding_window_pattern"));
    // A window that no layer has is one; without any, all turn.
    let mut config = exaone_4();
    config["layer_types"] = json!(vec!["full_attention"; 64]);
    assert_eq!(of(&read(config.clone()), 0), (None, false));
    config["sliding_window"] = Value::Null;
    assert_eq!(of(&read(config.clone()), 0), (None, true));
    config["layer_types"] = Value::Null;
    assert_eq!(of(&read(config), 3), (None, true));
}

#[test]
fn seed_oss_has_biases_where_it_says_so() {
    let biases = |config| read(config).biases;
    assert_eq!(biases(seed_oss()), Biases { qkv: true, o: false, mlp: false, head: false });
    let mut config = seed_oss();
    config.as_object_mut().unwrap().remove("attention_bias");
    (config["attention_out_bias"], config["mlp_bias"]) = (json!(true), json!(true));
    assert_eq!(biases(config.clone()), Biases { qkv: true, o: true, mlp: true, head: false });
    config["attention_bias"] = json!(false);
    assert_eq!(biases(config), Biases { qkv: false, o: true, mlp: true, head: false });
}

#[test]
fn granite_4_attends_in_every_layer_and_has_no_experts() {
    let spec = read(granite_4());
    assert_eq!((spec.ffn, spec.rope_layers.clone(), spec.logit_scale), (8192, RopeLayers::All, 0.1));
    let mut config = granite_4();
    config["shared_intermediate_size"] = json!(4096);
    assert_eq!(read(config.clone()).ffn, 4096);
    for turns in [Value::Null, json!("nope")] {
        config["position_embedding_type"] = turns.clone();
        if turns.is_null() {
            assert_eq!(read(config.clone()).rope_of(7), None);
        } else {
            assert!(refused(config.clone()).contains("position_embedding_type"));
        }
    }
    for (field, value, told) in [
        ("num_local_experts", json!(8), "`num_local_experts`"),
        ("num_local_experts", Value::Null, "no experts"),
        ("layer_types", Value::Null, "`attention` for each layer"),
        ("layer_types", json!(["mamba", "attention"]), "a layer of type `mamba`"),
        ("shared_intermediate_size", json!(0), "shared_intermediate_size"),
    ] {
        let mut config = granite_4();
        config[field] = value;
        let refused = refused(config);
        assert!(refused.contains(told), "{told}: {refused}");
    }
}

#[test]
fn mistral() {
    let small = read(mistral_small());
    assert_eq!((small.head_dim, small.window.clone(), small.tied_head), (128, Window::Full, false));
    assert_eq!((small.rope(), small.max_positions), (Some(&Rope::plain(1e9)), 131_072));
    assert_eq!((small.dtype, &*small.eos), (DType::Bf16, &[2][..]));

    let mut config = ministral_3();
    let three = read(config.clone());
    let rope = three.rope().unwrap();
    let growth = rope.growth.unwrap();
    assert_eq!((growth.beta, growth.period, three.max_positions), (0.1, 16_384, 262_144));
    assert_eq!([0, 16_383, 16_384].map(|at| growth.factor(at)), [1.0, 1.0, 1.0 + 0.1 * 2f32.ln()]);
    // The decoder by itself.
    let mut alone = config["text_config"].clone();
    (alone["architectures"], alone["dtype"]) = (json!(["Ministral3ForCausalLM"]), json!("bfloat16"));
    assert_eq!(read(alone.clone()), three);
    alone["rope_parameters"]["llama_4_scaling_beta"] = json!(0.0);
    assert_eq!(read(alone.clone()).rope().unwrap().growth, None);
    for period in [0u64, 1 << 32] {
        let mut never = config["text_config"].clone();
        never["rope_parameters"]["original_max_position_embeddings"] = json!(period);
        never["rope_parameters"]["rope_type"] = json!("default");
        assert!(refused(never).contains("queries that grow"));
    }
    for field in ["llama_4_scaling_beta", "rope_parameters"] {
        let of = if field == "rope_parameters" { &mut alone } else { &mut alone["rope_parameters"] };
        of.as_object_mut().unwrap().remove(field);
        assert!(refused(alone.clone()).contains(field));
    }
    // What is said outside holds for all.
    config["tie_word_embeddings"] = json!(true);
    assert!(read(config.clone()).tied_head);
    config["text_config"]["model_type"] = json!("llama");
    assert!(refused(config).contains("a decoder of MistralForCausalLM"));
}

#[test]
fn olmo() {
    let two = read(olmo_2());
    assert_eq!((two.placement, two.qk_norm, two.bos), (NormPlacement::Added, QkNorm::Rows, None));
    assert_eq!((two.qk_norm_width(), two.window, two.max_positions), (Some([2048; 2]), Window::Full, 4096));
    let mut silent = olmo_2();
    for field in ["rms_norm_eps", "rope_theta", "eos_token_id", "max_position_embeddings"] {
        silent.as_object_mut().unwrap().remove(field);
    }
    let silent = read(silent);
    assert_eq!((silent.norm.eps, &*silent.eos, silent.max_positions), (1e-5, &[50_279][..], 2048));
    assert_eq!(silent.rope().map(|rope| rope.theta), Some(1e4));

    let mut config = olmo_3();
    let three = read(config.clone());
    assert_eq!((three.window_of(2), three.window_of(3), three.window_of(4)), (Some(4096), None, Some(4096)));
    assert_eq!(three.rope_of(0), Some(&Rope::plain(5e5)));
    let yarn = |spec: &ModelSpec| match &spec.rope_of(3).unwrap().scaling {
        RopeScaling::Yarn(yarn) => (yarn.factor, yarn.attention_factor),
        other => panic!("{other:?}"),
    };
    assert_eq!(yarn(&three), (8.0, Some(1.2079441541679836)));
    assert_eq!((three.max_positions, three.qk_norm_width()), (65536, Some([4096; 2])));

    // One base for all layers, also where it is not that of the class.
    config["rope_theta"] = json!(1e4);
    assert_eq!([0, 3].map(|layer| read(config.clone()).rope_of(layer).unwrap().theta), [1e4; 2]);
    config["rope_theta"] = json!(500_000);

    // Every fourth layer sees everything, and frequencies are known too.
    for field in ["layer_types", "rope_theta", "sliding_window"] {
        config.as_object_mut().unwrap().remove(field);
        assert_eq!(read(config.clone()), three, "without {field}");
    }
    // As transformers 5 writes it.
    config["rope_parameters"] = json!({"sliding_attention": {"rope_type": "default", "rope_theta": 500_000},
        "full_attention": config["rope_scaling"].take()});
    config["rope_parameters"]["full_attention"]["rope_theta"] = json!(500_000);
    assert_eq!(read(config), three);
}

#[test]
fn phi() {
    let spec = read(phi_3_mini());
    assert_eq!(
        (spec.window.clone(), spec.positions),
        (Window::Sliding(2047), Positions::Rope(Rope::plain(1e4)))
    );
    let spec = read(phi_4_mini());
    let rope = spec.rope().expect("rope");
    assert_eq!((rope.rotary_dims(spec.head_dim), spec.max_positions), (96, 131_072));
    let RopeScaling::Long(long) = &rope.scaling else { panic!("{rope:?}") };
    assert_eq!((long.original_positions, long.short[0], long.long[0]), (4096, 1.0, 2.5));
    assert!((long.attention_factor - 1.190_238).abs() < 1e-6, "{}", long.attention_factor);
    assert_eq!([1, 4096, 4097, 9000].map(|n| rope.turned_as(n)), [4096, 4096, 4097, 4097].map(Some));
    let mut short = phi_4_mini();
    short["rope_scaling"]["long_factor"] = json!([1.0]);
    assert!(refused(short).contains("48 factors"));
    // Its first files had another name for it.
    let mut old = phi_4_mini();
    old["rope_scaling"]["type"] = json!("su");
    assert_eq!(read(old), spec);
}

#[test]
fn some_layers_of_smollm3_turn_nothing() {
    let spec = read(smollm3());
    assert!(spec.rope_of(2).is_some() && spec.rope_of(3).is_none() && spec.rope_of(4).is_some());
    let mut unlisted = smollm3();
    unlisted.as_object_mut().expect("an object").remove("no_rope_layers");
    assert_eq!(read(unlisted).rope_layers, spec.rope_layers);
    let mut windows = smollm3();
    (windows["use_sliding_window"], windows["sliding_window"], windows["layer_types"]) =
        (json!(true), json!(8), Value::Null);
    let windows = read(windows);
    assert_eq!((windows.window_of(2), windows.window_of(3)), (None, Some(8)));
    for (field, value) in [("no_rope_layers", json!([1])), ("no_rope_layer_interval", json!(0))] {
        let mut config = smollm3();
        config["no_rope_layers"] = Value::Null;
        config[field] = value;
        assert!(refused(config).contains(field));
    }
}

#[test]
fn granites_factors() {
    let spec = read(granite());
    assert_eq!(
        (spec.attention_scale, spec.logit_scale, spec.rope_layers),
        (0.015625, 0.125, RopeLayers::All)
    );
    // The residual stream is kept divided by 0.22.
    assert_eq!((spec.embed_scale, spec.norm.eps), ((12.0 / 0.22) as f32, (1e-5 / (0.22 * 0.22)) as f32));
    let mut none = granite();
    none["residual_multiplier"] = json!(0);
    assert!(refused(none).contains("inf"));
}
