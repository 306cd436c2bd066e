//! Answers in files and pipes.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use super::{query, ran, record};

const PATIENCE: Duration = Duration::from_secs(120);
/// Has billions of rows.
const ENDLESS: &str = "SELECT a.src FROM packets a CROSS JOIN packets b";

fn names(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> = names.collect();
    names.sort();
    names
}

/// What a column holds is said, not left to be guessed from texts.
#[test]
fn a_typed_answer_has_the_types_of_its_columns() {
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("log");
    record(&log, "cic2017-sqli");
    let sql = "SELECT '007' AS digits, '' AS empty, encode('ab'::bytea, 'hex') AS hex, \
               1 AS int, 9223372036854775807 AS large, 0.5::real AS real, 'nan'::double AS nan, \
               true AS ok, NULL AS nothing, time, to_timestamp(1) AS local, 'b'::bytea AS bytes, \
               arrow_cast(1.5, 'Decimal128(9, 2)') AS cents, \
               arrow_cast(1.5, 'Decimal128(30, 2)') AS digits_30, \
               arrow_cast('x', 'Dictionary(Int32, Utf8)') AS word, make_array(1, NULL) AS list \
               FROM packets ORDER BY time, time_ns LIMIT 1";
    let answer = query(&log, sql, &["--typed"]);
    let lines: Vec<&str> = answer.lines().collect();
    let columns = [
        ("digits", "text"),
        ("empty", "text"),
        ("hex", "text"),
        ("int", "number"),
        ("large", "number"),
        ("real", "number"),
        ("nan", "number"),
        ("ok", "bool"),
        ("nothing", "text"),
        ("time", "time"),
        ("local", "time"),
        ("bytes", "text"),
        ("cents", "number"),
        ("digits_30", "text"),
        ("word", "text"),
        ("list", "text"),
    ];
    let columns = columns.map(|(name, kind)| format!(r#"{{"name":"{name}","type":"{kind}"}}"#));
    assert_eq!(
        lines[0],
        format!(r#"{{"columns":[{}]}}"#, columns.join(","))
    );
    assert_eq!(
        lines[1],
        "[\"007\",\"\",\"6162\",1,9223372036854775807,0.5,null,true,null,\
         \"2017-07-06T13:40:07.419016Z\",\"1970-01-01T00:00:01Z\",\"62\",1.50,\"1.50\",\"x\",[1,null]]"
    );
    assert_eq!(lines[2..], [r#"{"rows":1}"#]);
    // The same name twice is no problem, and an empty answer has columns.
    let sql = "SELECT p.src, f.src FROM packets p JOIN flows f USING (flow_id) WHERE false";
    let empty = query(&log, sql, &["--typed"]);
    let column = r#"{"name":"src","type":"text"}"#;
    assert_eq!(
        empty,
        format!("{{\"columns\":[{column},{column}]}}\n{{\"rows\":0}}\n")
    );
}

#[test]
fn objects_have_no_key_twice() {
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("log");
    record(&log, "cic2017-sqli");
    let join = "FROM packets p JOIN flows f USING (flow_id) LIMIT 1";
    let file = dir.path().join("x.json");
    let to_file = ["-w", file.to_str().unwrap()];
    for options in [&["--json"][..], &to_file] {
        let ran = ran(&log, &format!("SELECT p.src, f.src {join}"), options);
        let stderr = String::from_utf8_lossy(&ran.stderr);
        assert_eq!(ran.status.code(), Some(2), "{stderr}");
        assert!(
            stderr.contains("two columns are named src") && stderr.contains(" AS "),
            "{stderr}"
        );
        assert!(ran.stdout.is_empty() && !file.exists());
    }
    let named = format!("SELECT p.src, f.src AS other_src {join}");
    assert!(query(&log, &named, &["--json"]).contains("\"other_src\":"));
}

#[test]
fn a_query_that_fails_leaves_no_part_of_a_file() {
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("log");
    record(&log, "mix-test");
    let (old, new) = (dir.path().join("old.csv"), dir.path().join("new.csv"));
    fs::write(&old, "old\n").unwrap();
    let there = names(dir.path());
    let invalid = "SELECT CAST(src AS INT) FROM packets";
    for file in [&old, &new] {
        let ran = ran(&log, invalid, &["-w", file.to_str().unwrap()]);
        let stderr = String::from_utf8_lossy(&ran.stderr);
        assert_eq!(ran.status.code(), Some(1), "{stderr}");
        assert_eq!(names(dir.path()), there);
        // And when it is interrupted.
        let mut command = Command::new(env!("CARGO_BIN_EXE_strata-sql"));
        let command = command.arg(&log).arg(ENDLESS).arg("-w").arg(file);
        let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
        let part = match file == &old {
            true => dir.path().join(format!(".old.csv.{}.part", child.id())),
            false => new.clone(),
        };
        let start = Instant::now();
        while !fs::metadata(&part).is_ok_and(|part| part.len() > 0) {
            assert!(start.elapsed() < PATIENCE, "nothing is written");
            thread::yield_now();
        }
        let id = child.id().to_string();
        let kill = Command::new("kill").args(["-s", "INT", &id]).status();
        assert!(kill.unwrap().success());
        assert!(!child.wait().unwrap().success());
        let mut stderr = String::new();
        let mut said = child.stderr.take().unwrap();
        said.read_to_string(&mut stderr).unwrap();
        assert!(stderr.contains("removed the unfinished"), "{stderr}");
        assert_eq!(names(dir.path()), there);
    }
    assert_eq!(fs::read_to_string(&old).unwrap(), "old\n");
    let nowhere = dir.path().join("no/such.csv");
    let ran = ran(&log, "SELECT 1 AS a", &["-w", nowhere.to_str().unwrap()]);
    let stderr = String::from_utf8_lossy(&ran.stderr);
    assert!(stderr.contains(nowhere.to_str().unwrap()), "{stderr}");
}

#[test]
fn a_reader_that_has_seen_enough_is_no_error() {
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("log");
    record(&log, "mix-test");
    for format in ["csv", "json", "table", "arrow"] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_strata-sql"));
        let mut child = command
            .arg(&log)
            .args(["SELECT * FROM packets", "--format", format])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut first = Vec::new();
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        stdout.read_until(b'\n', &mut first).unwrap();
        drop(stdout);
        let ended = child.wait_with_output().unwrap();
        let stderr = String::from_utf8_lossy(&ended.stderr);
        assert!(
            ended.status.success() && stderr.is_empty(),
            "{format}: {stderr}"
        );
    }
}
