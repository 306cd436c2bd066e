//! Rows of the table of flows.

use parquet::data_type::ByteArray;
use strata_names::{Details, Names};
use strata_processes::Process;
use strata_wire::AddressFamily;

use crate::columns::addresses::Addresses;
use crate::run::Run;
use crate::run::flow::{EndReason, Flow, Stats, class_mix};

/// A flow whose run has ended.
#[derive(Debug)]
pub(crate) struct FlowRow<'a> {
    pub(crate) flow_id: i64,
    pub(crate) flow: &'a Flow,
    /// Texts of its low and high address.
    pub(crate) addresses: Option<[&'a ByteArray; 2]>,
    pub(crate) recording: u32,
    /// The class of most of its packets.
    pub(crate) class: ByteArray,
    pub(crate) classes: ByteArray,
    pub(crate) group: usize,
    pub(crate) first_row: usize,
    pub(crate) rows: usize,
}

impl FlowRow<'_> {
    pub(super) fn stats(&self) -> &Stats {
        &self.flow.stats
    }

    /// The direction of the run's first packet.
    pub(super) fn there(&self) -> usize {
        self.flow.initiator
    }

    pub(super) fn back(&self) -> usize {
        1 - self.flow.initiator
    }

    /// The sender's address in a direction.
    pub(super) fn address(&self, direction: usize) -> Option<ByteArray> {
        Some(self.addresses?[direction].clone())
    }

    pub(super) fn port(&self, direction: usize) -> Option<i64> {
        let port = self.flow.ends(direction).0.port;
        self.flow.has_ports().then_some(port.into())
    }

    pub(super) fn protocol(&self) -> Option<i64> {
        let key = &self.flow.key;
        (key.family != AddressFamily::Mac).then_some(key.protocol.into())
    }

    pub(super) fn ip_bytes(&self, direction: usize) -> Option<i64> {
        let bytes = self.stats().ip_bytes[direction];
        (self.flow.key.family != AddressFamily::Mac).then_some(bytes.cast_signed())
    }

    pub(super) fn end_reason(&self) -> Option<EndReason> {
        let ended = self.flow.has_ended().then_some(EndReason::End);
        self.flow.end_reason.or(ended)
    }

    pub(super) fn tcp_flags(&self, direction: usize) -> Option<i64> {
        let flags = self.stats().tcp_flags[direction];
        self.flow.is_tcp().then_some(flags.into())
    }

    pub(super) fn delay(&self, which: fn([u64; 3]) -> u64) -> Option<i64> {
        self.stats().ipd().map(|ipd| which(ipd).cast_signed())
    }

    pub(super) fn name(&self, which: fn(&Names) -> &Option<Box<str>>) -> Option<ByteArray> {
        which(&self.flow.names).as_deref().map(ByteArray::from)
    }

    /// What is known of the process of the end that sends packets in a direction.
    pub(super) fn process<T>(
        &self,
        direction: usize,
        which: impl FnOnce(&Process) -> T,
    ) -> Option<T> {
        self.flow.processes.of(direction).map(which)
    }

    /// A detail of requests and responses, if there are any.
    pub(super) fn detail<T>(&self, which: impl FnOnce(&Details) -> Option<T>) -> Option<T> {
        which(self.flow.names.details.as_deref()?)
    }

    /// One that is a text.
    pub(super) fn detail_text(
        &self,
        which: impl FnOnce(&Details) -> &Option<Box<str>>,
    ) -> Option<ByteArray> {
        self.detail(|details| which(details).as_deref().map(ByteArray::from))
    }
}

#[allow(clippy::cast_possible_truncation)]
pub(super) fn float(value: f64) -> f32 {
    value as f32
}

/// A number of rows or groups.
pub(super) fn whole(number: usize) -> i64 {
    i64::try_from(number).expect("a file has fewer rows")
}

/// Fields of flow rows that are not in the flows themselves.
pub(crate) struct Place<'a> {
    pub(crate) recording: u32,
    /// By flow.
    pub(crate) flow_ids: &'a [i64],
    /// The row group of their packets.
    pub(crate) group: usize,
}

/// Rows of some flows of a run, whose packets are stored one flow after another.
pub(crate) fn flow_rows<'a>(
    run: &'a Run,
    flows: &[u32],
    addresses: &'a Addresses,
    class_names: &[String],
    place: &Place<'_>,
) -> Vec<FlowRow<'a>> {
    let mut rows = Vec::with_capacity(flows.len());
    let mut first_row = 0;
    let names = class_names.iter();
    let names: Vec<ByteArray> = names.map(|name| ByteArray::from(name.as_str())).collect();
    let unknown = ByteArray::from("unknown");
    for &number in flows {
        let flow = &run.flows[number as usize];
        let count = usize::try_from(flow.stats.packets[0] + flow.stats.packets[1]);
        let count = count.expect("a run has half a million packets");
        let most = flow.stats.classes.iter().max_by_key(|(_, n)| *n);
        let class = most.and_then(|(class, _)| names.get(usize::from(*class)));
        let mix = class_mix(&flow.stats.classes, class_names);
        rows.push(FlowRow {
            flow_id: place.flow_ids[number as usize],
            flow,
            addresses: addresses.of(number),
            recording: place.recording,
            class: class.unwrap_or(&unknown).clone(),
            classes: ByteArray::from(mix.as_str()),
            group: place.group,
            first_row,
            rows: count,
        });
        first_row += count;
    }
    rows
}
