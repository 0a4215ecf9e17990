//! Large products by a library that takes plain matrices: panels of bf16 are put into rows once (`in_rows`), those of other formats are
//! unpacked, a few at a time, and multiplied.
//!
//! The library's matrices lie column after column, ours row after row; the same memory is one's matrix and the other's
//! transposed. Of what is wanted, `Y = X W^T` with `X [rows, k]`, `W [n, k]` and `Y [rows, n]`, the library computes the
//! transposed, `Y^T = W X^T`, for that is how it sees our memory:
//!
//! ```text
//! memory                    row after row             as the library sees it       what becomes of it
//! A  panels in rows         W [n, k], a row k long    W^T [k, n], a column k long  transposed: op(A) = W [n, k]
//! B  activations            X [rows, k]               X^T [k, rows], a column k    as it is:   op(B) = X^T [k, rows]
//! D  the result             Y [rows, n] of out_cols   Y^T [n, rows], out_cols      D = op(A) op(B)
//! ```
//!
//! A bias is one number for each row of D, which is a column of Y. What the library cannot do on the way (activations, gates, a
//! bias before rounding) is done by a kernel of ours: the product then goes to f32 in the order of the panels first.

use kernels::linear::Format;
use kernels::queue;

use crate::Driver;
use crate::args::{LinearArgs, SumsArgs, UnpackArgs};
use crate::device::GpuDevice;
use crate::in_rows::Panels;
use crate::module::Module;

/// Output rows of a panel.
const PANEL_ROWS: usize = 32;
/// `sink` of [`LinearArgs`]: stored, added, and gated.
const STORE: u32 = 0;
const ADD: u32 = 1;
const GATED: u32 = 3;

/// Numbers of a matrix of the library.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Numbers {
    /// 4 bytes.
    F32,
    /// 2 bytes.
    Bf16,
}

/// A matrix of the library, column after column.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Layout {
    /// What it holds.
    pub numbers: Numbers,
    /// Numbers of a column.
    pub rows: usize,
    /// Columns.
    pub cols: usize,
    /// From the beginning of a column to that of the next, in numbers.
    pub stride: usize,
    /// Whether it is used transposed.
    pub transposed: bool,
}

/// `D = op(A) op(B)`, or added to D; and a number (f32) for each row of D.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Product {
    /// The left factor.
    pub a: Layout,
    /// The right factor.
    pub b: Layout,
    /// The result.
    pub d: Layout,
    /// Whether it is added to what is there.
    pub adds: bool,
    /// Whether there is a bias.
    pub biased: bool,
}

/// Where they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Places {
    /// The left factor.
    pub a: u64,
    /// The right factor.
    pub b: u64,
    /// The result.
    pub d: u64,
    /// The bias; 0 if there is none.
    pub bias: u64,
    /// Memory that the library may use meanwhile: [`Room::workspace_bytes`].
    pub workspace: u64,
}

/// From how many rows on a library is asked, and the device memory that it takes, each of them a multiple of 256.
#[derive(Clone, Copy, Debug)]
pub struct Room {
    /// Rows of activations that make a product large where weights are unpacked for it.
    pub from_rows: usize,
    /// And where the library reads them in their place.
    pub from_rows_in_place: usize,
    /// For unpacked panels.
    pub weight_bytes: usize,
    /// For results on their way through a kernel.
    pub result_bytes: usize,
    /// For the library.
    pub workspace_bytes: usize,
}

impl Room {
    /// All of it.
    pub const fn bytes(&self) -> usize {
        self.weight_bytes + self.result_bytes + self.workspace_bytes
    }

    fn least_rows(&self, weights: Weights) -> usize {
        match weights {
            Weights::InPlace => self.from_rows_in_place,
            Weights::Unpacked => self.from_rows,
        }
    }
}

/// A library of products.
pub trait Products {
    /// What it is given.
    fn room(&self) -> Room;

    /// Whether it can compute this.
    fn can(&self, product: &Product, places: &Places) -> bool;

    /// Whether it has taken such a one before, so that it may be put off: what it refuses later nobody else computes any more.
    fn has_taken(&self, product: &Product, places: &Places) -> bool;

    /// Asks for it in this thread's queue; whether the library took it. Of what it refuses nothing is done, and it cannot compute
    /// such a one from then on.
    fn multiply(&self, product: &Product, places: &Places) -> bool;
}

/// Whether the library's results are ours, or pass through a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Straight,
    Through,
}

/// Consecutive panels of a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Chunk {
    first: usize,
    panels: usize,
}

fn chunks(panels: usize, most: usize) -> impl Iterator<Item = Chunk> {
    (0..panels).step_by(most).map(move |first| Chunk { first, panels: most.min(panels - first) })
}

