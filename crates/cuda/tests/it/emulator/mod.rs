//! A driver whose device is the host: the kernels' text compiled as C++, behind `kernels/emulate.h`.

mod matrices;
mod strict;
mod trials;

use std::collections::HashMap;
use std::ffi::{CString, c_void};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Instant;

use cuda::args::{CopyArgs, PieceData, PiecesArgs};
use cuda::module::{Module, Prefill};
use cuda::product::{Layout, Numbers, Places, Product, Products, Room};
use cuda::{Architecture, CudaError, Driver, Graphs, Launch, Outcome, Recorded, Together, Work};
use kernels::arena::Lasting;
use kernels::queue::Mark;
use matrices::{read, write};

pub(crate) use crate::host::compiler;
use crate::host::{HEADER, OPTIONS, fnv, header};
pub(crate) use trials::{Trials, Tried};

/// The entries of libraries: of each module, and of each by halves.
type Loaded = HashMap<(Module, bool), Arc<OnceLock<Start>>>;
type Start = unsafe extern "C" fn(*const i8, u32, u32, u32, u32, *const c_void, u32) -> i32;

/// What stands before the text of kernels with products of warpgroups besides.
const OF_WARPGROUPS: &str = include_str!("../../../kernels/emulate_wgmma.h");

/// Copies between a device and adopted memory, by all emulators together.
pub(crate) static COPIES_OF_ADOPTED: AtomicUsize = AtomicUsize::new(0);

/// Products in graphs that were run, by all emulators together.
pub(crate) static PRODUCTS_OF_GRAPHS: AtomicUsize = AtomicUsize::new(0);

/// Graphs that there is room for.
const GRAPHS: usize = 5;

/// What passes at a time: little, so that small copies have several pieces.
const PIECE_BYTES: usize = 5000;

/// Which product the emulated tensor cores compute.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Mma {
    /// As the instruction's definition says.
    Defined,
    /// Of halves, as on devices without bf16, and where a number is too large for one through the kernels' own shuffles.
    ByHalves,
    /// As defined, and for attention of many rows those of warpgroups.
    OfWarpgroups,
    /// The same, of warpgroups that take turns.
    ByTurns,
}

impl Mma {
    /// A device that computes it so.
    fn architecture(self) -> Architecture {
        match self {
            Mma::Defined => Architecture(80),
            Mma::ByHalves => Architecture(75),
            Mma::OfWarpgroups | Mma::ByTurns => Architecture::WARPGROUPS,
        }
    }
}

