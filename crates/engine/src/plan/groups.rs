//! Which layers share KV blocks: all, where what lies behind windows is kept; else those that see all positions apart from those that
//! look back through a window, in groups of as many.

use policy::sched::Schedule;
use spec::{KvGroups, ModelSpec, Tokens};

use crate::config::EngineConfig;

/// The groups, and where each layer is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Groups {
    pub(crate) kv: KvGroups,
    /// Layers that a block has room for.
    pub(crate) slots: usize,
    /// By layer.
    pub(crate) places: Vec<Place>,
}

/// Of which group a layer is, and which of its layers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) group: usize,
    pub(crate) slot: usize,
}

impl Groups {
    /// For sequences of up to `longest` positions under a config that is settled. Where KV leaves the device, and where schedules
    /// reserve it to the end, all layers share blocks, and all of it is kept; so they do where windows are as long as sequences.
    pub(crate) fn of(spec: &ModelSpec, config: &EngineConfig, longest: usize) -> Groups {
        let here = config.blocks.stay() && config.host_kv_tokens + config.drive_kv_tokens == 0;
        let continuous = config.blocks.schedule == Some(Schedule::Continuous);
        let windows = (0..spec.layers).filter_map(|layer| spec.window_of(layer));
        let Some(window) = windows.max().filter(|_| here && continuous) else { return Groups::whole(spec) };
        let tokens = |n: usize| Tokens(n.min(u32::MAX as usize / 2) as u32);
        let [full, sliding] = layers(spec);
        let slots = slots([full, sliding]);
        let kv = KvGroups {
            full: full.div_ceil(slots),
            sliding: sliding.div_ceil(slots),
            behind: tokens(window - 1),
            ahead: tokens(config.depth() * config.max_num_batched_tokens),
        };
        let (blocks, kept) = (tokens(longest).blocks(), KvGroups::default());
        let bytes = |groups: KvGroups, slots| groups.most(blocks) * slots;
        match bytes(kv, slots) < bytes(kept, spec.layers) {
            true => Groups::by(spec, kv),
            false => Groups::whole(spec),
        }
    }

    /// These groups, as they were planned.
    pub(crate) fn by(spec: &ModelSpec, kv: KvGroups) -> Groups {
        if kv == KvGroups::default() {
            return Groups::whole(spec);
        }
        let slots = slots(layers(spec));
        let mut next = [0, kv.full * slots];
        let places = (0..spec.layers).map(|layer| {
            let next = &mut next[usize::from(spec.window_of(layer).is_some())];
            *next += 1;
            Place { group: (*next - 1) / slots, slot: (*next - 1) % slots }
        });
        Groups { kv, slots, places: places.collect() }
    }

    fn whole(spec: &ModelSpec) -> Groups {
        let places = (0..spec.layers).map(|slot| Place { group: 0, slot }).collect();
        Groups { kv: KvGroups::default(), slots: spec.layers, places }
    }
}

/// Layers that see all positions, and those with a window.
fn layers(spec: &ModelSpec) -> [usize; 2] {
    let sliding = (0..spec.layers).filter(|&layer| spec.window_of(layer).is_some()).count();
    [spec.layers - sliding, sliding]
}

/// How many layers a group has: so many that few slots are left empty, where sequences are some windows long, and that groups are
/// few, since each has a table.
fn slots([full, sliding]: [usize; 2]) -> usize {
    /// How much longer sequences are than a window.
    const WINDOWS: usize = 4;
    /// A group more is worth this part of all memory.
    const GROUP: usize = 200;
    let taken = |slots: usize| {
        let groups = [full, sliding].map(|layers| layers.div_ceil(slots));
        (WINDOWS * groups[0] + groups[1]) * slots * (GROUP + groups[0] + groups[1])
    };
    (1..=full.max(sliding)).min_by_key(|slots| taken(*slots)).expect("a model has layers")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::blocks::Passes;
    use spec::model::Window;
    use spec::{ByTier, Split};

    fn model(name: &str) -> ModelSpec {
        let golden =
            std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../model/tests/golden").join(name);
        model::Checkpoint::open(&golden).expect("a golden model").spec().clone()
    }

    fn config() -> EngineConfig {
        EngineConfig { max_num_batched_tokens: 32, ..EngineConfig::plain(1 << 30, 1) }
    }

    fn of(name: &str, config: &EngineConfig, longest: usize) -> Groups {
        Groups::of(&model(name), &config.settled(Passes::Resident), longest)
    }

    #[test]
    fn layers_with_windows_are_apart_from_those_without() {
        let gemma = of("gemma3", &config(), 512);
        let place = |group| Place { group, slot: 0 };
        assert_eq!(
            (gemma.slots, &gemma.places[..]),
            (1, &[1, 2, 0].map(place)[..]),
            "two windows, one without"
        );
        assert_eq!(gemma.kv, KvGroups { full: 1, sliding: 2, behind: Tokens(19), ahead: Tokens(32) });
        let mistral = of("mistral", &config(), 512);
        assert_eq!((mistral.slots, mistral.kv.full, mistral.kv.sliding), (2, 0, 1));
        assert_eq!(mistral.places, [0, 1].map(|slot| Place { group: 0, slot }));
        assert_eq!(Groups::by(&model("gemma3"), gemma.kv), gemma);
    }

    #[test]
    fn few_slots_are_empty_in_models_as_they_are_published() {
        // Gemma 3 of 1B, 4B, 12B and 27B, OLMo 3 of 7B, Ministral 8B, Mistral 7B.
        let published = [[4, 22], [5, 29], [8, 40], [10, 52], [8, 24], [9, 27], [0, 32]];
        assert_eq!(published.map(slots), [2, 5, 8, 5, 8, 9, 32]);
        assert_eq!([[1, 47], [47, 1]].map(slots), [2, 6]);
    }

    #[test]
    fn all_is_kept_where_windows_spare_nothing_and_where_kv_leaves_the_device() {
        let whole = |config: &EngineConfig, longest| {
            let groups = of("gemma3", config, longest);
            assert_eq!((groups.kv, groups.slots), (KvGroups::default(), 3), "{longest}");
        };
        whole(&config(), 96);
        whole(&EngineConfig { host_kv_tokens: 64, ..config() }, 512);
        whole(&EngineConfig { drive_kv_tokens: 64, ..config() }, 512);
        let mut other = config();
        other.blocks.schedule = Some(Schedule::Zigzag);
        whole(&other, 512);
        let mut away = config();
        let half = Split::WHOLE / 2;
        away.blocks.kv = Split::new(ByTier { device: half, host: Split::WHOLE - half, disk: 0 }).unwrap();
        whole(&away, 512);
        let mut endless = model("mistral");
        endless.window = Window::Sliding(u32::MAX as usize);
        let config = config().settled(Passes::Resident);
        assert_eq!(Groups::of(&endless, &config, 512).kv, KvGroups::default(), "no sequence is so long");
        let full = of("llama-gqa-tied", &config, 512);
        assert_eq!(full.kv, KvGroups::default(), "no layer has a window");
    }
}
