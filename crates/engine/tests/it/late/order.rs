//! What happens before what, from queues and marks alone: finds two calls that share bytes and that nothing orders,
//! whichever of them came first this time.

use std::collections::HashMap;

use kernels::arena::Buf;
use kernels::queue::Mark;

/// How many calls of each queue are known to be over.
type Clock = HashMap<usize, u64>;

fn join(mine: &mut Clock, other: &Clock) {
    for (queue, count) in other {
        let known = mine.entry(*queue).or_insert(0);
        *known = (*known).max(*count);
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Touches {
    Reads,
    Writes,
}

/// Who touched a buffer last, of one queue in one way.
struct Last {
    number: u64,
    what: &'static str,
}

/// One device's memory.
#[derive(Default)]
pub(crate) struct Order {
    queues: HashMap<usize, Clock>,
    marks: HashMap<Mark, Clock>,
    /// Known to every queue: all that was asked for before somebody waited for everything.
    floor: Clock,
    touched: HashMap<(Buf, usize, Touches), Last>,
}

impl Order {
    /// # Errors
    /// If a mark was never made.
    pub(crate) fn enter(&mut self, queue: usize, after: &[Mark]) -> Result<(), String> {
        let clock = self.queues.entry(queue).or_default();
        for mark in after {
            let known =
                self.marks.get(mark).ok_or_else(|| format!("a wait for {mark:?}, which nobody made"))?;
            join(clock, known);
        }
        Ok(())
    }

    pub(crate) fn mark(&mut self, mark: Mark) {
        let clock = self.queues.entry(mark.queue).or_default().clone();
        self.marks.insert(mark, clock);
    }

    /// Somebody waited for all there is.
    pub(crate) fn wait(&mut self) {
        for (queue, clock) in &self.queues {
            let own = clock.get(queue).copied().unwrap_or(0);
            self.floor.insert(*queue, own);
        }
    }

    /// A call of a queue.
    ///
    /// # Errors
    /// Which other call it may run beside, and must not.
    pub(crate) fn call(
        &mut self,
        queue: usize,
        what: &'static str,
        buffers: &[(Buf, Touches)],
    ) -> Result<(), String> {
        let clock = self.queues.entry(queue).or_default();
        join(clock, &self.floor);
        let number = clock.get(&queue).copied().unwrap_or(0) + 1;
        clock.insert(queue, number);
        for &(buf, touches) in buffers {
            let clash = self.touched.iter().find(|((other, there, before), last)| {
                other.overlaps(&buf)
                    && (touches == Touches::Writes || *before == Touches::Writes)
                    && clock.get(there).copied().unwrap_or(0) < last.number
            });
            if let Some(((other, there, before), last)) = clash {
                return Err(format!(
                    "a wait is missing: {what} of queue {queue} {touches:?} {buf:?}, and nothing says that {} of queue \
                     {there} is over, which {before:?} {other:?}",
                    last.what
                ));
            }
        }
        for &(buf, touches) in buffers {
            self.touched.insert((buf, queue, touches), Last { number, what });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::Touches::{Reads, Writes};
    use super::*;
    use kernels::arena::Ledger;

    fn bufs() -> [Buf; 2] {
        let mut ledger = Ledger::new(256);
        [ledger.take(64).unwrap(), ledger.take(64).unwrap()]
    }

    #[test]
    fn two_queues_that_share_bytes_must_be_ordered() {
        let [a, b] = bufs();
        for first in [Reads, Writes] {
            let mut order = Order::default();
            order.call(0, "first", &[(a, first)]).unwrap();
            order.call(1, "reader", &[(b, Writes)]).unwrap();
            let error = order.call(1, "writer", &[(a.slice(63, 1), Writes)]).unwrap_err();
            assert!(error.contains("writer") && error.contains("first"), "{error}");
        }
        let mut order = Order::default();
        order.call(0, "first", &[(a, Reads)]).unwrap();
        order.call(1, "second", &[(a, Reads)]).unwrap();
    }

    #[test]
    fn marks_order_and_carry_on_what_they_know() {
        let [a, _] = bufs();
        let mut order = Order::default();
        let mark = |queue, number| Mark { queue, number };
        order.call(0, "first", &[(a, Writes)]).unwrap();
        order.mark(mark(0, 1));
        order.enter(1, &[mark(0, 1)]).unwrap();
        order.mark(mark(1, 2));
        order.enter(2, &[mark(1, 2)]).unwrap();
        order.call(2, "third", &[(a, Writes)]).unwrap();
        // What comes after a mark is not known by it.
        order.call(2, "late", &[(a, Writes)]).unwrap();
        order.mark(mark(2, 3));
        order.call(2, "later", &[(a, Writes)]).unwrap();
        order.enter(0, &[mark(2, 3)]).unwrap();
        assert!(order.call(0, "again", &[(a, Reads)]).unwrap_err().contains("later"));
        assert!(order.enter(0, &[mark(3, 1)]).is_err());
    }

    #[test]
    fn a_wait_for_everything_orders_all_before_and_nothing_after() {
        let [a, _] = bufs();
        let mut order = Order::default();
        order.call(0, "first", &[(a, Writes)]).unwrap();
        order.wait();
        order.call(1, "second", &[(a, Writes)]).unwrap();
        assert!(order.call(0, "third", &[(a, Writes)]).is_err());
    }
}
