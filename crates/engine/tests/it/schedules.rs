//! Every schedule gives the bits of plain: streamed or resident weights, batches of any size, steps in flight.

use std::collections::BTreeSet;
use std::path::Path;

use crate::common::{self, Story, checkpoint, split, start};
use engine::{Blocks, Engine, EngineConfig, Expected, HostLinears, Offload, Planned, Request, WeightShare};
use model::sampling::SamplingParams;
use policy::pipeline::Overlap;
use policy::sched::Schedule;
use spec::Lane;

fn config() -> EngineConfig {
    EngineConfig {
        max_num_seqs: 12,
        max_num_batched_tokens: 32,
        kv_tokens: Some(6 * 128),
        ..common::config()
    }
}

fn streamed(folder: &Path) -> Offload {
    Offload {
        folder: Some(folder.into()),
        share: WeightShare::Exactly(split([0, 0, 100])),
        ..Offload::default()
    }
}

fn blocks(schedule: Schedule, num_batches: usize, batch_size: usize) -> Blocks {
    let (schedule, num_batches) = (Some(schedule), Some(num_batches));
    Blocks { schedule, num_batches, batch_size: Some(batch_size), ..Blocks::default() }
}

/// Mixed lengths, more requests than run at once (so that finished rows are replaced), and a number of them that no
/// batch divides.
fn requests() -> Vec<Request> {
    let request = |i: u32| Request {
        prompt: (0..5 + (i * 13) % 60).map(|j| 3 + (i * 31 + j * 17) % 90).collect(),
        params: SamplingParams {
            max_tokens: Some(4 + i % 13),
            ignore_eos: true,
            // Some end early.
            stop_token_ids: (10..if i.is_multiple_of(3) { 60 } else { 10 }).collect(),
            logprobs: Some(2),
            prompt_logprobs: (i % 4 == 1).then_some(0),
            ..SamplingParams::greedy()
        },
        seed: 7,
        salt: 0,
    };
    (0..17).map(request).collect()
}

fn stories(engine: &Engine) -> Vec<Story> {
    common::stories(engine, &requests())
}

const SCHEDULES: [Schedule; 4] = [Schedule::Continuous, Schedule::Row, Schedule::Zigzag, Schedule::Diagonal];

#[test]
fn every_schedule_gives_the_bits_of_plain() {
    let folder = tempfile::tempdir().unwrap();
    for model in ["llama-gqa-tied", "opt-350m"] {
        let want = stories(&start(model, config()));
        assert!(want.iter().any(|story| story.len() < 4), "none ended early");
        for schedule in SCHEDULES {
            let streamed = || streamed(folder.path());
            let cases = [
                (1, 3, 4, streamed()),
                (2, 2, 12, streamed()),
                (3, 5, 2, streamed()),
                (3, 3, 4, Offload::default()),
            ];
            for (steps_in_flight, num_batches, batch_size, offload) in cases {
                let blocks = blocks(schedule, num_batches, batch_size);
                let config =
                    EngineConfig { blocks, steps_in_flight: Some(steps_in_flight), offload, ..config() };
                assert_eq!(stories(&start(model, config.clone())), want, "{model}, {config:?}");
            }
        }
    }
}

/// What ran, with nothing beside it: each lane has its own work, and none begins before the last has ended.
#[test]
fn without_overlap_lanes_take_turns() {
    let (folder, model) = (tempfile::tempdir().unwrap(), "llama-gqa-tied");
    let want = stories(&start(model, config()));
    let share = WeightShare::Exactly(split([20, 40, 40]));
    let offload = Offload { share, linears: HostLinears::Device, ..streamed(folder.path()) };
    let blocks = Blocks { overlap: Overlap::Nothing, ..blocks(Schedule::Zigzag, 2, 6) };
    let engine = start(
        model,
        EngineConfig { blocks, offload, steps_in_flight: Some(2), lane_spans: 1 << 14, ..config() },
    );
    assert_eq!(stories(&engine), want);
    let mut ran = engine.ranges().ran;
    ran.sort_by_key(|ran| (ran.start, ran.end));
    let lanes: BTreeSet<Lane> = ran.iter().map(|ran| ran.lane).collect();
    assert_eq!(lanes, BTreeSet::from([Lane::Device, Lane::Up, Lane::DiskRead]));
    assert!(ran.is_sorted_by(|before, after| before.end <= after.start), "two at a time");
    let busy = engine.counts().lane_busy_ns;
    assert!(lanes.iter().all(|lane| busy[lane.index()] > 0), "{busy:?}");
}

