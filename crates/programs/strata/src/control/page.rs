//! The status of a recording and its policies, as pages for people.

mod collecting;
mod sent;

use crate::record::shortage;
use strata_control::{
    ChangeStatus, CpuStatus, DetailStatus, DriftStatus, Event, FlowTableStatus, PacketStatus,
    PolicyOrigin, PolicyStatus, ReceiveStatus, ResourceStatus, ShedStatus, Status,
};
use strata_record::NO_PACKET_AFTER_ALERT;
use strata_terminal::listing::{ColumnForm, Reader, Row, listing, row, word};
use strata_terminal::shadow::shadow;
use strata_terminal::text::{count_of, percent};
use strata_wire::{Printable, grouped, human_bytes};

pub(super) use collecting::collector;

/// How many of the latest events are shown.
const EVENTS_SHOWN: usize = 5;

/// The label before the colon, with the reason in parentheses if there is one.
fn with_reason(result: &str, reason: &str) -> String {
    match reason {
        "" => word(result),
        reason => format!("{} ({})", word(result), word(reason)),
    }
}

#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
pub(super) fn whole(number: f64) -> u64 {
    number.max(0.0) as u64
}

fn rate(bytes_per_second: f64) -> String {
    format!("{}/s", human_bytes(whole(bytes_per_second)))
}

/// Whether a fact of the status page says that packets are lost, or that the model does not fit.
pub(super) fn is_alarming(fact: &str) -> bool {
    let is_lost = fact.starts_with("lost ") || fact.starts_with("packets  dropped");
    is_lost || fact.contains("NO LONGER FITS")
}

/// The status page.
pub(super) fn status(status: &Status, events: &[Event], reader: Reader) -> String {
    let head = format!(
        "strata {}, process {}, log {}, for {} s\n",
        word(&status.version),
        status.pid,
        word(&status.log),
        whole(status.uptime_seconds),
    );
    let mut rows = vec![
        row("mode", mode(status)),
        row(
            "policies",
            format!("{}, default {}", status.policies, word(&status.default)),
        ),
        row("rates", rates(status)),
    ];
    rows.extend(status.collector.iter().flat_map(collecting::rows));
    rows.extend(packets(status));
    rows.extend(status.detail.as_ref().map(detail));
    rows.extend(status.shadow.iter().flat_map(shadow));
    rows.extend(status.drift.as_ref().map(drift));
    rows.extend(arrivals(status));
    rows.extend(status.flow_table.as_ref().map(flow_table));
    rows.extend(status.resources.iter().filter_map(resource));
    rows.extend(status.receive.iter().map(receive));
    rows.extend(status.cpu.as_ref().map(cpu));
    rows.extend(status.shed.as_ref().and_then(shed));
    let lowered = status.lowered.as_ref().map(shortage::lowered);
    rows.extend(lowered.map(|text| row("lowered", text)));
    rows.extend(changes(&status.changes));
    rows.extend(latest(events));
    head + &listing(reader, [ColumnForm::words(8), ColumnForm::words(0)], rows)
}

fn latest(events: &[Event]) -> impl Iterator<Item = Row> {
    let latest = events.len().saturating_sub(EVENTS_SHOWN);
    events[latest..].iter().map(event)
}

pub(super) fn mode(status: &Status) -> String {
    let mut mode = word(&status.mode);
    if status.mode != status.asked_mode {
        mode += &format!(" (asked for: {})", word(&status.asked_mode));
    }
    if let Some(seconds) = status.mode_seconds_left {
        mode += &format!(", for {} s more", whole(seconds));
    }
    mode
}

fn rates(status: &Status) -> String {
    format!(
        "{} packets/s, {} in, {} kept",
        grouped(whole(status.packets_per_second)),
        rate(status.bytes_per_second),
        rate(status.logged_bytes_per_second),
    )
}

