//! Which interfaces share a ring.

use strata_wire::exact;

use super::common::{CommonRing, can_share};
use super::error::LiveError;
use super::host::interface::Device;
use super::kernel::{Common, Kernel};
use super::options::{Exclusive, LiveOptions, Rings};
use super::port::{Port, Source};

/// From this number of interfaces on, they share a ring unless each is to have its own. Below, rings of 2 MiB
/// each fit 256 MiB, and interfaces that are not captured cost nothing.
const SHARE_FROM: usize = 128;

/// Interfaces that are to share a ring: none, or at least two.
#[derive(Default)]
pub(super) struct Together {
    devices: Vec<(u16, Device)>,
    /// For each worker.
    kernels: Vec<Common>,
    /// Why there is no ring although there should be one.
    pub(super) refused: Option<String>,
}

impl Together {
    /// Chooses them; none if the kernel refuses programs.
    pub(super) fn new(devices: &[Device], options: &LiveOptions, kernel: &Kernel) -> Self {
        let from = match options.rings {
            Rings::Each => return Self::default(),
            Rings::Auto => SHARE_FROM,
            Rings::One => 2,
        };
        // What is taken away from the host has no ring.
        if options.exclusive != Exclusive::No || devices.len() < from {
            return Self::default();
        }
        let all = (0_u16..).zip(devices);
        let can_share: Vec<_> = all.filter(|(_, one)| can_share(one, options)).collect();
        if can_share.len() < from {
            return Self::default();
        }
        let kernels = match kernel.common(can_share.len()) {
            Ok(kernels) => kernels,
            Err(why) => {
                return Self {
                    refused: Some(why),
                    ..Self::default()
                };
            }
        };
        let mut chosen: Vec<(u16, Device)> = Vec::new();
        for (id, device) in can_share {
            let number = exact::<u32>(chosen.len());
            if kernels[0].indexes.put(device.index, number) {
                chosen.push((id, device.clone()));
            }
        }
        Self {
            devices: chosen,
            kernels,
            refused: None,
        }
    }

    pub(super) fn has(&self, id: u16) -> bool {
        self.devices
            .binary_search_by_key(&id, |(id, _)| *id)
            .is_ok()
    }

    /// A port for each worker, if there are any: it admits nothing yet.
    pub(super) fn open(
        self,
        options: &LiveOptions,
        kernel: &Kernel,
    ) -> Result<Vec<Port>, LiveError> {
        let Some((first, _)) = self.devices.first() else {
            return Ok(Vec::new());
        };
        let device = Device::together(self.devices.len());
        let one = |(worker, common)| {
            let ring = CommonRing::open(&self.devices, options, common, worker == 0)?;
            kernel.join(ring.ring.fd(), &device)?;
            Ok(Port::new(&device, *first, Source::Common(Box::new(ring))))
        };
        self.kernels.into_iter().enumerate().map(one).collect()
    }
}
