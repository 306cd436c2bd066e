//! What must hold for the log, whatever happened.

use std::collections::BTreeSet;
use std::sync::Arc;

use strata_blocks::Record;
use strata_store::{Log, Recording, Select, State};
use strata_testkit_disk::SimDisk;

use crate::switch::{Account, SwitchNode, content};

/// Packets of a recording.
#[derive(Default)]
struct Found {
    whole: BTreeSet<u64>,
    incomplete: BTreeSet<u64>,
}

/// Reads a recording: each packet is correct, occurs once, and in order.
fn read(log: &Log, recording: &Recording, account: &Account) -> Found {
    let (mut found, mut last, mut data) = (Found::default(), None, Vec::new());
    for block in log.blocks(recording, &Select::default()) {
        let block = block.unwrap();
        assert_eq!(
            block.undefined, 0,
            "{}: packets in {} at {} that nothing can read",
            account.session, block.file, block.offset
        );
        for item in block.records() {
            let Record::Packet(packet) = item.unwrap() else {
                continue;
            };
            assert!(
                last < Some(packet.seq),
                "{}: packet {} is twice or out of order",
                account.session,
                packet.seq
            );
            last = Some(packet.seq);
            content(account.session, packet.seq, &mut data);
            let marked = String::from_utf8_lossy(packet.options).contains("incomplete");
            let right = match marked {
                true => data.starts_with(packet.data),
                false => data == packet.data,
            };
            assert!(right, "{}: packet {}", account.session, packet.seq);
            let of = if marked {
                &mut found.incomplete
            } else {
                &mut found.whole
            };
            of.insert(packet.seq);
        }
    }
    found
}

/// Conservation: what a switch knew to be stored is stored, once and in order; what is missing is
/// counted.
pub(crate) fn check(disk: &SimDisk, accounts: &[Account]) {
    let log = Log::on(Arc::new(disk.clone())).unwrap();
    for account in accounts {
        let name = Some(SwitchNode::name(account.session));
        let mut recordings = log.recordings().iter().filter(|r| r.session == name);
        let Some(recording) = recordings.next() else {
            assert!(account.stored.is_empty(), "no recording: {account:?}");
            continue;
        };
        assert!(recordings.next().is_none(), "two recordings of {name:?}");
        let found = read(&log, recording, account);
        let there = |seq: &u64| found.whole.contains(seq);
        if account.way.is_lossless() {
            if let Some(lost) = account.stored.iter().find(|seq| !there(seq)) {
                panic!("{name:?}: packet {lost} was confirmed, and is not there");
            }
            assert!(found.incomplete.len() <= 1000, "{name:?}");
            for (count, of) in &account.found {
                let there = of.iter().filter(|seq| there(seq)).count() as u64;
                assert!(
                    there >= *count,
                    "{name:?}: {there} of {count} that were found"
                );
            }
        }
        let report = account.report.as_ref();
        let is_done = report.is_some_and(|report| report.failure.is_none());
        if let (true, true, Some(report)) = (account.way.reads_files, is_done, report) {
            assert_eq!(report.lost.packets, 0, "{name:?}: sent again");
            assert_eq!(found.whole.len() as u64, account.numbered, "{name:?}");
        }
        assert!(
            report.is_none() || account.unsettled == 0,
            "{name:?}: it never said what became of {} packets",
            account.unsettled
        );
        if is_done {
            assert_eq!(recording.state, State::Closed, "{name:?}");
        }
        if recording.state == State::Closed {
            let (_, loss) = log.accounting(recording).unwrap();
            let present = (found.whole.len() + found.incomplete.len()) as u64;
            assert_eq!(
                loss.packets,
                account.numbered - present,
                "{name:?}: counted exactly"
            );
            assert_eq!(loss.incomplete, found.incomplete.len() as u64, "{name:?}");
        }
    }
}
