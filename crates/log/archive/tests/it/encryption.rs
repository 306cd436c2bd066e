//! Encrypted logs: readable with the key, unreadable without, and never half changed.

use std::sync::Arc;

use strata_archive::{ArchiveError, ClearDisk, Identities, compact, encrypt_to, rotate, verify};
use strata_filter::Filter;
use strata_query::{ExportOptions, FileFormat, Find, export};
use strata_store::{Disk, FileKind, Log};
use strata_testkit::{data_dir, format_captures};
use strata_testkit_disk::SimDisk;

use crate::common::{Capture, compacted, exported, model, record};

fn opened(sim: &SimDisk, key: Option<&Identities>) -> Log {
    let disk = ClearDisk::new(Arc::new(sim.clone()), key.cloned());
    Log::on(Arc::new(disk)).unwrap()
}

fn all(sim: &SimDisk, key: &Identities) -> Capture {
    exported(&opened(sim, Some(key)), &Find::default()).0
}

fn refused(sim: &SimDisk, key: Option<&Identities>) -> String {
    let log = opened(sim, key);
    let find = Find::default();
    let options = ExportOptions::default();
    let result = export(&log, Vec::new(), FileFormat::PcapNg, &find, options);
    result.unwrap_err().to_string()
}

fn bytes_of(sim: &SimDisk, name: &str) -> Vec<u8> {
    let file = sim.open(name, false).unwrap();
    let mut bytes = vec![0; usize::try_from(file.size().unwrap()).unwrap()];
    assert_eq!(file.read_at(&mut bytes, 0).unwrap(), bytes.len());
    bytes
}

#[test]
fn what_is_encrypted_comes_back_to_the_byte() {
    let key = Identities::generate();
    let sim = SimDisk::new();
    let disk: Arc<dyn Disk> = Arc::new(sim.clone());
    let mut captures = format_captures();
    captures.push(data_dir().join("labelled/mix-test/trace.pcap"));
    let mut recorded = 0;
    for path in captures.iter().rev().step_by(40) {
        recorded += usize::from(record(&disk, path, &model(), "log-all", 0));
    }
    assert!(recorded > 30, "{recorded} recordings");
    let before = exported(&opened(&sim, None), &Find::default()).0;
    encrypt_to(&disk, &key.recipients()).unwrap();
    compact(&disk, |_| ()).unwrap();
    assert!(
        !sim.names()
            .iter()
            .any(|name| name.starts_with("blocks/") && name.ends_with(".strata"))
    );
    let after = all(&sim, &key);
    assert!(before == after, "{} packets", before.packets.len());
    let filter = Filter::parse("udp port 53").unwrap();
    let find = Find {
        filter: Some(&filter),
        ..Find::default()
    };
    let (found, examined) = exported(&opened(&sim, Some(&key)), &find);
    assert!(found.packets.len() > 100 && examined < before.packets.len() as u64 / 2);
    let report = verify(&opened_as_stored(&sim), Some(&key)).unwrap();
    assert_eq!((report.damage.len(), report.not_decrypted), (0, 0));
}

fn opened_as_stored(sim: &SimDisk) -> Log {
    Log::on(Arc::new(sim.clone())).unwrap()
}

#[test]
fn nothing_of_what_was_compacted_can_be_read_in_its_files() {
    let key = Identities::generate();
    let (clear, encrypted) = (compacted(None), compacted(Some(&key)));
    // Strings in the unencrypted tables that a reader would look for.
    let telling: [&[u8]; 3] = [b"PAR1", b"community_id", b"192.168.10.50"];
    let holds = |sim: &SimDisk, name: &str| {
        let bytes = bytes_of(sim, name);
        let has = |text: &&[u8]| bytes.windows(text.len()).any(|part| part == *text);
        telling.iter().filter(|text| has(text)).count()
    };
    let parts = opened_as_stored(&clear).archive().parts.clone();
    let files = parts.iter().filter_map(|part| part.file(FileKind::Flows));
    for file in files {
        assert_eq!(holds(&clear, &file.name), telling.len(), "{}", file.name);
    }
    let mut checked = 0;
    for part in &opened_as_stored(&encrypted).archive().parts {
        for file in &part.files {
            if file.kind == FileKind::Sums {
                continue;
            }
            assert!(file.is_encrypted(), "{}", file.name);
            let bytes = bytes_of(&encrypted, &file.name);
            assert!(bytes.starts_with(b"age-encryption.org/v1\n"));
            assert_eq!(holds(&encrypted, &file.name), 0, "{}", file.name);
            checked += 1;
        }
    }
    assert!(checked >= 8, "{checked} files");
}

