//! The same request gives the same tokens and the same bits, whatever runs beside it and however it is cut.

use crate::common::{self, Story, checkpoint, start, stories, story};
use engine::{Engine, EngineConfig, Event, Failure, Finish, Planned, PrefixCaching, Request};
use model::Checkpoint;
use model::decoder::WeightsAs;
use model::sampling::SamplingParams;
use spec::model::Positions;
use spec::rope::{Rope, RopeScaling};

fn config() -> EngineConfig {
    EngineConfig {
        max_model_len: Some(256),
        max_num_seqs: 64,
        max_num_batched_tokens: 512,
        kv_tokens: Some(64 * 256),
        ..common::config()
    }
}

/// Greedy, with the likeliest tokens' log-probabilities, in which every logit has a part.
fn greedy(max_tokens: u32) -> SamplingParams {
    let params = SamplingParams::greedy();
    SamplingParams { max_tokens: Some(max_tokens), ignore_eos: true, logprobs: Some(5), ..params }
}

fn request(seed: u32, len: u32, params: SamplingParams) -> Request {
    let prompt =
        (0..len).map(|i| 3 + (seed.wrapping_mul(2_654_435_761).wrapping_add(i * 40_503) >> 7) % 90).collect();
    Request { prompt, params, seed: 7, salt: 0 }
}

fn alone(engine: &Engine, request: &Request) -> Story {
    story(&engine.submit(request.clone()).unwrap())
}

fn some_requests(n: u32) -> Vec<Request> {
    (0..n).map(|i| request(i, 5 + (i * 13) % 90, greedy(8 + i % 20))).collect()
}

#[test]
fn a_batch_of_64_gives_the_bits_of_batches_of_one() {
    for model in
        ["llama-gqa-tied", "qwen3", "mistral", "opt-350m", "gemma3", "granite", "gguf-q4_0/model.gguf"]
    {
        let engine = start(model, config());
        let requests = some_requests(64);
        let together = stories(&engine, &requests);
        for (request, story) in requests.iter().zip(&together) {
            assert_eq!(&alone(&engine, request), story, "{model}");
        }
    }
}

/// A small model that takes 1,024 positions.
fn long_model() -> tempfile::TempDir {
    let (from, to) = (common::folder("llama-gqa-tied"), tempfile::tempdir().unwrap());
    std::fs::copy(from.join("model.safetensors"), to.path().join("model.safetensors")).unwrap();
    let config = std::fs::read_to_string(from.join("config.json")).unwrap();
    let longer = config.replace("\"max_position_embeddings\": 512", "\"max_position_embeddings\": 1024");
    assert_ne!(longer, config);
    std::fs::write(to.path().join("config.json"), longer).unwrap();
    to
}

/// Longer than a split of attention (512 tokens), so that parts are merged; of bf16 weights and of packed ones.
#[test]
fn long_contexts_give_the_same_bits_however_they_came_to_be() {
    let model = long_model();
    let checkpoint = Checkpoint::open(model.path()).unwrap();
    for weights in [WeightsAs::Bf16, WeightsAs::Int4] {
        let long = EngineConfig { weights, max_model_len: Some(700), kv_tokens: Some(8 * 700), ..config() };
        let start = |config: &EngineConfig| {
            Planned::new(&checkpoint, config.clone()).unwrap().start(&|_| {}).unwrap()
        };
        let requests: Vec<Request> = (0..5).map(|i| request(i, 590 + 11 * i, greedy(24))).collect();
        let engine = start(&long);
        let want: Vec<Story> = requests.iter().map(|request| alone(&engine, request)).collect();
        assert_eq!(stories(&engine, &requests), want, "{weights:?}: together");
        let caching = PrefixCaching::On;
        let chunks = EngineConfig { max_num_batched_tokens: 96, prefix_caching: caching, ..long.clone() };
        let cached = start(&chunks);
        assert_eq!(stories(&cached, &requests), want, "{weights:?}: in chunks");
        let before = cached.counts().cached_tokens;
        assert_eq!(stories(&cached, &requests), want, "{weights:?}: by what was kept");
        assert!(cached.counts().cached_tokens - before >= 5 * 512, "{weights:?}: prefixes were kept");
        // Room for two prompts, and not for what both become: one makes way.
        let once: u64 = requests.iter().map(|r| r.prompt.len() as u64 + 23).sum();
        for (host_kv_tokens, what) in [(0, "computed again"), (4000, "swapped")] {
            let tight = EngineConfig { kv_tokens: Some(1216), host_kv_tokens, ..long.clone() };
            let engine = start(&tight);
            assert_eq!(stories(&engine, &requests), want, "{weights:?}: {what}");
            let (counts, again) = (engine.counts(), host_kv_tokens == 0);
            assert_eq!(counts.computed_tokens > once + 500, again, "{weights:?}: {what}");
            assert_eq!(counts.moved_blocks == 0, again, "{weights:?}: {what}");
        }
    }
}

