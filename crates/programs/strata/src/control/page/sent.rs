//! What a recording sends to others: reports, flows, packets that policies export.

use strata_control::Status;
use strata_terminal::listing::{Row, row, word};
use strata_wire::{count_of, grouped};

pub(super) fn rows(status: &Status) -> impl Iterator<Item = Row> {
    let reported = status.reports.as_ref().map(|reports| {
        let counts = format!(
            "to {}: {} sent, {} not sent, {} over the limit",
            word(&reports.to),
            grouped(reports.reports),
            grouped(reports.not_sent),
            grouped(reports.over_limit),
        );
        row("reports", counts)
    });
    let flows = status.flows.as_ref().map(|flows| {
        let counts = format!(
            "to {}: {}, {} in {}, {} of them not delivered; {} in no flow",
            word(&flows.to),
            count_of(flows.flows, "flow"),
            count_of(flows.records, "record"),
            count_of(flows.datagrams, "datagram"),
            grouped(flows.undelivered),
            count_of(flows.lost, "packet"),
        );
        row("flows", counts)
    });
    let exported = status.exports.iter().map(|to| {
        let counts = format!(
            "to {} ({}): {} packets, {} lost, {} unfit, {} cut; {} datagrams, {} not sent; {} announcements",
            word(&to.name),
            word(&to.to),
            grouped(to.packets),
            grouped(to.lost),
            grouped(to.unfit),
            grouped(to.cut),
            grouped(to.datagrams),
            grouped(to.not_sent),
            grouped(to.announcements),
        );
        row("export", counts)
    });
    reported.into_iter().chain(flows).chain(exported)
}
