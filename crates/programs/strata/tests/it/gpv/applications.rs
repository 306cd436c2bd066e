//! The applications that the documentation shows equal a naive program over what tshark says.

use std::collections::BTreeMap;
use std::process::{Command, Stdio};

use strata_testkit::workspace_root;
use strata_wire::ip_addr;

use super::models::has_python;
use super::{labelled, strata};
use crate::common::naive::dissected;

#[path = "../../../../../systems/gpv/examples/retransmissions.rs"]
#[allow(dead_code, missing_docs, unreachable_pub)]
mod retransmissions;

/// Bytes that were sent again, by flow.
type Again = BTreeMap<String, u64>;

/// Sequence numbers of a flow, unwrapped, and the highest byte so far.
fn naive(trace: &std::path::Path) -> Again {
    let mut flows: BTreeMap<String, (i64, i64)> = BTreeMap::new();
    let mut again = Again::new();
    for packet in dissected(trace).iter().filter(|packet| packet.is_tcp) {
        let (seq, len) = (packet.seq, i64::try_from(packet.payload).unwrap());
        let raw = i64::try_from(seq).unwrap();
        let (last, next) = flows.entry(packet.flow.clone()).or_insert((raw, raw));
        // The nearest number that is this one modulo 2^32.
        let wraps = (*last - raw + (1 << 31)).div_euclid(1 << 32);
        let from = raw + wraps * (1 << 32);
        *last = from;
        let sent = u64::try_from((*next - from).clamp(0, len)).unwrap();
        *next = (*next).max(from + len);
        if sent > 0 {
            *again.entry(packet.flow.clone()).or_default() += sent;
        }
    }
    again
}

fn by_rust(trace: &std::path::Path) -> Again {
    let found = retransmissions::of(trace.to_owned()).unwrap();
    let flows = found.0.into_iter().filter(|(_, (_, again))| *again > 0);
    flows
        .map(|(key, (_, again))| {
            let (source, destination) = (key.source(), key.destination());
            let [from, to] =
                [source, destination].map(|end| ip_addr(key.family(), end.address).unwrap());
            let (sport, dport) = (source.port, destination.port);
            (
                format!("{from},{to},{sport},{dport},{}", key.protocol()),
                again,
            )
        })
        .collect()
}

/// `strata ask ... -F arrow | python retransmissions.py`
fn by_python(trace: &std::path::Path) -> Again {
    let mut ask = strata();
    ask.args(["ask", "-F", "arrow", "-r"]).arg(trace);
    ask.arg("S = filter(T, proto == TCP); R = map(S, [seq, len], [tcpseq, payload_len]);");
    let mut asked = ask.stdout(Stdio::piped()).spawn().unwrap();
    let python = workspace_root().join("python");
    let mut script = Command::new(python.join(".venv/bin/python"));
    script.arg(python.join("examples/retransmissions.py"));
    let output = script.stdin(asked.stdout.take().unwrap()).output().unwrap();
    assert!(asked.wait().unwrap().success());
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    let lines = String::from_utf8(output.stdout).unwrap();
    let flows = lines.lines().map(|line| {
        let (flow, again) = line.rsplit_once(' ').unwrap();
        (
            format!("{},6", flow.replace(' ', ",")),
            again.parse().unwrap(),
        )
    });
    flows.collect()
}

#[test]
fn bytes_that_were_sent_again_are_those_of_a_naive_program() {
    let mut flows = 0;
    for trace in ["ad-attacks", "cic2019-webddos", "ssh-guess"].map(labelled) {
        let expected = naive(&trace);
        flows += expected.len();
        assert_eq!(by_rust(&trace), expected, "{}", trace.display());
        if has_python() {
            assert_eq!(by_python(&trace), expected, "{}", trace.display());
        }
    }
    assert!(flows > 0, "some flow of the captures sent bytes again");
}
