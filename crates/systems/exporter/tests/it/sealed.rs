//! Sealed datagrams: as another implementation of the document reads and writes them, and what a stranger, a
//! hostile sender and an eavesdropper can do with them: nothing.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::io::Write as _;
use std::process::{Command, Stdio};

use proptest::prelude::*;
use strata_auth::keys::{MasterKey, ParseKeysError, SALT_LEN, SealKeys};
use strata_exporter::{HEADER_LEN, Opener, SEALED_MORE, SealError, Sealer, identity_in, is_sealed};

const NOW: u32 = 1_700_000_000;

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        write!(text, "{byte:02x}").unwrap();
        text
    })
}

fn bytes(text: &str) -> Vec<u8> {
    let two = text.as_bytes().chunks(2);
    two.map(|two| u8::from_str_radix(std::str::from_utf8(two).unwrap(), 16).unwrap())
        .collect()
}

fn master(number: u8) -> MasterKey {
    MasterKey::new([number; 32])
}

fn keys(lines: &[String]) -> SealKeys {
    SealKeys::parse(&lines.join("\n")).unwrap()
}

/// A datagram of an identity; what follows its start is of no interest here.
fn datagram(identity: u32, number: u8) -> Vec<u8> {
    let mut datagram = b"SX\x01\x01".to_vec();
    datagram.extend(&identity.to_le_bytes()[..3]);
    datagram.resize(HEADER_LEN, 0);
    datagram.extend([number; 20]);
    datagram
}

fn sealer(key: u8, identity: u32, salt: u8) -> Sealer {
    Sealer::new(&master(key).of(identity), [salt; SALT_LEN])
}

fn sealed(sealer: &mut Sealer, now: u32, datagram: &[u8]) -> Vec<u8> {
    let mut out = b"before".to_vec();
    sealer.seal(now, datagram, &mut out);
    assert_eq!(&out[..6], b"before");
    out.split_off(6)
}

/// What the other implementation answers to these lines.
fn twin(lines: &str) -> Vec<String> {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/sealed.py");
    let mut python = Command::new("python3")
        .arg(script)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let input = python.stdin.take().unwrap();
    let mut input = std::io::BufWriter::new(input);
    input.write_all(lines.as_bytes()).unwrap();
    drop(input);
    let output = python.wait_with_output().unwrap();
    let why = "tests/sealed.py needs python3-cryptography";
    assert!(output.status.success(), "{why}");
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines().map(str::to_owned).collect()
}

#[test]
fn another_implementation_reads_and_writes_the_same() {
    let own = master(7);
    let mut sealer = sealer(7, 0x12_3456, 9);
    let mut script = format!("master {}\n", own.line());
    let plain: Vec<Vec<u8>> = (0..5).map(|number| datagram(0x12_3456, number)).collect();
    for (number, plain) in plain.iter().enumerate() {
        let mut bytes = sealed(&mut sealer, NOW, plain);
        writeln!(script, "open {}", hexadecimal(&bytes)).unwrap();
        let salt = "09".repeat(SALT_LEN);
        let text = hexadecimal(plain);
        writeln!(script, "seal {} {salt} {number} {NOW} {text}", 0x12_3456).unwrap();
        let last = bytes.len() - 1;
        bytes[last] ^= 1;
        writeln!(script, "open {}", hexadecimal(&bytes)).unwrap();
    }
    let answers = twin(&script);
    assert_eq!(answers.len(), 15);
    let mut opener = Opener::new(keys(&[own.line()]));
    for (plain, answers) in plain.iter().zip(answers.chunks(3)) {
        assert_eq!(answers[0], hexadecimal(plain));
        assert_eq!(opener.open(&bytes(&answers[1]), NOW), Ok(&plain[..]));
        assert_eq!(answers[2], "refused");
    }
}

#[test]
fn what_is_sealed_opens_once_and_with_its_key_only() {
    let mut one = sealer(1, 7, 3);
    let plain = datagram(7, 0);
    let (first, second) = (sealed(&mut one, NOW, &plain), sealed(&mut one, NOW, &plain));
    assert_eq!(first.len(), plain.len() + SEALED_MORE);
    assert!(is_sealed(&first) && !is_sealed(&plain));
    assert!(
        !first[40..].windows(4).any(|part| part == [0; 4]),
        "nothing in clear"
    );
    assert_ne!(first[40..], second[40..], "no nonce is used twice");
    let mut opener = Opener::new(keys(&[master(2).line(), master(1).line()]));
    // Not in the order in which they were sent.
    assert_eq!(opener.open(&second, NOW), Ok(&plain[..]));
    assert_eq!(opener.open(&first, NOW), Ok(&plain[..]));
    for again in [&first, &second] {
        assert_eq!(opener.open(again, NOW), Err(SealError::Repeated));
    }
    let mut other = Opener::new(keys(&[master(2).line()]));
    assert_eq!(other.open(&first, NOW), Err(SealError::NoKey));
    assert_eq!(opener.open(&plain, NOW), Err(SealError::Clear));
    assert_eq!(opener.open(&[], NOW), Err(SealError::Clear));
}

