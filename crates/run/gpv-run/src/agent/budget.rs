//! A bound on answers to addresses that may be forged.

/// Headers of IPv4 and UDP, which a datagram has both ways; those of IPv6 are longer both ways.
const HEADERS_LEN: u64 = 28;
/// A cache that is not heard gets at most this number of requests.
const REQUESTS_MAX: u8 = 3;

/// What may be sent to where a cache seems to be: its address may be forged, and its owner must not get
/// more than the forger has sent.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Budget {
    /// Bytes that came, and those that were sent, with their headers.
    came: u64,
    sent: u64,
    /// Rounds of requests since it was heard.
    rounds: u8,
}

impl Budget {
    /// A datagram came.
    pub(super) fn earn(&mut self, bytes: &[u8]) {
        self.came = self.came.saturating_add(with_headers(bytes));
        self.rounds = 0;
    }

    /// Whether a round of requests may begin.
    pub(super) fn begins(&mut self) -> bool {
        let may = self.rounds < REQUESTS_MAX;
        self.rounds = self.rounds.saturating_add(1);
        may
    }

    /// Whether this may be sent; then it is counted as sent.
    pub(super) fn spend(&mut self, bytes: &[u8]) -> bool {
        let sent = self.sent.saturating_add(with_headers(bytes));
        let may = sent <= self.came;
        if may {
            self.sent = sent;
        }
        may
    }
}

fn with_headers(bytes: &[u8]) -> u64 {
    HEADERS_LEN.saturating_add(bytes.len() as u64)
}
