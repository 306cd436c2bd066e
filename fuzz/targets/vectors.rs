//! Any bytes as grouped packet vectors, in every format, read as an agent reads them.
//!
//! Input: which format, then for the paper's formats the bytes; else datagrams, each after its
//! length (two bytes): as they are, and with magic, version and length put right.
#![no_main]

use libfuzzer_sys::fuzz_target;
use strata_fuzz::{Bounded, Chooser};
use strata_gpv::agent::{Reassembly, ReassemblyOptions, Record, Sequencer, SequencerOptions};
use strata_gpv::application::{
    Application, BurstOptions, Bursts, Congestion, Profiler, ProfilerOptions, flow_features,
};
use strata_gpv::format::control::FlushSlots;
use strata_gpv::format::datagram::{Datagram, DatagramWriter, LEN_MAX};
use strata_gpv::format::paper::{self, PaperTuple};
use strata_gpv::{Basic, Columns, Full, Grouped, Sequenced, Tuple};

#[global_allocator]
static MEMORY: Bounded = Bounded::new();

fuzz_target!(|bytes: &[u8]| {
    let mut choose = Chooser::new(bytes);
    match choose.u8() % 4 {
        0 => of_the_paper::<Basic>(choose.rest()),
        1 => of_the_paper::<Sequenced>(choose.rest()),
        kind => datagrams(choose, kind == 3),
    }
});

/// What is read is written as the same bytes.
fn of_the_paper<T: PaperTuple>(mut bytes: &[u8]) {
    let mut tuples = Vec::new();
    let mut applications = Applications::new();
    while let Ok((vector, len)) = paper::parse::<T>(bytes, &mut tuples) {
        let mut again = Vec::new();
        paper::emit(&vector, &mut again).expect("it was read");
        assert_eq!(again, bytes[..len]);
        applications.take(&vector);
        bytes = &bytes[len..];
    }
    applications.finish();
}

fn datagrams(mut choose: Chooser<'_>, is_mended: bool) {
    let options = SequencerOptions {
        caches_max: 4,
        waiting_max: 4,
        ..SequencerOptions::default()
    };
    let mut sequencer = Sequencer::new(options);
    let mut applications = Applications::new();
    let options = ReassemblyOptions {
        flows: 8,
        tuples_max: 10,
        interval_ns: 1_000_000,
    };
    let mut agent = Reassembly::<Full>::new(options, 1);
    let mut caches = Vec::new();
    while !choose.is_empty() {
        let len = usize::from(choose.u16());
        let mut bytes = choose.take(len).to_vec();
        // What comes back from an agent.
        if let Ok(flush) = FlushSlots::new_checked(&bytes) {
            // Each slot of the cache once, for any request.
            assert!(flush.slots(1000).count() <= 1000);
        }
        if is_mended && bytes.len() >= 24 {
            let len = u16::try_from(bytes.len()).expect("inputs are short");
            bytes[..6].copy_from_slice(b"SGPV\x02\x00");
            bytes[6] |= 1;
            bytes[7] &= 7;
            let cache = u32::from(bytes[8] % 5);
            bytes[8..12].copy_from_slice(&cache.to_le_bytes());
            bytes[12..14].copy_from_slice(&len.to_le_bytes());
        }
        if let Ok(datagram) = Datagram::new_checked(&bytes) {
            caches.push(datagram.cache);
            is_written_as_read(&datagram, &bytes);
        }
        let _ = sequencer.datagram_at_once(&bytes, |_, vectors| {
            agent.take_all(vectors, &mut |record: &Record<'_, Full>| {
                applications.take(record);
            });
        });
    }
    for cache in caches {
        let _ = sequencer.finish(cache, None, |_, vector| {
            agent.take(vector, &mut |record: &Record<'_, Full>| {
                applications.take(record);
            });
        });
    }
    agent.flush(&mut |record: &Record<'_, Full>| applications.take(record));
    let counters = agent.counters();
    assert_eq!(counters.tuples_in, counters.tuples_out);
    assert_eq!(counters.vectors, sequencer.counters().vectors);
    applications.finish();
}

/// A whole datagram, once read, is written as the same bytes.
fn is_written_as_read(datagram: &Datagram<'_>, bytes: &[u8]) {
    let (cache, columns, seq) = (datagram.cache, datagram.columns, datagram.first_seq);
    let mut writer = DatagramWriter::resume(cache, columns, LEN_MAX, seq);
    let (mut tuples, mut again) = (Vec::new(), Vec::new());
    let read = datagram.for_each(&mut tuples, |vector| {
        let put = writer.put(vector, |_| panic!("it was one datagram"));
        put.expect("it was read");
    });
    writer.finish(|bytes| again = bytes.to_vec());
    if read.is_ok() && datagram.vectors > 0 {
        assert_eq!(again, bytes);
    }
    assert!(columns.0 & !Columns::ALL.0 == 0);
}

struct Applications<F> {
    profiler: Profiler,
    bursts: Bursts<F>,
    packets: u64,
}

impl Applications<fn(&strata_gpv::application::Burst)> {
    fn new() -> Self {
        let options = BurstOptions {
            congestion: Congestion::HighQueue,
            packets_max: 1000,
            hosts_max: 10,
            ..BurstOptions::default()
        };
        let options_of_hosts = ProfilerOptions {
            hosts_max: 10,
            packets_max: 1000,
        };
        Self {
            profiler: Profiler::new(options_of_hosts, 1),
            bursts: Bursts::new(options, 1, |burst| assert!(burst.packets > 0)),
            packets: 0,
        }
    }

    fn take<T: Tuple, G: Grouped<T>>(&mut self, group: &G) {
        self.packets += group.count() as u64;
        self.profiler.take(0, group);
        self.bursts.take(0, group);
        assert!(
            flow_features::<T, G>(group)
                .iter()
                .all(|feature| feature.is_finite())
        );
    }

    fn finish(&mut self) {
        self.bursts.finish();
        let held = self.profiler.counters();
        assert_eq!(held.packets + held.cut, self.packets);
        let seen = self.bursts.counters();
        assert_eq!(seen.ordered + seen.late + seen.refused, self.packets);
    }
}
