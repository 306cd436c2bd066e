//! What a recording reports of an installed query to its telemetry collector (`record --report-to`).

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use strata_gpv::marple::{Value, ValueKind};

/// The key of a flow.
const FLOW: [&str; 5] = ["srcip", "dstip", "srcport", "dstport", "proto"];
/// The keys of a host.
const HOSTS: [&str; 2] = ["srcip", "dstip"];
/// A key that a recording has only one value of.
const SWITCH: &str = "switch";

/// How groups are reported.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum QueryReportKind {
    /// The latest number of each group, by Key-Write.
    Value,
    /// What was added to the number of each group, by Key-Increment.
    Add,
    /// Each group, once, as an entry of a list, by Append.
    List,
}

impl QueryReportKind {
    const ALL: [(Self, &str); 3] = [
        (Self::Value, "value"),
        (Self::Add, "add"),
        (Self::List, "list"),
    ];
}

/// What is reported of a query: how, and which column, by default the last.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct QueryReport {
    /// How.
    pub kind: QueryReportKind,
    /// The list; else what keys begin with, where those of a flow at a node have the node, so that other
    /// reports about the same flow or host have other keys.
    pub number: u32,
    /// The column of the number.
    pub column: Option<String>,
}

impl fmt::Display for QueryReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut kinds = QueryReportKind::ALL.into_iter();
        let (_, name) = kinds
            .find(|(kind, _)| *kind == self.kind)
            .expect("every kind has a name");
        write!(f, "{name}={}", self.number)?;
        match &self.column {
            Some(column) => write!(f, ":{column}"),
            None => Ok(()),
        }
    }
}

impl FromStr for QueryReport {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (how, column) = match text.split_once(':') {
            Some((how, column)) => (how, Some(column)),
            None => (text, None),
        };
        let parts = how.split_once('=');
        let found = parts.and_then(|(name, number)| {
            let mut kinds = QueryReportKind::ALL.into_iter();
            let (kind, _) = kinds.find(|(_, known)| *known == name)?;
            Some((kind, number.parse().ok()?))
        });
        let Some((kind, number)) = found else {
            return Err(format!(
                "'{text}' is not a way to report: write value=N, add=N or list=N, and \
                 value=N:COLUMN for a column other than the last"
            ));
        };
        if kind == QueryReportKind::List && column.is_some() {
            return Err(format!(
                "'{text}': entries of lists have no column: write {how}"
            ));
        }
        Ok(Self {
            kind,
            number,
            column: column.map(str::to_owned),
        })
    }
}

impl TryFrom<String> for QueryReport {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<QueryReport> for String {
    fn from(report: QueryReport) -> Self {
        report.to_string()
    }
}

/// The key of a group.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum GroupKey {
    /// A flow: addresses, ports, protocol.
    Flow(IpAddr, IpAddr, u16, u16, u8),
    /// A host.
    Host(IpAddr),
}

/// Where the key and the number of a group are in its row.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ReportedColumns {
    is_flow: bool,
    /// The column of the number; for lists, any.
    number: usize,
}

impl QueryReport {
    /// Finds the key and the number among the columns of a query's answer.
    ///
    /// # Errors
    ///
    /// If it has no groups by flow or host, or no such column of whole numbers: what to do.
    pub fn columns(
        &self,
        names: &[String],
        kinds: &[ValueKind],
        is_of_packets: bool,
    ) -> Result<ReportedColumns, String> {
        let is = |at: usize, name: &str| names.get(at).is_some_and(|known| known == name);
        let is_flow = FLOW.iter().zip(0..).all(|(name, at)| is(at, name));
        let is_host = HOSTS.iter().any(|name| is(0, name)) && !is(1, HOSTS[1]);
        if is_of_packets || !(is_flow || is_host) {
            return Err(
                "only groups by flow (srcip, dstip, srcport, dstport, proto) or by host (srcip or dstip) are \
                 reported: group the query by one of these, in this order"
                    .to_owned(),
            );
        }
        let mut keys = if is_flow { FLOW.len() } else { 1 };
        if is(keys, SWITCH) {
            keys += 1;
        }
        let values = keys..names.len();
        let number = match &self.column {
            Some(column) => values.clone().find(|&at| is(at, column)),
            None => values.clone().next_back(),
        };
        if self.kind == QueryReportKind::List {
            return Ok(ReportedColumns { is_flow, number: 0 });
        }
        let number = number.filter(|&at| kinds.get(at) == Some(&ValueKind::Int));
        number
            .map(|number| ReportedColumns { is_flow, number })
            .ok_or_else(|| {
                let wanted = self
                    .column
                    .as_deref()
                    .map_or("the last column", |column| column);
                format!(
                    "{wanted} is not a column of whole numbers: the columns are {}",
                    names[values].join(", ")
                )
            })
    }
}

