use super::*;
use crate::template::{Templates, Tools};
use crate::testing::{GgufFile, counting, tiny_gguf, vector, write};
use crate::{Checkpoint, LayerTensor, Tensor};
use spec::model::QkNorm;
use spec::rope::RopeScaling;

fn open(file: &GgufFile) -> Result<Checkpoint> {
    let folder = tempfile::tempdir().expect("a folder");
    write(folder.path(), "model.gguf", file.build());
    Checkpoint::open(&folder.path().join("model.gguf"))
}

#[track_caller]
fn check_refused(file: &GgufFile, why: &str) {
    let error = open(file).expect_err("refused").to_string();
    assert!(error.contains(why), "{error}\nlacks {why:?}");
}

fn f32s(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect()
}

#[test]
fn a_small_llama() {
    let mut checkpoint = open(&tiny_gguf("llama")).expect("sound");
    let spec = checkpoint.spec();
    assert_eq!((spec.vocab, spec.hidden, spec.layers, spec.head_dim, spec.kv_heads), (10, 8, 1, 16, 1));
    assert!(spec.tied_head && spec.qk_norm == QkNorm::None);
    assert_eq!(checkpoint.bytes(), 4 * spec.parameters());
    assert_eq!(checkpoint.take_vocab(), None);
    let mut row = [0; 32];
    checkpoint.read_rows(Tensor::Layer(0, LayerTensor::V), 1..2, &mut row).expect("read");
    assert_eq!(f32s(&row), [8., 9., 10., 11., 12., 13., 14., 15.]);
    assert_eq!(vector(&checkpoint, Tensor::FinalNorm).len(), 8);
}

#[test]
fn rows_of_llama_heads_come_in_the_order_of_hugging_face() {
    let mut file = tiny_gguf("llama");
    file.tensor("blk.0.attn_q.bias", &[32], 0, counting(0, 32));
    file.tensor("blk.0.attn_k.bias", &[16], 0, counting(0, 16));
    file.tensor("blk.0.attn_v.bias", &[16], 0, counting(0, 16));
    let checkpoint = open(&file).expect("sound");
    let read = |tensor, rows: std::ops::Range<usize>| {
        let mut bytes = vec![0; rows.len() * 32];
        checkpoint.read_rows(Tensor::Layer(0, tensor), rows, &mut bytes).expect("read");
        f32s(&bytes).iter().step_by(8).map(|first| (first / 8.0) as usize).collect::<Vec<_>>()
    };
    let turns = |head: usize| [0, 1].map(|half| (0..8).map(move |turn| 16 * head + 2 * turn + half));
    let expected: Vec<usize> = [turns(0), turns(1)].into_iter().flatten().flatten().collect();
    assert_eq!(read(LayerTensor::Q, 0..32), expected);
    assert_eq!(read(LayerTensor::Q, 6..18), expected[6..18]);
    assert_eq!(read(LayerTensor::V, 0..4), [0, 1, 2, 3]);
    let bias = |tensor| vector(&checkpoint, Tensor::Layer(0, tensor));
    assert!(bias(LayerTensor::QBias).iter().zip(&expected).all(|(found, row)| *found == *row as f32));
    assert_eq!(bias(LayerTensor::VBias), f32s(&counting(0, 16)));
}

#[test]
fn biases_in_one_are_told_apart() {
    use LayerTensor::{KBias, QBias, VBias};
    for architecture in ["llama", "qwen2"] {
        let (mut joined, mut apart) = (tiny_gguf(architecture), tiny_gguf(architecture));
        joined.tensor("blk.0.attn_qkv.bias", &[64], 0, counting(0, 64));
        for (name, first, count) in [("q", 0, 32), ("k", 32, 16), ("v", 48, 16)] {
            apart.tensor(&format!("blk.0.attn_{name}.bias"), &[count], 0, counting(first, count as usize));
        }
        let [joined, apart] = [joined, apart].map(|file| {
            let checkpoint = open(&file).expect("sound");
            assert!(checkpoint.spec().biases.qkv);
            [QBias, KBias, VBias].map(|tensor| vector(&checkpoint, Tensor::Layer(0, tensor)))
        });
        assert_eq!(joined, apart, "{architecture}");
    }
    let mut narrow = tiny_gguf("llama");
    narrow.tensor("blk.0.attn_qkv.bias", &[64], 8, vec![0; 68]);
    check_refused(&narrow, "`blk.0.attn_qkv.bias` is Q8_0");
}

