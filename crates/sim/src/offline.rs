//! A file of requests worked through in virtual time by the scheduler, the plan and the costs of a real engine: what a
//! plan comes to, before anything is loaded.

use crate::metrics::{End, Metrics};
use crate::workload::Job;
use crate::world::{Accesses, Limit, Truth, VirtualWorld};
use policy::cost::Cost;
use policy::drive::{Failure, Lowering, drive};
use policy::pipeline::{Pauses, Plan};
use policy::sched::{Fcfs, FcfsConfig};
use spec::{Lane, Nanos, Op};

/// What the run came to.
#[derive(Clone, Debug, PartialEq)]
pub struct Offline {
    /// From the first request to the last token.
    pub seconds: f64,
    /// Until every request had its first token.
    pub first_token_s: f64,
    /// Time of a request from its first step to its last token, on average.
    pub latency_s: f64,
    /// The longest that one takes.
    pub latency_max_s: f64,
    /// Tokens generated.
    pub generated: u64,
    /// Steps.
    pub steps: u64,
    /// Time that each lane worked, seconds, by [`Lane::index`].
    pub busy: [f64; Lane::COUNT],
    /// Time of each kind of op, seconds, by [`Op::kind`].
    pub ops: [f64; Op::KINDS.len()],
    /// Requests that were refused.
    pub refused: usize,
    /// Requests that were run: all, unless this is a [stretched](Offline::stretched) run.
    pub rehearsed: usize,
}

