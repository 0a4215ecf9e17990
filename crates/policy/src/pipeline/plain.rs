//! The plain pipeline: layer by layer, and in each layer batch by batch.
//!
//! With streamed weights each half of a layer has two slots, so that the next layer's copy runs beside this layer's
//! compute, and a load is used by all batches before its slot is written again:
//!
//! ```text
//! Up/DiskRead |A0 M0 A1 M1|A2   |M2 |A3   |M3 |
//! Device      |  |A0 b0 b1|M0 b0 b1|A1 b0 b1|M1 ...      A = attention's weights, M = the MLP's
//! ```

use super::pieces::{Ahead, Names, Pieces};
use super::plan::Plan;
use spec::{Program, Shape};

/// Lowers a shape; see the module.
pub(super) fn lower(shape: &Shape, plan: &Plan) -> Program {
    let mut pieces = Pieces::new(shape, plan, Names::Own, Ahead::Free);
    (0..plan.layout.pp).for_each(|at| stage(&mut pieces, at));
    pieces.program
}

fn stage(pieces: &mut Pieces<'_>, stage: u16) {
    let layers = pieces.stage(stage);
    let batches = 0..pieces.batches;
    batches.clone().filter(|_| stage == 0).for_each(|batch| pieces.embed(batch));
    layers.for_each(|at| layer(pieces, at));
    match stage + 1 == pieces.plan.layout.pp {
        true => head(pieces),
        false => batches.for_each(|batch| pieces.send(batch)),
    }
}

fn layer(pieces: &mut Pieces<'_>, layer: u16) {
    pieces.moves(layer);
    if pieces.batches == 0 {
        return;
    }
    let slots = pieces.load_attention(layer, 0);
    (0..pieces.batches).for_each(|batch| pieces.attention(layer, batch, slots));
    let slots = pieces.load_mlp(layer, 0);
    (0..pieces.batches).for_each(|batch| pieces.mlp(layer, batch, slots));
}

fn head(pieces: &mut Pieces<'_>) {
    let sampling = pieces.sampling();
    if let Some(&first) = sampling.first() {
        let slots = pieces.load_head(first);
        sampling.into_iter().for_each(|batch| pieces.head(batch, slots));
    }
}
