//! Compares with libpcap: what is accepted, and what matches.
#![allow(clippy::print_stdout, reason = "the figures are the point")]

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};

use strata_filter::{Filter, Program};

use crate::support::bpf::Machine;
use crate::support::{LINKS, Oracle, Random, expressions, link_type, packets};

/// Accepted by libpcap, refused here, and why.
const REFUSED_HERE: &[(&str, &str)] = &[
    ("byte 0 = 5", "not in pcap-filter(7)"),
    ("host localhost", "names are not resolved"),
    ("net loopback", "names are not resolved"),
    (
        "decnet host 1.2",
        "DECnet addresses: not requested in twenty years",
    ),
];

/// Refused by libpcap, accepted here, and why.
const REFUSED_THERE: &[(&str, &str)] = &[
    (
        "tcp port ((80 or 81) or 82)",
        "libpcap's grammar takes a list only as the right operand",
    ),
    (
        "len << (32 - 1) = 1",
        "libpcap takes the first number for the whole operand",
    ),
    (
        "len/(0+5) = 1",
        "libpcap takes the first number for the whole operand",
    ),
];

/// Permanent differences in what matches, and why.
fn known_difference(expression: &str, dlt: i32) -> Option<&'static str> {
    let wlan = [105, 119, 127, 163, 192].contains(&dlt);
    let arithmetic = |text: &str| {
        text.contains(['<', '>', '=', '[']) || text.contains("less") || text.contains("greater")
    };
    if wlan && (expression.contains("pppoes") || expression.contains("geneve")) {
        Some(
            "802.11: libpcap does not compute the length of the outer header inside pppoes, geneve",
        )
    } else if wlan && arithmetic(expression) {
        Some("802.11: libpcap's arithmetic overwrites the length of the header")
    } else if expression.contains("protochain")
        && (expression.contains("[-1]") || expression.contains("[0xffffffff]"))
    {
        Some(
            "a constant offset that wraps: libpcap's optimiser adds it, and cannot run on protochain",
        )
    } else if expression.contains("geneve")
        && (arithmetic(expression) || expression.contains("protochain"))
    {
        Some("geneve reached without it: libpcap reads what arithmetic has left in memory")
    } else {
        None
    }
}

fn listed(list: &[(&str, &str)], expression: &str) -> bool {
    list.iter().any(|(known, _)| *known == expression)
}

fn ours(expression: &str, dlt: i32) -> Result<Program, String> {
    let filter = Filter::parse(expression).map_err(|error| error.to_string())?;
    filter
        .compile(link_type(dlt))
        .map_err(|error| error.to_string())
}

/// An expression, and its number if it is a combination of others.
struct Expression {
    text: String,
    number: Option<usize>,
}

impl Expression {
    /// Combinations are compared on Ethernet and on a quarter of the other link types: there are
    /// enough of them for each.
    fn is_compared_on(&self, dlt: i32) -> bool {
        let link = usize::try_from(dlt).expect("link types are not negative");
        let is_turn = |number: usize| dlt == 1 || (number + link).is_multiple_of(4);
        self.number.is_none_or(is_turn)
    }
}

fn all_expressions(others: &[&str]) -> Vec<Expression> {
    let plain = expressions::PRIMITIVES.iter().chain(others);
    let plain = plain.map(|text| Expression {
        text: (*text).to_owned(),
        number: None,
    });
    let combinations = expressions::combinations(4000).into_iter().enumerate();
    let combinations = combinations.map(|(number, text)| Expression {
        text,
        number: Some(number),
    });
    plain.chain(combinations).collect()
}

#[test]
fn accepts_what_libpcap_accepts() {
    let all = all_expressions(expressions::GRAMMAR);
    let mut wrong = Vec::new();
    let mut compared = 0;
    for dlt in LINKS {
        let oracle = Oracle::new(dlt);
        let compared_here = all.iter().filter(|one| one.is_compared_on(dlt));
        for expression in compared_here.map(|one| one.text.as_str()) {
            let here = ours(expression, dlt);
            let there = oracle.compile(expression, false).map(|_| ());
            compared += 1;
            match (&here, &there) {
                // Packets of `-i any` keep their tags here.
                (Ok(_), Err(error)) if error.contains("no VLAN support for Linux cooked") => {}
                (Ok(_), Err(error)) if !listed(REFUSED_THERE, expression) => {
                    wrong.push(format!(
                        "link {dlt}: {expression}\n  only libpcap refuses: {error}"
                    ));
                }
                (Err(error), Ok(())) if !listed(REFUSED_HERE, expression) => {
                    wrong.push(format!(
                        "link {dlt}: {expression}\n  only we refuse: {error}"
                    ));
                }
                _ => {}
            }
        }
    }
    println!("{compared} pairs of expression and link type");
    assert!(
        wrong.is_empty(),
        "{} differ:\n{}",
        wrong.len(),
        wrong.join("\n")
    );
}

