//! bf16 weights in 12 bits: the same answers in less memory, and chosen where they help.

use crate::common::{self, Story, checkpoint, config, split};
use engine::{DeviceChoice, EngineConfig, Offload, Planned, WeightShare};
use kernels::Isa;
use model::decoder::WeightsAs;

fn stories(model: &str, config: EngineConfig) -> Vec<Story> {
    common::stories(&common::start(model, config), &common::scored_requests(4))
}

#[test]
fn the_bits_of_answers_are_those_of_sixteen() {
    let folder = tempfile::tempdir().unwrap();
    for model in ["llama-gqa-tied", "mistral", "opt-350m", "gguf-f16/model.gguf"] {
        let [bf16, bf12] =
            [WeightsAs::Bf16, WeightsAs::Bf12].map(|weights| EngineConfig { weights, ..config() });
        let want = stories(model, bf16);
        assert_eq!(stories(model, bf12.clone()), want, "{model}, resident");
        let share = WeightShare::Exactly(split([30, 0, 70]));
        let offload = Offload { folder: Some(folder.path().into()), share, ..Offload::default() };
        assert_eq!(stories(model, EngineConfig { offload, ..bf12 }), want, "{model}, streamed");
    }
}

#[test]
fn they_are_chosen_without_room_or_for_one_sequence() {
    let model = checkpoint("llama-gqa-tied");
    let chosen = |config: EngineConfig| config.with_weights_for(&model).weights;
    let stored = EngineConfig { weights: WeightsAs::Stored, isa: Isa::Scalar, max_num_seqs: 4, ..config() };
    assert_eq!(chosen(stored.clone()), WeightsAs::Stored, "there is room");
    assert_eq!(chosen(EngineConfig { isa: Isa::Avx2, max_num_seqs: 1, ..stored.clone() }), WeightsAs::Bf12);
    let one = EngineConfig { isa: Isa::Avx2, max_num_seqs: 1, ..stored.clone() };
    assert_eq!(one.with_weights_in_room(&model).weights, WeightsAs::Stored);
    let folder = Some(std::env::temp_dir());
    let offload = Offload { folder, share: WeightShare::Exactly(split([0, 0, 100])), ..Offload::default() };
    let streamed = EngineConfig { offload, ..stored };
    assert_eq!(chosen(streamed.clone()), WeightsAs::Bf12);
    assert_eq!(
        chosen(EngineConfig { weights: WeightsAs::Bf16, ..streamed.clone() }),
        WeightsAs::Bf16,
        "as told"
    );
    let cuda = EngineConfig { device: DeviceChoice::Cuda, ..streamed.clone() };
    assert_eq!(chosen(cuda), WeightsAs::Stored, "not built");
    let blocks = checkpoint("gguf-k/model.gguf");
    assert_eq!(streamed.with_weights_for(&blocks).weights, WeightsAs::Stored, "narrower as they are");
}

#[test]
fn a_quarter_of_the_memory_is_saved() {
    let model = checkpoint("llama-gqa-tied");
    let bytes = |weights| Planned::new(&model, EngineConfig { weights, ..config() }).unwrap().load_bytes();
    let share = bytes(WeightsAs::Bf12) as f64 / bytes(WeightsAs::Bf16) as f64;
    assert!((0.75..0.79).contains(&share), "{share}");
}
