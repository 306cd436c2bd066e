//! What a relay is given.

use std::net::SocketAddr;
use std::path::PathBuf;

use strata_auth::secret::Secret;
use strata_auth::tls::ServerTls;
use strata_sandbox::Owner;
use strata_wire::roce::UDP_PORT;

/// The options of a relay.
#[derive(Clone, Debug)]
pub struct RelayOptions {
    /// The address that switches connect to. UDP packets arrive at the same address, port [`RelayOptions::rdma_port`].
    pub listen: SocketAddr,
    /// The UDP port, 4791; another port, or 0 for any, is useful only in tests.
    pub rdma_port: u16,
    /// Bytes of a block.
    pub block_bytes: usize,
    /// Blocks of a switch, at least two.
    pub blocks: usize,
    /// Threads that write blocks to disk.
    pub writers: usize,
    /// Start a new file once one holds this many bytes; 0 never.
    pub rotate_bytes: u64,
    /// Maximum number of connections at a time.
    pub switches_max: usize,
    /// TLS of control connections.
    pub tls: Option<ServerTls>,
    /// The secret that a switch must prove to know.
    pub secret: Option<Secret>,
    /// The socket at which memory is handed over to switches on this machine; by default in `/run/strata/relay-PORT` or
    /// `$XDG_RUNTIME_DIR/strata/relay-PORT`.
    pub memory_socket: Option<PathBuf>,
    /// The user and the group who may connect to this socket.
    pub owner: Owner,
    /// Number of the first queue pair, for tests that need to know it in advance; random otherwise.
    pub first_qpn: Option<u32>,
    /// The RDMA device whose NIC does the responder's work, and its port and GID index.
    #[cfg(feature = "verbs")]
    pub device: Option<strata_roce::verbs::DeviceOptions>,
}

impl RelayOptions {
    /// The default values.
    #[must_use]
    pub fn new(listen: SocketAddr) -> Self {
        Self {
            listen,
            rdma_port: UDP_PORT,
            block_bytes: 8 << 20,
            blocks: 4,
            writers: 2,
            rotate_bytes: 1 << 30,
            switches_max: 64,
            tls: None,
            secret: None,
            memory_socket: None,
            owner: Owner::default(),
            first_qpn: None,
            #[cfg(feature = "verbs")]
            device: None,
        }
    }
}
