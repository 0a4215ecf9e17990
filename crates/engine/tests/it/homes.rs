//! KV, activations and weights on any tier, attended where KV is or brought to the device, under every schedule: always
//! the bits of the resident run.

use std::path::{Path, PathBuf};
use std::sync::mpsc::TryRecvError;

use crate::common::{
    self, Story, blocks, checkpoint, poisoned as config, split, start, stories_at_once, story,
};
use engine::{
    Counts, DeviceChoice, Engine, EngineConfig, Event, Moved, Offload, Planned, PrefixCaching, Request,
    WeightShare,
};
use model::sampling::SamplingParams;
use policy::sched::{Delegate, Schedule};
use spec::Lane;

/// Mixed lengths, some longer than a batch of a step, more requests than run at once, some that end early.
fn requests(longest: u32) -> Vec<Request> {
    let request = |i: u32| Request {
        prompt: (0..(3 + (i * 29) % 70).min(longest)).map(|j| 3 + (i * 31 + j * 17) % 90).collect(),
        params: SamplingParams {
            max_tokens: Some(5 + (i * 7) % 40),
            ignore_eos: true,
            stop_token_ids: (10..if i.is_multiple_of(4) { 90 } else { 10 }).collect(),
            logprobs: Some(1),
            ..SamplingParams::greedy()
        },
        seed: 7,
        salt: 0,
    };
    (0..11).map(request).collect()
}

fn requests_of(engine: &Engine) -> Vec<Request> {
    requests(engine.hold().max_model_len as u32 / 2 + 10)
}

fn stories(engine: &Engine) -> Vec<Story> {
    common::stories(engine, &requests_of(engine))
}

/// Schedule, KV, activations, weights (percent on device, host, disk), where decodes attend, and whether a link lies between
/// host and device.
type Case = (Schedule, [u32; 3], [u32; 3], [u32; 3], Delegate, bool);

fn with(case: Case, folder: &Path) -> EngineConfig {
    let (schedule, kv, hidden, weights, delegate, link) = case;
    let weights_away = weights != [100, 0, 0];
    let offload = Offload {
        device_memory: Some(1 << 30),
        link: link.then_some(8 << 30),
        folder: Some(folder.into()),
        share: if weights_away { WeightShare::Exactly(split(weights)) } else { WeightShare::Fitting },
        ..Offload::default()
    };
    let blocks = blocks(schedule, kv, hidden, delegate);
    EngineConfig { offload, blocks, ..config() }
}

const HERE: [u32; 3] = [100, 0, 0];
const HOST: [u32; 3] = [0, 100, 0];
const DISK: [u32; 3] = [0, 0, 100];
const MIXED: [u32; 3] = [40, 30, 30];
/// Little enough on device and host that some sequences live on the drive.
const TIGHT: [u32; 3] = [15, 15, 70];

/// All batches but the first: a diagonal step need not have so many that the last is among them.
const FAR: [u32; 3] = [0, 30, 70];

/// Whether lanes did what the case says.
fn check(case: Case, counts: &Counts) {
    let (_, kv, hidden, _, delegate, _) = case;
    let busy = |lane: Lane| counts.lane_busy_ns[lane.index()] > 0;
    assert_eq!(busy(Lane::Host), kv != HERE && delegate == Delegate::Host, "{case:?}: attention on the host");
    assert_eq!(counts.host_attention_ns > 0, busy(Lane::Host), "{case:?}");
    assert!(
        counts.hidden_attention_ns <= counts.lane_busy_ns[Lane::Device.index()],
        "{case:?}: no more is hidden than the device works"
    );
    let passed = |link: Lane, what: Moved| counts.moved_bytes[link.index()][what as usize] > 0;
    if kv[1] > 0 && delegate == Delegate::Streamed {
        assert!(passed(Lane::Up, Moved::Kv), "{case:?}: KV is copied up to be attended");
    }
    assert_eq!(passed(Lane::DiskWrite, Moved::Kv), kv[2] > 0, "{case:?}: KV goes to the drive");
    let drive = kv[2] + hidden[2] > 0;
    assert_eq!(counts.moved_by(Lane::DiskWrite) > 0, drive, "{case:?}: writes");
    assert_eq!(counts.moved_by(Lane::DiskRead) > 0, drive, "{case:?}: reads");
}

