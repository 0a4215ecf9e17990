//! Tiny models in an engine, and what it says of their tokens to the last bit.
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::channel;

use engine::{Blocks, DeviceChoice, Engine, EngineConfig, Event, Planned, Request, Ticket};
use model::Checkpoint;
use model::sampling::SamplingParams;
use policy::sched::{Delegate, Schedule};
use spec::{ByTier, Split};

/// The files of a tiny model.
pub(crate) fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../model/tests/golden").join(name)
}

pub(crate) fn checkpoint(name: &str) -> Checkpoint {
    Checkpoint::open(&folder(name)).unwrap()
}

/// Memory whose bytes are NaNs where they are of no use, with room for nine sequences and two steps in flight.
pub(crate) fn poisoned() -> EngineConfig {
    EngineConfig {
        device: DeviceChoice::Poisoned,
        max_num_seqs: 9,
        max_num_batched_tokens: 48,
        steps_in_flight: Some(2),
        kv_tokens: Some(9 * 128),
        ..config()
    }
}

/// Everything on the processor, with room for eight sequences of 128 tokens.
pub(crate) fn config() -> EngineConfig {
    EngineConfig {
        max_model_len: Some(128),
        max_num_seqs: 8,
        max_num_batched_tokens: 64,
        kv_tokens: Some(8 * 128),
        ..EngineConfig::plain(4 << 30, 2)
    }
}

pub(crate) fn start(model: &str, config: EngineConfig) -> Engine {
    Planned::new(&checkpoint(model), config).unwrap().start(&|_| {}).unwrap()
}

/// Percent on device, host and disk.
pub(crate) fn split([device, host, disk]: [u32; 3]) -> Split {
    Split::new(ByTier { device, host, disk }.map(|percent| percent * (Split::WHOLE / 100))).unwrap()
}

/// Four batches of three sequences; percent of KV and activations.
pub(crate) fn blocks(schedule: Schedule, kv: [u32; 3], hidden: [u32; 3], delegate: Delegate) -> Blocks {
    Blocks {
        schedule: Some(schedule),
        num_batches: Some(4),
        batch_size: Some(3),
        kv: split(kv),
        hidden: split(hidden),
        delegate,
        ..Blocks::default()
    }
}

/// Tokens, or positions of a scored prompt, with the bits of what the model thought of them, and of the likeliest others.
/// Whoever asks for log-probabilities compares logits.
pub(crate) type Story = Vec<(u32, u32, Vec<(u32, u32)>)>;

/// What becomes of a request, to its end.
pub(crate) fn story(ticket: &Ticket) -> Story {
    let mut story = Story::new();
    loop {
        match ticket.events.recv().expect("the engine lives") {
            Event::Token(token) => {
                let scores = token.logprobs.expect("asked for");
                let top = scores.top.iter().map(|(id, p)| (*id, p.to_bits())).collect();
                story.push((token.id, scores.logprob.to_bits(), top));
            }
            Event::Prompt(position, scores) => {
                story.push((position as u32, scores.logprob.to_bits(), vec![]))
            }
            Event::Began(_) => (),
            Event::Finished(_) => return story,
            Event::Failed(why) => panic!("{why}"),
        }
    }
}

/// Requests of prompts of their own, who are told the log-probabilities of everything.
pub(crate) fn scored_requests(count: u32) -> Vec<Request> {
    let params = SamplingParams {
        max_tokens: Some(12),
        ignore_eos: true,
        logprobs: Some(0),
        prompt_logprobs: Some(0),
        ..SamplingParams::greedy()
    };
    let prompt = |i: u32| (0..10 + 7 * i).map(|j| 3 + (i * 31 + j * 17) % 90).collect();
    (0..count).map(|i| Request { prompt: prompt(i), params: params.clone(), seed: 7, salt: 0 }).collect()
}

/// What becomes of requests that are handed over together.
pub(crate) fn stories(engine: &Engine, requests: &[Request]) -> Vec<Story> {
    let tickets: Vec<Ticket> = requests.iter().map(|r| engine.submit(r.clone()).unwrap()).collect();
    tickets.iter().map(story).collect()
}

/// The same, of which none is planned before all are there, however late this thread is: beside one request more, whose beginning
/// holds up whoever plans.
pub(crate) fn stories_at_once(engine: &Engine, requests: &[Request]) -> Vec<Story> {
    let (open, gate) = channel::<()>();
    let first = Request {
        prompt: vec![3],
        params: SamplingParams { max_tokens: Some(1), ignore_eos: true, ..SamplingParams::greedy() },
        seed: 0,
        salt: u128::MAX,
    };
    let wait = move |event| {
        if matches!(event, Event::Began(_)) {
            let _ = gate.recv();
        }
    };
    let _claim = engine.submit_to(first, Box::new(wait)).unwrap();
    let tickets: Vec<Ticket> = requests.iter().map(|r| engine.submit(r.clone()).unwrap()).collect();
    drop(open);
    tickets.iter().map(story).collect()
}

/// The engine's file of KV, which has no name any more: by what this process has open.
#[cfg(target_os = "linux")]
pub(crate) fn kv_file(folder: &Path) -> File {
    let here = |path: &Path| path.starts_with(folder) && path.to_string_lossy().ends_with(" (deleted)");
    let open = std::fs::read_dir("/proc/self/fd").unwrap().map(|entry| entry.unwrap().path());
    let mut found = open.filter(|fd| std::fs::read_link(fd).is_ok_and(|path| here(&path)));
    File::options().write(true).open(found.next().expect("KV is on the drive")).unwrap()
}

/// Other bytes in the place of all that there are.
#[cfg(target_os = "linux")]
pub(crate) fn damage(file: &File) {
    let bytes = file.metadata().unwrap().len();
    file.write_all_at(&vec![0x5a; bytes as usize], 0).unwrap();
}
