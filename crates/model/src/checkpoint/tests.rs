use super::*;
use crate::config::parse_config;
use crate::tensor::LayerTensor;
use crate::testing::{counting, llama_config, safetensors, tensors_of, vector, write};
use serde_json::json;
use tempfile::TempDir;

type File = Vec<(String, &'static str, Vec<u64>, Vec<u8>)>;

/// A folder with a tiny Llama, its tensors changed by `change`.
fn folder(config: serde_json::Value, change: impl Fn(&mut File)) -> TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    let text = llama_config(config);
    let config = parse_config(&text, "config.json").expect("sound");
    let mut tensors = tensors_of(&config.spec, config.family.naming());
    change(&mut tensors);
    write(folder.path(), "config.json", text);
    write(folder.path(), "model.safetensors", safetensors(&tensors));
    folder
}

fn named<'a>(file: &'a mut File, name: &str) -> &'a mut (String, &'static str, Vec<u64>, Vec<u8>) {
    file.iter_mut().find(|t| t.0 == name).expect("a tensor of that name")
}

fn first_of_row(checkpoint: &Checkpoint, tensor: Tensor, row: usize) -> f32 {
    let mut bytes = vec![0; checkpoint.info(tensor).expect("there").row_bytes];
    checkpoint.read_rows(tensor, row..row + 1, &mut bytes).expect("read");
    f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
}

#[test]
fn rows_of_a_folder() {
    let folder = folder(json!({"attention_bias": true}), |_| {});
    let checkpoint = Checkpoint::open(folder.path()).expect("sound");
    assert_eq!(checkpoint.bytes(), 4 * checkpoint.spec().parameters());
    assert_eq!(first_of_row(&checkpoint, Tensor::Layer(1, LayerTensor::Down), 3), 18.0);
    assert_eq!(first_of_row(&checkpoint, Tensor::Head, 9), 72.0);
    let bias = vector(&checkpoint, Tensor::Layer(0, LayerTensor::KBias));
    assert!(bias.len() == 16 && bias.starts_with(&[0.0, 1.0, 2.0, 3.0]));
    assert_eq!(checkpoint.info(Tensor::Layer(0, LayerTensor::QNorm)), None);
}

#[test]
fn everything_wrong_is_said_at_once() {
    let folder = folder(json!({}), |file| {
        file.retain(|t| t.0 != "model.layers.1.mlp.up_proj.weight");
        named(file, "model.norm.weight").2 = vec![2, 4];
        named(file, "model.embed_tokens.weight").1 = "I32";
        file.push(("model.layers.2.mlp.up_proj.weight".into(), "F32", vec![1], counting(0, 1)));
        file.push(("model.layers.0.self_attn.rotary_emb.inv_freq".into(), "F32", vec![1], counting(0, 1)));
    });
    let Err(Error::Tensors { problems, .. }) = Checkpoint::open(folder.path()) else { panic!("not refused") };
    assert_eq!(
        problems,
        [
            "`model.embed_tokens.weight` is I32, expected F32, F16 or BF16",
            "`model.norm.weight` is [2, 4], expected [8]",
            "`model.layers.1.mlp.up_proj.weight` is missing",
            "`model.layers.2.mlp.up_proj.weight` is not part of LlamaForCausalLM",
        ]
    );
}

#[test]
fn weights_that_are_not_finite_are_found_when_read() {
    let name = "model.layers.0.mlp.gate_proj.weight";
    let folder = folder(json!({}), |file| {
        named(file, name).3[8 * 4 * 5..][..4].copy_from_slice(&f32::NAN.to_le_bytes());
    });
    let checkpoint = Checkpoint::open(folder.path()).expect("headers are sound");
    let mut rows = [0; 6 * 32];
    let gate = Tensor::Layer(0, LayerTensor::Gate);
    checkpoint.read_rows(gate, 0..5, &mut rows[..5 * 32]).expect("these are finite");
    let Err(Error::NotFinite { tensor, row, .. }) = checkpoint.read_rows(gate, 2..6, &mut rows[..4 * 32])
    else {
        panic!("not found")
    };
    assert_eq!((tensor.as_str(), row), (name, 5));
}

