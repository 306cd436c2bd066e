//! One of a translator's collectors, and what is exchanged with it.

use std::net::SocketAddr;

use strata_dta::{Operation, Remote, Room, Sink};
use strata_roce::Port;
use strata_roce::udp::UdpToPeer;

use super::connector::{Connector, Granted};
use crate::store::candidates;
use crate::store::plan::Plan;

/// A collector.
pub(super) struct Link {
    pub(super) address: SocketAddr,
    pub(super) connector: Connector,
    /// Where packets go, and our queue pair, while connected.
    pub(super) port: Option<(UdpToPeer, u32)>,
    pub(super) connections: u64,
    /// Why it is away.
    pub(super) problem: Option<String>,
    /// How often each entry of its table of keys with large counts was written.
    pub(super) written: Vec<u64>,
    /// What its memory says of the counts of other keys.
    pub(super) others: u64,
    /// Writes of both.
    pub(super) entries: u64,
    /// Remote key of the ring that they go to, and how many have.
    pub(super) events: u32,
    pub(super) told: u32,
    /// Those that there was no room for since the last one.
    pub(super) untold: u32,
    /// It is connected, and begins the generation that reports go to.
    pub(super) granted: Option<Granted>,
}

impl Link {
    /// Whether somebody there wants immediate reports, and can have them.
    pub(super) fn is_watched(&self) -> bool {
        self.port.is_some() && self.connector.is_watched()
    }
}

/// Writes the keys that have got a row, as far as there is room beside reports, and before them what is
/// known of the counts of other keys.
pub(super) fn write_largest(
    remote: &mut Remote,
    (plan, generation): (&Plan, u8),
    (written, others): (&mut [u64], &mut u64),
    entries: &mut u64,
) {
    let table = candidates::entries(plan, generation);
    let mut room = match remote.room(Operation::Write) {
        Room::Operations(room) => room / 2,
        Room::Gone => return,
    };
    let Some(largest) = remote.largest() else {
        return;
    };
    let max = candidates::others(largest.without_row_max());
    if room == 0 {
        return;
    }
    if max != *others {
        *others = max;
        *entries = entries.wrapping_add(1);
        remote.write(candidates::others_at(&table), &max.to_ne_bytes(), &[]);
    }
    while room > 0
        && let Some((row, key)) = remote.next_taken()
    {
        written[row] = written[row].wrapping_add(1);
        *entries = entries.wrapping_add(1);
        let bytes = candidates::entry(written[row], key.bytes());
        remote.write(candidates::entry_at(table.start + row), &bytes, &[]);
        room -= 1;
    }
}

/// Packets of one collector, in both directions.
pub(super) fn exchange(
    remote: &mut Remote,
    port: &mut UdpToPeer,
    qpn: u32,
    now_ns: u64,
) -> std::io::Result<()> {
    remote.finish_burst();
    port.receive(&mut |packet| {
        // One of an earlier connection is not for this one.
        if packet.dest_qp() == qpn {
            remote.receive(packet, now_ns);
        }
    })?;
    remote.tick(now_ns);
    let packets = remote.packets();
    if packets.is_empty() {
        return Ok(());
    }
    let sent = port.send(packets);
    packets.clear();
    sent
}
