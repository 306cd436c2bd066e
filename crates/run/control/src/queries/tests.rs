//! Tests of installed queries.

use std::time::{Duration, Instant};

use strata_gpv::format::datagram::DatagramWriter;
use strata_gpv::{Key, Reason};
use strata_wire::{AddressFamily, Endpoint};

use super::*;
use crate::queries::vectors::DATAGRAM_BYTES;

fn request(name: &str, query: &str) -> QueryRequest {
    QueryRequest {
        name: name.to_owned(),
        query: query.to_owned(),
        ..QueryRequest::default()
    }
}

fn all() -> (Arc<Subscribers>, Arc<Queries>) {
    let subscribers = Arc::new(Subscribers::default());
    let queries = Queries::new(&subscribers);
    (subscribers, queries)
}

fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let started = Instant::now();
    while !is_so() {
        assert!(started.elapsed() < Duration::from_secs(30), "not {what}");
        thread::yield_now();
    }
}

/// Sends one vector of a packet from each of these hosts to all subscribers.
fn send(to: &Subscriber, writer: &mut DatagramWriter, hosts: std::ops::Range<u128>) {
    let tuples = [Full::default()];
    for host in hosts {
        let end = |address| Endpoint { address, port: 1 };
        let key = Key::new(AddressFamily::Ipv4, 6, end(host), end(1), 0);
        let vector = Vector {
            key,
            start_ns: 0,
            pieces: [&tuples[..], &[]],
            reason: Reason::Full,
            saturated: false,
            slot: 0,
        };
        writer.put(&vector, |datagram| to.send(datagram)).unwrap();
    }
    writer.finish(|datagram| to.send(datagram));
}

#[test]
fn a_query_beyond_its_bounds_is_cut_and_others_are_not() {
    let (subscribers, queries) = all();
    let small = QueryRequest {
        groups_max: Some(3),
        ..request("small", "packet-counts-per-source")
    };
    queries.install(&small).unwrap();
    queries
        .install(&request("large", "packet-counts-per-source"))
        .unwrap();
    let few = QueryRequest {
        rows_max: Some(2),
        ..request("few", "R = filter(T, proto == TCP);")
    };
    queries.install(&few).unwrap();
    let feed = subscribers.list().remove(0);
    let columns = Columns(feed.columns());
    let mut writer = DatagramWriter::new(0, columns, DATAGRAM_BYTES);
    send(&feed, &mut writer, 0..10);
    until("asked", || {
        queries.list().iter().all(|query| query.packets == 10)
    });
    let list = queries.list();
    let of = |at: usize| (list[at].rows, list[at].packets_refused, list[at].rows_cut);
    assert_eq!([of(0), of(1), of(2)], [(3, 7, 0), (10, 0, 0), (2, 0, 8)]);
    let why = list[0].incomplete.as_ref().unwrap();
    assert!(
        why.contains("3 groups") && why.contains("7 packets"),
        "{why}"
    );
    assert_eq!(list[1].incomplete, None);
    let answer = queries.answer("large").unwrap();
    assert_eq!((answer.columns.len(), answer.rows.len()), (2, 10));
    assert_eq!(answer.rows[9][0], Cell::Text("0.0.0.9".into()));
    // What is not sent is counted, for all that are there.
    let mut later = DatagramWriter::resume(0, columns, DATAGRAM_BYTES, writer.next_seq() + 5);
    send(&feed, &mut later, 0..1);
    until("lost", || {
        queries.list().iter().all(|query| query.vectors_lost == 5)
    });
    queries
        .install(&request("later", "packet-counts-per-source"))
        .unwrap();
    assert_eq!(queries.answer("later").unwrap().status.vectors_lost, 0);
}

#[test]
fn with_the_last_query_the_feed_ends_and_a_new_one_starts_from_nothing() {
    let (subscribers, queries) = all();
    for round in 0..20 {
        queries
            .install(&request("a", "packet-counts-per-source"))
            .unwrap();
        queries.install(&request("b", "tcp-timeouts")).unwrap();
        until("one feed", || subscribers.list().len() == 1);
        let feed = subscribers.list().remove(0);
        assert!(Columns(feed.columns()).has(Column::Time));
        let mut writer = DatagramWriter::new(0, Columns(feed.columns()), DATAGRAM_BYTES);
        send(&feed, &mut writer, 0..round);
        until("asked", || {
            queries.list()[0].packets == u64::try_from(round).unwrap()
        });
        queries.remove("a").unwrap();
        assert!(matches!(queries.remove("a"), Err(QueryRefused::NoSuch(_))));
        queries.remove("b").unwrap();
        // No query sees packets any more.
        send(&feed, &mut writer, 0..5);
        until("no feed", || subscribers.list().is_empty());
    }
    assert_eq!(queries.count(), 0);
}

