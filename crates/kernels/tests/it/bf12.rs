//! Products of weights in 12 bits are those of the same in 16, by every family.

mod weights;

use kernels::linear::{
    Format, Input, Output, Part, RowOrder, Weight, linear, pack_bf12, pack_bf16, packed_bytes, panels,
};
use kernels::{AlignedBytes, Isa, Mat, MatMut, Team};
use weights::finite;

#[test]
fn products_are_those_of_sixteen_bits() {
    let team = Team::new(2);
    for (rows, n, k) in [(1, 70, 450), (5, 100, 96), (12, 64, 320), (16, 40, 64), (17, 70, 33), (40, 96, 288)]
    {
        let (data, x) = (finite(n, k), finite(rows, k));
        let all = 0..panels(RowOrder::Plain, n);
        let bytes = |format| AlignedBytes::zeroed(packed_bytes(format, RowOrder::Plain, n, k));
        let (mut wide, mut packed) = (bytes(Format::Bf16), bytes(Format::Bf12));
        pack_bf16(Mat::new(&data, n, k), RowOrder::Plain, all.clone(), &mut wide);
        pack_bf12(Mat::new(&data, n, k), RowOrder::Plain, all, &mut packed).expect("few are rare");
        for isa in Isa::ALL.into_iter().filter(|isa| isa.available()) {
            let [want, got] = [(Format::Bf16, &wide), (Format::Bf12, &packed)].map(|(format, bytes)| {
                let w = Weight::new(format, n, k, RowOrder::Plain, vec![Part { first_panel: 0, bytes }]);
                let mut out = vec![0.0; rows * n];
                let x = Input::Bf16(Mat::new(&x, rows, k));
                linear(&team, isa, x, &w, None, Output::StoreF32(MatMut::new(&mut out, rows, n)));
                out.into_iter().map(f32::to_bits).collect::<Vec<_>>()
            });
            assert!(want == got, "{isa} {rows} x {n} x {k}");
        }
    }
}
