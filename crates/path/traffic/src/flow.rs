//! A flow: what it sends next.

use strata_wire::transport::tcp_flag::{ACK, FIN, RST, SYN};
use strata_wire::{clamped, exact, mix64};

use crate::dns::dns_len;
use crate::kind::{Content, DATAGRAM_MAX, Ends, Kind, Length, SEGMENT_MAX, Transport};
use crate::random::{Random, Tail};

/// TCP PSH (RFC 9293 §3.1).
const PSH: u8 = 0x08;

pub(crate) const CLIENT: usize = 0;
pub(crate) const SERVER: usize = 1;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Syn,
    SynAck,
    HandshakeAck,
    /// [`Flow::side`] sends what is left of its message.
    Message,
    /// The other side acknowledges, then `side` continues.
    Acknowledge,
    Fin,
    FinAck,
    LastAck,
    Refuse,
    Over,
}

/// One flow, in one cache line. Arrays are by side, client first.
#[derive(Clone, Debug)]
#[repr(C, align(64))]
pub(crate) struct Flow {
    /// Unique.
    pub(crate) number: u64,
    /// IPv4 addresses; IPv6 ones are derived from them.
    pub(crate) hosts: [u32; 2],
    /// Next TCP sequence numbers.
    pub(crate) sequence: [u32; 2],
    /// Last TCP timestamps sent (RFC 7323), in ms.
    pub(crate) stamps: [u32; 2],
    pub(crate) ports: [u16; 2],
    /// Next IPv4 identifications.
    pub(crate) identification: [u16; 2],
    pub(crate) window: [u16; 2],
    /// Payload bytes left of the message.
    left: u32,
    /// Mean ticks between two packets, and the mean for the smallest messages.
    delay: u16,
    delay_max: u16,
    /// Messages that each side still starts.
    rounds: u16,
    /// Index among the kinds of the profile.
    pub(crate) kind: u8,
    phase: Phase,
    side: u8,
    unacknowledged: u8,
    stretch: u8,
    /// For dialogues.
    line: u8,
    /// The client sends the large messages.
    swapped: bool,
    pub(crate) ipv6: bool,
    /// With the timestamp option.
    pub(crate) stamped: bool,
}

const _: () = assert!(size_of::<Flow>() == 64);

/// A packet, before it has bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    /// The sender.
    pub(crate) side: usize,
    pub(crate) tcp_flags: u8,
    pub(crate) payload_len: u32,
    /// The bytes of its whole message, if it is the first packet of one.
    pub(crate) message_len: Option<u32>,
    /// Its line of the dialogue.
    pub(crate) line: u8,
    /// The flow's last packet.
    pub(crate) last: bool,
}

/// What a profile says about all flows.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Habits {
    /// Flow numbers count in steps of this, so that no two groups share one.
    pub(crate) groups: u32,
    /// Number of clients of a group.
    pub(crate) clients: u32,
    /// IPv6 flows of 256.
    pub(crate) ipv6: u32,
    /// Ticks between the packets of the smallest messages.
    pub(crate) delay_max: u16,
    /// What a link of a core network shows: packets in trains, and one direction.
    pub(crate) is_core: bool,
}

/// How many mean delays a pause between trains takes: a long tail.
const TRAIN_PAUSE: Tail = Tail::new(1, 160, 10);
/// In how many of 256 packets the trains of the smallest messages end.
const TRAIN_END: u32 = 100;

impl Flow {
    /// The flow with this number, about to start.
    pub(crate) fn new(
        number: u64,
        kind_index: u8,
        kind: &Kind,
        habits: &Habits,
        random: &mut Random,
    ) -> Self {
        let (first, second) = (random.next(), random.next());
        let (hosts, ports) = ends(number, kind, habits, random);
        let stretches = length(kind.stretch.len());
        let mut flow = Self {
            number,
            hosts,
            sequence: halves(first),
            stamps: [0; 2],
            ports,
            identification: [quarters(second)[0], quarters(second)[1]],
            window: [502, 509],
            left: 0,
            delay: 0,
            delay_max: habits.delay_max,
            rounds: clamped::<u16>(kind.rounds.draw(random)),
            kind: kind_index,
            phase: if kind.transport.is_tcp() {
                Phase::Syn
            } else {
                Phase::Message
            },
            // The server starts a dialogue of lines.
            side: u8::from(matches!(kind.content, Content::Lines(_))),
            unacknowledged: 0,
            stretch: kind.stretch[random.below(stretches) as usize],
            line: 0,
            swapped: random.one_in_256(kind.swapped),
            ipv6: random.one_in_256(habits.ipv6),
            stamped: random.one_in_256(160),
        };
        flow.begin_message(kind, random);
        flow
    }

