//! Where a translator's operations go: memory of this process, or collectors in others.

use strata_dta::protocol::Nack;
use strata_dta::{Local, Operations, Origin, Translator};
use strata_role::Tell;

use crate::service::wire::remote::Collectors;
use crate::store::sink::Mapped;

/// Where operations go.
#[allow(
    clippy::large_enum_variant,
    reason = "one of a process; operations wait in it without another indirection"
)]
pub(crate) enum Target {
    /// Into memory of this process.
    Here(Local<Mapped>),
    /// To collectors elsewhere.
    There(Box<Collectors>),
}

impl Target {
    /// The memory, if it is here.
    pub(crate) fn here(&mut self) -> Option<&mut Local<Mapped>> {
        match self {
            Self::Here(sink) => Some(sink),
            Self::There(_) => None,
        }
    }

    pub(crate) fn there(&self) -> Option<&Collectors> {
        match self {
            Self::Here(_) => None,
            Self::There(collectors) => Some(collectors),
        }
    }

    pub(crate) fn operations(&self) -> Operations {
        match self {
            Self::Here(sink) => sink.operations(),
            Self::There(collectors) => collectors.operations(),
        }
    }

    pub(crate) fn tick(&mut self, translator: &mut Translator, now_ns: u64) {
        match self {
            Self::Here(sink) => translator.tick(now_ns, std::slice::from_mut(sink)),
            Self::There(collectors) => translator.tick(now_ns, collectors.sinks()),
        }
    }

    /// Does what waits, or sends it.
    pub(crate) fn flush(&mut self, translator: &mut Translator, tell: &Tell) {
        match self {
            Self::Here(sink) => sink.flush(),
            Self::There(collectors) => collectors.turn(translator, tell),
        }
    }

    /// Takes a datagram, or whatever of it there is room for.
    #[inline]
    pub(crate) fn put(
        &mut self,
        translator: &mut Translator,
        origin: Origin,
        datagram: &[u8],
        now_ns: u64,
        nacks: &mut Vec<Nack>,
    ) {
        match self {
            Self::Here(sink) => {
                let sinks = std::slice::from_mut(sink);
                translator.receive_from(origin, datagram, now_ns, sinks, nacks);
            }
            Self::There(collectors) => {
                collectors.make_room(datagram);
                translator.receive_from(origin, datagram, now_ns, collectors.sinks(), nacks);
            }
        }
    }
}
