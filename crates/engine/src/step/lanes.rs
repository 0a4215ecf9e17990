//! One thread for each lane: nodes in order, each once everything that it waits for is done.
//!
//! Nodes have tickets that grow from node to node, and a lane runs its nodes in order: "this node is done"
//! is one number per lane, the newest ticket that it has done, and waiting is comparing with it.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::lock::lock;

/// How often a lane looks at another's progress before it sleeps: a few microseconds of looking.
const LOOKS_BEFORE_SLEEP: u32 = 2_000;

/// A lane's number within an executor.
pub type LaneId = usize;

/// "Lane `lane` has done ticket `ticket` or a later one."
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wait {
    /// Whose progress.
    pub lane: LaneId,
    /// How far.
    pub ticket: u64,
}

/// A node as a lane sees it.
#[derive(Clone, Debug)]
pub struct Task {
    /// The lane that runs it.
    pub lane: LaneId,
    /// Its place among all nodes of all programs; above all that were submitted before.
    pub ticket: u64,
    /// Its index in the program, handed to [`Work::run`].
    pub node: usize,
    /// What must be done before.
    pub waits: Vec<Wait>,
}

/// What the lanes do.
pub trait Work: Send + Sync + 'static {
    /// What they need to know of a submitted program.
    type Context: Send + Sync;

    /// Runs one node. Called by one thread per lane, at the same time for nodes that do not conflict.
    ///
    /// # Errors
    /// What went wrong, as a sentence. As after a panic, nothing that was submitted will finish any more.
    fn run(&self, context: &Self::Context, node: usize) -> Result<(), String>;

    /// A lane's thread comes to a node, and everything that it waits for has been run.
    fn comes(&self, _lane: LaneId, _waits: &[Wait]) {}

    /// It has run it: whoever waits for `ticket` may go on.
    fn leaves(&self, _lane: LaneId, _ticket: u64) {}

    /// A lane ran a node, whatever came of it.
    fn ran(&self, context: &Self::Context, node: usize, lane: LaneId, began: Instant, took: Duration);

    /// All nodes of a program are done.
    fn finished(&self, context: &Self::Context);

    /// A node failed or panicked; nothing that was submitted will finish any more.
    fn failed(&self, why: &str);
}

/// The lanes of one replica.
pub struct Lanes<W: Work> {
    shared: Arc<Shared<W>>,
    queues: Vec<Sender<Run<W>>>,
    threads: Vec<JoinHandle<()>>,
}

struct Shared<W: Work> {
    work: Arc<W>,
    progress: Vec<AtomicU64>,
    poisoned: AtomicBool,
    sleep: Mutex<()>,
    moved: Condvar,
    sleepers: AtomicUsize,
}

/// One program's nodes on one lane.
struct Run<W: Work> {
    program: Arc<Submitted<W>>,
    tasks: Vec<Task>,
}

struct Submitted<W: Work> {
    context: W::Context,
    left: AtomicUsize,
}

impl<W: Work> Lanes<W> {
    /// `count` lanes, each with a thread that sleeps until it is given something.
    ///
    /// # Errors
    /// The system's own, if it gives no thread.
    pub fn new(count: usize, work: Arc<W>) -> std::io::Result<Lanes<W>> {
        let shared = Arc::new(Shared {
            work,
            progress: (0..count).map(|_| AtomicU64::new(0)).collect(),
            poisoned: AtomicBool::new(false),
            sleep: Mutex::new(()),
            moved: Condvar::new(),
            sleepers: AtomicUsize::new(0),
        });
        let (mut queues, mut threads) = (Vec::new(), Vec::new());
        for lane in 0..count {
            let (queue, runs) = channel();
            let shared = Arc::clone(&shared);
            queues.push(queue);
            let name = format!("lane-{lane}");
            threads.push(thread::Builder::new().name(name).spawn(move || shared.serve(lane, &runs))?);
        }
        Ok(Lanes { shared, queues, threads })
    }

    /// Hands over a program: `tasks` in order of submission.
    pub fn submit(&mut self, context: W::Context, tasks: Vec<Task>) {
        let program = Arc::new(Submitted { context, left: AtomicUsize::new(tasks.len()) });
        if tasks.is_empty() {
            self.shared.work.finished(&program.context);
            return;
        }
        let mut runs: Vec<Vec<Task>> = self.queues.iter().map(|_| Vec::new()).collect();
        for task in tasks {
            runs[task.lane].push(task);
        }
        for (queue, tasks) in self.queues.iter().zip(runs).filter(|(_, tasks)| !tasks.is_empty()) {
            // A lane ends early only when the lanes are poisoned, which `failed` has told already.
            let _ = queue.send(Run { program: Arc::clone(&program), tasks });
        }
    }
}

impl<W: Work> Drop for Lanes<W> {
    fn drop(&mut self) {
        self.queues.clear();
        for thread in self.threads.drain(..) {
            // A panic of a lane was told by `failed`.
            let _ = thread.join();
        }
    }
}

impl<W: Work> Shared<W> {
    fn serve(&self, lane: LaneId, runs: &Receiver<Run<W>>) {
        while let Ok(run) = runs.recv() {
            for task in &run.tasks {
                let ready = task.waits.iter().all(|wait| self.wait(*wait));
                if !ready || !self.run_one(lane, &run.program.context, task) {
                    return;
                }
                // Told before the progress shows, so that programs that wait for this one end after it.
                if run.program.left.fetch_sub(1, Ordering::AcqRel) == 1 {
                    self.work.finished(&run.program.context);
                }
                self.advance(lane, task.ticket);
            }
        }
    }

