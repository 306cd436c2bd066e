//! Where a stream is: in a directory of this machine, or at a server.

use std::net::ToSocketAddrs;
use std::path::{Path, PathBuf};

use anyhow::Result;
use strata_auth::tls::{ClientTls, TlsFiles};
use strata_stream::StreamName;
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

/// Names of streams: `*` stands for any characters, and `?` for one.
#[derive(Clone, Debug)]
pub(super) struct Pattern(String);

impl Pattern {
    /// A name with `*` or `?`.
    pub(super) fn of(text: &str) -> Option<Self> {
        text.contains(['*', '?']).then(|| Self(text.to_owned()))
    }

    /// As it was given.
    pub(super) fn text(&self) -> &str {
        &self.0
    }

    /// Whether a name is one of these.
    pub(super) fn matches(&self, name: &str) -> bool {
        let (pattern, name) = (self.0.as_bytes(), name.as_bytes());
        let (mut at, mut of) = (0, 0);
        // The last star, and how much of the name it stands for.
        let mut star: Option<(usize, usize)> = None;
        while of < name.len() {
            match pattern.get(at) {
                Some(b'*') => {
                    star = Some((at, of));
                    at += 1;
                }
                Some(&byte) if byte == b'?' || byte == name[of] => {
                    at += 1;
                    of += 1;
                }
                _ => {
                    let Some((place, taken)) = star else {
                        return false;
                    };
                    star = Some((place, taken + 1));
                    (at, of) = (place + 1, taken + 1);
                }
            }
        }
        pattern[at..].iter().all(|&byte| byte == b'*')
    }
}

/// Where it is.
pub(super) enum Place {
    Here(PathBuf, StreamName),
    There(Server, StreamName),
}

/// A server of streams.
pub(super) struct Server {
    pub(super) address: String,
    pub(super) tls: Option<ClientTls>,
}

impl PlaceArgs {
    /// The directory and the pattern of several of its streams, if the name is one.
    pub(super) fn pattern(&self) -> Result<Option<(&Path, Pattern)>> {
        let Some(pattern) = self.name.as_deref().and_then(Pattern::of) else {
            return Ok(None);
        };
        self.refuse_server()?;
        Ok(Some((&self.dir, pattern)))
    }

    /// Refuses options of a server for a directory.
    fn refuse_server(&self) -> Result<()> {
        match self.server.are_given() {
            true => Err(refuse(
                "--tls-cert and --insecure are for a server: write HOST:PORT/NAME",
            )),
            false => Ok(()),
        }
    }

    pub(super) fn place(&self) -> Result<Place> {
        if let Some(stream) = &self.name {
            self.refuse_server()?;
            return Ok(Place::Here(self.dir.clone(), name(stream)?));
        }
        let text = self.dir.display().to_string();
        let missing = || {
            refuse(format!(
                "{text}: name a stream: DIR NAME, or, at a server, HOST:PORT/NAME"
            ))
        };
        let (address, stream) = at_server(&text).ok_or_else(missing)?;
        let files = self.server.files(address)?;
        let tls = files.map(|files| ClientTls::new(&files)).transpose()?;
        let server = Server {
            address: address.to_owned(),
            tls,
        };
        Ok(Place::There(server, name(stream)?))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_as_those_of_a_shell() {
        for (pattern, name, matches) in [
            ("host*", "host1", true),
            ("host*", "host", true),
            ("host*", "ghost1", false),
            ("*", "anything", true),
            ("*.web", "a.web", true),
            ("*.web", "a.web.b", false),
            ("h?st1", "host1", true),
            ("h?st1", "hst1", false),
            ("a*b*c", "aXbYbZc", true),
            ("a*b*c", "aXbYbZ", false),
            ("**a", "ba", true),
        ] {
            let of = Pattern::of(pattern).unwrap();
            assert_eq!(of.matches(name), matches, "{pattern} {name}");
            let shell = format!("case {name} in {pattern}) exit 0;; esac; exit 1");
            let said = std::process::Command::new("sh")
                .args(["-c", &shell])
                .status();
            assert_eq!(said.unwrap().success(), matches, "{pattern} {name}");
        }
        assert!(Pattern::of("host1").is_none());
    }
}
