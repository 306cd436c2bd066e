//! Labels by address, port, protocol and time.

use std::net::IpAddr;

use ipnet::IpNet;
use strata_wire::{Endpoint, Headers, ip_addr};

use crate::cells::{Columns, protocol, rows, time_ns};
use crate::error::{ContentError, LineError, ValueError};
use crate::label::{Classes, Label};

/// One line: all its conditions must hold.
#[derive(Debug)]
pub(crate) struct Rule {
    /// None: packets that match have no label.
    label: Option<Label>,
    conditions: Vec<Condition>,
    used: bool,
}

impl Rule {
    /// Whether it was the first match for some packet.
    pub(crate) fn is_used(&self) -> bool {
        self.used
    }
}

#[derive(Debug)]
enum Condition {
    Address(Side, IpNet),
    Port(Side, u16),
    Protocol(u8),
    From(i128),
    To(i128),
}

#[derive(Clone, Copy, Debug)]
enum Side {
    Either,
    Source,
    Destination,
}

/// The rules of a file, in order.
pub(crate) fn read(
    text: &str,
    columns: &Columns,
    offset_s: i64,
    classes: &mut Classes,
) -> Result<Vec<Rule>, ContentError> {
    let label = columns.need(&["label"])?;
    let mut rules = Vec::new();
    for row in rows(text) {
        let (line, row) = row?;
        let mut conditions = Vec::new();
        for (column, name) in columns.names().iter().enumerate() {
            let value = row.get(column).unwrap_or("");
            if !value.is_empty() {
                let condition = condition(name, value, offset_s);
                conditions.extend(condition.map_err(|source| ContentError::Condition {
                    line,
                    column: name.clone(),
                    source,
                })?);
            }
        }
        let label = classes.label(row.get(label).unwrap_or(""));
        let mut label = label.map_err(|error| LineError::from(error).at(line))?;
        let source = columns.find(&["source"]).and_then(|c| row.get(c));
        if let (Some(label), Some(source)) = (&mut label, source) {
            source.clone_into(&mut label.source);
        }
        rules.push(Rule {
            label,
            conditions,
            used: false,
        });
    }
    Ok(rules)
}

fn condition(name: &str, value: &str, offset_s: i64) -> Result<Option<Condition>, ValueError> {
    let text = || value.to_owned();
    let network = || -> Result<IpNet, ValueError> {
        let host = value.parse::<IpAddr>().map(IpNet::from);
        let network = host.or_else(|_| value.parse());
        network.map_err(|source| ValueError::Network {
            text: text(),
            source,
        })
    };
    let port = || -> Result<u16, ValueError> {
        value.parse().map_err(|source| ValueError::Port {
            text: text(),
            source,
        })
    };
    let time = || -> Result<i128, ValueError> {
        let time = time_ns(value, offset_s).map(|(ns, _)| ns);
        time.ok_or_else(|| ValueError::Time(text()))
    };
    Ok(Some(match name {
        "label" | "source" => return Ok(None),
        "address" => Condition::Address(Side::Either, network()?),
        "source_address" => Condition::Address(Side::Source, network()?),
        "destination_address" => Condition::Address(Side::Destination, network()?),
        "port" => Condition::Port(Side::Either, port()?),
        "source_port" => Condition::Port(Side::Source, port()?),
        "destination_port" => Condition::Port(Side::Destination, port()?),
        "protocol" => Condition::Protocol(protocol(value)?),
        "from" => Condition::From(time()?),
        "to" => Condition::To(time()?),
        _ => return Err(ValueError::Column),
    }))
}

/// The label of the first rule that matches; the inner one is none if that rule has no label.
pub(crate) fn first<'r>(
    rules: &'r mut [Rule],
    ts_ns: u64,
    headers: &Headers,
) -> Option<Option<&'r Label>> {
    let fits = |rule: &&mut Rule| rule.conditions.iter().all(|c| c.holds(ts_ns, headers));
    let rule = rules.iter_mut().find(fits)?;
    rule.used = true;
    Some(rule.label.as_ref())
}

impl Condition {
    fn holds(&self, ts_ns: u64, headers: &Headers) -> bool {
        match self {
            Self::From(from) => i128::from(ts_ns) >= *from,
            Self::To(to) => i128::from(ts_ns) <= *to,
            Self::Protocol(protocol) => headers.key.is_some_and(|key| key.protocol == *protocol),
            Self::Address(side, network) => {
                let Some(key) = headers.key else { return false };
                side.any(headers, |end| {
                    ip_addr(key.family, end.address).is_some_and(|a| network.contains(&a))
                })
            }
            Self::Port(side, port) => {
                headers.key.is_some() && side.any(headers, |end| end.port == *port)
            }
        }
    }
}

impl Side {
    fn any(self, headers: &Headers, holds: impl Fn(Endpoint) -> bool) -> bool {
        let (source, destination) = headers.endpoints();
        match self {
            Self::Source => holds(source),
            Self::Destination => holds(destination),
            Self::Either => holds(source) || holds(destination),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use strata_wire::{AddressFamily, FlowKey};

    fn headers(source: (u32, u16), destination: (u32, u16)) -> Headers {
        let end = |(address, port): (u32, u16)| Endpoint {
            address: address.into(),
            port,
        };
        let (key, low_to_high) =
            FlowKey::new(AddressFamily::Ipv4, 6, end(source), end(destination));
        Headers {
            key: Some(key),
            low_to_high,
            ..Headers::default()
        }
    }

    #[test]
    fn the_first_rule_that_fits_gives_the_label() {
        let text = "label,source_address,port,from,to\n\
                    scan,10.0.0.0/24,22,100,200\n\
                    other,,22,,\n";
        let columns = Columns::of(text.lines().next().unwrap());
        let mut rules = read(text, &columns, 0, &mut Classes::default()).unwrap();
        let mut class = |ts_s: u64, headers: &Headers| {
            let label = first(&mut rules, ts_s * 1_000_000_000, headers).flatten();
            label.map(|label| label.class.clone())
        };
        let scan = headers((0x0a00_0001, 4000), (0x0b00_0001, 22));
        assert_eq!(class(150, &scan).as_deref(), Some("scan"));
        assert_eq!(class(300, &scan).as_deref(), Some("other"));
        let answer = headers((0x0b00_0001, 22), (0x0a00_0001, 4000));
        assert_eq!(class(150, &answer).as_deref(), Some("other"));
        assert_eq!(class(150, &headers((1, 2), (3, 4))), None);
    }

    #[test]
    fn a_wrong_cell_is_named() {
        let columns = Columns::of("label,port");
        let error = read(
            "label,port\nscan,http\n",
            &columns,
            0,
            &mut Classes::default(),
        )
        .unwrap_err();
        assert_eq!(
            error.to_string(),
            "line 2, column 'port': 'http' is not a port: invalid digit found in string"
        );
    }
}
