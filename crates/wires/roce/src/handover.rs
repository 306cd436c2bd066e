//! How a process gives memory to another one on the same machine: as a descriptor, over a connected
//! Unix socket. The receiver checks it before mapping it. How they find each other, and who may
//! have it, is up to the protocol.
//!
//! ```text
//! 1 byte, and the descriptor (SCM_RIGHTS)
//! ```

use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;

use rustix::fs::{FileType, SealFlags, fcntl_get_seals, fstat};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};

use strata_sys::shared::SharedMemory;

/// Seals that the memory must have: it cannot be shrunk, which would kill the process that writes
/// into it, and that cannot be undone.
const SEALS: SealFlags = SealFlags::SHRINK
    .union(SealFlags::GROW)
    .union(SealFlags::SEAL);

/// Hands memory over.
///
/// # Errors
///
/// What the operating system says.
pub fn send(stream: &UnixStream, memory: &SharedMemory) -> io::Result<()> {
    let descriptors = [memory.file().as_fd()];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    control.push(SendAncillaryMessage::ScmRights(&descriptors));
    let flags = SendFlags::NOSIGNAL;
    sendmsg(stream.as_fd(), &[IoSlice::new(&[1])], &mut control, flags)?;
    Ok(())
}

/// Receives memory of `len` bytes, which is checked before anything is done with it: it keeps its
/// size as long as it exists.
///
/// # Errors
///
/// What the operating system says, or why what arrived is not such memory.
pub fn receive(stream: &UnixStream, len: u64) -> io::Result<File> {
    let file = receive_descriptor(stream)?;
    check(&file, len)?;
    Ok(File::from(file))
}

fn receive_descriptor(stream: &UnixStream) -> io::Result<OwnedFd> {
    let mut byte = [0];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut into = [IoSliceMut::new(&mut byte)];
    let got = recvmsg(
        stream.as_fd(),
        &mut into,
        &mut control,
        RecvFlags::CMSG_CLOEXEC,
    )?;
    let descriptors = control.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(descriptors) => Some(descriptors),
        _ => None,
    });
    let mut descriptors = descriptors.flatten();
    let first = descriptors.next().filter(|_| got.bytes == 1);
    first.ok_or_else(|| io::Error::other("no memory was handed over to this connection"))
}

/// Whether a descriptor is memory of that size that stays as it is.
fn check(file: &OwnedFd, len: u64) -> io::Result<()> {
    let invalid = |problem: String| io::Error::new(io::ErrorKind::InvalidData, problem);
    let seals = fcntl_get_seals(file)
        .map_err(|_| invalid("the descriptor handed over is not shared memory (memfd)".into()))?;
    if !seals.contains(SEALS) {
        return Err(invalid(
            "the memory handed over is not sealed: it could shrink".into(),
        ));
    }
    let found = fstat(file)?;
    if FileType::from_raw_mode(found.st_mode) != FileType::RegularFile {
        return Err(invalid("the descriptor handed over is not memory".into()));
    }
    if u64::try_from(found.st_size) != Ok(len) {
        return Err(invalid(format!(
            "the blocks should have {len} bytes, and the memory has {}",
            found.st_size
        )));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use rustix::fs::{MemfdFlags, fcntl_add_seals, ftruncate, memfd_create};

    use super::*;

    const LEN: u64 = 8192;

    /// Memory with seals.
    fn memory(seals: SealFlags) -> OwnedFd {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let fd = memfd_create("test", flags).unwrap();
        ftruncate(&fd, LEN).unwrap();
        fcntl_add_seals(&fd, seals).unwrap();
        fd
    }

    #[test]
    fn only_sealed_memory_of_the_right_size_is_mapped() {
        check(&memory(SEALS), LEN).unwrap();
        let why = |fd: OwnedFd, len| check(&fd, len).unwrap_err().to_string();
        for seals in [
            SealFlags::empty(),
            SealFlags::GROW | SealFlags::SEAL,
            SealFlags::SHRINK | SealFlags::GROW,
            SealFlags::SHRINK | SealFlags::SEAL,
        ] {
            assert!(why(memory(seals), LEN).contains("not sealed"), "{seals:?}");
        }
        for len in [0, LEN - 1, LEN + 1, u64::MAX] {
            assert!(why(memory(SEALS), len).contains("8192"), "{len}");
        }
        // What might be handed over instead of memory.
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("shadow");
        std::fs::write(&path, vec![0; 8192]).unwrap();
        let file = File::options().read(true).write(true).open(&path).unwrap();
        assert!(why(file.into(), LEN).contains("not shared memory"));
        let (socket, _other) = UnixStream::pair().unwrap();
        assert!(why(socket.into(), LEN).contains("not shared memory"));
        let zero = File::open("/dev/zero").unwrap();
        assert!(why(zero.into(), LEN).contains("not shared memory"));
    }

    #[test]
    fn memory_that_is_handed_over_is_the_same_at_both_ends() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let memory = SharedMemory::create("test", 8192).unwrap();
        send(&ours, &memory).unwrap();
        let mapped = SharedMemory::map(receive(&theirs, LEN).unwrap(), 8192).unwrap();
        mapped.copy_in(4096, b"there");
        assert_eq!(memory.copy_out(4096, 5), b"there");
        drop(ours);
        assert!(receive(&theirs, LEN).is_err());
    }
}