#[test]
fn every_bit_counts_and_strangers_are_not_remembered() {
    let good = sealed(&mut sealer(1, 7, 3), NOW, &datagram(7, 0));
    let mut opener = Opener::new(keys(&[master(1).line()]));
    for bit in 0..good.len() * 8 {
        let mut bad = good.clone();
        bad[bit / 8] ^= 1 << (bit % 8);
        assert!(opener.open(&bad, NOW).is_err(), "bit {bit}");
    }
    for len in 0..good.len() {
        assert!(opener.open(&good[..len], NOW).is_err(), "{len} bytes");
    }
    let longer = [&good[..], &[0]].concat();
    assert_eq!(opener.open(&longer, NOW), Err(SealError::Forged));
    assert!(opener.open(&good, NOW).is_ok());
}

/// A sender with the key of one identity cannot stand for another: neither outside nor within.
#[test]
fn a_key_is_good_for_its_identity_only() {
    let own = master(1).of(7);
    let line = own.line();
    let host = keys(std::slice::from_ref(&line));
    assert_eq!(host.to_seal(7), Some(own));
    assert_eq!(host.to_seal(8), None);
    assert_eq!(host.master(), None);
    // It changes the line to another identity's.
    let stolen = keys(&[line.replacen("7 ", "8 ", 1)]).to_seal(8).unwrap();
    let forged = sealed(
        &mut Sealer::new(&stolen, [1; SALT_LEN]),
        NOW,
        &datagram(8, 0),
    );
    let mut opener = Opener::new(keys(&[master(1).line()]));
    assert_eq!(opener.open(&forged, NOW), Err(SealError::Forged));
    // The outer identity is its own, that of the datagram is not.
    let text = format!(
        "master {}\nseal 7 {} 0 {NOW} {}\n",
        master(1).line(),
        "05".repeat(SALT_LEN),
        hexadecimal(&datagram(8, 0))
    );
    let inner = bytes(&twin(&text)[0]);
    assert_eq!(opener.open(&inner, NOW), Err(SealError::Forged));
    let good = sealed(&mut sealer(1, 7, 5), NOW, &datagram(7, 0));
    assert_eq!(identity_in(opener.open(&good, NOW).unwrap()), 7);
    let mut opener = Opener::new(host);
    let good = sealed(&mut sealer(1, 7, 6), NOW, &datagram(7, 0));
    assert!(
        opener.open(&good, NOW).is_ok(),
        "the key of an identity opens"
    );
}

#[test]
fn what_is_not_of_now_is_refused() {
    let mut one = sealer(1, 7, 3);
    let mut opener = Opener::new(keys(&[master(1).line()]));
    for (at, is_good) in [
        (NOW - 61, false),
        (NOW - 60, true),
        (NOW + 60, true),
        (NOW + 61, false),
        (0, false),
        (u32::MAX, false),
    ] {
        let datagram = sealed(&mut one, at, &datagram(7, 0));
        assert_eq!(opener.open(&datagram, NOW).is_ok(), is_good, "{at}");
    }
}

/// A sender that starts again has another salt. Runs that are forgotten stay refused.
#[test]
fn runs_that_are_forgotten_cannot_be_repeated() {
    let mut opener = Opener::new(keys(&[master(1).line()]));
    let mut kept = Vec::new();
    for salt in 0..50 {
        let time = NOW + u32::from(salt) / 2;
        let datagram = sealed(&mut sealer(1, 7, salt), time, &datagram(7, salt));
        // Within the same second as one that was forgotten, a new run has to wait.
        if opener.open(&datagram, time).is_ok() {
            kept.push(datagram);
        }
    }
    assert!(kept.len() >= 25, "{}", kept.len());
    for datagram in kept {
        assert_eq!(opener.open(&datagram, NOW + 25), Err(SealError::Repeated));
    }
    let fresh = sealed(&mut sealer(1, 7, 99), NOW + 26, &datagram(7, 0));
    assert!(opener.open(&fresh, NOW + 26).is_ok());
}

