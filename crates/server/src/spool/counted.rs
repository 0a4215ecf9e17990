//! Requests of batches, in the same figures as those that came over HTTP.

use std::sync::Arc;
use std::time::Instant;

use engine::job::Hears;
use engine::{Event, Failure};
use model::api::{ApiError, Generate};
use model::output::FinishReason;

use crate::app::{App, Phase};
use crate::metrics::Outcome;
use crate::timing::Timing;

/// One request of a batch, from the engine's inbox to its end.
pub(super) struct Counted {
    app: Arc<App>,
    began: Instant,
    /// Sequences that have not ended.
    open: usize,
    longest: usize,
}

impl Counted {
    pub(super) fn new(app: &Arc<App>, request: &Generate) -> Counted {
        app.metrics.request_began(request);
        Counted { app: Arc::clone(app), began: Instant::now(), open: 0, longest: 0 }
    }

    fn ended(&mut self, outcome: Outcome) {
        self.open -= 1;
        self.app.metrics.sequence_ended(outcome, self.began.elapsed());
    }
}

impl Hears for Counted {
    fn sequence(&mut self, prompt_tokens: usize) -> Box<dyn FnMut(&Event) + Send> {
        self.open += 1;
        let mut timing = Timing::new(Arc::clone(&self.app.metrics), self.began, prompt_tokens);
        Box::new(move |event| timing.note(event))
    }

    fn finished(&mut self, reason: FinishReason, n_tokens: usize) {
        self.longest = self.longest.max(n_tokens);
        self.ended(Outcome::Finished(reason));
    }

    /// What the system says names paths: that is for the log.
    fn failed(&mut self, why: Failure) -> ApiError {
        let error = self.app.failed(why);
        self.ended(if error.status >= 500 { Outcome::Error } else { Outcome::Aborted });
        error
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        if self.open == 0 {
            self.app.metrics.longest.observe_count(self.longest);
        }
        let dead = matches!(&*self.app.phase.borrow(), Phase::Dead(_));
        while self.open > 0 {
            self.ended(if dead { Outcome::Error } else { Outcome::Aborted });
        }
        self.app.metrics.request_ended();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use crate::log::tests::Kept;
    use crate::log::{Log, LogFormat, LogLevel};

    #[test]
    fn what_the_drive_did_is_for_the_log() {
        let kept = Kept::default();
        let log = Log::to(kept.clone(), LogFormat::Text, LogLevel::Error).unwrap();
        let config = Config { log: log.clone(), ..Config::new(([127, 0, 0, 1], 0).into()) };
        let app = Arc::new(App::new(config, None));
        let mut one = Counted { app, began: Instant::now(), open: 1, longest: 0 };
        let told = one.failed(Failure::Drive("cannot write /srv/secret/kv-0".into()));
        assert_eq!((told.status, told.code), (503, Some("kv_lost")));
        assert!(!told.message.contains("secret"), "{told}");
        log.flush();
        let log = kept.text();
        assert!(log.contains("cannot write /srv/secret/kv-0"), "{log}");
    }
}
