//! A driver whose streams are virtual: kernels and copies are put off, and done one by one on the emulation in an order of a
//! seed's choosing that queues and marks allow. What is not ordered by these gives other tokens, under some seed.

#[path = "../../../../engine/tests/it/late/queues.rs"]
mod queues;

use std::collections::HashMap;
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use cuda::module::Module;
use cuda::product::{Places, Product, Products, Room};
use cuda::{CudaError, Driver, Graphs, Launch, Recorded, Together, Work};
use kernels::arena::Lasting;
use kernels::queue::{self, Mark};

use crate::emulator::{Emulator, Mma};
use queues::Queues;

/// Bytes on their way to the host, once they are there.
type Arriving = Arc<Mutex<Option<Vec<u8>>>>;

/// See the module.
pub(crate) struct Delayed {
    emulator: Arc<Emulator>,
    queues: Queues,
    /// By number, and how many there were.
    fetches: Mutex<(u64, HashMap<u64, Arriving>)>,
}

impl Delayed {
    /// `replays`: how many graphs it has run.
    pub(crate) fn new(seed: u64, replays: &Arc<AtomicUsize>) -> Delayed {
        let emulator = Arc::new(Emulator::counting(Mma::Defined, replays));
        Delayed { emulator, queues: Queues::new(seed), fetches: Mutex::default() }
    }

    fn later(&self, work: impl FnOnce(&Emulator) + Send + 'static) {
        let emulator = Arc::clone(&self.emulator);
        self.queues.later(queue::current(), Box::new(move || work(&emulator)));
    }

    /// Begins to bring bytes of the device, in this thread's queue.
    fn bring(&self, from: u64, bytes: usize) -> Arriving {
        let there = Arriving::default();
        let told = Arc::clone(&there);
        self.later(move |emulator| {
            let mut all = Vec::with_capacity(bytes);
            emulator.download(from, bytes, &mut |_, piece| all.extend_from_slice(piece));
            *told.lock().unwrap() = Some(all);
        });
        there
    }

    fn wait_for(&self, arriving: &Arriving) -> Vec<u8> {
        self.queues.wait_for(|| arriving.lock().unwrap().is_some());
        arriving.lock().unwrap().take().expect("it has arrived")
    }
}

impl Driver for Delayed {
    fn allocate(&mut self, bytes: usize) -> Result<u64, CudaError> {
        Arc::get_mut(&mut self.emulator).expect("nothing is put off yet").allocate(bytes)
    }

    fn prepare(&self, modules: &[Module]) -> Result<(), CudaError> {
        self.emulator.prepare(modules)
    }

    fn upload(&self, to: u64, bytes: usize, fill: &mut dyn FnMut(usize, &mut [u8])) {
        // What fills it may be gone when the copy is done.
        let mut staged = vec![0; bytes];
        fill(0, &mut staged);
        self.later(move |emulator| {
            emulator.upload(to, bytes, &mut |first, into| {
                into.copy_from_slice(&staged[first..][..into.len()]);
            });
        });
    }

    fn download(&self, from: u64, bytes: usize, view: &mut dyn FnMut(usize, &[u8])) {
        view(0, &self.wait_for(&self.bring(from, bytes)));
    }

    fn adopt(&self, memory: Lasting) -> Result<u64, CudaError> {
        self.emulator.adopt(memory)
    }

    fn copy(&self, from: u64, to: u64, bytes: usize) {
        self.later(move |emulator| emulator.copy(from, to, bytes));
    }

    fn fetch(&self, from: u64, bytes: usize) -> u64 {
        let arriving = self.bring(from, bytes);
        let (count, fetches) = &mut *self.fetches.lock().unwrap();
        *count += 1;
        fetches.insert(*count, arriving);
        *count
    }

    fn fetched(&self, fetch: u64, view: &mut dyn FnMut(&[u8])) {
        let arriving = self.fetches.lock().unwrap().1.remove(&fetch).expect("a fetch that was begun");
        view(&self.wait_for(&arriving));
    }

    fn together(&self, module: Module, kernel: &'static str, threads: u32) -> Together {
        self.emulator.together(module, kernel, threads)
    }

    fn launch(&self, launch: &Launch<'_>) {
        let &Launch { module, kernel, grid, threads, args } = launch;
        let args = args.to_vec();
        self.later(move |emulator| {
            emulator.launch(&Launch { module, kernel, grid, threads, args: &args });
        });
    }

    fn graphs(&self) -> Option<&dyn Graphs> {
        Some(self)
    }

    fn products(&self) -> Option<&dyn Products> {
        Some(self)
    }

    fn enter(&self, queue: usize, after: &[Mark]) {
        self.queues.enter(queue, after);
    }

    fn mark(&self, mark: Mark) {
        self.queues.mark(mark);
    }

    fn reach(&self, mark: Mark) {
        self.queues.reach(mark);
    }

    fn when(&self, _mark: Mark) -> Option<Instant> {
        None
    }

    fn settle(&self) {
        self.queues.wait(Some(queue::current()));
    }

    fn wait(&self) {
        self.queues.wait(None);
    }
}

impl Graphs for Delayed {
    fn record(&self, work: &[Work<'_>]) -> Recorded {
        self.emulator.record(work)
    }

    fn replay(&self, graph: u64) {
        self.later(move |emulator| emulator.replay(graph));
    }

    /// What is under way ends first.
    fn forget(&self, graph: u64) {
        self.later(move |emulator| emulator.forget(graph));
    }
}

impl Products for Delayed {
    fn room(&self) -> Room {
        self.emulator.room()
    }

    fn can(&self, product: &Product, places: &Places) -> bool {
        self.emulator.can(product, places)
    }

    /// It refuses none.
    fn has_taken(&self, _: &Product, _: &Places) -> bool {
        true
    }

    fn multiply(&self, product: &Product, places: &Places) -> bool {
        let (product, places) = (*product, *places);
        self.later(move |emulator| assert!(emulator.multiply(&product, &places)));
        true
    }
}