#[test]
fn every_tier_and_schedule_gives_the_bits_of_the_resident_run() {
    use Delegate::{Host, Streamed};
    use Schedule::{Diagonal, Row, Zigzag};
    let folder = tempfile::tempdir().unwrap();
    let want = stories(&start("llama-gqa-tied", config()));
    assert!(want.iter().any(|story| story.len() > 30) && want.iter().any(|story| story.len() < 5));
    for case in [
        (Zigzag, HOST, HERE, HERE, Host, false),
        (Zigzag, HOST, HERE, HERE, Streamed, false),
        (Zigzag, DISK, HERE, HERE, Host, false),
        (Zigzag, DISK, HERE, HERE, Streamed, false),
        (Zigzag, DISK, HERE, HERE, Streamed, true),
        (Zigzag, DISK, HERE, DISK, Host, true),
        (Zigzag, HERE, HOST, HERE, Host, false),
        (Zigzag, HERE, DISK, HERE, Host, false),
        (Zigzag, HERE, DISK, HERE, Host, true),
        (Zigzag, HERE, MIXED, MIXED, Host, true),
        (Zigzag, TIGHT, MIXED, HERE, Host, false),
        (Zigzag, TIGHT, MIXED, MIXED, Host, true),
        (Zigzag, TIGHT, MIXED, MIXED, Streamed, true),
        (Row, TIGHT, HERE, HERE, Host, false),
        (Row, TIGHT, HERE, DISK, Streamed, true),
        (Diagonal, TIGHT, HERE, DISK, Host, false),
        (Diagonal, HOST, FAR, MIXED, Streamed, false),
    ] {
        let engine = start("llama-gqa-tied", with(case, folder.path()));
        // Only as many as there are at a time use all tiers.
        assert_eq!(stories_at_once(&engine, &requests_of(&engine)), want, "{case:?}");
        check(case, &engine.counts());
    }
}

#[test]
fn a_processor_that_is_device_and_host_attends_on_one_lane_and_hides_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let case = (Schedule::Zigzag, TIGHT, MIXED, HERE, Delegate::Host, false);
    let engine =
        start("llama-gqa-tied", EngineConfig { device: DeviceChoice::Cpu, ..with(case, folder.path()) });
    assert_eq!(stories(&engine), stories(&start("llama-gqa-tied", config())));
    let counts = engine.counts();
    assert_eq!(counts.lane_busy_ns[Lane::Host.index()], 0);
    assert!(counts.host_attention_ns > 0 && counts.hidden_attention_ns == 0, "{counts:?}");
}

#[test]
fn every_family_of_models_attends_on_the_host_with_its_own_norms_and_rotations() {
    let folder = tempfile::tempdir().unwrap();
    for model in [
        "qwen3",
        "opt-350m",
        "mistral",
        "llama-dynamic-v4",
        "cohere-plus",
        "cohere2",
        "gemma2",
        "gemma3",
        "gpt-neox",
        "ministral3",
        "olmo3",
        "smollm3",
        "phi3-longrope-short",
    ] {
        let want = stories(&start(model, config()));
        for delegate in [Delegate::Host, Delegate::Streamed] {
            let case = (Schedule::Zigzag, TIGHT, MIXED, HERE, delegate, false);
            assert_eq!(stories(&start(model, with(case, folder.path()))), want, "{model}, {case:?}");
        }
    }
}

#[test]
fn layers_with_windows_bring_no_more_than_they_see() {
    let folder = tempfile::tempdir().unwrap();
    let params = SamplingParams {
        max_tokens: Some(6),
        ignore_eos: true,
        logprobs: Some(1),
        ..SamplingParams::greedy()
    };
    let prompt = (0..320).map(|i| 3 + (i * 17) % 90).collect();
    let request = [Request { prompt, params, seed: 7, salt: 0 }];
    let run = |config: EngineConfig| {
        let config = EngineConfig { max_model_len: Some(400), kv_tokens: Some(800), ..config };
        let block = 32 * engine::kv_token_bytes(checkpoint("mistral-long").spec(), &config);
        let engine = start("mistral-long", config);
        (common::stories(&engine, &request), engine.counts().moved_by(Lane::DiskRead) / block)
    };
    let (want, _) = run(config());
    for delegate in [Delegate::Host, Delegate::Streamed] {
        let case = (Schedule::Zigzag, DISK, HERE, HERE, delegate, false);
        let (got, blocks) = run(with(case, folder.path()));
        assert_eq!(got, want, "{case:?}");
        // Chunks of 48 and five decodes have 87 blocks before them. A window of 100 begins in the second group of four blocks
        // from position 227 on.
        assert_eq!(blocks, 59, "{case:?}");
    }
}

#[test]
fn a_recorded_run_over_three_tiers_replays_step_for_step() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.jsonl");
    let case = (Schedule::Diagonal, TIGHT, MIXED, HERE, Delegate::Host, false);
    let record = Some(path.clone());
    stories(&start("qwen2", EngineConfig { record, ..with(case, folder.path()) }));
    let log = std::fs::read_to_string(&path).unwrap();
    assert!(log.contains("\"home\":\"Disk\"") && log.contains("\"attend\":\"Host\""));
    assert_eq!(sim::replay(log.as_bytes()).unwrap().requests, 11);
}

