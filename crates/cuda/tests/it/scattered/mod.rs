//! Scattered buffers between host and device: what arrives.

use std::sync::Arc;

use kernels::arena::{Buf, Lasting, PAGE};
use kernels::device::Device;
use kernels::{CpuDevice, Isa, Team, queue};

fn noise(at: usize) -> u8 {
    (at as u32).wrapping_mul(2_654_435_761).to_be_bytes()[0]
}

/// Buffers of these sizes, apart from each other, and their bytes together.
fn scattered(device: &mut dyn Device, sizes: &[usize]) -> (Vec<Buf>, usize) {
    let take = |&bytes: &usize| {
        device.take(4096 + bytes % 64).unwrap();
        device.take(bytes).unwrap()
    };
    let bufs: Vec<Buf> = sizes.iter().map(take).collect();
    (bufs, sizes.iter().sum())
}

fn collected(device: &dyn Device, bufs: &[Buf]) -> Vec<u8> {
    let mut all = Vec::new();
    device.collect(bufs, &mut |first, bytes| {
        assert_eq!(first, all.len(), "pieces in order");
        all.extend_from_slice(bytes);
    });
    all
}

/// Pages, a few of many sizes, more than a stage has room for, one alone, what no kernel carries, and long ones.
const SIZES: [&[usize]; 6] = [
    &[4096; 7],
    &[16, 40_000, 65_536, 1_008],
    &[65_536; 70],
    &[100_000],
    &[100, 33, 4096],
    &[140_000, 300_000, 131_072],
];

/// Device memory for all cases.
pub(crate) const BYTES: usize = 16 << 20;

/// # Panics
/// If other bytes arrive, or in another order.
pub(crate) fn check(device: &mut dyn Device) {
    for sizes in SIZES {
        // As the lanes of copies do.
        queue::enter(2);
        device.enter(2, &[]);
        let (bufs, bytes) = scattered(device, sizes);
        let mut asked = 0;
        device.spread(&bufs, &mut |first, into| {
            assert_eq!(first, asked, "pieces in order");
            into.iter_mut().zip(first..).for_each(|(byte, at)| *byte = noise(at));
            asked += into.len();
        });
        assert_eq!(asked, bytes);
        let mut first = 0;
        for buf in &bufs {
            device.view(buf, &mut |got| {
                assert!(got.iter().zip(first..).all(|(byte, at)| *byte == noise(at)), "{sizes:?}");
            });
            first += buf.bytes();
        }
        device.wait();
        queue::enter(3);
        assert!(collected(device, &bufs).iter().zip(0..).all(|(byte, at)| *byte == noise(at)), "{sizes:?}");
        let backwards: Vec<Buf> = bufs.iter().rev().copied().collect();
        assert_eq!(collected(device, &backwards).len(), bytes);
    }
}

/// # Panics
/// If other bytes arrive in adopted memory of the host, or come from there, or if memory that was not adopted is written.
pub(crate) fn check_adopted(device: &mut dyn Device) {
    let mut host = CpuDevice::new(2 * BYTES, Arc::new(Team::new(1)), Isa::Scalar).unwrap();
    for sizes in SIZES {
        queue::enter(3);
        let (bufs, bytes) = scattered(device, sizes);
        let mut take = |bytes: usize| host.take(bytes).unwrap();
        let (from, to, other) = (take(bytes.max(PAGE)), take(bytes.max(PAGE)), take(bytes));
        for buf in [&from, &to] {
            assert!(device.adopt(host.lasting(buf).unwrap()).unwrap().is_some());
        }
        // As far from each other in the host's memory, the other way round.
        let pieces = |whole: &Buf| -> Vec<Lasting> {
            let mut end = bytes;
            let piece = |&size: &usize| {
                end -= size;
                host.lasting(&whole.slice(end, size)).unwrap()
            };
            sizes.iter().map(piece).collect()
        };
        host.fill(&from, &mut |into| into.iter_mut().zip(0..).for_each(|(byte, at)| *byte = noise(at)));
        assert!(device.spread_from(&bufs, &pieces(&from)));
        // Its bytes went before that returned.
        host.fill(&from, &mut |into| into.fill(0));
        assert!(device.collect_into(&bufs, &pieces(&to)));
        host.view(&to, &mut |got| {
            assert!(got[..bytes].iter().zip(0..).all(|(byte, at)| *byte == noise(at)), "{sizes:?}");
        });
        let missing = pieces(&other);
        assert!(!device.collect_into(&bufs, &missing) && !device.spread_from(&bufs, &missing));
        host.view(&other, &mut |bytes| assert!(bytes.iter().all(|byte| *byte == 0)));
        device.wait();
    }
}
