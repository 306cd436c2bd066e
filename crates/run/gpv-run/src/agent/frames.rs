//! A capture of the frames in which the switch of the *Flow paper exports vectors, as datagrams of Strata's form.

use std::path::{Path, PathBuf};
use std::time::Duration;

use strata_capture::{Input, InputOptions, Next};
use strata_gpv::Full;
use strata_gpv::format::datagram::{DatagramWriter, LEN_USUAL};
use strata_gpv::format::frame::{self, FrameWords};
use strata_wire::{LinkType, Meta};

use super::datagrams::Datagrams;
use crate::error::{At as _, Result};

/// The number of the switch: frames have none.
const SWITCH: u32 = 0;

/// The frames of a capture file. Memory: that of an [`Input`], and a datagram.
pub(super) struct Frames {
    path: PathBuf,
    input: Input,
    words: FrameWords,
    /// Link types of the interfaces, by their ids.
    links: Vec<LinkType>,
    writer: DatagramWriter,
    tuples: Vec<Full>,
    vectors: u64,
    unread: u64,
    /// Why the first frame could not be read, until it is told.
    why: Option<String>,
    is_ended: bool,
}

impl Frames {
    /// Opens the capture file; `-` is standard input.
    ///
    /// # Errors
    ///
    /// If it cannot be opened, or is not a capture file.
    pub(super) fn open(path: &Path, words: FrameWords) -> Result<Self> {
        let input = Input::open(&[path.to_owned()], &InputOptions::default());
        Ok(Self {
            path: path.to_owned(),
            input: input.at_with(|| cannot(path))?,
            words,
            links: Vec::new(),
            writer: DatagramWriter::new(SWITCH, words.columns(), LEN_USUAL),
            tuples: Vec::with_capacity(frame::PACKETS_MAX),
            vectors: 0,
            unread: 0,
            why: None,
            is_ended: false,
        })
    }

    /// Puts the vectors of the current batch into datagrams.
    fn take_batch(&mut self, send: &mut dyn FnMut(&[u8])) {
        let batch = self.input.batch();
        for index in 0..batch.len() {
            let packet = batch.get(index);
            let link = self.links.get(usize::from(packet.interface));
            if link != Some(&LinkType::ETHERNET) {
                continue;
            }
            match frame::parse(packet.data, packet.ts_ns, self.words, &mut self.tuples) {
                Ok(None) => {}
                Ok(Some(vector)) => {
                    self.vectors += 1;
                    let put = self.writer.put(&vector, &mut *send);
                    put.expect("a datagram has room for the longest vector of a frame");
                }
                Err(error) => {
                    if self.unread == 0 {
                        let name = self.path.display();
                        self.why = Some(format!(
                            "{name}: a frame at {} ns: {error}; further unreadable frames are only counted",
                            packet.ts_ns
                        ));
                    }
                    self.unread += 1;
                }
            }
        }
    }
}

fn cannot(path: &Path) -> String {
    format!("{}: cannot read", path.display())
}

impl Datagrams for Frames {
    fn name(&self) -> String {
        self.path.display().to_string()
    }

    fn is_live(&self) -> bool {
        false
    }

    fn read(&mut self, _wait: Duration, take: &mut dyn FnMut(&[u8]) -> bool) -> Result<bool> {
        let mut goes_on = true;
        let mut send = |bytes: &[u8]| {
            goes_on = goes_on && take(bytes);
        };
        match self.input.advance() {
            Ok(Next::Packets) => self.take_batch(&mut send),
            Ok(Next::Meta(Meta::Interface { interface, .. })) => self.links.push(interface.link),
            Ok(Next::Meta(_)) => {}
            Ok(Next::End) => {
                if self.vectors == 0 && self.unread == 0 {
                    let why = "no frame has the EtherType 0x081a or 0x081b";
                    let name = self.path.display();
                    return Err(why).at_with(|| format!("{name}: not grouped packet vectors"));
                }
                if !self.is_ended {
                    self.writer.end(send);
                }
                self.is_ended = true;
                return Ok(false);
            }
            Err(error) => {
                self.writer.end(send);
                return Err(error).at_with(|| cannot(&self.path));
            }
        }
        Ok(true)
    }

    fn unread(&self) -> u64 {
        self.unread
    }

    fn warning(&mut self) -> Option<String> {
        self.why.take()
    }
}
