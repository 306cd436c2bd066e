//! Files of names in the configuration file: commands find with them what they find with options.

use std::fs;
use std::path::Path;

use super::page::counted;
use super::{OWNERS, database, log_of_mix};
use crate::common::program::{failed, ok, refused, strata};
use crate::serve::http::{Serving, quoted};

/// A configuration with these files of names and databases.
fn configured(dir: &Path, files: &[&Path], mmdb: &[&Path]) -> String {
    let config = dir.join("strata.toml");
    let text = format!("[names]\nfiles = {files:?}\nmmdb = {mmdb:?}\n");
    fs::write(&config, text).unwrap();
    config.to_str().unwrap().to_owned()
}

#[test]
fn commands_find_names_without_options() {
    let dir = tempfile::tempdir().unwrap();
    let log = log_of_mix(dir.path());
    let names = dir.path().join("networks");
    let mmdb = dir.path().join("one.mmdb");
    fs::write(&names, "10.10.10.0/24 lab\n").unwrap();
    fs::write(&mmdb, database::of(OWNERS)).unwrap();
    let config = configured(dir.path(), &[&names], &[&mmdb]);
    let options = [
        "--names",
        names.to_str().unwrap(),
        "--mmdb",
        mmdb.to_str().unwrap(),
    ];
    let command = |words: &[&str]| {
        let mut command = strata();
        command.arg(words[0]).arg(&log).args(&words[1..]);
        command
    };
    for words in [
        &["read", "-c", "50", "asn 64500"][..],
        &["grep", "-c", "5", "--literal", "HTTP", "tag lab"],
        &["top", "--by", "as"],
        &["top", "--by", "network"],
        &["export", "-F", "csv", "-w", "-", "country GB"],
    ] {
        let given = ok(command(words).args(options));
        assert!(given.lines().count() > 1, "{words:?}");
        let mut of_environment = command(words);
        assert_eq!(ok(of_environment.env("STRATA_CONFIG", &config)), given);
        assert_eq!(ok(command(words).args(["--config", &config])), given);
    }
    let asked = ["ask", "tcp-out-of-sequence", "tag lab"];
    let given = ok(command(&asked).args(options));
    assert_eq!(ok(command(&asked).args(["--config", &config])), given);

    // An option replaces the files of its kind, and of no other kind.
    let others = dir.path().join("others");
    fs::write(&others, "10.10.10.0/24 other\n").unwrap();
    let mut replaced = command(&["top", "--by", "network", "--config", &config]);
    let shown = ok(replaced.arg("--names").arg(&others));
    assert!(shown.contains("other") && !shown.contains("lab"), "{shown}");
    let mut both = command(&["read", "-c", "1", "country GB", "--config", &config]);
    assert!(ok(both.arg("--names").arg(&others)).contains("_country="));

    // No output replaces them, and what is wrong is named.
    for file in [Path::new(&config), names.as_path(), mmdb.as_path()] {
        let mut export = command(&["export", "-F", "csv", "--config", &config]);
        let said = refused(export.arg("-w").arg(file));
        assert!(said.contains("is the input"), "{said}");
    }
    let absent = dir.path().join("absent");
    let config = configured(dir.path(), &[&absent], &[]);
    let said = failed(&mut command(&["read", "--config", &config]));
    assert!(said.contains("absent"), "{said}");
    fs::write(&config, "[names]\nfile = []\n").unwrap();
    let said = failed(&mut command(&["read", "--config", &config]));
    assert!(said.contains("did you mean 'names.files'?"), "{said}");
    // With both options, the configuration file is not read.
    ok(command(&["read", "-c", "1", "--config", &config]).args(options));
}

#[test]
fn a_page_has_the_names_of_the_configuration() {
    let dir = tempfile::tempdir().unwrap();
    let log = log_of_mix(dir.path());
    let names = dir.path().join("networks");
    fs::write(&names, "10.0.0.0/8 inside\n").unwrap();
    let config = configured(dir.path(), &[&names], &[]);
    let serving = Serving::start(&[&log], &["--config", &config]);
    let expected = counted("net 10.0.0.0/8 and tcp");
    let (result, _) = serving.search(&format!("filter={}", quoted("tag inside and tcp")));
    assert!(expected > 0 && result["packets"] == expected, "{result}");
}