    /// The same flow, already in progress when the capture starts: most of the time an answer is
    /// being sent.
    pub(crate) fn under_way(mut self, kind: &Kind, random: &mut Random) -> Self {
        if kind.transport == Transport::Tcp {
            self.phase = Phase::Message;
        }
        if kind.transport == Transport::UdpOneWay {
            return self;
        }
        if let Content::Lines(lines) = kind.content {
            self.line = exact::<u8>(random.below(length(lines.len())));
            self.side = 1 ^ (self.line & 1);
        } else if self.phase == Phase::Message {
            self.side = u8::from(random.one_in_256(224));
            self.rounds = exact::<u16>(random.below(u32::from(self.rounds)) + 1);
        }
        self.begin_message(kind, random);
        if !matches!(kind.content, Content::Lines(_) | Content::Dns) && self.left > 0 {
            self.left = (random.below(self.left) + 1).max(REST_MIN.min(self.left));
            self.unacknowledged = 0;
        }
        self
    }

    /// Ticks until its next packet: mostly close to the mean, now and then a pause.
    #[inline]
    pub(crate) fn pause(&self, habits: &Habits, random: &mut Random) -> u32 {
        if habits.is_core {
            return self.train_pause(random);
        }
        let bits = random.next();
        let mean = u32::from(self.delay);
        let [low, high] = halves(bits);
        #[allow(clippy::cast_possible_truncation)]
        let ticks = mean / 2 + ((u64::from(low) * u64::from(mean + 1)) >> 32) as u32;
        if high & 31 == 0 { ticks * 4 } else { ticks }
    }

    /// As [`Flow::pause`], in trains. Large messages have longer trains and shorter pauses: rates
    /// grow with sizes (Zhang et al., SIGCOMM 2002), here with their power 1.5.
    #[inline]
    fn train_pause(&self, random: &mut Random) -> u32 {
        let delay_max = u32::from(self.delay_max);
        let faster = (delay_max / u32::from(self.delay)).ilog2();
        let delay = (delay_max >> (faster * 2).min(15)).max(1);
        if random.one_in_256((delay * TRAIN_END / delay_max).max(1)) {
            delay * TRAIN_PAUSE.draw(random)
        } else {
            1 + random.below(3)
        }
    }

    /// Whether a link that carries one direction of each flow carries what this side sends.
    #[inline]
    pub(crate) fn is_seen(&self, side: usize) -> bool {
        mix64(self.number) & 1 == side as u64
    }

    /// The packet it sends now.
    #[inline]
    pub(crate) fn step(&mut self, kind: &Kind, random: &mut Random) -> Shape {
        if kind.transport.is_tcp() {
            self.step_tcp(kind, random)
        } else {
            self.step_datagram(kind, random)
        }
    }

