//! What more memory would bring.

use anyhow::Result;
use engine::{DeviceChoice, EngineConfig};
use spec::ByTier;

use super::candidate::Scored;
use super::search::{Found, Planner};

impl Planner<'_> {
    /// What tokens a second `richer` adds to those of the fastest that was found. It looks as far, and at the plan itself; and what it
    /// likes best is tried with what there is: that nobody had looked at a plan is no gain of memory.
    pub(super) fn gain(&self, found: &Found, richer: &Planner<'_>) -> Result<f64> {
        let mut then = richer.search(found.keep)?.map(|found| found.scored).unwrap_or_default();
        then.extend(richer.score(found.scored[0].candidate)?.filter(|scored| self.is_soon(&scored.run)));
        let Some(best) = then.iter().max_by(|a, b| a.run.tokens_per_s().total_cmp(&b.run.tokens_per_s()))
        else {
            return Ok(0.0);
        };
        let here = self.score(best.candidate)?.filter(|scored| self.is_soon(&scored.run));
        Ok((best.run.tokens_per_s() - fastest(found.scored.iter().chain(&here))).max(0.0))
    }

    /// What tokens a second one more GiB of each tier would add to those of the fastest that was found; nothing for a tier that
    /// there is not.
    pub(crate) fn one_more_gib(&self, found: &Found) -> Result<ByTier<f64>> {
        const GIB: u64 = 1 << 30;
        let gain = |grow: fn(&mut EngineConfig)| -> Result<f64> {
            let mut base = self.base.clone();
            grow(&mut base);
            self.gain(found, &Planner { base, ..*self })
        };
        let apart = self.base.device == DeviceChoice::Cuda;
        let carved = self.base.offload.device_memory.is_some();
        Ok(ByTier {
            device: gain(|base| {
                // A GPU's memory is its own; any other device's share is of the process's memory.
                base.memory += if base.device == DeviceChoice::Cuda { 0 } else { GIB };
                base.offload.device_memory = base.offload.device_memory.map(|bytes| bytes + GIB);
            })?,
            host: if carved || apart { gain(|base| base.memory += GIB)? } else { 0.0 },
            disk: match self.base.offload.disk {
                Some(_) => gain(|base| base.offload.disk = base.offload.disk.map(|bytes| bytes + GIB))?,
                None => 0.0,
            },
        })
    }
}

fn fastest<'a>(scored: impl IntoIterator<Item = &'a Scored>) -> f64 {
    scored.into_iter().map(|scored| scored.run.tokens_per_s()).fold(0.0, f64::max)
}
