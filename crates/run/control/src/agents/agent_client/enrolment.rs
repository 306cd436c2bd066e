//! A member of a fleet as its controller knows it: it enrols with the controller's token, has a certificate from then
//! on, and asks for another one in time. What it keeps is in a directory of its own.

use std::fs;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use rustls::ClientConfig;
use serde::{Deserialize, Serialize};
use strata_agent::{Enrol, Renew};
use strata_auth::authority::{Key, agent, write_private};
use strata_role::{At as _, Result, RoleError};
use strata_sandbox::read_secret;
use strata_wire::unix_seconds;

use super::AgentClient;

/// Digits of a token in its file.
pub const TOKEN_DIGITS: usize = 64;
/// The last line of a certificate (RFC 7468, section 5.1).
const LAST_LINE: &str = "-----END CERTIFICATE-----";
/// Where the identity is, in the directory.
const FILE: &str = "identity.json";

/// A certificate and its key, and that of the authority that issued it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    /// Of the controller's authority (PEM).
    authority: String,
    /// Its own certificate and key (PEM).
    certificate: String,
    key: String,
    /// Seconds since 1970 from which it asks for another certificate.
    renew_at: u64,
    /// The name under which it enrolled; empty if that was not stored.
    #[serde(default)]
    name: String,
    /// Whether it is a collector's.
    #[serde(default)]
    is_collector: bool,
}

/// Who enrols, and where.
#[derive(Clone, Debug)]
pub struct Enrolment {
    /// The controller: `HOST:PORT`.
    pub address: String,
    /// As the controller has written it; needed until there is a certificate.
    pub token_file: Option<PathBuf>,
    /// The name under which it enrols.
    pub name: String,
    /// Whether it is a collector; else an agent.
    pub is_collector: bool,
    /// Its directory, which exists.
    pub dir: PathBuf,
}

fn refused(error: &impl std::fmt::Display) -> RoleError {
    RoleError::Refused(error.to_string())
}

fn config(identity: &Identity) -> Result<Arc<ClientConfig>> {
    let own = (identity.certificate.as_str(), identity.key.as_str());
    agent(&identity.authority, Some(own)).map_err(|error| refused(&error))
}

impl Enrolment {
    /// What was stored; a token that can be used, if there is nothing.
    ///
    /// # Errors
    ///
    /// If the file is damaged, or there is neither certificate nor token.
    pub fn begin(&self) -> Result<Option<Identity>> {
        let path = self.dir.join(FILE);
        let text = match fs::read(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                self.token()?;
                return Ok(None);
            }
            Err(error) => return Err(error).at(path.display()),
        };
        let identity = serde_json::from_slice(&text).map_err(io::Error::from);
        let identity: Identity =
            identity.at_with(|| format!("{}: damaged: remove it", path.display()))?;
        self.check(&identity)?;
        Ok(Some(identity))
    }

    /// An agent may go on under its name if its host has another one now; a collector is that of one destination.
    fn check(&self, identity: &Identity) -> Result<()> {
        let kind = |is_collector| {
            if is_collector {
                "a collector"
            } else {
                "an agent"
            }
        };
        let is_other = identity.is_collector != self.is_collector;
        if is_other || (self.is_collector && identity.name != self.name) {
            return Err(RoleError::Refused(format!(
                "{}: this directory belongs to {}, which is enrolled as {}: name another one (--state) for {}, {}",
                self.dir.display(),
                identity.name,
                kind(identity.is_collector),
                self.name,
                kind(self.is_collector),
            )));
        }
        Ok(())
    }

    fn keep(&self, identity: &Identity) -> Result<()> {
        let path = self.dir.join(FILE);
        let text = serde_json::to_string_pretty(identity).map_err(io::Error::from)?;
        write_private(&path, &text).at_with(|| format!("{}: cannot write", path.display()))
    }

    /// The token, and the certificate of the controller's authority.
    fn token(&self) -> Result<(String, String)> {
        let Some(path) = &self.token_file else {
            return Err(RoleError::Refused(format!(
                "this host is not enrolled at {}: copy enrol.token from the controller's directory, and \
                 name it with --token-file",
                self.address
            )));
        };
        let text = read_secret(path).map_err(|error| refused(&error))?;
        let whole = text.split_once('\n').filter(|(token, authority)| {
            token.trim().len() == TOKEN_DIGITS && authority.trim_end().ends_with(LAST_LINE)
        });
        let usable = whole.filter(|(_, authority)| agent(authority, None).is_ok());
        match usable {
            Some((token, authority)) => Ok((token.trim().to_owned(), authority.to_owned())),
            None => Err(RoleError::Refused(format!(
                "{}: not a complete enrol.token of a controller (a line of {TOKEN_DIGITS} digits \
                 and a certificate): copy it again",
                path.display()
            ))),
        }
    }

    /// Asks for a first certificate, and stores it.
    ///
    /// # Errors
    ///
    /// If the token cannot be used, the controller cannot be reached or refuses, or the directory cannot be written.
    pub fn enrol(&self) -> Result<Identity> {
        let (token, authority) = self.token()?;
        let key = Key::generate().map_err(|error| refused(&error))?;
        let config = agent(&authority, None).map_err(|error| refused(&error))?;
        let mut client = AgentClient::new(&self.address, config)?;
        let enrolled = client.enrol(&Enrol {
            name: self.name.clone(),
            token,
            public_key: key.public().to_vec(),
            is_collector: self.is_collector,
        });
        let enrolled = enrolled.map_err(|error| refused(&error))?;
        let identity = Identity {
            authority,
            certificate: enrolled.certificate,
            key: key.pem(),
            renew_at: enrolled.renew_at,
            name: self.name.clone(),
            is_collector: self.is_collector,
        };
        self.keep(&identity)?;
        Ok(identity)
    }

    /// A client that shows this certificate.
    ///
    /// # Errors
    ///
    /// If the certificate cannot be used, or the system lacks descriptors.
    pub fn client(&self, identity: &Identity) -> Result<AgentClient> {
        Ok(AgentClient::new(&self.address, config(identity)?)?)
    }

    /// Asks for another certificate if it is time for that, stores it, and shows it from now on.
    ///
    /// # Errors
    ///
    /// As [`Enrolment::enrol`].
    pub fn renew(&self, identity: &mut Identity, client: &mut AgentClient) -> Result<()> {
        if unix_seconds() < identity.renew_at {
            return Ok(());
        }
        let key = Key::generate().map_err(|error| refused(&error))?;
        let public_key = key.public().to_vec();
        let renewed = client
            .renew(&Renew { public_key })
            .map_err(|error| refused(&error))?;
        identity.certificate = renewed.certificate;
        identity.key = key.pem();
        identity.renew_at = renewed.renew_at;
        self.keep(identity)?;
        client.show(config(identity)?);
        Ok(())
    }

    /// Whether it may enrol again, after a refusal because the controller does not know its certificate.
    #[must_use]
    pub fn may_enrol_again(&self, why: &str) -> bool {
        self.token().is_ok() && why.contains("enrol again") && !why.contains("revoked")
    }
}
