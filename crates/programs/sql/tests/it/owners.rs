//! Whose addresses are, in SQL, against tshark's count.

use std::fs;
use std::process::Command;

use strata_testkit::data_dir;

use super::{query, ran, record};

const CAPTURE: &str = "cic2017-sqli";

/// Packets of the capture, by tshark.
fn counted(filter: &str) -> usize {
    let trace = data_dir().join("labelled").join(CAPTURE).join("trace.pcap");
    let mut tshark = Command::new("tshark");
    let output = tshark.arg("-r").arg(trace).args(["-Y", filter]).output();
    let output = output.unwrap();
    assert!(output.status.success());
    String::from_utf8(output.stdout).unwrap().lines().count()
}

#[test]
fn addresses_have_names_and_tags() {
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("log");
    record(&log, CAPTURE);
    let csv = ["--format", "csv"];
    let sources = query(&log, "SELECT src FROM packets GROUP BY 1 ORDER BY 1", &csv);
    let host = sources.lines().nth(1).unwrap().to_owned();
    let file = dir.path().join("names");
    fs::write(
        &file,
        format!("{host} web inner\n0.0.0.0/0 any\n255.0.0.0/8 inner\n"),
    )
    .unwrap();
    let names = ["--names", file.to_str().unwrap()];
    let options = [&csv[..], &names].concat();
    let of_host = counted(&format!("ip.src == {host}"));
    let all = counted("ip");
    assert!(0 < of_host && of_host < all);
    let others = all - of_host;
    let by_name =
        "SELECT address_name(src) AS name, count(*) AS n FROM packets GROUP BY 1 ORDER BY 1";
    assert_eq!(
        query(&log, by_name, &options),
        format!("name,n\nany (0.0.0.0/0),{others}\nweb,{of_host}\n")
    );
    let tagged = "SELECT count(*) AS n FROM packets WHERE address_tagged(src, 'inner')";
    assert_eq!(query(&log, tagged, &options), format!("n\n{of_host}\n"));
    let config = dir.path().join("strata.toml");
    fs::write(&config, format!("[names]\nfiles = [{file:?}]\n")).unwrap();
    let configured = [&csv[..], &["--config", config.to_str().unwrap()]].concat();
    assert_eq!(query(&log, tagged, &configured), format!("n\n{of_host}\n"));
    let single =
        "SELECT address_name('::1') AS a, address_name('x') AS b, address_tagged(NULL, 'any') AS c";
    assert_eq!(query(&log, single, &options), "a,b,c\n,,\n");
    for (sql, options, why) in [
        (
            "SELECT address_name(src) FROM packets",
            &csv[..],
            "address_name() needs --names FILE",
        ),
        (
            "SELECT address_as(src) FROM packets",
            &options,
            "address_as() needs --mmdb FILE",
        ),
        (
            "SELECT address_tagged(src, 'Web') FROM packets",
            &options,
            "there is 'web'",
        ),
    ] {
        let output = ran(&log, sql, options);
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(
            !output.status.success() && said.contains(why),
            "{sql}: {said}"
        );
    }
}
