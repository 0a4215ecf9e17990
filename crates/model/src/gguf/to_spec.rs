//! From GGUF metadata to a [`ModelSpec`] and a [`GgufVocab`].

use super::variants::{self, GEMMA_2, GEMMA_PATTERN, OLMO_PATTERN};
use super::vocab::{NORMAL, is_end, special};
use super::{Gguf, GgufVocab, Metadata, Numbers, Texts, Value};
use crate::config::LAYERS_MAX;
use crate::error::{Error, Result, shorten};
use crate::stored::Stored;
use crate::tensor::Naming;
use spec::ModelSpec;
use spec::model::{
    Activation, Biases, DType, Mlp, Norm, NormPlacement, Positions, QkNorm, RopeLayers, Window,
};

/// `general.architecture` and what Hugging Face calls it.
const ARCHITECTURES: [(&str, &str); 25] = [
    ("llama", "LlamaForCausalLM"),
    ("mistral3", "Ministral3ForCausalLM"),
    ("qwen2", "Qwen2ForCausalLM"),
    ("qwen3", "Qwen3ForCausalLM"),
    ("qwen2vl", "Qwen2_5_VLForConditionalGeneration"),
    ("qwen3vl", "Qwen3VLForConditionalGeneration"),
    ("phi3", "Phi3ForCausalLM"),
    ("smollm3", "SmolLM3ForCausalLM"),
    ("granite", "GraniteForCausalLM"),
    ("gemma", "GemmaForCausalLM"),
    ("gemma2", "Gemma2ForCausalLM"),
    ("gemma3", "Gemma3ForCausalLM"),
    ("olmo2", "Olmo2ForCausalLM"),
    ("exaone4", "Exaone4ForCausalLM"),
    ("seed_oss", "SeedOssForCausalLM"),
    ("glm4", "Glm4ForCausalLM"),
    ("ernie4_5", "Ernie4_5ForCausalLM"),
    ("command-r", "CohereForCausalLM"),
    ("cohere2", "Cohere2ForCausalLM"),
    ("phi2", "PhiForCausalLM"),
    ("gptneox", "GPTNeoXForCausalLM"),
    ("starcoder2", "Starcoder2ForCausalLM"),
    ("stablelm", "StableLmForCausalLM"),
    ("arcee", "ArceeForCausalLM"),
    ("nemotron", "NemotronForCausalLM"),
];

/// Those whose norms are layer norms.
const LAYER_NORMED: [&str; 7] =
    ["command-r", "cohere2", "phi2", "gptneox", "starcoder2", "stablelm", "nemotron"];

/// Those whose queries and keys have the rows of a head beside each other that turn together,
const PAIRS: [&str; 9] =
    ["llama", "mistral3", "smollm3", "granite", GLM4, "ernie4_5", "command-r", "cohere2", "arcee"];
/// and this one has them so where a part of a head turns.
const GLM4: &str = "glm4";

/// Those that may have layer norms of queries and keys, each head's with scales of its own.
const OWN_HEADS: [&str; 2] = ["command-r", "stablelm"];

/// Keys of Mixture-of-Experts and other variants that an architecture's name does not show.
const NEUTRAL: [&str; 8] = [
    "expert_count",
    "attention.clamp_kqv",
    "attention.max_alibi_bias",
    "attention.scale",
    SECTIONS,
    TEMPERATURE,
    CAPS[0],
    CAPS[1],
];

/// How far from zero scores and logits come.
const CAPS: [&str; 2] = ["attn_logit_softcapping", "final_logit_softcapping"];

/// What is added under the root of an RMS norm, and of a layer norm.
const EPS: [&str; 2] = ["attention.layer_norm_rms_epsilon", "attention.layer_norm_epsilon"];

/// Fields of a [`ModelSpec`] and the keys that they come from, behind the architecture's name.
const KEYS: [(&str, &str); 8] = [
    ("hidden", "embedding_length"),
    ("layers", "block_count"),
    ("heads", "attention.head_count"),
    ("kv_heads", "attention.head_count_kv"),
    ("ffn", "feed_forward_length"),
    ("max_positions", "context_length"),
    ("score_cap", CAPS[0]),
    ("logit_cap", CAPS[1]),
];