#[test]
fn chunks_threads_and_steps_in_flight_change_no_bit() {
    let requests = some_requests(12);
    let want = stories(&start("llama-gqa-tied", config()), &requests);
    for changed in [
        EngineConfig { max_num_batched_tokens: 17, max_num_seqs: 16, ..config() },
        EngineConfig { threads: 1, ..config() },
        EngineConfig { threads: 3, ..config() },
        EngineConfig { steps_in_flight: Some(2), ..config() },
        EngineConfig { steps_in_flight: Some(3), max_num_batched_tokens: 40, max_num_seqs: 8, ..config() },
    ] {
        let engine = start("llama-gqa-tied", changed.clone());
        assert_eq!(stories(&engine, &requests), want, "{changed:?}");
    }
}

#[test]
fn prefix_hits_change_no_bit_and_compute_less() {
    let requests: Vec<Request> = (0..6).map(|_| request(5, 150, greedy(40))).collect();
    let want = alone(&start("qwen2", config()), &requests[0]);
    let engine = start("qwen2", EngineConfig { prefix_caching: PrefixCaching::On, ..config() });
    assert_eq!(alone(&engine, &requests[0]), want);
    let cold = engine.counts().computed_tokens;
    for request in &requests[1..] {
        assert_eq!(alone(&engine, request), want);
    }
    let warm = (engine.counts().computed_tokens - cold) / 5;
    assert!(warm + 128 <= cold, "{warm} positions computed after {cold}: nothing was reused");
    // A conversation goes on: blocks that hold generated tokens serve it too.
    let mut longer = requests[0].clone();
    longer.prompt.extend(want.iter().map(|(token, ..)| *token));
    assert!(engine.counts().lane_busy_ns[spec::Lane::Device.index()] > 0, "the device lane worked");
    let before = engine.counts().computed_tokens;
    let story = alone(&engine, &longer);
    assert!(engine.counts().computed_tokens - before < 32 + 40 + 1, "generated blocks were not reused");
    assert_eq!(story, alone(&start("qwen2", config()), &longer));
}

/// Its last token is told before the step ends that drew it, and it waits for nothing more.
#[test]
fn clients_that_leave_with_their_last_token_leave_their_prefixes() {
    let engine = start("qwen2", EngineConfig { prefix_caching: PrefixCaching::On, ..config() });
    for seed in 0..40 {
        let request = request(1000 + seed, 150, greedy(1));
        let before = engine.counts().cached_tokens;
        assert_eq!(alone(&engine, &request), alone(&engine, &request));
        assert_eq!(engine.counts().cached_tokens - before, 128, "prompt {seed}");
    }
}

#[test]
fn scaled_models_read_more_than_they_were_trained_on() {
    let engine = |model, prefix_caching| {
        start(model, EngineConfig { prefix_caching, max_model_len: None, ..config() })
    };
    for (model, trained, longest) in [
        ("llama-linear-v4", 128, 512),
        ("llama-dynamic-v4", 32, 128),
        ("llama-yarn-v4", 128, 128),
        ("phi3-longrope", 32, 128),
    ] {
        let off = engine(model, PrefixCaching::Off);
        assert_eq!(off.hold().max_model_len, longest, "{model}");
        // The same beginning in prompts of different lengths, which dynamic scaling turns differently.
        let prompts = [trained - 10, trained + 40, trained + 70].map(|n| n.min(longest - 20) as u32);
        let requests = prompts.map(|n| request(3, n, greedy(16)));
        let want: Vec<Story> = requests.iter().map(|request| alone(&off, request)).collect();
        assert!(want.iter().all(|story| story.len() == 16), "{model}");
        let on = engine(model, PrefixCaching::On);
        for (request, want) in requests.iter().chain(&requests).zip(want.iter().chain(&want)) {
            assert_eq!(&alone(&on, request), want, "{model}, {} tokens", request.prompt.len());
        }
        // Those of one length share their KV, however they are turned.
        let again: usize = requests.iter().map(|request| (request.prompt.len() - 1) / 32 * 32).sum();
        let cached = on.counts().cached_tokens as usize;
        assert!(cached >= again, "{model}: {cached} of {again} tokens come again");
    }
}

