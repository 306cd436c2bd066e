//! `strata top`: which flows, hosts, pairs of hosts, ports, protocols, classes, reasons or logs packets are of.

mod graph;
mod live;
mod tally;

use std::io::Write;
use std::net::IpAddr;
use std::ops::ControlFlow;
use std::path::PathBuf;

use anyhow::Result;
use clap::ValueEnum;
use serde_json::{Map, Value, json};
use strata_networks::{ByAddress, Known, Names, NamesError};
use strata_query::{Kept, PacketRows};
use strata_terminal::key::KeyArgs;
use strata_terminal::output::{Completeness, print_json, refuse, standard};
use strata_terminal::progress::Progress;
use strata_terminal::selection::{Logs, SpanArgs, report, say_untested};
use strata_terminal::text;
use strata_wire::{Printable, grouped};
use tracing::warn;

use crate::names::NamesArgs;
use live::LiveArgs;
pub use live::LiveTop;
use tally::{KEYS_MAX, Key, Sums, Tally};

/// Arguments of `strata top`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  strata top log/
  strata top log/ --by destination --of wire -n 5 'net 10.0.0.0/8'
  strata top log/ --by reason --of kept --from 13:05 --to 13:20
  strata top log/ --by host --names /etc/hosts --mmdb GeoLite2-ASN.mmdb
  strata top log/ --by destination --dns-names
  strata top log/ --by country --mmdb GeoLite2-Country.mmdb 'net 10.0.0.0/8'
  strata top log/ --by pair --graph | dot -Tsvg > hosts.svg
  strata top tap1/ tap2/ --by port 'udp'
  strata top tap1/ tap2/ --by log
  strata top --running --by pair --of wire

A packet in a tunnel counts for the innermost flow. With --by host, port, network, country or as, a
packet counts for both of its ends, so that the shares may sum up to 200 %; the line 'counted twice'
subtracts the second count. At most 1,000,000 distinct keys (flows, hosts and so on) are counted
separately; packets of the remaining keys are counted together. A log can be counted while it is
being recorded, except for packets that are still in memory. A packet that is in several logs is
counted once per log.

Exit status: 0 if all selected packets are counted; 1 if not, because of an invalid filter or time,
no log, damaged packets, packets whose interface or classification record is missing from the log,
or a filter that applies to no interface of the log (standard error names it); 2 if the command line
is invalid.")]
pub struct Args {
    /// Read the log in this directory. Further logs may follow, up to 64 in all.
    #[arg(value_name = "LOG", required_unless_present_any = ["socket", "running"])]
    log: Option<PathBuf>,

    #[command(flatten)]
    live: LiveArgs,

    /// Choose the key by which packets are counted.
    #[arg(long, value_enum, default_value_t = By::Flow)]
    by: By,

    /// Order by packets, by bytes on the wire or by bytes kept.
    #[arg(long, value_enum, default_value_t = Of::Packets)]
    of: Of,

    /// Show this many rows, up to 1000000.
    #[arg(short = 'n', long, value_name = "N", default_value_t = 20, allow_negative_numbers = true,
          value_parser = clap::value_parser!(u32).range(1..=i64::from(KEYS_MAX)))]
    number: u32,

    #[command(flatten)]
    span: SpanArgs,

    #[command(flatten)]
    names: NamesArgs,

    /// Print a JSON object instead of a table.
    #[arg(long)]
    json: bool,

    /// Print a graph of hosts for Graphviz (DOT) instead: an edge for each pair, wider for more
    /// traffic. Needs --by pair.
    #[arg(long, conflicts_with_all = ["json", "socket", "running"])]
    graph: bool,

    #[command(flatten)]
    key: KeyArgs,

    /// Count packets that match this tcpdump filter, which sees only the bytes that were kept.
    #[arg(value_name = "LOG... FILTER")]
    more: Vec<String>,
}

