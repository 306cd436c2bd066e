//! The role of a relay from a spec, without a command line, and what its caller can tell of errors.
#![allow(clippy::unwrap_used, reason = "helpers of tests may fail loudly too")]

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use strata_record::{RecordError, RelaySpec};
use strata_relay::RelayOptions;
use strata_role::{Notice, RoleError, Tell, start};
use strata_store::DiskChoice;

fn spec(log: &Path, listen: SocketAddr) -> RelaySpec {
    let mut options = RelayOptions::new(listen);
    options.rdma_port = 0;
    options.memory_socket = log.parent().map(|dir| dir.join("memory.sock"));
    RelaySpec {
        options,
        dir: log.to_owned(),
        disk: DiskChoice::Buffered,
        config: None,
        bytes_max: None,
        to_stream: None,
        sandboxed: false,
    }
}

fn any_port() -> SocketAddr {
    (Ipv4Addr::LOCALHOST, 0).into()
}

#[test]
fn a_relay_serves_until_it_is_stopped() {
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("log");
    let told: Arc<Mutex<Vec<&str>>> = Arc::default();
    let collected = Arc::clone(&told);
    let tell: Tell = Arc::new(move |notice: &Notice| collected.lock().unwrap().push(notice.kind));
    let handle = start(spec(&log, any_port()), Arc::default(), tell).unwrap();
    assert_eq!(*told.lock().unwrap(), ["disk", "serving"]);
    assert!(!handle.wait_timeout(Duration::ZERO));
    handle.stop();
    let outcome = handle.wait().unwrap();
    assert_eq!((outcome.connections, outcome.totals.blocks), (0, 0));
    assert!(outcome.failure.is_none(), "{:?}", outcome.failure);
    assert_eq!(*told.lock().unwrap(), ["disk", "serving", "ending"]);
    assert!(log.is_dir());
}

#[test]
fn a_failed_start_leaves_nothing_behind_and_its_error_is_typed() {
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("log");
    let fails = |spec: RelaySpec| {
        let failed = start(spec, Arc::default(), Arc::new(|_: &Notice| ()));
        let error = failed.err().unwrap();
        assert!(!log.exists(), "{error}");
        error
    };
    let taken = TcpListener::bind(any_port()).unwrap();
    let error = fails(spec(&log, taken.local_addr().unwrap()));
    assert!(matches!(error, RecordError::Relay(_)), "{error:?}");
    let error = fails(RelaySpec {
        config: Some(dir.path().join("nosuch.toml")),
        ..spec(&log, any_port())
    });
    assert!(matches!(error, RecordError::Config(_)), "{error:?}");
    assert!(error.to_string().contains("nosuch.toml"), "{error}");
    let error = fails(RelaySpec {
        bytes_max: Some(1),
        ..spec(&log, any_port())
    });
    assert!(
        matches!(error, RecordError::Role(RoleError::Invalid(_))),
        "{error:?}"
    );
    // A place where no log can be is named together with what is wrong with it.
    let error = fails(RelaySpec {
        dir: PathBuf::from("/proc/log"),
        ..spec(&log, any_port())
    });
    assert!(
        matches!(error, RecordError::Role(RoleError::At { .. })),
        "{error:?}"
    );
    assert!(
        error
            .chain()
            .starts_with("cannot create the log: /proc/log: "),
        "{}",
        error.chain()
    );
}
