use super::*;

/// SmolLM2-135M.
fn smollm2() -> ModelSpec {
    ModelSpec {
        architecture: "LlamaForCausalLM".into(),
        vocab: 49152,
        hidden: 576,
        layers: 30,
        heads: 9,
        kv_heads: 3,
        head_dim: 64,
        ffn: 1536,
        max_positions: 8192,
        norm: Norm::rms(1e-5),
        placement: NormPlacement::Pre,
        final_norm: true,
        activation: Activation::Silu,
        mlp: Mlp::Gated,
        positions: Positions::Rope(Rope::plain(100_000.0)),
        rope_layers: RopeLayers::All,
        biases: Biases::default(),
        qk_norm: QkNorm::None,
        attention_scale: 0.125,
        score_cap: None,
        window: Window::Full,
        tied_head: true,
        embed_dim: 576,
        embed_scale: 1.0,
        logit_scale: 1.0,
        logit_cap: None,
        bos: Some(1),
        eos: vec![2],
        dtype: DType::Bf16,
    }
}

/// OPT-350m: post-norm, no final norm, projected embeddings, biases everywhere.
fn opt_350m() -> ModelSpec {
    ModelSpec {
        architecture: "OPTForCausalLM".into(),
        vocab: 50272,
        hidden: 1024,
        layers: 24,
        heads: 16,
        kv_heads: 16,
        ffn: 4096,
        max_positions: 2048,
        norm: Norm::layer(1e-5),
        placement: NormPlacement::Post,
        final_norm: false,
        activation: Activation::Relu,
        mlp: Mlp::Plain,
        positions: Positions::Learned { offset: 2 },
        biases: Biases { qkv: true, o: true, mlp: true, head: false },
        embed_dim: 512,
        ..smollm2()
    }
}

#[test]
fn published_parameter_counts() {
    assert_eq!(smollm2().parameters(), 134_515_008);
    assert_eq!(opt_350m().parameters(), 331_196_416);
}

#[test]
fn bytes() {
    let spec = smollm2();
    assert_eq!(spec.kv_bytes_per_token_of_layer(DType::Bf16), 2 * 3 * 64 * 2);
    assert_eq!((spec.layer_linear_parameters(), spec.layer_vector_parameters()), (3_538_944, 1152));
}

#[test]
fn windows_by_layer() {
    let mut spec = ModelSpec { layers: 2, ..smollm2() };
    assert_eq!(spec.window_of(1), None);
    spec.window = Window::PerLayer(vec![None, Some(7)]);
    assert_eq!((spec.window_of(0), spec.window_of(1)), (None, Some(7)));
    spec.window = Window::PerLayer(vec![None]);
    assert_eq!(spec.check().unwrap_err().field, "window");
}

#[test]
fn impossible_sizes_are_named() {
    assert_eq!(smollm2().check(), Ok(()));
    assert_eq!(opt_350m().check(), Ok(()));
    type Damage = fn(&mut ModelSpec);
    let broken: [(&str, Damage); 10] = [
        ("vocab", |s| s.vocab = 0),
        ("hidden", |s| s.hidden = usize::MAX),
        ("heads", |s| (s.heads, s.head_dim) = (1 << 23, 1 << 23)),
        ("kv_heads", |s| s.kv_heads = 2),
        ("head_dim", |s| s.head_dim = 100),
        ("positions", |s| {
            s.positions = Positions::Rope(Rope { rotary_fraction: 0.01, ..Rope::plain(1e4) });
        }),
        ("norm", |s| s.norm.eps = f32::NAN),
        ("layers", |s| (s.hidden, s.ffn, s.embed_dim, s.layers) = (1 << 24, 1 << 24, 1 << 24, 1 << 15)),
        ("layers", |s| s.layers = usize::from(u16::MAX) + 1),
        ("rope", |s| s.positions = Positions::Rope(Rope::plain(f64::NAN))),
    ];
    for (field, damage) in broken {
        let mut spec = smollm2();
        damage(&mut spec);
        assert_eq!(spec.check().unwrap_err().field, field);
    }
}
