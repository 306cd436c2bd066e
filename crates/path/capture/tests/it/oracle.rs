//! Every capture compared with independent readers: libpcap where it reads the file, tshark for the
//! rest and a sample. The differences are a snapshot, a line for each with its reason; a difference
//! of any other kind fails.

use std::path::Path;
use std::process::Command;

use strata_testkit::labelled_captures;

use crate::common::{Packet, check_snapshot, format_files, read};

/// Nanoseconds per second.
const NS_PER_S: u64 = 1_000_000_000;

/// A packet as libpcap has it.
struct Theirs {
    seconds: i64,
    ns: i64,
    wire_len: u32,
    data: Vec<u8>,
}

/// libpcap's link type and packets, if it reads the file to its end.
fn libpcap(path: &Path) -> Result<(i32, Vec<Theirs>), String> {
    let mut capture = pcap::Capture::from_file_with_precision(path, pcap::Precision::Nano)
        .map_err(|error| error.to_string())?;
    let mut packets = Vec::new();
    loop {
        match capture.next_packet() {
            Ok(packet) => packets.push(Theirs {
                seconds: packet.header.ts.tv_sec,
                ns: packet.header.ts.tv_usec,
                wire_len: packet.header.len,
                data: packet.data.to_vec(),
            }),
            Err(pcap::Error::NoMorePackets) => return Ok((capture.get_datalink().0, packets)),
            Err(error) => return Err(error.to_string()),
        }
    }
}

/// How our packet and libpcap's differ, in plain English; panics where the reason is not a known
/// one.
fn difference(name: &str, ours: &Packet, snaplen: u32, theirs: &Theirs) -> Option<String> {
    assert_eq!(ours.wire_len, theirs.wire_len, "{name}");
    let mut found = Vec::new();
    let whole = ours.data.len();
    if ours.data != theirs.data {
        let cut = snaplen as usize;
        assert!(whole > cut, "{name}: {whole} bytes, snapshot length {cut}");
        assert_eq!(ours.data[..cut], theirs.data, "{name}");
        found.push(format!(
            "libpcap cuts {whole} bytes at the snapshot length {cut}"
        ));
    }
    let plain = u64::try_from(theirs.seconds)
        .ok()
        .zip(u64::try_from(theirs.ns).ok());
    if plain.map(|(seconds, ns)| seconds * NS_PER_S + ns) != Some(ours.ts_ns) {
        // As unsigned 32 bits, which is what the file has.
        let seconds = u64::try_from(theirs.seconds & 0xffff_ffff).unwrap();
        let ns = i64::try_from(ours.ts_ns - seconds * NS_PER_S).unwrap();
        assert_eq!((ns ^ theirs.ns) & 0xffff_ffff, 0, "{name}");
        found.push(format!(
            "libpcap has signed 32 bits of seconds and fraction, {} s {} ns",
            theirs.seconds, theirs.ns
        ));
    }
    (!found.is_empty()).then(|| found.join("; "))
}

/// DLT numbers that are not the LINKTYPE of the file: libpcap(3) turns those that differ between
/// systems into the ones of this system.
const DLT: &[(i32, u16)] = &[(11, 100), (12, 12), (12, 14), (12, 101), (19, 106)];

#[test]
fn libpcap_reads_the_same() {
    let (mut files, mut packets, mut lines) = (0, 0, Vec::new());
    let labelled = labelled_captures().into_iter();
    let labelled = labelled.map(|path| (path.display().to_string(), path));
    for (name, path) in format_files().into_iter().chain(labelled) {
        let ours = read(&path);
        let (dlt, theirs) = match libpcap(&path) {
            Ok(found) => found,
            Err(error) => {
                lines.push(format!("{name}: refused: {error}"));
                continue;
            }
        };
        let refusal = ours.error.as_ref().map(ToString::to_string);
        if name == "libpcap/linktype-reserved-field-not-zero.pcap" {
            lines.push(format!(
                "{name}: libpcap 1.10.3 does not look at these bits, later ones do"
            ));
            continue;
        }
        assert_eq!(refusal, None, "{name}");
        assert_eq!(ours.packets().count(), theirs.len(), "{name}");
        let interfaces = ours.interfaces();
        let link = interfaces[0].link.0;
        assert!(
            dlt == i32::from(link) || DLT.contains(&(dlt, link)),
            "{name}: {dlt}, {link}"
        );
        for (index, (ours, theirs)) in ours.packets().zip(&theirs).enumerate() {
            let snaplen = interfaces[usize::from(ours.interface)].snaplen;
            if let Some(text) = difference(&name, ours, snaplen, theirs) {
                lines.push(format!("{name}: packet {}: {text}", index + 1));
            }
        }
        files += 1;
        packets += theirs.len();
    }
    println!("libpcap agrees on {packets} packets of {files} files");
    assert!(files > 1700);
    check_snapshot("libpcap.txt", &(lines.join("\n") + "\n"));
}

/// One packet as tshark has it: time as it prints it, lengths, bytes in hex.
struct Printed {
    time: Option<String>,
    wire_len: u32,
    cap_len: usize,
    interface: Option<u16>,
    hex: String,
    section: Option<u16>,
}

impl Printed {
    /// The time in ns: seconds, a point, a fraction that may be any number.
    fn ns(&self) -> Option<i128> {
        let (seconds, ns) = self.time.as_ref()?.split_once('.')?;
        let (seconds, ns): (i128, i128) = (seconds.parse().unwrap(), ns.parse().unwrap());
        Some(seconds * i128::from(NS_PER_S) + ns)
    }
}