/// What packets are counted by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum By {
    /// Both directions of a conversation together.
    Flow,
    /// Each address; a packet counts for both of its addresses.
    Host,
    /// The source address.
    Source,
    /// The destination address.
    Destination,
    /// Both addresses, both directions together.
    Pair,
    /// Each port; a packet counts for both of its ports.
    Port,
    /// The named network (--names) of each address; a packet counts for both of its addresses.
    Network,
    /// The country (--mmdb) of each address; a packet counts for both of its addresses.
    Country,
    /// The autonomous system (--mmdb) of each address; a packet counts for both of its addresses.
    As,
    /// The IP protocol.
    Protocol,
    /// The class, as the model decided.
    Class,
    /// The reason why packets were kept.
    Reason,
    /// The log that the packet is in, of several.
    Log,
}

impl By {
    fn name(self) -> &'static str {
        match self {
            Self::Flow => "flow",
            Self::Host => "host",
            Self::Source => "source",
            Self::Destination => "destination",
            Self::Pair => "pair",
            Self::Port => "port",
            Self::Network => "network",
            Self::Country => "country",
            Self::As => "as",
            Self::Protocol => "protocol",
            Self::Class => "class",
            Self::Reason => "reason",
            Self::Log => "log",
        }
    }

    /// The network, country or autonomous system of an address.
    fn owner(self, names: &Names, address: IpAddr) -> Result<Key, NamesError> {
        let owner = match self {
            Self::Country => names.country(address)?,
            Self::As => names.system(address)?,
            _ => names.network(address),
        };
        Ok(owner.map_or(Key::None("unknown"), |owner| Key::text(&owner)))
    }

    fn heading(self) -> &'static str {
        match self {
            Self::Host => {
                "host (a packet counts for each of its two addresses: shares add up to 200 %)"
            }
            Self::Port => {
                "port (a packet counts for each of its two ports: shares add up to 200 %)"
            }
            Self::Network => "network (a packet counts for both ends: shares add up to 200 %)",
            Self::Country => "country (a packet counts for both ends: shares add up to 200 %)",
            Self::As => "as (a packet counts for both ends: shares add up to 200 %)",
            other => other.name(),
        }
    }
}

/// What is largest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Of {
    Packets,
    /// Bytes on the wire.
    Wire,
    /// Bytes kept.
    Kept,
}

impl Of {
    fn name(self) -> &'static str {
        match self {
            Self::Packets => "packets",
            Self::Wire => "wire",
            Self::Kept => "kept",
        }
    }

    fn of(self, sums: &Sums) -> u64 {
        match self {
            Self::Packets => sums.packets,
            Self::Wire => sums.wire_bytes,
            Self::Kept => sums.kept_bytes,
        }
    }
}

/// A line of the answer.
struct Row {
    name: String,
    /// Its address, or the two of a pair.
    hosts: Vec<Host>,
    sums: Sums,
}

/// An address, and what files say of it.
struct Host {
    address: String,
    known: Known,
}

impl Host {
    /// The address, and what is known of it in parentheses.
    fn described(&self) -> String {
        let known: Vec<&str> = self.known.parts().map(|(_, text)| text).collect();
        match known.is_empty() {
            true => self.address.clone(),
            false => format!("{} ({})", self.address, known.join(", ")),
        }
    }
}

impl Row {
    /// The name, and what is known of its addresses.
    fn described(&self) -> String {
        let hosts: Vec<String> = self.hosts.iter().map(Host::described).collect();
        match hosts.is_empty() {
            true => self.name.clone(),
            false => hosts.join(" - "),
        }
    }
}

/// Adds what is known of a host to its object.
fn describe(object: &mut Value, host: &Host) {
    for (what, text) in host.known.parts() {
        object[what] = text.into();
    }
}

/// What was counted, in parts that add up to `total`, but for `twice`.
struct Top {
    largest: Vec<Row>,
    /// Keys that are not shown.
    others: Option<(usize, Sums)>,
    /// Of the first keys, which are counted one by one: their number, and the sums of packets of
    /// further ones.
    beyond: Option<(usize, Sums)>,
    /// Packets that count for two keys.
    twice: Option<Sums>,
    total: Sums,
}

