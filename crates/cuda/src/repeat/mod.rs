//! Passes that are much like the one before: what they ask for is put off, and then done at once, as a graph.
//!
//! A step in which each sequence decodes one token asks for hundreds of kernels that take a few microseconds each, which is what
//! it takes to ask for one. The next such step asks for the same ones again.
//!
//! ```text
//! asked for   table, kernel, kernel, mark, table, kernel ... kernel, mark,            something else
//! done                                                         tables, graph, mark    something else
//! ```
//!
//! A graph is done only for the very kernels, grids, arguments and products that it was made of: they are compared, byte for byte, so that
//! nothing in it can be out of date. Equal they are because tables have the same places in each pass, and because the work of
//! attention, which grows with its sequences, is filled up to one of a few sizes (`attend.rs`). What changes from pass to pass is
//! in the tables, which are copied before.
//!
//! Of a pass's marks only the newest is made: those before it name what is done no later, and the times of what they name are
//! not told apart.
//!
//! A pass ends when something else is asked for in its queue, or waited for anywhere: whatever that is, it comes after what was
//! put off.

mod known;
mod pass;

use std::panic::resume_unwind;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use kernels::arena::Lasting;
use kernels::queue::{self, Mark};

use crate::module::{Module, Prefill};
use crate::product::{Places, Product, Products, Room};
use crate::{CudaError, Driver, Launch, Lost, Outcome, Together, Work};

use known::Known;
use pass::Pass;
pub(crate) use pass::TABLE_BYTES;

/// The queue that has passes: the one that computes.
const QUEUE: usize = 0;

/// A driver that puts off what a pass asks for.
pub(crate) struct Repeating<D> {
    driver: D,
    /// Device memory for the tables of a pass: [`TABLE_BYTES`].
    tables: u64,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    pass: Option<Pass>,
    known: Known,
}

