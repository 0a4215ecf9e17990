//! One sequence through the decoder, without an engine.

use std::path::Path;
use std::sync::Arc;

use kernels::attention::{BLOCK_TOKENS, KvDtype, KvLayout, Span};
use kernels::device::{Device, Dtype, KvPages};
use kernels::{CpuDevice, Isa, Team};
use model::Checkpoint;
use model::decoder::{Batch, Blueprint, Decoder, Loader, Slots, WeightsAs, Work, WorkSize, rope_bytes};

/// Longest sequence of the goldens, rounded up.
const MAX_LEN: usize = 352;

/// One sequence on a CPU device.
pub(crate) struct Runner {
    device: CpuDevice,
    decoder: Decoder,
    kv: Vec<KvPages>,
    work: Work,
    blocks: Vec<u32>,
}

impl Runner {
    /// Loads a checkpoint onto a device of its own.
    pub(crate) fn load(path: &Path, weights: WeightsAs, isa: Isa) -> Runner {
        let checkpoint = Checkpoint::open(path).unwrap();
        let spec = checkpoint.spec().clone();
        let team = Arc::new(Team::new(2));
        let wide = weights == WeightsAs::F32;
        let dtype = if wide { Dtype::F32 } else { Dtype::Bf16 };
        let size = WorkSize { tokens: MAX_LEN, samples: MAX_LEN, dtype };
        let layout = KvLayout {
            kv_heads: spec.kv_heads,
            head_dim: spec.head_dim,
            dtype: if wide { KvDtype::F32 } else { KvDtype::Bf16 },
        };
        let n_blocks = MAX_LEN / BLOCK_TOKENS;
        let blueprint = Blueprint::new(&spec, weights, |t| checkpoint.info(t).unwrap().stored);
        let bytes = blueprint.bytes()
            + rope_bytes(&spec, MAX_LEN)
            + Work::bytes(&spec, size)
            + spec.layers * n_blocks * layout.block_bytes();
        let mut device = CpuDevice::new(bytes + (1 << 20), Arc::clone(&team), isa).unwrap();
        let loader = Loader {
            checkpoint: &checkpoint,
            team: &team,
            positions: MAX_LEN,
            progress: &|_| {},
            store: None,
            cut: None,
        };
        let decoder = Decoder::new(spec.clone(), loader.load(&blueprint, &mut device).unwrap());
        let work = Work::take(&mut device, &spec, size).unwrap();
        let pages = |_| KvPages { layout, buf: device.take(n_blocks * layout.block_bytes()).unwrap() };
        let kv = (0..spec.layers).map(pages).collect();
        // Not in order: a page's place must not matter.
        let blocks = (0..n_blocks as u32).rev().collect();
        Runner { device, decoder, kv, work, blocks }
    }

    /// Logits after each of `ids`, which stand at `start` and after. `prompt`: how long the prompt is.
    pub(crate) fn logits(&self, ids: &[u32], start: usize, prompt: usize) -> Vec<Vec<f32>> {
        let positions: Vec<u32> = (start..start + ids.len()).map(|p| p as u32).collect();
        let lengths: Vec<u32> = positions.iter().map(|p| (p + 1).max(prompt as u32)).collect();
        let spans = [Span { blocks: &self.blocks, start, rows: 0..ids.len() }];
        let samples: Vec<u32> = (0..ids.len() as u32).collect();
        let batch = Batch {
            ids,
            positions: &positions,
            lengths: &lengths,
            spans: &spans,
            samples: &samples,
            slots: Slots::default(),
            host: None,
        };
        let (decoder, device, work) = (&self.decoder, &self.device, &self.work);
        decoder.rotate(device, &batch, work);
        decoder.embed(device, &batch, work);
        for (layer, kv) in self.kv.iter().enumerate() {
            decoder.qkv(device, layer, &batch, *kv, work);
            decoder.attend(device, layer, &batch, *kv, work);
            decoder.out_proj(device, layer, &batch, work);
            match layer + 1 == self.kv.len() {
                true => decoder.last_mlp(device, &batch, work),
                false => decoder.mlp(device, layer, &batch, work),
            }
        }
        let rows = decoder.head(device, work.x.first(samples.len()), work);
        let mut logits = Vec::new();
        device.view(&rows.buf, &mut |bytes| {
            let values: Vec<f32> =
                bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect();
            logits = values.chunks_exact(rows.cols).map(<[f32]>::to_vec).collect();
        });
        logits
    }
}
