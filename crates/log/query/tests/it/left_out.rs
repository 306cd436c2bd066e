//! Packets whose interface or verdict no block defines are counted, and said to be left out.

use std::ops::ControlFlow;
use std::sync::Arc;

use strata_archive::compact;
use strata_blocks::{BlockBuilder, BlockSink};
use strata_filter::Filter;
use strata_query::{
    ByLink, ExportOptions, Exported, FileFormat, Find, FlowOptions, FoundCounts, FoundFlow,
    FoundPoint, FoundRun, Kept, Label, Matches, RecordFormat, Search, TakeFound, export,
    export_flows, packets, search,
};
use strata_store::{Damage, Disk, Log};
use strata_testkit_disk::SimDisk;
use strata_testkit_disk::small::{self, about, start};
use strata_wire::{FlowKey, Ledger, LinkType};

/// A block as a relay leaves it whose definitions, in a block before it, were lost.
fn write_undefined(sink: &mut BlockSink, fill: impl FnOnce(&mut BlockBuilder)) {
    let mut block = sink.take().unwrap();
    fill(&mut block);
    sink.submit(block).unwrap();
    while sink.wait().unwrap().is_some() {}
}

/// A log of 3 packets with definitions and 5 without, in two blocks of one file.
fn log() -> Arc<dyn Disk> {
    let disk: Arc<dyn Disk> = Arc::new(SimDisk::new());
    let (recorder, mut sinks) = start(&disk, &about(), 64 << 10, 1);
    for (seqs, is_defined) in [(0..2, false), (2..5, false), (5..8, true)] {
        let fill = |block: &mut BlockBuilder| {
            for seq in seqs {
                // Of an interface other than the one that is defined.
                let interface = u16::from(!is_defined);
                let packet = strata_blocks::PacketRecord {
                    interface,
                    ..small::packet(seq, 1_000 + seq)
                };
                block.push_packet(&packet, 0);
            }
        };
        match is_defined {
            true => small::write(&mut sinks[0], fill),
            false => write_undefined(&mut sinks[0], fill),
        }
    }
    drop(sinks);
    recorder.finish(&Ledger::default(), Vec::new()).unwrap();
    disk
}

fn exported(disk: &Arc<dyn Disk>, options: ExportOptions<'_>) -> Exported {
    let log = Log::on(Arc::clone(disk)).unwrap();
    let mut file = Vec::new();
    export(
        &log,
        &mut file,
        FileFormat::PcapNg,
        &Find::default(),
        options,
    )
    .unwrap()
}

fn texts(damage: &[Damage]) -> Vec<String> {
    damage.iter().map(ToString::to_string).collect()
}

#[test]
fn packets_without_a_definition_of_their_interface_are_counted() {
    let disk = log();
    for is_compacted in [false, true] {
        if is_compacted {
            compact(&disk, |_| ()).unwrap();
        }
        let done = exported(&disk, ExportOptions::default());
        assert_eq!((done.packets, done.left_out), (3, 5), "{is_compacted}");
        let said = texts(&done.damage).join("\n");
        assert!(
            said.contains("left out: the definition of their interface 1 is missing"),
            "{said}"
        );
        let log = Log::on(Arc::clone(&disk)).unwrap();
        if !is_compacted {
            // Each file, with its own number.
            for (file, count) in log.recordings()[0]
                .files
                .iter()
                .zip(["2 packets", "3 packets"])
            {
                let of_file = said.lines().find(|line| line.contains(&file.name));
                assert!(of_file.unwrap().contains(count), "{said}");
            }
        }
        let mut seen = 0;
        let mut take = |_: &strata_query::LoggedPacket<'_>| {
            seen += 1;
            Ok(())
        };
        let options = ExportOptions::default();
        let read = packets(&log, &Find::default(), options, &mut take).unwrap();
        assert_eq!((seen, read.left_out), (3, 5));
        let flows = export_flows(
            &log,
            Vec::new(),
            RecordFormat::Csv,
            &Find::default(),
            &FlowOptions::default(),
        );
        let flows = flows.unwrap();
        assert_eq!((flows.flows, flows.left_out), (1, 5));
        assert!(!flows.damage.is_empty());
    }
}

