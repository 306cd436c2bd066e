//! Figure 4 of the paper, redrawn: how much of what arrived is retrieved, by loss, size of records and
//! way of mitigation; and hostile payloads. `stream_recall PAGES HOSTILE_PAGES`; JSON lines. `make forged`
//! runs it with forged records alone.
#![allow(clippy::print_stdout, clippy::unwrap_used)]

#[path = "../tests/it/lossy.rs"]
mod lossy;

use std::process::ExitCode;

use strata_stream::StreamKey;

use lossy::{Draw, Loss, Outcome, PAGE_BYTES, deliver, header, hostile, recalls, ways, write};

#[allow(clippy::cast_precision_loss, reason = "few")]
fn point(name: &str, form: strata_stream::Form, sizes: (usize, usize), loss: Loss, pages: u64) {
    let outcomes = recalls(form, sizes, loss, pages, 5);
    let mut all = Outcome::default();
    for &outcome in &outcomes {
        all.add(outcome);
    }
    let count = outcomes.len() as f64;
    let mean = outcomes.iter().map(Outcome::recall).sum::<f64>() / count;
    let square = |outcome: &Outcome| (outcome.recall() - mean).powi(2);
    let variance = outcomes.iter().map(square).sum::<f64>() / (count - 1.0);
    let lost = (all.arrived + all.lost) as f64 / count * loss.rate();
    let theory = (1.0 - (-lost).exp()) / lost;
    let burst = matches!(loss, Loss::Bursts(..));
    println!(
        "{{\"way\":\"{name}\",\"min\":{},\"max\":{},\"loss\":{},\"burst\":{burst},\"recall\":{mean:.6},\
         \"interval\":{:.6},\"theory\":{theory:.6},\"records\":{},\"invented\":{},\"wrong_gaps\":{}}}",
        sizes.0,
        sizes.1,
        loss.rate(),
        1.96 * (variance / count).sqrt(),
        all.arrived + all.lost,
        all.invented,
        all.wrong_gaps,
    );
}

/// Writes pages whose payloads hold forged records, up to a number of pages or of such records; returns
/// whether one was read.
fn adversarial(name: &str, form: strata_stream::Form, pages: u64, most: u64) -> bool {
    let mut draw = Draw(3);
    let (key, other_key) = (StreamKey::new([1; 16]), StreamKey::new([2; 16]));
    let fill = |draw: &mut Draw| lossy::payload(draw, (40, 80));
    let of_header = header(form, 0, &mut draw);
    let other = write(of_header, &other_key, PAGE_BYTES, |_, _| fill(&mut Draw(9)));
    let of_header = header(form, 1, &mut draw);
    let mut before = write(of_header, &key, PAGE_BYTES, |_, _| fill(&mut Draw(8)));
    let mut all = Outcome::default();
    let (mut places, mut forged) = (0, 0);
    for index in 2.. {
        if index >= 2 + pages || forged >= most {
            break;
        }
        let of_header = header(form, index, &mut draw);
        let written = hostile(
            of_header,
            &key,
            PAGE_BYTES,
            &[&before, &other],
            &mut draw,
            &mut forged,
        );
        all.add(deliver(
            &written,
            &before.bytes,
            &key,
            Loss::Independent(0.2),
            &mut draw,
        ));
        // A head may start at each multiple of 8.
        places += (PAGE_BYTES / 8) as u64;
        before = written;
    }
    println!(
        "{{\"way\":\"{name}\",\"hostile\":true,\"places\":{places},\"forged\":{forged},\"records\":{},\"invented\":{}}}",
        all.arrived + all.lost,
        all.invented,
    );
    all.invented > 0 || all.wrong_gaps > 0
}

/// `stream_recall forged N`: at least N forged records in each form, and nothing else; fails if one is
/// read.
fn forged(most: u64) -> ExitCode {
    let mut ways = ways().into_iter();
    let is_read = ways.any(|(name, form)| {
        matches!(name, "both" | "ours") && adversarial(name, form, u64::MAX - 2, most)
    });
    ExitCode::from(u8::from(is_read))
}

fn main() -> ExitCode {
    if std::env::args()
        .nth(1)
        .is_some_and(|first| first == "forged")
    {
        let most = std::env::args().nth(2).and_then(|text| text.parse().ok());
        return forged(most.expect("how many"));
    }
    let mut arguments = std::env::args()
        .skip(1)
        .map(|text| text.parse::<u64>().expect("a number"));
    let pages = arguments.next().unwrap_or(4).max(2);
    let hostile_pages = arguments.next().unwrap_or(2);
    for (name, form) in ways() {
        for sizes in [(64, 64), (1024, 1024), (1024, 1536)] {
            for rate in [0.0001, 0.001, 0.01, 0.1] {
                for loss in [Loss::Independent(rate), Loss::Bursts(rate, 4.0)] {
                    point(name, form, sizes, loss, pages);
                }
            }
        }
    }
    for (name, form) in ways() {
        if matches!(name, "both" | "ours") {
            adversarial(name, form, hostile_pages, u64::MAX);
        }
    }
    ExitCode::SUCCESS
}