/// Where the library finds the weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Weights {
    /// Where they lie: in rows.
    InPlace,
    /// Where they are unpacked to, a chunk after the other.
    Unpacked,
}

/// Panels of a chunk: as many as there is room for.
fn panels_of_chunk(way: Way, weights: Weights, args: &LinearArgs, room: &Room) -> usize {
    let by_weights = match weights {
        Weights::InPlace => usize::MAX,
        Weights::Unpacked => room.weight_bytes / (2 * PANEL_ROWS * args.k as usize),
    };
    let by_results = room.result_bytes / (4 * PANEL_ROWS * args.rows as usize);
    if way == Way::Straight { by_weights } else { by_weights.min(by_results) }
}

/// The product of a chunk, and where it is. Beginnings of the memory for unpacked panels, results and the library are given.
fn product(
    (way, weights): (Way, Weights),
    args: &LinearArgs,
    chunk: Chunk,
    [unpacked, results, workspace]: [u64; 3],
) -> (Product, Places) {
    let (k, rows) = (args.k as usize, args.rows as usize);
    let factor =
        |cols, stride, transposed| Layout { numbers: Numbers::Bf16, rows: k, cols, stride, transposed };
    let (a, a_stride) = match weights {
        Weights::Unpacked => (unpacked, k),
        Weights::InPlace => (
            args.panels + chunk.first as u64 * args.panel_bytes,
            args.panel_bytes as usize / (2 * PANEL_ROWS),
        ),
    };
    let result = |numbers, rows_of_d, stride| Layout {
        numbers,
        rows: rows_of_d,
        cols: rows,
        stride,
        transposed: false,
    };
    let row = (args.first_panel as usize + chunk.first) * PANEL_ROWS;
    let (n, d, at) = match way {
        Way::Straight => {
            let n = (chunk.panels * PANEL_ROWS).min(args.n as usize - row);
            let (numbers, bytes) = if args.out_bf16 == 1 { (Numbers::Bf16, 2) } else { (Numbers::F32, 4) };
            let at = args.out + bytes * (args.out_first as usize + row) as u64;
            (n, result(numbers, n, args.out_cols as usize), at)
        }
        Way::Through => {
            let n = chunk.panels * PANEL_ROWS;
            (n, result(Numbers::F32, n, n), results)
        }
    };
    let biased = way == Way::Straight && args.bias != 0;
    let bias = if biased { args.bias + 4 * row as u64 } else { 0 };
    let adds = way == Way::Straight && args.sink == ADD;
    let product = Product { a: factor(n, a_stride, true), b: factor(rows, k, false), d, adds, biased };
    (product, Places { a, b: args.x, d: at, bias, workspace })
}

impl<D: Driver> GpuDevice<D> {
    /// Computes a part of a linear by the library, where there is one and it can. How many panels it computed: the first ones, where
    /// it refuses others.
    pub(crate) fn linear_by_library(&self, format: Format, panels: usize, args: &LinearArgs) -> usize {
        let Some(library) = self.driver.products() else { return 0 };
        let room = library.room();
        let weights = if format == Format::Bf16 { Weights::InPlace } else { Weights::Unpacked };
        // Rows of an unpacked matrix begin at multiples of 16 bytes.
        let fits = args.rows as usize >= room.least_rows(weights) && args.k.is_multiple_of(8);
        // A panel is put into rows by way of the memory for unpacked ones.
        let turns = weights == Weights::Unpacked || args.panel_bytes as usize <= room.weight_bytes;
        if format == Format::F32 || !fits || !turns {
            return 0;
        }
        let memory = self.product_memory(&room);
        let straight = matches!(args.sink, STORE | ADD) && (args.out_bf16 == 0 || args.bias == 0);
        let ways = [(Way::Straight, straight), (Way::Through, true)].into_iter().filter(|(_, may)| *may);
        let can = |&(way, _): &(Way, bool)| {
            let most = panels_of_chunk(way, weights, args, &room).min(panels);
            let can_one = |chunk| {
                let (product, places) = product((way, weights), args, chunk, memory);
                library.can(&product, &places)
            };
            most > 0 && chunks(panels, most).all(can_one)
        };
        let Some((way, _)) = ways.into_iter().find(can) else { return 0 };
        assert_eq!(queue::current(), 0, "one queue computes: it has the memory for unpacked panels");
        if weights == Weights::InPlace {
            self.put_in_rows(&Panels { at: args.panels, count: panels, k: args.k as usize });
        }
        for chunk in chunks(panels, panels_of_chunk(way, weights, args, &room).min(panels)) {
            if weights == Weights::Unpacked {
                self.unpack(format, args, chunk, memory[0]);
            }
            let (product, places) = product((way, weights), args, chunk, memory);
            if !library.multiply(&product, &places) {
                return chunk.first;
            }
            if way == Way::Through {
                self.finish_sums(format, args, chunk, memory[1]);
            }
        }
        panels
    }

