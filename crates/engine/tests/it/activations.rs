//! Activations in whole numbers through the whole engine: the same bits in every arrangement, near those of exact ones.

use crate::common::{self, Story, checkpoint, stories};
use engine::{
    DeviceChoice, EngineConfig, NoSuchActivations, Offload, Planned, Request, StartError, WeightShare,
};
use kernels::linear::Activations;
use model::decoder::WeightsAs;
use model::sampling::SamplingParams;

/// Models, weights, activations, and how far log probabilities may be from those of exact activations (whose
/// weights are rounded to bf16, too).
const CASES: [(&str, WeightsAs, Activations, f32); 3] = [
    ("llama-gqa-tied", WeightsAs::Int4, Activations::Int8, 0.1),
    ("opt-350m", WeightsAs::Int8, Activations::Int8, 0.1),
    ("llama-gqa-tied", WeightsAs::Int8, Activations::Int16, 0.03),
];

fn config(weights: WeightsAs, activations: Activations) -> EngineConfig {
    EngineConfig { weights, activations, ..common::config() }
}

fn answers(model: &str, config: EngineConfig) -> Vec<Story> {
    let params = || SamplingParams {
        max_tokens: Some(20),
        ignore_eos: true,
        logprobs: Some(0),
        ..SamplingParams::greedy()
    };
    let prompt = |seed: u32| (0..5 + 11 * seed).map(|i| 3 + (seed * 31 + i * 40_503 + i * i) % 90).collect();
    let requests: Vec<Request> =
        (0..6).map(|seed| Request { prompt: prompt(seed), params: params(), seed: 7, salt: 0 }).collect();
    stories(&common::start(model, config), &requests)
}

#[test]
fn arrangements_change_no_bit() {
    let folder = tempfile::tempdir().unwrap();
    let share = WeightShare::Exactly(common::split([30, 20, 50]));
    let offload = Offload { folder: Some(folder.path().to_path_buf()), share, ..Offload::default() };
    for (model, weights, activations, _) in CASES {
        let config = || config(weights, activations);
        let want = answers(model, config());
        for changed in [
            EngineConfig { max_num_batched_tokens: 17, max_num_seqs: 4, ..config() },
            EngineConfig { max_num_seqs: 1, threads: 3, ..config() },
            EngineConfig { offload: offload.clone(), ..config() },
        ] {
            assert_eq!(answers(model, changed.clone()), want, "{model}: {changed:?}");
        }
        let exact = answers(model, EngineConfig { activations: Activations::Exact, ..config() });
        assert_ne!(exact, want, "{model}: {activations:?} is not exact");
    }
}

/// The first tokens' log probabilities, before one wrong token makes another text.
#[test]
fn answers_are_near_the_exact_ones() {
    for (model, weights, rounded, most) in CASES {
        let first = |activations| -> Vec<f32> {
            let answers = answers(model, config(weights, activations));
            answers.iter().map(|story| f32::from_bits(story[0].1)).collect()
        };
        for (got, exact) in first(rounded).iter().zip(first(Activations::Exact)) {
            assert!((got - exact).abs() < most, "{model} {rounded:?}: {got}, exactly {exact}");
        }
    }
}

#[test]
fn what_nothing_multiplies_is_refused() {
    let checkpoint = checkpoint("llama-gqa-tied");
    let why = |config: EngineConfig| match Planned::new(&checkpoint, config).unwrap().start(&|_| {}) {
        Err(StartError::Activations(why)) => why,
        _ => panic!("started"),
    };
    assert_eq!(why(config(WeightsAs::Bf16, Activations::Int8)), NoSuchActivations::NothingNarrow);
    let cuda = EngineConfig { device: DeviceChoice::Cuda, ..config(WeightsAs::Int4, Activations::Int16) };
    assert_eq!(why(cuda), NoSuchActivations::OnCuda);
}
