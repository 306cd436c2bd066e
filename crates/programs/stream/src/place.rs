//! Where a stream is: in a directory of this machine, or at a server.

use std::net::ToSocketAddrs;
use std::path::{Path, PathBuf};

use anyhow::Result;
use strata_auth::tls::{ClientTls, TlsFiles};
use strata_stream::{NamePattern, StreamName};
use strata_terminal::output::refuse;

use super::name;

/// The stream that a command is for.
#[derive(Debug, clap::Args)]
pub(super) struct PlaceArgs {
    /// The directory of streams; or HOST:PORT/NAME, a stream of a server (`strata stream serve`).
    #[arg(value_name = "DIR")]
    dir: PathBuf,
    /// The name of the stream in the directory.
    name: Option<String>,

    #[command(flatten)]
    server: ServerArgs,
}

/// How to connect to a server.
#[derive(Debug, clap::Args)]
pub(super) struct ServerArgs {
    /// Present this certificate (PEM) to the server.
    #[arg(long, value_name = "FILE", requires_all = ["tls_key", "tls_ca"])]
    tls_cert: Option<PathBuf>,

    /// Read the private key of the certificate (PEM) from this file.
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,

    /// Accept only a server certificate from the authorities in this file (PEM).
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_ca: Option<PathBuf>,

    /// Use a server on another machine without authentication or encryption.
    #[arg(long, conflicts_with = "tls_cert")]
    insecure: bool,
}

/// Where it is, or they are.
pub(super) enum Place<T> {
    Here(PathBuf, T),
    There(Server, T),
}

/// A stream, or those whose names match.
pub(super) enum Named {
    One(StreamName),
    Several(NamePattern),
}

/// A server of streams.
pub(super) struct Server {
    pub(super) address: String,
    pub(super) tls: Option<ClientTls>,
}

impl PlaceArgs {
    /// Refuses options of a server for a directory.
    fn refuse_server(&self) -> Result<()> {
        match self.server.are_given() {
            true => Err(refuse(
                "--tls-cert and --insecure are for a server: write HOST:PORT/NAME",
            )),
            false => Ok(()),
        }
    }

    /// One stream.
    pub(super) fn place(&self) -> Result<Place<StreamName>> {
        self.find(name)
    }

    /// One stream, or several.
    pub(super) fn one_or_several(&self) -> Result<Place<Named>> {
        self.find(|text| match NamePattern::of(text) {
            Some(pattern) => Ok(Named::Several(pattern)),
            None => name(text).map(Named::One),
        })
    }

    fn find<T>(&self, named: impl Fn(&str) -> Result<T>) -> Result<Place<T>> {
        if let Some(stream) = &self.name {
            self.refuse_server()?;
            return Ok(Place::Here(self.dir.clone(), named(stream)?));
        }
        let text = self.dir.display().to_string();
        let missing = || {
            refuse(format!(
                "{text} names no stream: write DIR NAME, or, at a server, HOST:PORT/NAME"
            ))
        };
        let (address, stream) = at_server(&text).ok_or_else(missing)?;
        let files = self.server.files(address)?;
        let tls = files.map(|files| ClientTls::new(&files)).transpose()?;
        let server = Server {
            address: address.to_owned(),
            tls,
        };
        Ok(Place::There(server, named(stream)?))
    }
}

/// The address and the name in `HOST:PORT/NAME`.
pub(super) fn at_server(text: &str) -> Option<(&str, &str)> {
    let (address, name) = text.rsplit_once('/')?;
    is_address(address).then_some((address, name))
}

/// Whether this is `HOST:PORT`.
fn is_address(text: &str) -> bool {
    let parts = text.rsplit_once(':');
    parts.is_some_and(|(host, port)| {
        !host.is_empty() && !host.contains('/') && port.parse::<u16>().is_ok()
    })
}

/// Refuses a server where a directory is to be made. A directory that is there may have any name.
pub(super) fn not_at_server(dir: &Path) -> Result<()> {
    let text = dir.display().to_string();
    if !dir.exists() && (is_address(&text) || at_server(&text).is_some()) {
        return Err(refuse(format!(
            "{text}: streams are created on the server's machine, in the directory of `strata stream serve`; \
             for a directory of this name, write ./{text}"
        )));
    }
    Ok(())
}

impl ServerArgs {
    /// Whether any option of a server was given.
    pub(super) fn are_given(&self) -> bool {
        self.tls_cert.is_some() || self.insecure
    }

    /// The files for TLS with a server at `HOST:PORT`, if it is to be.
    pub(super) fn files(&self, address: &str) -> Result<Option<TlsFiles<'_>>> {
        let files = match (&self.tls_cert, &self.tls_key, &self.tls_ca) {
            (Some(certificate), Some(key), Some(authority)) => Some(TlsFiles {
                certificate,
                key,
                authority,
            }),
            _ => None,
        };
        let mut addresses = address
            .to_socket_addrs()
            .map_err(|error| anyhow::anyhow!("{address}: {error}"))?;
        let is_here = addresses.all(|address| address.ip().is_loopback());
        if files.is_none() && !self.insecure && !is_here {
            return Err(refuse(format!(
                "{address} is another machine: give --tls-cert, --tls-key and --tls-ca, so that \
                 both ends authenticate each other; or --insecure to use it without authentication"
            )));
        }
        Ok(files)
    }
}
