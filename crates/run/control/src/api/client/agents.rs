//! Asks a controller of agents, over the Unix socket in its state.

use std::io;
use std::path::{Path, PathBuf};

use strata_agent::{AgentStatus, Applied, DestinationSum, DocumentFile, Event, Rollout};

use super::{Client, ClientError};
use crate::api::{AgentRequest, ApplyRequest, UndoRequest};
use hyper::Method;

/// The socket for administrators, in a controller's directory.
pub const CONTROLLER_SOCKET: &str = "control.sock";

/// Why a controller does not answer an administrator.
#[derive(Debug, thiserror::Error)]
pub enum ControllerError {
    /// There is no socket in its directory.
    #[error(
        "{}: no controller runs with this directory: start one (`strata controller run --state {}`), or name the directory \
         of one that runs (--state)",
        .0.display(), .0.display()
    )]
    NotRunning(PathBuf),
    /// There is one, but no listener.
    #[error(
        "{}: the controller that ran with this directory was killed: start it again (`strata \
         controller run --state {}`)", .0.display(), .0.display()
    )]
    Killed(PathBuf),
    /// This user may not ask it.
    #[error(
        "{}: permission denied: only root and the user of the controller may use it",
        .0.display()
    )]
    Denied(PathBuf),
    /// It does not answer as it should.
    #[error("{}: cannot send a request to the controller: {problem}", dir.display())]
    Odd {
        /// Its directory.
        dir: PathBuf,
        /// What is wrong.
        problem: String,
    },
    /// It refuses.
    #[error("{0}")]
    Refused(String),
}

/// A running controller, for administrators.
#[derive(Clone, Debug)]
pub struct ControllerClient {
    dir: PathBuf,
    client: Client,
}

impl ControllerClient {
    /// The controller at `place`: its state directory, the directory of its socket, or the socket,
    /// if the name ends in `.sock`.
    #[must_use]
    pub fn new(place: &Path) -> Self {
        let is_socket = place.extension().is_some_and(|ending| ending == "sock");
        let dir = match place.parent() {
            Some(dir) if is_socket && !place.is_dir() => dir.to_owned(),
            _ => {
                return Self {
                    dir: place.to_owned(),
                    client: Client::at(place.join(CONTROLLER_SOCKET)),
                };
            }
        };
        let client = Client::at(place.to_owned());
        Self { dir, client }
    }

    /// Its socket.
    #[must_use]
    pub fn socket(&self) -> &Path {
        self.client.socket()
    }

    /// All agents of a controller.
    ///
    /// # Errors
    ///
    /// If it cannot be reached, refuses, or sends an unexpected answer: as for all methods below.
    pub fn agents(&self) -> Result<Vec<AgentStatus>, ControllerError> {
        self.answer(self.client.get("/api/v1/agents"))
    }

    /// How far the version that holds is.
    ///
    /// # Errors
    ///
    /// As [`ControllerClient::agents`].
    pub fn rollout(&self) -> Result<Rollout, ControllerError> {
        self.answer(self.client.get("/api/v1/agents/rollout"))
    }

    /// What was exported to each destination, and what its collector has received.
    ///
    /// # Errors
    ///
    /// As [`ControllerClient::agents`].
    pub fn sums(&self) -> Result<Vec<DestinationSum>, ControllerError> {
        self.answer(self.client.get("/api/v1/agents/sums"))
    }

    /// The latest events, at most this number, the latest last.
    ///
    /// # Errors
    ///
    /// As [`ControllerClient::agents`].
    pub fn log(&self, most: usize) -> Result<Vec<Event>, ControllerError> {
        self.answer(self.client.get(&format!("/api/v1/agents/log?most={most}")))
    }

    /// Applies the files of a directory, for this reason, or says only what that would change.
    ///
    /// # Errors
    ///
    /// As [`ControllerClient::agents`].
    pub fn apply(
        &self,
        files: Vec<DocumentFile>,
        dry_run: bool,
        why: &str,
    ) -> Result<Applied, ControllerError> {
        let why = why.to_owned();
        self.post(
            "apply",
            &ApplyRequest {
                files,
                dry_run,
                why,
            },
        )
    }