/// tshark's packets, and its complaint if it has one.
fn tshark(path: &Path) -> (Vec<Printed>, Option<String>) {
    let output = Command::new("tshark")
        .args(["-n", "-T", "ek", "-x", "-J", "frame", "-r"])
        .arg(path)
        .output()
        .expect("tshark is installed");
    let text = String::from_utf8_lossy(&output.stdout);
    let packets = text
        .lines()
        .filter(|line| line.contains("\"frame_frame_number\""))
        // tshark shows custom blocks among the packets.
        .filter(|line| !line.contains("\"frame_frame_cb_pen\""))
        .map(|line| {
            let field = |name: &str| -> Option<String> {
                let (_, rest) = line.split_once(&format!("\"{name}\":\""))?;
                rest.split('"').next().map(str::to_owned)
            };
            Printed {
                time: field("frame_frame_time_epoch"),
                wire_len: field("frame_frame_len").unwrap().parse().unwrap(),
                cap_len: field("frame_frame_cap_len").unwrap().parse().unwrap(),
                interface: field("frame_frame_interface_id").map(|id| id.parse().unwrap()),
                hex: field("frame_raw").unwrap_or_default(),
                section: field("frame_frame_section_number").map(|id| id.parse().unwrap()),
            }
        })
        .collect();
    let complaint = (!output.status.success()).then(|| {
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        text.lines().last().unwrap_or_default().to_owned()
    });
    (packets, complaint)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Files with fractions of a second of 2^31 ns and more, damaged on purpose.
const TIMES: &[&str] = &[
    "tcpdump/atm-oam-loopback-print-overrun.pcap",
    "tcpdump/rx_serviceid_oobr.pcap",
    "tcpdump/timestamp_invalid_micro.pcap",
    "tcpdump/timestamp_invalid_nano.pcap",
];

/// How our packet and tshark's differ, in plain English; panics where the reason is not a known
/// one.
fn tshark_difference(name: &str, ours: &Packet, link: u16, theirs: &Printed) -> Option<String> {
    // SUNATM: Wireshark takes the pseudo-header off.
    let off = if link == 123 { 4 } else { 0 };
    let mut found = Vec::new();
    if off != 0 {
        found.push("tshark takes a pseudo-header of 4 bytes off".to_owned());
    }
    assert_eq!(ours.wire_len, theirs.wire_len + off, "{name}");
    let data = &ours.data[off as usize..];
    assert_eq!(data.len(), theirs.cap_len, "{name}");
    let text = hex(data);
    if text != theirs.hex {
        // What it prints where a length field confuses its dissector.
        assert_eq!(theirs.hex, "field length invalid!", "{name}");
        found.push("tshark does not print the bytes".to_owned());
    }
    let time = ours.has_timestamp.then(|| i128::from(ours.ts_ns));
    if time != theirs.ns() {
        assert!(TIMES.contains(&name), "{name}: {time:?}, {:?}", theirs.time);
        found.push(format!(
            "the fraction of the time is 2^31 ns or more: tshark makes it {}, we {} ns",
            theirs.time.as_deref().unwrap_or("nothing"),
            ours.ts_ns
        ));
    }
    // tshark counts interfaces by section.
    if theirs.section.is_none_or(|section| section == 1) {
        assert_eq!(theirs.interface.unwrap_or(0), ours.interface, "{name}");
    }
    (!found.is_empty()).then(|| found.join("; "))
}

/// Compares one file with tshark; returns a line for each difference.
fn against_tshark(name: &str, path: &Path) -> Vec<String> {
    let ours = read(path);
    let (theirs, complaint) = tshark(path);
    match (&complaint, &ours.error) {
        (Some(complaint), None) => {
            assert!(complaint.contains("network type"), "{name}: {complaint}");
            return vec![format!("{name}: tshark: {complaint}")];
        }
        (None, Some(error)) => panic!("{name}: tshark reads it, but {error}"),
        _ => {}
    }
    assert_eq!(ours.packets().count(), theirs.len(), "{name}");
    let interfaces = ours.interfaces();
    let pairs = ours.packets().zip(&theirs).enumerate();
    pairs
        .filter_map(|(index, (a, b))| {
            let link = interfaces[usize::from(a.interface)].link.0;
            let text = tshark_difference(name, a, link, b)?;
            Some(format!("{name}: packet {}: {text}", index + 1))
        })
        .collect()
}

/// What libpcap does not read or reads differently, and a sample of the rest; all files if
/// `STRATA_TSHARK_ALL` is set (about two minutes).
#[test]
fn tshark_reads_the_same() {
    let listed = concat!(
        include_str!("../snapshots/libpcap.txt"),
        include_str!("../snapshots/tshark.txt")
    );
    let every = if std::env::var_os("STRATA_TSHARK_ALL").is_some() {
        1
    } else {
        30
    };
    let mut chosen: Vec<_> = format_files()
        .into_iter()
        .enumerate()
        .filter(|(index, (name, _))| index % every == 0 || listed.contains(name.as_str()))
        .map(|(_, file)| file)
        .collect();
    let other = chosen.split_off(chosen.len() / 2);
    let compare = |files: Vec<(String, std::path::PathBuf)>| {
        let all = files
            .iter()
            .flat_map(|(name, path)| against_tshark(name, path));
        all.collect::<Vec<_>>()
    };
    let second = std::thread::spawn(move || compare(other));
    let mut lines = compare(chosen);
    lines.extend(second.join().unwrap());
    check_snapshot("tshark.txt", &(lines.join("\n") + "\n"));
}