/// Which parts of a head turn by time, height and width: of text these are all the position.
const SECTIONS: &str = "rope.dimension_sections";

/// How queries grow with their position.
pub(super) const TEMPERATURE: &str = "attention.temperature_scale";

/// Scales of other architectures: 1, or 0 for none, changes nothing.
const SCALES: [&str; 3] = ["embedding_scale", "logit_scale", "residual_scale"];

/// Key of the usual chat template; those of others have their names after a point.
const TEMPLATE: &str = "tokenizer.chat_template";

/// Keys below `<architecture>.`.
pub(super) struct Keys<'a> {
    pub(super) metadata: &'a Metadata,
    pub(super) architecture: &'a str,
}

impl Keys<'_> {
    pub(super) fn name(&self, key: &str) -> String {
        format!("{}.{key}", self.architecture)
    }

    pub(super) fn size(&self, key: &str) -> Result<Option<usize>> {
        if let Some(Value::Numbers(list)) = self.metadata.get(&self.name(key)) {
            return self.same_everywhere(key, list).map(Some);
        }
        self.metadata.size(&self.name(key))
    }

    /// Some writers list a size for each layer.
    fn same_everywhere(&self, key: &str, list: &Numbers) -> Result<usize> {
        let mut numbers = list.iter();
        match numbers.next() {
            Some(Value::Uint(n)) if numbers.all(|x| x == Value::Uint(n)) => Ok(n as usize),
            Some(Value::Int(n)) if n >= 0 && numbers.all(|x| x == Value::Int(n)) => Ok(n as usize),
            _ => Err(Error::unsupported(
                self.metadata.file(),
                format!("`{}` that differs from layer to layer", self.name(key)),
                "layers of one size",
            )),
        }
    }

    /// The key of what is added under a norm's root.
    fn eps(&self) -> &'static str {
        EPS[usize::from(LAYER_NORMED.contains(&self.architecture))]
    }

    pub(super) fn float(&self, key: &str) -> Result<Option<f64>> {
        self.metadata.float(&self.name(key))
    }

    fn need<T>(&self, key: &str, value: Option<T>) -> Result<T> {
        let expected = format!("`{}`", self.name(key));
        value.ok_or_else(|| Error::malformed(self.metadata.file(), "incomplete metadata", expected))
    }

    /// Checked at once, for lists are made as long.
    pub(super) fn layers(&self) -> Result<usize> {
        let (key, layers) = ("block_count", self.needed_size("block_count")?);
        let plausible = layers <= LAYERS_MAX;
        plausible.then_some(layers).ok_or_else(|| {
            let found = format!("`{}` = {layers}", self.name(key));
            Error::malformed(self.metadata.file(), found, format!("at most {LAYERS_MAX} layers"))
        })
    }

    pub(super) fn needed_size(&self, key: &str) -> Result<usize> {
        self.need(key, self.size(key)?)
    }
}

