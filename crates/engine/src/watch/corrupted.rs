//! Sequences whose logits are no numbers: a broken model, or broken memory.

use std::sync::Arc;

use model::sampling::SampleError;

use crate::front::request::{Event, Failure, Sink};
use crate::watch::stats::Stats;

/// Events on their way to `events`, counted where they tell of one.
pub(crate) fn counted(stats: Arc<Stats>, mut events: Sink) -> Sink {
    Box::new(move |event| {
        if matches!(event, Event::Failed(Failure::Sample(SampleError::NotFinite))) {
            stats.corrupted();
        }
        events(event);
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;

    #[test]
    fn only_what_is_no_number_is_counted_and_all_is_told() {
        let (stats, (sender, told)) = (Arc::new(Stats::default()), channel());
        let mut events = counted(Arc::clone(&stats), Box::new(move |event| sender.send(event).unwrap()));
        for why in [SampleError::NotFinite, SampleError::NothingAllowed, SampleError::NotFinite] {
            events(Event::Failed(Failure::Sample(why)));
        }
        assert_eq!((stats.counts().corrupted, told.try_iter().count()), (2, 3));
    }
}
