use serde_json::Value;

use super::*;
use crate::testing::{llama_config, write};
use serde_json::json;
use spec::model::{Activation, Biases, NormKind, NormPlacement, Positions, QkNorm, Window};
use spec::rope::{Rope, RopeScaling};

mod published;

fn spec(changes: serde_json::Value) -> ModelSpec {
    parse_config(&llama_config(changes), "config.json").expect("sound").spec
}

#[track_caller]
fn check_refused(changes: serde_json::Value, why: &str) {
    let error = parse_config(&llama_config(changes), "config.json").expect_err("refused").to_string();
    assert!(error.contains(why), "{error}\nlacks {why:?}");
}

#[test]
fn llama() {
    let spec = spec(json!({"rope_theta": 500_000.0, "mlp_bias": true}));
    assert_eq!((spec.vocab, spec.heads, spec.kv_heads, spec.head_dim, spec.ffn), (10, 2, 1, 16, 6));
    assert_eq!(spec.positions, Positions::Rope(Rope::plain(500_000.0)));
    assert_eq!(spec.biases, Biases { qkv: false, o: false, mlp: true, head: false });
    assert_eq!((spec.eos, spec.bos, spec.tied_head), (vec![2], Some(1), false));
}

#[test]
fn heads_default_to_those_of_the_class() {
    let lacking = |class: &str, null: bool| {
        let mut value: Value = serde_json::from_str(&llama_config(json!({"architectures": [class],
            "num_attention_heads": 32, "hidden_size": 512})))
        .expect("JSON");
        for field in ["num_key_value_heads", "head_dim"] {
            value.as_object_mut().expect("an object").remove(field);
        }
        if null {
            value["num_key_value_heads"] = Value::Null;
        }
        parse_config(&value.to_string(), "c").expect("sound").spec
    };
    assert_eq!(lacking("LlamaForCausalLM", false).kv_heads, 32);
    assert_eq!(lacking("MistralForCausalLM", false).kv_heads, 8);
    assert_eq!(lacking("MistralForCausalLM", true).kv_heads, 32);
    assert_eq!(lacking("Qwen3ForCausalLM", false).head_dim, 128);
    assert_eq!(lacking("Qwen2ForCausalLM", false).head_dim, 16);
}

#[test]
fn ends_default_to_those_of_the_class() {
    let lacking = |class: &str, null: bool| {
        let more = json!({"architectures": [class], "ffn_dim": 6, "hidden_size": 32, "bos_token_id": null, "eos_token_id": null});
        let mut value: Value = serde_json::from_str(&llama_config(more)).expect("JSON");
        if !null {
            let fields = value.as_object_mut().expect("an object");
            fields.retain(|name, _| !["bos_token_id", "eos_token_id"].contains(&name.as_str()));
        }
        let spec = parse_config(&value.to_string(), "c").expect("sound").spec;
        (spec.bos, spec.eos)
    };
    for (class, bos) in [("LlamaForCausalLM", 1), ("MistralForCausalLM", 1), ("OPTForCausalLM", 2)] {
        assert_eq!(lacking(class, false), (Some(bos), vec![2]), "{class}");
        assert_eq!(lacking(class, true), (None, vec![]), "{class} that says null");
    }
    for class in ["Qwen2ForCausalLM", "Qwen3ForCausalLM"] {
        assert_eq!(lacking(class, false), (None, vec![]), "{class}");
    }
    let none = spec(json!({"bos_token_id": -1, "eos_token_id": -1}));
    assert_eq!((none.bos, none.eos), (None, vec![]), "no token has a number below 0");
    assert_eq!(spec(json!({"eos_token_id": [-1, 7]})).eos, [7]);
}

#[test]
fn qwen() {
    let two = spec(json!({"architectures": ["Qwen2ForCausalLM"], "attention_bias": false}));
    assert_eq!(
        (two.biases, two.qk_norm),
        (Biases { qkv: true, o: false, mlp: false, head: false }, QkNorm::None)
    );
    let three = spec(json!({"architectures": ["Qwen3ForCausalLM"], "head_dim": 48, "eos_token_id": [7, 8]}));
    assert_eq!((three.biases, three.qk_norm, three.head_dim), (Biases::default(), QkNorm::Heads, 48));
    assert_eq!(three.eos, [7, 8]);
}

