//! Whether an interface is there and up, and the message when that changes.

use std::fmt;
use std::io;

use strata_sys::interface as asked;

use super::error::LiveError;
use super::host::interface::Device;
use super::ring::ClockEvent;

/// Something that happened to an interface.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LiveEvent {
    /// It was set down.
    Down(String),
    /// It no longer exists.
    Gone(String),
    /// It has another name now, the second one; its packets arrive as before.
    Renamed(String, String),
    /// Packets can arrive again.
    Back(String),
    /// Another interface of this name was found. Packets that arrived there before are not captured.
    Again(String),
    /// As [`LiveEvent::Again`], and packets are no longer taken away from the host.
    BackShared(String),
    /// The card's clock is this many ns off the host's: whether its times are still taken.
    CardTimes(String, ClockEvent),
}

impl fmt::Display for LiveEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Down(name) => write!(f, "{name}: the interface went down; waiting for it"),
            Self::Gone(name) => write!(f, "{name}: the interface was removed; waiting for it"),
            Self::Renamed(before, name) => {
                write!(
                    f,
                    "{before}: the interface was renamed to {name}; it is captured as before"
                )
            }
            Self::Back(name) => write!(f, "{name}: the interface is back"),
            Self::Again(name) => write!(
                f,
                "{name}: the interface is back: it was created again, so its first packets may be \
                 missing"
            ),
            Self::BackShared(name) => write!(
                f,
                "{name}: the interface is back: it was created again, so its first packets may be \
                 missing, and it is captured through AF_PACKET from now on: restart to take its \
                 packets away from this host again"
            ),
            Self::CardTimes(name, ClockEvent { off_ns, taken }) => {
                write!(
                    f,
                    "{name}: the NIC's clock differs from this host's by {} s; {}",
                    off_ns / 1_000_000_000,
                    if *taken {
                        "its timestamps are used anyway (-j adapter)"
                    } else {
                        "the kernel's timestamps are used (phc2sys sets the NIC's clock; -j \
                         adapter uses its timestamps as they are)"
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

/// What has become of an interface.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Found {
    /// The interface of this index has its name; whether it is up. It may be another one.
    Named(u32, bool),
    /// It has another name.
    Renamed(String),
    /// There is no interface of its name.
    Nothing,
}

/// Looks for an interface by its name, and by its index if `is_there`: if it was not known to be gone.
/// Nothing more is queried: all else would wait for programs that change interfaces, while the ring
/// fills.
pub(super) fn ask(device: &Device, is_there: bool) -> Result<Found, LiveError> {
    let name = &device.name;
    let missing =
        |error: &io::Error| matches!(error.raw_os_error(), Some(libc::ENODEV | libc::ENXIO));
    let named = asked::flags(name).and_then(|flags| Ok((asked::index(name)?, flags)));
    let found = match named {
        Ok((index, flags)) => Found::Named(index, i32::from(flags) & libc::IFF_UP != 0),
        Err(error) if missing(&error) => Found::Nothing,
        Err(error) => return Err(device.error("SIOCGIFFLAGS")(error)),
    };
    let is_same = matches!(found, Found::Named(index, _) if index == device.index);
    if is_same || !is_there {
        return Ok(found);
    }
    match asked::name(device.index) {
        // It was renamed back meanwhile.
        Ok(now) if now == *name => Ok(found),
        Ok(now) => Ok(Found::Renamed(now)),
        Err(error) if missing(&error) => Ok(found),
        Err(error) => Err(device.error("SIOCGIFNAME")(error)),
    }
}
