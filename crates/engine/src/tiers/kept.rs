//! Kept prefixes between memory and the drive.

use kernels::arena::Buf;
use kernels::device::Device;
use spec::Tier;

use crate::lock::lock;
use crate::step::bound::StepRun;
use crate::step::run::Machine;

impl Machine {
    /// One layer of the kept blocks that this step reads from the drive or writes to it. Where that fails, the scheduler is told
    /// with the step's end that they are lost: nobody uses them before.
    pub(crate) fn move_kept(&self, step: &StepRun, layer: usize, from: Tier, to: Tier) {
        if step.has_lost(from, to) {
            return;
        }
        let (pages, inner) = (&self.kv.layers[layer], from.min(to));
        let _alone = match inner {
            Tier::Device => self.alone_on_device(pages),
            _ => Some(lock(&pages.host_touched)),
        };
        let drive = self.kv.drive.as_ref().expect("prefixes are kept on the drive");
        let kept = step.kept.iter().filter(|kept| (kept.from, kept.to) == (from, to));
        let on_drive =
            |&(source, target): &_| if from == Tier::Disk { (source, target) } else { (target, source) };
        let pairs: Vec<_> = kept.flat_map(|kept| kept.blocks.iter().map(on_drive)).collect();
        let runs = drive.runs(&pairs.iter().map(|(there, here)| (there.0, here.0)).collect::<Vec<_>>());
        let memory = pages.of(inner);
        let bufs: Vec<Buf> = runs.iter().map(|&(_, here, count)| memory.blocks(here, count)).collect();
        let mut result = Ok(());
        match from {
            Tier::Disk => fill_all(self.memory(inner), &bufs, Vec::new(), &mut |into| {
                result = drive.read_runs(layer, &runs, into);
            }),
            _ => view_all(self.memory(inner), &bufs, Vec::new(), &mut |bytes| {
                result = drive.write_runs(layer, &runs, bytes);
            }),
        }
        if result.is_err() {
            step.lose(from, to);
            self.stats.lost(pairs.len());
        }
    }
}

/// Lets `fill` write the bytes of all these buffers at once; `so_far`: those before them.
fn fill_all(
    memory: &dyn Device,
    bufs: &[Buf],
    mut so_far: Vec<&mut [u8]>,
    fill: &mut dyn FnMut(Vec<&mut [u8]>),
) {
    let Some((first, rest)) = bufs.split_first() else { return fill(so_far) };
    memory.fill(first, &mut |into| {
        let before = so_far.iter_mut().map(|bytes| &mut **bytes);
        fill_all(memory, rest, before.chain([into]).collect(), fill);
    });
}

/// Shows the bytes of all these buffers at once; `so_far`: those before them.
fn view_all(memory: &dyn Device, bufs: &[Buf], so_far: Vec<&[u8]>, view: &mut dyn FnMut(Vec<&[u8]>)) {
    let Some((first, rest)) = bufs.split_first() else { return view(so_far) };
    memory.view(first, &mut |bytes| {
        view_all(memory, rest, so_far.iter().copied().chain([bytes]).collect(), view);
    });
}