#[test]
fn opt() {
    let spec = spec(
        json!({"architectures": ["OPTForCausalLM"], "ffn_dim": 6, "hidden_size": 32, "word_embed_proj_dim": 4,
        "do_layer_norm_before": false, "enable_bias": false, "activation_function": "gelu"}),
    );
    assert_eq!(
        (spec.placement, spec.final_norm, spec.norm.kind),
        (NormPlacement::Post, false, NormKind::Layer)
    );
    assert_eq!((spec.activation, spec.embed_dim, spec.kv_heads), (Activation::Gelu, 4, 2));
    assert_eq!((spec.biases, spec.tied_head, spec.bos), (Biases::default(), true, Some(2)));
    assert_eq!(spec.positions, Positions::Learned { offset: 2 });
    let large = json!({"architectures": ["OPTForCausalLM"], "ffn_dim": 6, "hidden_size": 32, "_remove_final_layer_norm": true});
    assert!(!self::spec(large).final_norm);
    check_refused(
        json!({"architectures": ["OPTForCausalLM"], "ffn_dim": 6, "num_attention_heads": 3}),
        "divisor",
    );
}

#[test]
fn windows() {
    let mistral = |more: Value| {
        let mut fields = json!({"architectures": ["MistralForCausalLM"]});
        fields.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
        fields
    };
    assert_eq!(spec(mistral(json!({}))).window, Window::Sliding(4096));
    assert_eq!(spec(mistral(json!({"sliding_window": null}))).window, Window::Full);
    assert_eq!(spec(mistral(json!({"sliding_window": 16}))).window, Window::Sliding(16));
    let types = json!({"sliding_window": 16, "layer_types": ["full_attention", "sliding_attention"]});
    assert_eq!(spec(mistral(types.clone())).window, Window::PerLayer(vec![None, Some(16)]));
    let mut ministral = mistral(types.clone());
    ministral["architectures"] = json!(["MinistralForCausalLM"]);
    assert_eq!(spec(ministral.clone()), spec(mistral(types.clone())));
    ministral["sliding_window"] = Value::Null;
    check_refused(ministral, "a `sliding_window`");
    check_refused(mistral(json!({"sliding_window": 0})), "at least 1 token");

    let qwen = |fields: Value| {
        let mut all = mistral(fields);
        all["architectures"] = json!(["Qwen2ForCausalLM"]);
        all
    };
    assert_eq!(spec(qwen(json!({"sliding_window": 16}))).window, Window::Full);
    let used = json!({"sliding_window": 16, "use_sliding_window": true, "max_window_layers": 1});
    assert_eq!(spec(qwen(used)).window, Window::PerLayer(vec![None, Some(16)]));
    check_refused(qwen(types.clone()), "use_sliding_window");
    let mut types = types;
    types["use_sliding_window"] = json!(true);
    assert_eq!(spec(qwen(types.clone())).window, Window::PerLayer(vec![None, Some(16)]));
    types["layer_types"] = json!(["full_attention"]);
    check_refused(qwen(types.clone()), "each of 2 layers");
    types["layer_types"] = json!(["full_attention", "linear_attention"]);
    check_refused(qwen(types), "a layer of type `linear_attention`");
    assert_eq!(spec(json!({"sliding_window": 16})).window, Window::Full, "transformers' Llama has none");
}