/// Whether a sequence stays within the original context (32 tokens) or may leave it, it is turned by one sort of frequencies: its
/// keys are no others', and its text goes on as if all of it had been the prompt.
#[test]
fn longrope_turns_a_sequence_in_one_way() {
    let engine = start("phi3-longrope", EngineConfig { prefix_caching: PrefixCaching::On, ..config() });
    let alone_off = |request: &Request| {
        alone(
            &start("phi3-longrope", EngineConfig { prefix_caching: PrefixCaching::Off, ..config() }),
            request,
        )
    };
    let within = request(3, 32, greedy(1));
    let beyond = request(3, 40, greedy(8));
    assert_eq!(beyond.prompt[..32], within.prompt, "the same block");
    for request in [&within, &beyond, &within] {
        assert_eq!(alone(&engine, request), alone_off(request), "{} tokens", request.prompt.len());
    }
    let grows = request(5, 24, greedy(16));
    let text = alone(&engine, &grows);
    for known in [4u32, 8, 12] {
        let mut prompt = grows.prompt.clone();
        prompt.extend(text[..known as usize].iter().map(|(token, ..)| token));
        let rest = Request { prompt, ..request(5, 24, greedy(16 - known)) };
        assert_eq!(alone(&engine, &rest), text[known as usize..], "after {known} tokens");
    }
}

/// An answer that may be as long as there is room says the same where memory has room for less: it ends there.
#[test]
fn longrope_does_not_turn_by_memory() {
    let mut spec = checkpoint("phi3-longrope").spec().clone();
    let Positions::Rope(Rope { scaling: RopeScaling::Long(long), .. }) = &mut spec.positions else {
        panic!("turned otherwise: {spec:?}");
    };
    long.original_positions = 64;
    let random = Checkpoint::dummy(spec, 0);
    let engine = |kv_tokens, max_model_len| {
        let config = EngineConfig { kv_tokens, max_model_len, max_num_seqs: 1, ..config() };
        Planned::new(&random, config).unwrap().start(&|_| {}).unwrap()
    };
    let open = request(3, 11, SamplingParams { max_tokens: None, ..greedy(1) });
    let (wide, narrow) = (engine(None, None), engine(Some(64), None));
    assert_eq!((wide.hold().max_model_len, narrow.hold().max_model_len), (128, 64));
    let (long, short) = (alone(&wide, &open), alone(&narrow, &open));
    assert_eq!((long.len(), &short[..]), (128 - 11, &long[..64 - 11]));
    // Where it is told to end there, by the request or by the settings, it is turned as short texts are.
    let within = alone(&wide, &request(3, 11, greedy(64 - 11)));
    assert_ne!(within, short);
    assert_eq!(alone(&narrow, &request(3, 11, greedy(64 - 11))), within);
    assert_eq!(alone(&engine(None, Some(64)), &open), within);
}

#[test]
fn salts_keep_requests_apart() {
    let engine = start("qwen2", EngineConfig { prefix_caching: PrefixCaching::On, ..config() });
    let salted = Request { salt: 1, ..request(5, 150, greedy(2)) };
    alone(&engine, &request(5, 150, greedy(2)));
    let before = engine.counts().computed_tokens;
    alone(&engine, &salted);
    assert!(engine.counts().computed_tokens - before >= 150);
}

#[test]
fn preempted_sequences_give_the_same_tokens() {
    let requests: Vec<Request> = (0..10).map(|i| request(i, 40 + i, greedy(90))).collect();
    let want = stories(&start("llama-gqa-tied", config()), &requests);
    for steps_in_flight in [1, 2] {
        // Room for three full sequences.
        let tight = EngineConfig {
            kv_tokens: Some(420),
            max_model_len: Some(140),
            steps_in_flight: Some(steps_in_flight),
            ..config()
        };
        let engine = start("llama-gqa-tied", tight);
        let got = stories(&engine, &requests);
        let computed = engine.counts().computed_tokens;
        assert!(computed > 10 * (45 + 90), "{computed} positions: nothing was preempted");
        // One recomputed pass gives the same bits as many decodes, so even the log-probabilities are equal.
        assert_eq!(got, want);
    }
}

