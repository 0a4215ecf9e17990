//! One thread for each lane: nodes in order, each once everything that it waits for is done.
//!
//! Nodes have tickets that grow from node to node, and a lane runs its nodes in order: "this node is done"
//! is one number per lane, the newest ticket that it has done, and waiting is comparing with it.

use std::any::Any;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use kernels::lock::lock;

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
    type Context: Send + Sync + 'static;

    /// Runs one node. Called by one thread per lane, at the same time for nodes that do not conflict.
    ///
    /// # Errors
    /// What went wrong, as a sentence. As after a panic, nothing that was submitted will finish any more.
    fn run(&self, context: &Self::Context, node: usize) -> Result<(), String>;

    /// A lane's thread comes to a node, and everything that it waits for has been run.
    fn comes(&self, _lane: LaneId, _waits: &[Wait]) {}

    /// It has run it: whoever waits for `ticket` may go on.
    fn leaves(&self, _lane: LaneId, _ticket: u64) {}

    /// A lane ran a node, though it may have failed.
    fn ran(&self, context: &Self::Context, task: &Task, began: Instant, took: Duration);

    /// Whether nodes ask for what is done later. Then the ends of programs are waited for on a thread of their own.
    fn is_late(&self) -> bool {
        false
    }

    /// All nodes of a program have been run, and those of every program that was submitted before. Where they ask for what is done
    /// later, this waits until that is done.
    fn finished(&self, context: &Self::Context);

    /// A node failed or panicked; nothing that was submitted will finish any more.
    fn failed(&self, why: &str);
}

/// The lanes of one replica.
pub struct Lanes<W: Work> {
    queues: Vec<Sender<Run<W>>>,
    ends: Option<Ends<W>>,
    shared: Arc<Shared<W>>,
    threads: Vec<JoinHandle<()>>,
}

/// To the thread that waits for programs' ends, where there is one.
type Ends<W> = Sender<Arc<Submitted<W>>>;

struct Shared<W: Work> {
    work: Arc<W>,
    /// Programs whose end nobody was told of, in the order in which they were submitted: a lane may be done with its share of one
    /// before another is with that of an earlier one, and what a step came to counts for the next.
    open: Mutex<VecDeque<Arc<Submitted<W>>>>,
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
            work: Arc::clone(&work),
            open: Mutex::default(),
            progress: (0..count).map(|_| AtomicU64::new(0)).collect(),
            poisoned: AtomicBool::new(false),
            sleep: Mutex::new(()),
            moved: Condvar::new(),
            sleepers: AtomicUsize::new(0),
        });
        let (mut queues, mut threads, mut ends) = (Vec::new(), Vec::new(), None);
        let mut spawn = |name: String, serve: Box<dyn FnOnce() + Send>| -> std::io::Result<()> {
            threads.push(thread::Builder::new().name(name).spawn(serve)?);
            Ok(())
        };
        if work.is_late() {
            let ((sender, ended), shared) = (channel(), Arc::clone(&shared));
            ends = Some(sender);
            spawn("ends".into(), Box::new(move || shared.serve_ends(&ended)))?;
        }
        for lane in 0..count {
            let (queue, runs) = channel();
            let (shared, ends) = (Arc::clone(&shared), ends.clone());
            queues.push(queue);
            spawn(format!("lane-{lane}"), Box::new(move || shared.serve(lane, &runs, ends.as_ref())))?;
        }
        Ok(Lanes { queues, ends, shared, threads })
    }

    /// Hands over a program: `tasks` in order of submission.
    pub fn submit(&mut self, context: W::Context, tasks: Vec<Task>) {
        let program = Arc::new(Submitted { context, left: AtomicUsize::new(tasks.len()) });
        lock(&self.shared.open).push_back(Arc::clone(&program));
        if tasks.is_empty() {
            self.shared.tell_ends(self.ends.as_ref());
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
        self.ends = None;
        for thread in self.threads.drain(..) {
            // A panic of a lane was told by `failed`.
            let _ = thread.join();
        }
    }
}

impl<W: Work> Shared<W> {
    /// Whatever panics here, a lane that is gone is told: others wait for it.
    fn serve(&self, lane: LaneId, runs: &Receiver<Run<W>>, ends: Option<&Ends<W>>) {
        let served = catch_unwind(AssertUnwindSafe(|| self.run_all(lane, runs, ends)));
        if let Err(payload) = served {
            self.poison(&panic_words(&*payload));
        }
    }

    fn run_all(&self, lane: LaneId, runs: &Receiver<Run<W>>, ends: Option<&Ends<W>>) {
        while let Ok(run) = runs.recv() {
            for task in &run.tasks {
                let ready = task.waits.iter().all(|wait| self.wait(*wait));
                if !ready || !self.run_one(lane, &run.program.context, task) {
                    return;
                }
                if run.program.left.fetch_sub(1, Ordering::AcqRel) == 1 {
                    self.tell_ends(ends);
                }
                self.advance(lane, task.ticket);
            }
        }
    }

    /// Tells of programs whose nodes have all been run, in their order, or leaves that to the thread that waits for ends.
    fn tell_ends(&self, ends: Option<&Ends<W>>) {
        let mut open = lock(&self.open);
        while open.front().is_some_and(|oldest| oldest.left.load(Ordering::Acquire) == 0) {
            let program = open.pop_front().expect("it was just seen");
            match ends {
                // That thread ends early only when the lanes are poisoned, which `failed` has told already.
                Some(ends) => drop(ends.send(program)),
                None => self.work.finished(&program.context),
            }
        }
    }