#[test]
fn prefixes_go_down_to_the_host_and_come_back() {
    let config = |host_kv_tokens| EngineConfig {
        prefix_caching: PrefixCaching::On,
        kv_tokens: Some(200),
        host_kv_tokens,
        max_num_batched_tokens: 128,
        ..config()
    };
    let cached = |host_kv_tokens| {
        let engine = start("llama-gqa-tied", config(host_kv_tokens));
        let ask = |i: u32| {
            let params = SamplingParams {
                max_tokens: Some(3),
                ignore_eos: true,
                logprobs: Some(1),
                ..SamplingParams::greedy()
            };
            let prompt = (0..100).map(|j| 3 + (i * 31 + j * (17 + i)) % 90).collect();
            story(&engine.submit(Request { prompt, params, seed: 0, salt: 0 }).unwrap())
        };
        // More prompts than the device has room for, one after the other, and again.
        let first: Vec<_> = (0..6).map(ask).collect();
        let again: Vec<_> = (0..6).map(ask).collect();
        assert_eq!(first, again, "{host_kv_tokens} tokens on the host");
        (first, engine.counts().cached_tokens)
    };
    let (want, without) = cached(0);
    let (got, with) = cached(2000);
    assert_eq!(got, want);
    assert!(with >= without + 4 * 96, "{with} tokens of prompts were found, {without} without the host");
}

#[test]
fn the_drives_share_holds_kv_and_a_full_drive_is_found_before_anything_is_loaded() {
    let folder = tempfile::tempdir().unwrap();
    let checkpoint = checkpoint("llama-gqa-tied");
    let on_drive = with((Schedule::Zigzag, DISK, HERE, HERE, Delegate::Host, false), folder.path());
    let all = Planned::new(&checkpoint, on_drive.clone()).unwrap().hold().drive_bytes;
    let share = Offload { disk: Some(all / 2), ..on_drive.offload.clone() };
    let half =
        *Planned::new(&checkpoint, EngineConfig { offload: share, ..on_drive.clone() }).unwrap().hold();
    assert!(half.drive_bytes <= all / 2 && half.drive_kv_blocks >= 5, "{half:?}");
    let none = Offload { disk: Some(4096), ..on_drive.offload.clone() };
    assert!(Planned::new(&checkpoint, EngineConfig { offload: none, ..on_drive.clone() }).is_err());
    // Two tebibytes of KV and more.
    let endless = EngineConfig { kv_tokens: Some(32 << 28), ..on_drive };
    let loaded = std::sync::atomic::AtomicU64::new(0);
    let planned = Planned::new(&checkpoint, endless).unwrap();
    let result = planned.start(&|bytes| loaded.store(bytes, std::sync::atomic::Ordering::Relaxed));
    let text = result.map(drop).unwrap_err().to_string();
    assert!(text.contains("take room on the drive"), "{text}");
    assert_eq!(loaded.into_inner(), 0, "weights were loaded before");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "nothing is left behind");
}

#[cfg(target_os = "linux")]
#[test]
fn kv_that_cannot_be_read_fails_the_requests_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let case = (Schedule::Zigzag, DISK, HERE, HERE, Delegate::Streamed, false);
    let engine = start("llama-gqa-tied", with(case, folder.path()));
    let own = folder.path().to_str().unwrap();
    let fds = std::fs::read_dir("/proc/self/fd").unwrap().map(|fd| fd.unwrap().path());
    let is_kv = |fd: &PathBuf| std::fs::read_link(fd).is_ok_and(|to| to.to_string_lossy().starts_with(own));
    let kv: Vec<PathBuf> = fds.filter(is_kv).collect();
    assert_eq!(kv.len(), 1, "one file, without a name");
    let file = std::fs::File::options().write(true).open(&kv[0]).unwrap();
    let params = SamplingParams { max_tokens: Some(400), ignore_eos: true, ..SamplingParams::greedy() };
    let request = Request { prompt: vec![3; 40], params, seed: 0, salt: 0 };
    let mut ticket = engine.submit(request.clone()).unwrap();
    // The file loses its end again and again, since each step's writes give it a new one, until a read in between finds that
    // out: however lucky a request is, another follows.
    let text = loop {
        file.set_len(0).unwrap();
        match ticket.events.try_recv() {
            Ok(Event::Failed(why)) => break why.to_string(),
            Ok(Event::Finished(_)) => ticket = engine.submit(request.clone()).unwrap(),
            Err(TryRecvError::Disconnected) => break "an engine that ended without a word".into(),
            Ok(_) | Err(TryRecvError::Empty) => (),
        }
    };
    assert!(text.contains("kv-") && text.contains("torn"), "{text}");
}

#[test]
fn what_a_schedule_cannot_move_is_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let checkpoint = checkpoint("llama-gqa-tied");
    for (schedule, kv, hidden, word) in
        [(Schedule::Continuous, HOST, HERE, "plain"), (Schedule::Row, HERE, HOST, "row")]
    {
        let config = with((schedule, kv, hidden, HERE, Delegate::Host, false), folder.path());
        let text = Planned::new(&checkpoint, config).map(drop).unwrap_err().to_string();
        assert!(text.contains(word) && text.contains("zigzag"), "{text}");
    }
}
