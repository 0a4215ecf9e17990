//! What is left where nothing that a search looks for is found: the shortest steps, with KV wherever it needs the least memory.

use engine::{Planned, TooSmall};

use super::candidate::{Candidate, Homes};
use super::search::{LEAST, Planner};

impl Planner<'_> {
    /// The first of the plans that need least which fits; no costs are asked for.
    ///
    /// # Errors
    /// What all of them and who was `refused` before lack, by the one that needs least: given so much, that one fits.
    pub(super) fn least_plan(&self, refused: TooSmall) -> Result<Candidate, TooSmall> {
        let mut lacks = refused;
        for candidate in self.shortest() {
            match Planned::beside(self.checkpoint, self.config(&candidate), self.resident_bytes) {
                Ok(_) => return Ok(candidate),
                Err(why) => lacks = lacks.or_less(why),
            }
        }
        Err(lacks)
    }

    /// What a search tries of the shortest steps, wherever KV may be.
    fn shortest(&self) -> Vec<Candidate> {
        let elsewhere = LEAST.map(Homes::exactly).into_iter().filter(|homes| !homes.stay() && self.is_free());
        let away = std::iter::once(None).chain(elsewhere.map(Some));
        let all = away.flat_map(|away| self.candidates(&[], away));
        all.filter(|it| self.steps(it.batch_size).first() == Some(&it.step_tokens)).collect()
    }
}
