//! A panic while a datagram is taken is a fault of this program: it ends that datagram, not the role.

use std::cell::{Cell, RefCell};
use std::fmt::Write as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Once;

use strata_dta::protocol::packed::is_packed;

/// First bytes of a datagram that are shown.
const SHOWN_BYTES: usize = 256;

thread_local! {
    static IS_GUARDED: Cell<bool> = const { Cell::new(false) };
    /// The message of the latest guarded panic, and where in the source.
    static SAID: RefCell<String> = const { RefCell::new(String::new()) };
}

/// Details of a datagram whose processing panicked.
#[derive(Debug)]
pub(super) struct Fault {
    /// The message of the panic, and where in the source.
    pub(super) problem: String,
    /// Its first bytes, in hexadecimal.
    pub(super) start: String,
    /// Whether it is of version 2, as far as its opcode says.
    pub(super) is_packed: bool,
}

/// Gives datagrams to `take`, and what is known of each that ended in a panic to `after`.
pub(super) fn each_guarded<'a, C>(
    context: &mut C,
    mut datagrams: impl Iterator<Item = &'a [u8]>,
    take: impl Fn(&mut C, &'a [u8]),
    after: impl Fn(&mut C, &Fault),
) {
    loop {
        let mut latest: &[u8] = &[];
        IS_GUARDED.set(true);
        // What a panic may leave half done is for `after`.
        let taken = catch_unwind(AssertUnwindSafe(|| {
            for datagram in datagrams.by_ref() {
                latest = datagram;
                take(context, datagram);
            }
        }));
        IS_GUARDED.set(false);
        if taken.is_ok() {
            return;
        }
        after(context, &fault_of(latest));
    }
}

#[cold]
fn fault_of(datagram: &[u8]) -> Fault {
    let mut start = String::new();
    for byte in datagram.iter().take(SHOWN_BYTES) {
        // Into a string: never fails.
        let _ = write!(start, "{byte:02x}");
    }
    let problem = SAID.take().replace('\n', " ");
    Fault {
        problem,
        start,
        is_packed: is_packed(datagram),
    }
}

/// Has guarded panics noted instead of printed: who can cause one can cause thousands. To be called once
/// at least before [`each_guarded`].
pub(super) fn note_panics() {
    static NOTED: Once = Once::new();
    NOTED.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if IS_GUARDED.get() {
                SAID.set(info.to_string());
            } else {
                before(info);
            }
        }));
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_ends_one_datagram_and_is_known() {
        note_panics();
        let all: [&[u8]; 4] = [b"one", b"\x00bad", b"two", b"bad"];
        let mut seen: (Vec<&[u8]>, Vec<String>) = Default::default();
        each_guarded(
            &mut seen,
            all.into_iter(),
            |seen, datagram| {
                assert!(!datagram.ends_with(b"bad"), "a fault of {}", datagram.len());
                seen.0.push(datagram);
            },
            |seen, fault| {
                let Fault { problem, start, .. } = fault;
                seen.1.push(format!("{start} {problem}"));
            },
        );
        assert_eq!(seen.0, [b"one", b"two"]);
        let [first, second] = &seen.1[..] else {
            panic!("two faults: {:?}", seen.1);
        };
        assert!(
            first.starts_with("00626164 ") && first.contains("guard.rs"),
            "{first}"
        );
        assert!(first.ends_with("a fault of 4"), "{first}");
        assert!(second.starts_with("626164 "), "{second}");
    }
}
