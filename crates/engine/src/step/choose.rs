//! Attention on the host, and the first half of a sparse attention: what decodes choose among values that are still away.

use std::sync::Arc;

use kernels::attention::{Chosen, Span};
use kernels::device::KvPages;
use model::decoder::{Batch, Slots};
use spec::Tier;

use crate::step::bound::{BatchRun, Inputs, Over, StepRun};
use crate::step::run::Machine;
use kernels::lock::lock;

impl Machine {
    /// Scores keys that have come, and tells which values count.
    pub(crate) fn choose(&self, step: &StepRun, node: usize, (layer, batch): (usize, u16), on: Tier) {
        let run = &step.batches[usize::from(batch)];
        let spans: Vec<Span<'_>> = run.choosing(on).map(|chunk| chunk.span(0)).collect();
        let chosen = match on {
            Tier::Device => self.choose_on_device(step, node, (layer, batch), &spans),
            _ => self.choose_on_host(step, node, (layer, batch), &spans),
        };
        lock(&run.chosen)[on] = Some(Arc::new(chosen));
    }

    fn choose_on_device(
        &self,
        step: &StepRun,
        node: usize,
        (layer, batch): (usize, u16),
        spans: &[Span<'_>],
    ) -> Chosen {
        let slot = self.slot(step, node, Tier::Device);
        let mut chosen = Chosen::default();
        self.with(step, node, batch, |all, buffers| {
            let decodes = Batch { spans, ..*all };
            chosen = self.decoder.choose(&*self.device, layer, &decodes, slot, buffers);
        });
        chosen
    }

    /// Keys and values of all that attends over the slot are stored first.
    fn choose_on_host(
        &self,
        step: &StepRun,
        node: usize,
        (layer, batch): (usize, u16),
        spans: &[Span<'_>],
    ) -> Chosen {
        let (run, buffers) = (&step.batches[usize::from(batch)], self.host_buffers_of(step, node));
        let (slot, stored) = (self.slot(step, node, Tier::Host), run.spans(Tier::Host, Over::Slot, 0));
        let host = self.kv.host.as_ref().expect("something attends on the host");
        let here = (&*self.host, &host.turning);
        self.decoder.store_kv_there(here, layer, &on_host(run, &stored), slot, buffers);
        self.decoder.choose(&*self.host, layer, &on_host(run, spans), slot, buffers)
    }

    /// What of a batch attends on the host: its keys and values are stored first, unless that was done when values were chosen.
    pub(crate) fn attend_on_host(&self, step: &StepRun, node: usize, layer: usize, batch: u16) {
        let (run, buffers) = (&step.batches[usize::from(batch)], self.host_buffers_of(step, node));
        let host = self.kv.host.as_ref().expect("something attends on the host");
        let pages = &self.kv.layers[layer];
        let _alone = lock(&pages.host_touched);
        let chosen = lock(&run.chosen).host.take();
        for over in [Over::Pages, Over::Slot] {
            let spans = run.spans(Tier::Host, over, pages.place.group);
            if spans.is_empty() {
                continue;
            }
            let pages = if over == Over::Pages { pages.host } else { self.slot(step, node, Tier::Host) };
            let (batch, here) = (on_host(run, &spans), (&*self.host, &host.turning));
            if over == Over::Pages || chosen.is_none() {
                self.decoder.store_kv_there(here, layer, &batch, pages, buffers);
            }
            self.decoder.attend(&*self.host, layer, &batch, pages, buffers);
        }
    }

    fn slot(&self, step: &StepRun, node: usize, tier: Tier) -> KvPages {
        let slot = self.kv.slot(&step.program, &step.program.nodes()[node], tier);
        slot.expect("KV that is attended away from its home has a slot")
    }
}

/// Rows that attend on the host.
fn on_host<'a>(run: &'a BatchRun, spans: &'a [Span<'a>]) -> Batch<'a> {
    let Inputs { ids, positions, lengths, .. } = run.host_inputs();
    Batch { ids, positions, lengths, spans, samples: &[], slots: Slots::default(), host: None }
}
