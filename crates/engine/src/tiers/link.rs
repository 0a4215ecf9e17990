//! Copies between the memories of host and device, at the speed of a link where one is rehearsed.

use std::ops::Range;
use std::thread;
use std::time::{Duration, Instant};

use kernels::arena::{Buf, Lasting};
use kernels::device::Device;

/// What is copied before the clock is looked at.
const PIECE_BYTES: usize = 256 << 10;
/// How far a copy may run ahead of its link before it waits: rests much shorter than this take as long.
const STEP: Duration = Duration::from_micros(100);

/// The link between host and device.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Link {
    /// Bytes that pass in a second; as many as the machine can copy, if absent.
    pub(crate) bytes_per_s: Option<u64>,
}

/// Copies that follow one another on the link.
pub(crate) struct Pace {
    link: Link,
    began: Instant,
    bytes: usize,
}

impl Link {
    /// Copies begin.
    pub(crate) fn begin(self) -> Pace {
        Pace { link: self, began: Instant::now(), bytes: 0 }
    }
}

impl Pace {
    /// Copies a buffer of one memory to one of another, of the same size.
    pub(crate) fn copy(&mut self, (source, from): (&dyn Device, &Buf), (target, to): (&dyn Device, &Buf)) {
        self.copy_all((source, &[*from]), (target, &[*to]));
    }

    /// Copies buffers of one memory to as many of another, each of the same size.
    pub(crate) fn copy_all(
        &mut self,
        (source, from): (&dyn Device, &[Buf]),
        (target, to): (&dyn Device, &[Buf]),
    ) {
        match self.link.bytes_per_s {
            Some(_) => {
                from.iter().zip(to).for_each(|(from, to)| self.copy_slowly((source, from), (target, to)));
            }
            None if source.is_far() => {
                let done = memory(target, to).is_some_and(|memory| source.collect_into(from, &memory));
                if !done {
                    source.collect(from, &mut |first, bytes| write(target, to, first, bytes));
                }
                self.bytes += length(from);
            }
            None if !target.is_far() => {
                for (from, to) in from.iter().zip(to) {
                    source.view(from, &mut |bytes| target.upload(to, bytes));
                }
                self.bytes += length(to);
            }
            None => {
                if !memory(source, from).is_some_and(|memory| target.spread_from(to, &memory)) {
                    target.spread(to, &mut |first, into| read(source, from, first, into));
                }
                self.bytes += length(to);
            }
        }
    }

    fn copy_slowly(&mut self, (source, from): (&dyn Device, &Buf), (target, to): (&dyn Device, &Buf)) {
        source.view(from, &mut |bytes| {
            for (at, piece) in (0..).step_by(PIECE_BYTES).zip(bytes.chunks(PIECE_BYTES)) {
                target.upload(&to.slice(at, piece.len()), piece);
                self.bytes += piece.len();
                self.wait(STEP);
            }
        });
    }

    /// Bytes that somebody else copied pass too.
    pub(crate) fn pass(&mut self, bytes: usize) {
        self.bytes += bytes;
        self.wait(STEP);
    }

    /// All that was copied has passed the link. How many bytes that was.
    pub(crate) fn end(self) -> usize {
        self.wait(Duration::ZERO);
        self.bytes
    }

    /// Rests until the bytes so far have passed, if they are further ahead than `ahead`.
    fn wait(&self, ahead: Duration) {
        let Some(rate) = self.link.bytes_per_s else { return };
        let due = Duration::from_secs_f64(self.bytes as f64 / rate.max(1) as f64);
        loop {
            let early = due.saturating_sub(self.began.elapsed());
            if early <= ahead {
                return;
            }
            thread::park_timeout(early);
        }
    }
}

/// Where buffers are, if a device can reach them by itself.
fn memory(of: &dyn Device, bufs: &[Buf]) -> Option<Vec<Lasting>> {
    bufs.iter().map(|buf| of.lasting(buf)).collect()
}

fn length(bufs: &[Buf]) -> usize {
    bufs.iter().map(Buf::bytes).sum()
}

/// The pieces of buffers that bytes `first..first + bytes` of them all lie in: what of those bytes, and where.
fn pieces(bufs: &[Buf], first: usize, bytes: usize) -> impl Iterator<Item = (Range<usize>, Buf)> {
    let mut at = 0;
    bufs.iter().filter_map(move |buf| {
        let (begin, end) = (at.max(first), (at + buf.bytes()).min(first + bytes));
        let start = at;
        at += buf.bytes();
        (begin < end).then(|| (begin - first..end - first, buf.slice(begin - start, end - begin)))
    })
}

fn write(target: &dyn Device, to: &[Buf], first: usize, bytes: &[u8]) {
    pieces(to, first, bytes.len()).for_each(|(range, buf)| target.upload(&buf, &bytes[range]));
}

fn read(source: &dyn Device, from: &[Buf], first: usize, into: &mut [u8]) {
    for (range, buf) in pieces(from, first, into.len()) {
        source.view(&buf, &mut |bytes| into[range.clone()].copy_from_slice(bytes));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kernels::{CpuDevice, Isa, Team};
    use std::sync::Arc;

    fn device() -> CpuDevice {
        CpuDevice::new(4 << 20, Arc::new(Team::new(1)), Isa::Scalar).unwrap()
    }

    #[test]
    fn bytes_arrive_and_no_sooner_than_the_link_allows() {
        let (mut host, mut device) = (device(), device());
        let bytes = 1_000_000;
        let (from, to) = (host.take(bytes).unwrap(), device.take(bytes).unwrap());
        host.fill(&from, &mut |into| into.iter_mut().zip(0..).for_each(|(byte, i)| *byte = (i % 251) as u8));
        for rate in [None, Some(100_000_000)] {
            device.discard(&to);
            let began = Instant::now();
            let mut pace = Link { bytes_per_s: rate }.begin();
            pace.copy((&host, &from), (&device, &to));
            assert_eq!(pace.end(), bytes);
            assert!(rate.is_none() || began.elapsed() >= Duration::from_millis(10), "{:?}", began.elapsed());
            device
                .view(&to, &mut |got| assert!(got.iter().zip(0..).all(|(byte, i)| *byte == (i % 251) as u8)));
        }
    }

    #[test]
    fn buffers_that_are_cut_elsewhere_get_their_own_bytes() {
        let (mut host, mut device) = (device(), device());
        let from: Vec<Buf> = [100, 300, 7].iter().map(|bytes| host.take(*bytes).unwrap()).collect();
        let to: Vec<Buf> = from.iter().map(|buf| device.take(buf.bytes()).unwrap()).collect();
        for (buf, value) in from.iter().zip(1..) {
            host.fill(buf, &mut |into| into.fill(value));
        }
        for rate in [None, Some(1 << 40)] {
            let mut pace = Link { bytes_per_s: rate }.begin();
            pace.copy_all((&host, &from), (&device, &to));
            assert_eq!(pace.end(), 407);
            for (buf, value) in to.iter().zip(1..) {
                device.view(buf, &mut |got| assert!(got.iter().all(|byte| *byte == value)));
            }
        }
        let cut: Vec<_> = pieces(&from, 90, 315).map(|(range, buf)| (range, buf.bytes())).collect();
        assert_eq!(cut, [(0..10, 10), (10..310, 300), (310..315, 5)]);
        write(&device, &to, 90, &[9; 315]);
        let mut got = [0; 317];
        read(&device, &to, 89, &mut got);
        assert!(got[0] == 1 && got[1..316].iter().all(|byte| *byte == 9) && got[316] == 3);
    }
}
