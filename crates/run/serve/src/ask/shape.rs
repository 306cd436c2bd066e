//! Which columns of an answer are amounts, and which say what a row is about: an address, a port, the
//! number of a window. The page draws amounts, and the largest come first.

use strata_gpv::marple::{Program, ValueKind, compile, shipped};

/// Columns of numbers that name something, in the tables of a log and in vectors.
const NAMES: [&str; 30] = [
    "src_port",
    "dst_port",
    "srcport",
    "dstport",
    "protocol",
    "proto",
    "recording",
    "interface",
    "switch",
    "flow_id",
    "part",
    "epoch",
    "ether_type",
    "ip_tos",
    "ip6_flow_label",
    "vlan",
    "tcp_flags",
    "reverse_tcp_flags",
    "time_ns",
    "first_time_ns",
    "last_time_ns",
    "late_ns",
    "tie",
    "icmp_type",
    "icmp_code",
    "end_reason",
    "dns_query_type",
    "dns_response_code",
    "http_status",
    "ip6_next_header",
];
/// Columns that say whose packet a row is.
const FLOW: [&str; 5] = ["srcip", "dstip", "srcport", "dstport", "proto"];

/// What is known of an answer before it is there.
#[derive(Debug, Default)]
pub(crate) struct Shape {
    /// The group's key by place, or else by name.
    keys: Keys,
    /// Whether the question says in which order the rows come.
    pub(crate) is_ordered: bool,
    /// By which column the program that answers is to sort, largest first.
    pub(crate) sort: Option<String>,
    /// What the columns of an answer in Marple's language hold; empty for SQL.
    pub(crate) kinds: Vec<ValueKind>,
}

#[derive(Debug, Default)]
enum Keys {
    /// The first columns.
    First(usize),
    /// Names, or numbers from 1 on, in lower case.
    Named(Vec<String>),
    #[default]
    Unknown,
}

impl Shape {
    /// Of a question that says in which order the rows come, and nothing else.
    #[cfg(test)]
    pub(crate) fn ordered() -> Self {
        Self {
            is_ordered: true,
            ..Self::default()
        }
    }

    /// Of a question in Marple's language, or the name of one; nothing is known of one that is wrong.
    pub(crate) fn of_marple<'a>(
        text: &str,
        params: impl Iterator<Item = (&'a str, &'a str)>,
    ) -> Self {
        let params: Vec<(&str, &str)> = params.collect();
        let program = match shipped(text.trim()) {
            Some(known) => match known.with(&params) {
                Ok(params) => compile(known.text, &params).ok(),
                Err(_) => None,
            },
            None => compile(text, &params).ok(),
        };
        program.map_or_else(Self::default, |program| Self::of_program(&program))
    }

    fn of_program(program: &Program) -> Self {
        let (names, kinds) = (program.names(), program.kinds());
        if program.is_of_packets() {
            // In the order of their times.
            return Self {
                is_ordered: true,
                kinds,
                ..Self::default()
            };
        }
        let keys = program.key_columns();
        let is_number = |at: usize| matches!(kinds[at], ValueKind::Int | ValueKind::Real);
        // Windows in turn, and the steps of a histogram, have an order of their own.
        let is_series = keys == 1 && is_number(0) && !FLOW.contains(&names[0].as_str());
        let measure = (keys..names.len()).find(|at| is_number(*at));
        let sort = measure.filter(|_| !is_series);
        Self {
            keys: Keys::First(keys),
            is_ordered: true,
            sort: sort.map(|at| names[at].clone()),
            kinds,
        }
    }

    /// Of a question in SQL: its groups as they are written.
    pub(crate) fn of_sql(text: &str) -> Self {
        let lower = text.to_lowercase();
        let words: Vec<&str> = lower.split_whitespace().collect();
        let pair = |first: &str, second: &str| {
            words
                .windows(2)
                .position(|two| two == [first, second])
                .map(|at| at.saturating_add(2))
        };
        let ends = |word: &&&str| matches!(**word, "order" | "having" | "limit" | "union");
        let keys = pair("group", "by").map_or(Keys::Unknown, |start| {
            let listed = words.iter().skip(start).take_while(|word| !ends(word));
            let listed: Vec<&str> = listed.copied().collect();
            let names = listed.join(" ");
            let names = names.trim_end_matches(';').split(',').map(bare);
            Keys::Named(names.collect())
        });
        Self {
            keys,
            is_ordered: pair("order", "by").is_some(),
            ..Self::default()
        }
    }

    /// Whether a column of numbers has amounts.
    pub(crate) fn is_measure(&self, at: usize, name: &str) -> bool {
        let name = bare(name);
        let is_key = match &self.keys {
            Keys::First(keys) => return at >= *keys,
            Keys::Named(keys) => {
                let number = at.saturating_add(1).to_string();
                keys.contains(&name) || keys.contains(&number)
            }
            Keys::Unknown => false,
        };
        !is_key && !NAMES.contains(&name.as_str())
    }
}