#[test]
fn shards() {
    let folder = folder(json!({}), |_| {});
    let config = parse_config(&llama_config(json!({})), "config.json").expect("sound");
    let tensors = tensors_of(&config.spec, config.family.naming());
    std::fs::remove_file(folder.path().join("model.safetensors")).expect("removed");
    let (left, right) = tensors.split_at(5);
    let map = |part: &[(String, &str, Vec<u64>, Vec<u8>)], name: &str| {
        part.iter().map(|t| (t.0.clone(), json!(name))).collect::<Vec<_>>()
    };
    let all: serde_json::Map<_, _> =
        [map(left, "1.safetensors"), map(right, "2.safetensors")].concat().into_iter().collect();
    write(folder.path(), "model.safetensors.index.json", json!({"weight_map": all}).to_string());
    write(folder.path(), "1.safetensors", safetensors(left));
    assert!(matches!(Checkpoint::open(folder.path()), Err(Error::Malformed { .. })), "a shard is missing");
    write(folder.path(), "2.safetensors", safetensors(&right[1..]));
    let error = Checkpoint::open(folder.path()).expect_err("a tensor is missing").to_string();
    assert!(error.contains("is not in 2.safetensors"), "{error}");
    write(folder.path(), "2.safetensors", safetensors(right));
    let checkpoint = Checkpoint::open(folder.path()).expect("sound");
    assert_eq!(first_of_row(&checkpoint, Tensor::Layer(1, LayerTensor::Up), 1), 8.0);
    // One file counts before an index, as in transformers.
    std::fs::remove_file(folder.path().join("1.safetensors")).expect("removed");
    write(folder.path(), "model.safetensors", safetensors(&tensors));
    assert!(Checkpoint::open(folder.path()).is_ok());
}

#[test]
fn a_tied_head_that_is_stored_is_compared() {
    let tied = json!({"tie_word_embeddings": true});
    let with_head = |bytes: Vec<u8>| {
        let folder = folder(tied.clone(), |file| {
            file.push(("lm_head.weight".into(), "F32", vec![10, 8], bytes.clone()));
        });
        Checkpoint::open(folder.path()).expect("sound").spec().tied_head
    };
    assert!(with_head(counting(0, 80)));
    assert!(!with_head(counting(1, 80)));
    let without = folder(tied.clone(), |_| {});
    assert!(Checkpoint::open(without.path()).expect("sound").spec().tied_head);
}

#[test]
fn a_tied_embedding_may_be_stored_as_the_head() {
    let under_the_head = |tied: bool| {
        let folder = folder(json!({"tie_word_embeddings": tied}), |file| {
            file.retain(|tensor| tensor.0 != "lm_head.weight");
            named(file, "model.embed_tokens.weight").0 = "lm_head.weight".into();
        });
        Checkpoint::open(folder.path())
    };
    let checkpoint = under_the_head(true).expect("sound");
    assert!(checkpoint.spec().tied_head);
    assert_eq!(first_of_row(&checkpoint, Tensor::Embed, 9), 72.0);
    let error = under_the_head(false).expect_err("an embedding lacks").to_string();
    assert!(error.contains("`model.embed_tokens.weight` is missing"), "{error}");
}

#[test]
fn names_without_their_first_part() {
    let folder = folder(json!({"tie_word_embeddings": true}), |file| {
        for tensor in file {
            tensor.0 = tensor.0.trim_start_matches("model.").to_owned();
        }
    });
    assert!(Checkpoint::open(folder.path()).is_ok());
}

#[test]
fn the_embedding_says_the_type_where_the_configuration_does_not() {
    let open = |mut config: serde_json::Value| {
        config["torch_dtype"] = json!(null);
        let folder = folder(config, |file| {
            for (.., dtype, _, bytes) in file {
                *dtype = "BF16";
                bytes.truncate(bytes.len() / 2);
                bytes.fill(0);
            }
        });
        Checkpoint::open(folder.path()).expect("sound").spec().clone()
    };
    assert_eq!(open(json!({})).dtype, DType::Bf16);
    // The root of eight, in numbers of that type.
    let gemma = open(gemma());
    assert_eq!((gemma.dtype, gemma.embed_scale), (DType::Bf16, 2.828125));
}

