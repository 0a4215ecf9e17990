//! The decoders of Qwen's models that see images.

use super::*;

/// Qwen2.5-VL-7B-Instruct: its decoder's fields stand outside.
fn qwen_25() -> Value {
    json!({"architectures": ["Qwen2_5_VLForConditionalGeneration"], "attention_dropout": 0.0, "bos_token_id": 151_643,
        "eos_token_id": 151_645, "hidden_act": "silu", "hidden_size": 3584, "image_token_id": 151_655, "intermediate_size": 18944,
        "max_position_embeddings": 128_000, "max_window_layers": 28, "model_type": "qwen2_5_vl", "num_attention_heads": 28,
        "num_hidden_layers": 28, "num_key_value_heads": 4, "rms_norm_eps": 1e-6,
        "rope_scaling": {"mrope_section": [16, 24, 24], "type": "mrope"}, "rope_theta": 1_000_000.0, "sliding_window": 32768,
        "tie_word_embeddings": false, "torch_dtype": "bfloat16", "use_sliding_window": false,
        "vision_config": {"depth": 32, "hidden_size": 1280, "model_type": "qwen2_5_vl"}, "vocab_size": 152_064})
}

/// Qwen3-VL-4B-Instruct.
fn qwen_3() -> Value {
    json!({"architectures": ["Qwen3VLForConditionalGeneration"], "image_token_id": 151_655, "model_type": "qwen3_vl",
        "text_config": {"attention_bias": false, "attention_dropout": 0.0, "bos_token_id": 151_643, "dtype": "bfloat16",
            "eos_token_id": 151_645, "head_dim": 128, "hidden_act": "silu", "hidden_size": 2560, "intermediate_size": 9728,
            "max_position_embeddings": 262_144, "model_type": "qwen3_vl_text", "num_attention_heads": 32, "num_hidden_layers": 36,
            "num_key_value_heads": 8, "rms_norm_eps": 1e-6, "rope_theta": 5_000_000,
            "rope_scaling": {"mrope_interleaved": true, "mrope_section": [24, 20, 20], "rope_type": "default"},
            "tie_word_embeddings": true, "vocab_size": 151_936},
        "tie_word_embeddings": true, "vision_config": {"depth": 24, "hidden_size": 1024, "model_type": "qwen3_vl"}})
}

/// The configuration of a decoder alone, without what its class knows.
fn without(mut config: Value, fields: &[&str]) -> Value {
    fields.iter().for_each(|field| _ = config.as_object_mut().unwrap().remove(*field));
    config
}

#[test]
fn decoders_have_as_many_weights_as_those_that_do_not_see() {
    assert_eq!(read(qwen_25()).parameters(), 7_615_616_512);
    assert_eq!(read(qwen_3()).parameters(), 4_022_468_096);
}

#[test]
fn text_turns_by_its_position_alone() {
    let two = read(qwen_25());
    assert_eq!(
        (two.rope(), two.window.clone(), two.max_positions),
        (Some(&Rope::plain(1e6)), Window::Full, 128_000)
    );
    assert_eq!((two.biases, two.qk_norm), (Biases { qkv: true, ..Biases::default() }, QkNorm::None));
    assert_eq!((&*two.eos, two.bos, two.dtype), (&[151_645][..], Some(151_643), DType::Bf16));
    let silent = without(
        qwen_25(),
        &["rope_theta", "bos_token_id", "eos_token_id", "rope_scaling", "use_sliding_window"],
    );
    assert_eq!(read(silent), two);
    // As transformers writes it since, and for Qwen2-VL.
    let mut later = qwen_25();
    later["text_config"] = without(qwen_25(), &["architectures", "vision_config"]);
    later["text_config"]["model_type"] = json!("qwen2_5_vl_text");
    later["hidden_size"] = json!(8);
    assert_eq!(read(later.clone()), two);
    later["text_config"]["model_type"] = json!("qwen3_vl_text");
    assert!(refused(later).contains("a decoder of Qwen2_5_VLForConditionalGeneration"));
    // Tied where the decoder says so, whatever is said of the whole, of this one alone.
    let mut tied = qwen_25();
    tied["text_config"] = without(qwen_25(), &["architectures", "vision_config"]);
    tied["text_config"]["tie_word_embeddings"] = json!(true);
    assert!(read(tied).tied_head);
    let mut untied = qwen_3();
    untied["tie_word_embeddings"] = json!(false);
    assert!(!read(untied).tied_head);
    let mut before = qwen_25();
    (before["architectures"], before["model_type"]) =
        (json!(["Qwen2VLForConditionalGeneration"]), json!("qwen2_vl"));
    assert_eq!(read(before.clone()), two);
    before["rope_scaling"] = json!({"factor": 4.0, "mrope_section": [16, 24, 24], "original_max_position_embeddings": 32768, "type": "yarn"});
    assert!(matches!(read(before).rope().unwrap().scaling, RopeScaling::Yarn(_)));

    let three = read(qwen_3());
    assert_eq!((three.rope(), three.qk_norm, three.head_dim), (Some(&Rope::plain(5e6)), QkNorm::Heads, 128));
    assert_eq!((three.tied_head, three.dtype, &*three.eos), (true, DType::Bf16, &[151_645][..]));
    // Nobody else has sections.
    let mut other = without(qwen_25(), &["vision_config"]);
    (other["architectures"], other["model_type"]) = (json!(["Qwen2ForCausalLM"]), json!("qwen2"));
    assert!(refused(other).contains("RoPE scaling `mrope`"));
}
