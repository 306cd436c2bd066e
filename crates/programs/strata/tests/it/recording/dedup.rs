//! `strata record --dedup` on the two ends of a link, which see every packet twice.

use std::collections::HashSet;

use super::live::{FAR, NEAR, PACKETS, Recording, capture, info, namespace, until};

/// Packets of the capture that differ from all before: they are sent within less than a second.
fn distinct() -> u64 {
    let mut file = pcap::Capture::from_file(capture()).unwrap();
    let mut seen = HashSet::new();
    while let Ok(packet) = file.next_packet() {
        seen.insert(packet.data.to_vec());
    }
    seen.len() as u64
}

#[test]
fn what_both_ends_of_a_link_see_is_recorded_once() {
    let Some(namespace) = namespace("dedup") else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let both = format!("{NEAR},{FAR}");
    let (distinct, seen) = (distinct(), 2 * PACKETS);
    // With two workers, both copies of a packet come to the same one.
    for (name, cores) in [("one", &[][..]), ("two", &["--cores", "0,1"])] {
        let log = dir.path().join(name);
        let arguments = [&["--mode", "log-all", "--dedup", "5s"], cores].concat();
        let recording = Recording::start_on(&both, &namespace, &log, &arguments);
        recording.send(&namespace);
        let ended = || ["logged", "in_flight", "duplicates"].map(|end| recording.packets(end, ""));
        until("all is recorded", || ended().iter().sum::<u64>() == seen);
        assert_eq!(recording.packets("duplicates", ""), seen - distinct);
        assert_eq!(recording.status()["uncompared_packets"], 0);
        recording.signal("INT");
        let (out, _) = recording.ended();
        let expected = format!(
            "packets: seen {seen} = filtered 0 + duplicates {} + discarded 0 + sampled_out 0 + logged {distinct} ",
            seen - distinct
        );
        assert!(out.contains(&expected), "{out}");
        let accounting = &info(&log)[0]["accounting"];
        assert_eq!(accounting["duplicates"][0], seen - distinct, "{accounting}");
        assert_eq!(accounting["logged"][0], distinct, "{accounting}");
        // Only if there are some.
        assert!(accounting["uncompared"].is_null(), "{accounting}");
    }
}