#[test]
fn rows_of_qwen_heads_stay() {
    for (architecture, class) in
        [("qwen3", "Qwen3ForCausalLM"), ("qwen3vl", "Qwen3VLForConditionalGeneration")]
    {
        let mut file = tiny_gguf(architecture);
        file.tensor("blk.0.attn_q_norm.weight", &[16], 0, counting(0, 16));
        file.tensor("blk.0.attn_k_norm.weight", &[16], 0, counting(0, 16));
        // Of time, height and width, which are all the position where there is text alone.
        file.ints("qwen3vl.rope.dimension_sections", &[3, 3, 2, 0]);
        let checkpoint = open(&file).expect("sound");
        assert_eq!((checkpoint.spec().qk_norm, &*checkpoint.spec().architecture), (QkNorm::Heads, class));
        let mut rows = vec![0; 8 * 32];
        checkpoint.read_rows(Tensor::Layer(0, LayerTensor::Q), 0..8, &mut rows).expect("read");
        assert_eq!(f32s(&rows), f32s(&counting(0, 64)));
    }
}

#[test]
fn blocks_and_heads_of_their_own() {
    let mut file = tiny_gguf("llama");
    file.tensor("output.weight", &[8, 10], 1, vec![0; 160]);
    let checkpoint = open(&file).expect("sound");
    assert!(!checkpoint.spec().tied_head);
    assert_eq!(checkpoint.info(Tensor::Head).expect("there").stored, Stored::F16);
    let blocks = tensor_bytes(Stored::Q4_K, &[512, 3]);
    assert_eq!(blocks, Some(3 * 2 * 144));
}

#[test]
fn control_tokens_end_a_text_by_their_names() {
    let mut file = tiny_gguf("llama");
    let tokens = ["a", "b", "<|im_end|>", "d", "<|endoftext|>", "</s>", "<|tool|>", "<|file_sep|>", "i", "j"];
    let kinds: Vec<u8> =
        [1i32, 1, 3, 1, 3, 1, 3, 3, 1, 1].iter().flat_map(|kind| kind.to_le_bytes()).collect();
    let kinds = [&5u32.to_le_bytes()[..], &10u64.to_le_bytes(), &kinds].concat();
    file.texts("tokenizer.ggml.tokens", &tokens).uint("tokenizer.ggml.eos_token_id", 1);
    file.pair("tokenizer.ggml.token_type", 9, &kinds);
    assert_eq!(open(&file).expect("sound").spec().eos, [1, 2, 4, 7], "`</s>` is text here");
    // As some files have them: added to the vocabulary, or as text.
    let kinds: Vec<u8> =
        [1i32, 1, 4, 1, 1, 4, 4, 1, 1, 1].iter().flat_map(|kind| kind.to_le_bytes()).collect();
    file.pairs.retain(|(key, _)| key != "tokenizer.ggml.token_type");
    file.pair(
        "tokenizer.ggml.token_type",
        9,
        &[&5u32.to_le_bytes()[..], &10u64.to_le_bytes(), &kinds].concat(),
    );
    assert_eq!(open(&file).expect("sound").spec().eos, [1, 2, 4, 7], "`</s>` may be text of HTML");
    file.pairs.retain(|(key, _)| key != "tokenizer.ggml.token_type");
    assert_eq!(open(&file).expect("sound").spec().eos, [1, 2, 4, 7]);
}

#[test]
fn scaling_of_rotary_frequencies() {
    let mut file = tiny_gguf("llama");
    file.tensor("rope_freqs.weight", &[8], 0, counting(1, 8));
    let spec = open(&file).expect("sound").spec().clone();
    assert_eq!(spec.rope().expect("rope").scaling, RopeScaling::Factors((1u8..9).map(f32::from).collect()));

    let mut file = tiny_gguf("qwen2");
    for name in ["q", "k", "v"] {
        let rows = if name == "q" { 32 } else { 16 };
        file.tensor(&format!("blk.0.attn_{name}.bias"), &[rows], 0, counting(0, rows as usize));
    }
    file.text("qwen2.rope.scaling.type", "yarn").float("qwen2.rope.scaling.factor", 8.0);
    let spec = open(&file).expect("sound").spec().clone();
    assert!(
        matches!(&spec.rope().expect("rope").scaling, RopeScaling::Yarn(y) if y.original_positions == 64),
        "the context, as llama.cpp has it"
    );
    assert_eq!(spec.max_positions, 64);
    file.uint("qwen2.rope.scaling.original_context_length", 16);
    let spec = open(&file).expect("sound").spec().clone();
    assert!(
        matches!(&spec.rope().expect("rope").scaling, RopeScaling::Yarn(y) if y.original_positions == 16)
    );
    assert!(spec.biases.qkv && !spec.biases.o);
    assert_eq!(spec.max_positions, 128, "16 stretched by 8");
}

