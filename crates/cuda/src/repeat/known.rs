//! Lists of work that was done, and the graphs that were made of them.

use std::collections::VecDeque;

use crate::{Graphs, Recorded, Work};

use super::pass::List;

/// Lists that are remembered.
const LISTS: usize = 32;
/// How often a list's graph is tried to be made, though there is no room for it even alone. What another process takes meanwhile looks
/// like a graph's memory, so that one refusal says little; each costs what it takes to make a graph.
const TRIES: u32 = 4;
/// Fewer pieces of work than these are as soon started one by one.
const FEW: usize = 8;

/// The newest first.
#[derive(Default)]
pub(super) struct Known {
    lists: VecDeque<Seen>,
}

struct Seen {
    list: List,
    graph: Graph,
}

/// A list's graph: made when the list comes a second time.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Graph {
    NotYet {
        /// How often there was no room for it, even alone, or it was spoilt.
        tried: u32,
    },
    Made(u64),
    /// It could not be made as often as it was tried, or there is none of such work.
    Never,
}

impl Known {
    /// Does a list's work: as a graph, if it was done before and graphs can be made; else piece by piece by `start`.
    pub(super) fn run(&mut self, graphs: Option<&dyn Graphs>, list: List, mut start: impl FnMut(&Work<'_>)) {
        let Some(graphs) = graphs.filter(|_| list.len() >= FEW) else {
            return list.iter().for_each(|work| start(&work));
        };
        let place = self.lists.iter().position(|seen| seen.list == list);
        if let Some(mut seen) = place.and_then(|place| self.lists.remove(place)) {
            self.make(graphs, &mut seen);
            let graph = seen.graph;
            self.lists.push_front(seen);
            if let Graph::Made(graph) = graph {
                return graphs.replay(graph);
            }
            return list.iter().for_each(|work| start(&work));
        }
        list.iter().for_each(|work| start(&work));
        self.lists.push_front(Seen { list, graph: Graph::NotYet { tried: 0 } });
        while self.lists.len() > LISTS {
            self.lists
                .pop_back()
                .and_then(Seen::into_graph)
                .into_iter()
                .for_each(|graph| graphs.forget(graph));
        }
    }

    /// Makes a list's graph, if there is none. Where there is no room for it the one that was not wanted for longest gives way,
    /// and this one is made when it is wanted next.
    fn make(&mut self, graphs: &dyn Graphs, seen: &mut Seen) {
        let Graph::NotYet { tried } = seen.graph else { return };
        let again = if tried + 1 == TRIES { Graph::Never } else { Graph::NotYet { tried: tried + 1 } };
        let work: Vec<Work<'_>> = seen.list.iter().collect();
        match graphs.record(&work) {
            Recorded::As(graph) => return seen.graph = Graph::Made(graph),
            Recorded::Never => return seen.graph = Graph::Never,
            Recorded::NotNow => return seen.graph = again,
            Recorded::NoRoom => (),
        }
        let made = |other: &&mut Seen| matches!(other.graph, Graph::Made(_));
        match self.lists.iter_mut().rev().find(made) {
            Some(other) => {
                let given_up = std::mem::replace(&mut other.graph, Graph::NotYet { tried: 0 });
                given_up.number().into_iter().for_each(|graph| graphs.forget(graph));
            }
            None => seen.graph = again,
        }
    }
}

impl Seen {
    fn into_graph(self) -> Option<u64> {
        self.graph.number()
    }
}

impl Graph {
    fn number(self) -> Option<u64> {
        match self {
            Graph::Made(number) => Some(number),
            Graph::NotYet { .. } | Graph::Never => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};

    use super::*;
    use crate::Launch;
    use crate::module::Module;

    /// Graphs of whoever has room for `room` of them, and makes none of kernels whose argument is 99, and at first none of those whose
    /// argument is 98.
    #[derive(Default)]
    struct Fake {
        room: usize,
        /// So many graphs more find no room, as others have it.
        busy: Cell<usize>,
        /// So many graphs of 98 more are spoilt.
        spoilt: Cell<u32>,
        log: RefCell<Vec<String>>,
        made: RefCell<Vec<u64>>,
    }

    impl Graphs for Fake {
        fn record(&self, work: &[Work<'_>]) -> Recorded {
            let mut made = self.made.borrow_mut();
            let Work::Kernel(Launch { args: &[number], .. }) = work[0] else { panic!("{:?}", work[0]) };
            if number == 99 {
                return Recorded::Never;
            }
            if number == 98 && self.spoilt.get() > 0 {
                self.spoilt.set(self.spoilt.get() - 1);
                return Recorded::NotNow;
            }
            let is_busy = self.busy.get() > 0;
            if is_busy || made.len() == self.room {
                self.busy.set(self.busy.get().saturating_sub(1));
                return Recorded::NoRoom;
            }
            let number = u64::from(number);
            made.push(number);
            self.log.borrow_mut().push(format!("record {number}"));
            Recorded::As(number)
        }

        fn replay(&self, graph: u64) {
            assert!(self.made.borrow().contains(&graph));
            self.log.borrow_mut().push(format!("replay {graph}"));
        }

        fn forget(&self, graph: u64) {
            self.made.borrow_mut().retain(|made| *made != graph);
            self.log.borrow_mut().push(format!("forget {graph}"));
        }
    }

    /// What becomes of `kernels` kernels with these arguments, list after list.
    fn story(room: usize, kernels: usize, lists: &[u8]) -> String {
        story_of(&Fake { room, ..Fake::default() }, kernels, lists)
    }

    fn story_of(fake: &Fake, kernels: usize, lists: &[u8]) -> String {
        let mut known = Known::default();
        for arg in lists {
            let mut list = List::default();
            let args = [*arg];
            let one =
                Launch { module: Module::Rows, kernel: "norm_rows", grid: [1, 1], threads: 32, args: &args };
            (0..kernels).for_each(|_| list.push(&one));
            let mut started = 0;
            known.run(Some(fake), list, |_| started += 1);
            if started > 0 {
                assert_eq!(started, kernels);
                fake.log.borrow_mut().push(format!("start {arg}"));
            }
        }
        fake.log.take().join(", ")
    }

    #[test]
    fn what_comes_again_is_recorded_and_then_replayed() {
        assert_eq!(story(9, 8, &[1, 1, 2, 1]), "start 1, record 1, replay 1, start 2, replay 1");
        assert_eq!(story(9, 7, &[1, 1, 1]), "start 1, start 1, start 1");
    }

    #[test]
    fn the_one_that_was_not_wanted_for_longest_gives_way() {
        assert_eq!(
            story(1, 8, &[1, 1, 2, 2, 2, 1]),
            "start 1, record 1, replay 1, start 2, forget 1, start 2, record 2, replay 2, forget 2, start 1"
        );
        assert_eq!(story(0, 8, &[1, 1, 1]), "start 1, start 1, start 1");
    }

    #[test]
    fn what_found_no_room_is_tried_again_a_few_times() {
        let story = |busy| {
            let fake = Fake { room: 1, busy: Cell::new(busy), ..Fake::default() };
            let story = story_of(&fake, 8, &[1; 8]);
            (story, fake.busy.get())
        };
        // The first time no graph is asked for.
        assert_eq!(story(1).0, format!("start 1, start 1, record 1{}", ", replay 1".repeat(6)));
        let never = ["start 1"; 8].join(", ");
        assert_eq!(story(99), (never, 99 - TRIES as usize));
    }

    #[test]
    fn what_was_spoilt_is_tried_again_and_nothing_gives_way_to_it() {
        let story = |spoilt| {
            story_of(
                &Fake { room: 2, spoilt: Cell::new(spoilt), ..Fake::default() },
                8,
                &[1, 1, 98, 98, 98, 98, 98, 98, 1],
            )
        };
        let begins = "start 1, record 1, replay 1, start 98, start 98";
        assert_eq!(story(1), format!("{begins}, record 98{}, replay 1", ", replay 98".repeat(4)));
        assert_eq!(story(TRIES), format!("{begins}{}, replay 1", ", start 98".repeat(4)));
    }

    #[test]
    fn nothing_gives_way_to_what_there_is_no_graph_of() {
        assert_eq!(
            story(1, 8, &[1, 1, 99, 99, 99, 1]),
            "start 1, record 1, replay 1, start 99, start 99, start 99, replay 1"
        );
    }

    #[test]
    fn lists_are_forgotten_with_their_graphs() {
        let many: Vec<u8> = [1, 1].into_iter().chain(2..2 + LISTS as u8).collect();
        assert!(story(9, 8, &many).ends_with(&format!("start {LISTS}, forget 1, start {}", LISTS + 1)));
        // It is not known any more.
        let again: Vec<u8> = many.iter().copied().chain([1]).collect();
        assert!(story(9, 8, &again).ends_with("start 1"));
    }
}