    fn unpack(&self, format: Format, args: &LinearArgs, chunk: Chunk, out: u64) {
        let panels = args.panels + chunk.first as u64 * args.panel_bytes;
        let unpack = UnpackArgs { panels, out, panel_bytes: args.panel_bytes, k: args.k, unused: 0 };
        let grid = [chunk.panels, (args.k as usize).div_ceil(32 * UNPACK_GROUPS)];
        self.launch(Module::Linear(format), "unpack_panels", grid, 256, &unpack);
    }

    fn finish_sums(&self, format: Format, args: &LinearArgs, chunk: Chunk, sums: u64) {
        let linear = LinearArgs { first_panel: args.first_panel + chunk.first as u32, ..*args };
        // Four results for each thread.
        let of_panel = PANEL_ROWS / if args.sink == GATED { 8 } else { 4 };
        let grid = [(chunk.panels * args.rows as usize * of_panel).div_ceil(256), 1];
        let sums = SumsArgs { linear, sums, panels: chunk.panels as u32, unused: 0 };
        self.launch(Module::Linear(format), "finish_sums", grid, 256, &sums);
    }
}

/// Groups of 32 of k that a block of `unpack_panels` takes.
pub(crate) const UNPACK_GROUPS: usize = 32;

#[cfg(test)]
mod tests {
    use super::*;

    const ROOM: Room =
        Room { from_rows: 5, from_rows_in_place: 2, weight_bytes: 0, result_bytes: 0, workspace_bytes: 0 };
    const MEMORY: [u64; 3] = [1 << 20, 2 << 20, 3 << 20];

    const STRAIGHT: (Way, Weights) = (Way::Straight, Weights::InPlace);
    const THROUGH: (Way, Weights) = (Way::Through, Weights::Unpacked);

    fn args(sink: u32, bias: u64) -> LinearArgs {
        LinearArgs {
            x: 512,
            panels: 1024,
            bias,
            out: 4096,
            panel_bytes: 64 * 64,
            rows: 7,
            n: 90,
            k: 40,
            first_panel: 1,
            out_cols: 100,
            out_first: 5,
            sink,
            act: 0,
            out_bf16: 0,
            row_bytes: 0,
        }
    }

    #[test]
    fn a_ragged_end_is_not_written_beyond_and_columns_are_where_they_belong() {
        let (product, places) = product(STRAIGHT, &args(ADD, 256), Chunk { first: 1, panels: 1 }, MEMORY);
        // Panel 2 has output rows 64..90.
        assert_eq!((product.a.cols, product.d.rows, product.d.cols, product.d.stride), (26, 26, 7, 100));
        assert_eq!((places.d, places.bias), (4096 + 4 * (5 + 64), 256 + 4 * 64));
        assert!(product.adds && product.biased && product.a.transposed && !product.b.transposed);
        // Weights where they lie, in rows whose ends are filled up.
        assert_eq!((places.a, product.a.rows, product.a.stride), (1024 + 64 * 64, 40, 64));
    }

    #[test]
    fn what_passes_through_a_kernel_lies_in_the_order_of_panels() {
        let (product, places) = product(THROUGH, &args(2, 256), Chunk { first: 0, panels: 2 }, MEMORY);
        assert_eq!((product.d.rows, product.d.stride, product.d.numbers), (64, 64, Numbers::F32));
        assert_eq!((places.a, places.d, places.bias), (MEMORY[0], MEMORY[1], 0));
        assert_eq!(product.a.stride, 40);
        assert!(!product.adds && !product.biased);
    }

    #[test]
    fn what_must_be_unpacked_is_the_librarys_from_more_rows_on() {
        assert_eq!([Weights::InPlace, Weights::Unpacked].map(|weights| ROOM.least_rows(weights)), [2, 5]);
    }

    #[test]
    fn chunks_take_what_there_is_room_for() {
        let room = Room { weight_bytes: 8000, result_bytes: 1000, ..ROOM };
        let most = |way, weights| panels_of_chunk(way, weights, &args(STORE, 0), &room);
        assert_eq!([Way::Straight, Way::Through].map(|way| most(way, Weights::Unpacked)), [3, 1]);
        assert_eq!([Way::Straight, Way::Through].map(|way| most(way, Weights::InPlace)), [usize::MAX, 1]);
        let all: Vec<_> = chunks(5, 3).map(|chunk| (chunk.first, chunk.panels)).collect();
        assert_eq!(all, [(0, 3), (3, 2)]);
    }
}