/// As a device's memory is aligned.
#[derive(Clone, Copy)]
#[repr(align(256))]
struct Line(#[allow(dead_code)] [u8; 256]); // Read through addresses only.

/// Memory of the host, and the compiled kernels.
pub(crate) struct Emulator {
    memory: Vec<Line>,
    mma: Mma,
    /// Modules that somebody had the forethought to ask for; then no others may be used.
    prepared: Mutex<Vec<Module>>,
    /// What was fetched and is not asked for yet.
    fetched: Mutex<Vec<(u64, Vec<u8>)>>,
    adopted: Mutex<Vec<Lasting>>,
    /// None if kernels are run one by one.
    graphs: Option<Mutex<AllGraphs>>,
    /// How many of them were run.
    replays: Arc<AtomicUsize>,
    /// Tables that were sent.
    puts: AtomicUsize,
    /// Devices without bf16 have own kernels for everything, which so are run too.
    has_library: bool,
    /// Rows from which the library is asked where it reads weights in their place.
    from_rows_in_place: usize,
    /// Rows of the results that the library refuses to compute once it is asked for them.
    refuses: usize,
    /// Products that it was asked for, and whether it took them.
    taken: Mutex<HashMap<Product, bool>>,
    /// If products of warpgroups are tried before they are used.
    pub(crate) trials: Option<Trials>,
}

/// Kernels as they were when a graph was made of them, by number, and how many graphs there were.
type AllGraphs = (u64, HashMap<u64, Vec<Frozen>>);

/// A kernel with the arguments that it had, or a product.
#[derive(Clone)]
enum Frozen {
    Kernel { module: Module, kernel: &'static str, grid: [usize; 2], threads: u32, args: Vec<u8> },
    Product(Product, Places),
}

impl Emulator {
    /// A device with no memory yet.
    pub(crate) fn new(mma: Mma) -> Emulator {
        Emulator {
            memory: Vec::new(),
            mma,
            prepared: Mutex::default(),
            fetched: Mutex::default(),
            adopted: Mutex::default(),
            graphs: Some(Mutex::default()),
            replays: Arc::default(),
            puts: AtomicUsize::new(0),
            has_library: mma != Mma::ByHalves,
            from_rows_in_place: 200,
            refuses: 0,
            taken: Mutex::default(),
            trials: None,
        }
    }

    /// One whose products of warpgroups are tried before they are used.
    pub(crate) fn trying(tried: Tried) -> Emulator {
        Emulator { trials: Some(Trials::of(tried)), ..Emulator::new(Mma::OfWarpgroups) }
    }

    /// One that counts the graphs that it runs.
    pub(crate) fn counting(mma: Mma, replays: &Arc<AtomicUsize>) -> Emulator {
        Emulator { replays: Arc::clone(replays), ..Emulator::new(mma) }
    }

    /// One whose library computes all products of bf16, however few their rows.
    pub(crate) fn by_library(self) -> Emulator {
        Emulator { from_rows_in_place: 1, ..self }
    }

    /// One whose library refuses to compute results of so many rows, which are columns of ours.
    pub(crate) fn refusing(self, rows: usize) -> Emulator {
        Emulator { refuses: rows, ..self }
    }

    /// One that runs kernels one by one.
    pub(crate) fn without_graphs(mma: Mma) -> Emulator {
        Emulator { graphs: None, ..Emulator::new(mma) }
    }

    /// How many tables were sent to it.
    pub(crate) fn puts(&self) -> usize {
        self.puts.load(Ordering::Relaxed)
    }

    /// Runs a kernel's blocks, one after the other.
    fn run(&self, launch: &Launch<'_>) {
        let args: Vec<u64> =
            launch.args.chunks(8).map(|w| u64::from_le_bytes(w.try_into().unwrap())).collect();
        let name = CString::new(launch.kernel).unwrap();
        let entry = start(launch.module, self.mma);
        let [x, y] = launch.grid.map(|n| n as u32);
        // SAFETY: the arguments are the kernel's, and point into the memory above.
        let wrong = unsafe {
            let block_bytes = launch.module.block_bytes(launch.kernel, self.mma.architecture()) as u32;
            entry(
                name.as_ptr(),
                x,
                y,
                launch.threads,
                block_bytes,
                args.as_ptr().cast(),
                launch.args.len() as u32,
            )
        };
        assert_ne!(wrong, 1, "{} has no kernel {}", launch.module, launch.kernel);
        assert_ne!(wrong, 3, "{} has no blocks of {} threads", launch.kernel, launch.threads);
        assert_eq!(wrong, 0, "{} takes no arguments of {} bytes", launch.kernel, launch.args.len());
    }

    fn is_own(&self, at: u64, bytes: usize) -> bool {
        let first = self.memory.as_ptr() as u64;
        first <= at && at + bytes as u64 <= first + size_of_val(&*self.memory) as u64
    }

    /// Asserts that bytes are carried between memory that there is.
    fn note_places(&self, from: u64, to: u64, bytes: usize) {
        let adopted = self.adopted.lock().unwrap();
        let is_adopted = |at: u64| {
            adopted.iter().any(|memory| {
                let first = memory.address() as u64;
                first <= at && at + bytes as u64 <= first + memory.bytes() as u64
            })
        };
        for at in [from, to].into_iter().filter(|at| !self.is_own(*at, bytes)) {
            assert!(is_adopted(at), "{bytes} bytes at {at:x} are neither the device's nor adopted");
            COPIES_OF_ADOPTED.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Pieces that a kernel is to carry.
    fn note_pieces(&self, args: &[u8]) {
        let PiecesArgs { pieces, count, .. } = bytemuck::pod_read_unaligned(args);
        // SAFETY: the table lies in the memory above, as the device says, and was copied there before.
        let pieces = unsafe { std::slice::from_raw_parts(pieces as *const PieceData, count as usize) };
        pieces.iter().for_each(|piece| self.note_places(piece.from, piece.to, 16 * piece.words as usize));
    }

    /// One whose own kernels compute everything.
    pub(crate) fn without_library(self) -> Emulator {
        Emulator { has_library: false, ..self }
    }
}

/// The library of a module, compiled at first use and kept with the build (where `stand_in/nvrtc.cpp` looks for it too).
fn library(module: Module, by_halves: bool) -> PathBuf {
    let more = if matches!(module, Module::Warpgroups { .. }) { OF_WARPGROUPS } else { "" };
    let text = format!("{more}{}", module.source());
    let halves: &[&str] = if by_halves { &["-DBALLAST_MMA_BY_HALVES"] } else { &[] };
    let mut defines = module.defines();
    defines.extend(halves.iter().map(|define| (*define).to_owned()));
    let spaced: String = defines.iter().map(|define| format!(" {define}")).collect();
    let key = fnv(format!("{HEADER}\n{text}{spaced} {}", OPTIONS.join(" ")).as_bytes());
    let base = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{module}-{key:016x}"));
    let (library, source) = (base.with_extension("so"), base.with_extension("cpp"));
    if !library.exists() {
        fs::write(&source, text).expect("the target folder can be written");
        let partial = base.with_extension("part");
        let compiler = compiler().expect("a compiler, as the test has asked");
        let mut command = Command::new(&compiler);
        command.args(OPTIONS).args(defines).arg("-include").arg(header(&compiler, halves));
        let output = command.arg(&source).arg("-o").arg(&partial).output().expect("it ran before");
        assert!(output.status.success(), "{module}:\n{}", String::from_utf8_lossy(&output.stderr));
        fs::rename(partial, &library).expect("the target folder can be written");
    }
    library
}

/// The entry of a module's library, which runs one kernel at a time. Tests beside this one have others compiled meanwhile.
fn start(module: Module, mma: Mma) -> Start {
    static LOADED: OnceLock<Mutex<Loaded>> = OnceLock::new();
    let by_halves = mma == Mma::ByHalves;
    let mut loaded = LOADED.get_or_init(Mutex::default).lock().unwrap_or_else(PoisonError::into_inner);
    let entry = Arc::clone(loaded.entry((module, by_halves)).or_default());
    drop(loaded);
    *entry.get_or_init(|| entry_of(&library(module, by_halves)))
}

/// The entry of one of our libraries, which stays.
fn entry_of(library: &Path) -> Start {
    let path = CString::new(library.to_str().expect("a path of text")).expect("a path");
    // SAFETY: our own library, which has the entry with this signature.
    unsafe {
        let handle = libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL);
        assert!(!handle.is_null(), "{path:?} does not load");
        let entry = libc::dlsym(handle, c"ballast_launch".as_ptr());
        assert!(!entry.is_null(), "{path:?} has no entry");
        std::mem::transmute::<*mut c_void, Start>(entry)
    }
}

impl Driver for Emulator {
    fn allocate(&mut self, bytes: usize) -> Result<u64, CudaError> {
        self.memory = vec![Line([0; 256]); bytes.div_ceil(256)];
        Ok(self.memory.as_mut_ptr() as u64)
    }

    fn prepare(&self, modules: &[Module]) -> Result<(), CudaError> {
        if self.trials.as_ref().is_some_and(|trials| trials.lacks(modules)) {
            let [module, architecture, log] = ["turns", "sm_90", "no such instruction"].map(String::from);
            return Err(CudaError::Compile { module, architecture, log });
        }
        self.prepared.lock().unwrap().extend(modules);
        Ok(())
    }

    fn upload(&self, to: u64, bytes: usize, fill: &mut dyn FnMut(usize, &mut [u8])) {
        for at in (0..bytes).step_by(PIECE_BYTES) {
            let length = PIECE_BYTES.min(bytes - at);
            // SAFETY: the address lies in the memory above, as the device's ledger says, and nobody else uses it meanwhile.
            fill(at, unsafe { std::slice::from_raw_parts_mut((to as *mut u8).add(at), length) });
        }
    }

    /// As on a GPU: a kernel reads whole words, and so writes more than there is to write.
    fn put(&self, to: u64, table: &[u8]) {
        self.puts.fetch_add(1, Ordering::Relaxed);
        let mut here = vec![Line([0xee; 256]); table.len().div_ceil(256)];
        // SAFETY: there is room for the table.
        unsafe {
            std::ptr::copy_nonoverlapping(table.as_ptr(), here.as_mut_ptr().cast::<u8>(), table.len());
        }
        let args = CopyArgs { from: here.as_ptr() as u64, to, quads: table.len().div_ceil(16) as u64 };
        let (module, kernel, args) = (Module::Rows, "copy_quads", bytemuck::bytes_of(&args));
        self.run(&Launch { module, kernel, grid: [1, 1], threads: 256, args });
    }

    fn download(&self, from: u64, bytes: usize, view: &mut dyn FnMut(usize, &[u8])) {
        for at in (0..bytes).step_by(PIECE_BYTES) {
            let length = PIECE_BYTES.min(bytes - at);
            // SAFETY: as above.
            view(at, unsafe { std::slice::from_raw_parts((from as *const u8).add(at), length) });
        }
    }

    fn adopt(&self, memory: Lasting) -> Result<u64, CudaError> {
        let there = memory.address() as u64;
        self.adopted.lock().unwrap().push(memory);
        Ok(there)
    }

    fn copy(&self, from: u64, to: u64, bytes: usize) {
        assert!(self.is_own(from, bytes) != self.is_own(to, bytes), "{from:x} to {to:x}");
        self.note_places(from, to, bytes);
        // SAFETY: both places are there, as was just asserted, and nobody else uses them meanwhile.
        unsafe { std::ptr::copy_nonoverlapping(from as *const u8, to as *mut u8, bytes) };
    }

    fn fetch(&self, from: u64, bytes: usize) -> u64 {
        assert!(bytes <= cuda::FETCH_BYTES, "a fetch of {bytes} bytes");
        // SAFETY: as above.
        let there = unsafe { std::slice::from_raw_parts(from as *const u8, bytes) }.to_vec();
        let mut fetched = self.fetched.lock().unwrap();
        let number = fetched.last().map_or(0, |(newest, _)| *newest) + 1;
        fetched.push((number, there));
        number
    }

    fn fetched(&self, fetch: u64, view: &mut dyn FnMut(&[u8])) {
        let mut fetched = self.fetched.lock().unwrap();
        let at = fetched.iter().position(|(number, _)| *number == fetch).expect("a fetch that was begun");
        view(&fetched.remove(at).1);
    }

    /// Few, so that each has much to do; as many as on a device where kernels are tried.
    fn together(&self, _module: Module, _kernel: &'static str, _threads: u32) -> Together {
        Together { blocks: if self.trials.is_some() { 132 } else { 2 }, registers_left: 0 }
    }

    fn launch(&self, launch: &Launch<'_>) {
        let prepared = self.prepared.lock().unwrap();
        assert!(
            prepared.is_empty() || prepared.contains(&launch.module),
            "{} comes as a surprise",
            launch.module
        );
        drop(prepared);
        if self.trials.as_ref().is_some_and(|trials| trials.leave_out(launch)) {
            return;
        }
        if launch.kernel == "carry_pieces" {
            self.note_pieces(launch.args);
        }
        self.run(launch);
    }

    fn graphs(&self) -> Option<&dyn Graphs> {
        self.graphs.is_some().then_some(self as &dyn Graphs)
    }

    fn products(&self) -> Option<&dyn Products> {
        self.has_library.then_some(self as &dyn Products)
    }

    fn prefill(&self) -> Prefill {
        match (self.mma, &self.trials) {
            (_, Some(_)) => Prefill::Tried,
            (Mma::OfWarpgroups, None) => Prefill::Warpgroups,
            (Mma::ByTurns, None) => Prefill::Turns,
            _ => Prefill::Warps,
        }
    }

    fn time(&self, work: &mut dyn FnMut()) -> Option<f64> {
        self.trials.as_ref()?.time(work)
    }

    fn verdict(&self, module: Module) -> Option<bool> {
        self.trials.as_ref()?.verdict(module)
    }

    fn try_out(&self, module: Module, trial: &mut dyn FnMut() -> Outcome) {
        self.trials.as_ref().expect("some are tried").run(module, trial);
    }

    // Everything is done when its call returns.
    fn enter(&self, _queue: usize, _after: &[Mark]) {}

    fn mark(&self, _mark: Mark) {}

    fn reach(&self, _mark: Mark) {}

    fn when(&self, _mark: Mark) -> Option<Instant> {
        None
    }

    fn settle(&self) {}

    fn wait(&self) {}
}

/// A graph has what it was made of, whatever becomes of the list that it was made from.
impl Graphs for Emulator {
    fn record(&self, work: &[Work<'_>]) -> Recorded {
        let (count, graphs) = &mut *self.graphs.as_ref().expect("it makes graphs").lock().unwrap();
        let frozen = |work: &Work<'_>| match *work {
            Work::Kernel(Launch { module, kernel, grid, threads, args }) => {
                Frozen::Kernel { module, kernel, grid, threads, args: args.to_vec() }
            }
            Work::Product(product, places) => Frozen::Product(product, places),
        };
        if graphs.len() == GRAPHS {
            return Recorded::NoRoom;
        }
        *count += 1;
        graphs.insert(*count, work.iter().map(frozen).collect());
        Recorded::As(*count)
    }

    fn replay(&self, graph: u64) {
        self.replays.fetch_add(1, Ordering::Relaxed);
        let work = self.graphs.as_ref().expect("it makes graphs").lock().unwrap().1[&graph].clone();
        for piece in work {
            match piece {
                Frozen::Kernel { module, kernel, grid, threads, args } => {
                    self.launch(&Launch { module, kernel, grid, threads, args: &args });
                }
                Frozen::Product(product, places) => {
                    PRODUCTS_OF_GRAPHS.fetch_add(1, Ordering::Relaxed);
                    assert!(self.multiply(&product, &places), "{product:?} in a graph");
                }
            }
        }
    }

    fn forget(&self, graph: u64) {
        let graphs = &mut self.graphs.as_ref().expect("it makes graphs").lock().unwrap().1;
        graphs.remove(&graph).expect("a graph that was made");
    }
}

/// A library of products by the definition: what the layouts say is taken at its word.
impl Products for Emulator {
    fn room(&self) -> Room {
        // So little that products are computed a few panels at a time.
        Room {
            from_rows: 512,
            from_rows_in_place: self.from_rows_in_place,
            weight_bytes: 32 << 10,
            result_bytes: 150 << 10,
            workspace_bytes: 256,
        }
    }

    /// A library may not have every layout.
    fn can(&self, product: &Product, _: &Places) -> bool {
        product.d.stride.is_multiple_of(4) && self.taken.lock().unwrap().get(product) != Some(&false)
    }

    fn has_taken(&self, product: &Product, _: &Places) -> bool {
        self.taken.lock().unwrap().get(product) == Some(&true)
    }

    fn multiply(&self, product: &Product, places: &Places) -> bool {
        let Product { a, b, d, .. } = product;
        let is_taken = d.rows != self.refuses;
        self.taken.lock().unwrap().insert(*product, is_taken);
        if !is_taken {
            return false;
        }
        let (rows, inner) = if a.transposed { (a.cols, a.rows) } else { (a.rows, a.cols) };
        let (inner_of_b, cols) = if b.transposed { (b.cols, b.rows) } else { (b.rows, b.cols) };
        assert_eq!((rows, cols, inner), (d.rows, d.cols, inner_of_b), "{product:?}");
        for (i, j) in (0..rows).flat_map(|i| (0..cols).map(move |j| (i, j))) {
            let terms = (0..inner).map(|l| read(places.a, a, i, l) * read(places.b, b, l, j));
            let mut sum: f32 = terms.sum();
            if product.biased {
                let bias = Layout { numbers: Numbers::F32, rows, cols: 1, stride: rows, transposed: false };
                sum += read(places.bias, &bias, i, 0);
            }
            if product.adds {
                sum += read(places.d, d, i, j);
            }
            write(places.d, d, (i, j), sum);
        }
        true
    }
}
