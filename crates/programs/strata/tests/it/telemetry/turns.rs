//! Generations of stores of which a translator elsewhere writes: all collectors begin them together, and one
//! that was killed meanwhile has the youngest when it is back.

use std::path::{Path, PathBuf};
use std::time::Instant;

use serde_json::Value;
use tempfile::TempDir;

use super::{FLOW_TEXT, answer, told, wait_for};
use crate::common::program::{ok, strata};
use crate::common::telemetry::{
    PATIENCE, Process, listens, number, status, telemetry, wait_status,
};

fn collect(store: &Path, listen: &str) -> Process {
    let mut command = strata();
    command.args(["telemetry", "collect", "--listen", listen, "-o"]);
    Process::start(command.arg(store))
}

fn translate(dir: &Path, collectors: &[String]) -> Process {
    let mut command = strata();
    command.args(["telemetry", "run", "--listen", "127.0.0.1:0", "-o"]);
    command.arg(dir).args(["--store-memory", "4MiB"]);
    command.args(["--generations", "3", "--generation-period", "1s"]);
    for collector in collectors {
        command.args(["--collector", collector]);
    }
    Process::start(&mut command)
}

/// Where the translator's reports go, and since when.
fn youngest(status: &Value) -> Option<(u64, u64)> {
    let youngest = status["generations"]["present"].as_array()?.first()?;
    Some((number(&youngest["number"]), number(&youngest["begun_ns"])))
}

/// The store that has the key of 10.0.0.1, and that of the flow.
fn having(stores: &[PathBuf], query: &[&str]) -> PathBuf {
    let start = Instant::now();
    loop {
        if let Some(store) = stores.iter().find(|store| answer(store, query).is_some()) {
            return store.clone();
        }
        assert!(start.elapsed() < PATIENCE, "{query:?}");
    }
}

#[test]
fn collectors_begin_generations_together_and_one_that_comes_back_has_the_youngest() {
    let dir = TempDir::new().unwrap();
    let stores = ["first", "second"].map(|name| dir.path().join(name));
    let mut collectors = stores
        .each_ref()
        .map(|store| Some(collect(store, "127.0.0.1:0")));
    let addresses = stores.each_ref().map(|store| listens(store));
    let counters = dir.path().join("counters");
    let translator = translate(&counters, &addresses);
    let to = status(&counters)["listen"]
        .as_str()
        .unwrap()
        .parse()
        .unwrap();
    let query = ["get", "10.0.0.1"];
    let mut seen: Vec<(u64, u64)> = Vec::new();
    let mut sequence = 0;
    let mut tell_and_wait = |value: u8| {
        told(to, sequence, value);
        sequence += 2;
        let store = having(&stores, &query);
        let found = wait_for(&store, &query, |found| found["value"]["number"] == value);
        let begun = number(&found["value"]["begun_ns"]);
        let of_flow = having(&stores, &["path", FLOW_TEXT]);
        wait_for(&of_flow, &["path", FLOW_TEXT], |path| {
            path["hops"][0]["node"] == value
        });
        seen.push((begun, u64::from(value)));
        // The next value comes in the next generation, of both.
        let status = wait_status(&counters, |status| {
            youngest(status).is_some_and(|(_, of)| of > begun)
        });
        for store in &stores {
            wait_status(store, |collector| youngest(collector) >= youngest(&status));
        }
        (store, seen.clone())
    };
    let mut last = None;
    for value in 1..=4 {
        last = Some(tell_and_wait(value));
    }
    let (store, seen) = last.unwrap();
    assert!(
        seen.windows(2).all(|pair| pair[0].0 < pair[1].0),
        "{seen:?}"
    );
    // Each of the three generations has what it was given, and no other.
    let found = answer(&store, &query);
    for generation in found
        .iter()
        .flat_map(|found| found["generations"].as_array().unwrap())
    {
        let begun = number(&generation["begun_ns"]);
        let expected = seen
            .iter()
            .find(|(of, _)| *of == begun)
            .map(|(_, value)| *value);
        assert_eq!(
            generation["value"]["number"].as_u64(),
            expected,
            "{found:?} {seen:?}"
        );
        assert_eq!(
            generation["count"]["at_most"].as_u64(),
            expected,
            "{found:?} {seen:?}"
        );
    }
    let page = ok(&mut telemetry(&store, &["status"]));
    assert!(
        page.contains(" of 3, of 1 s each; the youngest since "),
        "{page}"
    );

    // One is away while generations begin: they do not wait for it.
    let place = stores.iter().position(|one| *one == store).unwrap();
    collectors[place].take().unwrap().kill();
    let (before, _) = youngest(&status(&counters)).unwrap();
    wait_status(&counters, |status| {
        youngest(status).is_some_and(|(now, _)| now > before + 1)
    });
    collectors[place] = Some(collect(&store, &addresses[place]));
    wait_status(&counters, |status| {
        let all = status["collectors"].as_array().unwrap();
        all.iter().all(|one| one["connected"] == true)
    });
    let (again, _) = tell_and_wait(9);
    assert_eq!(again, store);

    // Another translator goes on with the generations that are there.
    let (before, _) = youngest(&status(&counters)).unwrap();
    translator.end();
    let translator = translate(&counters, &addresses);
    wait_status(&counters, |status| {
        youngest(status).is_some_and(|(now, _)| now >= before)
    });
    translator.end();
    for collector in collectors.into_iter().flatten() {
        collector.end();
    }
}
