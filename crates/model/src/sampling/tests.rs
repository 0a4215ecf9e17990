//! The sampler against plain sorting, its rules one by one, and what it must refuse.

use super::row::exp;
use super::sampler::truncate;
use super::*;
use crate::config::parse_generation;
use kernels::pick::Change;

const VOCAB: Limits = Limits { vocab_size: 100, max_logprobs: MAX_LOGPROBS };

/// A row of logits like a model's: many small, a few large, some equal.
fn row(seed: u64, n: usize) -> Vec<f32> {
    let draws = Draws::new(seed);
    (0..n as u64)
        .map(|i| {
            let u = draws.uniform(i) as f32;
            let spread = if u > 0.99 { 12.0 } else { 4.0 };
            ((u * 977.0).fract() * spread * 16.0).round() / 16.0
        })
        .collect()
}

fn params(change: impl Fn(&mut Overrides)) -> SamplingParams {
    let mut o = Overrides::default();
    change(&mut o);
    SamplingParams::resolve(&o, &GenerationConfig::default(), VOCAB).unwrap()
}

fn sampler(params: SamplingParams) -> Sampler {
    Sampler::new(params, &[3, 4], &[2], 9)
}

fn tokens(params: &SamplingParams, logits: &[f32], n: usize) -> Vec<u32> {
    let mut sampler = sampler(params.clone());
    (0..n).map(|_| sampler.sample(logits).unwrap().token).collect()
}

/// The tokens that truncation admits, by sorting everything.
fn admitted(p: &SamplingParams, logits: &[f32]) -> Vec<u32> {
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let mut all: Vec<(f64, u32)> = logits
        .iter()
        .zip(0..)
        .map(|(&x, id)| (f64::from((x - max) / p.temperature).exp(), id))
        .filter(|&(w, _)| w >= f64::from(p.min_p))
        .collect();
    all.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
    all.truncate(p.top_k.map_or(usize::MAX, |k| k as usize));
    let wanted = f64::from(p.top_p) * all.iter().map(|a| a.0).sum::<f64>();
    let mut mass = 0.0;
    let fewest = all.iter().position(|a| {
        mass += a.0;
        mass >= wanted * (1.0 - 1e-9)
    });
    all.truncate(fewest.map_or(usize::MAX, |i| i + 1));
    let mut ids: Vec<u32> = all.into_iter().map(|a| a.1).collect();
    ids.sort_unstable();
    ids
}

#[test]
fn exp_is_accurate() {
    for i in 0..100_000 {
        let x = -(i as f32) * 8.7e-4;
        let exact = f64::from(x).exp();
        assert!((f64::from(exp(x)) / exact - 1.0).abs() < 2.5e-7, "{x}");
    }
    assert_eq!([exp(0.0), exp(-88.0), exp(f32::NEG_INFINITY)], [1.0, 0.0, 0.0]);
}

#[test]
fn argmax_takes_the_first_of_equals_wherever_it_is() {
    for n in [1, 15, 16, 17, 1023, 1024, 1025, 49_152, 50_001] {
        for at in [0, n / 3, n - 1] {
            let mut logits = vec![-5.0; n];
            logits[at] = 1.5;
            logits[n - 1] = 1.5;
            assert_eq!(argmax(&logits), Ok((at as u32, 1.5)));
        }
    }
}

#[test]
fn damaged_logits_are_an_error_wherever_they_are() {
    for bad in [f32::NAN, -f32::NAN, f32::INFINITY] {
        for at in [0, 16, 1023, 1024, 2000, 2002] {
            let mut logits = row(1, 2003);
            logits[at] = bad;
            assert_eq!(argmax(&logits), Err(SampleError::NotFinite), "{bad} at {at}");
            let masked = params(|o| o.allowed_token_ids = Some(vec![5]));
            assert_eq!(sampler(masked).sample(&logits), Err(SampleError::NotFinite));
        }
    }
    assert_eq!(argmax(&[f32::NEG_INFINITY; 40]), Err(SampleError::NothingAllowed));
}

