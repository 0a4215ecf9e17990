//! Which packed matrices and vectors a decoder needs, in which format, and how many bytes they take:
//! known before a single weight is read.

use kernels::arena::{ALIGN, Buf};
use kernels::device::Matrix;
use kernels::linear::quant::Narrow;
use kernels::linear::{Activations, Format, RowOrder, packed_bytes};
use spec::ModelSpec;
use spec::model::Mlp;

use crate::stored::Stored;
use crate::tensor::{LayerTensor, Shape, Tensor};

/// What weights become in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WeightsAs {
    /// As stored; f16 and f32 files are rounded to bf16.
    Stored,
    /// 32 bits, with f32 arithmetic throughout.
    F32,
    /// 16 bits.
    Bf16,
    /// The same numbers, each in 12 bits.
    Bf12,
    /// 8 bits in groups of 64.
    Int8,
    /// 4 bits in groups of 64; embeddings and head 8.
    Int4,
    /// 16 bits, but layers' weights rounded before: to see what a format would cost.
    Rounded(Rounding),
}

/// What weights are rounded to: an asymmetric grid of so many bits for each group of 64.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rounding {
    /// Of a code: 1 to 8.
    pub bits: u8,
    /// Which way a group lies.
    pub along: Along,
}

/// Which weights of a matrix are one group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Along {
    /// Those of 64 inputs of one output: K, as our own formats have it.
    Inputs,
    /// Those of 64 outputs of one input: N, as FlexGen has it (section 5).
    Outputs,
}

/// One matrix on the device: tensors one below the other.
#[derive(Clone, Debug)]
pub struct MatrixPlan {
    /// Where its rows come from, in order. All have `k` columns.
    pub tensors: Vec<Tensor>,
    /// Gate and up rows share panels in a gated one.
    pub order: RowOrder,
    /// Rows.
    pub n: usize,
    /// Columns.
    pub k: usize,
    /// In memory.
    pub format: Format,
    /// How its input is multiplied, where the format is narrow.
    pub activations: Activations,
    /// What values are rounded to before.
    pub rounded: Option<Rounding>,
}

impl MatrixPlan {
    /// Bytes in memory.
    pub fn bytes(&self) -> usize {
        packed_bytes(self.format, self.order, self.n, self.k)
    }

    /// The matrix, with these runs of its panels on a device.
    pub(super) fn matrix(&self, parts: Vec<(usize, Buf)>) -> Matrix {
        let MatrixPlan { format, n, k, order, activations, .. } = *self;
        Matrix { format, n, k, order, activations, parts }
    }
}

/// A layer's matrices.
#[derive(Clone, Debug)]
pub struct LayerPlan {
    /// Queries, keys, values; one matrix where they share a format.
    pub qkv: Vec<MatrixPlan>,
    /// After attention.
    pub out: MatrixPlan,
    /// Into the MLP.
    pub up: MatrixPlan,
    /// Out of the MLP.
    pub down: MatrixPlan,
}

/// All matrices of a model.
#[derive(Clone, Debug)]
pub struct Blueprint {
    /// Embedding table.
    pub embed: MatrixPlan,
    /// Head, where it is not the embedding table.
    pub head: Option<MatrixPlan>,
    /// Projections of embeddings, in and out.
    pub projections: Option<(MatrixPlan, MatrixPlan)>,
    /// Layers.
    pub layers: Vec<LayerPlan>,
    vector_bytes: usize,
}

impl Blueprint {
    /// Plans a model whose tensors are stored as `stored` says.
    pub fn new(spec: &ModelSpec, weights: WeightsAs, stored: impl Fn(Tensor) -> Stored) -> Blueprint {
        let planner = Planner { spec, weights, stored: &stored };
        let projections = spec.projects_embeddings().then(|| {
            (
                planner.matrix(&[Tensor::ProjectIn], RowOrder::Plain),
                planner.matrix(&[Tensor::ProjectOut], RowOrder::Plain),
            )
        });
        Blueprint {
            embed: planner.table(Tensor::Embed),
            head: (!spec.tied_head).then(|| planner.table(Tensor::Head)),
            projections,
            layers: (0..spec.layers).map(|layer| planner.layer(layer)).collect(),
            vector_bytes: vector_bytes(spec),
        }
    }

    /// The same, with inputs of narrow matrices multiplied in this way.
    #[must_use]
    pub fn with_activations(mut self, activations: Activations) -> Blueprint {
        self.matrices_mut().for_each(|matrix| matrix.activations = activations);
        self
    }

    /// The same with only some of its layers, evenly spread: as few as have `bytes`, all if they have fewer.
    pub fn spread(&self, bytes: usize) -> Blueprint {
        let all = self.layers.len();
        let each = (self.layer_bytes() / all.max(1)).max(1);
        let count = bytes.div_ceil(each).clamp(1, all.max(1));
        let layers = (0..count.min(all)).map(|i| self.layers[i * all / count].clone()).collect();
        Blueprint { layers, ..self.clone() }
    }

