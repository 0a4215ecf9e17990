//! Weights that live on the host, computed with there while batches are small (FlexGen, section 4.2): in which steps that
//! takes less than copying them. The costs that the engine was planned with say so (`Outline::plan`); without any
//! it is measured when the engine starts.

use std::time::Instant;

use kernels::arena::Buf;
use kernels::device::Device;
use model::decoder::{Batch, Host, HostWork, Slots, WorkSize};
use policy::pipeline::{BothWays, Delegation};
use spec::{Nanos, Part, Tier};

use crate::config::{EngineConfig, HostLinears};
use crate::step::run::Machine;
use crate::tiers::stowed::{OnHost, Stowed};

/// Tokens that the host has activations for: decodes of many sequences, no prompts, which are worth a copy anywhere.
const TOKENS_MAX: usize = 64;
/// Runs of each, of which the fastest counts.
const RUNS: usize = 3;

impl EngineConfig {
    /// The host's activations, if it may compute with weights.
    pub(crate) fn host_work(&self) -> Option<WorkSize> {
        let tokens = self.max_num_batched_tokens.min(TOKENS_MAX);
        let size = WorkSize { tokens, samples: 0, dtype: self.dtype() };
        (self.offload.linears != HostLinears::Device).then_some(size)
    }
}

/// In which steps the host computes with its weights, as measured.
pub(crate) fn delegation(config: &EngineConfig, machine: &Machine) -> Delegation {
    let (Some(size), Some(work), Some(stowed)) = (config.host_work(), &machine.host_work, &machine.stowed)
    else {
        return Delegation::Never;
    };
    let tokens = size.tokens as u32;
    match config.offload.linears {
        HostLinears::Device => Delegation::Never,
        HostLinears::Host => Delegation::Always { tokens },
        HostLinears::Cheaper => Trial { machine, work, stowed }.cheaper(tokens),
    }
}

/// One layer's MLP, both ways. What the host attends meanwhile is not timed: only costs know of it.
struct Trial<'a> {
    machine: &'a Machine,
    work: &'a HostWork,
    stowed: &'a Stowed,
}

impl Trial<'_> {
    fn cheaper(&self, most: u32) -> Delegation {
        let layers = 0..self.machine.kv.layers.len();
        let home = |layer: usize| Some((layer, self.stowed.home_of(Part::Mlp(layer as u16))?));
        let Some((layer, panels)) = layers.into_iter().find_map(home) else { return Delegation::Never };
        let part = Part::Mlp(layer as u16);
        let devices: (&dyn Device, &dyn Device) = (&*self.machine.device, &*self.machine.host);
        let copy = fastest(|| {
            // From the host to the device nothing is read that could fail.
            let _ = self.stowed.load(devices, part, (Tier::Host, Tier::Device), OnHost::Copied);
            devices.0.wait();
        });
        let time = |tokens: u32| {
            [None, Some(panels)].map(|panels| fastest(|| self.mlp(layer, tokens as usize, panels)))
        };
        Delegation::Cheaper(BothWays::timed(copy, most, time))
    }

    fn mlp(&self, layer: usize, tokens: usize, panels: Option<Buf>) {
        let Machine { device, decoder, buffers, .. } = self.machine;
        let ids = vec![0; tokens];
        let slots = self.stowed.slots_of(Part::Mlp(layer as u16));
        let slots = if panels.is_some() { Slots { host: None, ..slots } } else { slots };
        self.machine.with_host(panels.map(|panels| (panels, self.work)), |host: Option<Host<'_>>| {
            let batch =
                Batch { ids: &ids, positions: &ids, lengths: &ids, spans: &[], samples: &[], slots, host };
            decoder.mlp(&**device, layer, &batch, &buffers[0]);
        });
        device.wait();
    }
}

fn fastest(run: impl Fn()) -> Nanos {
    let time = |_| {
        let begin = Instant::now();
        run();
        begin.elapsed()
    };
    Nanos((0..RUNS).map(time).min().unwrap_or_default().as_nanos() as u64)
}
