use super::*;

/// Expected values printed by transformers 5.16 for a head of 16 dimensions.
fn check(rope: Rope, positions: usize, attention_factor: f64, inverse: &[f64]) {
    let got = rope_frequencies(&rope, 16, positions);
    assert_eq!(got.inverse.len(), inverse.len());
    for (got, want) in got.inverse.iter().zip(inverse) {
        assert!((f64::from(*got) - want).abs() <= want * 2e-7, "{got} is not {want}");
    }
    assert!((f64::from(got.attention_factor) - attention_factor).abs() < 1e-6, "{}", got.attention_factor);
}

fn scaled(theta: f64, scaling: RopeScaling) -> Rope {
    Rope { scaling, ..Rope::plain(theta) }
}

fn yarn(factor: f64, original_positions: usize) -> Yarn {
    Yarn {
        factor,
        original_positions,
        attention_factor: None,
        beta_fast: 32.0,
        beta_slow: 1.0,
        mscale: None,
        mscale_all_dim: None,
        truncate: true,
    }
}

#[test]
fn plain_frequencies() {
    let want = [
        1.0,
        0.193922758,
        0.0376060307,
        0.00729266508,
        0.00141421345,
        0.000274248188,
        5.31829573e-05,
        1.03133852e-05,
    ];
    check(Rope::plain(500_000.0), 0, 1.0, &want);
}

#[test]
fn a_fraction_of_the_head() {
    let rope = Rope { rotary_fraction: 0.5, ..Rope::plain(10_000.0) };
    check(rope, 0, 1.0, &[1.0, 0.100000001, 0.00999999978, 0.00100000005]);
}

#[test]
fn linear() {
    let want = [
        0.25,
        0.079056941,
        0.0250000004,
        0.00790569466,
        0.00249999994,
        0.000790569466,
        0.000250000012,
        7.90569466e-05,
    ];
    check(scaled(10_000.0, RopeScaling::Linear { factor: 4.0 }), 0, 1.0, &want);
}

#[test]
fn dynamic_within_and_beyond_its_context() {
    let rope = scaled(10_000.0, RopeScaling::Dynamic { factor: 2.0, original_positions: 4096 });
    let plain = [
        1.0,
        0.316227764,
        0.100000001,
        0.0316227786,
        0.00999999978,
        0.00316227786,
        0.00100000005,
        0.000316227786,
    ];
    check(rope.clone(), 1000, 1.0, &plain);
    let stretched = [
        1.0,
        0.260517091,
        0.0678691566,
        0.0176810753,
        0.00460622227,
        0.00119999971,
        0.000312620425,
        8.14429659e-05,
    ];
    check(rope, 10_000, 1.0, &stretched);
}

#[test]
fn llama3() {
    let scaling = RopeScaling::Llama3 {
        factor: 8.0,
        low_freq_factor: 1.0,
        high_freq_factor: 4.0,
        original_positions: 8192,
    };
    let want = [
        1.0,
        0.193922758,
        0.0376060307,
        0.00729266508,
        0.000524846022,
        3.42810235e-05,
        6.64786967e-06,
        1.28917316e-06,
    ];
    check(scaled(500_000.0, scaling), 0, 1.0, &want);
}

#[test]
fn yarn_with_its_defaults() {
    let want = [
        1.0,
        0.316227764,
        0.0812500045,
        0.0197642371,
        0.00437500002,
        0.000790569466,
        0.000250000012,
        7.90569466e-05,
    ];
    check(scaled(10_000.0, RopeScaling::Yarn(yarn(4.0, 1024))), 0, 1.138_629_4, &want);
}

#[test]
fn yarn_with_every_parameter() {
    let yarn = Yarn {
        beta_fast: 16.0,
        beta_slow: 2.0,
        mscale: Some(1.0),
        mscale_all_dim: Some(0.707),
        truncate: false,
        ..yarn(40.0, 4096)
    };
    let want = [
        1.0,
        0.177827939,
        0.0316227786,
        0.00173821906,
        2.49999994e-05,
        4.44569832e-06,
        7.90569402e-07,
        1.40585328e-07,
    ];
    check(scaled(1e6, RopeScaling::Yarn(yarn)), 0, 1.085_726_4, &want);
}

#[test]
fn yarn_with_a_given_attention_factor() {
    let yarn = Yarn { attention_factor: Some(1.25), ..yarn(4.0, 32_768) };
    let want = [
        1.0,
        0.177827939,
        0.0316227786,
        0.00421755994,
        0.000500000024,
        4.44569851e-05,
        7.90569356e-06,
        1.40585337e-06,
    ];
    check(scaled(1e6, RopeScaling::Yarn(yarn)), 0, 1.25, &want);
}

#[test]
fn factors_divide_pair_by_pair() {
    let by = vec![1.0, 1.0, 1.0, 1.0, 2.0, 4.0, 8.0, 8.0];
    let plain = rope_frequencies(&Rope::plain(10_000.0), 16, 0).inverse;
    let got = rope_frequencies(&scaled(10_000.0, RopeScaling::Factors(by.clone())), 16, 0).inverse;
    assert!(got.iter().zip(plain.iter().zip(&by)).all(|(g, (p, by))| *g == p / by));
}