    /// Bytes of the layers' matrices.
    pub fn layer_bytes(&self) -> usize {
        self.layers
            .iter()
            .flat_map(|l| l.qkv.iter().chain([&l.out, &l.up, &l.down]))
            .map(MatrixPlan::bytes)
            .sum()
    }

    /// Every matrix.
    pub fn matrices(&self) -> impl Iterator<Item = &MatrixPlan> {
        let outer = [Some(&self.embed), self.head.as_ref()];
        let projections = self.projections.iter().flat_map(|(a, b)| [a, b]);
        let layers = self.layers.iter().flat_map(|l| l.qkv.iter().chain([&l.out, &l.up, &l.down]));
        outer.into_iter().flatten().chain(projections).chain(layers)
    }

    fn matrices_mut(&mut self) -> impl Iterator<Item = &mut MatrixPlan> {
        let outer = [Some(&mut self.embed), self.head.as_mut()];
        let projections = self.projections.iter_mut().flat_map(|(a, b)| [a, b]);
        let layers = self.layers.iter_mut();
        let layers = layers.flat_map(|l| l.qkv.iter_mut().chain([&mut l.out, &mut l.up, &mut l.down]));
        outer.into_iter().flatten().chain(projections).chain(layers)
    }

    /// Bytes of all weights in memory, norms and tables included.
    pub fn bytes(&self) -> usize {
        self.matrices().map(|m| m.bytes().next_multiple_of(ALIGN)).sum::<usize>() + self.vector_bytes
    }

    /// Bytes of norms, biases and learned positions.
    pub fn vector_bytes(&self) -> usize {
        self.vector_bytes
    }

    /// The formats in use and the bytes of each, most first.
    pub fn formats(&self) -> Vec<(Format, usize)> {
        let mut all: Vec<(Format, usize)> = Vec::new();
        for m in self.matrices() {
            match all.iter_mut().find(|(format, _)| *format == m.format) {
                Some((_, bytes)) => *bytes += m.bytes(),
                None => all.push((m.format, m.bytes())),
            }
        }
        all.sort_by_key(|(_, bytes)| std::cmp::Reverse(*bytes));
        all
    }
}

/// Norms, biases, learned positions: f32, each on a cache line of its own.
fn vector_bytes(spec: &ModelSpec) -> usize {
    let vectors = Tensor::all(spec).into_iter().filter_map(|(tensor, shape)| match (tensor, shape) {
        (Tensor::Positions, shape) => Some(shape.rows() * shape.columns()),
        (_, Shape::Vector(n)) => Some(n),
        _ => None,
    });
    vectors.map(|n| (4 * n).next_multiple_of(ALIGN)).sum()
}

struct Planner<'a> {
    spec: &'a ModelSpec,
    weights: WeightsAs,
    stored: &'a dyn Fn(Tensor) -> Stored,
}

impl Planner<'_> {
    fn layer(&self, layer: usize) -> LayerPlan {
        use LayerTensor::{Down, Gate, K, O, Q, Up, V};
        let of = |tensors: &[LayerTensor], order| {
            let tensors: Vec<_> = tensors.iter().map(|t| Tensor::Layer(layer, *t)).collect();
            self.matrix(&tensors, order)
        };
        let up = match self.spec.mlp {
            Mlp::Gated => of(&[Gate, Up], RowOrder::Gated),
            Mlp::Plain => of(&[Up], RowOrder::Plain),
        };
        LayerPlan {
            qkv: self.runs(&[Q, K, V].map(|t| Tensor::Layer(layer, t))),
            out: of(&[O], RowOrder::Plain),
            up,
            down: of(&[Down], RowOrder::Plain),
        }
    }

    /// Tensors one below the other, cut where the format changes (`Q4_K_M` files keep some values in `Q6_K`).
    fn runs(&self, tensors: &[Tensor]) -> Vec<MatrixPlan> {
        let format = |tensor: &Tensor| self.format(&[(self.stored)(*tensor)]);
        let runs = tensors.chunk_by(|a, b| format(a) == format(b));
        runs.map(|run| self.matrix(run, RowOrder::Plain)).collect()
    }

    /// Embeddings and heads lose most by rounding: 8 bits at the least.
    fn table(&self, tensor: Tensor) -> MatrixPlan {
        let weights = match self.weights {
            WeightsAs::Int4 => WeightsAs::Int8,
            WeightsAs::Rounded(_) => WeightsAs::Bf16,
            other => other,
        };
        Planner { weights, ..*self }.matrix(&[tensor], RowOrder::Plain)
    }

    fn matrix(&self, tensors: &[Tensor], order: RowOrder) -> MatrixPlan {
        let shapes: Vec<Shape> = tensors.iter().filter_map(|t| t.shape(self.spec)).collect();
        let stored: Vec<Stored> = tensors.iter().map(|t| (self.stored)(*t)).collect();
        MatrixPlan {
            tensors: tensors.to_vec(),
            order,
            n: shapes.iter().map(|s| s.rows()).sum(),
            k: shapes[0].columns(),
            format: self.format(&stored),
            activations: Activations::Exact,
            rounded: if let WeightsAs::Rounded(rounding) = self.weights { Some(rounding) } else { None },
        }
    }

    /// A block format stays as it is; gate and up rows that share panels but not a format become bf16.
    fn format(&self, stored: &[Stored]) -> Format {
        match self.weights {
            WeightsAs::F32 => Format::F32,
            WeightsAs::Bf16 | WeightsAs::Rounded(_) => Format::Bf16,
            WeightsAs::Bf12 => Format::Bf12,
            WeightsAs::Int8 => Format::Narrow(Narrow::Int8),
            WeightsAs::Int4 => Format::Narrow(Narrow::Int4),
            WeightsAs::Stored => {
                let same = stored.iter().all(|s| narrow(*s) == narrow(stored[0]));
                narrow(stored[0]).filter(|_| same).map_or(Format::Bf16, Format::Narrow)
            }
        }
    }
}