#[test]
fn folders_without_a_checkpoint_say_why() {
    let folder = folder(json!({}), |_| {});
    let reason = |path: &Path| Checkpoint::open(path).expect_err("refused").to_string();
    std::fs::rename(folder.path().join("model.safetensors"), folder.path().join("a.safetensors"))
        .expect("renamed");
    assert!(Checkpoint::open(folder.path()).is_ok(), "the only one there is");
    write(folder.path(), "b.safetensors", []);
    assert!(reason(folder.path()).contains("2 .safetensors files without an index"));
    std::fs::remove_file(folder.path().join("a.safetensors")).expect("removed");
    std::fs::remove_file(folder.path().join("b.safetensors")).expect("removed");
    assert!(reason(folder.path()).contains("dummy"));
    write(folder.path(), "pytorch_model.bin", []);
    assert!(reason(folder.path()).contains("pickle"));
}

#[test]
fn opt_350m_has_projections_and_no_last_norm() {
    let config = json!({"architectures": ["OPTForCausalLM"], "ffn_dim": 6, "hidden_size": 32,
        "word_embed_proj_dim": 4, "do_layer_norm_before": false});
    let folder = folder(config, |_| {});
    let checkpoint = Checkpoint::open(folder.path()).expect("sound");
    assert_eq!(checkpoint.bytes(), 4 * checkpoint.spec().parameters());
    let rows = |tensor| checkpoint.info(tensor).map(|info| info.shape.rows());
    assert_eq!((rows(Tensor::Positions), rows(Tensor::ProjectIn)), (Some(66), Some(32)));
    assert_eq!((rows(Tensor::FinalNorm), rows(Tensor::Head)), (None, None));
}

#[test]
fn random_weights() {
    let config =
        parse_config(&llama_config(json!({"hidden_size": 512, "vocab_size": 300})), "c").expect("sound");
    let read = |seed| {
        let checkpoint = Checkpoint::dummy(config.spec.clone(), seed);
        let mut rows = vec![0; 300 * 512 * 4];
        checkpoint.read_rows(Tensor::Embed, 0..300, &mut rows).expect("read");
        let again = &mut vec![0; 512 * 4];
        checkpoint.read_rows(Tensor::Embed, 7..8, again).expect("read");
        assert_eq!(again[..], rows[7 * 512 * 4..][..512 * 4], "a row does not depend on how it is read");
        let norm = vector(&checkpoint, Tensor::FinalNorm);
        assert!(norm.iter().all(|x| *x == 1.0));
        let mut numbers = vec![0.0; 300 * 512];
        Stored::F32.decode_plain(&rows, &mut numbers);
        numbers
    };
    let numbers = read(1);
    assert_eq!(numbers, read(1));
    assert_ne!(numbers, read(2));
    let n = numbers.len() as f32;
    let mean = numbers.iter().sum::<f32>() / n;
    let deviation = (numbers.iter().map(|x| x * x).sum::<f32>() / n).sqrt();
    assert!(mean.abs() < 5e-4, "{mean}");
    assert!((deviation - 0.02).abs() < 5e-4, "{deviation}");
    let dot = |a: usize, b: usize| {
        let row = |i: usize| &numbers[i * 512..][..512];
        row(a).iter().zip(row(b)).map(|(x, y)| x * y).sum::<f32>() / (512.0 * 4e-4)
    };
    assert!((1..300).all(|other| dot(0, other).abs() < 0.3), "rows are not alike");
}

fn gemma() -> serde_json::Value {
    json!({"architectures": ["Gemma3ForCausalLM"], "model_type": "gemma3_text", "num_hidden_layers": 2})
}

fn mistral() -> serde_json::Value {
    json!({"architectures": ["MistralForCausalLM"], "model_type": "mistral", "sliding_window": null})
}

#[test]
fn the_decoder_of_what_sees_images_is_read_alone() {
    decoder_is_read_alone(gemma(), "Gemma3ForConditionalGeneration", "gemma3");
    decoder_is_read_alone(mistral(), "Mistral3ForConditionalGeneration", "mistral3");
}

