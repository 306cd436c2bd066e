//! Where a stream is: in a directory of this machine, or at a server.

use std::net::ToSocketAddrs;
use std::path::PathBuf;

use anyhow::Result;
use strata_relay::tls::{SwitchTls, TlsFiles};
use strata_stream::StreamName;

use super::name;
use crate::output::refuse;

/// The stream that a command is for.
#[derive(Debug, clap::Args)]
pub(super) struct PlaceArgs {
    /// The directory of streams; or HOST:PORT/NAME, a stream at `strata stream serve`.
    #[arg(value_name = "DIR")]
    dir: PathBuf,
    /// The stream.
    name: Option<String>,

    /// Of a server: show it this certificate (PEM).
    #[arg(long, value_name = "FILE", requires_all = ["tls_key", "tls_ca"])]
    tls_cert: Option<PathBuf>,

    /// Read the private key of the certificate (PEM) from this file.
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,

    /// Accept a server's certificate from these authorities (PEM).
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_ca: Option<PathBuf>,

    /// Trust a server on another machine without proof of who it is, unencrypted.
    #[arg(long, conflicts_with = "tls_cert")]
    insecure: bool,
}

/// Where it is.
pub(super) enum Place {
    Here(PathBuf, StreamName),
    There(Server, StreamName),
}

/// A server of streams.
pub(super) struct Server {
    pub(super) address: String,
    pub(super) tls: Option<SwitchTls>,
}

impl PlaceArgs {
    pub(super) fn place(&self) -> Result<Place> {
        if let Some(stream) = &self.name {
            if self.tls_cert.is_some() || self.insecure {
                return Err(refuse(
                    "--tls-cert and --insecure are for a server: write HOST:PORT/NAME",
                ));
            }
            return Ok(Place::Here(self.dir.clone(), name(stream)?));
        }
        let text = self.dir.display().to_string();
        let missing = || {
            refuse(format!(
                "{text}: name a stream: DIR NAME, or, at a server, HOST:PORT/NAME"
            ))
        };
        let (address, stream) = text.rsplit_once('/').ok_or_else(missing)?;
        let port = address.rsplit_once(':').map(|(_, port)| port);
        if port.is_none_or(|port| port.parse::<u16>().is_err()) || address.contains('/') {
            return Err(missing());
        }
        Ok(Place::There(self.server(address)?, name(stream)?))
    }

    fn server(&self, address: &str) -> Result<Server> {
        let tls = match (&self.tls_cert, &self.tls_key, &self.tls_ca) {
            (Some(certificate), Some(key), Some(authority)) => Some(SwitchTls::new(&TlsFiles {
                certificate,
                key,
                authority,
            })?),
            _ => None,
        };
        let mut addresses = address
            .to_socket_addrs()
            .map_err(|error| anyhow::anyhow!("{address}: {error}"))?;
        let is_here = addresses.all(|address| address.ip().is_loopback());
        if tls.is_none() && !self.insecure && !is_here {
            return Err(refuse(format!(
                "{address} is another machine: give --tls-cert, --tls-key and --tls-ca, so that both \
                 ends know each other; or --insecure to trust whoever answers there"
            )));
        }
        Ok(Server {
            address: address.to_owned(),
            tls,
        })
    }
}
