//! Pairs of addresses as a graph in the language of Graphviz.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use strata_terminal::text;
use strata_wire::{Printable, grouped};

use super::{Host, Of, Row, Top};

/// Width of the line of the largest pair, in points, beyond the one point of every line.
const WIDTH: f64 = 7.0;

/// The largest pairs as lines between their addresses. The label says which share of all packets or bytes they are.
#[allow(clippy::cast_precision_loss, reason = "widths of lines")]
pub(super) fn graph(top: &Top, of: Of) -> String {
    let unit = match of {
        Of::Packets => "packets",
        Of::Wire => "bytes on the wire",
        Of::Kept => "bytes kept",
    };
    let pairs = top.largest.iter();
    let pairs = pairs.filter_map(|row: &Row| match row.hosts.as_slice() {
        [one, other] => Some(([one, other], of.of(&row.sums))),
        _ => None,
    });
    let pairs: Vec<([&Host; 2], u64)> = pairs.collect();
    let shown = pairs
        .iter()
        .fold(0, |all: u64, (_, amount)| all.saturating_add(*amount));
    let largest = pairs.iter().map(|(_, amount)| *amount).max();
    let whole = of.of(&top.total);
    let mut page = format!(
        "graph {{\n  label=\"{}: {} of {} {unit} ({})\";\n  node [shape=box];\n",
        text::count_of(pairs.len() as u64, "pair"),
        grouped(shown),
        grouped(whole),
        text::percent(shown, whole),
    );
    // Hosts of which more is known than the address.
    let hosts = pairs.iter().flat_map(|(ends, _)| ends);
    let hosts = hosts.filter(|host| host.known.parts().next().is_some());
    let hosts: BTreeMap<&str, &Host> = hosts.map(|host| (host.address.as_str(), *host)).collect();
    for (address, host) in hosts {
        let label = quoted(&host.described());
        let _ = writeln!(page, "  \"{address}\" [label=\"{label}\"];");
    }
    for ([one, other], amount) in &pairs {
        let (one, other) = (&one.address, &other.address);
        let share = *amount as f64 / largest.map_or(1.0, |largest| largest.max(1) as f64);
        let _ = writeln!(
            page,
            "  \"{one}\" -- \"{other}\" [label=\"{}\", penwidth={:.1}];",
            grouped(*amount),
            1.0 + WIDTH * share,
        );
    }
    page + "}\n"
}

/// A text that a file may have, as DOT has it within quotation marks.
fn quoted(text: &str) -> String {
    let text = Printable(text).to_string();
    text.replace('\\', "\\\\").replace('"', "\\\"")
}