/// As vLLM derives it.
#[test]
fn scaling_lengthens_the_context() {
    let longest = |scaling: Value| spec(json!({"rope_scaling": scaling})).max_positions;
    assert_eq!(longest(Value::Null), 64);
    assert_eq!(longest(json!({"rope_type": "linear", "factor": 4.0})), 256);
    assert_eq!(longest(json!({"type": "dynamic", "factor": 2.5})), 160);
    assert_eq!(longest(json!({"rope_type": "yarn", "factor": 4.0})), 256);
    let published = json!({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16});
    assert_eq!(longest(published), 64, "max_position_embeddings says what comes of it");
    let llama3 = json!({"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8});
    assert_eq!(longest(llama3), 64);
    check_refused(
        json!({"rope_scaling": {"rope_type": "linear", "factor": 1e9}}),
        "`max_position_embeddings`",
    );
}

#[test]
fn rotary_scaling_in_both_dialects() {
    let scaling = |fields: Value| match spec(fields).positions {
        Positions::Rope(rope) => (rope.theta, rope.scaling),
        Positions::Learned { .. } => panic!("learned positions"),
    };
    let llama3 = RopeScaling::Llama3 {
        factor: 8.0,
        low_freq_factor: 1.0,
        high_freq_factor: 4.0,
        original_positions: 32,
    };
    let inner = json!({"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 32});
    let four = json!({"rope_theta": 5e5, "rope_scaling": inner});
    assert_eq!(scaling(four.clone()), (5e5, llama3.clone()));
    let mut inner = inner;
    inner["rope_theta"] = json!(5e5);
    assert_eq!(scaling(json!({"rope_parameters": inner})), (5e5, llama3));
    assert_eq!(scaling(json!({"rope_parameters": {"rope_type": "default"}})), (1e4, RopeScaling::None));
    let linear = json!({"rope_scaling": {"type": "linear", "factor": 2.0}, "rope_parameters": null});
    assert_eq!(scaling(linear), (1e4, RopeScaling::Linear { factor: 2.0 }));
    let dynamic = json!({"rope_scaling": {"type": "dynamic", "factor": 2}});
    assert_eq!(scaling(dynamic).1, RopeScaling::Dynamic { factor: 2.0, original_positions: 64 });
}

#[test]
fn yarn_takes_its_context_from_where_transformers_does() {
    let yarn = |fields: Value| match spec(fields).positions {
        Positions::Rope(Rope { scaling: RopeScaling::Yarn(yarn), .. }) => yarn,
        other => panic!("{other:?}"),
    };
    let bare = yarn(json!({"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "beta_fast": null}}));
    assert_eq!((bare.factor, bare.original_positions, bare.beta_fast, bare.truncate), (4.0, 64, 32.0, true));
    let inner =
        json!({"type": "yarn", "original_max_position_embeddings": 16, "mscale": 1.0, "truncate": false});
    let implied = yarn(json!({"rope_scaling": inner}));
    assert_eq!((implied.factor, implied.mscale, implied.truncate), (4.0, Some(1.0), false));
    let outside = yarn(json!({"rope_scaling": inner, "original_max_position_embeddings": 32}));
    assert_eq!((outside.factor, outside.original_positions), (2.0, 32));
    let none = yarn(json!({"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "truncate": null}}));
    assert!(!none.truncate, "null is not true");
}

#[test]
fn two_names_of_different_architectures_are_a_contradiction() {
    let kind = |kind: &str| json!({"architectures": ["MistralForCausalLM"], "model_type": kind});
    check_refused(kind("llama"), "that of MistralForCausalLM");
    // What is known to nobody here may be a name of their own.
    assert_eq!(spec(kind("ours")), spec(kind("ministral")));
    check_refused(json!({"architectures": ["OursForCausalLM"], "model_type": "llama"}), "OursForCausalLM");
}

#[test]
fn activations_by_all_their_names() {
    let of = |name: &str| spec(json!({"hidden_act": name})).activation;
    assert_eq!(["silu", "swish"].map(of), [Activation::Silu; 2]);
    assert_eq!(["gelu", "gelu_python"].map(of), [Activation::Gelu; 2]);
    let tanh = ["gelu_new", "gelu_pytorch_tanh", "gelu_python_tanh", "gelu_fast", "gelu_accurate"];
    assert_eq!(tanh.map(of), [Activation::GeluTanh; 5]);
}

#[test]
fn what_changes_the_result_and_is_not_built_is_refused() {
    check_refused(json!({"architectures": ["MixtralForCausalLM"]}), "MixtralForCausalLM");
    check_refused(
        json!({"architectures": ["FalconForCausalLM"]}),
        "LlamaForCausalLM, MistralForCausalLM, MinistralForCausalLM, Mistral3",
    );
    check_refused(json!({"architectures": null, "model_type": "gpt2"}), "gpt2");
    check_refused(json!({"hidden_act": "quick_gelu"}), "quick_gelu");
    check_refused(json!({"rope_scaling": {"rope_type": "proportional"}}), "proportional");
    check_refused(json!({"rope_scaling": {"rope_type": "longrope", "long_factor": [1.0]}}), "`short_factor`");
    check_refused(json!({"rope_scaling": {"rope_type": "linear"}}), "`factor` is absent");
    check_refused(
        json!({"rope_parameters": {"full_attention": {"rope_type": "default"}}}),
        "differs between layers",
    );
    check_refused(json!({"partial_rotary_factor": 0.5}), "partial_rotary_factor");
    check_refused(json!({"num_local_experts": 8}), "num_local_experts");
    check_refused(json!({"torch_dtype": "float8_e4m3fn"}), "bfloat16");
    check_refused(json!({"transformers_weights": "other.safetensors"}), "transformers_weights");
    for causal in [json!(false), Value::Null] {
        check_refused(json!({"is_causal": causal}), "causal models");
    }
    assert_eq!(spec(json!({"is_causal": true})), spec(json!({})));
    assert_eq!(spec(json!({"architectures": null})).architecture, "LlamaForCausalLM");
}

#[test]
fn how_weights_are_quantised() {
    let scheme = |told: Value| {
        let text = llama_config(json!({"quantization_config": told}));
        parse_config(&text, "config.json").expect("sound").quantized
    };
    let gptq = |bits, symmetric, zeros_from| Some(Scheme::Gptq { bits, symmetric, zeros_from });
    assert_eq!(scheme(json!({"quant_method": "gptq", "bits": 4})), gptq(4, false, 1));
    assert_eq!(scheme(json!({"quant_method": "gptq", "bits": 3, "sym": true})), gptq(3, true, 1));
    let second = json!({"quant_method": "gptq", "bits": 8, "sym": false, "checkpoint_format": "gptq_v2"});
    assert_eq!(scheme(second), gptq(8, false, 0));
    assert_eq!(scheme(json!({"quant_method": "awq", "bits": 4, "version": "GEMM"})), Some(Scheme::Awq));
    let beside = |block| Some(Scheme::Beside { block });
    let blocks = json!({"quant_method": "fp8", "weight_block_size": [128, 64]});
    assert_eq!(scheme(blocks), beside(Some([128, 64])));
    assert_eq!(scheme(json!({"quant_method": "fp8"})), beside(Some([128, 128])));
    assert_eq!(scheme(json!({"quant_method": "fp8", "weight_block_size": null})), beside(None));
    assert_eq!(scheme(json!({"quant_method": "fbgemm_fp8"})), beside(None));
    for algorithm in ["FP8", "FP8_PER_CHANNEL_PER_TOKEN", "MXFP8", "NVFP4"] {
        assert_eq!(scheme(json!({"quant_method": "modelopt", "quant_algo": algorithm})), beside(None));
        assert_eq!(scheme(json!({"quantization": {"quant_algo": algorithm}})), beside(None));
    }
    let groups = json!({"a": {"weights": null}, "b": {"weights": {"block_structure": [32, 16]}}});
    let compressed =
        json!({"quant_method": "compressed-tensors", "format": "float-quantized", "config_groups": groups});
    assert_eq!(scheme(compressed), beside(Some([32, 16])));
    let of_bytes = [
        json!({"quant_method": "bitsandbytes", "load_in_4bit": true, "bnb_4bit_quant_storage": "uint8"}),
        json!({"load_in_8bit": true}),
    ];
    assert!(of_bytes.into_iter().all(|told| scheme(told) == Some(Scheme::BitsAndBytes)));
}

#[test]
fn quantised_otherwise_is_refused_by_name() {
    let refused = |told: Value, by: &str| {
        check_refused(json!({"quantization_config": told}), &format!("quantised by `{by}"));
    };
    refused(json!({"quant_method": "quanto"}), "quanto` is not supported; supported: GPTQ");
    refused(json!({}), "quantization_config of config.json`");
    refused(json!({"quant_method": "aqlm"}), "aqlm`");
    refused(json!({"quant_method": "gptq", "bits": 5}), "gptq to 5 bits`");
    refused(
        json!({"quant_method": "gptq", "bits": 4, "checkpoint_format": "marlin"}),
        "gptq in the format marlin`",
    );
    refused(json!({"quant_method": "gptq", "bits": 4, "rotation": "hadamard"}), "gptq with a rotation`");
    let inverse = json!({"quant_method": "fp8", "weight_scale_semantics": "inverse"});
    refused(inverse, "fp8 with weight_scale_semantics`");
    refused(json!({"quant_method": "awq", "version": "gemv"}), "awq in the format gemv`");
    refused(json!({"quant_method": "awq", "bits": 8}), "awq to 8 bits`");
    refused(json!({"quant_method": "modelopt", "quant_algo": "NVFP4_AWQ"}), "modelopt to NVFP4_AWQ`");
    let compressed = |more: Value| {
        let mut told = json!({"quant_method": "compressed-tensors"});
        more.as_object().unwrap().iter().for_each(|(name, value)| told[name] = value.clone());
        told
    };
    let format = "compressed-tensors in the format";
    refused(compressed(json!({"format": "mxfp6-packed"})), &format!("{format} mxfp6-packed`"));
    refused(compressed(json!({"sparsity_config": {"format": "sparse-24"}})), &format!("{format} sparse-24`"));
    let group = json!({"config_groups": {"a": {"format": "marlin-24"}}});
    refused(compressed(group), &format!("{format} marlin-24`"));
    refused(compressed(json!({"transform_config": {"a": 1}})), "compressed-tensors with a transform_config`");
    check_refused(json!({"quantization": {"group_size": 64, "bits": 4}}), "quantised by `mlx`");
    check_refused(json!({"compression_config": {"format": "marlin-24"}}), "in the format marlin-24`");
    check_refused(json!({"quantization_config": {"quant_method": "gptq"}}), "`bits` is absent");
    let sides = json!({"quant_method": "fp8", "weight_block_size": [128]});
    check_refused(json!({"quantization_config": sides}), "two whole numbers from 1");
    check_refused(json!({"quantization_config": {"quant_method": "fp8", "fmt": "e5m2"}}), "expected e4m3");
}

#[test]
fn what_lies_beside_may_say_that_the_weights_are_not_all() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
    write("config.json", &llama_config(json!({})));
    let refused = || super::read_config(folder.path()).unwrap_err().to_string();
    assert!(super::read_config(folder.path()).is_ok());
    write("hf_quant_config.json", r#"{"quantization": {"quant_algo": null, "kv_cache_quant_algo": "FP8"}}"#);
    assert!(super::read_config(folder.path()).is_ok());
    write("hf_quant_config.json", r#"{"quantization": {"quant_algo": "FP8"}}"#);
    for algorithm in ["FP8", "NVFP4"] {
        write("hf_quant_config.json", &format!(r#"{{"quantization": {{"quant_algo": "{algorithm}"}}}}"#));
        let quantized = super::read_config(folder.path()).unwrap().quantized;
        assert_eq!(quantized, Some(Scheme::Beside { block: None }));
    }
    write("hf_quant_config.json", r#"{"quantization": {"quant_algo": "W4A8_AWQ"}}"#);
    assert!(refused().contains("quantised by `modelopt to W4A8_AWQ`"), "{}", refused());
    write("hf_quant_config.json", "{}");
    write("quant_config.json", r#"{"w_bit": 4, "q_group_size": 128, "zero_point": true, "version": "GEMM"}"#);
    assert_eq!(super::read_config(folder.path()).unwrap().quantized, Some(Scheme::Awq));
    write("quantize_config.json", r#"{"bits": 4, "group_size": 128, "desc_act": false, "sym": true}"#);
    let of_gptq = Scheme::Gptq { bits: 4, symmetric: true, zeros_from: 1 };
    assert_eq!(super::read_config(folder.path()).unwrap().quantized, Some(of_gptq));
    // What `config.json` says counts.
    let said = json!({"quantization_config": {"quant_method": "awq", "bits": 4}});
    write("config.json", &llama_config(said));
    assert_eq!(super::read_config(folder.path()).unwrap().quantized, Some(Scheme::Awq));
    write("adapter_config.json", "{\"base_model_name_or_path\": \"org/base\"}");
    assert!(refused().contains("an adapter of org/base is not supported"), "{}", refused());
    write("adapter_config.json", "?");
    assert!(
        refused().contains("an adapter is not supported") && refused().contains("merge"),
        "{}",
        refused()
    );
}

#[test]
fn values_that_cannot_be() {
    check_refused(json!({"vocab_size": null}), "`vocab_size` is null");
    check_refused(json!({"vocab_size": -1}), "`vocab_size` is -1");
    check_refused(json!({"vocab_size": 1.5}), "`vocab_size` is 1.5");
    check_refused(json!({"num_attention_heads": 0}), "`num_attention_heads` is 0");
    check_refused(json!({"num_key_value_heads": 3}), "`num_key_value_heads` is 3");
    check_refused(json!({"hidden_size": 1u64 << 60}), "`hidden_size`");
    check_refused(json!({"intermediate_size": 0}), "`intermediate_size` is 0");
    let open_llama = json!({"hidden_size": 3200, "num_attention_heads": 32, "head_dim": null});
    check_refused(open_llama, "`head_dim` is 100: expected a supported width of a head: a multiple of 16");
    check_refused(json!({"rope_theta": 0}), "a positive theta");
    check_refused(json!({"rope_scaling": {"rope_type": "linear", "factor": 0}}), "a positive factor");
    check_refused(json!({"eos_token_id": ["a"]}), "`eos_token_id`");
    let not_json = parse_config("{\"a\":", "config.json").expect_err("refused").to_string();
    assert!(not_json.contains("config.json is malformed"), "{not_json}");
}

#[test]
fn generation_defaults() {
    let text = r#"{"do_sample": true, "temperature": 0.6, "top_k": -1, "top_p": 0.9, "eos_token_id": [2, 5],
        "repetition_penalty": null, "transformers_version": "4.40.0"}"#;
    let defaults = parse_generation(text, "generation_config.json").expect("sound");
    assert_eq!(
        (defaults.overrides.temperature, defaults.overrides.top_k, defaults.overrides.repetition_penalty),
        (Some(0.6), Some(-1), None)
    );

    let folder = tempfile::tempdir().expect("a folder");
    write(folder.path(), "config.json", llama_config(json!({})));
    assert_eq!(read_config(folder.path()).expect("sound").spec.eos, [2]);
    assert_eq!(read_generation(folder.path()).expect("none"), GenerationConfig::default());
    write(folder.path(), "generation_config.json", text);
    assert_eq!(read_config(folder.path()).expect("sound").spec.eos, [2, 5]);
    write(folder.path(), "generation_config.json", "[]");
    assert!(read_config(folder.path()).is_err());
    let wrong = parse_generation(r#"{"temperature": "hot"}"#, "generation_config.json").expect_err("refused");
    assert!(wrong.to_string().contains("`temperature` is \"hot\""), "{wrong}");
    for (text, says) in [
        (r#"{"temperature": -1}"#, "`temperature` is -1; expected a number of at least 0"),
        (r#"{"top_k": -5}"#, "`top_k` is -5"),
        (r#"{"top_p": 0.0}"#, "`top_p` is 0"),
    ] {
        let wrong = parse_generation(text, "generation_config.json").expect_err("refused").to_string();
        assert!(wrong.contains(says) && wrong.contains("generation_config.json"), "{wrong}");
    }
}
