//! Names of networks in the operator's page: in its filters, counted by tcpdump, and next to addresses.

use std::fs;
use std::net::IpAddr;
use std::process::Command;

use serde_json::{Value, json};
use strata_testkit::data_dir;

use super::{OWNERS, database, log_of_mix};
use crate::serve::http::{Serving, quoted};

/// Packets of the capture that match, by tcpdump.
pub(super) fn counted(filter: &str) -> u64 {
    let trace = data_dir().join("labelled/mix-test/trace.pcap");
    let mut tcpdump = Command::new("tcpdump");
    let output = tcpdump.args(["-n", "--count", "-r"]).arg(trace).arg(filter);
    let output = output.output().unwrap();
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8(said).unwrap();
    let mut lines = said.lines();
    let count = lines.find_map(|line| line.strip_suffix(" packets")?.parse().ok());
    count.unwrap_or_else(|| panic!("tcpdump does not count: {said}"))
}

/// What the files of the test say of an address: the name, and the record of the database.
fn known(address: &str) -> Value {
    let Ok(address) = address.parse::<IpAddr>() else {
        return Value::Null;
    };
    let IpAddr::V4(v4) = address else {
        return Value::Null;
    };
    let name = match v4.octets() {
        [10, 10, 10, 6] => json!("web\\u{1b}[31m"),
        [10, ..] => json!("inside (10.0.0.0/8)"),
        _ => Value::Null,
    };
    let owner = OWNERS.iter().find(|(network, length, ..)| {
        let network: IpAddr = network.parse().unwrap();
        let IpAddr::V4(network) = network else {
            return false;
        };
        (v4.to_bits() ^ network.to_bits()) >> (32 - length) == 0
    });
    let country = owner.map(|(_, _, country, ..)| *country);
    let system = owner.map(|(_, _, _, number, name)| format!("AS{number} {name}"));
    match (&name, country) {
        (Value::Null, None) => Value::Null,
        _ => json!({ "name": name, "country": country, "as": system, "problem": null }),
    }
}

#[test]
fn a_page_knows_the_names_of_networks() {
    let dir = tempfile::tempdir().unwrap();
    let log = log_of_mix(dir.path());
    let (names, mmdb) = (dir.path().join("networks"), dir.path().join("one.mmdb"));
    fs::write(&names, "10.0.0.0/8 inside\n10.10.10.6 web\x1b[31m\n").unwrap();
    fs::write(&mmdb, database::of(OWNERS)).unwrap();
    let [names, mmdb] = [&names, &mmdb].map(|file| file.to_str().unwrap());
    let serving = Serving::start(&[&log], &["--names", names, "--mmdb", mmdb]);

    for (named, plain) in [
        ("tag inside and tcp", "net 10.0.0.0/8 and tcp"),
        (
            "src tag inside and not dst tag inside",
            "src net 10 and not dst net 10",
        ),
        ("asn 15395", "net 162.13.0.0/16"),
        ("country aa", "net 10.0.0.0/8 or net 192.168.0.0/16"),
    ] {
        let (result, search) = serving.search(&format!("filter={}", quoted(named)));
        let wanted = counted(plain);
        assert!(wanted > 0, "{plain}");
        assert_eq!(result["packets"], json!(wanted), "{named}");
        let command = result["command"]["pcapng"].as_str().unwrap();
        assert!(
            command.contains(names) && command.contains(mmdb),
            "{command}"
        );
        let flows = format!("/api/v1/searches/{search}/flows?limit=1000");
        let flows = serving.json(&flows);
        let rows = flows["rows"].as_array().unwrap();
        assert!(!rows.is_empty());
        for row in rows {
            for end in ["src", "dst"] {
                let owner = &row[format!("{end}_owner")];
                assert_eq!(*owner, known(row[end].as_str().unwrap()), "{row}");
            }
        }
        for one in result["top"]["addresses"].as_array().unwrap() {
            assert_eq!(one["owner"], known(one["what"].as_str().unwrap()));
        }
        let ports = result["top"]["ports"].as_array().unwrap();
        assert!(ports.iter().all(|one| one["owner"].is_null()));
    }
    let exported = "/api/v1/logs/0/export?format=csv&filter=tag%20inside";
    let lines = String::from_utf8(serving.get(exported).body).unwrap();
    assert!(lines.lines().count() > 1, "{lines}");

    let check =
        |filter: &str| serving.json(&format!("/api/v1/filter/check?filter={}", quoted(filter)));
    assert_eq!(check("tag inside")["error"], Value::Null);
    let error = check("tcp and tag Inside")["error"]["error"].clone();
    assert!(
        error.as_str().unwrap().contains("there is 'inside'"),
        "{error}"
    );
    let offered = serving.json("/api/v1/filter/complete?filter=tag%20i&at=5");
    assert_eq!(offered["items"][0]["text"], "inside");
    // A recording, to which policies go, knows no names.
    let policy = json!({ "match": "tag inside", "action": "drop" });
    let answer = serving
        .change("POST", "/api/v1/policies/check", &policy)
        .json();
    let error = answer["error"]["error"].as_str().unwrap();
    assert!(error.contains("only where logs are read"), "{error}");
}

#[test]
fn a_page_without_names_says_what_is_missing() {
    let dir = tempfile::tempdir().unwrap();
    let log = log_of_mix(dir.path());
    let serving = Serving::start(&[&log], &[]);
    let refused = serving.send("GET", "/api/v1/logs/0/search?filter=tag%20x", &[], b"");
    let said = String::from_utf8(refused.body.clone()).unwrap();
    assert!(
        refused.status == 400 && said.contains("give --names FILE"),
        "{said}"
    );
    let (result, _) = serving.search("filter=tcp");
    assert!(result["top"]["addresses"][0]["owner"].is_null());
    let offered = serving.json("/api/v1/filter/complete?filter=ta&at=2");
    assert_eq!(offered["items"], json!([]));
}
