//! The stores against equations (1) to (8) of the paper, at length:
//! `cargo run --release -p strata-dta --example dta_theory [RUNS]`.
#![allow(clippy::print_stdout, clippy::unwrap_used, reason = "prints a table")]

#[path = "../tests/it/monte_carlo/mod.rs"]
mod monte_carlo;

use monte_carlo::{HOPS, LOADS, Observed, SWITCHES, key_write, postcarding, wrong_with_32_bits};
use strata_dta::theory::Bounds;

fn print(name: &str, redundancy: u8, bits: u32, rows: &[Observed], beyond: &mut u32) {
    for (row, load) in rows.iter().zip(LOADS) {
        let mut verdict = "";
        for (seen, max) in [(row.none, row.none_max), (row.wrong, row.wrong_max)] {
            if seen > row.limit_of_one(max) {
                verdict = "above";
                *beyond += 1;
            }
        }
        println!(
            "{name:11} {redundancy} {bits:3} {load:5.2} {:9} {:9.6} {:9.6} {:9.6} {:11.3e} {:11.3e} {verdict}",
            row.queries,
            row.none,
            row.none_max,
            row.interval(row.none_max),
            row.wrong,
            row.wrong_max,
        );
    }
}

fn main() {
    let runs = std::env::args().nth(1).map_or(40, |n| n.parse().unwrap());
    println!("Unanimous answers; postcards: {HOPS} hops, {SWITCHES} values; interval: 95 %");
    println!(
        "store       N   b  load   queries no answer  at most   +- 95 %     wrong     at most"
    );
    let (mut beyond, mut all) = (0, 0);
    for redundancy in 1..=4 {
        for bits in [8, 16] {
            let rows = key_write(11, redundancy, bits, 1 << 16, runs);
            print("Key-Write", redundancy, bits, &rows, &mut beyond);
            let rows = postcarding(12, redundancy, bits, 1 << 15, runs);
            print("Postcarding", redundancy, bits, &rows, &mut beyond);
            all += 4 * LOADS.len();
        }
    }
    println!(
        "{beyond} of {all} rates are above their bound by more than the interval (2.5 % may be)"
    );
    let queries = 100_000_000;
    let wrong = wrong_with_32_bits(1 << 20, queries);
    println!("b = 32, N = 2, overwritten keys: {wrong} wrong answers in {queries} queries");
    // Figure 13: 20 B of data and 4 B of checksum; the formula depends on the load alone.
    println!("figure 13, N = 2, b = 32, slots of 24 B: answers, and the paper's");
    for (gib, keys, paper) in [
        (3.0, 1e7, "99.3 %"),
        (3.0, 1e8, "44.5 %"),
        (30.0, 1e7, "99.99 %"),
        (30.0, 1e8, "98.2 %"),
    ] {
        let load = keys / (gib * 1024.0 * 1024.0 * 1024.0 / 24.0);
        let answers = 1.0 - Bounds::key_write(load, 2, 32).no_answer_max();
        println!(
            "{gib:4} GiB {keys:9.0e} keys: {:7.3} %, paper {paper}",
            answers * 100.0
        );
    }
}
