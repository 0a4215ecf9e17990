//! What is asked of the device, and it has no room or kernels for: refused before anything is compiled or loaded.

use kernels::device::Needs;
use kernels::linear::Format;

use crate::device::{GRID_MAX, TABLE_BYTES};
use crate::linear::FLOATS;
use crate::sample::Places;
use crate::sparse::POSITIONS_MAX;

/// Rows of a batch: a row has two words in the tables of `store_kv`, which leaves as much for the tables of blocks; and linears of
/// 32 bits have a block for each few of them.
const ROWS_MAX: usize = {
    let (of_tables, of_blocks) = (TABLE_BYTES[0] / 2 / 8, GRID_MAX[1] * FLOATS);
    if of_tables < of_blocks { of_tables } else { of_blocks }
};

/// # Errors
/// What cannot be done, and what to say instead.
pub(crate) fn check(needs: &Needs) -> Result<(), String> {
    if needs.formats.contains(&Format::Bf12) {
        return Err("weights of 12 bits are not built for CUDA: write --weights bf16".into());
    }
    if let Some(longest) = needs.sparse.filter(|longest| *longest > POSITIONS_MAX) {
        return Err(format!(
            "sparse attention to {longest} positions: on a GPU there is room for the scores of {POSITIONS_MAX}; say \
             --max-model-len, or leave --sparse-attention out"
        ));
    }
    if needs.rows > ROWS_MAX {
        let rows = needs.rows;
        return Err(format!(
            "batches of {rows} tokens: on a GPU they have {ROWS_MAX} at most; say a lower --max-num-batched-tokens"
        ));
    }
    if needs.samples > Places::COUNT {
        let (samples, most) = (needs.samples, Places::COUNT);
        return Err(format!(
            "{samples} sequences at once: on a GPU {most} at most go on in a step; say a lower --max-num-seqs"
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use kernels::attention::{KvDtype, KvLayout};

    use super::*;

    #[test]
    fn what_there_is_no_room_for_is_refused_with_what_to_say() {
        let kv = KvLayout { kv_heads: 1, head_dim: 64, dtype: KvDtype::Bf16 };
        let needs = |longest, rows, samples| Needs {
            formats: vec![],
            kv,
            capped: false,
            sparse: Some(longest),
            rows,
            samples,
        };
        assert_eq!(check(&needs(128 << 10, ROWS_MAX, Places::COUNT)), Ok(()));
        let refused = [
            (needs(4 << 20, 64, 4), "--max-model-len"),
            (needs(1, ROWS_MAX + 1, 4), "--max-num-batched-tokens"),
            (needs(1, ROWS_MAX, Places::COUNT + 1), "--max-num-seqs"),
        ];
        for (needs, flag) in refused {
            let why = check(&needs).unwrap_err();
            assert!(why.contains(flag), "{why}");
        }
    }
}