    fn step_tcp(&mut self, kind: &Kind, random: &mut Random) -> Shape {
        let mut shape = self.shape(CLIENT, ACK);
        match self.phase {
            Phase::Message => return self.step_message(kind, random),
            Phase::Acknowledge => {
                shape.side = self.other();
                self.unacknowledged = 0;
                self.phase = Phase::Message;
                if self.left == 0 {
                    self.turn(kind, random);
                }
                // An empty message is an acknowledgement, and this was one.
                if self.left == 0 && self.phase == Phase::Message {
                    self.turn(kind, random);
                }
            }
            Phase::Syn => {
                shape.tcp_flags = SYN;
                self.phase = match kind.transport {
                    Transport::TcpRefused => Phase::Refuse,
                    Transport::TcpUnanswered => Phase::Over,
                    _ => Phase::SynAck,
                };
            }
            Phase::SynAck => {
                shape = self.shape(SERVER, SYN | ACK);
                self.phase = Phase::HandshakeAck;
            }
            Phase::HandshakeAck => self.phase = Phase::Message,
            Phase::Fin => {
                shape.tcp_flags |= FIN;
                self.phase = Phase::FinAck;
            }
            Phase::FinAck => {
                shape = self.shape(SERVER, FIN | ACK);
                self.phase = Phase::LastAck;
            }
            Phase::LastAck => self.phase = Phase::Over,
            Phase::Refuse => {
                shape = self.shape(SERVER, RST | ACK);
                // It never chose a sequence number (RFC 9293 §3.5.2).
                self.sequence[SERVER] = 0;
                self.phase = Phase::Over;
            }
            Phase::Over => {}
        }
        shape.last = self.phase == Phase::Over;
        shape
    }

    /// A segment of the message, perhaps its last.
    #[inline]
    fn step_message(&mut self, kind: &Kind, random: &mut Random) -> Shape {
        let mut shape = self.shape(usize::from(self.side), ACK);
        if self.unacknowledged == FRESH {
            self.unacknowledged = 0;
            shape.message_len = Some(self.left);
        }
        shape.payload_len = portion(self.left, SEGMENT_MAX);
        self.left -= shape.payload_len;
        self.unacknowledged += 1;
        if self.left == 0 {
            if shape.payload_len > 0 {
                shape.tcp_flags |= PSH;
            }
            // The answer acknowledges, or an acknowledgement precedes it.
            let first = self.unacknowledged > 1 || random.next() & 1 == 0;
            if first && shape.payload_len > 0 {
                self.phase = Phase::Acknowledge;
            } else {
                self.turn(kind, random);
            }
        } else if self.unacknowledged >= self.stretch {
            self.phase = Phase::Acknowledge;
        }
        shape
    }

    #[inline]
    fn step_datagram(&mut self, kind: &Kind, random: &mut Random) -> Shape {
        let mut shape = self.shape(usize::from(self.side), 0);
        if self.unacknowledged == FRESH {
            self.unacknowledged = 0;
            shape.message_len = Some(self.left);
        }
        // Flows without answers are IPv4 in every profile, and may be longer.
        let max = match kind.transport {
            Transport::UdpOneWay => DATAGRAM_MAX + 20,
            _ => DATAGRAM_MAX,
        };
        shape.payload_len = portion(self.left, max);
        self.left -= shape.payload_len;
        if self.left == 0 {
            self.turn(kind, random);
        }
        shape.last = matches!(self.phase, Phase::Fin | Phase::Over);
        shape
    }

    #[inline]
    fn shape(&self, side: usize, tcp_flags: u8) -> Shape {
        Shape {
            side,
            tcp_flags,
            payload_len: 0,
            message_len: None,
            line: self.line,
            last: false,
        }
    }

    #[inline]
    fn other(&self) -> usize {
        usize::from(self.side ^ 1)
    }

    /// The message is complete: the other side's turn.
    fn turn(&mut self, kind: &Kind, random: &mut Random) {
        if let Content::Lines(lines) = kind.content {
            self.line += 1;
            self.side ^= 1;
            if usize::from(self.line) == lines.len() {
                self.phase = Phase::Fin;
                return;
            }
        } else if kind.transport == Transport::UdpOneWay {
            self.rounds -= 1;
        } else {
            self.side ^= 1;
            self.rounds -= u16::from(usize::from(self.side) == CLIENT);
        }
        if self.rounds == 0 {
            self.phase = Phase::Fin;
            return;
        }
        self.begin_message(kind, random);
    }

    fn begin_message(&mut self, kind: &Kind, random: &mut Random) {
        self.unacknowledged = FRESH;
        let asks = usize::from(self.side) == CLIENT;
        self.left = match kind.content {
            Content::Lines(lines) => length(lines[usize::from(self.line)].len()),
            Content::Dns => dns_len(self.number, asks),
            _ if asks != self.swapped => draw(kind.request, random),
            _ => draw(kind.answer, random),
        };
        // Larger messages are sent faster, so that their duration grows with the fourth root of
        // their size only.
        let doublings = (self.left / SEGMENT_MAX).max(1).ilog2();
        self.delay = (self.delay_max >> (doublings * 3 / 4).min(15)).max(1);
    }
}

