//! Pairs of addresses as a graph in the language of Graphviz.

use std::fmt::Write as _;

use strata_terminal::text;
use strata_wire::grouped;

use super::{Of, Top};

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
    let pairs = pairs.filter_map(|row| Some((row.name.split_once(" - ")?, of.of(&row.sums))));
    let pairs: Vec<((&str, &str), u64)> = pairs.collect();
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
    for ((one, other), amount) in &pairs {
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