fn decoder_is_read_alone(text: serde_json::Value, class: &str, kind: &str) {
    let plain = folder(text.clone(), |_| {});
    let want = Checkpoint::open(plain.path()).expect("sound");
    type Rename = fn(&str) -> String;
    let layouts: [(Rename, &str); 2] = [
        (|name| format!("language_model.{name}"), "vision_tower.x"),
        (|name| name.replace("model.", "model.language_model."), "model.multi_modal_projector.x"),
    ];
    for (rename, other) in layouts {
        let seeing = folder(text.clone(), |file| {
            file.iter_mut().for_each(|tensor| tensor.0 = rename(&tensor.0));
            file.push((other.into(), "F32", vec![1], counting(0, 1)));
        });
        let text: serde_json::Value = serde_json::from_str(&llama_config(text.clone())).expect("JSON");
        let config = json!({"architectures": [class], "model_type": kind, "text_config": text, "torch_dtype": "float32"});
        write(seeing.path(), "config.json", config.to_string());
        let got = Checkpoint::open(seeing.path()).expect("sound");
        assert_eq!(got.spec(), want.spec());
        assert!(got.tensors().eq(want.tensors()));
        assert_eq!(
            first_of_row(&got, Tensor::Layer(1, LayerTensor::Down), 3),
            first_of_row(&want, Tensor::Layer(1, LayerTensor::Down), 3)
        );
    }
}

/// Of all of a model that sees images nothing is said, so files without a head say it.
#[test]
fn a_decoder_without_a_head_is_tied_where_nothing_is_said_of_the_whole() {
    let headless = folder(mistral(), |file| file.retain(|tensor| tensor.0 != "lm_head.weight"));
    let text: serde_json::Value = serde_json::from_str(&llama_config(mistral())).expect("JSON");
    let open = |config: serde_json::Value| {
        write(headless.path(), "config.json", config.to_string());
        Checkpoint::open(headless.path()).map(|checkpoint| checkpoint.spec().tied_head)
    };
    assert!(open(text.clone()).unwrap_err().to_string().contains("`lm_head.weight` is missing"));
    let mut whole = json!({"architectures": ["Mistral3ForConditionalGeneration"], "text_config": text});
    assert!(open(whole.clone()).expect("sound"));
    whole["tie_word_embeddings"] = json!(false);
    assert!(open(whole).is_err());
}

#[test]
fn a_tensor_under_two_names_is_refused() {
    let twice = folder(gemma(), |file| {
        let mut other = file[0].clone();
        other.0 = format!("language_model.{}", other.0);
        file.push(other);
    });
    let why = Checkpoint::open(twice.path()).map(|_| ()).unwrap_err().to_string();
    assert!(why.contains("is not part of Gemma3ForCausalLM"), "no decoder inside another model: {why}");
    let text: serde_json::Value = serde_json::from_str(&llama_config(gemma())).expect("JSON");
    let whole = json!({"architectures": ["Gemma3ForConditionalGeneration"], "text_config": text});
    write(twice.path(), "config.json", whole.to_string());
    let why = Checkpoint::open(twice.path()).map(|_| ()).unwrap_err().to_string();
    assert!(why.contains("by another name too"), "{why}");
}

#[test]
fn tensors_in_one_are_told_apart() {
    let phi = json!({"architectures": ["Phi3ForCausalLM"], "num_hidden_layers": 1});
    let joined = |qkv_rows: u64| {
        folder(phi.clone(), move |file| {
            let parts = ["q_proj", "k_proj", "v_proj", "gate_proj", "up_proj"];
            file.retain(|tensor| !parts.iter().any(|part| tensor.0.contains(part)));
            for (name, rows) in [("self_attn.qkv_proj", qkv_rows), ("mlp.gate_up_proj", 12)] {
                let name = format!("model.layers.0.{name}.weight");
                file.push((name, "F32", vec![rows, 8], counting(0, rows as usize * 8)));
            }
        })
    };
    let sound = joined(64);
    let checkpoint = Checkpoint::open(sound.path()).expect("sound");
    use LayerTensor::{Gate, K, Q, Up, V};
    // 32 rows of queries, 16 of keys, 16 of values, 8 numbers each; 6 rows of the gate.
    let firsts = [Q, K, V, Gate, Up].map(|part| first_of_row(&checkpoint, Tensor::Layer(0, part), 1));
    assert_eq!(firsts, [8.0, 33.0 * 8.0, 49.0 * 8.0, 8.0, 7.0 * 8.0]);
    let short = joined(63);
    let error = Checkpoint::open(short.path()).expect_err("a row is missing").to_string();
    assert!(error.contains("`model.layers.0.self_attn.qkv_proj.weight` is not part"), "{error}");
}

