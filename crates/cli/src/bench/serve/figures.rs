//! What a run came to, as `vllm bench serve` counts it.

use super::client::Answer;
use crate::args::{Limit, Time};

/// Figures of a run; times in seconds.
pub(super) struct Figures {
    pub(super) duration: f64,
    pub(super) completed: usize,
    pub(super) failed: usize,
    pub(super) input_tokens: usize,
    pub(super) output_tokens: usize,
    /// Requests that kept to all limits.
    pub(super) good: usize,
    /// In the best whole second since the first request.
    pub(super) peak_tokens_per_s: usize,
    /// Most requests under way at once.
    pub(super) peak_requests: usize,
    ttft: Vec<f64>,
    tpot: Vec<f64>,
    itl: Vec<f64>,
    e2el: Vec<f64>,
}

impl Answer {
    /// Tokens generated: as the server counts them, or else the events that had some.
    pub(super) fn generated(&self) -> usize {
        match self.error {
            Some(_) => 0,
            None => self.output_tokens.filter(|n| *n > 0).unwrap_or(self.itl.len() + 1),
        }
    }

    /// Per token after the first; nothing where there are none.
    fn tpot(&self) -> Option<f64> {
        let after = self.generated().saturating_sub(1);
        (after > 0).then(|| (self.latency - self.ttft) / after as f64)
    }

    fn keeps(&self, limit: &Limit) -> bool {
        let took = match limit.time {
            Time::Ttft => self.ttft,
            Time::E2el => self.latency,
            Time::Tpot | Time::Itl => self.tpot().unwrap_or(0.0),
        };
        took * 1e3 <= limit.ms
    }
}

impl Figures {
    /// `input_lens`: tokens of the prompts where the server does not count them.
    pub(super) fn of(answers: &[Answer], input_lens: &[usize], duration: f64, goodput: &[Limit]) -> Figures {
        let fine = || answers.iter().filter(|answer| answer.error.is_none());
        let asked = answers.iter().zip(input_lens).filter(|(answer, _)| answer.error.is_none());
        Figures {
            duration,
            completed: fine().count(),
            failed: answers.len() - fine().count(),
            input_tokens: asked.map(|(answer, len)| answer.input_tokens.unwrap_or(*len)).sum(),
            output_tokens: fine().map(Answer::generated).sum(),
            good: fine().filter(|answer| goodput.iter().all(|limit| answer.keeps(limit))).count(),
            peak_tokens_per_s: peak_tokens(fine()),
            peak_requests: peak_requests(fine()),
            ttft: fine().map(|answer| answer.ttft).collect(),
            tpot: fine().filter_map(Answer::tpot).collect(),
            itl: fine().flat_map(|answer| answer.itl.iter().copied()).collect(),
            e2el: fine().map(|answer| answer.latency).collect(),
        }
    }

    /// All measured times of a kind.
    pub(super) fn times(&self, time: Time) -> &[f64] {
        match time {
            Time::Ttft => &self.ttft,
            Time::Tpot => &self.tpot,
            Time::Itl => &self.itl,
            Time::E2el => &self.e2el,
        }
    }

    /// So many over the whole duration.
    pub(super) fn per_s(&self, count: usize) -> f64 {
        count as f64 / self.duration
    }
}

fn peak_tokens<'a>(answers: impl Iterator<Item = &'a Answer> + Clone) -> usize {
    let begin = answers.clone().map(|answer| answer.start).fold(f64::INFINITY, f64::min);
    let mut seconds: Vec<usize> = Vec::new();
    for answer in answers {
        let mut at = answer.start - begin + answer.ttft;
        for gap in answer.itl.iter().chain([&0.0]) {
            let second = at as usize;
            seconds.resize(seconds.len().max(second + 1), 0);
            seconds[second] += 1;
            at += gap;
        }
    }
    seconds.into_iter().max().unwrap_or(0)
}

fn peak_requests<'a>(answers: impl Iterator<Item = &'a Answer>) -> usize {
    let mut changes: Vec<(f64, i64)> =
        answers.flat_map(|answer| [(answer.start, 1), (answer.start + answer.latency, -1)]).collect();
    // One that ends as another begins was not there with it.
    changes.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
    let (mut now, mut peak) = (0, 0);
    for (_, change) in changes {
        now += change;
        peak = peak.max(now);
    }
    peak as usize
}

/// Mean, deviation and percentiles of times, in milliseconds; zeros where there are none, as numpy gives them of [0].
pub(super) struct Spread {
    sorted: Vec<f64>,
}

impl Spread {
    pub(super) fn of(seconds: &[f64]) -> Spread {
        let mut sorted: Vec<f64> = seconds.iter().map(|s| s * 1e3).collect();
        if sorted.is_empty() {
            sorted.push(0.0);
        }
        sorted.sort_by(f64::total_cmp);
        Spread { sorted }
    }

    pub(super) fn mean(&self) -> f64 {
        self.sorted.iter().sum::<f64>() / self.sorted.len() as f64
    }

    /// Of the whole population.
    pub(super) fn std(&self) -> f64 {
        let mean = self.mean();
        (self.sorted.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / self.sorted.len() as f64).sqrt()
    }

    /// `p` from 0 to 100, linear between neighbours.
    pub(super) fn percentile(&self, p: f64) -> f64 {
        let at = p / 100.0 * (self.sorted.len() - 1) as f64;
        let (low, high) = (at.floor() as usize, at.ceil() as usize);
        self.sorted[low] + (self.sorted[high] - self.sorted[low]) * at.fract()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(start: f64, ttft: f64, itl: &[f64]) -> Answer {
        let latency = ttft + itl.iter().sum::<f64>();
        Answer { start, ttft, latency, itl: itl.to_vec(), ..Answer::default() }
    }

    #[test]
    fn figures_are_vllms() {
        let failed = Answer { error: Some("no".into()), ..answer(0.0, 9.0, &[9.0]) };
        let counted =
            Answer { output_tokens: Some(5), input_tokens: Some(7), ..answer(0.5, 0.5, &[0.5, 0.5]) };
        let answers = [answer(0.0, 0.25, &[0.25, 0.25, 0.25]), counted, failed];
        let goodput: Vec<Limit> =
            ["ttft:300", "tpot:251"].iter().map(|limit| limit.parse().unwrap()).collect();
        let figures = Figures::of(&answers, &[10, 10, 10], 2.0, &goodput);
        assert_eq!((figures.completed, figures.failed, figures.good), (2, 1, 1));
        assert_eq!((figures.input_tokens, figures.output_tokens), (17, 4 + 5));
        assert_eq!(figures.times(Time::Tpot), [0.25, 0.25]);
        assert_eq!(figures.times(Time::Itl).len(), 5);
        // Tokens at 0.25, 0.5, 0.75 | 1.0, 1.0, 1.5 | 2.0
        assert_eq!((figures.peak_tokens_per_s, figures.peak_requests), (3, 2));
        assert_eq!(figures.per_s(figures.completed), 1.0);
    }

    #[test]
    fn percentiles_are_numpys() {
        let spread = Spread::of(&[0.004, 0.001, 0.003, 0.002]);
        let at = |p| (spread.percentile(p) * 1e6).round() / 1e6;
        assert_eq!((at(0.0), at(50.0), at(90.0), at(100.0)), (1.0, 2.5, 3.7, 4.0));
        assert_eq!((spread.mean(), (spread.std() * 1e6).round()), (2.5, 1_118_034.0));
        assert_eq!(Spread::of(&[]).percentile(99.0), 0.0);
    }
}
