//! Kept prefixes between memory and the drive.

use kernels::arena::Buf;
use kernels::device::{Device, KvPages};
use spec::Tier;

use crate::step::bound::StepRun;
use crate::step::run::Machine;
use crate::tiers::kv_file::{KvFile, Run};
use kernels::lock::lock;

/// Runs that are on their way together: more than a drive works on at once, and few enough for a lane's stack, on which their
/// bytes are shown one inside the other.
const TOGETHER: usize = 128;

/// A device, and what of its memory is meant.
type Memory<'a> = (&'a dyn Device, KvPages);

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
        let memory = (self.memory(inner), pages.of(inner));
        let result = match from {
            Tier::Disk => read(drive, layer, &runs, memory),
            _ => write(drive, layer, &runs, memory),
        };
        if result.is_err() {
            step.lose(from, to);
            self.stats.lost(pairs.len());
        }
    }
}

/// Reads runs of blocks of a layer into pages of a memory.
fn read(drive: &KvFile, layer: usize, runs: &[Run], (memory, pages): Memory<'_>) -> model::Result<()> {
    runs.chunks(TOGETHER).try_for_each(|runs| {
        let mut result = Ok(());
        fill_all(memory, &bufs(pages, runs), Vec::new(), &mut |into| {
            result = drive.read_runs(layer, runs, into);
        });
        result
    })
}

/// Writes runs of blocks of a layer from pages of a memory.
fn write(drive: &KvFile, layer: usize, runs: &[Run], (memory, pages): Memory<'_>) -> model::Result<()> {
    runs.chunks(TOGETHER).try_for_each(|runs| {
        let mut result = Ok(());
        view_all(memory, &bufs(pages, runs), Vec::new(), &mut |bytes| {
            result = drive.write_runs(layer, runs, bytes);
        });
        result
    })
}

fn bufs(pages: KvPages, runs: &[Run]) -> Vec<Buf> {
    runs.iter().map(|&(_, here, count)| pages.blocks(here, count)).collect()
}

/// Lets `fill` write the bytes of all these buffers at once; `so_far`: those before them. Goes as deep as there are buffers.
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

/// Shows the bytes of all these buffers at once; `so_far`: those before them. Goes as deep as there are buffers.
fn view_all(memory: &dyn Device, bufs: &[Buf], so_far: Vec<&[u8]>, view: &mut dyn FnMut(Vec<&[u8]>)) {
    let Some((first, rest)) = bufs.split_first() else { return view(so_far) };
    memory.view(first, &mut |bytes| {
        view_all(memory, rest, so_far.iter().copied().chain([bytes]).collect(), view);
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::thread;

    use kernels::attention::{KvDtype, KvLayout};
    use kernels::{CpuDevice, Isa, Team};

    use crate::tiers::kv_sizes::KvFileSizes;
    use crate::watch::stats::Stats;

    /// As a step of very long prompts leaves them: block after block, none beside the next. With a stack that has not room for
    /// all of them at once.
    #[test]
    fn any_number_of_runs_goes_to_the_drive_and_comes_back() {
        const RUNS: usize = 5_000;
        const STACK_BYTES: usize = 512 << 10;
        let layout = KvLayout { kv_heads: 1, head_dim: 16, dtype: KvDtype::Bf16 };
        let bytes = RUNS * layout.block_bytes();
        let there_and_back = move || {
            let folder = tempfile::tempdir().unwrap();
            let sizes = KvFileSizes {
                layers: 1,
                blocks: RUNS,
                block_bytes: layout.block_bytes(),
                ..KvFileSizes::default()
            };
            let drive = KvFile::new(folder.path(), sizes, Arc::new(Stats::default())).unwrap();
            let mut memory = CpuDevice::new(bytes, Arc::new(Team::new(1)), Isa::Scalar).unwrap();
            let pages = KvPages { layout, buf: memory.take(bytes).unwrap() };
            let text: Vec<u8> = (0..bytes).map(|i| (i % 251) as u8).collect();
            memory.upload(&pages.buf, &text);
            let pairs: Vec<_> = (0..RUNS as u32).map(|block| (RUNS as u32 - 1 - block, block)).collect();
            let runs = drive.runs(&pairs);
            assert_eq!(runs.len(), RUNS);
            write(&drive, 0, &runs, (&memory, pages)).unwrap();
            memory.fill(&pages.buf, &mut |bytes| bytes.fill(0));
            read(&drive, 0, &runs, (&memory, pages)).unwrap();
            memory.view(&pages.buf, &mut |bytes| assert!(bytes == text));
        };
        let thread = thread::Builder::new().stack_size(STACK_BYTES).spawn(there_and_back);
        thread.unwrap().join().unwrap();
    }
}
