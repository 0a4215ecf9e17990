//! What a pass has asked for so far.

use std::ops::Range;

use kernels::queue::Mark;

use crate::module::Module;
use crate::product::{Places, Product};
use crate::{Launch, Work};

/// Device memory for the tables of a pass.
pub(crate) const TABLE_BYTES: usize = 1 << 20;
/// Tables that are no longer take as much: those that follow keep their places when one grows.
const LEAST_BYTES: usize = 256;

/// Kernels with their arguments, and products, in order.
#[derive(Debug, Default, PartialEq)]
pub(super) struct List {
    all: Vec<One>,
    args: Vec<u8>,
}

#[derive(Debug, PartialEq)]
enum One {
    Kernel { module: Module, kernel: &'static str, grid: [usize; 2], threads: u32, args: Range<usize> },
    Product(Product, Places),
}

impl List {
    pub(super) fn push(&mut self, launch: &Launch<'_>) {
        let &Launch { module, kernel, grid, threads, args } = launch;
        let first = self.args.len();
        self.args.extend_from_slice(args);
        self.all.push(One::Kernel { module, kernel, grid, threads, args: first..self.args.len() });
    }

    pub(super) fn len(&self) -> usize {
        self.all.len()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = Work<'_>> {
        self.all.iter().map(|one| match *one {
            One::Kernel { module, kernel, grid, threads, ref args } => {
                Work::Kernel(Launch { module, kernel, grid, threads, args: &self.args[args.clone()] })
            }
            One::Product(product, places) => Work::Product(product, places),
        })
    }
}

/// Kernels and products, the tables that they read, and marks.
pub(super) struct Pass {
    list: List,
    image: Vec<u8>,
    tables: Vec<Range<usize>>,
    /// The first and the newest.
    marks: Option<(Mark, Mark)>,
}

impl Pass {
    pub(super) fn new() -> Pass {
        Pass { list: List::default(), image: Vec::new(), tables: Vec::new(), marks: None }
    }

    pub(super) fn launch(&mut self, launch: &Launch<'_>) {
        self.list.push(launch);
    }

    pub(super) fn multiply(&mut self, product: &Product, places: &Places) {
        self.list.all.push(One::Product(*product, *places));
    }

    /// The place of a table: that of one which is the same (layers ask for the same ones), or the next. None if there is no room.
    pub(super) fn table(&mut self, bytes: &[u8]) -> Option<usize> {
        if let Some(same) = self.tables.iter().find(|table| &self.image[(*table).clone()] == bytes) {
            return Some(same.start);
        }
        let at = self.image.len();
        let end = at + bytes.len().next_power_of_two().max(LEAST_BYTES);
        if end > TABLE_BYTES {
            return None;
        }
        self.image.extend_from_slice(bytes);
        self.image.resize(end, 0);
        self.tables.push(at..at + bytes.len());
        Some(at)
    }

    pub(super) fn mark(&mut self, mark: Mark) {
        let first = self.marks.map_or(mark, |(first, _)| first);
        self.marks = Some((first, mark));
    }

    /// Whether a mark is one of its own.
    pub(super) fn has_mark(&self, mark: Mark) -> bool {
        self.marks.is_some_and(|(first, _)| first.queue == mark.queue && first.number <= mark.number)
    }

    pub(super) fn newest_mark(&self) -> Option<Mark> {
        self.marks.map(|(_, newest)| newest)
    }

    /// Its tables, as they are to lie in the device's memory.
    pub(super) fn image(&self) -> &[u8] {
        &self.image
    }

    pub(super) fn into_list(self) -> List {
        self.list
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_keep_their_places_while_they_grow_a_little() {
        let places = |first: usize| {
            let mut pass = Pass::new();
            let tables = [vec![1; first], vec![2; 300], vec![1; first], vec![3; 4]];
            tables.map(|table| pass.table(&table).expect("room"))
        };
        assert_eq!(places(100), [0, 256, 0, 768]);
        assert_eq!(places(100), places(256));
        assert_ne!(places(100), places(257));
    }

    #[test]
    fn what_has_no_room_has_no_place() {
        let mut pass = Pass::new();
        assert_eq!(pass.table(&vec![7; TABLE_BYTES / 2]), Some(0));
        assert_eq!(pass.table(&vec![8; TABLE_BYTES / 2 + 1]), None);
        assert_eq!(pass.table(&vec![9; TABLE_BYTES / 2]), Some(TABLE_BYTES / 2));
        assert_eq!(pass.image().len(), TABLE_BYTES);
    }

    #[test]
    fn marks_from_the_first_on_are_its_own() {
        let mark = |queue, number| Mark { queue, number };
        let mut pass = Pass::new();
        assert!(!pass.has_mark(mark(0, 5)));
        [5, 7].into_iter().for_each(|number| pass.mark(mark(0, number)));
        assert_eq!(
            [mark(0, 4), mark(0, 5), mark(0, 6), mark(1, 6)].map(|m| pass.has_mark(m)),
            [false, true, true, false]
        );
        assert_eq!(pass.newest_mark(), Some(mark(0, 7)));
    }
}
