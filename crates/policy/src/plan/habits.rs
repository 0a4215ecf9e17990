//! What a runtime does slower than its hardware could: the paper's, that is; ours has none of it.

use super::lp::Question;

/// Half precision, bytes of an element.
const HALF: f64 = 2.0;
/// Passes over half-precision scores in eager prefill: written by the product, masked, normalised, read again.
const SCORE_PASSES: f64 = 8.0;
/// Times that eager decode attention reads the cache: gathered, transposed, multiplied.
const CACHE_READS: f64 = 3.0;

/// How attention is computed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Attention {
    /// Each element of KV is read once, as it is stored; scores stay on chip.
    #[default]
    Lean,
    /// All pairs of a prompt's square, scores through memory, KV gathered and transposed in half precision.
    Eager,
}

/// Rates that fall short of the hardware's, bytes a second; nothing where they do not.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Habits {
    /// Of weights from the host up.
    pub weights_up: Option<f64>,
    /// Of KV from the host up.
    pub kv_up: Option<f64>,
    /// At which compressed numbers are written out in half precision before each use.
    pub expand: Option<f64>,
    /// How attention is computed.
    pub attention: Attention,
}

impl Question {
    /// Bytes of weights a second from the host up.
    pub(super) fn weights_up(&self) -> f64 {
        self.habits.weights_up.unwrap_or(self.hardware.up.bytes_per_s)
    }

    /// Bytes of KV a second from the host up.
    pub(super) fn kv_up(&self) -> f64 {
        self.habits.kv_up.unwrap_or(self.hardware.up.bytes_per_s)
    }

    /// Seconds to write so many elements out in half precision, where they are compressed and the runtime does.
    fn expansion(&self, elements: f64, bytes: f64) -> f64 {
        match self.habits.expand {
            Some(rate) if bytes < HALF => elements * HALF / rate,
            _ => 0.0,
        }
    }

    /// Bytes of an element that a kernel reads.
    pub(super) fn read(&self, bytes: f64) -> f64 {
        if self.habits.expand.is_some() { HALF } else { bytes }
    }

    /// Seconds of a product with so many weights, on the device.
    pub(super) fn linear(&self, rows: f64, elements: f64, bytes: f64) -> f64 {
        let device = &self.hardware.device;
        let read = elements * self.read(bytes) / device.read_bytes_per_s;
        (2.0 * rows * elements / device.matmul_flops).max(read) + self.expansion(elements, bytes)
    }

    /// Seconds of a prompt's attention over so many pairs of positions, one layer, on the device.
    pub(super) fn prompt_attention(&self, pairs: f64) -> f64 {
        let (dims, device) = (&self.dims, &self.hardware.device);
        let operations = 4.0 * pairs * (dims.heads * dims.head_dim) as f64 / device.attention_flops;
        match self.habits.attention {
            // All pairs of a square, whose scores go through memory.
            Attention::Eager => {
                let scores = SCORE_PASSES * HALF * 2.0 * pairs * dims.heads as f64;
                2.0 * operations + scores / device.read_bytes_per_s
            }
            Attention::Lean => operations,
        }
    }

    /// Seconds of attention over so many elements of KV on the device.
    pub(super) fn device_attention(&self, elements: f64) -> f64 {
        let (bytes, device) = (self.bytes.kv, &self.hardware.device);
        match self.habits.attention {
            Attention::Eager => {
                CACHE_READS * elements * HALF / device.read_bytes_per_s + self.expansion(elements, bytes)
            }
            Attention::Lean => elements * bytes / device.read_bytes_per_s,
        }
    }

    /// The same on the host, whose eager attention is rated in half-precision bytes.
    pub(super) fn host_attention(&self, elements: f64) -> f64 {
        let bytes = if self.habits.attention == Attention::Eager { HALF } else { self.bytes.kv };
        elements * bytes / self.hardware.host.attention_bytes_per_s
    }
}