    /// One program after the other.
    fn serve_ends(&self, ended: &Receiver<Arc<Submitted<W>>>) {
        while let Ok(program) = ended.recv() {
            let finished = catch_unwind(AssertUnwindSafe(|| self.work.finished(&program.context)));
            if let Err(payload) = finished {
                return self.poison(&panic_words(&*payload));
            }
        }
    }

    /// Runs a node; on an error poisons the lanes and says false.
    fn run_one(&self, lane: LaneId, context: &W::Context, task: &Task) -> bool {
        let began = Instant::now();
        self.work.comes(lane, &task.waits);
        let result = self.work.run(context, task.node);
        if result.is_ok() {
            self.work.leaves(lane, task.ticket);
        }
        self.work.ran(context, task, began, began.elapsed());
        result.map_err(|why| self.poison(&why)).is_ok()
    }

    fn poison(&self, why: &str) {
        self.poisoned.store(true, Ordering::SeqCst);
        self.wake();
        self.work.failed(why);
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

/// What a panic says.
pub fn panic_words(payload: &(dyn Any + Send)) -> String {
    let words = payload.downcast_ref::<&str>().map(ToString::to_string);
    let words = words.or_else(|| payload.downcast_ref::<cuda::Lost>().map(|lost| lost.0.clone()));
    words.or_else(|| payload.downcast_ref::<String>().cloned()).unwrap_or_else(|| "it panicked".into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    /// Notes the order in which nodes end, and panics at node 99. What is done later is done when the gate opens.
    struct Notes {
        log: Mutex<Vec<(usize, usize)>>,
        told: Sender<Result<usize, String>>,
        gate: Option<Mutex<Receiver<()>>>,
    }

    impl Work for Notes {
        type Context = usize;
        fn run(&self, program: &usize, node: usize) -> Result<(), String> {
            assert_ne!(node, 99, "node 99 is broken");
            self.log.lock().unwrap().push((*program, node));
            if node == 98 { Err("the drive is gone".into()) } else { Ok(()) }
        }
        fn ran(&self, _: &usize, task: &Task, _: Instant, _: Duration) {
            assert!(task.lane < 3, "a lane that there is");
        }
        fn is_late(&self) -> bool {
            self.gate.is_some()
        }
        fn finished(&self, program: &usize) {
            assert_ne!(*program, 97, "the end of 97 is broken");
            self.gate.iter().for_each(|gate| gate.lock().unwrap().recv().expect("the device is lost"));
            self.told.send(Ok(*program)).unwrap();
        }
        fn failed(&self, why: &str) {
            self.told.send(Err(why.into())).unwrap();
        }
    }

    type Made = (Lanes<Notes>, Arc<Notes>, mpsc::Receiver<Result<usize, String>>);

    fn lanes(count: usize) -> Made {
        lanes_behind(None, count)
    }

    fn lanes_behind(gate: Option<Receiver<()>>, count: usize) -> Made {
        let (told, results) = channel();
        let notes = Arc::new(Notes { log: Mutex::default(), told, gate: gate.map(Mutex::new) });
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

    /// Though the second has been run before a lane is done with the first.
    #[test]
    fn programs_end_in_the_order_in_which_they_were_submitted() {
        let (open, gate) = channel();
        (0..3).for_each(|_| open.send(()).unwrap());
        for gate in [None, Some(gate)] {
            let (mut lanes, notes, results) = lanes_behind(gate, 2);
            lanes.submit(1, vec![task(0, 1, 0, &[]), task(1, 2, 1, &[(0, 3)])]);
            lanes.submit(2, vec![task(0, 3, 0, &[])]);
            lanes.submit(3, vec![]);
            let ended: Vec<_> = results.iter().take(3).map(Result::unwrap).collect();
            assert_eq!(ended, [1, 2, 3]);
            assert_eq!(*notes.log.lock().unwrap(), [(1, 0), (2, 0), (1, 1)]);
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

    #[test]
    fn a_panic_at_the_end_of_a_program_is_told() {
        let (mut lanes, _, results) = lanes(2);
        lanes.submit(97, vec![task(0, 1, 0, &[])]);
        drop(lanes);
        let told: Vec<_> = results.try_iter().collect();
        assert!(matches!(&told[..], [Err(why)] if why.contains("the end of 97")), "{told:?}");
    }

    #[test]
    fn lanes_go_on_while_the_end_of_a_program_is_waited_for() {
        let (open, gate) = channel();
        let (mut lanes, notes, results) = lanes_behind(Some(gate), 2);
        lanes.submit(1, vec![task(0, 1, 0, &[])]);
        lanes.submit(2, vec![task(0, 2, 0, &[]), task(1, 3, 1, &[(0, 2)])]);
        // Nothing has ended, and all has been run.
        while notes.log.lock().unwrap().len() < 3 {
            thread::yield_now();
        }
        assert!(results.try_recv().is_err());
        open.send(()).unwrap();
        assert_eq!(results.recv().unwrap(), Ok(1));
        open.send(()).unwrap();
        assert_eq!(results.recv().unwrap(), Ok(2));
    }

    #[test]
    fn a_device_that_is_lost_while_its_end_is_waited_for_is_told() {
        let (open, gate) = channel();
        let (mut lanes, _, results) = lanes_behind(Some(gate), 1);
        drop(open);
        lanes.submit(1, vec![task(0, 1, 0, &[])]);
        assert!(results.recv().unwrap().unwrap_err().contains("the device is lost"));
        drop(lanes);
        assert!(results.recv().is_err());
    }
}
