//! The row-by-row baseline (FlexGen, section 4.2, figure 3a): one batch at a time through all layers, each half of a layer
//! loaded when it is reached and only then. It is what DeepSpeed's and Accelerate's offloading do, and what the other
//! pipelines are measured against.
//!
//! ```text
//! Up/DiskRead |A0|  |M0|  |A1|  ...  |A0|  |M0|        every batch loads all weights anew
//! Device      |  |b0|  |b0|  |b0 ...    |b1|  |b1
//! ```

use super::pieces::{Ahead, Names, Pieces};
use super::plan::Plan;
use spec::{Program, Shape};

/// Lowers a shape; see the module.
pub(super) fn lower(shape: &Shape, plan: &Plan) -> Program {
    let mut pieces = Pieces::new(shape, plan, Names::One, Ahead::LockStep);
    if pieces.batches == 0 {
        (0..plan.layout.pp).for_each(|stage| pieces.stage(stage).for_each(|layer| pieces.moves(layer)));
    }
    (0..pieces.batches).for_each(|batch| row(&mut pieces, batch));
    pieces.program
}

fn row(pieces: &mut Pieces<'_>, batch: u16) {
    let stages = pieces.plan.layout.pp;
    for stage in 0..stages {
        let layers = pieces.stage(stage);
        if stage == 0 {
            pieces.embed(batch);
        }
        for layer in layers {
            if batch == 0 {
                pieces.moves(layer);
            }
            let slots = pieces.load_attention(layer, batch);
            pieces.attention(layer, batch, slots);
            let slots = pieces.load_mlp(layer, batch);
            pieces.mlp(layer, batch, slots);
        }
        if stage + 1 < stages {
            pieces.send(batch);
        } else if pieces.load_of(batch).samples > 0 {
            let slots = pieces.load_head(batch);
            pieces.head(batch, slots);
        }
    }
}