impl Gguf {
    /// The model that the metadata describe.
    ///
    /// # Errors
    /// If the architecture or a value is not supported, a key is missing, or sizes contradict.
    pub fn spec(&self) -> Result<ModelSpec> {
        let file = self.metadata.file();
        let (keys, architecture) = self.architecture()?;
        let heads = keys.needed_size("attention.head_count")?;
        let hidden = keys.needed_size("embedding_length")?;
        let head_dim = keys.size("attention.key_length")?.unwrap_or(hidden / heads.max(1));
        if keys.size("attention.value_length")?.is_some_and(|v| v != head_dim) {
            return Err(Error::unsupported(file, "values of another width than keys", "heads of one width"));
        }
        let spec = ModelSpec {
            architecture: architecture.into(),
            vocab: self.vocab_rows()?,
            hidden,
            layers: keys.layers()?,
            heads,
            kv_heads: keys.size("attention.head_count_kv")?.unwrap_or(heads),
            head_dim,
            ffn: keys.needed_size("feed_forward_length")?,
            max_positions: keys.needed_size("context_length")?.max(self.stretched(&keys)?),
            norm: Norm::rms(self.eps(&keys)?),
            placement: NormPlacement::Pre,
            final_norm: true,
            activation: Activation::Silu,
            mlp: Mlp::Gated,
            positions: Positions::Rope(self.rope(&keys, head_dim)?),
            rope_layers: RopeLayers::All,
            biases: self.biases(),
            qk_norm: self.qk_norm()?,
            attention_scale: 1.0 / (head_dim as f32).sqrt(),
            score_cap: None,
            window: self.window(&keys)?,
            tied_head: !self.has("output.weight"),
            embed_dim: hidden,
            embed_scale: 1.0,
            logit_scale: 1.0,
            logit_cap: None,
            bos: self.special("bos")?,
            eos: self.ends()?,
            dtype: self.dtype(),
        };
        let spec = variants::with_own(spec, &keys, |tensor| self.has(tensor))?;
        let names = [&KEYS[..], &[("norm", keys.eps())]].concat();
        spec.check().map_err(|e| Error::Spec { file: file.into(), source: e.in_words_of(&names) })?;
        Ok(spec)
    }

    /// Whether the rows of queries and keys that turn together lie beside each other (the two halves of a head, turn by turn), as
    /// converters store them for Llama and some others.
    pub fn pairs_rows(&self) -> bool {
        PAIRS.iter().any(|known| self.is(known))
    }

    /// Whether those of a part of a head may.
    pub(super) fn pairs_rows_of_a_part(&self) -> bool {
        self.is(GLM4)
    }

    fn is(&self, architecture: &str) -> bool {
        let name = self.metadata.get("general.architecture");
        matches!(name, Some(Value::Text(name)) if name == architecture)
    }

    /// How it names its tensors.
    pub(crate) fn naming(&self) -> Naming {
        if self.is("seed_oss") { Naming::GgufSeedOss } else { Naming::Gguf }
    }

    /// How queries and keys are normalised, whose scales have the order of a head's rows.
    fn qk_norm(&self) -> Result<QkNorm> {
        let name = "blk.0.attn_q_norm.weight";
        if self.has(name) && OWN_HEADS.iter().any(|known| self.is(known)) {
            return Ok(QkNorm::OwnHeads);
        }
        if self.has(name) && (self.pairs_rows() || LAYER_NORMED.iter().any(|known| self.is(known))) {
            let what = format!("`{name}` of an architecture with layer norms or interleaved heads");
            return Err(Error::unsupported(self.metadata.file(), what, "norms of queries and keys of qwen3"));
        }
        Ok(if self.has(name) { QkNorm::Heads } else { QkNorm::None })
    }

    fn architecture(&self) -> Result<(Keys<'_>, &'static str)> {
        let file = self.metadata.file();
        let name = self.metadata.text("general.architecture")?.unwrap_or("(none)");
        let known = ARCHITECTURES.iter().find(|(gguf, _)| *gguf == name);
        let (_, ours) = known.ok_or_else(|| {
            let supported = ARCHITECTURES.map(|(gguf, _)| gguf).join(", ");
            Error::unsupported(file, format!("the architecture `{name}`"), supported)
        })?;
        let keys = Keys { metadata: &self.metadata, architecture: name };
        // Tokens would attend to those after them.
        if matches!(self.metadata.get(&keys.name("attention.causal")), Some(Value::Bool(false))) {
            let what = format!("`{}` that is not true", keys.name("attention.causal"));
            return Err(Error::unsupported(file, what, "causal models"));
        }
        for key in NEUTRAL.into_iter().chain(SCALES) {
            let Some(value) = self.metadata.get(&keys.name(key)) else { continue };
            let nothing = matches!(value, Value::Uint(0) | Value::Int(0) | Value::Float(0.0));
            let one = SCALES.contains(&key) && matches!(value, Value::Float(1.0));
            let known = match name {
                "granite" => key == "attention.scale" || SCALES.contains(&key),
                "command-r" | "cohere2" => key == SCALES[1],
                "mistral3" => key == TEMPERATURE,
                "gemma2" => CAPS.contains(&key),
                "qwen2vl" | "qwen3vl" => key == SECTIONS,
                _ => false,
            };
            if !nothing && !one && !known {
                let what = format!("`{}` = {}", keys.name(key), short(value));
                return Err(Error::unsupported(file, what, "models without it"));
            }
        }
        Ok((keys, ours))
    }

