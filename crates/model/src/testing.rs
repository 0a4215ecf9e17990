//! Small files, built in the tests that read them.

use crate::Checkpoint;
use crate::tensor::{Naming, Shape, Tensor};
use spec::ModelSpec;
use std::path::Path;

/// A safetensors file of F32 tensors, or of bytes under another type's name.
pub(crate) fn safetensors(tensors: &[(String, &str, Vec<u64>, Vec<u8>)]) -> Vec<u8> {
    let mut header = serde_json::Map::new();
    let mut data = vec![];
    for (name, dtype, shape, bytes) in tensors {
        let offsets = [data.len(), data.len() + bytes.len()];
        let entry = serde_json::json!({"dtype": dtype, "shape": shape, "data_offsets": offsets});
        header.insert(name.clone(), entry);
        data.extend(bytes);
    }
    header.insert("__metadata__".into(), serde_json::json!({"format": "pt"}));
    let header = serde_json::Value::Object(header).to_string();
    [&(header.len() as u64).to_le_bytes(), header.as_bytes(), &data].concat()
}

/// The numbers `0, 1, 2, ...` from `first` on, as F32.
pub(crate) fn counting(first: usize, count: usize) -> Vec<u8> {
    (first..first + count).flat_map(|n| (n as f32).to_le_bytes()).collect()
}

/// An F32 vector of a checkpoint.
pub(crate) fn vector(checkpoint: &Checkpoint, tensor: Tensor) -> Vec<f32> {
    let mut bytes = vec![0; checkpoint.info(tensor).expect("such a tensor").row_bytes];
    checkpoint.read_rows(tensor, 0..1, &mut bytes).expect("read");
    bytes.chunks_exact(4).map(|four| f32::from_le_bytes(four.try_into().expect("four"))).collect()
}

pub(crate) fn dims(shape: Shape) -> Vec<u64> {
    match shape {
        Shape::Vector(n) => vec![n as u64],
        Shape::Matrix(rows, columns) => vec![rows as u64, columns as u64],
    }
}

/// Every tensor of a model, counting from 0 in each.
pub(crate) fn tensors_of(spec: &ModelSpec, naming: Naming) -> Vec<(String, &'static str, Vec<u64>, Vec<u8>)> {
    let each = Tensor::all(spec).into_iter();
    each.map(|(tensor, shape)| {
        let name = naming.name(tensor).expect("a name");
        (name, "F32", dims(shape), counting(0, shape.rows() * shape.columns()))
    })
    .collect()
}

/// A tiny Llama's `config.json`, with fields replaced or added; of another class it has no `model_type`, unless that is added.
pub(crate) fn llama_config(changes: serde_json::Value) -> String {
    let mut config = serde_json::json!({
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 10, "hidden_size": 8,
        "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16,
        "intermediate_size": 6, "max_position_embeddings": 64, "rms_norm_eps": 1e-5, "torch_dtype": "float32", "eos_token_id": 2,
    });
    let fields = config.as_object_mut().expect("an object");
    if changes["architectures"].is_array() {
        fields.remove("model_type");
    }
    for (key, value) in changes.as_object().expect("an object") {
        fields.insert(key.clone(), value.clone());
    }
    config.to_string()
}

pub(crate) fn write(folder: &Path, name: &str, bytes: impl AsRef<[u8]>) {
    std::fs::write(folder.join(name), bytes).expect("written");
}

/// A GGUF file in the making.
#[derive(Clone, Default)]
pub(crate) struct GgufFile {
    pub(crate) pairs: Vec<(String, Vec<u8>)>,
    pub(crate) tensors: Vec<GgufTensor>,
    pub(crate) version: Option<u32>,
}

/// A tensor with its dimensions innermost first, as the file has them.
#[derive(Clone)]
pub(crate) struct GgufTensor {
    pub(crate) name: String,
    pub(crate) dims: Vec<u64>,
    pub(crate) kind: u32,
    pub(crate) bytes: Vec<u8>,
    /// Instead of the next aligned place.
    pub(crate) offset: Option<u64>,
}

pub(crate) fn gguf_text(text: &str) -> Vec<u8> {
    [&(text.len() as u64).to_le_bytes(), text.as_bytes()].concat()
}

impl GgufFile {
    pub(crate) fn pair(&mut self, key: &str, kind: u32, value: &[u8]) -> &mut Self {
        self.pairs.push((key.into(), [&kind.to_le_bytes(), value].concat()));
        self
    }