#[test]
fn sequences_swapped_to_the_host_and_back_give_the_same_bits() {
    let requests: Vec<Request> = (0..10).map(|i| request(i, 40 + i, greedy(90))).collect();
    let want = stories(&start("qwen3", config()), &requests);
    for steps_in_flight in [1, 3] {
        let tight = EngineConfig { kv_tokens: Some(420), max_model_len: Some(140), ..config() };
        let engine = start(
            "qwen3",
            EngineConfig { host_kv_tokens: 2000, steps_in_flight: Some(steps_in_flight), ..tight },
        );
        assert_eq!(stories(&engine, &requests), want);
        let computed = engine.counts().computed_tokens;
        let once: u64 = requests.iter().map(|r| r.prompt.len() as u64 + 89).sum();
        // A late end costs a row for each further step in flight; nothing is computed twice.
        assert!(
            computed <= once + 10 * steps_in_flight as u64,
            "{computed} positions computed, {once} needed"
        );
        assert!(engine.counts().moved_blocks > 0, "nothing was swapped");
    }
}

#[test]
fn a_beginning_that_others_still_use_stays_where_it_is_when_one_of_them_makes_way() {
    let begins_alike = |i: u32| {
        let prompt = (0..64).chain((0..10 + i).map(|j| i * 7 + j)).map(|x| 3 + x % 90).collect();
        Request { prompt, ..request(i, 1, greedy(60)) }
    };
    let requests: Vec<Request> = (0..10).map(begins_alike).collect();
    let want = stories(&start("qwen3", config()), &requests);
    let prefix_caching = PrefixCaching::On;
    let tight =
        EngineConfig { kv_tokens: Some(420), max_model_len: Some(160), prefix_caching, ..common::poisoned() };
    let engine = start("qwen3", EngineConfig { host_kv_tokens: 2000, ..tight });
    assert_eq!(stories(&engine, &requests), want);
    let counts = engine.counts();
    assert!(counts.moved_blocks > 0 && counts.cached_tokens > 0, "{counts:?}");
}

#[test]
fn a_seed_gives_the_same_tokens_in_any_company() {
    let warm =
        SamplingParams { temperature: 1.3, top_k: Some(40), top_p: 0.95, seed: Some(11), ..greedy(24) };
    let engine = start("qwen3", config());
    let one = request(3, 20, warm.clone());
    let want = alone(&engine, &one);
    let mut requests = some_requests(20);
    requests.push(one.clone());
    requests.extend(some_requests(20));
    assert_eq!(stories(&engine, &requests)[20], want);
    let other = Request { params: SamplingParams { seed: Some(12), ..warm }, ..one };
    assert_ne!(alone(&engine, &other), want, "another seed gives another text");
}

#[test]
fn prompt_scores_do_not_depend_on_chunks_or_company() {
    let scored = SamplingParams { prompt_logprobs: Some(0), ..greedy(3) };
    let one = request(9, 100, scored);
    let want = alone(&start("llama-gqa-tied", config()), &one);
    assert_eq!(want.len(), 99 + 3);
    assert_eq!(want.iter().take(99).map(|(p, ..)| *p).collect::<Vec<_>>(), (1..100).collect::<Vec<_>>());
    let small = EngineConfig { max_num_batched_tokens: 23, max_num_seqs: 4, ..config() };
    let engine = start("llama-gqa-tied", EngineConfig { prefix_caching: PrefixCaching::On, ..small });
    // One by one, and many at a time though there is one sequence.
    for scores_prompts in [false, true] {
        let alone_there = EngineConfig { scores_prompts, max_num_seqs: 1, ..config() };
        assert_eq!(alone(&start("llama-gqa-tied", alone_there), &one), want);
    }
    // Steps in which nothing is drawn score their part of the prompt too.
    assert_eq!(alone(&engine, &one), want);
    let mut requests = some_requests(5);
    requests.insert(2, one);
    assert_eq!(stories(&engine, &requests)[2], want);
}