#[test]
fn random_scales_of_norms_are_one_however_files_hold_them() {
    for (config, held) in [(json!({}), 1.0), (gemma(), 0.0)] {
        let spec = parse_config(&llama_config(config), "config.json").expect("sound").spec;
        let dummy = Checkpoint::dummy(spec, 3);
        assert!(vector(&dummy, Tensor::FinalNorm).iter().all(|scale| *scale == held));
    }
}

/// GPT-NeoX with other names of its tensors.
fn neox(renamed: &[(&str, &str)], ties: bool) -> Result<Checkpoint> {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/gpt-neox");
    let mut config: serde_json::Value =
        serde_json::from_slice(&std::fs::read(golden.join("config.json")).expect("there")).expect("JSON");
    config["tie_word_embeddings"] = json!(ties);
    let file = std::fs::read(golden.join("model.safetensors")).expect("there");
    let (length, rest) = file.split_at(8);
    let length = u64::from_le_bytes(length.try_into().expect("eight bytes")) as usize;
    let (header, tensors) = rest.split_at(length);
    let mut header = String::from_utf8(header.to_vec()).expect("JSON");
    for (from, to) in renamed {
        header = header.replace(from, to);
    }
    let folder = tempfile::tempdir().expect("a folder");
    write(folder.path(), "config.json", config.to_string());
    let whole = [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), tensors].concat();
    write(folder.path(), "model.safetensors", whole);
    Checkpoint::open(folder.path())
}

#[test]
fn heads_of_other_names_may_be_tied_and_base_models_too() {
    let (own, usual) = ("embed_out.weight", "lm_head.weight");
    assert!(!neox(&[], false).expect("as it is").spec().tied_head);
    assert!(!neox(&[(own, usual)], false).expect("by the usual name").spec().tied_head);
    assert!(!neox(&[(own, usual)], true).expect("it differs").spec().tied_head);
    assert!(!neox(&[], true).expect("it differs").spec().tied_head);
    let tied = neox(&[(own, "rotary_emb.inv_freq"), ("gpt_neox.embed_in.weight", own)], true);
    assert!(tied.expect("the head alone").spec().tied_head);
    let bare = neox(&[("gpt_neox.", ""), (own, "rotary_emb.inv_freq")], true);
    assert!(bare.expect("a base model").spec().tied_head);
    let missing = neox(&[("gpt_neox.", ""), (own, "rotary_emb.inv_freq")], false).expect_err("no head");
    assert!(missing.to_string().contains("`embed_out.weight` is missing"), "{missing}");
}

#[test]
fn a_bias_of_zeros_that_a_model_does_not_have_changes_nothing() {
    let with_bias = |bias: f32| {
        let folder = folder(json!({}), |file| {
            let values = (0..8).flat_map(|_| bias.to_le_bytes()).collect();
            file.push(("model.norm.bias".into(), "F32", vec![8], values));
        });
        Checkpoint::open(folder.path())
    };
    assert!(with_bias(0.0).is_ok());
    let error = with_bias(0.5).expect_err("it would change results").to_string();
    assert!(error.contains("`model.norm.bias` is not part of LlamaForCausalLM"), "{error}");
}

#[test]
fn rows_that_lie_head_by_head_are_those_of_a_whole() {
    let config = json!({"architectures": ["GPTNeoXForCausalLM"], "num_key_value_heads": 1});
    let folder = folder(config, |file| {
        // Of queries, keys and values, which are one, the queries alone.
        let mut seen = std::collections::BTreeSet::new();
        file.retain(|tensor| seen.insert(tensor.0.clone()));
    });
    let error = Checkpoint::open(folder.path()).expect_err("too short").to_string();
    assert!(error.contains("query_key_value.weight` is [32, 8], expected [96, 8]"), "{error}");
}