/// In [`Flow::unacknowledged`]: nothing of the message is sent yet.
const FRESH: u8 = u8::MAX;

fn length(count: usize) -> u32 {
    exact::<u32>(count)
}

fn draw(length: Length, random: &mut Random) -> u32 {
    match length {
        Length::Tail(tail) => tail.draw(random),
        Length::OneOf(lengths) => {
            let count = exact::<u32>(lengths.len());
            u32::from(lengths[random.below(count) as usize])
        }
    }
}

/// Minimum bytes of the last of several segments.
const REST_MIN: u32 = 64;

/// The next packet's share of `left` bytes. The rest is empty or large enough for the small headers
/// of the content.
#[inline]
fn portion(left: u32, max: u32) -> u32 {
    if left <= max {
        left
    } else if left - max < REST_MIN {
        max - REST_MIN
    } else {
        max
    }
}

/// Addresses and ports of a flow. No address belongs to anybody: clients are in 10.0.0.0/8 and
/// servers in 172.16.0.0/12 (RFC 1918), attackers in 198.18.0.0/15 (RFC 2544).
fn ends(number: u64, kind: &Kind, habits: &Habits, random: &mut Random) -> ([u32; 2], [u16; 2]) {
    const ATTACKERS: u32 = 0xc612_0000;
    const VICTIM: u32 = 0xac1f_0a50;
    // RFC 6335 §6.
    const DYNAMIC_PORTS: u64 = 49_152;
    let groups = u64::from(habits.groups);
    let (serial, group) = (number / groups, number % groups);
    let ports = length(kind.ports.len());
    let server_port = kind.ports[random.below(ports) as usize];
    // One of `hosts` machines, and a port that it has not used for long.
    let client = |hosts: u64| {
        let host = (serial % hosts) * groups + group;
        let port = DYNAMIC_PORTS | ((serial / hosts).wrapping_add(mix64(host)) & 0x3fff);
        (low_half(host), low_quarter(port))
    };
    match kind.ends {
        Ends::Everybody => {
            let (host, port) = client(u64::from(habits.clients));
            // Popularity follows rank, nearly as in Zipf's law.
            let server = random.next() >> 32 & ((1 << random.below(13)) - 1);
            let server = 0xac10_0000 | (low_half(server).wrapping_mul(0x9_e375) & 0xf_ffff);
            let host = 0x0a00_0000 | (host.wrapping_mul(0x9e_3779) & 0xff_ffff);
            ([host, server], [port, server_port])
        }
        Ends::Attackers(attackers) => {
            let (host, port) = client(u64::from(attackers));
            ([ATTACKERS | (host & 0x1_ffff), VICTIM], [port, server_port])
        }
        Ends::Forged => {
            let (host, port) = client(1 << 16);
            let host = host.wrapping_mul(0x9_e379) & 0x1_ffff;
            ([ATTACKERS | host, VICTIM], [port, server_port])
        }
        Ends::Scan => {
            let host = 0xac1e_0000 | low_half(serial & 1023);
            let port = low_quarter(1 + (serial >> 10) % 65_535);
            ([ATTACKERS | 0x1_ff42, host], [54_321, port])
        }
    }
}

#[allow(clippy::cast_possible_truncation)]
fn halves(bits: u64) -> [u32; 2] {
    [bits as u32, (bits >> 32) as u32]
}

#[allow(clippy::cast_possible_truncation)]
fn quarters(bits: u64) -> [u16; 4] {
    [
        bits as u16,
        (bits >> 16) as u16,
        (bits >> 32) as u16,
        (bits >> 48) as u16,
    ]
}

fn low_half(bits: u64) -> u32 {
    halves(bits)[0]
}

fn low_quarter(bits: u64) -> u16 {
    quarters(bits)[0]
}
