//! Applications over vectors, each against a naive program over packets.

mod bursts;
mod classifier;

use std::collections::HashMap;

use strata_gpv::application::{Application, Profiler, ProfilerOptions};
use strata_gpv::{Cache, Full, Packet, Parameters, Vector};

use crate::common::{captured, labelled};

fn profile(packets: &[Packet], options: ProfilerOptions) -> Profiler {
    let parameters = Parameters {
        slots: 128,
        narrow: 4,
        wide: 24,
        blocks: 32,
    };
    let mut cache = Cache::<Full>::new(parameters, 1).unwrap();
    let mut profiler = Profiler::new(options, 1);
    let mut out = |vector: &Vector<'_, Full>| profiler.take(0, vector);
    cache.push(packets, &mut out);
    cache.flush(&mut out);
    profiler
}

#[test]
fn a_profile_has_the_time_of_every_packet_of_its_host() {
    let packets = captured(&labelled("everyday-benign"), 50_000).unwrap();
    let mut wanted: HashMap<_, Vec<u64>> = HashMap::new();
    for packet in &packets {
        let host = (packet.key.family(), packet.key.source().address);
        wanted.entry(host).or_default().push(packet.ts_ns);
    }
    wanted.values_mut().for_each(|times| times.sort_unstable());
    let mut profiler = profile(&packets, ProfilerOptions::default());
    let mut found = HashMap::new();
    profiler.end_interval(|profile| {
        let mut times = profile.times_ns.to_vec();
        times.sort_unstable();
        found.insert((profile.family, profile.address), times);
    });
    assert_eq!(found, wanted);
    profiler.end_interval(|profile| panic!("{profile:?} is of the interval before"));
}

#[test]
fn a_profiler_holds_what_it_may_and_counts_the_rest() {
    let packets = captured(&labelled("everyday-benign"), 50_000).unwrap();
    for (hosts_max, packets_max) in [(3, u64::MAX), (u32::MAX, 1000), (0, 10)] {
        let mut profiler = profile(
            &packets,
            ProfilerOptions {
                hosts_max,
                packets_max,
            },
        );
        let counters = *profiler.counters();
        assert!(counters.cut > 0 && counters.packets <= packets_max);
        assert_eq!(counters.packets + counters.cut, packets.len() as u64);
        let (mut hosts, mut held) = (0, 0);
        profiler.end_interval(|profile| {
            hosts += 1;
            held += profile.times_ns.len() as u64;
        });
        assert!(hosts <= hosts_max);
        assert_eq!(held, counters.packets);
    }
}