#[test]
fn packets_without_a_definition_of_their_verdict_are_counted_if_it_decides() {
    let disk: Arc<dyn Disk> = Arc::new(SimDisk::new());
    let (recorder, mut sinks) = start(&disk, &about(), 64 << 10, 1);
    small::write(&mut sinks[0], |block| {
        for seq in 0..4 {
            let packet = strata_blocks::PacketRecord {
                verdict: u16::from(seq > 0),
                ..small::packet(seq, 1_000 + seq)
            };
            block.push_packet(&packet, 0);
        }
    });
    drop(sinks);
    recorder.finish(&Ledger::default(), Vec::new()).unwrap();
    for is_compacted in [false, true] {
        if is_compacted {
            compact(&disk, |_| ()).unwrap();
        }
        let done = exported(&disk, ExportOptions::default());
        assert_eq!((done.packets, done.left_out), (4, 0), "{is_compacted}");
        let options = ExportOptions {
            kept: Kept {
                granularity: Some("full".into()),
                ..Kept::default()
            },
            ..ExportOptions::default()
        };
        let done = exported(&disk, options);
        assert_eq!((done.packets, done.left_out), (0, 3), "{is_compacted}");
        let said = texts(&done.damage).join("\n");
        assert!(
            said.contains(
                "the definition of their verdict, with their class and reason, is missing"
            ),
            "{said}"
        );
    }
}

#[derive(Default)]
struct Found {
    packets: usize,
    damage: Vec<String>,
}

impl TakeFound for Found {
    fn label(&mut self, _: &Label<'_>) -> usize {
        0
    }

    fn packets(&mut self, run: &FoundRun<'_>) {
        self.packets += run.packets.len();
    }

    fn counted(&mut self, _: usize, _: &FoundCounts) {}

    fn counted_point(&mut self, _: &FoundPoint<'_>) {}

    fn counted_flow(&mut self, _: &FoundFlow<'_>) {}

    fn name(&mut self, _: &FlowKey, _: &str) {}

    fn damage(&mut self, problem: String) {
        self.damage.push(problem);
    }

    fn encrypted(&mut self, _: u64) {}
}

#[test]
fn a_search_says_what_it_leaves_out() {
    let log = Log::on(log()).unwrap();
    let mut all = Found::default();
    let sought = Search {
        find: Find::default(),
        matches: &|| Box::new(|_: LinkType, _: &[u8], _: u32| true) as Box<Matches<'_>>,
        goes_on: &|| true,
        points_ns: None,
        threads: 1,
    };
    search(&log, &sought, &Found::default, &mut |found, _| {
        let found = found.unwrap_or_default();
        all.packets += found.packets;
        all.damage.extend(found.damage);
        ControlFlow::Continue(())
    })
    .unwrap();
    assert_eq!(all.packets, 3);
    let said = all.damage.join("\n");
    assert!(
        said.contains("2 packets left out") && said.contains("3 packets left out"),
        "{said}"
    );
}

/// What packets came of, and whether the filter can be tested on one of them.
#[test]
fn a_filter_that_fits_no_link_is_told() {
    let disk = log();
    for (text, fits) in [
        ("port 53", true),
        ("wlan type mgt", false),
        ("inbound", false),
    ] {
        let filter = Filter::parse(text).unwrap();
        let mut by_link = ByLink::new(filter.clone(), |_, _| ());
        let options = ExportOptions {
            matches: Some(by_link.as_matches()),
            ..ExportOptions::default()
        };
        assert_eq!(exported(&disk, options).packets, 0, "{text}");
        assert_eq!(by_link.misfit().is_none(), fits, "{text}");
        let find = Find {
            filter: Some(&filter),
            ..Find::default()
        };
        let log = Log::on(Arc::clone(&disk)).unwrap();
        let options = FlowOptions::default();
        let flows = export_flows(&log, Vec::new(), RecordFormat::Json, &find, &options).unwrap();
        assert_eq!((flows.flows, flows.misfit.is_none()), (0, fits), "{text}");
    }
}
