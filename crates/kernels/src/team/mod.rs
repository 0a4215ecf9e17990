//! A fixed team of threads that run one closure together, with a spinning barrier between its parts.
//!
//! A decode step is hundreds of kernels of some ten microseconds each, so handing work over must cost
//! well under one (a futex costs 50). Workers spin for a short while between jobs and park after it.
//! Where other processes take processors away, fewer take part (see [`crowd`]).

mod crowd;
mod denormals;
mod queued;
mod stretches;

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread::{self, JoinHandle, Thread, ThreadId};
use std::time::{Duration, Instant};

use self::crowd::Crowd;
use self::denormals::flush_denormals;
use self::queued::Queued;
pub(crate) use self::stretches::Stretches;

/// How many `spin_loop` hints a worker issues before it parks (roughly 200 microseconds).
const SPINS_BEFORE_PARK: u32 = 5_000;
/// How many hints a waiter issues before it yields its time slice, for machines with more threads than cores.
const SPINS_BEFORE_YIELD: u32 = 2_000;
/// Whether others crowd the processors is asked after so many jobs, and
const JOBS_A_LOOK: u32 = 64;
/// after so long: the system gives processors away for some milliseconds at a time.
const LOOK: Duration = Duration::from_millis(32);
/// Bits of an epoch's word that tell how many take part.
const COUNT_BITS: u32 = 16;

/// A thread's place in its team, given to the closure of [`Team::run`].
#[derive(Clone, Copy)]
pub struct Worker<'a> {
    /// This thread's number, from 0 (the caller of `run`).
    pub index: usize,
    /// How many threads run the closure.
    pub count: usize,
    barrier: &'a Barrier,
}

impl Worker<'_> {
    /// Waits until every worker of the team has come here. Panics if one of them panicked.
    pub fn barrier(&self) {
        self.barrier.wait(self.count);
    }

    /// Waits for something that another worker does. Panics if one of them panicked.
    pub fn wait_until(&self, done: impl FnMut() -> bool) {
        self.barrier.wait_until(done);
    }

    /// This worker's share of `n` items: contiguous, in order of index, sizes differing by at most one.
    pub fn share(&self, n: usize) -> std::ops::Range<usize> {
        let (each, more) = (n / self.count, n % self.count);
        let start = self.index * each + self.index.min(more);
        start..start + each + usize::from(self.index < more)
    }
}

/// Threads that run kernels. The caller of [`run`](Team::run) is worker 0; `size - 1` others are kept.
pub struct Team {
    shared: Arc<Shared>,
    helpers: Vec<Helper>,
    /// How many take part in a job: fewer than there are while others crowd the processors.
    threads: AtomicUsize,
    /// One job at a time, whoever calls.
    running: Mutex<Option<Watch>>,
}

struct Helper {
    thread: Thread,
    handle: Option<JoinHandle<()>>,
    queued: Arc<OnceLock<Queued>>,
}

/// What is seen of the processors' other users.
struct Watch {
    crowd: Crowd,
    start: Instant,
    jobs: u32,
    /// When it was looked last, and how long each thread had waited for a processor.
    last: Option<(Duration, Vec<Duration>)>,
    /// Who called, and its count.
    caller: Option<(ThreadId, Queued)>,
}

type Job<'a> = dyn Fn(Worker<'_>) + Sync + 'a;

struct Shared {
    /// A word that changes with each job: its number, and how many workers take part. One of them that sees a new word
    /// runs `job`; to the others it is nothing.
    epoch: AtomicUsize,
    /// Points at a `&Job` on the caller's stack while a job runs.
    job: AtomicPtr<&'static Job<'static>>,
    left: AtomicUsize,
    parked: Vec<AtomicBool>,
    stop: AtomicBool,
    panicked: Mutex<Option<Box<dyn std::any::Any + Send>>>,
    barrier: Barrier,
}

impl Team {
    /// A team of `threads` (at least one), the caller's own thread counted, of which all take part in every job.
    ///
    /// # Panics
    /// If the system gives no more threads; [`Team::fixed`] says so instead.
    pub fn new(threads: usize) -> Team {
        Team::fixed(threads).expect("the system gives threads")
    }

    /// The same.
    ///
    /// # Errors
    /// If the system gives no more threads; those that were given end.
    pub fn fixed(threads: usize) -> io::Result<Team> {
        Team::watched(threads, |_| None)
    }