#[test]
fn a_block_takes_fewer_passes_over_streamed_weights() {
    let folder = tempfile::tempdir().unwrap();
    let run = |blocks| {
        let engine =
            start("llama-gqa-tied", EngineConfig { blocks, offload: streamed(folder.path()), ..config() });
        (common::stories_at_once(&engine, &requests()), engine.streamed().bytes)
    };
    let (want, plain) = run(blocks(Schedule::Continuous, 1, 12));
    let (zigzag, block) = run(blocks(Schedule::Zigzag, 4, 12));
    let (row, by_row) = run(blocks(Schedule::Row, 4, 12));
    assert!(want == zigzag && want == row);
    assert!(block * 10 < plain * 9 && by_row > block, "{block} of {plain} bytes, row by row {by_row}");
}

#[test]
fn auto_takes_blocks_where_weights_are_streamed_and_prompts_fill_them() {
    let folder = tempfile::tempdir().unwrap();
    let checkpoint = checkpoint("llama-gqa-tied");
    let settled = |offload, prompt| {
        let expected = Some(Expected { requests: 12, prompt, output: Some(12) });
        let blocks = Blocks { expected, ..Blocks::default() };
        let planned = Planned::new(&checkpoint, EngineConfig { blocks, offload, ..config() }).unwrap();
        (planned.blocks().schedule, planned.blocks().batches)
    };
    assert_eq!(settled(Offload::default(), 64), (Schedule::Continuous, 1));
    assert_eq!(settled(streamed(folder.path()), 2), (Schedule::Continuous, 1));
    let (schedule, batches) = settled(streamed(folder.path()), 16);
    assert!(schedule != Schedule::Continuous && batches == 6, "{schedule:?} with {batches}");
    // Smaller batches, so more of them; nobody knows how long these grow, so none is reserved room for all that may come.
    let expected = Some(Expected { requests: 12, prompt: 16, output: None });
    let blocks = Blocks { expected, batch_tokens: Some(8), ..Blocks::default() };
    let planned =
        Planned::new(&checkpoint, EngineConfig { blocks, offload: streamed(folder.path()), ..config() });
    let hold = *planned.as_ref().unwrap().hold();
    let blocks = *planned.unwrap().blocks();
    assert_eq!((blocks.schedule, blocks.batches), (Schedule::Continuous, 8));
    let whole = Blocks { num_batches: Some(8), ..Blocks::default() };
    let whole = EngineConfig { blocks: whole, offload: streamed(folder.path()), ..config() };
    assert!(hold.work_bytes < Planned::new(&checkpoint, whole).unwrap().hold().work_bytes);
}

#[test]
fn a_recorded_run_of_blocks_replays_step_for_step() {
    let dir = tempfile::tempdir().unwrap();
    for schedule in SCHEDULES {
        let path = dir.path().join("run.jsonl");
        let blocks = blocks(schedule, 3, 4);
        let record = Some(path.clone());
        stories(&start("qwen2", EngineConfig { record, blocks, steps_in_flight: Some(2), ..config() }));
        let log = std::fs::read_to_string(&path).unwrap();
        let replayed = sim::replay(log.as_bytes()).unwrap();
        assert!(replayed.requests == 17 && replayed.steps > 5, "{replayed:?}");
    }
}