#[test]
fn what_cannot_be_installed_is_refused_with_the_reason() {
    let (subscribers, queries) = all();
    let refused = |request: &QueryRequest| queries.install(request).unwrap_err().to_string();
    for name in ["", "-w", "../x", "a b", &"x".repeat(65)] {
        assert!(
            refused(&request(name, "tcp-timeouts")).contains("is not a name"),
            "{name}"
        );
    }
    let said = refused(&request("a", "R = filter(T, proto == );"));
    assert!(said.contains("line 1, column 24"), "{said}");
    let said = refused(&request("a", "ewma-latencies"));
    assert!(said.contains("qsize"), "{said}");
    let mut unused = request("a", "tcp-timeouts");
    unused.params.insert("gap".into(), "1".into());
    assert!(refused(&unused).contains("no parameter gap"));
    let large = QueryRequest {
        groups_max: Some(1 << 40),
        ..request("a", "tcp-timeouts")
    };
    assert!(refused(&large).contains("groups_max"));
    assert!(subscribers.list().is_empty());
    for number in 0..QUERIES_MAX {
        queries
            .install(&request(&number.to_string(), "tcp-timeouts"))
            .unwrap();
    }
    assert!(refused(&request("a", "tcp-timeouts")).contains("remove one"));
    assert!(refused(&request("3", "tcp-timeouts")).contains("already"));
    subscribers.close();
    queries.remove("0").unwrap();
    // With the recording no more come.
    assert!(refused(&request("b", "tcp-timeouts")).contains("the recording is ending"));
    until("over", || subscribers.list().is_empty());
}

#[test]
fn all_of_them_share_the_instructions() {
    let (_, queries) = all();
    // Each of the sums depends on the one before.
    let body = "c = c + 1\n    ".repeat(150);
    let mut large = format!("def f([c], []):\n    {body}\n");
    for number in 1..=4 {
        large += &format!("R{number} = groupby(T, [srcip], f);\n");
    }
    let mut installed = 0;
    let error = loop {
        match queries.install(&request(&installed.to_string(), &large)) {
            Ok(_) => installed += 1,
            Err(error) => break error,
        }
    };
    let QueryRefused::Instructions { needed, left } = error else {
        panic!("{error}");
    };
    assert!(needed > 600, "{needed}");
    assert_eq!(left, INSTRUCTIONS_MAX - installed * needed);
    assert!(left < needed, "{left} of {needed}");
    queries.remove("0").unwrap();
    queries.install(&request("again", &large)).unwrap();
}

#[test]
fn values_come_back_as_they_were() {
    let address = "2001:db8::1".parse().unwrap();
    for (kind, value) in [
        (CellKind::Int, Value::Int(i64::MIN)),
        (CellKind::Time, Value::Int(1)),
        (CellKind::Real, Value::Real(0.1 + 0.2)),
        (CellKind::Real, Value::Real(f64::MIN_POSITIVE / 3.0)),
        (CellKind::Real, Value::Real(2.0)),
        (CellKind::Real, Value::Real(f64::NEG_INFINITY)),
        (CellKind::Bool, Value::Bool(true)),
        (CellKind::Address, Value::Address(address)),
    ] {
        let text = serde_json::to_string(&Cell::from(value)).unwrap();
        let cell: Cell = serde_json::from_str(&text).unwrap();
        assert_eq!(cell.value(kind), Some(value), "{text}");
    }
    let nan = serde_json::to_string(&Cell::from(Value::Real(f64::NAN))).unwrap();
    let cell: Cell = serde_json::from_str(&nan).unwrap();
    assert!(matches!(cell.value(CellKind::Real), Some(Value::Real(real)) if real.is_nan()));
    assert_eq!(Cell::Text("x".into()).value(CellKind::Int), None);
}
