//! The API over TCP with mutual TLS: clients with a certificate of the authority are accepted.

use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use rustls::{ClientConnection, StreamOwned};
use strata_classify::Model;
use strata_control::api::{Endpoints, Server, serve};
use strata_control::config::{ControlConfig, EndpointError};
use strata_control::{Controller, Settings};

/// An authority, and certificates from it and from another one.
struct Files(tempfile::TempDir);

impl Files {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        for (authority, names) in [
            ("ca", &["server", "friend"][..]),
            ("other-ca", &["stranger"]),
        ] {
            let key = KeyPair::generate().unwrap();
            let mut params = CertificateParams::new(Vec::new()).unwrap();
            params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
            let certificate = params.self_signed(&key).unwrap();
            fs::write(
                dir.path().join(format!("{authority}.pem")),
                certificate.pem(),
            )
            .unwrap();
            let issuer = Issuer::new(params, key);
            for name in names {
                let key = KeyPair::generate().unwrap();
                let params = CertificateParams::new(vec![String::from("localhost")]).unwrap();
                let certificate = params.signed_by(&key, &issuer).unwrap();
                fs::write(dir.path().join(format!("{name}.pem")), certificate.pem()).unwrap();
                let path = dir.path().join(format!("{name}.key"));
                strata_testkit::write_key(&path, &key.serialize_pem());
            }
        }
        Self(dir)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }
}

fn controller() -> Arc<Controller> {
    let path = strata_testkit::workspace_root().join("models/default.json");
    let model = Model::from_json(&fs::read(path).unwrap()).unwrap();
    let beginning = Settings {
        modes: vec![String::from("default")],
        ..Settings::default()
    };
    Arc::new(Controller::new(model, beginning).unwrap())
}

/// The server's answer, or why there is no answer.
fn ask(port: u16, files: &Files, name: &str, request: &str) -> std::io::Result<String> {
    let (certificate, key) = (
        files.path(&format!("{name}.pem")),
        files.path(&format!("{name}.key")),
    );
    let config = strata_auth::tls::client(&certificate, &key, &files.path("ca.pem")).unwrap();
    let host = "localhost".try_into().unwrap();
    let connection = ClientConnection::new(config, host).unwrap();
    let stream = TcpStream::connect(("127.0.0.1", port))?;
    stream.set_read_timeout(Some(Duration::from_secs(60)))?;
    let mut stream = StreamOwned::new(connection, stream);
    stream.write_all(request.as_bytes())?;
    let mut answer = String::new();
    match stream.read_to_string(&mut answer) {
        // The server closes connections without a TLS close message.
        Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof && !answer.is_empty() => {}
        done => drop(done?),
    }
    Ok(answer)
}

fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().port()
}

/// An API that asks for certificates, and its port.
fn started(files: &Files) -> (Server, u16, Arc<Controller>) {
    let port = free_port();
    let config = ControlConfig {
        listen: Some(format!("127.0.0.1:{port}")),
        tls_cert: Some(files.path("server.pem")),
        tls_key: Some(files.path("server.key")),
        tls_ca: Some(files.path("ca.pem")),
        ..ControlConfig::default()
    };
    let controller = controller();
    let endpoints = Endpoints {
        socket: None,
        tcp: config.tcp().unwrap(),
    };
    strata_sandbox::leave_unrestricted();
    let server = serve(Arc::clone(&controller), endpoints).unwrap();
    (server, port, controller)
}

#[test]
fn a_certificate_of_the_authority_opens_the_api() {
    let files = Files::new();
    let (_server, port, controller) = started(&files);
    // A silent client keeps no one out.
    let _silent = TcpStream::connect(("127.0.0.1", port)).unwrap();
    let body = "{\"mode\":\"log-all\",\"why\":\"test\"}";
    let request = format!(
        "PUT /api/v1/mode HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
         Content-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    );
    let answer = ask(port, &files, "friend", &request).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    assert_eq!(controller.events()[0].who, "certificate");
    assert_eq!(controller.status().mode, "log-all");

    let refused = ask(
        port,
        &files,
        "stranger",
        &request.replace("log-all", "default"),
    );
    assert!(!refused.is_ok_and(|answer| answer.contains("200")));
    assert_eq!(controller.status().mode, "log-all");
    let mut plain = TcpStream::connect(("127.0.0.1", port)).unwrap();
    plain.write_all(request.as_bytes()).unwrap();
    let mut answer = Vec::new();
    let _ = plain.read_to_end(&mut answer);
    assert!(!answer.starts_with(b"HTTP"));
}

/// Silent clients do not delay others, even in large numbers.
#[test]
fn idle_connections_do_not_delay_others() {
    let files = Files::new();
    let (server, port, _) = started(&files);
    let idle: Vec<TcpStream> = (0..300)
        .map(|_| TcpStream::connect(("127.0.0.1", port)).unwrap())
        .collect();
    let start = Instant::now();
    let request = "GET /api/v1/status HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";
    let answer = ask(port, &files, "friend", request).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    // A handshake that is not completed ends after 5 seconds; five rounds of 64 took 23.
    let took = start.elapsed();
    assert!(took < Duration::from_secs(2), "answered after {took:?}");
    drop((idle, server));
}

#[test]
fn what_is_missing_is_said() {
    let files = Files::new();
    let wrong = |change: &dyn Fn(&mut ControlConfig)| {
        let mut config = ControlConfig {
            listen: Some(String::from("127.0.0.1:0")),
            ..ControlConfig::default()
        };
        change(&mut config);
        config.tcp().unwrap_err()
    };
    assert!(matches!(wrong(&|_| {}), EndpointError::Open));
    let ca = |config: &mut ControlConfig| config.tls_ca = Some(files.path("ca.pem"));
    assert!(matches!(wrong(&ca), EndpointError::HalfTls));
    let no_key = |config: &mut ControlConfig| {
        config.tls_cert = Some(files.path("server.pem"));
        config.tls_key = Some(Path::new("/nonexistent.key").into());
    };
    assert!(wrong(&no_key).to_string().starts_with("/nonexistent.key: "));
    // Somebody else on the machine could be the server.
    let readable = std::os::unix::fs::PermissionsExt::from_mode(0o644);
    fs::set_permissions(files.path("server.key"), readable).unwrap();
    let open_key = |config: &mut ControlConfig| {
        config.tls_cert = Some(files.path("server.pem"));
        config.tls_key = Some(files.path("server.key"));
    };
    let said = wrong(&open_key).to_string();
    assert!(
        said.contains("server.key: everyone on this machine can read"),
        "{said}"
    );
    fs::write(files.path("token"), " \n").unwrap();
    let owner_only = std::os::unix::fs::PermissionsExt::from_mode(0o600);
    fs::set_permissions(files.path("token"), owner_only).unwrap();
    let empty = |config: &mut ControlConfig| config.token_file = Some(files.path("token"));
    assert!(
        wrong(&empty)
            .to_string()
            .ends_with("token: this file contains no secret")
    );
}