#[test]
fn without_the_key_an_error_says_which_is_missing() {
    let [key, other] = [(); 2].map(|()| Identities::generate());
    let sim = compacted(Some(&key));
    let public = key.recipients().texts().remove(0);
    let text = refused(&sim, None);
    assert!(
        text.contains(&public) && text.contains("--key") && text.contains(".age"),
        "{text}"
    );
    let text = refused(&sim, Some(&other));
    let given = other.recipients().texts().remove(0);
    assert!(text.contains(&public) && text.contains(&given), "{text}");
    let wrong = verify(&opened_as_stored(&sim), Some(&other)).unwrap_err();
    assert!(wrong.to_string().contains(&given), "{wrong}");
    // Checksums need no key.
    let report = verify(&opened_as_stored(&sim), None).unwrap();
    assert!(report.damage.is_empty() && report.not_decrypted >= 8);
    assert_eq!(report.packets, 188);
}

#[test]
fn a_rotation_changes_all_keys_or_none_and_no_data() {
    let [old, new] = [(); 2].map(|()| Identities::generate());
    let sim = compacted(Some(&old));
    let before = all(&sim, &old);
    let data = |sim: &SimDisk| {
        let names = sim
            .names()
            .into_iter()
            .filter(|name| name.ends_with(".age"));
        names
            .map(|name| (bytes_of(sim, &name), name))
            .collect::<Vec<_>>()
    };
    let files = data(&sim);
    let first = sim.operations();
    let whole = sim.after_power_loss(0);
    let disk: Arc<dyn Disk> = Arc::new(whole.clone());
    let parts = rotate(&disk, &old, &new.recipients()).unwrap();
    assert!(parts >= 2);
    assert!(all(&whole, &new) == before && data(&whole) == files);
    assert!(refused(&whole, Some(&old)).contains("but the given key is"));
    // Data compacted later are encrypted to the new key too.
    let path = data_dir().join("labelled/cic2017-sqli/trace.pcap");
    assert!(record(&disk, &path, &model(), "log-all", 0));
    compact(&disk, |_| ()).unwrap();
    assert_eq!(all(&whole, &new).packets.len(), before.packets.len() + 94);
    // Without the key, nothing can be changed.
    let generation = opened_as_stored(&whole).archive().generation;
    let refused = rotate(&disk, &old, &old.recipients()).unwrap_err();
    assert!(matches!(refused, ArchiveError::Io { .. }), "{refused}");
    assert_eq!(opened_as_stored(&whole).archive().generation, generation);
    let (mut with_old, mut with_new) = (0, 0);
    for crash in 0..8 {
        let crashed = sim.after_power_loss(0);
        crashed.crash_after(crashed.operations() + crash);
        let disk: Arc<dyn Disk> = Arc::new(crashed.clone());
        let done = rotate(&disk, &old, &new.recipients()).is_ok();
        let left = crashed.after_power_loss(crash);
        let to = opened_as_stored(&left).archive().encrypt_to.clone();
        let key = if to == old.recipients().texts() {
            with_old += 1;
            assert!(!done);
            &old
        } else {
            with_new += 1;
            &new
        };
        assert!(all(&left, key) == before, "crash {crash}");
    }
    assert!(
        with_old > 0 && with_new > 0,
        "{with_old} {with_new} {first}"
    );
}