impl Offline {
    /// Runs all jobs.
    ///
    /// # Errors
    /// When a step does not fit the plan.
    pub fn run<C: Cost + Clone + 'static>(
        jobs: &[Job],
        scheduler: FcfsConfig,
        plan: &Plan,
        cost: &C,
        pauses: impl Into<Pauses>,
    ) -> Result<Offline, Failure> {
        let run = Offline::run_within(None, jobs, scheduler, plan, cost, pauses)?;
        Ok(run.expect("nothing ends a run without a limit"))
    }

    /// The same; nothing as soon as a limit cannot be kept.
    ///
    /// # Errors
    /// When a step does not fit the plan.
    pub fn run_within<C: Cost + Clone + 'static>(
        limit: Option<Limit>,
        jobs: &[Job],
        scheduler: FcfsConfig,
        plan: &Plan,
        cost: &C,
        pauses: impl Into<Pauses>,
    ) -> Result<Option<Offline>, Failure> {
        let truth = Truth { cost: Box::new(cost.clone()), pauses: pauses.into() };
        let mut world = VirtualWorld::new(truth, Accesses::Trusted);
        world.expect(jobs);
        limit.into_iter().for_each(|limit| world.limit(limit));
        drive(&mut world, &mut Fcfs::new(scheduler), &Lowering { plan, cost })?;
        Ok((!world.is_late()).then(|| Offline::of(world.metrics())))
    }

    fn of(metrics: &Metrics) -> Offline {
        let requests = || metrics.requests.values();
        let latest = |times: &mut dyn Iterator<Item = Option<Nanos>>| {
            times.flatten().max().map_or(0.0, Nanos::as_secs)
        };
        let lives: Vec<f64> =
            requests().filter_map(|tally| Some((tally.newest? - tally.began?).as_secs())).collect();
        Offline {
            seconds: latest(&mut requests().map(|tally| tally.newest)),
            first_token_s: latest(&mut requests().map(|tally| tally.first)),
            latency_s: lives.iter().sum::<f64>() / lives.len().max(1) as f64,
            latency_max_s: lives.iter().copied().fold(0.0, f64::max),
            generated: requests().map(|tally| u64::from(tally.generated.0)).sum(),
            steps: metrics.steps,
            busy: metrics.busy.map(Nanos::as_secs),
            ops: metrics.ops.map(Nanos::as_secs),
            refused: requests().filter(|tally| matches!(tally.end, End::Refused(_))).count(),
            rehearsed: metrics.requests.len(),
        }
    }

    /// A run of so many requests, all alike, by two of fewer: the middle of it is as what the longer of them has more than the shorter,
    /// again and again.
    #[must_use]
    pub fn stretched(short: &Offline, long: &Offline, requests: usize) -> Offline {
        let more = (requests - long.rehearsed) as f64 / (long.rehearsed - short.rehearsed) as f64;
        let of = |short: f64, long: f64| long + more * (long - short);
        let count = |short: u64, long: u64| of(short as f64, long as f64).round() as u64;
        let lives = |run: &Offline| run.latency_s * run.rehearsed as f64;
        Offline {
            seconds: of(short.seconds, long.seconds),
            first_token_s: of(short.first_token_s, long.first_token_s),
            latency_s: of(lives(short), lives(long)) / requests as f64,
            generated: count(short.generated, long.generated),
            steps: count(short.steps, long.steps),
            busy: std::array::from_fn(|lane| of(short.busy[lane], long.busy[lane])),
            ops: std::array::from_fn(|kind| of(short.ops[kind], long.ops[kind])),
            refused: count(short.refused as u64, long.refused as u64) as usize,
            ..long.clone()
        }
    }

    /// Tokens generated over all of the time.
    pub fn tokens_per_s(&self) -> f64 {
        if self.seconds > 0.0 { self.generated as f64 / self.seconds } else { 0.0 }
    }

    /// The lane that worked longest.
    pub fn busiest(&self) -> Lane {
        let longest = |a: &&Lane, b: &&Lane| self.busy[a.index()].total_cmp(&self.busy[b.index()]);
        *Lane::ALL.iter().max_by(longest).expect("there are lanes")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use spec::{ByTier, Shape, Tokens};

    /// One nanosecond for every op of every layer.
    fn op(_: &Op, _: &Shape) -> Nanos {
        Nanos(1)
    }

    #[test]
    fn every_request_is_worked_through_and_every_lane_is_counted() {
        let job = Job { arrival: Nanos::ZERO, prompt: Tokens(4), output: Tokens(3) };
        let scheduler = FcfsConfig {
            max_num_seqs: 2,
            blocks: ByTier { device: 8, host: 0, disk: 0 },
            ..FcfsConfig::default()
        };
        let plan = Plan::resident(1, 2048);
        let run = Offline::run(&[job; 4], scheduler, &plan, &(op as fn(&Op, &Shape) -> Nanos), Nanos(10))
            .expect("it fits");
        // Two at a time, three tokens each: six steps of embed, QKV, attention, out, MLP, head, sample.
        assert_eq!((run.generated, run.steps, run.refused), (12, 6, 0));
        assert!((run.seconds - 6.0 * 17e-9).abs() < 1e-15, "{}", run.seconds);
        assert_eq!(run.busiest(), Lane::Device);
        assert!((run.busy[Lane::Device.index()] - 42e-9).abs() < 1e-15);
        assert_eq!(
            run.ops[..8].iter().map(|s| (s * 1e9).round()).collect::<Vec<_>>(),
            [6.0, 6.0, 6.0, 6.0, 6.0, 6.0, 6.0, 0.0]
        );
    }

    #[test]
    fn the_middle_of_a_long_run_is_the_same_again_and_again() {
        let job = Job { arrival: Nanos::ZERO, prompt: Tokens(4), output: Tokens(3) };
        let blocks = ByTier { device: 8, host: 0, disk: 0 };
        let scheduler = FcfsConfig { max_num_seqs: 2, blocks, ..FcfsConfig::default() };
        let (plan, cost) = (Plan::resident(1, 2048), op as fn(&Op, &Shape) -> Nanos);
        // One is left for a last step of its own.
        let [short, long, whole] = [5, 9, 41].map(|requests| {
            Offline::run(&vec![job; requests], scheduler.clone(), &plan, &cost, Nanos(10)).expect("it fits")
        });
        let stretched = Offline::stretched(&short, &long, 41);
        let near = |a: f64, b: f64| (a / b - 1.0).abs() < 1e-9;
        assert!(near(stretched.seconds, whole.seconds) && near(stretched.latency_s, whole.latency_s));
        assert!(near(stretched.first_token_s, whole.first_token_s));
        assert!(near(stretched.busy[Lane::Device.index()], whole.busy[Lane::Device.index()]));
        assert_eq!(
            (stretched.generated, stretched.steps, stretched.refused, stretched.rehearsed),
            (whole.generated, whole.steps, 0, 9)
        );
        assert_eq!(stretched.latency_max_s, whole.latency_max_s);
    }

    #[test]
    fn a_run_that_cannot_be_done_in_time_is_left_and_no_other() {
        let job = Job { arrival: Nanos::ZERO, prompt: Tokens(4), output: Tokens(3) };
        let blocks = ByTier { device: 8, host: 0, disk: 0 };
        let scheduler = FcfsConfig { max_num_seqs: 2, blocks, ..FcfsConfig::default() };
        let (plan, cost) = (Plan::resident(1, 2048), op as fn(&Op, &Shape) -> Nanos);
        let jobs = [job; 4];
        let run = |limit| {
            Offline::run_within(limit, &jobs, scheduler.clone(), &plan, &cost, Nanos(10)).expect("it fits")
        };
        let whole = run(None).expect("there is no limit");
        // Six positions of each request; those of a step take seven nanoseconds together at the least.
        for position_s in [0.0, 7e-9 / 8.0] {
            let within = |times: f64| run(Some(Limit { seconds: times * whole.seconds, position_s }));
            assert_eq!(within(1.0 + 1e-9), Some(whole.clone()));
            assert_eq!(within(1.0 - 1e-3), None);
        }
    }

    #[test]
    fn the_longest_that_a_request_takes_is_told_beside_the_mean() {
        let job = |output| Job { arrival: Nanos::ZERO, prompt: Tokens(4), output: Tokens(output) };
        let blocks = ByTier { device: 8, host: 0, disk: 0 };
        let scheduler = FcfsConfig { max_num_seqs: 2, blocks, ..FcfsConfig::default() };
        let (plan, cost) = (Plan::resident(1, 2048), op as fn(&Op, &Shape) -> Nanos);
        let run = Offline::run(&[job(3), job(7)], scheduler, &plan, &cost, Nanos(10)).expect("it fits");
        let ns = |seconds: f64| (seconds * 1e9).round();
        assert_eq!((ns(run.latency_max_s), ns(run.latency_s)), (7.0 * 17.0, 5.0 * 17.0));
    }
}