impl Top {
    fn of(tally: Tally, of: Of, number: usize, names: &Names) -> Result<Self> {
        let held = tally.keys.len();
        let mut keys: Vec<(Key, Sums)> = tally.keys.into_iter().collect();
        keys.sort_unstable_by(|(a, of_a), (b, of_b)| {
            of.of(of_b).cmp(&of.of(of_a)).then_with(|| a.cmp(b))
        });
        let rest = keys.split_off(keys.len().min(number));
        let others = rest
            .iter()
            .fold(Sums::default(), |all, (_, sums)| all.and(sums));
        let largest = keys.into_iter().map(|(key, sums)| {
            let hosts = key.addresses().into_iter().map(|(text, address)| {
                let known = match address {
                    Some(address) => names.known(address)?,
                    None => Known::default(),
                };
                Ok(Host {
                    address: text,
                    known,
                })
            });
            Ok(Row {
                name: key.to_string(),
                hosts: hosts.collect::<Result<_>>()?,
                sums,
            })
        });
        Ok(Self {
            largest: largest.collect::<Result<_>>()?,
            others: (!rest.is_empty()).then_some((rest.len(), others)),
            beyond: tally.beyond.some().map(|sums| (held, sums)),
            twice: tally.twice.some(),
            total: tally.total,
        })
    }

    fn rows(&self) -> Vec<(String, String, &Sums)> {
        let mut rows: Vec<(String, String, &Sums)> = Vec::new();
        for row in &self.largest {
            let name = Printable(&row.described()).to_string();
            rows.push((name, String::new(), &row.sums));
        }
        if let Some((keys, sums)) = &self.others {
            let name = format!("{} others", grouped(*keys as u64));
            rows.push((name, String::new(), sums));
        }
        if let Some((keys, sums)) = &self.beyond {
            let name = format!("keys beyond the first {}", grouped(*keys as u64));
            rows.push((name, String::new(), sums));
        }
        if let Some(sums) = &self.twice {
            rows.push((String::from("counted twice"), String::from("-"), sums));
        }
        rows.push((String::from("total"), String::new(), &self.total));
        rows
    }

    fn print(&self, by: By, out: &mut dyn Write) -> Result<()> {
        let total = &self.total;
        let heading = [
            "packets",
            "share",
            "wire bytes",
            "share",
            "kept bytes",
            "share",
        ];
        let mut lines = vec![(heading.map(String::from), by.heading().to_owned())];
        for (name, sign, sums) in self.rows() {
            let amount = |part: u64, whole: u64| {
                let shown = [grouped(part), text::percent(part, whole)];
                shown.map(|number| format!("{sign}{number}"))
            };
            let [packets, of_packets] = amount(sums.packets, total.packets);
            let [wire, of_wire] = amount(sums.wire_bytes, total.wire_bytes);
            let [kept, of_kept] = amount(sums.kept_bytes, total.kept_bytes);
            let cells = [packets, of_packets, wire, of_wire, kept, of_kept];
            lines.push((cells, name));
        }
        let mut widths = [0; 6];
        for (cells, _) in &lines {
            for (width, cell) in widths.iter_mut().zip(cells) {
                *width = cell.chars().count().max(*width);
            }
        }
        for (cells, name) in &lines {
            for (&width, cell) in widths.iter().zip(cells) {
                write!(out, "{cell:>width$}  ")?;
            }
            writeln!(out, "{name}")?;
        }
        Ok(())
    }