fn scaling(keys: &[(&str, f32)], kind: Option<&str>) -> RopeScaling {
    let mut file = tiny_gguf("llama");
    for (key, value) in keys {
        file.float(&format!("llama.rope.{key}"), *value);
    }
    if let Some(kind) = kind {
        file.text("llama.rope.scaling.type", kind);
    }
    open(&file).expect("sound").spec().rope().expect("rope").scaling.clone()
}

/// As llama.cpp reads them: the type is linear unless said, the newer key comes first, and 0 is none.
#[test]
fn factors_of_rotary_scaling() {
    let linear = |factor| RopeScaling::Linear { factor };
    assert_eq!(scaling(&[("scaling.factor", 4.0)], None), linear(4.0));
    assert_eq!(scaling(&[("scaling.factor", 4.0), ("scale_linear", 2.0)], None), linear(4.0));
    assert_eq!(scaling(&[("scale_linear", 2.0)], None), linear(2.0));
    assert_eq!(scaling(&[("scale_linear", 2.0)], Some("linear")), linear(2.0));
    for none in [0.0, 1.0] {
        assert_eq!(scaling(&[("scaling.factor", none), ("scale_linear", 2.0)], None), RopeScaling::None);
        assert_eq!(scaling(&[("scaling.factor", none)], Some("yarn")), RopeScaling::None);
    }
    assert_eq!(scaling(&[("scaling.factor", 4.0)], Some("none")), RopeScaling::None);
    let mut file = tiny_gguf("llama");
    file.tensor("rope_freqs.weight", &[8], 0, counting(1, 8)).float("llama.rope.scaling.factor", 0.0);
    assert!(open(&file).is_ok(), "one way to scale, and none");
    file.pairs.pop();
    file.float("llama.rope.scaling.factor", 4.0);
    check_refused(&file, "rope_freqs.weight");
}

#[test]
fn attention_factors_of_yarn() {
    let factor = |keys: &[(&str, f32)]| {
        let keys = [&[("scaling.factor", 4.0)], keys].concat();
        let RopeScaling::Yarn(yarn) = scaling(&keys, Some("yarn")) else { panic!("yarn") };
        yarn.attention_factor.map(|x| (x * 1e4).round() / 1e4)
    };
    let usual = 1.0 + 0.1 * 4f64.ln();
    assert_eq!(factor(&[]), None);
    assert_eq!(factor(&[("scaling.yarn_attn_factor", 1.0), ("scaling.yarn_ext_factor", -1.0)]), None);
    assert_eq!(factor(&[("scaling.yarn_attn_factor", 1.25)]), Some(1.25));
    assert_eq!(factor(&[("scaling.attn_factor", 2.0)]), Some((2.0 * usual * 1e4).round() / 1e4));
    assert_eq!(factor(&[("scaling.attn_factor", 2.0), ("scaling.yarn_attn_factor", 1.25)]), Some(2.5));
}

/// As llama.cpp takes its multiplier: that of all dims, beside 1.
#[test]
fn attention_factors_of_ministral() {
    let factor = |own: &[(&str, f32)]| {
        let mut file = tiny_gguf("mistral3");
        file.text("mistral3.rope.scaling.type", "yarn").float("mistral3.rope.scaling.factor", 32.0);
        file.uint("mistral3.rope.scaling.original_context_length", 16);
        for (key, value) in own {
            file.float(&format!("mistral3.rope.scaling.{key}"), *value);
        }
        match &open(&file).expect("sound").spec().rope().expect("one").scaling {
            RopeScaling::Yarn(yarn) => (yarn.attention_factor() * 1e4).round() / 1e4,
            other => panic!("{other:?}"),
        }
    };
    let scaled = |by: f64| 1.0 + 0.1 * by * 32f64.ln();
    assert_eq!(factor(&[]), (scaled(1.0) * 1e4).round() / 1e4);
    assert_eq!(factor(&[("yarn_log_multiplier", 1.0)]), 1.0);
    assert_eq!(factor(&[("yarn_log_multiplier", 1.0), ("attn_factor", 1.25)]), 1.25);
    let half = factor(&[("yarn_log_multiplier", 0.5), ("attn_factor", 2.0)]);
    assert_eq!(half, (2.0 * scaled(1.0) / scaled(0.5) * 1e4).round() / 1e4);
}

