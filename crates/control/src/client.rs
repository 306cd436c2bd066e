//! Asks a running recording over its Unix socket.

use std::path::{Path, PathBuf};
use std::{fs, io};

use http_body_util::{BodyExt, Full};
use hyper::body::Bytes;
use hyper::{Method, Request, StatusCode};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use strata_confine::{Owner, SOCKET_NAME, SocketError, SocketFile, runtime_dir};
use tokio::net::UnixStream;

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// Nothing is running, or nothing that this user may ask.
    #[error(
        "no running recording found in {}: is one running, and are you its user? \
         --socket names another socket", dir.display()
    )]
    None {
        /// Where sockets were looked for.
        dir: PathBuf,
    },
    /// Several are running.
    #[error(
        "several recordings are running; choose one with --socket:{}",
        list(sockets)
    )]
    Several {
        /// Their sockets.
        sockets: Vec<PathBuf>,
    },
    /// It cannot be reached.
    #[error("{}: {source}", socket.display())]
    Connect {
        /// The socket.
        socket: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The exchange failed.
    #[error("the recording does not answer as expected: {0}")]
    Http(#[from] hyper::Error),
    /// It refuses.
    #[error("{0}")]
    Refused(String),
}

fn list(sockets: &[PathBuf]) -> String {
    sockets
        .iter()
        .map(|path| format!("\n  {}", path.display()))
        .collect()
}

/// Listens on the socket of this process, in a directory of its own.
///
/// # Errors
///
/// If it cannot be made.
pub fn own_socket(owner: &Owner) -> Result<SocketFile, SocketError> {
    let name = format!("record-{}", std::process::id());
    SocketFile::bind_in_own_dir(&runtime_dir(), &name, owner)
}

/// The socket of the only recording that is running.
///
/// # Errors
///
/// If there is none, or more than one.
pub fn find_socket() -> Result<PathBuf, ClientError> {
    let dir = runtime_dir();
    let entries = fs::read_dir(&dir).into_iter().flatten().flatten();
    // Those of relays hand memory over.
    let entries =
        entries.filter(|entry| !entry.file_name().to_string_lossy().starts_with("relay-"));
    let sockets = entries.map(|entry| match entry.path() {
        path if path.extension().is_some_and(|e| e == "sock") => path,
        dir => dir.join(SOCKET_NAME),
    });
    let sockets = sockets.filter(|path| std::os::unix::net::UnixStream::connect(path).is_ok());
    let mut sockets: Vec<PathBuf> = sockets.collect();
    match sockets.len() {
        0 => Err(ClientError::None { dir }),
        1 => Ok(sockets.remove(0)),
        _ => Err(ClientError::Several { sockets }),
    }
}

/// Sends a request; the answer as JSON, null if it has no body.
///
/// # Errors
///
/// If it cannot be reached, or refuses.
pub fn ask(
    socket: &Path,
    method: Method,
    path: &str,
    body: Option<&Value>,
) -> Result<Value, ClientError> {
    let connect_error = |source| ClientError::Connect {
        socket: socket.into(),
        source,
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    runtime.map_err(connect_error)?.block_on(async {
        let stream = UnixStream::connect(socket).await.map_err(connect_error)?;
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
        tokio::spawn(connection);
        let text = body.map(ToString::to_string).unwrap_or_default();
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header("host", "strata")
            .header("content-type", "application/json")
            .body(Full::new(Bytes::from(text)));
        let request = request.map_err(|error| ClientError::Refused(error.to_string()))?;
        let answer = sender.send_request(request).await?;
        let status = answer.status();
        let bytes = answer.into_body().collect().await?.to_bytes();
        let value: Value = serde_json::from_slice(&bytes).unwrap_or_default();
        if status.is_success() {
            return Ok(value);
        }
        let text = String::from_utf8_lossy(&bytes).into_owned();
        let message = value["error"].as_str().map_or(text, str::to_owned);
        if status == StatusCode::NOT_FOUND && message.is_empty() {
            return Err(ClientError::Refused(format!("{path}: not known there")));
        }
        Err(ClientError::Refused(message))
    })
}