    fn json(&self, by: By, of: Of) -> Value {
        let amounts = |sums: &Sums| {
            let mut object = Map::new();
            object.insert("packets".into(), sums.packets.into());
            object.insert("wire_bytes".into(), sums.wire_bytes.into());
            object.insert("kept_bytes".into(), sums.kept_bytes.into());
            object
        };
        let with = |name: &str, value: Value, sums: &Sums| {
            let mut object = amounts(sums);
            object.insert(name.into(), value);
            Value::Object(object)
        };
        let rows = self.largest.iter();
        let rows = rows.map(|row| {
            let mut object = with(by.name(), row.name.clone().into(), &row.sums);
            match row.hosts.as_slice() {
                [host] => describe(&mut object, host),
                hosts if hosts.iter().any(|host| host.known.parts().next().is_some()) => {
                    let hosts = hosts.iter().map(|host| {
                        let mut object = json!({ "address": host.address });
                        describe(&mut object, host);
                        object
                    });
                    object["hosts"] = hosts.collect();
                }
                _ => {}
            }
            object
        });
        let rest = |rest: &Option<(usize, Sums)>| {
            rest.as_ref()
                .map(|(keys, sums)| with("keys", (*keys).into(), sums))
        };
        let mut beyond = self.beyond.as_ref().map(|(_, sums)| amounts(sums));
        if let (Some(beyond), Some((first, _))) = (&mut beyond, &self.beyond) {
            beyond.insert("first_keys".into(), (*first).into());
        }
        json!({
            "by": by.name(),
            "of": of.name(),
            "largest": rows.collect::<Vec<Value>>(),
            "others": rest(&self.others),
            "beyond": beyond,
            "counted_twice": self.twice.as_ref().map(amounts),
            "total": amounts(&self.total),
        })
    }
}

/// The result as JSON.
#[derive(serde::Serialize)]
struct Answer {
    #[serde(flatten)]
    top: Value,
    /// Packets that the logs are known to lack although they should have them.
    lost_packets: u64,
    #[serde(flatten)]
    completeness: Completeness,
}