#[test]
fn special_tokens_that_no_token_is() {
    let tokens: Vec<String> = (0..10).map(|i| format!("t{i}")).collect();
    let tokens: Vec<&str> = tokens.iter().map(String::as_str).collect();
    let read = |model: &str| {
        let mut file = tiny_gguf("llama");
        file.text("tokenizer.ggml.model", model).texts("tokenizer.ggml.tokens", &tokens);
        file.uint("tokenizer.ggml.eos_token_id", 10).uint("tokenizer.ggml.padding_token_id", u32::MAX);
        file.pair("tokenizer.ggml.bos_token_id", 5, &(-1i32).to_le_bytes());
        let mut checkpoint = open(&file).expect("sound");
        let vocab = checkpoint.take_vocab().expect("there");
        let spec = checkpoint.spec();
        assert_eq!(spec.bos, vocab.bos);
        (spec.eos.clone(), vocab.bos, vocab.eos, vocab.unk, vocab.pad)
    };
    assert_eq!(read("gpt2"), (vec![], None, None, None, None));
    assert_eq!(read("llama"), (vec![2], Some(1), Some(2), Some(0), None));
    let mut file = tiny_gguf("llama");
    file.text("tokenizer.ggml.bos_token_id", "1");
    check_refused(&file, "a token's number");
}

#[test]
fn marks_of_phi_3_alone_strip_white_space() {
    let folder = tempfile::tempdir().expect("a folder");
    for (architecture, strips) in [("llama", false), ("phi3", true)] {
        let mut file = tiny_gguf(architecture);
        file.text("tokenizer.ggml.model", "llama").texts("tokenizer.ggml.tokens", &["t"; 10]);
        write(folder.path(), "model.gguf", file.build());
        let mut gguf = Gguf::open(&folder.path().join("model.gguf")).expect("sound");
        let vocab = gguf.take_vocab().expect("sound").expect("there");
        assert_eq!(vocab.strips_right, strips, "{architecture}");
    }
}

#[test]
fn vocabulary_and_template() {
    let tokens: Vec<String> = (0..10).map(|i| format!("t{i}")).collect();
    let tokens: Vec<&str> = tokens.iter().map(String::as_str).collect();
    let mut file = tiny_gguf("llama");
    file.text("tokenizer.ggml.model", "gpt2").texts("tokenizer.ggml.tokens", &tokens);
    file.texts("tokenizer.ggml.merges", &["a b"]).uint("tokenizer.ggml.eos_token_id", 2);
    file.uint("tokenizer.ggml.eot_token_id", 9).text("tokenizer.chat_template", "{{ x }}");
    file.uint("tokenizer.ggml.fim_pad_token_id", 4);
    let mut checkpoint = open(&file).expect("sound");
    assert_eq!(checkpoint.spec().eos, [2, 4, 9]);
    let vocab = checkpoint.take_vocab().expect("there");
    assert_eq!(checkpoint.take_vocab(), None, "one copy, for one taker");
    assert_eq!((vocab.tokens.len(), vocab.eos), (10, Some(2)));
    assert_eq!(vocab.chat_templates, [("default".into(), "{{ x }}".into())]);
    file.text("tokenizer.chat_template.tool_use", "{{ tools }}").text("tokenizer.chat_template.rag", "r");
    file.texts("tokenizer.chat_templates", &["tool_use", "rag"]);
    let mut checkpoint = open(&file).expect("sound");
    let templates = checkpoint.take_vocab().expect("there").chat_templates;
    assert_eq!(
        templates.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>(),
        ["default", "rag", "tool_use"]
    );
    let chosen =
        |tools| Templates::named(templates.clone()).choose(tools).expect("there").source().to_owned();
    assert_eq!((chosen(Tools::Given), chosen(Tools::Absent)), ("{{ tools }}".into(), "{{ x }}".into()));

    let mut file = tiny_gguf("llama");
    file.texts("tokenizer.ggml.tokens", &tokens[1..]);
    check_refused(&file, "10 rows of the embedding");
}