/// Where packets ended, with further details of those.
fn packets(status: &Status) -> impl Iterator<Item = Row> {
    let any = |all: &'_ [PacketStatus]| -> Vec<PacketStatus> {
        let some = all.iter().filter(|packets| packets.packets > 0);
        some.cloned().collect()
    };
    let ended = any(&status.packets).into_iter().map(|packets| {
        let result = with_reason(&packets.result, &packets.reason);
        let (count, bytes) = (grouped(packets.packets), human_bytes(packets.bytes));
        row("packets", format!("{result}: {count}, {bytes}"))
    });
    let more = [
        ("of them", &status.of_logged),
        ("mirrored", &status.mirrored),
    ];
    let more = more.into_iter().flat_map(move |(of, all)| {
        let count = |packets: &PacketStatus| {
            let text = format!("{}: {}", word(&packets.result), grouped(packets.packets));
            row(of, text)
        };
        any(all).iter().map(count).collect::<Vec<_>>()
    });
    let uncompared = Some(status.uncompared_packets).filter(|&packets| packets > 0);
    let uncompared = uncompared.map(|packets| row("uncompared", grouped(packets)));
    ended.chain(more).chain(uncompared)
}

/// The budget of detail, and what became of payload.
fn detail(detail: &DetailStatus) -> Row {
    let mut text = word(&detail.budget);
    if detail.budget != detail.asked {
        text += &format!(" (asked for: {})", word(&detail.asked));
    }
    for payload in detail.payload.iter().filter(|payload| payload.packets > 0) {
        let result = word(&payload.result).replace('_', " ");
        let (count, bytes) = (grouped(payload.packets), human_bytes(payload.bytes));
        text += &format!("; {result}: {count} packets, {bytes}");
    }
    row("detail", text)
}

/// How well the model fits the traffic.
fn drift(drift: &DriftStatus) -> Row {
    let seen = grouped(drift.samples);
    let Some(fits) = drift.fits else {
        return row(
            "model",
            format!("fit not known yet: {seen} packets evaluated"),
        );
    };
    let fit = match fits {
        true => "fits the traffic of the last minutes",
        false => "NO LONGER FITS the traffic of the last minutes",
    };
    let mut text = format!(
        "{fit} (drift index {:.2}, limit {}; {seen} packets evaluated)",
        drift.score_index, drift.bound
    );
    let moved = drift
        .features
        .iter()
        .filter(|feature| feature.index > drift.bound);
    let moved: Vec<String> = moved
        .map(|feature| format!("{} {:.1}", word(&feature.name), feature.index))
        .collect();
    if !fits && !moved.is_empty() {
        text += &format!(
            "; features that differ most from training: {}",
            moved.join(", ")
        );
    }
    row("model", text)
}

/// What arrived, and what was lost before that.
fn arrivals(status: &Status) -> impl Iterator<Item = Row> {
    let interfaces = status.interfaces.iter().flat_map(|interface| {
        let (received, dropped) = (grouped(interface.received), grouped(interface.dropped));
        let name = word(&interface.name);
        let counts = format!("{received} packets received, {dropped} dropped by kernel");
        let way = interface.capture.as_ref().zip(interface.exclusive.as_ref());
        let way = way.map(|(how, exclusive)| {
            let text = format!("{}; exclusive capture: {}", word(how), word(exclusive));
            row(&name, text)
        });
        [row(&name, counts)].into_iter().chain(way)
    });
    let lost = status.lost.iter().map(|lost| {
        let place = with_reason(&lost.place, &lost.counter);
        let (packets, advice) = (grouped(lost.packets), word(&lost.advice));
        row("lost", format!("{place}: {packets} packets; {advice}"))
    });
    let vectors = &status.vectors;
    let is_asked = vectors.attached > 0 || vectors.datagrams_lost > 0;
    let asked = is_asked.then(|| {
        row(
            "asked",
            format!(
                "by {}; {} datagrams sent, {} lost because they were not read in time",
                vectors.attached,
                grouped(vectors.datagrams_sent),
                grouped(vectors.datagrams_lost)
            ),
        )
    });
    let installed = (vectors.installed > 0).then(|| {
        let text = format!("{} (strata ask --installed)", vectors.installed);
        row("queries", text)
    });
    let waits = status.compaction.filter(|lag| lag.in_use && lag.files > 0);
    let compacted = waits.map(|lag| {
        let mut text = format!(
            "{} with {} not compacted yet",
            count_of(lag.files, "complete block file"),
            human_bytes(lag.bytes),
        );
        if let Some(oldest) = lag.oldest_seconds {
            text += &format!(", the oldest for {oldest:.0} s");
        }
        row("compaction", text)
    });
    let alerted = status.eve.map(|eve| {
        let alerts = count_of(eve.alerts, "alert");
        let (flows, matched) = (count_of(eve.flows, "flow"), grouped(eve.matched));
        let missed = match eve.flows.saturating_sub(eve.matched) {
            0 => String::new(),
            missed => format!(", {} {NO_PACKET_AFTER_ALERT}", grouped(missed)),
        };
        row(
            "eve",
            format!("{alerts} on {flows}, {matched} of them seen here{missed}"),
        )
    });
    let asked = asked.into_iter().chain(installed).chain(sent::rows(status));
    let asked = asked.chain(alerted).chain(compacted);
    interfaces.chain(lost).chain(asked)
}