/// Counts the packets, and prints the largest sums.
pub fn run(args: &Args) -> Result<()> {
    if args.graph && args.by != By::Pair {
        return Err(refuse("--graph shows pairs of hosts: give --by pair too"));
    }
    let mut names = args.names.read()?;
    if args.by == By::Network && names.files().is_empty() {
        return Err(refuse("--by network: name the networks with --names FILE"));
    }
    if matches!(args.by, By::Country | By::As) && names.databases().len() == 0 {
        return Err(refuse(format!(
            "--by {}: name a database with --mmdb FILE, such as GeoLite2, DB-IP or IPinfo",
            args.by.name()
        )));
    }
    let mut keys = ByAddress::default();
    let progress = Progress::of_bytes();
    let Some(log) = &args.log else {
        return Err(refuse("no log: name its directory"));
    };
    let (logs, filter) = Logs::open(log, &args.more, &args.key, &progress)?;
    let filter = text::filter_with(filter, &names)?;
    let find = logs.find(&args.span, filter.as_ref())?;
    args.names.read_answers(&mut names, &logs, &find)?;
    let mut rows: Vec<PacketRows> = (0..logs.len()).map(|_| PacketRows::default()).collect();
    let names_of_logs = logs
        .all()
        .map(|(dir, _)| Key::text(&dir.display().to_string()));
    let names_of_logs: Vec<Key> = names_of_logs.collect();
    let mut tally = Tally::default();
    let exported = logs.each(&find, &Kept::default(), |log, packet| {
        let sums = Sums::of(packet);
        let rows = &mut rows[log];
        match args.by {
            By::Flow => tally.one(Key::of_flow(&rows.headers(packet)), &sums),
            By::Protocol => tally.one(Key::of_protocol(&rows.headers(packet)), &sums),
            By::Source => tally.one(Key::of_source(&rows.headers(packet)), &sums),
            By::Destination => tally.one(Key::of_destination(&rows.headers(packet)), &sums),
            By::Pair => tally.one(Key::of_pair(&rows.headers(packet)), &sums),
            By::Host => tally.two(Key::of_hosts(&rows.headers(packet)), &sums),
            By::Port => tally.two(Key::of_ports(&rows.headers(packet)), &sums),
            By::Network | By::Country | By::As => {
                let headers = rows.headers(packet);
                let of = |address| keys.of(address, || args.by.owner(&names, address));
                tally.two(Key::of_ends(&headers, of)?, &sums);
            }
            By::Class => tally.one(Key::text(packet.class.unwrap_or("unknown")), &sums),
            By::Reason => tally.one(Key::text(&packet.judged.reason()), &sums),
            By::Log => tally.one(names_of_logs[log].clone(), &sums),
        }
        Ok(ControlFlow::Continue(()))
    })?;
    drop(progress);
    let top = Top::of(tally, args.of, usize::try_from(args.number)?, &names)?;
    if args.graph {
        standard().write_all(graph::graph(&top, args.of).as_bytes())?;
    } else if !args.json {
        let mut out = standard();
        top.print(args.by, &mut out)?;
        out.flush()?;
    }
    if let Some((keys, _)) = top.beyond {
        warn!(
            "there are more than {} keys, and the packets of the remaining keys are counted \
             together: the list may be incomplete; select fewer packets, with a filter or --from \
             and --to",
            grouped(keys as u64)
        );
    }
    match exported.packets {
        0 => logs.say_nothing_found(&find, None),
        _ => logs.say_not_in_time(&find),
    }
    say_untested(exported.untested);
    logs.say_other_times();
    let lacking = logs.say_lost(&find)?;
    let ended = report(&exported.damage, exported.left_out);
    if args.json {
        let completeness = Completeness::of(&ended).without_untested(exported.untested);
        print_json(&Answer {
            top: top.json(args.by, args.of),
            lost_packets: lacking.packets,
            completeness: completeness.unless(lacking.problem),
        })?;
    }
    ended
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sums(packets: u64) -> Sums {
        Sums {
            packets,
            wire_bytes: packets * 100,
            kept_bytes: packets * 60,
        }
    }

    /// The parts of an answer add up to its total.
    fn closes(top: &Top) {
        let parts = top.largest.iter().map(|row| &row.sums);
        let rest = top.others.iter().chain(&top.beyond).map(|(_, sums)| sums);
        let all = parts
            .chain(rest)
            .fold(Sums::default(), |all, sums| all.and(sums));
        let whole = top.twice.unwrap_or_default().and(&top.total);
        assert_eq!(all, whole);
    }

    #[test]
    fn keys_beyond_the_bound_are_counted_together() {
        let mut tally = Tally::with_bounds(3, 1 << 20);
        for (text, packets) in [("a", 5), ("b", 2), ("c", 9), ("d", 50), ("a", 1), ("e", 7)] {
            tally.one(Key::text(text), &sums(packets));
        }
        let top = Top::of(tally, Of::Kept, 2, &Names::default()).unwrap();
        let named: Vec<_> = top.largest.iter().map(|row| &row.name).collect();
        assert_eq!(named, ["c", "a"]);
        assert_eq!(top.beyond, Some((3, sums(57))));
        assert_eq!(top.others, Some((1, sums(2))));
        closes(&top);
        let mut out = Vec::new();
        top.print(By::Class, &mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        assert!(text.contains("keys beyond the first 3\n"), "{text}");
    }

    #[test]
    fn long_texts_have_a_bound_too() {
        let mut tally = Tally::with_bounds(1_000, 10);
        for text in ["12345", "6789", "too long", "12345"] {
            tally.one(Key::text(text), &sums(1));
        }
        let top = Top::of(tally, Of::Packets, 10, &Names::default()).unwrap();
        assert_eq!(top.beyond, Some((2, sums(1))));
        closes(&top);
    }

    #[test]
    fn a_packet_counts_once_for_ends_that_are_the_same() {
        let mut tally = Tally::default();
        let [a, b] = ["a", "b"].map(Key::text);
        tally.two([a.clone(), b], &sums(2));
        tally.two([a.clone(), a], &sums(3));
        let top = Top::of(tally, Of::Packets, 1, &Names::default()).unwrap();
        assert_eq!(top.twice, Some(sums(2)));
        assert_eq!(top.total, sums(5));
        closes(&top);
    }
}
