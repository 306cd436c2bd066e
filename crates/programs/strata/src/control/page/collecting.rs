//! What a collector has received, in the status.

use strata_control::{CollectorStatus, Event, RefusedStatus, SenderStatus};
use strata_terminal::listing::{ColumnForm, Reader, Row, listing, row, word};
use strata_terminal::text::count_of;
use strata_wire::{grouped, human_bytes};

use super::{latest, whole};

/// The status page of a collector that writes a stream.
pub(in crate::control) fn collector(
    status: &CollectorStatus,
    events: &[Event],
    reader: Reader,
) -> String {
    let head = format!(
        "strata {}, process {}, collector, writes {}, for {} s\n",
        word(&status.version),
        status.pid,
        word(&status.output),
        whole(status.uptime_seconds),
    );
    let rate = format!("{} packets/s", grouped(whole(status.packets_per_second)));
    let mut list = vec![row("rates", rate)];
    list.extend(rows(status));
    list.extend(latest(events));
    head + &listing(reader, [ColumnForm::words(8), ColumnForm::words(0)], list)
}

/// What came, from whom, and what was refused.
pub(super) fn rows(status: &CollectorStatus) -> impl Iterator<Item = Row> {
    let encrypted = match status.is_encrypted {
        true => ", encrypted datagrams only",
        false => "",
    };
    let listens = format!("on UDP {}{encrypted}", word(&status.listen));
    let mut came = format!(
        "{}, {}; {} lost on the way",
        count_of(status.packets, "packet"),
        human_bytes(status.bytes),
        grouped(status.lost()),
    );
    if status.not_written > 0 {
        came += &format!("; {} not written yet", grouped(status.not_written));
    }
    let refused = refused(&status.refused).map(|text| row("refused", text));
    let dropped = (status.socket_drops > 0).then(|| {
        let messages = count_of(status.socket_drops, "message");
        let text = format!("{messages} dropped by the socket, because its buffer was full");
        row("lost", text)
    });
    let forgotten = (status.forgotten > 0).then(|| {
        let interfaces = count_of(status.forgotten, "silent interface");
        row(
            "senders",
            format!("{interfaces} removed from this list to make room"),
        )
    });
    [row("collects", listens), row("received", came)]
        .into_iter()
        .chain(refused)
        .chain(dropped)
        .chain(status.senders.iter().map(sender))
        .chain(forgotten)
}

/// The datagrams that were not accepted, as in `12 datagrams from senders outside --allow, 1 unreadable`;
/// `None` without any.
fn refused(counts: &RefusedStatus) -> Option<String> {
    let reasons = [
        (counts.strangers, "from senders outside --allow"),
        (counts.forged, "unencrypted or forged"),
        (counts.old, "more than 60 s from this clock"),
        (counts.unreadable, "unreadable"),
        (counts.repeated, "repeated or contradictory"),
        (counts.too_many, "of too many interfaces"),
    ];
    let mut present = reasons.into_iter().filter(|(count, _)| *count > 0);
    let (count, reason) = present.next()?;
    let mut text = format!("{} {reason}", count_of(count, "datagram"));
    for (count, reason) in present {
        text += &format!(", {} {reason}", grouped(count));
    }
    Some(text)
}

fn sender(from: &SenderStatus) -> Row {
    let name = match from.name.is_empty() {
        true => String::from("not announced"),
        false => word(&from.name),
    };
    let mut text = format!(
        "{name} ({}, identity {}): {}, {}; {} cut; {} lost; {} before; {} dropped by its kernel; heard {} s ago",
        word(&from.sender),
        from.identity,
        count_of(from.packets, "packet"),
        human_bytes(from.bytes),
        grouped(from.cut),
        grouped(from.lost),
        grouped(from.before),
        grouped(from.dropped),
        whole(from.silent_seconds),
    );
    if from.sessions > 1 {
        let sessions = count_of(from.sessions, "session");
        text += &format!("; {sessions}, {} cut short", grouped(from.broken_off));
    }
    row("sender", text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_collector_is_a_line_per_fact() {
        let status = CollectorStatus {
            version: "0.1.0".into(),
            pid: 7,
            uptime_seconds: 12.9,
            listen: "192.0.2.10:4740".into(),
            is_encrypted: true,
            output: "all\u{1b}.pcapng".into(),
            packets: 21_093,
            bytes: 1_200_000,
            packets_per_second: 1_234.5,
            refused: RefusedStatus {
                strangers: 12,
                too_many: 1,
                ..RefusedStatus::default()
            },
            senders: vec![SenderStatus {
                sender: "192.0.2.11".into(),
                identity: 4096,
                name: "web-1:eth0".into(),
                packets: 21_093,
                bytes: 1_200_000,
                cut: 20_000,
                lost: 57,
                sessions: 3,
                broken_off: 1,
                silent_seconds: 1.5,
                ..SenderStatus::default()
            }],
            ..CollectorStatus::default()
        };
        let page = "\
strata 0.1.0, process 7, collector, writes all\\u{1b}.pcapng, for 12 s
rates    1,234 packets/s
collects on UDP 192.0.2.10:4740, encrypted datagrams only
received 21,093 packets, 1.2 MB; 57 lost on the way
refused  12 datagrams from senders outside --allow, 1 of too many interfaces
sender   web-1:eth0 (192.0.2.11, identity 4096): 21,093 packets, 1.2 MB; 20,000 cut; 57 lost; 0 before; 0 dropped by its kernel; heard 1 s ago; 3 sessions, 1 cut short
";
        assert_eq!(collector(&status, &[], Reader::Program), page);
    }
}