    /// A team of `threads` (at least one), the caller's own thread counted, of which fewer take part while other
    /// processes crowd the processors.
    ///
    /// # Errors
    /// As [`fixed`](Team::fixed).
    pub fn start(threads: usize) -> io::Result<Team> {
        Team::watched(threads, |count| Some(Watch::new(count)))
    }

    fn watched(threads: usize, watch: impl Fn(usize) -> Option<Watch>) -> io::Result<Team> {
        let count = threads.clamp(1, (1 << COUNT_BITS) - 1);
        let shared = Arc::new(Shared {
            epoch: AtomicUsize::new(0),
            job: AtomicPtr::new(std::ptr::null_mut()),
            left: AtomicUsize::new(0),
            parked: (0..count).map(|_| AtomicBool::new(false)).collect(),
            stop: AtomicBool::new(false),
            panicked: Mutex::new(None),
            barrier: Barrier::default(),
        });
        let running = Mutex::new(watch(count));
        let mut team = Team { shared, helpers: Vec::new(), threads: AtomicUsize::new(count), running };
        for index in 1..count {
            team.helpers.push(Helper::spawn(index, Arc::clone(&team.shared))?);
        }
        Ok(team)
    }

    /// How many threads there are.
    pub fn size(&self) -> usize {
        self.shared.parked.len()
    }

    /// How many threads a job is worth now: all, unless others crowd the processors. For plans; it may be another number
    /// the next time.
    pub fn threads(&self) -> usize {
        self.threads.load(Ordering::Relaxed)
    }

    /// Runs `job` once on every worker that is worth it now and returns when all are done.
    ///
    /// # Panics
    /// As [`run_on`](Team::run_on).
    pub fn run(&self, job: impl Fn(Worker<'_>) + Sync) {
        self.run_on(self.threads(), job);
    }

    /// Runs `job` once on each of so many workers (at most all) and returns when all are done.
    ///
    /// # Panics
    /// If a worker panics, once all of them have stopped. A worker that waits at a barrier for one that
    /// panicked panics too, so nothing hangs.
    pub fn run_on(&self, count: usize, job: impl Fn(Worker<'_>) + Sync) {
        self.do_all(count, &job);
    }

    /// The same for all kinds of jobs: there are hundreds, and a copy for each would be a tenth of what is compiled here.
    fn do_all(&self, count: usize, job: &Job<'_>) {
        let mut watch = self.running.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let shared = &*self.shared;
        let count = count.clamp(1, self.size());
        // SAFETY: only the lifetime changes. Workers use the reference between the epoch's change below
        // and their decrement of `left`, and this function does not return before `left` is zero.
        let mut job: &'static Job<'static> = unsafe { std::mem::transmute(job) };
        shared.barrier.reset();
        shared.left.store(count - 1, Ordering::Relaxed);
        shared.job.store(&mut job, Ordering::Relaxed);
        let number = (shared.epoch.load(Ordering::Relaxed) >> COUNT_BITS).wrapping_add(1);
        shared.epoch.store(number << COUNT_BITS | count, Ordering::SeqCst);
        for (helper, parked) in self.helpers.iter().zip(&shared.parked[1..]).take(count - 1) {
            if parked.load(Ordering::SeqCst) {
                helper.thread.unpark();
            }
        }
        shared.work(Worker { index: 0, count, barrier: &shared.barrier }, job);
        spin_until(|| shared.left.load(Ordering::Acquire) == 0);
        if let Some(threads) = watch.as_mut().and_then(|watch| watch.look(&self.helpers)) {
            self.threads.store(threads, Ordering::Relaxed);
        }
        drop(watch);
        let panicked = shared.panicked.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).take();
        if let Some(payload) = panicked {
            resume_unwind(payload);
        }
    }
}

impl Drop for Team {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        for helper in &mut self.helpers {
            helper.thread.unpark();
            if let Some(handle) = helper.handle.take() {
                // A worker's panic was already given to the caller of `run`.
                let _ = handle.join();
            }
        }
    }
}

impl Helper {
    fn spawn(index: usize, shared: Arc<Shared>) -> io::Result<Helper> {
        let builder = thread::Builder::new().name(format!("worker-{index}"));
        let queued = Arc::new(OnceLock::new());
        let counted = Arc::clone(&queued);
        let handle = builder.spawn(move || {
            counted.get_or_init(Queued::of_this_thread);
            shared.serve(index);
        })?;
        Ok(Helper { thread: handle.thread().clone(), handle: Some(handle), queued })
    }
}

