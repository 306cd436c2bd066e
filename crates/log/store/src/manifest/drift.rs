//! `drift/N.json`: how well the traffic of recording N matches its model, as written by the layer
//! above, with a checksum as its first field.

/// How the file begins; eight hexadecimal digits follow.
const START: &[u8] = b"{\n  \"crc\": \"";
const DIGITS: std::ops::Range<usize> = START.len()..START.len() + 8;
/// How files of old versions begin, which had no checksum.
const WITHOUT: &[u8] = b"{\n  \"samples\":";

/// The name of a recording's file.
#[must_use]
pub fn drift_name(recording: u32) -> String {
    format!("drift/{recording}.json")
}

/// Puts the checksum before the other fields of a JSON object that spans several lines.
#[must_use]
pub fn seal_drift(json: &[u8]) -> Vec<u8> {
    let fields = json.strip_prefix(b"{").unwrap_or(json);
    let mut sealed = [START, b"00000000\",", fields].concat();
    let crc = format!("{:08x}", crc32c::crc32c(&sealed));
    sealed[DIGITS].copy_from_slice(crc.as_bytes());
    sealed
}

/// Checks a file's content, if it has a checksum.
///
/// # Errors
///
/// What is wrong with it, in plain English.
pub fn check_drift(content: &[u8]) -> Result<(), &'static str> {
    if content.starts_with(WITHOUT) {
        return Ok(());
    }
    let digits = content.starts_with(START).then(|| content.get(DIGITS));
    let digits = digits
        .flatten()
        .ok_or("it does not begin as Strata writes it")?;
    let mut zeros = content.to_vec();
    zeros[DIGITS].copy_from_slice(b"00000000");
    // As text, so that the same number written differently is noticed too.
    if digits != format!("{:08x}", crc32c::crc32c(&zeros)).as_bytes() {
        return Err("its checksum does not match");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_flipped_bit_is_noticed_and_old_files_are_read() {
        let json = b"{\n  \"samples\": 12,\n  \"scores\": 0.5\n}";
        check_drift(json).unwrap();
        let sealed = seal_drift(json);
        check_drift(&sealed).unwrap();
        let value: serde_json::Value = serde_json::from_slice(&sealed).unwrap();
        assert_eq!(value["samples"], 12);
        for bit in 0..sealed.len() * 8 {
            let mut flipped = sealed.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert!(check_drift(&flipped).is_err(), "bit {bit}");
        }
        assert!(check_drift(b"").is_err());
    }
}