#[derive(Default)]
struct Outcome {
    compared: usize,
    matched: usize,
    programs: usize,
    /// libpcap's answer depends on uninitialised memory.
    undefined: usize,
    /// Packets decided differently, by expression and link type.
    wrong: BTreeMap<(String, i32), usize>,
    known: BTreeMap<&'static str, usize>,
    /// libpcap's optimised and unoptimised programs disagree, and we agree with the latter...
    as_plain: BTreeMap<(String, i32), usize>,
    /// ...or the former.
    as_optimised: BTreeMap<(String, i32), usize>,
    example: BTreeMap<(String, i32), Vec<u8>>,
}

fn compare(
    expression: &str,
    (dlt, oracle): (i32, &Oracle),
    packets: &[Vec<u8>],
    outcome: &mut Outcome,
) {
    let Ok(here) = ours(expression, dlt) else {
        return;
    };
    let Ok(plain) = oracle.compile(expression, false) else {
        return;
    };
    // The optimiser refuses what it sees can never match.
    let optimised = oracle.compile(expression, true);
    outcome.programs += 1;
    let machine = Machine::new(&plain);
    for packet in packets {
        let length = u32::try_from(packet.len()).expect("captured packets are small");
        let result = here.matches(packet, length);
        let key = || (expression.to_owned(), dlt);
        outcome.compared += 1;
        outcome.matched += usize::from(result);
        let optimised = match &optimised {
            Ok(program) => program.filter(packet),
            Err(error) if error.contains("rejects all packets") => false,
            Err(_) => continue,
        };
        let plain = plain.filter(packet);
        let defined = machine.matches(packet, length);
        if defined != plain {
            // libpcap read uninitialised memory: no answer is right or wrong, but one can be given.
            outcome.undefined += 1;
            if result == defined {
                continue;
            }
        }
        if optimised != plain {
            let list = if result == plain {
                &mut outcome.as_plain
            } else {
                &mut outcome.as_optimised
            };
            *list.entry(key()).or_default() += 1;
        } else if result != plain
            && let Some(reason) = known_difference(expression, dlt)
        {
            *outcome.known.entry(reason).or_default() += 1;
        } else if result != plain {
            *outcome.wrong.entry(key()).or_default() += 1;
            outcome
                .example
                .entry(key())
                .or_insert_with(|| packet.clone());
        }
    }
}

fn compare_all(expressions: &[Expression], packets: &BTreeMap<i32, Vec<Vec<u8>>>) -> Outcome {
    let next = AtomicUsize::new(0);
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let outcomes: Vec<Outcome> = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads)
            .map(|_| {
                scope.spawn(|| {
                    let mut outcome = Outcome::default();
                    let oracles: Vec<_> = packets
                        .keys()
                        .map(|dlt| (*dlt, Oracle::new(*dlt)))
                        .collect();
                    while let Some(expression) =
                        expressions.get(next.fetch_add(1, Ordering::Relaxed))
                    {
                        let oracles = oracles.iter();
                        for (dlt, oracle) in oracles.filter(|it| expression.is_compared_on(it.0)) {
                            let packets = &packets[dlt];
                            compare(&expression.text, (*dlt, oracle), packets, &mut outcome);
                        }
                    }
                    outcome
                })
            })
            .collect();
        workers
            .into_iter()
            .map(|worker| worker.join().expect("no panic"))
            .collect()
    });
    let mut total = Outcome::default();
    for outcome in outcomes {
        total.compared += outcome.compared;
        total.matched += outcome.matched;
        total.programs += outcome.programs;
        total.undefined += outcome.undefined;
        total.wrong.extend(outcome.wrong);
        for (reason, count) in outcome.known {
            *total.known.entry(reason).or_default() += count;
        }
        total.as_plain.extend(outcome.as_plain);
        total.as_optimised.extend(outcome.as_optimised);
        total.example.extend(outcome.example);
    }
    total
}

