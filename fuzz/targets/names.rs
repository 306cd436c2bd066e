//! Any bytes as payloads of a flow in which names are looked for.
//!
//! Input: whether TCP, the port (two bytes), then payloads, each with its length (two bytes) before it.
#![no_main]

use libfuzzer_sys::fuzz_target;
use strata_fuzz::{Bounded, Chooser};
use strata_names::{Begun, Names, Payload};

#[global_allocator]
static MEMORY: Bounded = Bounded::new();

fuzz_target!(|bytes: &[u8]| {
    let mut choose = Chooser::new(bytes);
    let is_tcp = choose.u8() & 1 > 0;
    let ports = [choose.u16(), 5_000];
    let mut left = choose.rest();
    let (mut names, mut begun, mut sequence) = (Names::default(), Begun::default(), 0_u32);
    while let Some((len, rest)) = left.split_first_chunk() {
        let len = usize::from(u16::from_le_bytes(*len)).min(rest.len());
        let (bytes, rest) = rest.split_at(len);
        let payload = Payload {
            flow: 7,
            is_tcp,
            ports,
            direction: len & 1,
            sequence,
            bytes,
        };
        names.look(&mut begun, &payload);
        sequence = sequence.wrapping_add(u32::try_from(len).expect("a length of two bytes"));
        left = rest;
    }
    assert_eq!(names.ja3.is_some(), names.ja4.is_some());
    if let Some(list) = &names.certificate {
        assert!(list.len() < 9_000 && list.starts_with("[\"") && list.ends_with("\"]"));
        assert!(!list.contains(char::is_control));
    }
    if let Some(details) = names.details {
        let details = *details;
        let bounded = [
            (&details.dns_answers, 700),
            (&details.http_method, 32),
            (&details.http_uri, 1_024),
            (&details.http_user_agent, 512),
            (&details.ssh_version[0], 255),
            (&details.ssh_version[1], 255),
        ];
        for (text, max) in bounded {
            let printable = |byte: u8| byte.is_ascii_graphic() || byte == b' ';
            let fits = |text: &str| (1..=max).contains(&text.len()) && text.bytes().all(printable);
            assert!(text.as_deref().is_none_or(fits));
        }
        assert!(details.dns_response_code.is_none_or(|code| code < 16));
        assert!(
            details
                .http_status
                .is_none_or(|code| (100..1_000).contains(&code))
        );
        if let Some(list) = details.smb_shares.list() {
            assert!(list.chars().count() < 16 * 520 && !list.contains(char::is_control));
        }
        assert!(
            details
                .modbus_functions
                .iter()
                .all(|code| (1..128).contains(&code))
        );
    }
    let found = [names.dns, names.server, names.http, names.ja3, names.ja4];
    for name in found.into_iter().flatten() {
        assert!(name.len() <= 255 && name.is_ascii());
    }
});