    /// Runs a node; on an error or a panic poisons the lanes and says false.
    fn run_one(&self, lane: LaneId, context: &W::Context, task: &Task) -> bool {
        let began = Instant::now();
        let result = catch_unwind(AssertUnwindSafe(|| {
            self.work.comes(lane, &task.waits);
            self.work.run(context, task.node)?;
            self.work.leaves(lane, task.ticket);
            Ok(())
        }));
        self.work.ran(context, task.node, lane, began, began.elapsed());
        let text: Option<String> = match result {
            Ok(Ok(())) => return true,
            Ok(Err(why)) => Some(why),
            Err(payload) => {
                let text = payload.downcast_ref::<&str>().map(ToString::to_string);
                text.or_else(|| payload.downcast_ref::<String>().cloned())
            }
        };
        self.poisoned.store(true, Ordering::SeqCst);
        self.wake();
        self.work.failed(text.as_deref().unwrap_or("a lane panicked"));
        false
    }

    /// True once the wait is over, false if it never will be.
    fn wait(&self, wait: Wait) -> bool {
        for _ in 0..LOOKS_BEFORE_SLEEP {
            if self.reached(wait) {
                return true;
            }
            std::hint::spin_loop();
        }
        let mut guard = lock(&self.sleep);
        self.sleepers.fetch_add(1, Ordering::SeqCst);
        while !self.reached(wait) && !self.poisoned.load(Ordering::SeqCst) {
            guard = self.moved.wait(guard).unwrap_or_else(|poisoned| poisoned.into_inner());
        }
        self.sleepers.fetch_sub(1, Ordering::SeqCst);
        self.reached(wait)
    }

    fn reached(&self, wait: Wait) -> bool {
        self.progress[wait.lane].load(Ordering::SeqCst) >= wait.ticket
    }

    fn advance(&self, lane: LaneId, ticket: u64) {
        self.progress[lane].store(ticket, Ordering::SeqCst);
        if self.sleepers.load(Ordering::SeqCst) > 0 {
            self.wake();
        }
    }

    /// Under the lock, so that nobody falls asleep between its last look and this.
    fn wake(&self) {
        let _guard = lock(&self.sleep);
        self.moved.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    /// Notes the order in which nodes end, and panics at node 99.
    struct Notes {
        log: Mutex<Vec<(usize, usize)>>,
        told: Sender<Result<usize, String>>,
    }

    impl Work for Notes {
        type Context = usize;
        fn run(&self, program: &usize, node: usize) -> Result<(), String> {
            assert_ne!(node, 99, "node 99 is broken");
            self.log.lock().unwrap().push((*program, node));
            if node == 98 { Err("the drive is gone".into()) } else { Ok(()) }
        }
        fn ran(&self, _: &usize, _: usize, lane: LaneId, _: Instant, _: Duration) {
            assert!(lane < 3, "a lane that there is");
        }
        fn finished(&self, program: &usize) {
            self.told.send(Ok(*program)).unwrap();
        }
        fn failed(&self, why: &str) {
            self.told.send(Err(why.into())).unwrap();
        }
    }

    fn lanes(count: usize) -> (Lanes<Notes>, Arc<Notes>, mpsc::Receiver<Result<usize, String>>) {
        let (told, results) = channel();
        let notes = Arc::new(Notes { log: Mutex::default(), told });
        (Lanes::new(count, Arc::clone(&notes)).unwrap(), notes, results)
    }

    fn task(lane: LaneId, ticket: u64, node: usize, waits: &[(LaneId, u64)]) -> Task {
        let waits = waits.iter().map(|&(lane, ticket)| Wait { lane, ticket }).collect();
        Task { lane, ticket, node, waits }
    }

    #[test]
    fn waits_order_nodes_across_lanes_and_programs() {
        for _ in 0..50 {
            let (mut lanes, notes, results) = lanes(3);
            let after = |lane, ticket| [(lane, ticket)];
            let program = vec![
                task(0, 1, 0, &[]),
                task(1, 2, 1, &after(0, 1)),
                task(2, 3, 2, &after(1, 2)),
                task(0, 4, 3, &after(2, 3)),
            ];
            lanes.submit(7, program);
            lanes.submit(8, vec![task(1, 5, 0, &after(0, 4))]);
            assert_eq!((results.recv().unwrap(), results.recv().unwrap()), (Ok(7), Ok(8)));
            assert_eq!(*notes.log.lock().unwrap(), [(7, 0), (7, 1), (7, 2), (7, 3), (8, 0)]);
        }
    }

    #[test]
    fn an_empty_program_is_done_at_once() {
        let (mut lanes, _, results) = lanes(1);
        lanes.submit(5, vec![]);
        assert_eq!(results.recv().unwrap(), Ok(5));
    }

    #[test]
    fn an_error_is_told_in_its_own_words() {
        let (mut lanes, _, results) = lanes(2);
        lanes.submit(1, vec![task(0, 1, 98, &[]), task(1, 2, 0, &[(0, 1)])]);
        assert_eq!(results.recv().unwrap(), Err("the drive is gone".into()));
    }

    #[test]
    fn a_panic_is_told_and_nothing_hangs() {
        let (mut lanes, _, results) = lanes(2);
        lanes.submit(1, vec![task(0, 1, 99, &[]), task(1, 2, 0, &[(0, 1)])]);
        assert!(results.recv().unwrap().unwrap_err().contains("node 99"));
        drop(lanes);
        assert!(results.recv().is_err());
    }
}