#[test]
fn a_log_may_hold_parts_for_different_keys_and_for_none() {
    let [one, two] = [(); 2].map(|()| Identities::generate());
    let sim = compacted(None);
    let disk: Arc<dyn Disk> = Arc::new(sim.clone());
    let path = data_dir().join("labelled/cic2017-sqli/trace.pcap");
    let both = one.recipients().and(two.recipients());
    for to in [one.recipients(), both] {
        encrypt_to(&disk, &to).unwrap();
        assert!(record(&disk, &path, &model(), "log-all", 0));
        compact(&disk, |_| ()).unwrap();
    }
    assert_eq!(all(&sim, &one).packets.len(), 4 * 94);
    assert!(refused(&sim, Some(&two)).contains("but the given key is"));
    rotate(&disk, &one, &two.recipients()).unwrap();
    assert_eq!(all(&sim, &two).packets.len(), 4 * 94);
    assert!(refused(&sim, Some(&one)).contains("but the given key is"));
}

type Change = fn(&mut Vec<u8>);

/// Changes a byte of an encrypted file, and its checksum in the manifest accordingly.
fn tamper(sim: &SimDisk, name: &str, change: impl Fn(&mut Vec<u8>)) {
    let mut bytes = bytes_of(sim, name);
    change(&mut bytes);
    sim.replace(name, &bytes).unwrap();
    let mut archive = opened_as_stored(sim).archive().clone();
    let files = archive.parts.iter_mut().flat_map(|part| &mut part.files);
    for file in files.filter(|file| file.name == name) {
        file.bytes = bytes.len() as u64;
        file.crc = crc32c::crc32c(&bytes);
    }
    sim.replace("archive.json", &archive.to_json()).unwrap();
}

#[test]
fn what_was_changed_together_with_its_checksums_is_found_with_the_key() {
    let key = Identities::generate();
    let sim = compacted(Some(&key));
    let names: Vec<String> = sim.names();
    let names = names.iter().filter(|name| name.ends_with(".age"));
    let changes: [(&str, Change); 4] = [
        ("header", |bytes| bytes[30] ^= 1),
        ("data", |bytes| {
            let last = bytes.len() - 20;
            bytes[last] ^= 1;
        }),
        ("tag", |bytes| *bytes.last_mut().unwrap() ^= 1),
        ("cut", |bytes| bytes.truncate(bytes.len() - 7)),
    ];
    for name in names {
        for (what, change) in changes {
            let sim = sim.after_power_loss(0);
            tamper(&sim, name, change);
            let unnoticed = verify(&opened_as_stored(&sim), None).unwrap();
            assert!(
                unnoticed.damage.is_empty(),
                "{name} {what}: its checksums are right"
            );
            let found = verify(&opened_as_stored(&sim), Some(&key)).unwrap().damage;
            assert!(
                found.len() == 1 && found[0].file.ends_with(name.as_str()),
                "{name} {what}: {found:?}"
            );
            let log = opened(&sim, Some(&key));
            let options = ExportOptions::default();
            let find = Find::default();
            match export(&log, Vec::new(), FileFormat::PcapNg, &find, options) {
                Err(error) => assert!(error.to_string().contains(name.as_str()), "{error}"),
                // The flows are not read when everything is wanted.
                Ok(done) => assert!(
                    !done.damage.is_empty() || name.starts_with("flows/"),
                    "{name} {what}"
                ),
            }
        }
    }
}

#[test]
fn the_chunk_that_was_changed_is_named() {
    let key = Identities::generate();
    let sim = SimDisk::new();
    let disk: Arc<dyn Disk> = Arc::new(sim.clone());
    let path = data_dir().join("labelled/mix-test/trace.pcap");
    assert!(record(&disk, &path, &model(), "default", 0));
    encrypt_to(&disk, &key.recipients()).unwrap();
    compact(&disk, |_| ()).unwrap();
    let name = sim
        .names()
        .into_iter()
        .find(|name| name.starts_with("packets/"));
    let name = name.unwrap();
    for at in [70_000, 200_000, 300_000_usize] {
        let sim = sim.after_power_loss(0);
        tamper(&sim, &name, |bytes| bytes[at] ^= 1);
        let found = verify(&opened_as_stored(&sim), Some(&key)).unwrap().damage;
        assert_eq!(found.len(), 1, "{found:?}");
        let offset = usize::try_from(found[0].offset).unwrap();
        assert!(offset <= at && at < offset + 65_536 + 16, "{at}: {found:?}");
    }
}
