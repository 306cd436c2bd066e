//! Errors between switch and relay.

use std::io;

use strata_auth::tls::TlsError;
use strata_rdma::Failure;
use strata_store::StoreError;
use strata_wire::Printable;

/// Why a connection between switch and relay fails.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RelayError {
    /// The operating system returned an error.
    #[error("{what}: {source}")]
    Io {
        /// The operation, and its object.
        what: String,
        /// The operating system's error.
        source: io::Error,
    },
    /// The peer sent something outside the protocol.
    #[error("{peer}: unexpected message: {}; do both ends run the same version of Strata?", Printable(.problem))]
    Protocol {
        /// The peer.
        peer: String,
        /// What was wrong.
        problem: String,
    },
    /// The peer closed the connection.
    #[error("{peer}: closed the connection")]
    Closed {
        /// The peer.
        peer: String,
    },
    /// The peer requires TLS, which this end has not enabled.
    #[error("{peer}: requires TLS: give --tls-cert, --tls-key and --tls-ca")]
    WantsTls {
        /// The peer.
        peer: String,
    },
    /// The peer uses TLS, which this end has not enabled.
    #[error("{peer}: speaks TLS, and this end does not: give --tls-cert, --tls-key and --tls-ca")]
    SpeaksTls {
        /// The peer.
        peer: String,
    },
    /// The peer uses another version of the protocol.
    #[error(
        "{peer}: speaks version {theirs} of the control protocol and this end version {}: use the same version of Strata at both ends",
        crate::protocol::VERSION
    )]
    Version {
        /// The peer.
        peer: String,
        /// Its version.
        theirs: u8,
    },
    /// The relay does not know the secret.
    #[error("{peer}: does not know the secret in --secret-file, so nothing is sent to it")]
    Impostor {
        /// The relay.
        peer: String,
    },
    /// The relay is on another machine, and not authenticated.
    #[error(
        "{peer}: this is another machine, and nothing proves that it is the relay: give --secret-file, or --tls-cert, --tls-key and --tls-ca, or --insecure to send packets to any machine that answers there"
    )]
    Unprotected {
        /// The relay.
        peer: String,
    },
    /// The relay closed the connection instead of answering.
    #[error(
        "{peer}: closed the connection without a message; does it require TLS (--tls-cert, --tls-key, --tls-ca), or run an older version of Strata?"
    )]
    HungUp {
        /// The relay.
        peer: String,
    },
    /// The relay refuses this switch.
    #[error("the relay refuses: {}", Printable(.0))]
    Refused(String),
    /// The relay cannot store the packets that it is sent.
    #[error("{}", Printable(.0))]
    Failed(String),
    /// The relay is connected, but makes no progress.
    #[error("{peer}: has not stored or sent anything for {seconds} s")]
    Silent {
        /// The relay.
        peer: String,
        /// For this long.
        seconds: u64,
    },
    /// This end was stopped.
    #[error("{peer}: interrupted while waiting for an answer")]
    Interrupted {
        /// The peer.
        peer: String,
    },
    /// The RDMA connection failed.
    #[error("the RDMA connection to the relay failed: {0}")]
    Rdma(#[from] Failure),
    /// Certificates or keys are unusable.
    #[error("{file}: {problem}")]
    Tls {
        /// The file.
        file: String,
        /// What is wrong.
        problem: String,
    },
    /// A packet is larger than the relay's blocks.
    #[error(
        "a packet of {bytes} bytes does not fit in the relay's blocks: give the relay larger ones (--block-size)"
    )]
    PacketTooLarge {
        /// Bytes of the packet and its record.
        bytes: usize,
    },
    /// The log cannot be written.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl From<TlsError> for RelayError {
    fn from(error: TlsError) -> Self {
        Self::Tls {
            file: error.file,
            problem: error.problem,
        }
    }
}

/// Wraps an I/O error with the operation that failed.
pub(crate) fn io_error(what: impl Into<String>) -> impl FnOnce(io::Error) -> RelayError {
    move |source| RelayError::Io {
        what: what.into(),
        source,
    }
}