impl Watch {
    fn new(size: usize) -> Watch {
        Watch { crowd: Crowd::new(size), start: Instant::now(), jobs: 0, last: None, caller: None }
    }

    /// A job is done. Now and then: how many threads are worth it from now on.
    fn look(&mut self, helpers: &[Helper]) -> Option<usize> {
        self.jobs += 1;
        if helpers.is_empty() || self.jobs < JOBS_A_LOOK {
            return None;
        }
        let now = self.start.elapsed();
        let since = self.last.as_ref().map(|(at, _)| now - *at);
        if since.is_some_and(|since| since < LOOK) {
            return None;
        }
        self.jobs = 0;
        let queued: Option<Vec<Duration>> =
            helpers.iter().map(|helper| helper.queued.get()?.so_far()).collect();
        let mut queued = queued?;
        queued.push(self.queued_of_caller()?);
        let before = self.last.replace((now, queued));
        let (_, queued) = self.last.as_ref()?;
        let waited: Duration =
            before?.1.iter().zip(queued).map(|(before, after)| after.saturating_sub(*before)).sum();
        Some(self.crowd.judge(now, waited.as_secs_f64() / since?.as_secs_f64()))
    }

    fn queued_of_caller(&mut self) -> Option<Duration> {
        let me = thread::current().id();
        if self.caller.as_ref().is_none_or(|(who, _)| *who != me) {
            // Another thread's count is no continuation of the last one's.
            self.last = None;
            self.caller = Some((me, Queued::of_this_thread()));
        }
        self.caller.as_ref()?.1.so_far()
    }
}

impl Shared {
    fn serve(&self, index: usize) {
        let mut seen = 0;
        while let Some(epoch) = self.next_epoch(index, seen) {
            seen = epoch;
            // SAFETY: `run` stored a pointer to a live reference before it raised the epoch, and keeps it
            // alive until this worker has lowered `left`.
            let job = unsafe { *self.job.load(Ordering::Relaxed) };
            self.work(Worker { index, count: count_of(epoch), barrier: &self.barrier }, job);
            self.left.fetch_sub(1, Ordering::Release);
        }
    }

    /// The next epoch after `seen` that worker `index` takes part in, or nothing when the team ends.
    fn next_epoch(&self, index: usize, seen: usize) -> Option<usize> {
        let mut spins = 0;
        loop {
            let epoch = self.epoch.load(Ordering::Acquire);
            if is_for(index, epoch, seen) {
                return Some(epoch);
            }
            if self.stop.load(Ordering::Relaxed) {
                return None;
            }
            if spins < SPINS_BEFORE_PARK {
                spins += 1;
                std::hint::spin_loop();
            } else {
                self.park(index, seen);
            }
        }
    }

    /// Sleeps unless a job came meanwhile: the flag goes up first, then the epoch is read again, so a
    /// caller either sees the flag or has raised the epoch before.
    fn park(&self, index: usize, seen: usize) {
        self.parked[index].store(true, Ordering::SeqCst);
        if !is_for(index, self.epoch.load(Ordering::SeqCst), seen) && !self.stop.load(Ordering::SeqCst) {
            thread::park();
        }
        self.parked[index].store(false, Ordering::SeqCst);
    }

    fn work(&self, worker: Worker<'_>, job: &Job<'_>) {
        flush_denormals();
        if let Err(payload) = catch_unwind(AssertUnwindSafe(|| job(worker))) {
            self.barrier.broken.store(true, Ordering::SeqCst);
            let mut first = self.panicked.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
            first.get_or_insert(payload);
        }
    }
}

/// How many workers take part in an epoch's job.
fn count_of(epoch: usize) -> usize {
    epoch & ((1 << COUNT_BITS) - 1)
}

/// Whether an epoch has a job for this worker that it has not seen. None passes that has: the job waits for it.
fn is_for(index: usize, epoch: usize, seen: usize) -> bool {
    epoch != seen && index < count_of(epoch)
}

#[derive(Default)]
struct Barrier {
    arrived: AtomicUsize,
    round: AtomicUsize,
    broken: AtomicBool,
}

impl Barrier {
    fn reset(&self) {
        self.arrived.store(0, Ordering::Relaxed);
        self.broken.store(false, Ordering::Relaxed);
    }

    fn wait(&self, count: usize) {
        let round = self.round.load(Ordering::Acquire);
        if self.arrived.fetch_add(1, Ordering::AcqRel) + 1 == count {
            self.arrived.store(0, Ordering::Relaxed);
            self.round.store(round.wrapping_add(1), Ordering::Release);
            return;
        }
        self.wait_until(|| self.round.load(Ordering::Acquire) != round);
    }

