//! The stores against the paper's bounds, by Monte Carlo. `cargo run --release -p strata-dta
//! --example dta_theory` does the same at length and prints the table.

use crate::monte_carlo::{LOADS, Observed, key_write, postcarding, wrong_with_32_bits};

/// Observed rates are below the bound, or above it by what sampling explains: with 95 % for all the
/// rates of a test together.
fn holds(what: &str, observed: &Observed) {
    for (name, seen, max) in [
        ("no answer", observed.none, observed.none_max),
        ("wrong answer", observed.wrong, observed.wrong_max),
    ] {
        let limit = observed.limit_of_hundred(max);
        assert!(
            seen <= limit,
            "{what}: {name} {seen:.6}, at most {max:.6} (to {limit:.6}) of {} queries",
            observed.queries
        );
    }
}

#[test]
fn key_write_is_within_equations_1_to_4() {
    for redundancy in 1..=4 {
        for bits in [8, 16] {
            for (observed, load) in key_write(1, redundancy, bits, 1 << 14, 20)
                .iter()
                .zip(LOADS)
            {
                holds(&format!("N={redundancy} b={bits} load {load}"), observed);
                // With one copy the bound is the probability itself.
                if redundancy == 1 {
                    let least = observed.none_max - 1.68 * observed.interval(observed.none_max);
                    assert!(observed.none >= least, "{observed:?}");
                }
            }
        }
    }
}

#[test]
fn postcarding_is_within_equations_5_to_8() {
    for redundancy in 1..=4 {
        for bits in [8, 16] {
            let rows = postcarding(2, redundancy, bits, 1 << 13, 20);
            for (observed, load) in rows.iter().zip(LOADS) {
                holds(&format!("N={redundancy} b={bits} load {load}"), observed);
            }
        }
    }
}

/// The long form, of 10^8, is in the example.
#[test]
fn with_32_bits_nothing_wrong_is_answered_in_two_million_queries() {
    let wrong = wrong_with_32_bits(1 << 16, 2_000_000);
    assert_eq!(wrong, 0);
}
