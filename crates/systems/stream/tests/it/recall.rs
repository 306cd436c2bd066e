//! How much of what arrived a reader finds, as in Figure 4 of the paper: short form. The long one is
//! `make bench TOPICS=stream`.

use strata_stream::{Form, StreamKey};

use crate::lossy::{
    Draw, Loss, Outcome, PAGE_BYTES, deliver, header, hostile, payload, recalls, write,
};

const MIXED: (usize, usize) = (1024, 1536);

fn total(outcomes: &[Outcome]) -> Outcome {
    let mut sum = Outcome::default();
    for &outcome in outcomes {
        sum.add(outcome);
    }
    sum
}

fn losses(rate: f64) -> [Loss; 2] {
    [Loss::Independent(rate), Loss::Bursts(rate, 4.0)]
}

#[test]
fn every_sealed_record_that_arrived_is_found_and_gaps_are_exact() {
    for sizes in [(64, 64), (1024, 1024), MIXED] {
        for rate in [0.0001, 0.001, 0.01, 0.1] {
            for loss in losses(rate) {
                let all = total(&recalls(Form::Sealed, sizes, loss, 1, 5));
                assert_eq!(all.retrieved, all.arrived, "{sizes:?} {loss:?}");
                assert_eq!((all.invented, all.wrong_gaps), (0, 0), "{sizes:?} {loss:?}");
                assert!(all.lost > 0 || rate < 0.01, "{sizes:?} {loss:?}");
            }
        }
    }
}

#[test]
fn linked_records_are_found_as_often_as_the_bars_say() {
    for (rate, least) in [(0.01, 0.999), (0.1, 0.985)] {
        for loss in losses(rate) {
            let all = total(&recalls(Form::PAPER, MIXED, loss, 6, 5));
            assert_eq!((all.invented, all.wrong_gaps), (0, 0), "{loss:?}");
            assert!(all.recall() >= least, "{loss:?}: {}", all.recall());
        }
    }
}

#[test]
fn without_mitigation_recall_is_what_theory_says() {
    let none = Form::Linked {
        redundancy: 0,
        block_bytes: None,
    };
    for (sizes, rate, pages) in [((1024, 1024), 0.001, 60), (MIXED, 0.01, 60)] {
        let outcomes = recalls(none, sizes, Loss::Independent(rate), pages, 11);
        let all = total(&outcomes);
        #[allow(clippy::cast_precision_loss, reason = "few")]
        let (count, records) = (
            outcomes.len() as f64,
            (all.arrived + all.lost) as f64 / outcomes.len() as f64,
        );
        let mean = outcomes.iter().map(Outcome::recall).sum::<f64>() / count;
        let square = |outcome: &Outcome| (outcome.recall() - mean).powi(2);
        let variance = outcomes.iter().map(square).sum::<f64>() / (count - 1.0);
        let interval = 1.96 * (variance / count).sqrt();
        let lost = records * rate;
        let theory = (1.0 - (-lost).exp()) / lost;
        assert!(
            (mean - theory).abs() <= interval,
            "{mean} +- {interval}, in theory {theory}"
        );
        assert_eq!((all.invented, all.wrong_gaps), (0, 0));
    }
}

/// A million forged records in each form; `make forged` tries a thousand times as many.
#[test]
fn nothing_is_invented_from_payloads_that_hold_heads() {
    for form in [Form::Sealed, Form::PAPER] {
        let mut draw = Draw(3);
        let (key, other_key) = (StreamKey::new([1; 16]), StreamKey::new([2; 16]));
        let of_header = header(form, 0, &mut draw);
        let other = write(of_header, &other_key, PAGE_BYTES, |_, _| {
            payload(&mut Draw(9), (40, 80))
        });
        let of_header = header(form, 1, &mut draw);
        let mut before = write(of_header, &key, PAGE_BYTES, |_, _| {
            payload(&mut Draw(8), (40, 80))
        });
        let (mut index, mut forged) = (2, 0);
        while forged < 1_000_000 {
            let of_header = header(form, index, &mut draw);
            index += 1;
            let others = [&before, &other];
            let written = hostile(of_header, &key, PAGE_BYTES, &others, &mut draw, &mut forged);
            for loss in losses(0.2) {
                let outcome = deliver(&written, &before.bytes, &key, loss, &mut draw);
                assert_eq!(
                    (outcome.invented, outcome.wrong_gaps),
                    (0, 0),
                    "{form:?} {loss:?}"
                );
                if form == Form::Sealed {
                    assert_eq!(outcome.retrieved, outcome.arrived);
                }
            }
            before = written;
        }
    }
}

/// The head of a record that arrived in pieces may be lost while its payload is there, and the
/// reader searches through it.
#[test]
fn a_payload_without_its_head_is_searched_and_nothing_is_invented() {
    for form in [Form::Sealed, Form::PAPER] {
        let mut draw = Draw(4);
        let key = StreamKey::new([1; 16]);
        let of_header = header(form, 1, &mut draw);
        let first = write(of_header, &key, PAGE_BYTES, |_, _| {
            payload(&mut Draw(8), (40, 80))
        });
        let of_header = header(form, 2, &mut draw);
        let mut written = hostile(of_header, &key, PAGE_BYTES, &[&first], &mut draw, &mut 0);
        let mut kept = Vec::new();
        for (at, end, payload) in std::mem::take(&mut written.records) {
            if draw.below(4) == 0 {
                // Its head never arrived.
                written.bytes[at..at + 16].copy_from_slice(&first.bytes[at..at + 16]);
            } else {
                kept.push((at, end, payload));
            }
        }
        let page_key = key.page(written.header.index, written.header.lap);
        let page = strata_stream::Page::new(written.header, page_key, &written.bytes);
        let mut found = 0;
        for item in page.walk() {
            if let strata_stream::Item::Record(record) = item {
                let place = kept.binary_search_by_key(&record.at, |kept| kept.0);
                assert_eq!(kept[place.unwrap()].2, record.payload, "{form:?}");
                found += 1;
            }
        }
        if form == Form::Sealed {
            assert_eq!(found, kept.len());
        }
    }
}
