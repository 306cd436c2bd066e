//! Kinds of traffic: what an application or an attack looks like from outside.

use crate::random::Tail;

/// Maximum TCP payload of a segment with the timestamp option, at an MTU of 1500 with IPv6, so that
/// every flow may be either version.
pub(crate) const SEGMENT_MAX: u32 = 1500 - 40 - 32;
/// The same for UDP.
pub(crate) const DATAGRAM_MAX: u32 = 1500 - 40 - 8;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Transport {
    Tcp,
    /// TCP where the server refuses the connection.
    TcpRefused,
    /// A TCP SYN and nothing else.
    TcpUnanswered,
    Udp,
    /// UDP without answers.
    UdpOneWay,
    /// ICMP echo.
    Icmp,
}

impl Transport {
    pub(crate) fn is_tcp(self) -> bool {
        matches!(self, Self::Tcp | Self::TcpRefused | Self::TcpUnanswered)
    }
}

/// What the payload has, other than noise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Content {
    Noise,
    /// Each segment is a TLS record of application data.
    Tls,
    /// Requests and answers start with HTTP header lines.
    Http,
    /// Letters and line ends, as in an HTTP header that never ends.
    HeaderLines,
    /// DNS queries and answers.
    Dns,
    /// QUIC with short headers.
    Quic,
    Ping,
    /// Noise that no dissector mistakes for its protocol: it starts with letters.
    Probe,
    /// A dialogue of lines started by the server, without repetition.
    Lines(&'static [&'static str]),
}

/// Who talks with whom.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ends {
    /// Many clients, and servers of which few are popular.
    Everybody,
    /// This many attackers, and one server.
    Attackers(u32),
    /// One attacker, and each port of each host.
    Scan,
    /// A forged source address for each flow, and one server.
    Forged,
}

/// Payload bytes of a message, or a count.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Length {
    Tail(Tail),
    /// Uniformly distributed.
    OneOf(&'static [u16]),
}

/// A kind of traffic. Messages of client and server alternate.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Kind {
    pub(crate) name: &'static str,
    pub(crate) anomalous: bool,
    pub(crate) transport: Transport,
    pub(crate) ports: &'static [u16],
    pub(crate) content: Content,
    pub(crate) ends: Ends,
    /// Bytes of a message of the client.
    pub(crate) request: Length,
    /// Bytes of a message of the server.
    pub(crate) answer: Length,
    /// Messages of each side in a flow.
    pub(crate) rounds: Tail,
    /// In how many of 256 flows the lengths are swapped: uploads.
    pub(crate) swapped: u32,
    /// Segments between two acknowledgements: one of these per flow.
    pub(crate) stretch: &'static [u8],
}

const DELAYED: &[u8] = &[2];
/// Receivers with segmentation offloads acknowledge less often.
const STRETCHED: &[u8] = &[2, 2, 4, 8, 16];

const fn tail(min: u32, ratio: u32, doublings: u32) -> Length {
    Length::Tail(Tail::new(min, ratio, doublings))
}

const fn exactly(bytes: u32) -> Length {
    Length::Tail(Tail::exactly(bytes))
}

const BENIGN: Kind = Kind {
    name: "",
    anomalous: false,
    transport: Transport::Tcp,
    ports: &[443],
    content: Content::Tls,
    ends: Ends::Everybody,
    request: tail(200, 100, 3),
    answer: tail(300, 110, 4),
    rounds: Tail::new(1, 128, 4),
    swapped: 0,
    stretch: DELAYED,
};

const ATTACK: Kind = Kind {
    anomalous: true,
    ..BENIGN
};

/// Downloads and uploads over TLS. Sizes with exponent 1.1, up to 75 MB.
pub(crate) const TLS_BULK: Kind = Kind {
    name: "tls-bulk",
    answer: tail(9_000, 119, 12),
    rounds: Tail::new(1, 64, 3),
    swapped: 26,
    stretch: STRETCHED,
    ..BENIGN
};

pub(crate) const HTTP_BULK: Kind = Kind {
    name: "http-bulk",
    ports: &[80, 8080],
    content: Content::Http,
    ..TLS_BULK
};

pub(crate) const QUIC_BULK: Kind = Kind {
    name: "quic-bulk",
    transport: Transport::Udp,
    content: Content::Quic,
    request: tail(40, 128, 4),
    answer: tail(5_000, 119, 12),
    ..TLS_BULK
};

/// Calls, pages, mail: small messages.
pub(crate) const TLS_LIGHT: Kind = Kind {
    name: "tls-light",
    ports: &[443, 443, 443, 993, 8443],
    answer: tail(120, 120, 4),
    request: tail(60, 120, 4),
    rounds: Tail::new(2, 140, 9),
    ..BENIGN
};

/// The same, some of which go on for very long.
pub(crate) const TLS_LONG: Kind = Kind {
    rounds: Tail::new(2, 175, 12),
    ..TLS_LIGHT
};