fn flow_table(table: &FlowTableStatus) -> Row {
    let refused = match table.growths_refused {
        0 => String::new(),
        count => format!("; {} refused by the system", count_of(count, "growth")),
    };
    let text = format!(
        "table of {}, {} of packets without an entry{refused}",
        human_bytes(table.bytes),
        percent(table.packets_without_entry, table.packets),
    );
    row("flows", text)
}

fn resource(resource: &ResourceStatus) -> Option<Row> {
    let used = resource.used? * 100.0;
    let short = match resource.degradation_steps {
        0 => String::new(),
        steps => format!(
            ", short: mode degraded by {}",
            count_of(steps as u64, "step")
        ),
    };
    let name = word(&resource.name);
    let about = match &*resource.name {
        "ring" => " (packets dropped by the kernel)",
        "ring_fill" => " (fullest ring of an interface)",
        "blocks" => " (memory that waits for the disk)",
        _ => "",
    };
    Some(row(
        "resource",
        format!("{name}{about}: {used:.0} %{short}"),
    ))
}

/// A CPU whose receive work leaves it this little time is what limits the recording.
const RECEIVE_IS_LIMIT: f64 = 0.9;

/// What receiving packets costs the kernel.
fn receive(cpu: &ReceiveStatus) -> Row {
    let mut text = format!(
        "CPU {}: {:.0} % of its time in the kernel's receive work (softirq), {:.0} % idle",
        cpu.cpu,
        cpu.softirq * 100.0,
        cpu.idle * 100.0,
    );
    // Those that are taken away in the driver are not counted.
    if cpu.packets_per_second >= 1.0 {
        text += &format!("; {} packets/s", grouped(whole(cpu.packets_per_second)));
    }
    if cpu.softirq > RECEIVE_IS_LIMIT {
        text += "; the kernel is the limit, not Strata: spread interrupts over more CPUs";
    }
    row("receive", text)
}

fn cpu(cpu: &CpuStatus) -> Row {
    let mut text = format!(
        "{:.1} % of a core, budget {:.1} %; {:.1} % of flows are captured",
        cpu.used * 100.0,
        cpu.budget * 100.0,
        cpu.flow_share * 100.0,
    );
    if let Some(short) = &cpu.short {
        let left = short.budget * 100.0;
        text += &format!(
            "; reduced to {left:.1} % and headers only: {}",
            Printable(&short.why)
        );
    }
    row("cpu", text)
}

fn shed(shed: &ShedStatus) -> Option<Row> {
    shortage::shed(shed).map(|text| row("payload", text))
}

fn changes(changes: &ChangeStatus) -> Option<Row> {
    if changes.count == 0 {
        return None;
    }
    let ms = |value: Option<f64>| value.map_or(String::from("-"), |ms| format!("{ms:.2} ms"));
    let text = format!(
        "{}, from request to packet {} (median), {} (p99)",
        changes.count,
        ms(changes.median_ms),
        ms(changes.p99_ms),
    );
    Some(row("changes", text))
}

fn event(event: &Event) -> Row {
    let why = match event.why.as_str() {
        "" => String::new(),
        why => format!(": {}", word(why)),
    };
    let (at, what, who) = (word(&event.at), word(&event.what), word(&event.who));
    row("event", format!("{at} {what} (by {who}{why})"))
}

/// The policies with their hits.
pub(super) fn policies(all: &[PolicyStatus], reader: Reader) -> String {
    const COLUMNS: [ColumnForm; 7] = [
        ColumnForm::numbers(4),
        ColumnForm::numbers(8),
        ColumnForm::numbers(14),
        ColumnForm::numbers(10),
        ColumnForm::words(8).apart(),
        ColumnForm::words(16).apart(),
        ColumnForm::words(0),
    ];
    let head = [
        "id", "priority", "packets", "bytes", "from", "action", "match",
    ];
    let head = head.map(str::to_owned);
    let rows = all.iter().map(policy);
    listing(reader, COLUMNS, std::iter::once(head).chain(rows))
}