#[test]
fn what_is_not_built_is_refused_by_name() {
    check_refused(
        &tiny_gguf("mamba"),
        "architecture `mamba` is not supported; supported: llama, mistral3, qwen2, qwen3",
    );
    let mut experts = tiny_gguf("llama");
    experts.uint("llama.expert_count", 8);
    check_refused(&experts, "`llama.expert_count` = 8 is");
    for (causal, sound) in [(true, true), (false, false)] {
        let mut file = tiny_gguf("llama");
        file.flag("llama.attention.causal", causal);
        assert_eq!(open(&file).is_ok(), sound, "causal: {causal}");
    }
    for (mixed, sound) in [(-1.0, true), (1.0, true), (0.0, false), (0.5, false)] {
        let mut file = tiny_gguf("llama");
        file.text("llama.rope.scaling.type", "yarn").float("llama.rope.scaling.factor", 2.0);
        file.uint("llama.rope.scaling.original_context_length", 64);
        file.float("llama.rope.scaling.yarn_ext_factor", mixed);
        assert_eq!(open(&file).is_ok(), sound, "yarn_ext_factor: {mixed}");
    }
    for key in ["llama.logit_scale", "llama.embedding_scale", "llama.attention.scale"] {
        let mut scaled = tiny_gguf("llama");
        scaled.float(key, 0.3);
        check_refused(&scaled, &format!("`{key}` = 0.3 is"));
    }
    let mut turned = tiny_gguf("llama");
    turned.float("llama.rope.scaling.attn_factor", 1.2);
    check_refused(&turned, "`llama.rope.scaling.attn_factor` = 1.2 is");
    let mut unscaled = tiny_gguf("llama");
    unscaled.float("llama.logit_scale", 1.0).float("llama.residual_scale", 0.0);
    assert!(open(&unscaled).is_ok());
    let mut partial = tiny_gguf("llama");
    partial.uint("llama.rope.dimension_count", 8);
    check_refused(&partial, "`llama.rope.dimension_count` = 8, with heads of 16");
    let mut normed = tiny_gguf("llama");
    normed.tensor("blk.0.attn_q_norm.weight", &[16], 0, counting(0, 16));
    normed.tensor("blk.0.attn_k_norm.weight", &[16], 0, counting(0, 16));
    check_refused(&normed, "`blk.0.attn_q_norm.weight`");
    let mut kind = tiny_gguf("llama");
    kind.tensor("x", &[256], 23, vec![0; 256]);
    check_refused(&kind, "type IQ4_XS");
    let mut narrow = tiny_gguf("llama");
    narrow.pairs.retain(|(key, _)| key != "llama.attention.key_length");
    check_refused(&narrow, "`head_dim` is 4: expected a supported width");
    for (version, why) in [(1, "version 1"), (3u32.swap_bytes(), "big-endian"), (9, "version 9")] {
        check_refused(&GgufFile { version: Some(version), ..tiny_gguf("llama") }, why);
    }
}

#[test]
fn tensors_that_do_not_fit_are_listed() {
    let mut file = tiny_gguf("llama");
    file.last().dims = vec![8, 6];
    file.tensor("blk.7.attn_q.weight", &[2], 0, counting(0, 2));
    let error = open(&file).expect_err("refused").to_string();
    assert!(error.contains("`blk.0.ffn_down.weight` is [6, 8], expected [8, 6]"), "{error}");
    assert!(error.contains("`blk.7.attn_q.weight` is not part of"), "{error}");
}

