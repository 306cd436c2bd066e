//! A budget of detail as users write it.

use std::fmt;
use std::str::FromStr;

use strata_wire::{Printable, human_bytes, parse_bytes};

/// How much payload beyond headers is kept.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum DetailBudget {
    /// This share of it, from 0 to 1.
    Share(f64),
    /// This many bytes of it per second of packet time, by all workers together.
    Rate(f64),
}

/// Largest rate: a day at it is less than 2^63 bytes.
const RATE_MAX: f64 = 1e13;

/// Text that is not a budget.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "'{text}' is not a budget of detail: write a share of the payload as in 10%, a rate as in \
     50MB/s or 20GB/day, or none"
)]
pub struct BudgetError {
    text: String,
}

impl DetailBudget {
    /// That of a recording with the built-in model, unless another is named: a tenth of the payload.
    /// How much a model wants to keep of traffic that it does not fit says nothing.
    pub const OF_BUILT_IN_MODEL: Self = Self::Share(0.1);

    /// A budget, or `none`.
    ///
    /// # Errors
    ///
    /// If the text is neither.
    pub fn parse(text: &str) -> Result<Option<Self>, BudgetError> {
        match text.trim() {
            "none" => Ok(None),
            text => text.parse().map(Some),
        }
    }

    /// The text of a budget, or `none`; [`DetailBudget::parse`] reads it.
    #[must_use]
    pub fn text(budget: Option<Self>) -> String {
        budget.map_or_else(|| String::from("none"), |budget| budget.to_string())
    }

    /// That of each of several workers, if it is divided equally.
    #[must_use]
    pub fn of_one(self, workers: f64) -> Self {
        match self {
            Self::Share(share) => Self::Share(share),
            Self::Rate(rate) => Self::Rate(rate / workers),
        }
    }

    /// This part of it, from 0 to 1.
    #[must_use]
    pub fn part(self, part: f64) -> Self {
        match self {
            Self::Share(share) => Self::Share(share * part),
            Self::Rate(rate) => Self::Rate(rate * part),
        }
    }
}

impl FromStr for DetailBudget {
    type Err = BudgetError;

    #[allow(clippy::cast_precision_loss, reason = "bounded before")]
    fn from_str(text: &str) -> Result<Self, BudgetError> {
        let refused = || BudgetError {
            text: Printable(text).to_string(),
        };
        if let Some(percent) = text.strip_suffix('%') {
            let digits = percent.trim_end();
            let is_plain = digits.chars().all(|c| c.is_ascii_digit() || c == '.');
            let percent = digits.parse::<f64>().ok().filter(|_| is_plain);
            let share = percent.filter(|p| (0.0..=100.0).contains(p));
            return share.map(|p| Self::Share(p / 100.0)).ok_or_else(refused);
        }
        let (bytes, per) = text.split_once('/').ok_or_else(refused)?;
        let seconds = match per.trim() {
            "s" | "second" => 1.0,
            "min" | "minute" => 60.0,
            "h" | "hour" => 3_600.0,
            "d" | "day" => 86_400.0,
            _ => return Err(refused()),
        };
        let bytes = parse_bytes(bytes.trim()).map_err(|_| refused())?;
        let rate = bytes as f64 / seconds;
        (rate <= RATE_MAX)
            .then_some(Self::Rate(rate))
            .ok_or_else(refused)
    }
}

impl fmt::Display for DetailBudget {
    #[allow(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "bounded when it was read"
    )]
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            // As many digits as were given: 0.07 * 100 is not 7.
            Self::Share(share) => write!(f, "{}%", (share * 1e8).round() / 1e6),
            Self::Rate(rate) if *rate < 1_000.0 => {
                write!(f, "{}/day", human_bytes((rate * 86_400.0).round() as u64))
            }
            Self::Rate(rate) => write!(f, "{}/s", human_bytes(rate.round() as u64)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn budgets_are_read_as_people_write_them_and_refused_with_examples() {
        for (text, budget, shown) in [
            ("10%", Some(DetailBudget::Share(0.1)), "10%"),
            ("7 %", Some(DetailBudget::Share(0.07)), "7%"),
            ("0.5%", Some(DetailBudget::Share(0.005)), "0.5%"),
            ("0%", Some(DetailBudget::Share(0.0)), "0%"),
            ("50MB/s", Some(DetailBudget::Rate(5e7)), "50.0 MB/s"),
            ("864MB/day", Some(DetailBudget::Rate(1e4)), "10.0 kB/s"),
            ("6GB/min", Some(DetailBudget::Rate(1e8)), "100.0 MB/s"),
            ("86400/d", Some(DetailBudget::Rate(1.0)), "86.4 kB/day"),
            ("none", None, "none"),
        ] {
            let parsed = DetailBudget::parse(text).unwrap();
            match (parsed, budget) {
                (Some(DetailBudget::Share(a)), Some(DetailBudget::Share(b)))
                | (Some(DetailBudget::Rate(a)), Some(DetailBudget::Rate(b))) => {
                    assert!((a - b).abs() < 1e-9 * b.max(1.0), "{text}");
                }
                other => assert_eq!(other, (None, None), "{text}"),
            }
            assert_eq!(DetailBudget::text(parsed), shown);
        }
        for text in [
            "",
            "10",
            "%",
            "-1%",
            "101%",
            "NaN%",
            "inf%",
            "1e1%",
            "+5%",
            "50MB",
            "50MB/",
            "MB/s",
            "50MB/week",
            "/s",
            "99999999TB/s",
            "None",
            "ten%",
        ] {
            let error = DetailBudget::parse(text).unwrap_err().to_string();
            assert!(error.contains("20GB/day"), "{text}: {error}");
        }
    }
}