#[test]
fn truncation_agrees_with_sorting() {
    let cases: [(i64, f32, f32, f32); 10] = [
        (0, 1.0, 0.05, 1.0),
        (1, 1.0, 0.0, 1.0),
        (7, 1.0, 0.0, 0.5),
        (50, 0.9, 0.0, 0.7),
        (0, 0.1, 0.0, 1.0),
        (0, 0.9, 0.0, 1.3),
        (0, 0.9999, 0.0, 5.0),
        (0, 0.5, 0.3, 1.0),
        (40, 0.8, 0.1, 2.0),
        (90_000, 0.7, 0.0, 1.0),
    ];
    for (seed, (k, top_p, min_p, temperature)) in (0..).zip(cases) {
        let p = params(|o| {
            (o.top_k, o.top_p, o.min_p, o.temperature) =
                (Some(k), Some(top_p), Some(min_p), Some(temperature));
        });
        let logits = row(seed, 3000);
        let allowed = admitted(&p, &logits);
        let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let mut kept = Vec::new();
        truncate(&p, &logits, max, 1.0 / p.temperature, &mut kept);
        let mut kept: Vec<u32> = kept.into_iter().map(|(_, id)| id).collect();
        kept.sort_unstable();
        assert_eq!(kept, allowed, "{k} {top_p} {min_p} {temperature}");
        let drawn = tokens(&p, &logits, 20);
        assert!(drawn.iter().all(|id| allowed.contains(id)));
    }
}

#[test]
fn draws_follow_the_distribution() {
    let logits = [0.0f32, 1.0, 2.0, -1.0, 0.5];
    let total: f64 = logits.iter().map(|&x| f64::from(x).exp()).sum();
    let n = 10_000;
    for p in [params(|_| ()), params(|o| o.top_k = Some(5)), params(|o| o.min_p = Some(1e-3))] {
        let p = SamplingParams { top_k: p.top_k.map(|_| 4), ..p };
        let drawn = tokens(&p, &logits, n);
        let kept: f64 = if p.top_k.is_some() { total - f64::from(-1.0f32).exp() } else { total };
        for (id, &x) in logits.iter().enumerate().filter(|&(id, _)| p.top_k.is_none() || id != 3) {
            let expected = f64::from(x).exp() / kept;
            let share = drawn.iter().filter(|&&t| t == id as u32).count() as f64 / n as f64;
            let sigma = (expected * (1.0 - expected) / n as f64).sqrt();
            assert!((share - expected).abs() < 5.0 * sigma, "{id}: {share} {expected}");
        }
    }
}

#[test]
fn a_token_depends_on_seed_and_position_only() {
    let logits = row(3, 5000);
    let p = params(|o| o.seed = Some(-7));
    let whole = tokens(&p, &logits, 20);
    assert_eq!(whole, tokens(&p, &logits, 20));
    assert_ne!(whole, tokens(&params(|o| o.seed = Some(8)), &logits, 20));
    let mut resumed = Sampler::new(p, &[], &[], 0);
    whole[..10].iter().for_each(|&t| resumed.accept(t));
    assert_eq!(resumed.sample(&logits).unwrap().token, whole[10]);
}

#[test]
fn bias_allowed_and_minimum_length_mask() {
    let logits = [0.0, 1.0, 9.0, 2.0, 3.0];
    let greedy = |change: &dyn Fn(&mut Overrides)| {
        let p = params(|o| {
            o.temperature = Some(0.0);
            change(o);
        });
        tokens(&p, &logits, 3)
    };
    assert_eq!(greedy(&|_| ()), [2, 2, 2]);
    assert_eq!(greedy(&|o| o.logit_bias = Some(vec![(1, 20.0)])), [1, 1, 1]);
    assert_eq!(greedy(&|o| o.allowed_token_ids = Some(vec![0, 3, 99])), [3, 3, 3]);
    assert_eq!(greedy(&|o| o.min_tokens = Some(2)), [4, 4, 2], "eos is 2");
    let more = |o: &mut Overrides| (o.min_tokens, o.stop_token_ids) = (Some(1), Some(vec![4]));
    assert_eq!(greedy(&more), [3, 2, 2]);
    let none = params(|o| (o.min_tokens, o.allowed_token_ids) = (Some(1), Some(vec![2])));
    assert_eq!(sampler(none).sample(&logits), Err(SampleError::NothingAllowed));
}

