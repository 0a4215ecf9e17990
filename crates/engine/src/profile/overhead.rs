//! What a step takes beside its kernels, measured with a model so small that nothing else is left.

use std::time::Instant;

use kernels::linear::Activations;
use model::Checkpoint;
use model::decoder::WorkSize;
use model::sampling::SamplingParams;
use spec::model::{DType, Norm, NormPlacement, QkNorm};
use spec::{ModelSpec, Rope};

use super::rig::{Extent, Rig, Seqs, room};
use crate::config::{DeviceChoice, EngineConfig, KvMemory, Offload, PrefixCaching};
use crate::engine::Engine;
use crate::front::request::{Event, Request};
use crate::plan::blocks::Blocks;
use crate::plan::planned::{Planned, StartError, blueprint};

/// Tokens that each sequence generates.
const STEPS: usize = 48;
/// Sequences of the larger run.
const MANY: usize = 64;

/// Seconds beside the kernels.
pub(super) struct Overhead {
    /// Between two steps.
    pub(super) step_s: f64,
    /// Of an op on its lane.
    pub(super) node_s: f64,
    /// Of that, for each sequence.
    pub(super) node_sequence_s: f64,
}

/// Seconds of a step of the engine.
#[derive(Clone, Copy)]
struct Step {
    /// That no lane worked.
    idle: f64,
    /// That lanes worked.
    busy: f64,
}

/// As many layers as the model has: each is a few nodes that are handed over.
pub(super) fn measure(spec: &ModelSpec, config: &EngineConfig) -> Result<Overhead, StartError> {
    let checkpoint = Checkpoint::dummy(tiny(spec.layers), 0);
    let room = room(&EngineConfig { device: DeviceChoice::Cpu, ..config.clone() });
    let config = EngineConfig {
        memory: u64::MAX,
        device: DeviceChoice::Cpu,
        // Rounded ones are for narrow weights, which the small model may not have; between kernels nothing differs.
        activations: Activations::Exact,
        max_model_len: Some(2 * STEPS),
        max_num_seqs: MANY,
        max_num_batched_tokens: MANY * 16,
        scores_prompts: false,
        prefix_caching: PrefixCaching::Off,
        kv_tokens: Some(MANY * 2 * STEPS),
        kv_memory: KvMemory::AtStart,
        host_kv_tokens: 0,
        drive_kv_tokens: 0,
        offload: Offload::default(),
        blocks: Blocks::default(),
        record: None,
        beside_bytes: 0,
        lane_spans: 0,
        ..config.clone()
    };
    let size = WorkSize { tokens: MANY * 16, samples: MANY, dtype: config.dtype() };
    let blueprint = blueprint(&checkpoint, &config);
    let extent = Extent::BEYOND_CACHES.within(room, checkpoint.spec(), &blueprint, (&config, size))?;
    let rig = Rig::new(&checkpoint, &blueprint, &config, (size, extent))?;
    let engine = Planned::new(&checkpoint, config)?.start(&|_| {})?;
    run(&engine, 1);
    let median = |seqs: usize, of: fn(&Step) -> f64| {
        let mut runs: Vec<f64> = (0..3).map(|_| of(&run(&engine, seqs))).collect();
        runs.sort_by(f64::total_cmp);
        runs[1]
    };
    let nodes = 4.0 * spec.layers as f64 + 3.0;
    let node = |seqs: usize| (median(seqs, |step| step.busy) - kernels(&rig, seqs)).max(0.0) / nodes;
    let (one, many) = (node(1), node(MANY));
    let node_sequence_s = ((many - one) / (MANY - 1) as f64).max(0.0);
    let step_s = median(1, |step| step.idle);
    Ok(Overhead { step_s, node_s: (one - node_sequence_s).max(0.0), node_sequence_s })
}

/// What the kernels of such a step take by themselves.
fn kernels(rig: &Rig, seqs: usize) -> f64 {
    let batch = Seqs { count: seqs, rows: 1, length: STEPS / 2 };
    let once = |turn| {
        let pass = rig.pass(batch, turn);
        let (head, sample) = rig.head(seqs, &super::take::draw);
        pass.embed + rig.layers() as f64 * (pass.qkv + pass.attend + pass.out + pass.mlp) + head + sample
    };
    let mut runs: Vec<f64> = (0..9).map(once).collect();
    runs.sort_by(f64::total_cmp);
    runs[4]
}

fn run(engine: &Engine, seqs: usize) -> Step {
    let params =
        SamplingParams { max_tokens: Some(STEPS as u32), ignore_eos: true, ..SamplingParams::greedy() };
    let before = engine.counts();
    let begin = Instant::now();
    let request =
        |seq: usize| Request { prompt: vec![seq as u32 + 1; 4], params: params.clone(), seed: 0, salt: 0 };
    let tickets: Vec<_> = (0..seqs).filter_map(|seq| engine.submit(request(seq)).ok()).collect();
    for ticket in &tickets {
        ticket.events.iter().find(|event| matches!(event, Event::Finished(_) | Event::Failed(_)));
    }
    let whole = begin.elapsed().as_secs_f64();
    let after = engine.counts();
    let steps = (after.steps - before.steps).max(1) as f64;
    let sum = |lanes: [u64; spec::Lane::COUNT]| lanes.iter().sum::<u64>() as f64 / 1e9;
    let busy = sum(after.lane_busy_ns) - sum(before.lane_busy_ns);
    Step { idle: (whole - busy).max(0.0) / steps, busy: busy / steps }
}

/// The smallest model with so many layers.
pub(super) fn tiny(layers: usize) -> ModelSpec {
    ModelSpec {
        architecture: "LlamaForCausalLM".into(),
        vocab: 256,
        hidden: 32,
        layers,
        heads: 1,
        kv_heads: 1,
        head_dim: 32,
        ffn: 32,
        max_positions: 4 * STEPS,
        norm: Norm::rms(1e-5),
        placement: NormPlacement::Pre,
        final_norm: true,
        activation: spec::model::Activation::Silu,
        mlp: spec::model::Mlp::Gated,
        positions: spec::model::Positions::Rope(Rope::plain(10_000.0)),
        rope_layers: spec::model::RopeLayers::All,
        biases: spec::model::Biases::default(),
        qk_norm: QkNorm::None,
        attention_scale: 1.0,
        score_cap: None,
        window: spec::model::Window::Full,
        tied_head: true,
        embed_dim: 32,
        embed_scale: 1.0,
        logit_scale: 1.0,
        logit_cap: None,
        bos: None,
        eos: vec![],
        dtype: DType::Bf16,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn activations_that_only_the_models_own_weights_suit_are_no_hindrance() {
        for activations in [Activations::Int8, Activations::Int16] {
            let config = EngineConfig { activations, ..EngineConfig::plain(1 << 30, 1) };
            let found = measure(&tiny(1), &config).unwrap();
            assert!(found.step_s >= 0.0 && found.node_s >= 0.0);
        }
    }
}
