//! Scattered buffers between host and device: what arrives.

use kernels::arena::Buf;
use kernels::device::Device;
use kernels::queue;

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

/// Pages, a few of many sizes, more than a stage has room for, one alone, and what no kernel carries.
const SIZES: [&[usize]; 5] =
    [&[4096; 7], &[16, 40_000, 65_536, 1_008], &[131_072; 40], &[100_000], &[100, 33, 4096]];

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
