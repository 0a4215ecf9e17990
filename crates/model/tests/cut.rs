//! Weights cut in three: shares within a panel, the same values wherever they live, and no kernel that reads another tier.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;

use kernels::arena::Buf;
use kernels::device::{Device, Dtype};
use kernels::{CpuDevice, Isa, Team};
use model::Checkpoint;
use model::decoder::{Batch, Blueprint, Decoder, Loader, Slots, WeightsAs, Work, WorkSize};
use model::store::{Cut, Layout, Maker};
use spec::{ByTier, ModelSpec, Split};

fn checkpoint() -> Checkpoint {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/llama-gqa-tied");
    Checkpoint::open(&folder).expect("a committed checkpoint")
}

fn blueprint(checkpoint: &Checkpoint, weights: WeightsAs) -> Blueprint {
    Blueprint::new(checkpoint.spec(), weights, |tensor| checkpoint.info(tensor).expect("it has it").stored)
}

fn split(device: u32, host: u32) -> Split {
    let percent = ByTier { device, host, disk: 100 - device - host };
    Split::new(percent.map(|percent| percent * (Split::WHOLE / 100))).expect("a hundred percent")
}

#[test]
fn each_tier_has_its_share_within_a_panel() {
    let spec = ModelSpec { layers: 11, ..checkpoint().spec().clone() };
    for weights in [WeightsAs::Bf16, WeightsAs::Bf12, WeightsAs::Int8, WeightsAs::Int4, WeightsAs::F32] {
        let blueprint = Blueprint::new(&spec, weights, |_| model::Stored::Bf16);
        let layout = Layout::of(&blueprint);
        let of_layers: Vec<usize> = {
            let plans = blueprint.layers.iter().flat_map(|l| l.qkv.iter().chain([&l.out, &l.up, &l.down]));
            plans.map(|plan| layout.index_of(plan)).collect()
        };
        let panel = |matrix: usize| layout.places()[matrix].panel_bytes;
        let all: usize = of_layers.iter().map(|&m| layout.places()[m].panels * panel(m)).sum();
        let most = of_layers.iter().map(|&m| panel(m)).max().expect("matrices");
        for (device, host) in
            [(0, 0), (20, 0), (0, 20), (20, 20), (33, 48), (50, 50), (0, 100), (100, 0), (1, 98)]
        {
            let cut = Cut::new(&blueprint, &layout, split(device, host));
            let on_device: usize = of_layers.iter().map(|&m| cut.resident_panels(m) * panel(m)).sum();
            let away = |tier| {
                let parts = of_layers.iter().flat_map(|&m| cut.away(m)).filter(move |a| a.home == tier);
                parts.map(|part| part.bytes).sum::<usize>()
            };
            let (on_host, on_disk) = (away(spec::Tier::Host), away(spec::Tier::Disk));
            assert_eq!(on_device + on_host + on_disk, all);
            for (has, percent) in [(on_device, device), (on_host, host), (on_disk, 100 - device - host)] {
                let wanted = all * percent as usize / 100;
                // Both ends of a tier's stretch are rounded.
                assert!(has.abs_diff(wanted) <= most, "{has} of {wanted}, a panel is {most}");
            }
            for (tier, percent) in [(on_device, device), (on_host, host), (on_disk, 100 - device - host)] {
                assert_eq!(tier > 0, percent > 0, "{device} {host}");
            }
        }
    }
}

/// The panels that live on the host, one after the other.
fn stowed(loader: &Loader<'_>, blueprint: &Blueprint, cut: &Cut) -> Vec<Vec<u8>> {
    let mut host = CpuDevice::new(8 << 20, Arc::new(Team::new(1)), Isa::Scalar).expect("memory");
    let home = loader.stow(blueprint, &mut host).expect("loaded");
    let halves = cut.layers().iter().flatten().zip(home.iter().flatten());
    halves
        .flat_map(|(half, buf)| half.host.runs.iter().map(move |run| (run, buf)))
        .map(|(run, buf)| {
            let mut bytes = Vec::new();
            let own = buf.expect("it has some").slice(run.at + run.skip, run.panel_bytes());
            host.view(&own, &mut |own| bytes.extend_from_slice(own));
            bytes
        })
        .collect()
}

#[test]
fn the_host_has_the_same_panels_from_the_checkpoint_as_from_the_store() {
    let (checkpoint, team, home) = (checkpoint(), Team::new(2), tempfile::tempdir().unwrap());
    for weights in [WeightsAs::Bf16, WeightsAs::Int4] {
        let blueprint = blueprint(&checkpoint, weights);
        let store = Maker { checkpoint: &checkpoint, blueprint: &blueprint, home: home.path() };
        let store = store.make(&team, &|_| {}).unwrap();
        let cut = Cut::new(&blueprint, &Layout::of(&blueprint), split(30, 45));
        let loader = |store| Loader {
            checkpoint: &checkpoint,
            team: &team,
            positions: 64,
            progress: &|_| {},
            store,
            cut: Some(&cut),
        };
        let packed = stowed(&loader(None), &blueprint, &cut);
        assert!(packed.iter().any(|panels| panels.iter().any(|byte| *byte != 0)));
        assert_eq!(packed, stowed(&loader(Some(&store)), &blueprint, &cut));
    }
}

#[test]
fn weights_in_another_tiers_memory_are_refused_by_the_kernel() {
    let (checkpoint, team) = (checkpoint(), Arc::new(Team::new(1)));
    let blueprint = blueprint(&checkpoint, WeightsAs::Bf16);
    let cut = Cut::new(&blueprint, &Layout::of(&blueprint), split(50, 50));
    let device = || CpuDevice::new(16 << 20, Arc::clone(&team), Isa::Scalar).expect("memory");
    let (mut device, mut host) = (device(), device());
    let progress = &|_| {};
    let loader = Loader {
        checkpoint: &checkpoint,
        team: &team,
        positions: 64,
        progress,
        store: None,
        cut: Some(&cut),
    };
    let decoder = Decoder::new(checkpoint.spec().clone(), loader.load(&blueprint, &mut device).unwrap());
    let home = loader.stow(&blueprint, &mut host).unwrap();
    let size = WorkSize { tokens: 4, samples: 4, dtype: Dtype::Bf16 };
    let work = Work::take(&mut device, checkpoint.spec(), size).unwrap();
    let mlp = |slot: Option<Buf>| {
        let slots = Slots { host: slot, ..Slots::default() };
        let (ids, at) = ([3, 4], [0, 1]);
        let batch = Batch {
            ids: &ids,
            positions: &at,
            lengths: &[2, 2],
            spans: &[],
            samples: &[],
            slots,
            host: None,
        };
        decoder.rotate(&device, &batch, &work);
        decoder.embed(&device, &batch, &work);
        catch_unwind(AssertUnwindSafe(|| decoder.mlp(&device, 0, &batch, &work)))
    };
    let stolen = home[0][1].expect("half of the MLP lives on the host");
    let said = *mlp(Some(stolen)).unwrap_err().downcast::<&str>().expect("a message");
    assert!(said.contains("another tier's memory"), "{said}");
    assert!(mlp(None).is_err(), "panels that are nowhere");
}