    /// Returns to the version before, for this reason.
    ///
    /// # Errors
    ///
    /// As [`ControllerClient::agents`].
    pub fn undo(&self, why: &str) -> Result<Applied, ControllerError> {
        let why = why.to_owned();
        self.post("undo", &UndoRequest { why })
    }

    /// Refuses an agent from now on, for this reason.
    ///
    /// # Errors
    ///
    /// As [`ControllerClient::agents`].
    pub fn revoke(&self, name: &str, why: &str) -> Result<(), ControllerError> {
        self.post("revoke", &AgentRequest::new(name, why))
    }

    /// Forgets an agent, for this reason.
    ///
    /// # Errors
    ///
    /// As [`ControllerClient::agents`].
    pub fn forget(&self, name: &str, why: &str) -> Result<(), ControllerError> {
        self.post("forget", &AgentRequest::new(name, why))
    }

    fn post<A: serde::de::DeserializeOwned>(
        &self,
        what: &str,
        request: &impl serde::Serialize,
    ) -> Result<A, ControllerError> {
        let path = format!("/api/v1/agents/{what}");
        self.answer(self.client.send(Method::POST, &path, request))
    }

    /// In words of a controller: those of [`ClientError`] are of a recording.
    fn answer<A>(&self, answer: Result<A, ClientError>) -> Result<A, ControllerError> {
        let dir = self.dir.clone();
        let problem = match answer {
            Ok(answer) => return Ok(answer),
            Err(ClientError::Refused(why)) => return Err(ControllerError::Refused(why)),
            Err(ClientError::Connect { source, .. }) => match source.kind() {
                io::ErrorKind::NotFound => return Err(ControllerError::NotRunning(dir)),
                io::ErrorKind::ConnectionRefused => return Err(ControllerError::Killed(dir)),
                io::ErrorKind::PermissionDenied => return Err(ControllerError::Denied(dir)),
                _ => source.to_string(),
            },
            Err(ClientError::Silent { after, .. }) => format!(
                "no answer within {} s: is it stopped (Ctrl-Z, SIGSTOP), or the machine overloaded?",
                after.as_secs()
            ),
            Err(ClientError::Answer { path, source, .. }) => format!(
                "the answer to {path} cannot be parsed ({source}): does it run another version of \
                 Strata?"
            ),
            Err(ClientError::Runtime(source)) => source.to_string(),
            Err(ClientError::Http(source)) => source.to_string(),
            Err(ClientError::Incomplete { .. }) => "the answer is cut off, or too long".to_owned(),
            Err(other @ (ClientError::None { .. } | ClientError::Several { .. })) => {
                unreachable!("its socket was named: {other}")
            }
        };
        Err(ControllerError::Odd { dir, problem })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixListener;

    #[test]
    fn a_controller_that_does_not_answer_is_not_called_a_recording() {
        let dir = tempfile::tempdir().unwrap();
        let asked = || ControllerClient::new(dir.path()).agents().unwrap_err();
        let missing = asked().to_string();
        assert!(missing.contains("no controller runs"), "{missing}");
        // As a process that was killed leaves it.
        drop(UnixListener::bind(dir.path().join(CONTROLLER_SOCKET)).unwrap());
        let killed = asked();
        assert!(matches!(killed, ControllerError::Killed(_)), "{killed}");
        assert!(killed.to_string().contains("strata controller run"));
        let denied = ClientError::Connect {
            socket: dir.path().to_owned(),
            source: io::ErrorKind::PermissionDenied.into(),
        };
        let denied = ControllerClient::new(dir.path()).answer::<()>(Err(denied));
        let denied = denied.unwrap_err().to_string();
        assert!(denied.contains("permission denied"), "{denied}");
        for text in [missing, killed.to_string(), denied] {
            assert!(!text.contains("record"), "{text}");
        }
    }
}
