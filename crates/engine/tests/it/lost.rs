//! The drive fails under requests that live there: they end by name, and the others go on.

use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::mpsc::channel;
use std::thread::yield_now;
use std::time::{Duration, Instant};

use crate::common::{Story, damage, kv_file, poisoned as config, split, start, stories};
use engine::{Blocks, Claim, Engine, EngineConfig, Event, Failure, Offload, Request, Sink};
use model::sampling::SamplingParams;
use policy::sched::{Delegate, Schedule};

fn request(i: u32) -> Request {
    let params = SamplingParams {
        max_tokens: Some(70),
        ignore_eos: true,
        logprobs: Some(0),
        ..SamplingParams::greedy()
    };
    Request { prompt: (0..20).map(|j| 3 + (i * 31 + j * 17) % 90).collect(), params, seed: 7, salt: 0 }
}

/// What became of a request: its tokens so far, and why there are no more.
type Ended = (Story, Option<Failure>);

/// How the drive breaks.
#[derive(Clone, Copy)]
struct Breaks {
    how: fn(&File),
    /// When, in tokens of any request, while all have long to go.
    at: u32,
    /// Tokens of a request that ends so which are right: all, if what is broken is found at its next read.
    right: usize,
}

/// What is read next is found, as it was just written.
fn at_once(how: fn(&File)) -> Breaks {
    Breaks { how, at: 3, right: usize::MAX }
}

/// Runs these, none before all are there, and breaks the drive.
fn ended(engine: &Engine, requests: &[Request], drive: &File, breaks: Breaks) -> Vec<Ended> {
    let ((told, events), (open, gate)) = (channel(), channel::<()>());
    let mut gate = Some(gate);
    let submit = |(i, request): (usize, &Request)| -> Claim {
        let (told, mut tokens, file) = (told.clone(), 0, drive.try_clone().unwrap());
        // The first one's beginning holds up whoever plans.
        let gate = gate.take();
        let sink: Sink = Box::new(move |event| {
            if let (Some(gate), Event::Began(_)) = (&gate, &event) {
                let _ = gate.recv();
            }
            tokens += u32::from(matches!(event, Event::Token(_)));
            if tokens == breaks.at {
                (breaks.how)(&file);
            }
            told.send((i, event)).unwrap();
        });
        engine.submit_to(request.clone(), sink).unwrap()
    };
    let _claims: Vec<Claim> = requests.iter().enumerate().map(submit).collect();
    drop(open);
    let (mut ended, mut open) = (vec![(Story::new(), None); requests.len()], requests.len());
    while open > 0 {
        let (i, event) = events.recv().unwrap();
        match event {
            Event::Token(token) => {
                let logprob = token.logprobs.expect("asked for").logprob;
                ended[i].0.push((token.id, logprob.to_bits(), vec![]));
            }
            Event::Failed(why) => (ended[i].1, open) = (Some(why), open - 1),
            Event::Finished(_) => open -= 1,
            Event::Began(_) | Event::Prompt(..) => {}
        }
    }
    ended
}

/// Requests are told of their end a little before their blocks are free again.
fn settle(engine: &Engine) {
    let until = Instant::now() + Duration::from_secs(60);
    while engine.counts().running > 0 {
        assert!(Instant::now() < until, "requests that ended still run");
        yield_now();
    }
}

#[test]
fn requests_whose_kv_is_torn_end_by_name_and_the_others_go_on() {
    end_by_name(at_once(|file| file.set_len(0).unwrap()), "torn", 40, 1..9);
}

#[test]
fn requests_whose_kv_is_damaged_end_by_name_and_the_others_go_on() {
    end_by_name(at_once(damage), "other bytes", 40, 1..9);
}

#[test]
fn a_block_that_is_damaged_ends_its_sequence_alone() {
    // Once it is full: until then it is written with each token. Then one in 32 of its reads is compared, until which zeros are keys
    // as good as any.
    let how = |file: &File| file.write_all_at(&[0; 64], 0).unwrap();
    end_by_name(Breaks { how, at: 20, right: 16 }, "other bytes", 0, 1..2);
}

/// `here`: percents of KV on the device; `losses`: how many of nine requests may end so.
fn end_by_name(breaks: Breaks, words: &str, here: u32, losses: Range<usize>) {
    let requests: Vec<Request> = (0..9).map(request).collect();
    let want = stories(&start("llama-gqa-tied", config()), &requests);
    for delegate in [Delegate::Host, Delegate::Streamed] {
        let folder = tempfile::tempdir().unwrap();
        let offload = Offload {
            device_memory: Some(1 << 30),
            folder: Some(folder.path().into()),
            ..Offload::default()
        };
        let blocks = Blocks {
            schedule: Some(Schedule::Zigzag),
            num_batches: Some(3),
            batch_size: Some(3),
            kv: split([here, 0, 100 - here]),
            delegate,
            ..Blocks::default()
        };
        let engine = start("llama-gqa-tied", EngineConfig { offload, blocks, ..config() });
        let ended = ended(&engine, &requests, &kv_file(folder.path()), breaks);
        for ((story, why), want) in ended.iter().zip(&want) {
            // What was told before the drive failed is right, too.
            let sure = if why.is_none() { usize::MAX } else { breaks.right };
            let right = story.iter().zip(want).take(sure).all(|(a, b)| (a.0, a.1) == (b.0, b.1));
            assert!(right && story.len() <= want.len(), "{delegate:?}: {story:?}");
            match why {
                None => assert_eq!(story.len(), want.len()),
                Some(Failure::Drive(why)) => {
                    assert!(why.contains(words) && why.contains("kv-"), "{why}");
                }
                other => panic!("{other:?}"),
            }
        }
        let lost = ended.iter().filter(|(_, why)| why.is_some()).count();
        assert!(losses.contains(&lost), "{delegate:?}: {lost} of {} lost", requests.len());
        // The engine goes on; alone, a request lives on the device.
        settle(&engine);
        assert_eq!(stories(&engine, &requests[..1]), want[..1]);
    }
}
