//! Amounts as people read and write them.

use std::num::IntErrorKind;

/// A number with its thousands separated.
#[must_use]
pub fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut out = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && digits.len().abs_diff(index).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// A number of things, as in `1 block file` and `2 block files`.
#[must_use]
pub fn count_of(number: u64, thing: &str) -> String {
    let plural = if number == 1 { "" } else { "s" };
    format!("{} {thing}{plural}", grouped(number))
}

/// Bytes in a unit that leaves at most three digits before the point.
#[must_use]
pub fn human_bytes(bytes: u64) -> String {
    #[allow(clippy::cast_precision_loss)]
    let mut value = bytes as f64;
    let mut unit = "B";
    for next in ["kB", "MB", "GB", "TB"] {
        if value < 1_000.0 {
            break;
        }
        value /= 1_000.0;
        unit = next;
    }
    if unit == "B" {
        format!("{bytes} B")
    } else {
        format!("{value:.1} {unit}")
    }
}

/// A number of bytes as people write it: digits, optionally with k, M, G, T (1000) or Ki, Mi, Gi,
/// Ti (1024), and B.
///
/// # Errors
///
/// What is wrong with it, in plain English.
pub fn parse_bytes(text: &str) -> Result<u64, String> {
    let digits = text.trim_end_matches(|c: char| !c.is_ascii_digit());
    let unit = text[digits.len()..].trim().trim_end_matches('B');
    let factor: u64 = match unit {
        "" => 1,
        "k" | "K" => 1_000,
        "M" => 1_000_000,
        "G" => 1_000_000_000,
        "T" => 1_000_000_000_000,
        "Ki" => 1 << 10,
        "Mi" => 1 << 20,
        "Gi" => 1 << 30,
        "Ti" => 1 << 40,
        _ => {
            return Err(format!(
                "'{text}' is not a size: write digits, optionally followed by k, M, G, T, Ki, Mi, \
                 Gi or Ti"
            ));
        }
    };
    let number = match digits.parse::<u64>() {
        // `parse` accepts a sign.
        Ok(number) if !digits.starts_with('+') => number,
        Err(error) if *error.kind() == IntErrorKind::PosOverflow => {
            return Err(out_of_range(text));
        }
        _ => {
            return Err(format!(
                "'{text}' is not a size: write one like 500k, 64MiB or 2G"
            ));
        }
    };
    let bytes = number.checked_mul(factor);
    bytes.ok_or_else(|| out_of_range(text))
}

/// The error for a number that 64 bits do not hold: no such number is meant, so it is not taken for the largest one.
fn out_of_range(text: &str) -> String {
    format!(
        "'{text}' is out of range: the largest number is {}",
        u64::MAX
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_are_short() {
        assert_eq!(human_bytes(999), "999 B");
        assert_eq!(human_bytes(1_234_567), "1.2 MB");
        assert_eq!(grouped(1_234_567), "1,234,567");
        assert_eq!(grouped(123), "123");
    }

    #[test]
    fn sizes_have_units_of_1000_or_1024() {
        assert_eq!(parse_bytes("4096"), Ok(4096));
        assert_eq!(parse_bytes("2GB"), Ok(2_000_000_000));
        assert_eq!(parse_bytes("8 MiB"), Ok(8 << 20));
        for text in ["", "ten", "-5", "+5", "5 parsecs", "5kk", "1.5G"] {
            let refused = parse_bytes(text).unwrap_err();
            assert!(refused.contains("is not a size"), "{refused}");
        }
        assert_eq!(parse_bytes("18446744073709551615"), Ok(u64::MAX));
        for text in [
            "99999999999T",
            "18446744073709551616",
            "99999999999999999999",
            "18014398509481984Ki",
        ] {
            let refused = parse_bytes(text).unwrap_err();
            assert!(refused.contains("out of range"), "{refused}");
        }
    }
}
