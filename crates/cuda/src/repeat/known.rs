//! Lists of kernels that were run, and the graphs that were made of them.

use std::collections::VecDeque;

use crate::{Graphs, Launch};

use super::pass::Launches;

/// Lists that are remembered.
const LISTS: usize = 32;
/// Fewer kernels than these are as soon started one by one.
const FEW: usize = 8;

/// The newest first.
#[derive(Default)]
pub(super) struct Known {
    lists: VecDeque<List>,
}

struct List {
    launches: Launches,
    graph: Graph,
}

/// A list's graph: made when the list comes a second time.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Graph {
    NotYet,
    Made(u64),
    /// There is no room for it, even alone.
    TooLarge,
}

impl Known {
    /// Runs kernels: as a graph, if these were run before and graphs can be made; else each by `start`.
    pub(super) fn run(
        &mut self,
        graphs: Option<&dyn Graphs>,
        launches: Launches,
        mut start: impl FnMut(&Launch<'_>),
    ) {
        let Some(graphs) = graphs.filter(|_| launches.len() >= FEW) else {
            return launches.iter().for_each(|launch| start(&launch));
        };
        let seen = self.lists.iter().position(|list| list.launches == launches);
        if let Some(mut list) = seen.and_then(|place| self.lists.remove(place)) {
            self.make(graphs, &mut list);
            let graph = list.graph;
            self.lists.push_front(list);
            if let Graph::Made(graph) = graph {
                return graphs.replay(graph);
            }
            return launches.iter().for_each(|launch| start(&launch));
        }
        launches.iter().for_each(|launch| start(&launch));
        self.lists.push_front(List { launches, graph: Graph::NotYet });
        while self.lists.len() > LISTS {
            self.lists
                .pop_back()
                .and_then(List::into_graph)
                .into_iter()
                .for_each(|graph| graphs.forget(graph));
        }
    }

    /// Makes a list's graph, if there is none. Where there is no room for it the one that was not wanted for longest gives way,
    /// and this one is made when it is wanted next.
    fn make(&mut self, graphs: &dyn Graphs, list: &mut List) {
        if list.graph != Graph::NotYet {
            return;
        }
        let kernels: Vec<Launch<'_>> = list.launches.iter().collect();
        if let Some(graph) = graphs.record(&kernels) {
            list.graph = Graph::Made(graph);
            return;
        }
        let made = |other: &&mut List| matches!(other.graph, Graph::Made(_));
        match self.lists.iter_mut().rev().find(made) {
            Some(other) => {
                let given_up = std::mem::replace(&mut other.graph, Graph::NotYet);
                given_up.number().into_iter().for_each(|graph| graphs.forget(graph));
            }
            None => list.graph = Graph::TooLarge,
        }
    }
}

impl List {
    fn into_graph(self) -> Option<u64> {
        self.graph.number()
    }
}

impl Graph {
    fn number(self) -> Option<u64> {
        match self {
            Graph::Made(number) => Some(number),
            Graph::NotYet | Graph::TooLarge => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;
    use crate::module::Module;

    /// Graphs of whoever has room for `room` of them.
    struct Fake {
        room: usize,
        log: RefCell<Vec<String>>,
        made: RefCell<Vec<u64>>,
    }

    impl Graphs for Fake {
        fn record(&self, launches: &[Launch<'_>]) -> Option<u64> {
            let mut made = self.made.borrow_mut();
            let number = u64::from(launches[0].args[0]);
            let fits = made.len() < self.room;
            fits.then(|| {
                made.push(number);
                self.log.borrow_mut().push(format!("record {number}"));
                number
            })
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
        let fake = Fake { room, log: RefCell::default(), made: RefCell::default() };
        let mut known = Known::default();
        for arg in lists {
            let mut launches = Launches::default();
            let args = [*arg];
            let one =
                Launch { module: Module::Rows, kernel: "norm_rows", grid: [1, 1], threads: 32, args: &args };
            (0..kernels).for_each(|_| launches.push(&one));
            let mut started = 0;
            known.run(Some(&fake), launches, |_| started += 1);
            if started > 0 {
                assert_eq!(started, kernels);
                fake.log.borrow_mut().push(format!("start {arg}"));
            }
        }
        fake.log.into_inner().join(", ")
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
    fn lists_are_forgotten_with_their_graphs() {
        let many: Vec<u8> = [1, 1].into_iter().chain(2..2 + LISTS as u8).collect();
        assert!(story(9, 8, &many).ends_with(&format!("start {LISTS}, forget 1, start {}", LISTS + 1)));
        // It is not known any more.
        let again: Vec<u8> = many.iter().copied().chain([1]).collect();
        assert!(story(9, 8, &again).ends_with("start 1"));
    }
}