impl<D: Driver> Repeating<D> {
    /// A pass's tables go to `tables`.
    pub(crate) fn new(driver: D, tables: u64) -> Repeating<D> {
        Repeating { driver, tables, state: Mutex::default() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The driver, which has been asked for all that this thread's queue has put off.
    pub(crate) fn now(&self) -> &D {
        if queue::current() == QUEUE {
            self.send();
        }
        &self.driver
    }

    /// What this thread asks for from now on is a pass, if it asks in the queue that has them and the driver makes graphs.
    pub(crate) fn begin(&self) {
        if queue::current() == QUEUE && self.driver.graphs().is_some() {
            self.send();
            self.state().pass = Some(Pass::new());
        }
    }

    /// Whether this thread's calls are put off.
    pub(crate) fn is_pass(&self) -> bool {
        queue::current() == QUEUE && self.state().pass.is_some()
    }

    /// Where the device will have a table before it is done with the pass's first kernel; nowhere outside of a pass.
    pub(crate) fn table(&self, bytes: &[u8]) -> Option<u64> {
        if queue::current() != QUEUE {
            return None;
        }
        let mut state = self.state();
        let at = state.pass.as_mut()?.table(bytes);
        if at.is_none() {
            // So many tables are no small pass: it ends here.
            self.send_from(&mut state);
        }
        at.map(|at| self.tables + at as u64)
    }

    fn send(&self) {
        self.send_from(&mut self.state());
    }

    /// Ends the pass, if there is one: whoever has the state comes with nothing in between.
    fn send_from(&self, state: &mut State) {
        let Some(pass) = state.pass.take() else { return };
        let mine = queue::current();
        queue::enter(QUEUE);
        let image = pass.image();
        if !image.is_empty() {
            self.driver.put(self.tables, image);
        }
        let newest = pass.newest_mark();
        let graphs = self.driver.graphs();
        state.known.run(graphs, pass.into_list(), |work| match work {
            Work::Kernel(launch) => self.driver.launch(launch),
            Work::Product(product, places) => self.multiply_late(product, places),
        });
        // Those before it are done no later.
        newest.into_iter().for_each(|mark| self.driver.mark(mark));
        queue::enter(mine);
    }

    /// Sends what was put off if `mark` is to name some of it.
    fn send_for(&self, mark: Mark) {
        let mut state = self.state();
        if state.pass.as_ref().is_some_and(|pass| pass.has_mark(mark)) {
            self.send_from(&mut state);
        }
    }
}

impl<D: Driver> Driver for Repeating<D> {
    fn allocate(&mut self, bytes: usize) -> Result<u64, CudaError> {
        self.driver.allocate(bytes)
    }

    fn prepare(&self, modules: &[Module]) -> Result<(), CudaError> {
        self.driver.prepare(modules)
    }

    fn upload(&self, to: u64, bytes: usize, fill: &mut dyn FnMut(usize, &mut [u8])) {
        self.now().upload(to, bytes, fill);
    }

    fn put(&self, to: u64, table: &[u8]) {
        self.now().put(to, table);
    }

    fn download(&self, from: u64, bytes: usize, view: &mut dyn FnMut(usize, &[u8])) {
        self.now().download(from, bytes, view);
    }

    fn adopt(&self, memory: Lasting) -> Result<u64, CudaError> {
        self.driver.adopt(memory)
    }

    fn copy(&self, from: u64, to: u64, bytes: usize) {
        self.now().copy(from, to, bytes);
    }

    fn fetch(&self, from: u64, bytes: usize) -> u64 {
        self.now().fetch(from, bytes)
    }

    fn fetched(&self, fetch: u64, view: &mut dyn FnMut(&[u8])) {
        self.driver.fetched(fetch, view);
    }

    fn together(&self, module: Module, kernel: &'static str, threads: u32) -> Together {
        self.driver.together(module, kernel, threads)
    }

    fn launch(&self, launch: &Launch<'_>) {
        if queue::current() == QUEUE
            && let Some(pass) = &mut self.state().pass
        {
            return pass.launch(launch);
        }
        self.driver.launch(launch);
    }

    fn products(&self) -> Option<&dyn Products> {
        self.driver.products().is_some().then_some(self as &dyn Products)
    }

    fn prefill(&self) -> Prefill {
        self.driver.prefill()
    }

    fn remarks(&self) -> Vec<String> {
        self.driver.remarks()
    }

    fn time(&self, work: &mut dyn FnMut()) -> Option<f64> {
        self.now().time(work)
    }

    fn verdict(&self, module: Module) -> Option<bool> {
        self.driver.verdict(module)
    }

    fn try_out(&self, module: Module, trial: &mut dyn FnMut() -> Outcome) {
        self.driver.try_out(module, trial);
    }

    fn enter(&self, queue: usize, after: &[Mark]) {
        let elsewhere = |mark: &Mark| mark.queue != QUEUE;
        if queue == QUEUE && self.state().pass.is_some() {
            // A queue is done in order: there is nothing to wait for in itself.
            if !after.iter().any(elsewhere) {
                return;
            }
            self.send();
        }
        after.iter().for_each(|mark| self.send_for(*mark));
        self.driver.enter(queue, after);
    }

    fn mark(&self, mark: Mark) {
        if mark.queue == QUEUE
            && let Some(pass) = &mut self.state().pass
        {
            return pass.mark(mark);
        }
        self.driver.mark(mark);
    }

    fn reach(&self, mark: Mark) {
        self.send_for(mark);
        self.driver.reach(mark);
    }

    fn when(&self, mark: Mark) -> Option<Instant> {
        self.send_for(mark);
        self.driver.when(mark)
    }

    fn settle(&self) {
        self.now().settle();
    }

    fn wait(&self) {
        self.send();
        self.driver.wait();
    }
}

/// Only a driver that has products says that this has.
impl<D: Driver> Products for Repeating<D> {
    fn room(&self) -> Room {
        self.theirs().room()
    }

    fn can(&self, product: &Product, places: &Places) -> bool {
        self.theirs().can(product, places)
    }

    fn has_taken(&self, product: &Product, places: &Places) -> bool {
        self.theirs().has_taken(product, places)
    }

    /// One that the library has never taken ends the pass: it may refuse it, and whoever asks here has other kernels for it.
    fn multiply(&self, product: &Product, places: &Places) -> bool {
        if queue::current() == QUEUE {
            let mut state = self.state();
            match &mut state.pass {
                Some(pass) if self.theirs().has_taken(product, places) => {
                    pass.multiply(product, places);
                    return true;
                }
                _ => self.send_from(&mut state),
            }
        }
        self.theirs().multiply(product, places)
    }
}

impl<D: Driver> Repeating<D> {
    fn theirs(&self) -> &dyn Products {
        self.driver.products().expect("who has none is not asked")
    }

    /// Asks for a product that was put off.
    fn multiply_late(&self, product: &Product, places: &Places) {
        if !self.theirs().multiply(product, places) {
            let why = self.driver.remarks().join("; ");
            resume_unwind(Box::new(Lost(format!(
                "a product was refused that was taken before, too late for others to compute it ({why}): set \
                 BALLAST_CUDA_PRODUCTS=own for kernels that compute all products without cuBLASLt"
            ))));
        }
    }
}
