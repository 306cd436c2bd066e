//! `strata controller status`: what was exported, and what became of it.

use std::io::Write;

use anyhow::Result;
use strata_agent::{Closing, CollectorState, DestinationSum, InterfaceSum};
use strata_terminal::listing::{ColumnForm, Reader, listing};
use strata_terminal::output::standard;
use strata_terminal::text::count_of;
use strata_wire::{Printable, PrintableJson, grouped};

pub(super) fn show(sums: &[DestinationSum], json: bool) -> Result<()> {
    let mut out = standard();
    if json {
        let sums = serde_json::to_string_pretty(&sums)?;
        return Ok(writeln!(out, "{}", PrintableJson(&sums))?);
    }
    if sums.is_empty() {
        writeln!(out, "no agent has exported anything yet")?;
    }
    for (number, sum) in sums.iter().enumerate() {
        if number > 0 {
            writeln!(out)?;
        }
        destination(&mut out, sum)?;
    }
    Ok(())
}

fn destination(out: &mut impl Write, to: &DestinationSum) -> Result<()> {
    let name = Printable(&to.name);
    match &to.collector {
        Some(collector) => reported(out, &to.name, collector)?,
        None if to.interfaces.is_empty() => {}
        None => writeln!(
            out,
            "{name}: no collector of this name reports: start it with --controller and --name {name}"
        )?,
    }
    if !to.interfaces.is_empty() {
        write!(out, "{}", table(to))?;
    }
    if to.without_numbers > 0 {
        let packets = count_of(to.without_numbers, "packet");
        writeln!(
            out,
            "{name}: {packets} exported without numbers: by VXLAN, or by agents of an earlier version"
        )?;
    }
    trust(out, to)
}

/// How far the sum can be trusted.
fn trust(out: &mut impl Write, to: &DestinationSum) -> Result<()> {
    let name = Printable(&to.name);
    for doubt in to.doubts(usize::MAX) {
        writeln!(out, "{name}: {}", Printable(&doubt))?;
    }
    let heard = to
        .heard()
        .map_or_else(String::new, |seconds| seconds.to_string());
    match to.closing() {
        Closing::Unknown => {}
        Closing::Open(missing) => {
            let missing = count_of(missing, "packet");
            writeln!(
                out,
                "{name}: the collector does not know of {missing}: sent since its last report, or in sessions that it \
                 has not heard of, or at the end of one that was cut short"
            )?;
        }
        Closing::Closed => {
            let before = match to.sum.before {
                0 => "",
                _ => ", or is from before this run of the collector",
            };
            writeln!(
                out,
                "{name}: as of reports {heard} s ago, each exported packet was received, or is counted as lost{before}"
            )?;
        }
    }
    Ok(())
}

fn reported(out: &mut impl Write, name: &str, collector: &CollectorState) -> Result<()> {
    write!(out, "{}: collector {}", Printable(name), collector.state)?;
    if let Some(seconds) = collector.heard {
        write!(
            out,
            " at {}, heard {seconds} s ago",
            Printable(&collector.from)
        )?;
    }
    for (number, what) in [
        (collector.not_accepted, "datagrams not accepted"),
        (collector.not_written, "packets not written"),
        (collector.socket_drops, "messages dropped by its socket"),
        (collector.left_out, "sessions left out"),
    ] {
        if number > 0 {
            write!(out, "; {} {what}", grouped(number))?;
        }
    }
    writeln!(out)?;
    if let [first, second] = collector.copies.as_slice() {
        let (first, second) = (Printable(first), Printable(second));
        writeln!(
            out,
            "  two collectors report with its certificate, from {first} and from {second}: the second is refused"
        )?;
    }
    Ok(())
}

fn table(to: &DestinationSum) -> String {
    let columns = [
        ColumnForm::words(0),
        ColumnForm::numbers(8).apart(),
        ColumnForm::numbers(8).apart(),
        ColumnForm::numbers(8).apart(),
        ColumnForm::numbers(4).apart(),
        ColumnForm::numbers(6).apart(),
        ColumnForm::numbers(7).apart(),
    ];
    let head = [
        "  interface",
        "identity",
        "exported",
        "received",
        "lost",
        "before",
        "missing",
    ];
    let interfaces = to.interfaces.iter().map(|interface| {
        let name = match interface.name.is_empty() {
            true => "-".to_owned(),
            false => Printable(&interface.name).to_string(),
        };
        row(&name, interface.identity.to_string(), interface)
    });
    let sum = (to.interfaces.len() > 1).then(|| row("sum", String::new(), &to.sum));
    let rows = [head.map(str::to_owned)].into_iter();
    listing(Reader::Program, columns, rows.chain(interfaces).chain(sum))
}

fn row(name: &str, identity: String, of: &InterfaceSum) -> [String; 7] {
    let counts = [of.exported, of.received, of.lost, of.before, of.missing];
    let [exported, received, lost, before, missing] = counts.map(grouped);
    let name = format!("  {name}");
    [name, identity, exported, received, lost, before, missing]
}

#[cfg(test)]
mod tests {
    use strata_agent::OVERDUE_SECONDS;

    use super::*;

    fn said(heard: Option<u64>, missing: u64) -> String {
        let collector = CollectorState {
            state: "up".into(),
            heard,
            ..CollectorState::default()
        };
        let to = DestinationSum {
            name: "here".into(),
            collector: Some(collector),
            interfaces: vec![InterfaceSum::default()],
            sum: InterfaceSum {
                missing,
                ..InterfaceSum::default()
            },
            ..DestinationSum::default()
        };
        let mut out = Vec::new();
        trust(&mut out, &to).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn a_sum_is_said_to_be_complete_only_as_of_recent_reports() {
        let text = said(Some(OVERDUE_SECONDS), 0);
        assert!(
            text.contains("as of reports 4 s ago, each exported packet was received"),
            "{text}"
        );
        let late = said(Some(OVERDUE_SECONDS + 1), 0);
        assert!(
            late.contains("is overdue") && late.contains("5 s old") && late.lines().count() == 1,
            "{late}"
        );
        let missing = said(Some(29), 7);
        assert!(
            missing.contains("is overdue") && missing.contains("does not know of 7 packets"),
            "{missing}"
        );
        assert_eq!(said(None, 0), "");
    }
}
