//! Runs: packets of equal length that the kernel takes as one and cuts apart as late as it can,
//! perhaps never (`UDP_SEGMENT`, and the same for frames).
//!
//! The kernel numbers the packets of a run 0, 1, 2 ... in the IPv4 identification, which the ICRC
//! covers.

use std::io;
use std::ops::Range;

use strata_rdma::PacketBatch;
use strata_wire::exact;
use strata_wire::roce::icrc;

/// Packets per run at most (the kernel's `UDP_MAX_SEGMENTS`).
const PACKETS_MAX: usize = 64;
/// Maximum bytes per run: an IP packet.
pub(crate) const BYTES_MAX: usize = 65_000;
/// Runs sent, or received, per call.
pub const RUNS: usize = 16;

/// A run of a batch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Run<'a> {
    /// The packets, one after another.
    pub(crate) bytes: &'a [u8],
    /// How many.
    pub(crate) packets: usize,
    /// Bytes of each except the last, which may be shorter.
    pub(crate) packet_len: usize,
}

/// Seals the packets of a batch and hands them to `send`, at most [`RUNS`] runs at a time. If the
/// kernel turns out not to cut runs, `segmentation` becomes false and every packet is a run of its
/// own: from the first on, since a repeated RDMA packet is recognised.
#[expect(
    clippy::arithmetic_side_effects,
    reason = "places in a batch of our own packets"
)]
pub(crate) fn send(
    batch: &mut PacketBatch,
    icrcs: &mut icrc::Stream,
    segmentation: &mut bool,
    mut send: impl FnMut(&[Run<'_>]) -> io::Result<()>,
) -> io::Result<()> {
    let packets_max = if *segmentation { PACKETS_MAX } else { 1 };
    let mut places: Vec<Range<usize>> = Vec::new();
    let mut at = 0;
    while at < batch.len() {
        let (count, _) = batch.run(at, packets_max, BYTES_MAX);
        for place in 0..count {
            batch.seal(at + place, exact::<u16>(place), icrcs);
        }
        places.push(at..at + count);
        at += count;
    }
    for group in places.chunks(RUNS) {
        let mut runs = [Run {
            bytes: &[],
            packets: 0,
            packet_len: 0,
        }; RUNS];
        for (run, place) in runs.iter_mut().zip(group) {
            let (packets, bytes) = batch.run(place.start, place.len(), BYTES_MAX);
            *run = Run {
                bytes,
                packets,
                packet_len: batch.get(place.start).len(),
            };
        }
        loop {
            match send(&runs[..group.len()]) {
                Ok(()) => break,
                Err(error) => match error.raw_os_error() {
                    // This is how a driver that cannot cut a frame reports that it dropped it.
                    Some(libc::EIO | libc::EINVAL | libc::EMSGSIZE | libc::ENOBUFS)
                        if *segmentation =>
                    {
                        *segmentation = false;
                        return self::send(batch, icrcs, segmentation, send);
                    }
                    Some(libc::ENOBUFS) => {}
                    _ => return Err(error),
                },
            }
        }
    }
    Ok(())
}
