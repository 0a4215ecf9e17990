//! What it takes a lane that fell asleep to work again.

use std::sync::{Condvar, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use kernels::Team;

use super::take::median;
use kernels::lock::lock;

/// Long enough that threads that look for work before they sleep have given up.
const REST: Duration = Duration::from_millis(2);
/// Times that it is woken.
const TIMES: usize = 15;

/// Seconds from the moment at which another thread tells a lane to the first instruction of all threads that it computes with.
pub(super) fn wake_s(team: &Team) -> f64 {
    let (told, tell) = (Mutex::new(None::<Instant>), Condvar::new());
    median((0..TIMES).map(|_| {
        thread::scope(|scope| {
            let lane = scope.spawn(|| {
                let mut told = lock(&told);
                while told.is_none() {
                    told = tell.wait(told).unwrap_or_else(|poisoned| poisoned.into_inner());
                }
                team.run(|worker| worker.barrier());
                told.take().map_or(0.0, |since| since.elapsed().as_secs_f64())
            });
            thread::park_timeout(REST);
            *lock(&told) = Some(Instant::now());
            tell.notify_one();
            lane.join().unwrap_or(0.0)
        })
    }))
}