#[test]
fn a_preempted_prompt_is_scored_once() {
    let scored = SamplingParams { prompt_logprobs: Some(0), ..greedy(90) };
    let requests: Vec<Request> = (0..10).map(|i| request(i, 40 + i, scored.clone())).collect();
    let want = stories(&start("llama-gqa-tied", config()), &requests);
    // Prompts are preempted whole, and in their middle.
    for max_num_batched_tokens in [64, 13] {
        let tight = EngineConfig { kv_tokens: Some(420), max_model_len: Some(140), ..config() };
        let engine =
            start("llama-gqa-tied", EngineConfig { max_num_batched_tokens, max_num_seqs: 10, ..tight });
        assert_eq!(stories(&engine, &requests), want);
        let computed = engine.counts().computed_tokens;
        assert!(computed > 10 * (45 + 90), "{computed} positions: nothing was preempted");
    }
}

#[test]
fn a_dropped_ticket_frees_its_blocks() {
    // Room for one full sequence: the second can only run when the first is gone.
    let engine =
        start("llama-gqa-tied", EngineConfig { kv_tokens: Some(250), max_model_len: Some(250), ..config() });
    let endless = engine.submit(request(1, 30, greedy(200))).unwrap();
    assert!(matches!(endless.events.recv(), Ok(Event::Began(_))));
    assert!(matches!(endless.events.recv(), Ok(Event::Token(_))));
    drop(endless);
    assert_eq!(alone(&engine, &request(2, 60, greedy(180))).len(), 180);
}

#[test]
fn what_cannot_be_served_is_refused_by_name() {
    let engine = start("llama-gqa-tied", config());
    let long = engine.submit(request(1, 256, greedy(1))).map(|_| ());
    assert!(matches!(long, Err(Failure::TooLong { prompt: 256, max: 256, .. })));
    let unknown = Request { prompt: vec![1, 70_000], ..request(1, 4, greedy(1)) };
    assert!(matches!(engine.submit(unknown).map(|_| ()), Err(Failure::UnknownToken { token: 70_000, .. })));
    let empty = engine.submit(Request { prompt: vec![], ..request(1, 4, greedy(1)) }).unwrap();
    assert!(matches!(empty.events.recv(), Ok(Event::Failed(Failure::Refused(_)))));
}

#[test]
fn a_sequence_ends_where_its_room_ends() {
    let engine = start("llama-gqa-tied", EngineConfig { max_model_len: Some(64), ..config() });
    let ticket = engine.submit(request(1, 60, SamplingParams { max_tokens: None, ..greedy(1) })).unwrap();
    let events: Vec<Event> = ticket.events.iter().take(6).collect();
    assert!(matches!(events[5], Event::Finished(Finish::Length)), "{events:?}");
}

#[test]
fn a_recorded_run_replays_step_for_step() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("run.jsonl");
    let engine = start(
        "qwen2",
        EngineConfig {
            record: Some(path.clone()),
            prefix_caching: PrefixCaching::On,
            steps_in_flight: Some(2),
            kv_tokens: Some(1000),
            ..config()
        },
    );
    stories(&engine, &some_requests(30));
    let log = || std::fs::read_to_string(&path).unwrap();
    assert!(sim::replay(log().as_bytes()).unwrap().requests == 30, "there are whole lines at any time");
    drop(engine.submit(request(1, 30, greedy(100))).unwrap());
    drop(engine);
    let log = log();
    let replayed = sim::replay(log.as_bytes()).unwrap();
    assert!(replayed.requests == 31 && replayed.steps > 30, "{replayed:?}");
    assert_eq!((replayed.unfinished, replayed.in_flight), (0, 0), "{replayed:?}");
    // A run that another scheduler would have answered otherwise does not replay.
    let tampered = log.replacen("\"max_num_seqs\":64", "\"max_num_seqs\":2", 1);
    assert_ne!(tampered, log);
    assert!(sim::replay(tampered.as_bytes()).is_err());
}

#[test]
fn a_model_that_does_not_fit_is_refused_before_it_is_loaded() {
    let checkpoint = checkpoint("llama-gqa-tied");
    let tiny = EngineConfig { memory: 1 << 20, ..config() };
    let text = Planned::new(&checkpoint, tiny).map(|_| ()).unwrap_err().to_string();
    assert!(text.contains("--memory") && text.contains("weights"), "{text}");
}