    fn wait_until(&self, mut done: impl FnMut() -> bool) {
        spin_until(|| done() || self.broken.load(Ordering::Relaxed));
        assert!(!self.broken.load(Ordering::SeqCst), "another worker of the team panicked");
    }
}

fn spin_until(mut done: impl FnMut() -> bool) {
    let mut spins = 0;
    while !done() {
        spins += 1;
        if spins < SPINS_BEFORE_YIELD {
            std::hint::spin_loop();
        } else {
            thread::yield_now();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_worker_runs_each_job_once() {
        for threads in [1, 2, 5] {
            let team = Team::new(threads);
            let runs: Vec<_> = (0..threads).map(|_| AtomicUsize::new(0)).collect();
            for _ in 0..500 {
                team.run(|w| {
                    runs[w.index].fetch_add(1, Ordering::Relaxed);
                });
            }
            assert!(runs.iter().all(|r| r.load(Ordering::Relaxed) == 500));
        }
    }

    #[test]
    fn barrier_separates_phases() {
        let team = Team::new(3);
        let (a, b) = (AtomicUsize::new(0), AtomicUsize::new(0));
        for round in 1..=200 {
            team.run(|w| {
                a.fetch_add(1, Ordering::Relaxed);
                w.barrier();
                assert_eq!(a.load(Ordering::Relaxed), 3 * round);
                w.barrier();
                b.fetch_add(1, Ordering::Relaxed);
            });
        }
        assert_eq!(b.load(Ordering::Relaxed), 600);
    }

    /// Who takes no part in a job sees nothing of it, and takes part in the next that is for it.
    #[test]
    fn some_of_a_team_run_jobs_too() {
        let team = Team::new(4);
        let runs: Vec<_> = (0..4).map(|_| AtomicUsize::new(0)).collect();
        for round in 0..4000 {
            let count = 1 + round % 4;
            team.run_on(count, |w| {
                assert_eq!(w.count, count);
                runs[w.index].fetch_add(1, Ordering::Relaxed);
                w.barrier();
            });
        }
        let runs: Vec<usize> = runs.iter().map(|runs| runs.load(Ordering::Relaxed)).collect();
        assert_eq!(runs, [4000, 3000, 2000, 1000]);
    }

    /// Its own threads are a crowd where there are more than processors.
    #[test]
    fn a_team_that_is_crowded_runs_on_fewer() {
        if Queued::of_this_thread().so_far().is_none() {
            return eprintln!("skipped: this system does not count how long threads wait");
        }
        let free = thread::available_parallelism().unwrap().get();
        let team = Team::start(4 * free).unwrap();
        let start = Instant::now();
        while team.threads() > free && start.elapsed() < Duration::from_secs(20) {
            team.run(|w| w.barrier());
        }
        assert!(team.threads() <= free, "{} of {} where {free} are", team.threads(), team.size());
        team.run_on(team.size(), |w| w.barrier());
    }

    #[test]
    fn a_parked_team_wakes() {
        let team = Team::new(2);
        let runs = AtomicUsize::new(0);
        for _ in 0..3 {
            // Long enough for the helper to park: its flag says when.
            spin_until(|| team.shared.parked[1].load(Ordering::SeqCst));
            team.run(|_| {
                runs.fetch_add(1, Ordering::Relaxed);
            });
        }
        assert_eq!(runs.load(Ordering::Relaxed), 6);
    }

    #[test]
    fn a_panic_reaches_the_caller_and_the_team_lives_on() {
        let team = Team::new(2);
        let caught = catch_unwind(AssertUnwindSafe(|| {
            team.run(|w| {
                assert!(w.index == 0, "worker 1 fails");
                w.barrier();
            });
        }));
        assert!(caught.is_err());
        let runs = AtomicUsize::new(0);
        team.run(|w| {
            w.barrier();
            runs.fetch_add(1, Ordering::Relaxed);
        });
        assert_eq!(runs.load(Ordering::Relaxed), 2);
    }

    #[test]
    fn shares_cover_everything_once() {
        let barrier = Barrier::default();
        for (n, count) in [(0, 3), (2, 3), (10, 3), (9, 3), (7, 1)] {
            let all: Vec<usize> =
                (0..count).flat_map(|index| Worker { index, count, barrier: &barrier }.share(n)).collect();
            assert_eq!(all, (0..n).collect::<Vec<_>>());
        }
    }
}
