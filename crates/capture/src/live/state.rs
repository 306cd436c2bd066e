//! Whether an interface is there and up, and what is said when that changes.

use std::fmt;

use strata_sys::interface as asked;

use super::error::LiveError;
use super::interface::Device;
use super::ring::ClockEvent;

/// Something that happened to an interface.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LiveEvent {
    /// It was set down.
    Down(String),
    /// It no longer exists.
    Gone(String),
    /// Packets can arrive again.
    Back(String),
    /// Packets can arrive again, and are no longer taken away from the host.
    BackShared(String),
    /// The card's clock is this many ns off the host's: whether its times are still taken.
    CardTimes(String, ClockEvent),
}

impl fmt::Display for LiveEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Down(name) => write!(f, "{name}: the interface went down; waiting for it"),
            Self::Gone(name) => write!(f, "{name}: the interface is gone; waiting for it"),
            Self::Back(name) => write!(f, "{name}: the interface is back"),
            Self::BackShared(name) => write!(
                f,
                "{name}: the interface is back, captured through AF_PACKET from now on: start anew \
                 to take its packets away from this host again"
            ),
            Self::CardTimes(name, ClockEvent { off_ns, taken }) => {
                write!(
                    f,
                    "{name}: the card's clock is {} s off this host's; {}",
                    off_ns / 1_000_000_000,
                    if *taken {
                        "its times are taken as asked for"
                    } else {
                        "times are the host's (phc2sys sets it; -j adapter takes them as they are)"
                    }
                )
            }
        }
    }
}

/// Whether packets come from an interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PortState {
    Up,
    Down,
    /// Nothing more comes from its ring.
    Gone,
}

/// The index of the interface that has the name of `device` now, and whether it is up; `None` if there is none.
/// No more is asked for: all else would wait for whoever changes interfaces, while the ring fills.
pub(super) fn ask(device: &Device) -> Result<Option<(u32, bool)>, LiveError> {
    let name = &device.name;
    let found = asked::flags(name).and_then(|flags| Ok((asked::index(name)?, flags)));
    match found {
        Ok((index, flags)) => Ok(Some((index, i32::from(flags) & libc::IFF_UP != 0))),
        Err(error) if matches!(error.raw_os_error(), Some(libc::ENODEV | libc::ENXIO)) => Ok(None),
        Err(error) => Err(device.error("SIOCGIFFLAGS")(error)),
    }
}