/// One wrong thing each.
#[test]
fn hostile_headers() {
    let base = tiny_gguf("llama");
    let with = |change: &dyn Fn(&mut GgufFile)| {
        let mut file = base.clone();
        change(&mut file);
        file
    };
    for alignment in [0, 3, 1 << 30] {
        check_refused(
            &with(&|f| {
                f.uint("general.alignment", alignment);
            }),
            "general.alignment",
        );
    }
    check_refused(
        &with(&|f| {
            f.uint("llama.block_count", 1);
        }),
        "occurs twice",
    );
    check_refused(
        &with(&|f| {
            f.tensor("output_norm.weight", &[8], 0, counting(0, 8));
        }),
        "occurs twice",
    );
    check_refused(&with(&|f| f.last().offset = Some(1)), "a multiple of 32");
    check_refused(&with(&|f| f.last().offset = Some(0)), "overlap");
    check_refused(&with(&|f| f.last().offset = Some(u64::MAX - 31)), "an end within the file");
    check_refused(&with(&|f| f.last().offset = Some(1 << 40)), "an end within the file");
    check_refused(&with(&|f| f.last().dims = vec![u64::MAX, u64::MAX]), "whole blocks");
    check_refused(&with(&|f| f.last().dims = vec![1 << 40, 1 << 40]), "whole blocks");
    check_refused(&with(&|f| f.last().dims = vec![0, 8]), "whole blocks");
    check_refused(&with(&|f| f.last().dims = vec![1; 5]), "5 dimensions");
    check_refused(&with(&|f| (f.last().kind, f.last().dims) = (2, vec![6, 8])), "whole blocks");
    check_refused(&with(&|f| f.last().name = "x".repeat(300)), "a name of 300 bytes");
    check_refused(
        &with(&|f| {
            f.pair("x", 13, &[]);
        }),
        "type 13",
    );
    check_refused(
        &with(&|f| {
            f.pair("x", 8, &u64::MAX.to_le_bytes());
        }),
        "a name of 18446744073709551615 bytes",
    );
    let endless = [&4u32.to_le_bytes()[..], &u64::MAX.to_le_bytes()].concat();
    check_refused(
        &with(&|f| {
            f.pair("x", 9, &endless);
        }),
        "18446744073709551615 numbers",
    );
    let deep = [&9u32.to_le_bytes()[..], &1u64.to_le_bytes()].concat().repeat(100);
    check_refused(
        &with(&|f| {
            f.pair("x", 9, &deep);
        }),
        "arrays 64 deep",
    );
    check_refused(
        &with(&|f| {
            f.text("llama.rope.freq_base", "x");
        }),
        "`llama.rope.freq_base` is Text",
    );
}

#[test]
fn a_file_cut_anywhere_is_refused() {
    let bytes = tiny_gguf("llama").build();
    for length in 0..bytes.len() {
        assert!(parse_header(&bytes[..length], length as u64, "cut").is_err(), "cut to {length}");
    }
    assert!(parse_header(&bytes[..], bytes.len() as u64, "whole").is_ok());
}

#[test]
fn counts_beyond_the_file_are_refused_before_anything_is_allocated() {
    for at in [8, 16] {
        let mut bytes = tiny_gguf("llama").build();
        bytes[at..at + 8].copy_from_slice(&u64::MAX.to_le_bytes());
        let error = parse_header(&bytes[..], bytes.len() as u64, "x").expect_err("refused").to_string();
        assert!(error.contains("18446744073709551615"), "{error}");
    }
}

/// Parts of a checkpoint that says how many tensors it has.
fn parts(count: u16, tensors: u32) -> (Vec<u8>, Vec<u8>) {
    let mut first = tiny_gguf("llama");
    let numbers = |file: &mut GgufFile, no: u16| {
        file.pair("split.no", 2, &no.to_le_bytes()).pair("split.count", 2, &count.to_le_bytes());
    };
    numbers(&mut first, 0);
    first.uint("split.tensors.count", tensors);
    let mut second = GgufFile::default();
    numbers(&mut second, 1);
    second.tensor("output.weight", &[8, 10], 0, counting(0, 80));
    (first.build(), second.build())
}

#[test]
fn split_checkpoints_open_by_any_part() {
    let folder = tempfile::tempdir().expect("a folder");
    let (first, second) = parts(2, 12);
    write(folder.path(), "m-00001-of-00002.gguf", first);
    let path = folder.path().join("m-00002-of-00002.gguf");
    assert!(matches!(Checkpoint::open(&path), Err(Error::Io { .. })));
    write(folder.path(), "m-00002-of-00002.gguf", second);
    let checkpoint = Checkpoint::open(&path).expect("sound");
    let mut row = [0; 32];
    checkpoint.read_rows(Tensor::Head, 9..10, &mut row).expect("read");
    assert_eq!(f32s(&row)[0], 72.0);
}

#[test]
fn split_checkpoints_that_disagree() {
    let check = |count, tensors, name: &str, why: &str| {
        let folder = tempfile::tempdir().expect("a folder");
        let (first, second) = parts(count, tensors);
        write(folder.path(), "m-00001-of-00002.gguf", &first);
        write(folder.path(), "m-00002-of-00002.gguf", second);
        write(folder.path(), "renamed.gguf", first);
        let error = Checkpoint::open(&folder.path().join(name)).expect_err("refused").to_string();
        assert!(error.contains(why), "{error}");
    };
    check(3, 12, "m-00001-of-00002.gguf", "part 1 of 3");
    check(2, 13, "m-00001-of-00002.gguf", "12 tensors in all its files");
    check(2, 12, "renamed.gguf", "keep the published name");
}