impl ReportedColumns {
    /// The key of a group; `None` if a value is no part of one.
    #[must_use]
    pub fn key(&self, row: &[Value]) -> Option<GroupKey> {
        let address = |at: usize| match row.get(at) {
            Some(Value::Address(address)) => Some(*address),
            _ => None,
        };
        let number = |at: usize| match row.get(at) {
            Some(Value::Int(int)) => Some(*int),
            _ => None,
        };
        if !self.is_flow {
            return Some(GroupKey::Host(address(0)?));
        }
        let port = |at| u16::try_from(number(at)?).ok();
        let protocol = u8::try_from(number(4)?).ok()?;
        Some(GroupKey::Flow(
            address(0)?,
            address(1)?,
            port(2)?,
            port(3)?,
            protocol,
        ))
    }

    /// The number of a group.
    #[must_use]
    pub fn number(&self, row: &[Value]) -> Option<i64> {
        match row.get(self.number)? {
            Value::Int(int) => Some(*int),
            _ => None,
        }
    }
}

/// A query whose groups are reported, and its answer so far.
#[derive(Clone, Debug)]
pub struct ReportedQuery {
    /// Its name.
    pub name: String,
    /// Since when it runs.
    pub since: String,
    /// How its groups are reported.
    pub report: QueryReport,
    /// Where key and number are.
    pub columns: ReportedColumns,
    /// Its groups.
    pub rows: Vec<Vec<Value>>,
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_report_is_written_as_it_is_read() {
        for text in [
            "value=1",
            "add=0",
            "list=7",
            "value=4294967295:lastseq",
            "add=2:bytes",
        ] {
            let report: QueryReport = text.parse().unwrap();
            assert_eq!(report.to_string(), text);
        }
        for text in ["", "values=1", "value", "list=x", "list=7:count", "add=-1"] {
            assert!(text.parse::<QueryReport>().is_err(), "{text:?}");
        }
    }

    #[test]
    fn key_and_number_are_found_by_the_names_of_columns() {
        let find = |report: &str, names: &str| {
            let names: Vec<String> = names.split(' ').map(str::to_owned).collect();
            let kinds = vec![ValueKind::Int; names.len()];
            let report: QueryReport = report.parse().unwrap();
            report.columns(&names, &kinds, false)
        };
        let flow = "srcip dstip srcport dstport proto switch count lastseq";
        let at = |is_flow, number| Ok(ReportedColumns { is_flow, number });
        assert_eq!(find("value=3", flow), at(true, 7));
        assert_eq!(find("value=3:count", flow), at(true, 6));
        assert_eq!(find("add=3", "srcip count"), at(false, 1));
        assert_eq!(find("list=4", "dstip count"), at(false, 0));
        assert!(
            find("value=3:bytes", flow)
                .unwrap_err()
                .contains("count, lastseq")
        );
        assert!(find("value=3:srcip", flow).is_err(), "a key is no number");
        for names in ["srcip dstip count", "srcport count", "count"] {
            assert!(
                find("value=3", names).unwrap_err().contains("by flow"),
                "{names}"
            );
        }
    }
}
