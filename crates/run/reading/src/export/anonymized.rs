//! `--anonymize`: packets with other addresses and without payload, for people outside.

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io::{Read as _, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, anyhow};
use strata_anonymize::{Anonymizer, Key, Left};
use strata_capture::{CaptureWriter, PacketRef};
use strata_query::{FileFormat, LoggedPacket};
use strata_sandbox::check_private;
use strata_terminal::text;
use strata_wire::pcapng::options::{self, code};
use strata_wire::{Interface, LinkType};
use tracing::warn;

/// Bytes of a file that are read: more is no key.
const KEY_BYTES_MAX: u64 = 4 << 10;
/// That of interfaces whose packets were captured whole.
const SNAPLEN: u32 = 262_144;

#[derive(Debug, clap::Args)]
pub(super) struct AnonymizeArgs {
    /// Replace addresses, and leave out payload, comments and metadata, for recipients who must not
    /// learn the addresses. Crypto-PAn replaces IP addresses, with the 32-byte key in this file
    /// (`openssl rand -hex 32` makes one); addresses of one network still share a prefix. Unknown
    /// headers are left out too. Ports, times and lengths are unchanged, and may reveal more than
    /// you want. For pcapng and pcap.
    #[arg(long, value_name = "KEYFILE", conflicts_with = "tls_keys")]
    pub(super) anonymize: Option<PathBuf>,
}

impl AnonymizeArgs {
    /// What replaces addresses, if that is wanted.
    pub(super) fn anonymizer(&self) -> Result<Option<Anonymizer>> {
        let Some(file) = &self.anonymize else {
            return Ok(None);
        };
        Ok(Some(Anonymizer::new(&read(file)?)))
    }
}

fn read(file: &Path) -> Result<Key> {
    let named = file.display();
    let mut bytes = Vec::new();
    let unreadable = || format!("{named}: cannot read the key of --anonymize");
    let opened = File::open(file).with_context(unreadable)?;
    // The key leads back to the addresses. A pipe or a terminal has no other readers.
    let is_file = opened.metadata().is_ok_and(|about| about.is_file());
    if is_file && let Err(problem) = check_private(file, &opened) {
        warn!("{problem}");
    }
    let read = opened.take(KEY_BYTES_MAX).read_to_end(&mut bytes);
    read.with_context(unreadable)?;
    Key::parse(&bytes).map_err(|problem| anyhow!("{named}: {problem}"))
}

/// What is left of packets of one log or several.
pub(super) struct Anonymized {
    anonymizer: Anonymizer,
    /// Packets of link types that are not understood.
    emptied: BTreeMap<LinkType, u64>,
    left: Vec<u8>,
}

/// A capture file with what is left of packets, and nothing else of them.
pub(super) struct AnonymizedFile<W: Write> {
    writer: CaptureWriter<W>,
    /// Numbers in the file, by log and number of the interface there.
    interfaces: HashMap<(usize, u16), u16>,
}

impl<W: Write> AnonymizedFile<W> {
    pub(super) fn new(output: W, format: FileFormat) -> Result<Self> {
        Ok(Self {
            writer: match format {
                FileFormat::Pcap => CaptureWriter::pcap(output),
                FileFormat::PcapNg => CaptureWriter::pcapng(output)?,
            },
            interfaces: HashMap::new(),
        })
    }

    fn interface(&mut self, log: usize, packet: &LoggedPacket<'_>) -> Result<u16> {
        let key = (log, packet.interface);
        if let Some(&number) = self.interfaces.get(&key) {
            return Ok(number);
        }
        let number = u16::try_from(self.interfaces.len())
            .context("the packets are of more than 65,536 interfaces: select fewer logs")?;
        let mut interface = Interface::new(packet.link, SNAPLEN);
        // Without it, times would be others.
        if let Some(shift) = options::find(&packet.described.options, code::IF_TSOFFSET) {
            options::push(&mut interface.options, code::IF_TSOFFSET, shift)?;
        }
        self.writer.interface(number, &interface)?;
        self.interfaces.insert(key, number);
        Ok(number)
    }

    /// Ends the file; returns the output.
    pub(super) fn finish(self) -> Result<W> {
        Ok(self.writer.finish()?)
    }
}

impl Anonymized {
    pub(super) fn new(anonymizer: Anonymizer) -> Self {
        Self {
            anonymizer,
            emptied: BTreeMap::new(),
            left: Vec::new(),
        }
    }

    /// Writes what may be left of a packet of the log with this number.
    pub(super) fn packet<W: Write>(
        &mut self,
        file: &mut AnonymizedFile<W>,
        log: usize,
        packet: &LoggedPacket<'_>,
    ) -> Result<()> {
        let interface = file.interface(log, packet)?;
        match self
            .anonymizer
            .packet(packet.link, packet.data, &mut self.left)
        {
            Left::Beginning => {}
            Left::Nothing => {
                let emptied = self.emptied.entry(packet.link).or_insert(0);
                *emptied = emptied.saturating_add(1);
            }
        }
        file.writer.packet(&PacketRef {
            ts_ns: packet.ts_ns,
            interface,
            wire_len: packet.wire_len.max(packet.captured_len),
            data: &self.left,
            options: &[],
            has_timestamp: packet.has_timestamp,
        })?;
        Ok(())
    }

    /// Says of which packets not a byte is left; returns their number.
    pub(super) fn say_emptied(&self) -> u64 {
        for (link, packets) in &self.emptied {
            warn!(
                "{} of {link} written without any bytes: --anonymize does not support headers of \
                 this link type",
                text::count_of(*packets, "packet")
            );
        }
        self.emptied.values().sum()
    }
}