    pub(super) fn has(&self, tensor: &str) -> bool {
        self.entry(tensor).is_some()
    }

    fn entry(&self, tensor: &str) -> Option<&super::Entry> {
        self.entries.iter().map(|(_, e)| e).find(|e| e.name == tensor)
    }

    fn vocab_rows(&self) -> Result<usize> {
        match self.entry("token_embd.weight").map(|e| e.dims.as_slice()) {
            Some([rows, _]) => Ok(usize::try_from(*rows).unwrap_or(usize::MAX)),
            _ => Err(Error::Tensors {
                file: self.metadata.file().into(),
                problems: vec!["`token_embd.weight` of two dimensions is missing".into()],
            }),
        }
    }

    fn eps(&self, keys: &Keys) -> Result<f32> {
        Ok(keys.need(keys.eps(), keys.float(keys.eps())?)? as f32)
    }

    fn biases(&self) -> Biases {
        Biases {
            qkv: self.has("blk.0.attn_q.bias") || self.has("blk.0.attn_qkv.bias"),
            o: self.has("blk.0.attn_output.bias"),
            mlp: self.has("blk.0.ffn_down.bias"),
            head: self.has("output.bias"),
        }
    }

    fn window(&self, keys: &Keys) -> Result<Window> {
        match keys.size("attention.sliding_window")? {
            tokens if keys.architecture == "gemma2" && tokens != Some(0) => {
                variants::window_but_each(GEMMA_2.0, keys, tokens.unwrap_or(GEMMA_2.1))
            }
            None | Some(0) => Ok(Window::Full),
            Some(tokens) if ["llama", "phi3", "starcoder2"].contains(&keys.architecture) => {
                Ok(Window::Sliding(tokens))
            }
            Some(tokens) if keys.architecture == "gemma3" => {
                variants::window_but_each(GEMMA_PATTERN, keys, tokens)
            }
            Some(tokens) if ["olmo2", "exaone4", "cohere2"].contains(&keys.architecture) => {
                variants::window_but_each(OLMO_PATTERN, keys, tokens)
            }
            Some(_) => Err(Error::unsupported(
                self.metadata.file(),
                format!("`{}`", keys.name("attention.sliding_window")),
                "sliding windows of llama, phi3, gemma2, gemma3, olmo2, exaone4, cohere2 and starcoder2",
            )),
        }
    }

    /// Those that the file names, and tokens whose names say it: files name one, and models use several.
    fn ends(&self) -> Result<Vec<u32>> {
        let tokens = self.metadata.texts("tokenizer.ggml.tokens")?.into_iter().flat_map(Texts::iter);
        let kinds = self.metadata.numbers("tokenizer.ggml.token_type")?;
        let kinds = kinds.into_iter().flat_map(Numbers::iter).map(as_i32).chain(std::iter::repeat(NORMAL));
        let ends = (0..).zip(tokens.zip(kinds)).filter(|(_, (token, kind))| is_end(token, *kind));
        let mut ends: Vec<u32> = ends.map(|(id, _)| id).collect();
        for name in ["eos", "eot", "eom", "fim_pad", "fim_rep", "fim_sep"] {
            ends.extend(self.special(name)?);
        }
        ends.sort_unstable();
        ends.dedup();
        Ok(ends)
    }

    fn special(&self, name: &str) -> Result<Option<u32>> {
        let named = self.metadata.token(&format!("tokenizer.ggml.{name}_token_id"))?;
        let model = self.metadata.text("tokenizer.ggml.model")?.unwrap_or_default();
        Ok(special(name, named, model, self.vocab_rows()?))
    }