/// A column's name without quotes and its table's name.
fn bare(name: &str) -> String {
    let name = name.trim().to_lowercase();
    let last = match name.contains('(') {
        true => name.as_str(),
        false => name.rsplit('.').next().unwrap_or(&name),
    };
    last.trim_matches(['"', '`']).to_owned()
}

#[cfg(test)]
mod tests {
    use strata_gpv::marple::SHIPPED;

    use super::*;

    fn measures(shape: &Shape, names: &[&str]) -> Vec<usize> {
        let named = names.iter().enumerate();
        let named = named.filter(|(at, name)| shape.is_measure(*at, name));
        named.map(|(at, _)| at).collect()
    }

    #[test]
    fn groups_of_marple_are_sorted_by_what_is_counted_and_series_stay_in_order() {
        for query in SHIPPED {
            let shape = Shape::of_marple(query.name, std::iter::empty());
            assert!(shape.is_ordered, "{}", query.name);
            let is_series =
                ["concurrent-connections", "flowlet-size-histogram"].contains(&query.name);
            let is_groups = query.text.contains("groupby");
            assert_eq!(
                shape.sort.is_some(),
                is_groups && !is_series,
                "{}: {shape:?}",
                query.name
            );
        }
        let shape = Shape::of_marple("byte-counts-per-flow", std::iter::empty());
        let names = ["srcip", "dstip", "srcport", "dstport", "proto", "count"];
        assert_eq!(measures(&shape, &names), [5]);
        let shape = Shape::of_marple("no such question", std::iter::empty());
        assert!(!shape.is_ordered && shape.sort.is_none());
    }

    #[test]
    fn ports_and_groups_of_sql_are_no_amounts() {
        let shape =
            Shape::of_sql("SELECT src, src_port, count(*) FROM packets GROUP BY src, src_port");
        assert_eq!(measures(&shape, &["src", "src_port", "count(*)"]), [2]);
        assert!(!shape.is_ordered);
        let shape = Shape::of_sql(
            "select wire_bytes / 100 as size, count(*) as n from packets\ngroup by 1\norder by n desc;",
        );
        assert_eq!(measures(&shape, &["size", "n"]), [1]);
        assert!(shape.is_ordered);
        let shape = Shape::of_sql(
            "select \"packets\".\"ip_ttl\", max(score) from packets group by packets.ip_ttl limit 3",
        );
        assert_eq!(measures(&shape, &["ip_ttl", "max(packets.score)"]), [1]);
        let names = [
            "time_ns",
            "late_ns",
            "tie",
            "first_time_ns",
            "last_time_ns",
            "icmp_type",
            "icmp_code",
            "end_reason",
            "http_status",
            "ipd_max_ns",
        ];
        // A fraction of a microsecond is no amount, a delay is one.
        let shape = Shape::of_sql("select * from flows");
        assert_eq!(measures(&shape, &names), [9]);
        let shape = Shape::of_sql("select dst_port, wire_bytes from packets");
        assert_eq!(measures(&shape, &["dst_port", "wire_bytes"]), [1]);
    }
}
