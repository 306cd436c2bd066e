//! Finds which byte of a manifest was changed, from its checksum: a CRC tells not only that a
//! single byte is wrong but which, since each position and change gives a different result.

/// The polynomial of CRC-32C, reflected (RFC 3720 §12.1).
const POLYNOMIAL: u32 = 0x82f6_3b78;
/// Hexadecimal digits of a checksum.
const DIGITS: usize = 8;

/// What is wrong with a manifest of this format, with the place if a single byte was changed.
pub(crate) fn explain(format: &str, manifest: &[u8], problem: String) -> String {
    let before = format!("{{\n  \"format\": \"{format}\",\n  \"version\": 1,\n  \"crc\": \"");
    match changed_byte(manifest, before.len()) {
        Some(at) => format!("the byte at offset {at} was changed: {problem}"),
        None => problem,
    }
}

/// The one byte that was changed in a text whose checksum is at `crc_at` and was computed with
/// zeros there. `None` if a single byte does not explain the difference.
fn changed_byte(text: &[u8], crc_at: usize) -> Option<usize> {
    let digits = crc_at..crc_at.checked_add(DIGITS)?;
    let stated = text.get(digits.clone())?;
    let mut plain = text.to_vec();
    plain[digits.clone()].fill(b'0');
    let computed = crc32c::crc32c(&plain);
    let expected = format!("{computed:08x}");
    let mut wrong = (0..DIGITS).filter(|&at| stated[at] != expected.as_bytes()[at]);
    match (wrong.next(), wrong.next()) {
        (None, _) => return None,
        (Some(at), None) => return crc_at.checked_add(at),
        _ => {}
    }
    let stated = u32::from_str_radix(std::str::from_utf8(stated).ok()?, 16).ok()?;
    let table = table();
    // The highest bytes of the table's entries are all different.
    let mut by_high = [0; 256];
    for (index, entry) in (0_u32..).zip(table) {
        by_high[(entry >> 24) as usize] = index;
    }
    // A changed byte XORs some entry into the CRC, and each byte after it is a step of the CRC: the
    // steps are undone until that entry is found.
    let mut difference = stated ^ computed;
    for at in (0..text.len()).rev() {
        let index = by_high[(difference >> 24) as usize];
        let entry = table[index as usize];
        if difference == entry && !digits.contains(&at) {
            return Some(at);
        }
        difference = (difference ^ entry) << 8 | index;
    }
    None
}

/// The CRC of each single byte, starting from zero.
fn table() -> [u32; 256] {
    let mut table = [0; 256];
    for (byte, entry) in (0_u32..).zip(&mut table) {
        *entry = (0..8).fold(byte, |crc, _| {
            (crc >> 1) ^ if crc & 1 == 1 { POLYNOMIAL } else { 0 }
        });
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_changed_byte_is_found_wherever_it_is(
            mut text in prop::collection::vec(any::<u8>(), 20..3_000),
            crc_at in 0_usize..12, at in any::<prop::sample::Index>(), change in 1_u8..,
        ) {
            text[crc_at..crc_at + DIGITS].fill(b'0');
            let crc = format!("{:08x}", crc32c::crc32c(&text));
            text[crc_at..crc_at + DIGITS].copy_from_slice(crc.as_bytes());
            prop_assert_eq!(changed_byte(&text, crc_at), None);
            let at = at.index(text.len());
            text[at] ^= change;
            prop_assert_eq!(changed_byte(&text, crc_at), Some(at));
        }
    }

    #[test]
    fn two_changed_bytes_are_no_single_one() {
        let mut text = b"00000000 a manifest".to_vec();
        let crc = format!("{:08x}", crc32c::crc32c(&text));
        text[..DIGITS].copy_from_slice(crc.as_bytes());
        text[10] ^= 1;
        text[15] ^= 1;
        assert_eq!(changed_byte(&text, 0), None);
    }
}