pub(crate) const HTTP_LIGHT: Kind = Kind {
    name: "http-light",
    ports: &[80],
    content: Content::Http,
    request: tail(180, 80, 2),
    answer: tail(150, 110, 3),
    rounds: Tail::new(1, 100, 5),
    ..BENIGN
};

pub(crate) const DNS: Kind = Kind {
    name: "dns",
    transport: Transport::Udp,
    ports: &[53],
    content: Content::Dns,
    request: exactly(0),
    answer: exactly(0),
    rounds: Tail::exactly(1),
    ..BENIGN
};

pub(crate) const PING: Kind = Kind {
    name: "ping",
    transport: Transport::Icmp,
    ports: &[0],
    content: Content::Ping,
    request: exactly(56),
    answer: exactly(56),
    rounds: Tail::new(4, 128, 6),
    ..BENIGN
};

/// Password guessing, one guess a connection.
pub(crate) const FTP_BRUTE_FORCE: Kind = Kind {
    name: "ftp-brute-force",
    ports: &[21],
    content: Content::Lines(&[
        "220 FTP server ready.\r\n",
        "USER admin\r\n",
        "331 Please specify the password.\r\n",
        "PASS ########\r\n",
        "530 Login incorrect.\r\n",
        "QUIT\r\n",
        "221 Goodbye.\r\n",
    ]),
    ends: Ends::Attackers(1),
    ..ATTACK
};

/// Password guessing after the server has started to refuse connections.
pub(crate) const SSH_BRUTE_FORCE: Kind = Kind {
    name: "ssh-brute-force",
    transport: Transport::TcpRefused,
    ports: &[22],
    content: Content::Noise,
    ends: Ends::Attackers(1),
    ..ATTACK
};

/// Requests for large pages.
pub(crate) const DOS_HTTP_FLOOD: Kind = Kind {
    name: "dos-http-flood",
    ports: &[80],
    content: Content::Http,
    ends: Ends::Attackers(4),
    request: tail(250, 60, 1),
    answer: tail(24_000, 60, 1),
    stretch: &[4, 8],
    rounds: Tail::new(1, 100, 2),
    ..ATTACK
};

/// Connections held open by a few bytes now and then.
pub(crate) const DOS_SLOW: Kind = Kind {
    name: "dos-slow-headers",
    content: Content::HeaderLines,
    ports: &[80],
    ends: Ends::Attackers(4),
    request: tail(10, 100, 3),
    // Rounds where the server says nothing are acknowledgements.
    answer: exactly(0),
    rounds: Tail::new(10, 128, 4),
    ..ATTACK
};

/// Injections and guesses in web forms.
pub(crate) const WEB_ATTACK: Kind = Kind {
    name: "web-attack",
    ports: &[80],
    content: Content::Http,
    ends: Ends::Attackers(2),
    request: tail(350, 100, 1),
    answer: tail(900, 110, 3),
    rounds: Tail::new(1, 128, 4),
    ..ATTACK
};

pub(crate) const PORT_SCAN: Kind = Kind {
    name: "port-scan",
    transport: Transport::TcpRefused,
    content: Content::Noise,
    ends: Ends::Scan,
    ..ATTACK
};

/// Requests from many machines for large pages.
pub(crate) const DDOS_HTTP_FLOOD: Kind = Kind {
    name: "ddos-http-flood",
    ends: Ends::Attackers(5_000),
    ..DOS_HTTP_FLOOD
};

pub(crate) const BOTNET: Kind = Kind {
    name: "botnet",
    ports: &[8080],
    content: Content::Tls,
    ends: Ends::Attackers(300),
    request: tail(60, 100, 2),
    answer: tail(60, 100, 3),
    rounds: Tail::new(3, 128, 4),
    ..ATTACK
};

pub(crate) const SYN_FLOOD: Kind = Kind {
    name: "syn-flood",
    transport: Transport::TcpUnanswered,
    ports: &[80, 443],
    content: Content::Noise,
    ends: Ends::Forged,
    ..ATTACK
};

/// UDP payload of the simple mix of 7 frames of 64 B, 4 of 594 B and 1 of 1518 B,
/// frame check sequence included.
pub(crate) const IMIX: Kind = Kind {
    name: "imix",
    transport: Transport::UdpOneWay,
    ports: &[9],
    content: Content::Probe,
    request: Length::OneOf(&[18, 18, 18, 18, 18, 18, 18, 548, 548, 548, 548, 1472]),
    rounds: Tail::new(1 << 16, 0, 0),
    ..BENIGN
};

/// UDP frames of one length; [`Kind::request`] is set by the profile.
pub(crate) const UDP_FLOOD: Kind = Kind {
    name: "udp-flood",
    ends: Ends::Attackers(5_000),
    anomalous: true,
    ..IMIX
};