fn policy(policy: &PolicyStatus) -> [String; 7] {
    let mut matches = word(&policy.matches);
    if let Some(name) = &policy.interface {
        matches += &format!(" (on {})", word(name));
    }
    if policy.protect {
        matches += " (protected)";
    }
    let from = match policy.origin {
        PolicyOrigin::Configuration => "file",
        PolicyOrigin::RunTime => "run time",
    };
    [
        policy.id.to_string(),
        policy.priority.to_string(),
        grouped(policy.packets),
        human_bytes(policy.bytes),
        from.to_owned(),
        word(&policy.action),
        matches,
    ]
}

#[cfg(test)]
mod tests {
    use strata_control::{InterfaceStatus, LostStatus, VectorStatus};

    use super::*;

    const EVE: &str = r#"{"lines":150,"alerts":120,"invalid":1,"flows":35,"matched":33}"#;

    const LOWERED: &str = r#"{"now":true,"times":3,"seconds":95.25,"at":"2026-01-31T13:04:00Z",
        "from":"mode default, detail 10%","to":"mode log-minimum, detail 1.25%",
        "why":"ring_fill is short: 60 % in use","prevent":"use longer rings (-B)"}"#;

    fn ended(result: &str, reason: &str, packets: u64) -> PacketStatus {
        PacketStatus {
            result: result.into(),
            reason: reason.into(),
            packets,
            bytes: packets * 100,
        }
    }

    fn full() -> Status {
        Status {
            vectors: VectorStatus::default(),
            reports: None,
            flows: None,
            exports: Vec::new(),
            eve: serde_json::from_str(EVE).unwrap(),
            compaction: None,
            collector: None,
            version: "0.1.0".into(),
            pid: 7,
            log: "log/\u{1b}[2J".into(),
            uptime_seconds: 12.9,
            mode: "log-minimum".into(),
            asked_mode: "default".into(),
            mode_seconds_left: Some(59.5),
            detail: None,
            drift: None,
            shadow: None,
            default: "classify".into(),
            policies: 2,
            packets_per_second: 1234.5,
            bytes_per_second: 2e6,
            logged_bytes_per_second: 1e3,
            packets: vec![
                ended("filtered", "", 0),
                ended("discarded", "policy", 3),
                ended("logged", "", 12_345),
            ],
            classes: Vec::new(),
            of_logged: vec![ended("promoted", "", 4)],
            uncompared_packets: 0,
            mirrored: vec![ended("sent", "", 5), ended("lost", "", 0)],
            interfaces: vec![InterfaceStatus {
                name: "eth0".into(),
                received: 12_348,
                dropped: 1,
                capture: Some("AF_PACKET".into()),
                exclusive: Some("no: has address 192.0.2.1/24".into()),
            }],
            lost: vec![LostStatus {
                place: "device".into(),
                counter: "rx_missed_errors".into(),
                packets: 6,
                advice: "make the receive ring of the network interface longer".into(),
            }],
            receive: vec![
                ReceiveStatus {
                    cpu: 0,
                    packets_per_second: 812_345.6,
                    softirq: 0.954,
                    idle: 0.01,
                },
                ReceiveStatus {
                    cpu: 12,
                    packets_per_second: 0.0,
                    softirq: 0.05,
                    idle: 0.9,
                },
            ],
            resources: vec![ResourceStatus {
                name: "disk".into(),
                used: Some(0.95),
                short_at: Some(0.9),
                degradation_steps: 2,
            }],
            flow_table: Some(FlowTableStatus {
                bytes: 128 << 20,
                packets: 1_000,
                packets_without_entry: 12,
                growths_refused: 2,
            }),
            shed: Some(ShedStatus {
                now: true,
                times: 2,
                seconds: 12.34,
                bytes: 256,
            }),
            lowered: serde_json::from_str(LOWERED).unwrap(),
            cpu: Some(CpuStatus {
                budget: 0.5,
                used: 0.25,
                flow_share: 1.0,
                short: None,
            }),
            changes: ChangeStatus {
                count: 2,
                seconds_sum: 0.1,
                median_ms: Some(1.5),
                p99_ms: Some(3.0),
            },
            ring_wait_ms: None,
        }
    }

    fn events() -> Vec<Event> {
        let event = |number: u32| Event {
            at: "2026-01-31T13:05:00Z".into(),
            who: "uid 0".into(),
            what: format!("event {number}"),
            why: if number == 6 { "a\nb" } else { "" }.into(),
            is_alert: false,
        };
        (1..=6).map(event).collect()
    }

    const PLAIN: &str = "\
strata 0.1.0, process 7, log log/\\u{1b}[2J, for 12 s
mode     log-minimum (asked for: default), for 59 s more
policies 2, default classify
rates    1,234 packets/s, 2.0 MB/s in, 1.0 kB/s kept
packets  discarded (policy): 3, 300 B
packets  logged: 12,345, 1.2 MB
of them  promoted: 4
mirrored sent: 5
eth0     12,348 packets received, 1 dropped by kernel
eth0     AF_PACKET; exclusive capture: no: has address 192.0.2.1/24
lost     device (rx_missed_errors): 6 packets; make the receive ring of the network interface longer
eve      120 alerts on 35 flows, 33 of them seen here, 2 without a packet from the alert on: they had ended before it, unless Suricata sees other traffic (--look-back keeps earlier packets)
flows    table of 134.2 MB, 1.20 % of packets without an entry; 2 growths refused by the system
resource disk: 95 %, short: mode degraded by 2 steps
receive  CPU 0: 95 % of its time in the kernel's receive work (softirq), 1 % idle; 812,345 packets/s; the kernel is the limit, not Strata: spread interrupts over more CPUs
receive  CPU 12: 5 % of its time in the kernel's receive work (softirq), 90 % idle
cpu      25.0 % of a core, budget 50.0 %; 100.0 % of flows are captured
payload  now: at most 256 bytes of each packet are captured; given up 2 times, for 12.3 s in all, because packets were lost
lowered  now: mode log-minimum, detail 1.25% instead of mode default, detail 10%, since 2026-01-31T13:04:00Z (ring_fill is short: 60 % in use); lowered 3 times, for 95.2 s in all; to prevent it: use longer rings (-B)
changes  2, from request to packet 1.50 ms (median), 3.00 ms (p99)
event    2026-01-31T13:05:00Z event 2 (by uid 0)
event    2026-01-31T13:05:00Z event 3 (by uid 0)
event    2026-01-31T13:05:00Z event 4 (by uid 0)
event    2026-01-31T13:05:00Z event 5 (by uid 0)
event    2026-01-31T13:05:00Z event 6 (by uid 0: a\\nb)
";

    /// All words in order, wherever lines are broken.
    fn words(page: &str) -> Vec<&str> {
        page.split_whitespace().collect()
    }

    #[test]
    fn a_status_is_a_line_per_fact_for_programs() {
        assert_eq!(status(&full(), &events(), Reader::Program), PLAIN);
    }

    #[test]
    fn a_status_has_the_same_words_in_a_terminal() {
        let page = status(&full(), &events(), Reader::Terminal(60));
        assert_eq!(words(&page), words(PLAIN), "{page}");
        let wrapped = "
lost     device (rx_missed_errors): 6 packets; make the
         receive ring of the network interface longer
";
        assert!(page.contains(wrapped), "{page}");
        let lines = page.lines().skip(1);
        assert!(lines.into_iter().all(|line| line.len() <= 60), "{page}");
    }

    #[test]
    fn policies_are_a_table() {
        let policy = |id, matches: &str, origin| PolicyStatus {
            id,
            matches: matches.into(),
            action: "full".into(),
            priority: 100,
            interface: (id == 2).then(|| "eth0".into()),
            protect: id == 2,
            origin,
            packets: 1_000_000,
            bytes: 64_000_000,
        };
        let all = [
            policy(1, "arp", PolicyOrigin::Configuration),
            policy(2, "udp port 53", PolicyOrigin::RunTime),
        ];
        let plain = "  id priority        packets      bytes  from      action           match
   1      100      1,000,000    64.0 MB  file      full             arp
   2      100      1,000,000    64.0 MB  run time  full             udp port 53 (on eth0) (protected)
";
        assert_eq!(policies(&all, Reader::Program), plain);
        let page = policies(&all, Reader::Terminal(80));
        assert!(page.lines().all(|line| line.len() <= 80), "{page}");
    }

    /// What the server sends is what the client reads.
    #[test]
    fn a_status_survives_json() {
        let sent = serde_json::to_value(full()).unwrap();
        let read: Status = serde_json::from_value(sent.clone()).unwrap();
        assert_eq!(serde_json::to_value(read).unwrap(), sent);
    }
}
