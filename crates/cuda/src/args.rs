//! The kernels' arguments, as the structures of `kernels/*.cu` lay them out. Addresses are 0 where there is nothing.

use bytemuck::{Pod, Zeroable};

macro_rules! arguments {
    ($($(#[$doc:meta])* $name:ident { $($field:ident: $type:ty),* $(,)? })*) => {$(
        $(#[$doc])*
        #[allow(missing_docs)] // The fields are told of in the kernels.
        #[repr(C)]
        #[derive(Clone, Copy, Debug)]
        pub struct $name { $(pub $field: $type),* }
        const _: () = assert!(size_of::<$name>() == 0 $(+ size_of::<$type>())*, "a structure with a gap");
        // SAFETY: every field is plain old data, and the assertion above shows that there is no padding.
        unsafe impl Zeroable for $name {}
        // SAFETY: as above.
        unsafe impl Pod for $name {}
    )*};
}

arguments! {
    /// `norm_rows`.
    NormArgs { x: u64, weight: u64, bias: u64, out: u64, cols: u32, stride: u32, eps: f32, layer: u32, to: u32, unused: u32 }
    /// `pick_rows`.
    PickArgs { from: u64, rows: u64, out: u64, cols: u32, add: u32 }
    /// `cap_rows`.
    CapArgs { x: u64, count: u64, cap: f32, unused: u32 }
    /// `convert_rows`.
    ConvertArgs { from: u64, out: u64, count: u64, from_bf16: u32, to_bf16: u32 }
    /// `store_kv`.
    StoreKvArgs {
        qkv: u64, q_norm: u64, k_norm: u64, cos: u64, sin: u64, turns: u64, slots: u64, q: u64, pages: u64,
        heads: u32, kv_heads: u32, head_dim: u32, rotary_dim: u32, eps: f32, q_bf16: u32, kv: u32, beta: f32, period: u32, unused: u32,
    }
    /// `linear_floats`, `linear_few_8`, `linear_few_32`, `linear_few_64`.
    LinearArgs {
        x: u64, panels: u64, bias: u64, out: u64, panel_bytes: u64, rows: u32, n: u32, k: u32, first_panel: u32,
        out_cols: u32, out_first: u32, sink: u32, act: u32, out_bf16: u32, row_bytes: u32,
    }
    /// `linear_many`.
    ManyArgs { linear: LinearArgs, panels: u32, unused: u32 }
    /// `unpack_panels`.
    UnpackArgs { panels: u64, out: u64, panel_bytes: u64, k: u32, unused: u32 }
    /// `finish_sums`.
    SumsArgs { linear: LinearArgs, sums: u64, panels: u32, unused: u32 }
    /// `embed_rows`.
    EmbedArgs {
        panels: u64, ids: u64, picked: u64, out: u64, panel_bytes: u64, k: u32, n: u32, first_panel: u32,
        held_panels: u32, gated: u32, row_bytes: u32, scale: f32, unused: u32,
    }
    /// `attend_many`, `attend_few`, `merge_splits`, `attend_floats`.
    AttendArgs {
        q: u64, pages: u64, out: u64, spans: u64, tables: u64, work: u64, partials: u64, stalled: u64, scale: f32,
        heads: u32, kv_heads: u32, window: u32, out_bf16: u32, pieces: u32, cap: f32, unused: u32,
    }
    /// `attend_chosen`, `choose_keys`.
    SparseArgs { attend: AttendArgs, chosen: u64, share: f32, pages: u32, rows: u32, pieces: u32 }
    /// `pick_tokens`.
    TokenArgs { logits: u64, rows: u64, edits: u64, out: u64, vocab: u32, unused: u32 }
    /// How one row's token is chosen, in the device's memory.
    TokenRow {
        u: f64, row: u32, greedy: u32, scale: f32, floor: f32, top_p: f32, top_k: u32, first_edit: u32, edits: u32,
        repetition: f32, frequency: f32, presence: f32, unused: u32,
    }
    /// A change of a logit, in the device's memory.
    EditData { id: u32, kind: u32, value: f32 }
    /// `copy_quads`.
    CopyArgs { from: u64, to: u64, quads: u64 }
    /// `carry_pieces`.
    PiecesArgs { pieces: u64, count: u32, unused: u32 }
    /// A piece of memory on its way, in the device's memory: from where to where, and its length in words of 16 bytes.
    PieceData { from: u64, to: u64, words: u32, unused: u32 }
    /// A span of an attention, in the device's memory.
    SpanData { row: u32, start: u32, rows: u32, table: u32, partial: u32, first_split: u32, splits: u32 }
}
