//! The recordings and collectors of this machine, a line each.

use std::path::Path;

use strata_control::client::{ClientError, Listening};
use strata_control::{CollectorStatus, Status};
use strata_terminal::listing::{ColumnForm, Reader, listing, word};
use strata_wire::grouped;

use super::page::{mode, whole};

/// A line for each recording or collector, which has this socket and status.
pub(super) fn several(
    recordings: &[(&Path, Result<Listening, ClientError>)],
    reader: Reader,
) -> String {
    let titles = ["interfaces", "packets/s", "lost", "mode", "for", "socket"].map(str::to_owned);
    let lines = recordings.iter().map(|(socket, status)| {
        let socket = socket.display().to_string();
        match status {
            Ok(Listening::Recording(status)) => line(status, socket),
            Ok(Listening::Collector(status)) => collecting(status, socket),
            Err(_) => {
                let unknown = || String::from("-");
                let problem = String::from("no answer");
                [unknown(), unknown(), unknown(), problem, unknown(), socket]
            }
        }
    });
    let columns = [
        ColumnForm::words(10),
        ColumnForm::numbers(9),
        ColumnForm::numbers(6),
        ColumnForm::words(8).apart(),
        ColumnForm::numbers(8),
        ColumnForm::words(0).apart(),
    ];
    listing(reader, columns, [titles].into_iter().chain(lines))
}

/// As the place of a collector among interfaces is shown.
fn listens(status: &CollectorStatus) -> String {
    format!("udp {}", word(&status.listen))
}

fn collecting(status: &CollectorStatus, socket: String) -> [String; 6] {
    [
        listens(status),
        grouped(whole(status.packets_per_second)),
        grouped(status.lost()),
        String::from("collector"),
        clock(whole(status.uptime_seconds)),
        socket,
    ]
}

fn line(status: &Status, socket: String) -> [String; 6] {
    let interfaces = status.interfaces.iter().map(|one| word(&one.name));
    let collector = status.collector.as_ref();
    let interfaces = interfaces.chain(collector.map(listens));
    let interfaces: Vec<String> = interfaces.collect();
    let dropped = status
        .packets
        .iter()
        .filter(|ended| ended.result == "dropped");
    let lost = status.lost.iter().map(|lost| lost.packets);
    let lost = lost.chain(dropped.map(|dropped| dropped.packets));
    let lost = lost.chain(collector.map(CollectorStatus::lost));
    [
        interfaces.join(","),
        grouped(whole(status.packets_per_second)),
        grouped(lost.fold(0, u64::saturating_add)),
        mode(status),
        clock(whole(status.uptime_seconds)),
        socket,
    ]
}

/// Seconds as days, hours, minutes and seconds.
fn clock(seconds: u64) -> String {
    let (days, hours) = (seconds / 86_400, seconds / 3_600 % 24);
    let rest = format!("{:02}:{:02}:{:02}", hours, seconds / 60 % 60, seconds % 60);
    match days {
        0 => rest,
        days => format!("{days}d {rest}"),
    }
}

#[cfg(test)]
mod tests {
    use super::clock;

    #[test]
    fn a_time_is_read_as_a_clock() {
        assert_eq!(clock(59), "00:00:59");
        assert_eq!(clock(86_399), "23:59:59");
        assert_eq!(clock(86_400 * 12 + 3_661), "12d 01:01:01");
    }
}