fn report(name: &str, outcome: &Outcome) {
    println!(
        "{name}: {} programs, {} decisions compared, {} matches",
        outcome.programs, outcome.compared, outcome.matched
    );
    println!(
        "  libpcap reads memory that it has not written: {} decisions",
        outcome.undefined
    );
    for (reason, count) in &outcome.known {
        println!("  known difference, {count} decisions: {reason}");
    }
    for (kind, list) in [
        (
            "libpcap disagrees with itself, we follow its unoptimised program",
            &outcome.as_plain,
        ),
        (
            "libpcap disagrees with itself, we follow its optimised program",
            &outcome.as_optimised,
        ),
        ("we differ", &outcome.wrong),
    ] {
        let packets: usize = list.values().sum();
        println!("  {kind}: {packets} decisions of {} programs", list.len());
        for ((expression, dlt), count) in by_length(list).into_iter().take(25) {
            println!("    link {dlt}: {expression}: {count} packets");
        }
    }
    let known: usize = outcome.known.values().sum();
    assert!(
        known * 100 < outcome.compared,
        "the known differences are exceptions"
    );
    assert!(
        outcome.wrong.is_empty(),
        "{} programs differ",
        outcome.wrong.len()
    );
}

#[test]
fn matches_what_libpcap_matches() {
    let packets = packets();
    for (dlt, packets) in &packets {
        println!("link {dlt}: {} packets", packets.len());
    }
    let outcome = compare_all(&all_expressions(&[]), &packets);
    report("captures", &outcome);
}

/// Tests that no packet passes, or that all pass, prove nothing: most have both outcomes.
#[test]
fn the_captures_have_both_answers_for_most_tests() {
    let packets = packets();
    let mut one_sided = Vec::new();
    for expression in expressions::PRIMITIVES {
        let mut seen = [false; 2];
        for (dlt, packets) in &packets {
            let Ok(program) = ours(expression, *dlt) else {
                continue;
            };
            for packet in packets {
                let length = u32::try_from(packet.len()).expect("captured packets are small");
                seen[usize::from(program.matches(packet, length))] = true;
            }
        }
        if seen != [true, true] {
            one_sided.push(*expression);
        }
    }
    println!(
        "{} tests with one answer only: {one_sided:#?}",
        one_sided.len()
    );
    assert!(one_sided.len() * 5 < expressions::PRIMITIVES.len());
}

/// Real packets with bits flipped, bytes set and ends cut off.
fn mutate(packets: &[Vec<u8>], count: usize, random: &mut Random) -> Vec<Vec<u8>> {
    (0..count)
        .map(|_| {
            let mut packet = packets[random.below(packets.len())].clone();
            for _ in 0..random.below(6) {
                // Headers are where decisions are made.
                let reach = [64, 400][random.below(2)];
                let at = random.below(packet.len().min(reach));
                if let Some(byte) = packet.get_mut(at) {
                    *byte = match random.below(3) {
                        0 => *byte ^ (1 << random.below(8)),
                        1 => [0, 1, 4, 6, 17, 44, 0x08, 0x45, 0x60, 0x81, 0xaa, 0xff]
                            [random.below(12)],
                        _ => random.next().to_le_bytes()[0],
                    };
                }
            }
            if random.below(2) == 0 {
                packet.truncate(random.below(packet.len().min(120) + 1));
            }
            packet
        })
        .collect()
}

#[test]
fn matches_what_libpcap_matches_on_broken_packets() {
    let mut random = Random(0x5eed_0002);
    let packets: BTreeMap<i32, Vec<Vec<u8>>> = packets()
        .into_iter()
        .filter(|(dlt, _)| LINKS.contains(dlt))
        .map(|(dlt, packets)| {
            let count = if dlt == 1 { 8000 } else { 1500 };
            (dlt, mutate(&packets, count, &mut random))
        })
        .collect();
    let outcome = compare_all(&all_expressions(&[]), &packets);
    report("broken packets", &outcome);
}

/// The shortest expressions first: they tell the most.
fn by_length(list: &BTreeMap<(String, i32), usize>) -> Vec<(&(String, i32), &usize)> {
    let mut sorted: Vec<_> = list.iter().collect();
    sorted.sort_by_key(|((expression, _), _)| expression.len());
    sorted
}
