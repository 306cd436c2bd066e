//! What is reported of queries that are installed in the recording (`strata ask --install --report-as`): groups
//! that have changed. No I/O: answers in, reports out.

use std::collections::{BTreeMap, HashMap};

use strata_control::queries::{GroupKey, QueryReport, QueryReportKind, ReportedQuery};
use strata_dta::key::{FiveTuple, Key};
use strata_dta::protocol::Report;
use strata_wire::clamped;

use super::flows::Out;

/// Copies of a number.
const REDUNDANCY: u8 = 2;

/// What was reported of a query.
#[derive(Debug, Default)]
struct Reported {
    /// Another one of the same name begins anew.
    since: String,
    /// The number of each group, as many as the query may have.
    numbers: HashMap<Key, i64>,
}

/// What was reported of all queries.
#[derive(Debug, Default)]
pub(super) struct Asked(BTreeMap<String, Reported>);

impl Asked {
    /// Reports the groups that have changed. What finds no room is reported the next time.
    pub(super) fn report(&mut self, queries: &[ReportedQuery], out: &mut Out<'_>) {
        self.0
            .retain(|name, _| queries.iter().any(|query| query.name == *name));
        for query in queries {
            let reported = self.0.entry(query.name.clone()).or_default();
            if reported.since != query.since {
                *reported = Reported {
                    since: query.since.clone(),
                    ..Reported::default()
                };
            }
            for row in &query.rows {
                let (Some(key), number) = (query.columns.key(row), query.columns.number(row))
                else {
                    continue;
                };
                let key = key_of(key, &query.report);
                let before = reported.numbers.get(&key).copied();
                let Some(number) = changed(query.report.kind, before, number) else {
                    continue;
                };
                if !one(&query.report, &key, before, number, out) {
                    return;
                }
                reported.numbers.insert(key, number);
            }
        }
    }
}

/// The key of a group: in a list that of the flow or host, else with the number of the report.
fn key_of(key: GroupKey, report: &QueryReport) -> Key {
    let is_listed = report.kind == QueryReportKind::List;
    let (source, destination, source_port, destination_port, protocol) = match key {
        GroupKey::Host(host) if is_listed => return Key::address(host),
        GroupKey::Host(host) => return Key::host_at(report.number, host),
        GroupKey::Flow(source, destination, source_port, destination_port, protocol) => {
            (source, destination, source_port, destination_port, protocol)
        }
    };
    let flow = FiveTuple {
        source,
        destination,
        source_port,
        destination_port,
        protocol,
    };
    match is_listed {
        true => Key::flow(&flow),
        false => Key::flow_at(report.number, &flow),
    }
}

/// The number to be reported, if it differs from the last one.
fn changed(kind: QueryReportKind, before: Option<i64>, number: Option<i64>) -> Option<i64> {
    match kind {
        QueryReportKind::List => before.is_none().then_some(0),
        QueryReportKind::Value => number.filter(|&number| before != Some(number)),
        // Counters only grow.
        QueryReportKind::Add => {
            number.filter(|&number| number > before.map_or(0, |before| before.max(0)))
        }
    }
}

/// Reports a group; whether there was room for it.
fn one(
    report: &QueryReport,
    key: &Key,
    before: Option<i64>,
    number: i64,
    out: &mut Out<'_>,
) -> bool {
    match report.kind {
        QueryReportKind::Value => out(&Report::KeyWrite {
            redundancy: REDUNDANCY,
            key: key.bytes(),
            // Larger ones than 32 bits are all ones.
            data: &clamped::<u32>(number.max(0).unsigned_abs()).to_be_bytes(),
        }),
        QueryReportKind::Add => out(&Report::KeyIncrement {
            redundancy: 1,
            key: key.bytes(),
            counter: number.abs_diff(before.map_or(0, |before| before.max(0))),
        }),
        QueryReportKind::List => out(&Report::Append {
            list: report.number,
            data: key.bytes(),
        }),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use strata_gpv::marple::{Value, ValueKind};

    use super::*;

    /// A query with one number for each host.
    fn hosts(how: &str, since: &str, numbers: &[(&str, i64)]) -> ReportedQuery {
        let report: QueryReport = how.parse().unwrap();
        let names = ["srcip", "count"].map(str::to_owned);
        let kinds = [ValueKind::Address, ValueKind::Int];
        let row = |&(host, number): &(&str, i64)| {
            vec![Value::Address(host.parse().unwrap()), Value::Int(number)]
        };
        ReportedQuery {
            name: "hosts".into(),
            since: since.into(),
            columns: report.columns(&names, &kinds, false).unwrap(),
            report,
            rows: numbers.iter().map(row).collect(),
        }
    }

    fn reports(asked: &mut Asked, queries: &[ReportedQuery], room: usize) -> Vec<String> {
        let mut all = Vec::new();
        asked.report(queries, &mut |report| {
            let has_room = all.len() < room;
            if has_room {
                all.push(format!("{report:?}"));
            }
            has_room
        });
        all
    }

    #[test]
    fn groups_are_reported_when_they_change_and_as_there_is_room() {
        let mut asked = Asked::default();
        let [one, two] = ["10.0.0.1", "10.0.0.2"];
        let first = [hosts("value=3", "now", &[(one, 5), (two, 6)])];
        let made = reports(&mut asked, &first, 1);
        assert_eq!(made.len(), 1);
        assert!(made[0].contains("data: [0, 0, 0, 5]"), "{made:?}");
        assert!(
            made[0].contains("key: [0, 0, 0, 3, 10, 0, 0, 1]"),
            "{made:?}"
        );
        let made = reports(&mut asked, &first, 9);
        assert!(
            made.len() == 1 && made[0].contains("data: [0, 0, 0, 6]"),
            "{made:?}"
        );
        assert!(reports(&mut asked, &first, 9).is_empty());
        let next = [hosts("value=3", "now", &[(one, 1 << 40), (two, 6)])];
        let made = reports(&mut asked, &next, 9);
        assert!(
            made.len() == 1 && made[0].contains("[255, 255, 255, 255]"),
            "{made:?}"
        );
        // Another query of this name.
        assert_eq!(
            reports(&mut asked, &[hosts("value=3", "later", &[(two, 6)])], 9).len(),
            1
        );
    }

    #[test]
    fn what_was_added_is_reported_and_a_group_is_listed_once() {
        let mut asked = Asked::default();
        for (number, added) in [(5, Some(5)), (5, None), (9, Some(4)), (3, None)] {
            let made = reports(
                &mut asked,
                &[hosts("add=3", "now", &[("10.0.0.1", number)])],
                9,
            );
            let expected = added.map(|added| format!("counter: {added} }}"));
            assert_eq!(made.len(), usize::from(added.is_some()), "{made:?}");
            assert!(
                made.iter()
                    .zip(expected)
                    .all(|(made, end)| made.ends_with(&end)),
                "{made:?}"
            );
        }
        assert!(reports(&mut asked, &[], 9).is_empty());
        for (numbers, made) in [(&[("10.0.0.1", 1)][..], 1), (&[("10.0.0.1", 2)], 0)] {
            let all = reports(&mut asked, &[hosts("list=7", "now", numbers)], 9);
            assert_eq!(all.len(), made);
            assert!(
                all.iter()
                    .all(|one| one.contains("list: 7, data: [10, 0, 0, 1]")),
                "{all:?}"
            );
        }
    }
}