#[test]
fn penalties_count_prompt_and_output_as_vllm_does() {
    let logits = [1.0, 2.0, 2.5, 4.0, -1.0];
    let greedy = |change: &dyn Fn(&mut Overrides)| {
        let p = params(|o| {
            o.temperature = Some(0.0);
            change(o);
        });
        tokens(&p, &logits, 4)
    };
    // The prompt holds 3 and 4: 4.0 / 2 = 2.0, below 2.5; then 2.5 / 2 = 1.25.
    assert_eq!(greedy(&|o| o.repetition_penalty = Some(2.0)), [2, 1, 3, 3]);
    // A quotient that no f32 holds is the largest one.
    assert_eq!(greedy(&|o| o.repetition_penalty = Some(2e-39)), [3, 3, 3, 3]);
    // Presence and frequency count the output only.
    assert_eq!(greedy(&|o| o.presence_penalty = Some(2.0)), [3, 2, 1, 3]);
    assert_eq!(greedy(&|o| o.frequency_penalty = Some(1.0)), [3, 3, 2, 1]);
}

#[test]
fn logprobs_are_of_the_raw_logits() {
    let logits = [0.0f32, 1.0, 2.0, 2.0, -3.0];
    let total: f64 = logits.iter().map(|&x| f64::from(x).exp()).sum();
    let lp = |x: f32| (f64::from(x) - total.ln()) as f32;
    let p = params(|o| {
        (o.temperature, o.logprobs, o.logit_bias) = (Some(0.0), Some(3), Some(vec![(0, 50.0)]));
    });
    let sampled = sampler(p).sample(&logits).unwrap();
    let got = sampled.logprobs.unwrap();
    assert_eq!((sampled.token, got.token, got.rank), (0, 0, 4));
    let close = |a: f32, b: f32| (a - b).abs() < 1e-6;
    assert!(close(got.logprob, lp(0.0)));
    assert_eq!(got.top.iter().map(|t| t.0).collect::<Vec<_>>(), [2, 3, 1]);
    assert!(got.top.iter().zip([2.0, 2.0, 1.0]).all(|(t, x)| close(t.1, lp(x))));
}

#[test]
fn best_tokens_agree_with_sorting() {
    let logits = row(11, 10_000);
    let mut sorted: Vec<(f32, u32)> = logits.iter().copied().zip(0..).collect();
    sorted.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
    let got = logprobs_of(&logits, 17, 20).unwrap();
    assert_eq!(
        got.top.iter().map(|t| t.0).collect::<Vec<_>>(),
        sorted[..20].iter().map(|s| s.1).collect::<Vec<_>>()
    );
    assert_eq!(logprobs_of(&logits, 17, 0).unwrap().top, []);
}

#[test]
fn requests_win_over_published_defaults() {
    let json = r#"{"temperature":0.6,"top_p":0.9,"top_k":0,"max_new_tokens":7,"eos_token_id":[2,5],"do_sample":true}"#;
    let published = parse_generation(json, "generation_config.json").unwrap();
    assert_eq!(published.eos.as_deref(), Some(&[2, 5][..]));
    let request = Overrides { top_p: Some(0.5), ..Overrides::default() };
    let p = SamplingParams::resolve(&request, &published, VOCAB).unwrap();
    assert_eq!((p.temperature, p.top_p, p.top_k, p.max_tokens), (0.6, 0.5, None, Some(7)));
    assert_eq!(p.presence_penalty, 0.0);
}

#[test]
fn every_range_is_checked_and_named() {
    let refused = |change: &dyn Fn(&mut Overrides)| {
        let mut o = Overrides::default();
        change(&mut o);
        SamplingParams::resolve(&o, &GenerationConfig::default(), VOCAB).unwrap_err().param
    };
    assert_eq!(refused(&|o| o.temperature = Some(-0.1)), "temperature");
    assert_eq!(refused(&|o| o.temperature = Some(f32::NAN)), "temperature");
    assert_eq!(refused(&|o| o.temperature = Some(f32::INFINITY)), "temperature");
    assert_eq!(refused(&|o| o.top_p = Some(0.0)), "top_p");
    assert_eq!(refused(&|o| o.top_p = Some(1.1)), "top_p");
    assert_eq!(refused(&|o| o.top_k = Some(-2)), "top_k");
    assert_eq!(refused(&|o| o.top_k = Some(1 << 40)), "top_k");
    assert_eq!(refused(&|o| o.min_p = Some(1.5)), "min_p");
    assert_eq!(refused(&|o| o.repetition_penalty = Some(0.0)), "repetition_penalty");
    assert_eq!(refused(&|o| o.presence_penalty = Some(2.5)), "presence_penalty");
    assert_eq!(refused(&|o| o.frequency_penalty = Some(-2.5)), "frequency_penalty");
    assert_eq!(refused(&|o| o.logit_bias = Some(vec![(100, 1.0)])), "logit_bias");
    assert_eq!(refused(&|o| o.logit_bias = Some(vec![(1, f32::NAN)])), "logit_bias");
    assert_eq!(refused(&|o| o.allowed_token_ids = Some(vec![])), "allowed_token_ids");
    assert_eq!(refused(&|o| o.allowed_token_ids = Some(vec![100])), "allowed_token_ids");
    assert_eq!(refused(&|o| o.stop_token_ids = Some(vec![100])), "stop_token_ids");
    assert_eq!(refused(&|o| o.stop = Some(vec![String::new()])), "stop");
    assert_eq!(refused(&|o| o.stop = Some(vec!["x".into(); MAX_STOPS + 1])), "stop");
    // Evaluations of code ask for more than OpenAI's four.
    assert_eq!(params(|o| o.stop = Some(vec!["x".into(); 12])).stop.len(), 12);
    assert_eq!(refused(&|o| o.logprobs = Some(21)), "logprobs");
    assert_eq!(refused(&|o| o.prompt_logprobs = Some(21)), "prompt_logprobs");
    assert_eq!(refused(&|o| (o.min_tokens, o.max_tokens) = (Some(3), Some(2))), "min_tokens");
}

