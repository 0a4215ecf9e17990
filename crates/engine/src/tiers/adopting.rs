//! Host memory that a device copies by itself, from and to where it lies.

use kernels::arena::Buf;
use kernels::device::Device;

use crate::tiers::link::Link;

/// Hands pieces of the host's memory to a device, until it refuses one. Not over a link that is rehearsed.
pub(crate) struct Adopting<'a> {
    devices: Option<(&'a dyn Device, &'a dyn Device)>,
    refused: Option<String>,
}

impl<'a> Adopting<'a> {
    pub(crate) fn new(link: Link, (device, host): (&'a dyn Device, &'a dyn Device)) -> Adopting<'a> {
        let can = device.is_far() && link.bytes_per_s.is_none();
        Adopting { devices: can.then_some((device, host)), refused: None }
    }

    /// Whether the device is asked at all.
    pub(crate) fn asks(&self) -> bool {
        self.devices.is_some()
    }

    /// Under which number the device knows a buffer of the host, if it takes it.
    pub(crate) fn adopt(&mut self, buf: &Buf) -> Option<usize> {
        let (device, host) = self.devices?;
        let adopted = device.adopt(host.lasting(buf)?);
        adopted.unwrap_or_else(|why| {
            (self.devices, self.refused) = (None, Some(why));
            None
        })
    }

    /// Why not everything was taken, if something was refused.
    pub(crate) fn refused(self) -> Option<String> {
        self.refused
    }
}