/// The packed twin of a block format; none for plain floats. Numbers of a table have 8 bits ([`super::tabled`]).
pub(super) fn narrow(stored: Stored) -> Option<Narrow> {
    Some(match stored {
        Stored::F32 | Stored::F16 | Stored::Bf16 => return None,
        Stored::Q4_0 => Narrow::Q4_0,
        Stored::Q4_1 => Narrow::Q4_1,
        Stored::Q5_0 => Narrow::Q5_0,
        Stored::Q5_1 => Narrow::Q5_1,
        Stored::Q8_0 | Stored::IQ4_NL => Narrow::Q8_0,
        Stored::Q2_K => Narrow::Q2K,
        Stored::Q3_K => Narrow::Q3K,
        Stored::Q4_K => Narrow::Q4K,
        Stored::Q5_K => Narrow::Q5K,
        Stored::Q6_K => Narrow::Q6K,
        Stored::Fp8 => Narrow::Fp8,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use spec::model::{
        Activation, Biases, DType, Norm, NormPlacement, Positions, QkNorm, RopeLayers, Window,
    };

    fn spec() -> ModelSpec {
        ModelSpec {
            architecture: "LlamaForCausalLM".into(),
            vocab: 512,
            hidden: 256,
            layers: 2,
            heads: 4,
            kv_heads: 2,
            head_dim: 64,
            ffn: 512,
            max_positions: 128,
            norm: Norm::rms(1e-5),
            placement: NormPlacement::Pre,
            final_norm: true,
            activation: Activation::Silu,
            mlp: Mlp::Gated,
            positions: Positions::Rope(spec::Rope::plain(10_000.0)),
            rope_layers: RopeLayers::All,
            biases: Biases::default(),
            qk_norm: QkNorm::None,
            attention_scale: 1.0,
            score_cap: None,
            window: Window::Full,
            tied_head: true,
            embed_dim: 256,
            embed_scale: 1.0,
            logit_scale: 1.0,
            logit_cap: None,
            bos: None,
            eos: vec![],
            dtype: DType::Bf16,
        }
    }

    fn mixed(tensor: Tensor) -> Stored {
        match tensor {
            Tensor::Layer(0, LayerTensor::V | LayerTensor::Down) => Stored::Q6_K,
            Tensor::Layer(1, LayerTensor::Gate) => Stored::Q5_K,
            _ => Stored::Q4_K,
        }
    }

    #[test]
    fn mixed_files_keep_their_formats_where_panels_allow() {
        let plan = Blueprint::new(&spec(), WeightsAs::Stored, mixed);
        let of = |m: &MatrixPlan| (m.n, m.format);
        let (q4, q6) = (Format::Narrow(Narrow::Q4K), Format::Narrow(Narrow::Q6K));
        assert_eq!(plan.layers[0].qkv.iter().map(of).collect::<Vec<_>>(), [(384, q4), (128, q6)]);
        assert_eq!(plan.layers[1].qkv.iter().map(of).collect::<Vec<_>>(), [(512, q4)]);
        assert_eq!((of(&plan.layers[0].down), of(&plan.layers[0].up)), ((256, q6), (1024, q4)));
        assert_eq!(plan.layers[1].up.format, Format::Bf16);
    }

    #[test]
    fn numbers_of_a_table_share_panels_with_those_of_eight_bits() {
        let stored = |tensor| match tensor {
            Tensor::Layer(_, LayerTensor::K | LayerTensor::Gate) => Stored::IQ4_NL,
            _ => Stored::Q8_0,
        };
        let plan = Blueprint::new(&spec(), WeightsAs::Stored, stored);
        let q8 = Format::Narrow(Narrow::Q8_0);
        let [all] = &plan.layers[0].qkv[..] else { panic!("{:?}", plan.layers[0].qkv) };
        assert_eq!((all.n, all.format, plan.layers[0].up.format), (512, q8, q8));
    }

    #[test]
    fn four_bits_leave_embeddings_eight() {
        let plan = Blueprint::new(&spec(), WeightsAs::Int4, |_| Stored::Bf16);
        assert_eq!(plan.embed.format, Format::Narrow(Narrow::Int8));
        assert!(plan.layers.iter().all(|l| l.down.format == Format::Narrow(Narrow::Int4)));
        assert!(plan.bytes() * 3 < Blueprint::new(&spec(), WeightsAs::Bf16, |_| Stored::Bf16).bytes());
    }
}
