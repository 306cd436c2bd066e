//! Sends generated traffic.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use rustix::thread::CapabilitySet;
use strata_role::sandbox::drop_the_rest;
use strata_send::{Method, Run, Sender};
use strata_traffic::{FRAME_MAX, Generator, GeneratorOptions, Profile, SPACE};
use strata_wire::exact;

use super::{NO_LIMIT, SendOutcome, Sending};
use crate::error::Result;

/// Which traffic to send, and how.
#[derive(Clone, Debug)]
pub struct GenerateSpec {
    /// The traffic.
    pub profile: Profile,
    /// Its seed, flows and rate.
    pub options: GeneratorOptions,
    /// The interface.
    pub interface: String,
    /// How to send; a packet socket if `None`.
    pub method: Option<Method>,
    /// How many packets; until stopped if `None`.
    pub packets: Option<u64>,
    /// As fast as possible, whatever the rate.
    pub top_speed: bool,
    /// Stop after this time.
    pub duration: Option<Duration>,
    /// Drop all capabilities once the interface is open. The process is confined before
    /// ([`sandbox::confine`](strata_role::sandbox::confine)).
    pub sandboxed: bool,
}

/// Frames generated before they are sent.
const SLOTS: usize = 2_048;
/// Live frames, whose system call is expensive, are repeated, so there are more of them.
const SLOTS_LIVE: usize = 1 << 20;

/// This many packets, or as many as there are slots.
fn at_most(packets: u64, slots: usize) -> usize {
    exact::<usize>(packets.min(slots as u64))
}

/// Generates traffic and sends it.
///
/// # Errors
///
/// If frames cannot be sent.
pub fn generate(spec: &GenerateSpec, stop: Arc<AtomicBool>) -> Result<SendOutcome> {
    let mut generator = Generator::new(&spec.profile, &spec.options);
    let open = |method: Option<_>, slots: usize| {
        let wanted = spec
            .packets
            .map_or(slots, |packets| at_most(packets, slots));
        Sender::open(&spec.interface, method, wanted.max(1), FRAME_MAX, &[])
    };
    let method = spec.method;
    let repeat = method == Some(Method::LiveFrames);
    // Traffic that never repeats needs packets generated while others are sent.
    let sender = match method {
        None => open(Some(Method::Sendmmsg), SLOTS)?,
        Some(_) => open(method, if repeat { SLOTS_LIVE } else { SLOTS })?,
    };
    if spec.sandboxed {
        drop_the_rest(CapabilitySet::empty())?;
    }
    let mut sending = Sending::new(sender, spec.duration, stop);
    let mut frame = [0; SPACE];
    // Without a number, until stopped.
    let mut left = spec.packets;
    let start_ns = spec.options.start_ns;
    let mut base_ns = None;
    while left != Some(0) && !sending.stopped() {
        let slots = sending.sender.slots();
        let slots = left.map_or(slots, |left| at_most(left, slots));
        let mut due_ns = 0;
        for slot in 0..slots {
            let packet = generator.packet_into(&mut frame);
            due_ns = if spec.top_speed {
                0
            } else {
                packet.ts_ns - start_ns
            };
            let data = &frame[..usize::from(packet.len)];
            sending.sender.put(slot, data, due_ns)?;
        }
        let frames = match repeat {
            true => left.unwrap_or(NO_LIMIT),
            false => slots as u64,
        };
        sending.send(&Run {
            slots,
            frames,
            base_ns: *base_ns.get_or_insert_with(Sender::now_ns),
            pass_ns: due_ns,
        })?;
        left = left.map(|left| left - frames);
    }
    Ok(sending.finish(0))
}