#[test]
fn lists_have_an_end_and_are_shared() {
    let refused = |change: &dyn Fn(&mut Overrides)| {
        let mut o = Overrides::default();
        change(&mut o);
        SamplingParams::resolve(&o, &GenerationConfig::default(), VOCAB).map_err(|error| error.param)
    };
    let ids = |n: usize| (0..n).map(|i| i as u32 % 100).collect::<Vec<u32>>();
    let bias = |n: usize| ids(n).into_iter().map(|id| (id, 1.0)).collect::<Vec<_>>();
    assert_eq!(refused(&|o| o.stop_token_ids = Some(ids(MAX_STOP_IDS + 1))).err(), Some("stop_token_ids"));
    assert_eq!(refused(&|o| o.allowed_token_ids = Some(ids(101))).err(), Some("allowed_token_ids"));
    assert_eq!(refused(&|o| o.logit_bias = Some(bias(101))).err(), Some("logit_bias"));
    let params = refused(&|o| {
        (o.stop_token_ids, o.stop) = (Some(ids(MAX_STOP_IDS)), Some(vec!["x".into(); MAX_STOPS]));
        (o.allowed_token_ids, o.logit_bias) = (Some(ids(100)), Some(bias(100)));
    });
    let params = params.unwrap();
    let other = params.clone();
    assert!(std::sync::Arc::ptr_eq(&params.stop_token_ids, &other.stop_token_ids));
    assert!(std::sync::Arc::ptr_eq(&params.logit_bias, &other.logit_bias));
    assert!(std::sync::Arc::ptr_eq(&params.stop, &other.stop));
    let [one, two] = [&params, &other].map(|params| params.allowed_token_ids.as_ref().unwrap().as_ptr());
    assert_eq!(one, two);
}

#[test]
fn bad_words_never_come_whole() {
    let logits = [0.0, 5.0, 4.0, 3.0, 2.0];
    let words = |words: &[&[u32]]| SamplingParams {
        bad_words: words.iter().map(|word| word.to_vec()).collect(),
        ..SamplingParams::greedy()
    };
    let tokens = |params: SamplingParams| {
        let mut sampler = sampler(params);
        let sample = |_| {
            let picked = sampler.for_device(0).unwrap().edits;
            let token = sampler.sample(&logits).unwrap().token;
            // A device is told the same.
            assert!(!picked.iter().any(|edit| edit.id == token && edit.change == Change::Mask), "{picked:?}");
            token
        };
        (0..5).map(sample).collect::<Vec<u32>>()
    };
    assert_eq!(tokens(words(&[&[1]])), [2; 5]);
    assert_eq!(tokens(words(&[&[1, 1]])), [1, 2, 1, 2, 1]);
    assert_eq!(tokens(words(&[&[1, 1], &[1, 2], &[3, 1, 3]])), [1, 3, 1, 4, 1]);
    let mut resumed = sampler(words(&[&[1, 1, 1]]));
    assert!(!resumed.takes_blindly());
    [1, 1].into_iter().for_each(|token| resumed.accept(token));
    assert_eq!(resumed.sample(&logits).unwrap().token, 2, "what came before counts, whoever took it");
}
