//! Numbers on the command line, each refused outside its bounds.

use std::ops::RangeInclusive;

use anyhow::Result;

use crate::output::refuse;
use crate::text;

/// The longest duration accepted anywhere: 366 days.
pub const SECONDS_MAX: u64 = 366 * 86_400;
/// No file, log or ring is larger than 1 EiB.
pub const BYTES_MAX: u64 = 1 << 60;

/// Seconds with a fraction.
pub fn seconds(text: &str) -> Result<f64, String> {
    #[allow(clippy::cast_precision_loss)]
    within(text, 1e-3..=SECONDS_MAX as f64)
}

/// A factor or a rate in millions.
pub fn factor(text: &str) -> Result<f64, String> {
    within(text, 1e-6..=1e9)
}

/// A number within a range; NaN is in no range.
pub fn within(text: &str, range: RangeInclusive<f64>) -> Result<f64, String> {
    let number: Option<f64> = text.trim().parse().ok();
    number
        .filter(|number| range.contains(number))
        .ok_or_else(|| {
            let (low, high) = range.into_inner();
            format!("write a number from {low} to {high}")
        })
}

/// A whole number within a range.
pub fn count<const LOW: usize, const HIGH: usize>(text: &str) -> Result<usize, String> {
    let number: Option<usize> = text.trim().parse().ok();
    number
        .filter(|number| (LOW..=HIGH).contains(number))
        .ok_or_else(|| format!("write a whole number from {LOW} to {HIGH}"))
}

/// A size as text, named by its option.
///
/// # Errors
///
/// If it is none, or 64 bits do not hold it: the program exits with 2.
pub fn bytes(text: &str, option: &str) -> Result<u64> {
    text::bytes(text).map_err(|error| refuse(format!("{option}: {error}")))
}

/// A size, named by its option, within a range.
pub fn size(bytes: u64, option: &str, range: &RangeInclusive<u64>) -> Result<u64> {
    if range.contains(&bytes) {
        return Ok(bytes);
    }
    let (low, high) = (binary(*range.start()), binary(*range.end()));
    Err(refuse(format!("{option} must be from {low} to {high}")))
}

/// Bytes in the largest binary unit that divides them.
fn binary(bytes: u64) -> String {
    let units = ["", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let step = (bytes.trailing_zeros() / 10).min(6) as usize;
    match bytes {
        0 => String::from("0"),
        bytes => format!("{}{}", bytes >> (10 * step), units[step]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_out_of_bounds_are_refused() {
        for text in [
            "NaN",
            "inf",
            "-inf",
            "-1",
            "0",
            "1e19",
            "1e400",
            "",
            "x",
            "18446744073709551615",
        ] {
            assert!(seconds(text).is_err(), "{text}");
            assert!(factor(text).is_err(), "{text}");
        }
        assert_eq!(seconds("0.5"), Ok(0.5));
        assert_eq!(
            seconds("1e19").unwrap_err(),
            "write a number from 0.001 to 31622400"
        );
        let range = 1 << 20..=BYTES_MAX;
        let error = size(7, "--look-back", &range).unwrap_err().to_string();
        assert_eq!(error, "--look-back must be from 1MiB to 1EiB");
        assert!(size(u64::MAX, "-C", &range).is_err());
        assert_eq!(size(1 << 20, "-C", &range).unwrap(), 1 << 20);
        for text in ["18446744073709551616", "99999999999999999999T", "x"] {
            let error = bytes(text, "-C").unwrap_err();
            assert!(error.is::<crate::output::Refused>(), "{error}");
        }
    }
}