#[test]
fn memory_is_bounded_and_silent_identities_make_way() {
    let mut opener = Opener::new(keys(&[master(1).line()]));
    let mut send = |identity: u32, now: u32| {
        let datagram = sealed(&mut sealer(1, identity, 1), now, &datagram(identity, 0));
        opener.open(&datagram, now).map(|_| ())
    };
    for identity in 1..=4096 {
        assert_eq!(send(identity, NOW), Ok(()));
    }
    assert_eq!(send(5000, NOW), Err(SealError::TooMany));
    assert_eq!(send(5000, NOW + 60), Err(SealError::TooMany));
    assert_eq!(send(5000, NOW + 61), Ok(()));
}

#[test]
fn keys_are_replaced_while_datagrams_come() {
    let mut one = sealer(1, 7, 3);
    let mut opener = Opener::new(keys(&[master(1).line(), master(2).line()]));
    let before = sealed(&mut one, NOW, &datagram(7, 0));
    one.use_key(&master(2).of(7));
    let after = sealed(&mut one, NOW, &datagram(7, 1));
    assert!(opener.open(&after, NOW).is_ok());
    assert!(opener.open(&before, NOW).is_ok(), "it was on its way");
    // Back again: the numbers have gone on.
    one.use_key(&master(1).of(7));
    let back = sealed(&mut one, NOW, &datagram(7, 2));
    assert_ne!(before[..40], back[..40], "no nonce is used twice");
    assert!(opener.open(&back, NOW).is_ok());
    opener.use_keys(keys(&[master(2).line()]));
    for gone in [&before, &back] {
        assert_eq!(opener.open(gone, NOW), Err(SealError::NoKey));
    }
    assert_eq!(opener.open(&after, NOW), Err(SealError::Repeated));
    // The key that was taken away comes again: what was sent with it does not.
    opener.use_keys(keys(&[master(1).line(), master(2).line()]));
    assert_eq!(opener.open(&before, NOW), Err(SealError::Repeated));
}

#[test]
fn a_file_has_a_key_on_each_line() {
    let digits = "aF".repeat(32);
    let good = format!("# of the office\n\n{digits}\n  7 01234567 {digits}\n");
    let keys = SealKeys::parse(&good).unwrap();
    assert_eq!(keys.master().unwrap().line(), digits.to_lowercase());
    assert_eq!(keys.to_seal(7).unwrap().identity(), 7);
    assert!(
        !format!("{keys:?}").to_lowercase().contains("afaf"),
        "no secret in messages"
    );
    for (text, line) in [
        ("a".to_owned(), 1),
        (format!("\n{digits}0"), 2),
        (format!("{digits} {digits}"), 1),
        ("+1".repeat(32), 1),
        ("\u{e4}".repeat(32), 1),
        (format!("0 01234567 {digits}"), 1),
        (format!("16777216 01234567 {digits}"), 1),
        (format!("7 123456789 {digits}"), 1),
        (format!("7 01234567 {digits} more"), 1),
    ] {
        assert_eq!(
            SealKeys::parse(&text),
            Err(ParseKeysError::Line(line)),
            "{text}"
        );
    }
    assert_eq!(SealKeys::parse("\n# none\n"), Err(ParseKeysError::None));
    let many = format!("{digits}\n").repeat(2049);
    assert_eq!(SealKeys::parse(&many), Err(ParseKeysError::TooMany));
}

proptest! {
    /// The window of numbers, against a set of all that were taken.
    #[test]
    fn each_number_is_taken_once(order in prop::collection::vec(0_u64..3000, 1..400)) {
        let mut one = sealer(1, 7, 3);
        let all: Vec<Vec<u8>> = (0..3000).map(|_| sealed(&mut one, NOW, &datagram(7, 0))).collect();
        let mut opener = Opener::new(keys(&[master(1).line()]));
        let mut taken = BTreeSet::new();
        for number in order {
            let next = taken.last().map_or(0, |last| last + 1);
            let expected = !taken.contains(&number) && next <= number + 1024;
            let datagram = &all[usize::try_from(number).unwrap()];
            prop_assert_eq!(opener.open(datagram, NOW).is_ok(), expected, "{}", number);
            if expected {
                taken.insert(number);
            }
        }
    }
}
