//! Decompressing xz, up to the last byte that a file which ends early still has.

use std::io::{self, BufRead, ErrorKind, Read};

use lzma_rust2::{Action, Status, XzStream};

/// Memory of a decompressor: `xz -9` needs 64 MiB, and a file could ask for 4 GiB.
const MEMORY_KIB: u32 = 256 << 10;
/// Compressed bytes that are decoded at a time: what they decode to is lost if they are damaged.
const INPUT_BYTES: usize = 512;

/// A decompressor. The library's own reader needs a whole chunk, of up to 64 KiB, before it decodes any of
/// it, so it would lose the last one of a file that ends early.
pub(super) struct Xz<R> {
    input: R,
    stream: XzStream,
}

impl<R> Xz<R> {
    pub(super) fn new(input: R) -> Self {
        Self {
            input,
            stream: XzStream::new_mem_limit(true, MEMORY_KIB),
        }
    }
}

impl<R: BufRead> Read for Xz<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if buffer.is_empty() {
            return Ok(0);
        }
        loop {
            let input = match self.input.fill_buf() {
                // Of what has arrived, some may not be given yet.
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    let left = self.stream.process(&[], buffer, Action::Run);
                    return match left.map_err(explained)?.bytes_produced {
                        0 => Err(error),
                        bytes => Ok(bytes),
                    };
                }
                input => input?,
            };
            let input = &input[..input.len().min(INPUT_BYTES)];
            let is_end = input.is_empty();
            // At the end, too: everything decoded comes before the error of a stream that ends early.
            let done = self.stream.process(input, buffer, Action::Run);
            let done = done.map_err(explained)?;
            self.input.consume(done.bytes_consumed);
            if done.bytes_produced > 0 || done.status == Status::StreamEnd {
                return Ok(done.bytes_produced);
            }
            if is_end {
                let last = self.stream.process(&[], buffer, Action::Finish);
                return Ok(last.map_err(explained)?.bytes_produced);
            }
            if done.bytes_consumed == 0 {
                return Err(io::Error::new(
                    ErrorKind::InvalidData,
                    "its xz stream is damaged",
                ));
            }
        }
    }
}

/// Says what to do if it would need too much memory.
fn explained(error: io::Error) -> io::Error {
    match error.kind() {
        ErrorKind::OutOfMemory => io::Error::other(
            "its xz stream needs more than 256 MiB of memory: decompress it with `xz -d`",
        ),
        _ => error,
    }
}
