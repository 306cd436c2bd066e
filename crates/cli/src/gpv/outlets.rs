//! Where datagrams of vectors go: peers, and a file.

use std::fs::File;
use std::io::{BufWriter, IsTerminal as _, Write, stdout};
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use strata_gpv::export::{FlowRule, FlowRules};
use strata_store::Sources;

use super::form::To;
use super::target::Target;
use crate::output::{check, refuse};

/// A file or a peer, and what went there.
pub(super) struct Outlet {
    pub(super) id: u32,
    pub(super) name: String,
    pub(super) datagrams: u64,
    pub(super) bytes: u64,
    pub(super) unsent: u64,
    /// Why the first datagram that could not be sent was not.
    pub(super) error: Option<std::io::Error>,
}

impl Outlet {
    fn new(id: usize, name: String) -> Self {
        Self {
            id: strata_wire::exact(id),
            name,
            datagrams: 0,
            bytes: 0,
            unsent: 0,
            error: None,
        }
    }
}

/// A file of vectors. If the program is interrupted, those in it are whole.
struct Written {
    outlet: Outlet,
    path: PathBuf,
    sources: Sources,
    writer: Option<BufWriter<File>>,
    is_stdout: bool,
}

/// Everything that vectors are written to.
pub(super) struct Outlets {
    peers: Vec<(UdpSocket, Outlet, FlowRule)>,
    file: Option<Written>,
    /// A write to the file that failed ends the run.
    failure: Option<std::io::Error>,
}

impl Outlets {
    pub(super) fn open(read: &[PathBuf], to: &[Target], write: Option<&Path>) -> Result<Self> {
        let mut peers = Vec::new();
        for (id, target) in to.iter().enumerate() {
            let local = match target.address {
                SocketAddr::V4(_) => "0.0.0.0:0",
                SocketAddr::V6(_) => "[::]:0",
            };
            let name = &target.name;
            let socket = UdpSocket::bind(local).context("cannot open a UDP socket")?;
            socket
                .connect(target.address)
                .with_context(|| format!("{name}: cannot send there"))?;
            peers.push((socket, Outlet::new(id, name.clone()), target.rule.clone()));
        }
        let sources = Sources::default().files(read);
        let file = write.map(|path| Written::new(path, sources, peers.len()));
        Ok(Self {
            file: file.transpose()?,
            peers,
            failure: None,
        })
    }

    /// Creates the file.
    pub(super) fn create(&mut self) -> Result<()> {
        self.file.as_mut().map_or(Ok(()), Written::create)
    }

    /// Which flows go where.
    pub(super) fn to(&self) -> Vec<To> {
        let peers = self.peers.iter().map(|(_, outlet, rule)| To {
            id: outlet.id,
            // One rule is not too many.
            flows: FlowRules::new(vec![(rule.clone(), true)], false)
                .unwrap_or_else(|_| FlowRules::all()),
        });
        let file = self.file.iter().map(|file| To {
            id: file.outlet.id,
            flows: FlowRules::all(),
        });
        peers.chain(file).collect()
    }

    /// Where vectors went.
    pub(super) fn targets(&self) -> impl Iterator<Item = &Outlet> {
        let peers = self.peers.iter().map(|(_, outlet, _)| outlet);
        peers.chain(self.file.iter().map(|file| &file.outlet))
    }

    /// Sends a datagram, or writes it.
    pub(super) fn send(&mut self, id: u32, bytes: &[u8]) {
        let index = id as usize;
        let is_peer = index < self.peers.len();
        let (outlet, done) = match (self.peers.get_mut(index), &mut self.file) {
            (Some((socket, outlet, _)), _) => (outlet, socket.send(bytes).map(drop)),
            (None, Some(file)) => {
                let done = file.write(bytes);
                (&mut file.outlet, done)
            }
            (None, None) => return,
        };
        match done {
            Ok(()) => {
                outlet.datagrams += 1;
                outlet.bytes += bytes.len() as u64;
            }
            // Nobody listens there (yet): others, and later vectors, are sent all the same.
            Err(error) if is_peer => {
                outlet.unsent += 1;
                outlet.error.get_or_insert(error);
            }
            Err(error) => self.failure = Some(error),
        }
    }

    /// Fails if the file could not be written.
    pub(super) fn check(&mut self) -> Result<()> {
        match (self.failure.take(), &self.file) {
            (Some(error), Some(file)) => {
                Err(error).with_context(|| format!("{}: cannot write", file.outlet.name))
            }
            _ => Ok(()),
        }
    }

    /// Whether vectors go to standard output.
    pub(super) fn is_stdout(&self) -> bool {
        self.file.as_ref().is_some_and(|file| file.is_stdout)
    }

    /// Writes what is buffered.
    pub(super) fn finish(&mut self) -> Result<()> {
        if let Some(file) = &mut self.file
            && let Some(writer) = &mut file.writer
        {
            let flushed = writer.flush();
            flushed.with_context(|| format!("{}: cannot write", file.outlet.name))?;
        }
        Ok(())
    }
}

impl Written {
    fn new(path: &Path, sources: Sources, id: usize) -> Result<Self> {
        let is_stdout = path.as_os_str() == "-";
        if is_stdout && stdout().is_terminal() {
            return Err(refuse(
                "standard output is a terminal, and vectors are not text: write to a file, or into \
                 another program",
            ));
        }
        if !is_stdout {
            check(path, &sources)?;
        }
        let name = match is_stdout {
            true => String::from("standard output"),
            false => path.display().to_string(),
        };
        Ok(Self {
            outlet: Outlet::new(id, name),
            path: path.to_owned(),
            sources,
            writer: None,
            is_stdout,
        })
    }

    fn create(&mut self) -> Result<()> {
        let file = match self.is_stdout {
            true => {
                let file = stdout().as_fd().try_clone_to_owned();
                File::from(file.context("standard output: cannot write")?)
            }
            false => self.sources.create(&self.path)?,
        };
        self.writer = Some(BufWriter::new(file));
        Ok(())
    }

    fn write(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        match &mut self.writer {
            Some(writer) => writer.write_all(bytes),
            None => Ok(()),
        }
    }
}
