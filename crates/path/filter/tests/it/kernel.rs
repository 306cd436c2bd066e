//! Compares with the kernel: the eBPF of a filter decides like its evaluation.
#![allow(clippy::print_stdout, reason = "the figures are the point")]

use std::collections::BTreeMap;

use strata_bpf::{Assembler, Program as Loaded, ProgramKind, Reg};
use strata_filter::{Filter, KernelView, Program};
use strata_testkit::may_use_kernel;

use crate::support::{Random, expressions, link_type, packets};

const ETHERNET: i32 = 1;

/// A program that returns 1 for packets that the filter accepts.
fn assembled(program: &Program, view: KernelView) -> Option<Vec<u64>> {
    let mut asm = Assembler::new();
    let (accept, reject) = (asm.label(), asm.label());
    asm.set(Reg::R6, Reg::R1);
    program.write_ebpf(&mut asm, view, accept, reject).ok()?;
    asm.bind(reject);
    asm.set(Reg::R0, 0);
    asm.exit();
    asm.bind(accept);
    asm.set(Reg::R0, 1);
    asm.exit();
    Some(asm.finish().expect("no filter here is that long"))
}

/// Real packets that the kernel accepts for test runs: some of each length.
fn sample() -> Vec<Vec<u8>> {
    const MAX_XDP: usize = 3_400;
    let mut by_length: BTreeMap<usize, Vec<Vec<u8>>> = BTreeMap::new();
    for packet in packets().remove(&ETHERNET).expect("there is Ethernet") {
        if (14..MAX_XDP).contains(&packet.len()) {
            by_length.entry(packet.len() / 4).or_default().push(packet);
        }
    }
    let mut random = Random(7);
    let mut chosen = Vec::new();
    for packets in by_length.values() {
        for _ in 0..3 {
            chosen.push(packets[random.below(packets.len())].clone());
        }
    }
    chosen
}

fn compare(kind: ProgramKind, view: KernelView, expressions: &[String], packets: &[Vec<u8>]) {
    let (mut programs, mut runs, mut refused, mut accepted) = (0, 0, Vec::new(), 0);
    for expression in expressions {
        let filter = Filter::parse(expression).expect(expression);
        let Ok(program) = filter.compile(link_type(ETHERNET)) else {
            continue;
        };
        let Some(words) = assembled(&program, view) else {
            refused.push(expression);
            continue;
        };
        let loaded = match Loaded::load(kind, "st_live_test", &words) {
            Ok(loaded) => loaded,
            Err(error) => panic!("{expression}: {error}"),
        };
        programs += 1;
        for packet in packets {
            let ran = loaded.test_run(packet, 1).expect("the kernel runs it");
            let length = u32::try_from(packet.len()).expect("short");
            let expected = program.matches(packet, length);
            assert_eq!(
                ran.result == 1,
                expected,
                "{view:?}, {expression}: {packet:02x?}"
            );
            runs += 1;
            accepted += u32::from(expected);
        }
    }
    println!(
        "{view:?}: {programs} filters, {runs} runs, {accepted} accepted, refused: {refused:?}"
    );
    assert!(programs > 300 && accepted > 1_000);
    assert!(refused.iter().all(|text| text.contains("protochain")));
}

#[test]
fn the_kernel_decides_as_evaluation_does() {
    if !may_use_kernel("loading eBPF programs") {
        return;
    }
    let mut all: Vec<String> = expressions::PRIMITIVES
        .iter()
        .map(|text| (*text).to_owned())
        .filter(|text| Filter::parse(text).is_ok())
        .collect();
    all.extend(
        expressions::combinations(250)
            .into_iter()
            .filter(|text| Filter::parse(text).is_ok()),
    );
    let packets = sample();
    compare(ProgramKind::Classifier, KernelView::Packet, &all, &packets);
    compare(ProgramKind::Xdp, KernelView::Xdp, &all, &packets);
}
