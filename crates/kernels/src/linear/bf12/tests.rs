//! What is packed comes back bit for bit, by every family, or is refused.

use super::*;
use crate::Mat;
use crate::linear::{Format, RowOrder, pack_bf16, packed_bytes, panels};
use weights::{finite, weights};

#[path = "../../../tests/it/bf12/weights.rs"]
mod weights;

fn families() -> impl Iterator<Item = Isa> {
    Isa::ALL.into_iter().filter(|isa| isa.available())
}

#[test]
fn tiles_come_back_bit_for_bit_however_they_are_cut() {
    for (order, n, k) in [(RowOrder::Plain, 70, 450), (RowOrder::Gated, 64, 1024), (RowOrder::Plain, 1, 1)] {
        let data = weights(n, k);
        let matrix = Mat::new(&data, n, k);
        let all = 0..panels(order, n);
        let mut tiles = vec![0; packed_bytes(Format::Bf16, order, n, k)];
        pack_bf16(matrix, order, all.clone(), &mut tiles);
        let mut packed = vec![7; packed_bytes(Format::Bf12, order, n, k)];
        pack_bf12(matrix, order, all, &mut packed).expect("few are rare");
        let groups = k.div_ceil(GROUP);
        for (stored, tiles) in
            packed.chunks_exact(panel_bytes(k)).zip(tiles.chunks_exact(groups * PAIR_BYTES))
        {
            for (isa, step) in families().flat_map(|isa| [1, 3, groups].map(|step| (isa, step))) {
                for first in (0..groups).step_by(step) {
                    let groups = first..(first + step).min(groups);
                    let mut scratch = crate::AlignedBytes::zeroed(groups.len() * PAIR_BYTES);
                    let got = Bf12Panels(isa).tiles(stored, groups.clone(), &mut scratch);
                    assert!(
                        got == &tiles[groups.start * PAIR_BYTES..groups.end * PAIR_BYTES],
                        "{isa} {groups:?}"
                    );
                }
            }
        }
    }
}

#[test]
fn rows_come_back_with_their_exceptions() {
    let (n, k) = (40, 450);
    let data = weights(n, k);
    let mut packed = vec![7; packed_bytes(Format::Bf12, RowOrder::Plain, n, k)];
    pack_bf12(Mat::new(&data, n, k), RowOrder::Plain, 0..2, &mut packed).expect("few are rare");
    let rare: usize = packed.chunks_exact(panel_bytes(k)).map(|stored| Panel::new(stored).list.len()).sum();
    assert!(rare > 20, "{rare}");
    for (row, want) in data.chunks_exact(k).enumerate() {
        let mut got = vec![0.0; k];
        unpack_row(
            &packed[row / PANEL_ROWS * panel_bytes(k)..][..panel_bytes(k)],
            row % PANEL_ROWS,
            &mut got,
        );
        let bits = |values: Vec<f32>| values.into_iter().map(f32::to_bits).collect::<Vec<_>>();
        assert_eq!(bits(got), bits(want.iter().map(|weight| weight.to_f32()).collect()), "row {row}");
    }
}

#[test]
fn a_panel_takes_as_many_exceptions_as_it_has_room_for() {
    let (n, k) = (32, 64);
    let room = (panel_bytes(k) - HEAD_BYTES - 2 * GROUP_BYTES) / 4;
    // Sixteen exponents that are frequent in each row, one more than others, and so many weights of others.
    let matrix = |rare: usize| -> Vec<bf16> {
        let exponent = |i: usize| match i % k {
            _ if i.is_multiple_of(3) && i / 3 < rare => 60 + i % 40,
            column if column >= 48 => 120,
            column => 110 + column % 16,
        };
        (0..n * k).map(|i| bf16::from_bits(((exponent(i) << 7) | (i % 128)) as u16)).collect()
    };
    let pack = |rare: usize| {
        let data = matrix(rare);
        let mut out = vec![0; panel_bytes(k)];
        pack_bf12(Mat::new(&data, n, k), RowOrder::Plain, 0..1, &mut out)
    };
    assert_eq!(pack(room), Ok(()));
    assert_eq!(pack(room + 1), Err(TooVaried { panel: 0, exceptions: room + 1, room }));
    let text = pack(2 * room).unwrap_err().to_string();
    assert_eq!(text, "panel 0 has 32 weights of rare exponents, and room for 16");
}

#[test]
fn a_quarter_is_saved() {
    for k in [576, 4096, 14_336] {
        let share = panel_bytes(k) as f64 / super::super::panel_bytes(Format::Bf16, k) as f64;
        assert!((0.75..0.765).contains(&share), "{k}: {share}");
        assert_eq!(panel_bytes(k) % 64, 0);
    }
}

/// One row of x goes another way with each kind.
#[test]
fn groups_have_exceptions_and_have_none() {
    let (n, k) = (70, 450);
    let mut packed = vec![0; packed_bytes(Format::Bf12, RowOrder::Plain, n, k)];
    pack_bf12(Mat::new(&finite(n, k), n, k), RowOrder::Plain, 0..3, &mut packed).expect("few are rare");
    let groups = packed.chunks_exact(panel_bytes(k)).map(Panel::new).flat_map(|panel| {
        (0..k.div_ceil(GROUP)).map(move |group| panel.list.iter().any(|entry| group_of(entry) == group))
    });
    let (with, without): (Vec<bool>, Vec<bool>) = groups.partition(|rare| *rare);
    assert!(with.len() > 2 && without.len() > 2, "{} and {}", with.len(), without.len());
}