    pub(crate) fn uint(&mut self, key: &str, value: u32) -> &mut Self {
        self.pair(key, 4, &value.to_le_bytes())
    }

    pub(crate) fn flag(&mut self, key: &str, value: bool) -> &mut Self {
        self.pair(key, 7, &[u8::from(value)])
    }

    pub(crate) fn float(&mut self, key: &str, value: f32) -> &mut Self {
        self.pair(key, 6, &value.to_le_bytes())
    }

    pub(crate) fn text(&mut self, key: &str, value: &str) -> &mut Self {
        self.pair(key, 8, &gguf_text(value))
    }

    pub(crate) fn texts(&mut self, key: &str, values: &[&str]) -> &mut Self {
        let items: Vec<u8> = values.iter().flat_map(|t| gguf_text(t)).collect();
        let head = [&8u32.to_le_bytes()[..], &(values.len() as u64).to_le_bytes()].concat();
        self.pair(key, 9, &[head, items].concat())
    }

    pub(crate) fn ints(&mut self, key: &str, values: &[i32]) -> &mut Self {
        let items: Vec<u8> = values.iter().flat_map(|n| n.to_le_bytes()).collect();
        let head = [&5u32.to_le_bytes()[..], &(values.len() as u64).to_le_bytes()].concat();
        self.pair(key, 9, &[head, items].concat())
    }

    pub(crate) fn tensor(&mut self, name: &str, dims: &[u64], kind: u32, bytes: Vec<u8>) -> &mut Self {
        self.tensors.push(GgufTensor { name: name.into(), dims: dims.into(), kind, bytes, offset: None });
        self
    }

    pub(crate) fn last(&mut self) -> &mut GgufTensor {
        self.tensors.last_mut().expect("a tensor")
    }

    pub(crate) fn build(&self) -> Vec<u8> {
        let mut out = b"GGUF".to_vec();
        out.extend(self.version.unwrap_or(3).to_le_bytes());
        out.extend((self.tensors.len() as u64).to_le_bytes());
        out.extend((self.pairs.len() as u64).to_le_bytes());
        for (key, value) in &self.pairs {
            out.extend(gguf_text(key));
            out.extend(value);
        }
        let mut data = vec![];
        for tensor in &self.tensors {
            data.resize(data.len().next_multiple_of(32), 0);
            out.extend(gguf_text(&tensor.name));
            out.extend((tensor.dims.len() as u32).to_le_bytes());
            out.extend(tensor.dims.iter().flat_map(|d| d.to_le_bytes()));
            out.extend(tensor.kind.to_le_bytes());
            out.extend(tensor.offset.unwrap_or(data.len() as u64).to_le_bytes());
            data.extend(&tensor.bytes);
        }
        out.resize(out.len().next_multiple_of(32), 0);
        [out, data].concat()
    }
}

/// A tiny model of a GGUF architecture: 2 heads of 16, a key head, a layer, 10 tokens.
pub(crate) fn tiny_gguf(architecture: &str) -> GgufFile {
    let mut file = GgufFile::default();
    file.text("general.architecture", architecture);
    let mut size = |key: &str, value| {
        file.uint(&format!("{architecture}.{key}"), value);
    };
    size("context_length", 64);
    size("embedding_length", 8);
    size("block_count", 1);
    size("feed_forward_length", 6);
    size("attention.head_count", 2);
    size("attention.head_count_kv", 1);
    size("attention.key_length", 16);
    file.float(&format!("{architecture}.attention.layer_norm_rms_epsilon"), 1e-5);
    let mut add = |name: &str, dims: &[u64]| {
        let count = dims.iter().product::<u64>() as usize;
        file.tensor(name, dims, 0, counting(0, count));
    };
    add("token_embd.weight", &[8, 10]);
    add("output_norm.weight", &[8]);
    add("blk.0.attn_norm.weight", &[8]);
    add("blk.0.attn_q.weight", &[8, 32]);
    add("blk.0.attn_k.weight", &[8, 16]);
    add("blk.0.attn_v.weight", &[8, 16]);
    add("blk.0.attn_output.weight", &[32, 8]);
    add("blk.0.ffn_norm.weight", &[8]);
    add("blk.0.ffn_gate.weight", &[8, 6]);
    add("blk.0.ffn_up.weight", &[8, 6]);
    add("blk.0.ffn_down.weight", &[6, 8]);
    file
}