    fn dtype(&self) -> DType {
        let widest = self.entries.iter().filter(|(_, e)| e.dims.len() == 2).map(|(_, e)| e.stored);
        match widest.min() {
            Some(Stored::F32) => DType::F32,
            Some(Stored::F16) => DType::F16,
            _ => DType::Bf16,
        }
    }

    /// Vocabulary and chat templates, if the file has them; they are there once, and are taken away. The model
    /// ([`Gguf::spec`]) is to be asked for before: its ends of text are among the tokens.
    ///
    /// # Errors
    /// If lists that belong together differ in length, or a value has another type.
    pub fn take_vocab(&mut self) -> Result<Option<GgufVocab>> {
        let Some(tokens) = self.metadata.take_texts("tokenizer.ggml.tokens")? else { return Ok(None) };
        let merges = self.metadata.take_texts("tokenizer.ggml.merges")?;
        let m = &self.metadata;
        let mut vocab = GgufVocab {
            model: m.text("tokenizer.ggml.model")?.unwrap_or_default().into(),
            pre: m.text("tokenizer.ggml.pre")?.map(Into::into),
            tokens,
            scores: m.numbers("tokenizer.ggml.scores")?.map(|n| n.iter().map(as_f32).collect()),
            token_types: m.numbers("tokenizer.ggml.token_type")?.map(|n| n.iter().map(as_i32).collect()),
            merges,
            bos: m.token("tokenizer.ggml.bos_token_id")?,
            eos: m.token("tokenizer.ggml.eos_token_id")?,
            eot: m.token("tokenizer.ggml.eot_token_id")?,
            unk: m.token("tokenizer.ggml.unknown_token_id")?,
            pad: m.token("tokenizer.ggml.padding_token_id")?,
            add_bos: m.bool("tokenizer.ggml.add_bos_token")?,
            add_eos: m.bool("tokenizer.ggml.add_eos_token")?,
            add_space_prefix: m.bool("tokenizer.ggml.add_space_prefix")?,
            strips_right: m.text("general.architecture")? == Some("phi3"),
            chat_templates: self.chat_templates()?,
        };
        vocab.settle_special();
        self.check_vocab(&vocab)?;
        Ok(Some(vocab))
    }

    /// The usual template, then those that have names.
    fn chat_templates(&self) -> Result<Vec<(String, String)>> {
        let usual = ("default", TEMPLATE.to_owned());
        let named = self.metadata.keys().filter_map(|key| {
            let name = key.strip_prefix(TEMPLATE)?.strip_prefix('.')?;
            Some((name, key.to_owned()))
        });
        let read =
            |(name, key): (&str, String)| Ok(self.metadata.text(&key)?.map(|t| (name.into(), t.into())));
        std::iter::once(usual).chain(named).filter_map(|found| read(found).transpose()).collect()
    }

    fn check_vocab(&self, vocab: &GgufVocab) -> Result<()> {
        let tokens = vocab.tokens.len();
        let lengths = [
            ("scores", vocab.scores.as_ref().map(Vec::len)),
            ("token types", vocab.token_types.as_ref().map(Vec::len)),
            ("rows of the embedding", Some(self.vocab_rows()?)),
        ];
        for (what, length) in lengths {
            if let Some(length) = length.filter(|n| *n != tokens) {
                return Err(Error::malformed(
                    self.metadata.file(),
                    format!("{length} {what}"),
                    format!("as many as there are tokens, {tokens}"),
                ));
            }
        }
        Ok(())
    }
}

fn as_f32(value: Value) -> f32 {
    match value {
        Value::Float(x) => x as f32,
        Value::Int(n) => n as f32,
        Value::Uint(n) => n as f32,
        _ => 0.0,
    }
}

fn as_i32(value: Value) -> i32 {
    match value {
        Value::Int(n) => i32::try_from(n).unwrap_or(0),
        Value::Uint(n) => i32::try_from(n).unwrap_or(0),
        _ => 0,
    }
}

fn short(value: &Value) -> String {
    match value {
        // Files hold f32.
        Value::Float(number) => (*number as f32).to_string(),
        Value::Uint(number) => number.to_string(),
        Value::Int(number) => number.to_string(),
        other => shorten(&format!("{other:?}")),
    }
}
