//! The tcpdump filter language (pcap-filter(7)), with a syntax tree of its own.
//!
//! A filter is parsed once, into a tree of tests: hosts, ports, protocols, with names resolved to
//! numbers. For each link type it is compiled into a short list of steps, which is evaluated per
//! packet without allocating. The same tree is the source for other uses: eBPF, policy rules, and
//! what a log can skip.
//!
//! ```
//! use strata_filter::Filter;
//! use strata_wire::LinkType;
//!
//! let filter: Filter = "tcp port 80 and host 192.0.2.1".parse()?;
//! let program = filter.compile(LinkType::ETHERNET)?;
//! assert!(!program.matches(&[0; 60], 60));
//! assert_eq!(filter.to_string(), "tcp port 80 and host 192.0.2.1");
//! assert_eq!(filter.host_bounds(), [["192.0.2.1".parse::<std::net::IpAddr>()?]]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Layers
//!
//! - `lexer`, `names`, `parser`, `qualifier`, `protocol`: from text to [`Expr`].
//! - [`Expr`] and its parts; displayed, they are an expression again.
//! - `compile`: from the tree to steps. Its `layers`, `link`, `mac`, `internet` and `arith` are tests by what they look
//!   at; `thread` drops steps whose outcome is known.
//! - [`Program`]: the steps and their evaluation.
//! - `ebpf`: the steps as instructions of the kernel.
//! - `bound`: which addresses a match must have.
//!
//! Used by all crates above; uses `wire` for link types, and `bpf` for its assembler.
//!
//! # Meaning
//!
//! That of libpcap 1.10.3 on capture files, against which it is tested; on interfaces, one VLAN tag
//! is looked through ([`Filter::on_interfaces`]). So a load beyond the
//! captured bytes rejects the packet, whatever `not` and `or` surround it. `vlan`, `mpls`, `pppoes`
//! and `geneve` shift the headers for everything to their right, also across `or`. `port` tests
//! first fragments only, and directly after the IPv6 header. `tcp[...]` and the like read IPv4
//! only. In a sum, only the left operand's protocol is required. `ip broadcast` knows 0.0.0.0 and
//! 255.255.255.255, since a file has no netmask.
//!
//! Link types: Ethernet, raw IP (12, 14, 101, 228, 229), Linux cooked (113,
//! 276), BSD and OpenBSD loopback (0, 108), 802.11 bare (105), with radiotap
//! (127), Prism (119), AVS (163) or PPI (192), PPP (9, 50, 51), Cisco HDLC (104), frame
//! relay (107). On all others `len`, `less`, `greater` and
//! `link[...]` work (the last not on netANALYZER, 240 and 241),
//! and the rest is a [`CompileError`], also where libpcap knows more.
//!
//! The peculiarities of libpcap on the rarer ones are kept, so that a filter means here what it
//! means to tcpdump. On PPI only packets with 802.11 match, and `type`, `subtype`, `dir`, `vlan`
//! and `radio[...]` are refused. PPP is expected after address and control bytes only. On frame
//! relay an address of two bytes is assumed, and `ip`, `ip6`, `iso` and the protocols of `iso` are
//! told apart, but fields of the packet (`host`, `tcp`) are read from the first byte of the frame
//! on. NFLOG (239) is refused, as it has attributes of any length before the packet: policies see
//! the flows of its packets.
//!
//! Service names are those of `/etc/services`, protocol names those of `/etc/protocols`, each read
//! when a filter with such a name is parsed; a small table of well-known names replaces missing
//! files.
//!
//! # What tcpdump has not
//!
//! `tag NAME`, `asn NUMBER` and `country CODE`, also after `src` and `dst`, test whether an address is in one of the
//! networks that have this name ([`NetworkNames`]). They are keywords only before such a value, where tcpdump's language
//! has a syntax error: all its filters keep their meaning, and `host tag` is a host.
//!
//! # What is refused
//!
//! - Names of hosts, networks and MAC addresses: a filter must not wait for a name server, nor
//!   change its meaning tomorrow. So `gateway` too.
//! - `DECnet` addresses (`decnet host`), `ARCnet` addresses (`$1`): obsolete. `decnet` alone works.
//! - The keywords of ATM (`lane`, `vpi`...), SS7 (`sio`, `opc`...) and OpenBSD packet filter logs
//!   (`ifname`, `action`...): their link types are not supported.
//! - `byte`, which pcap-filter(7) does not mention.
//! - `inbound`, `outbound`, `ifindex` if the capture file does not record it.
//! - More than 200 levels of nesting, 60 operators in a comparison, 500 changes between
//!   `and` and `or` without parentheses, or a mebibyte.
//!
//! # Known differences from libpcap
//!
//! The oracle test (`tests/it/oracle.rs`) lists and counts them.
//!
//! - libpcap's optimiser drops loads whose result it does not need, and so accepts
//!   short packets that its unoptimised program rejects: `net ::/0`, or `tcp[100] = 0 or
//!   tcp`. Here the unoptimised program is the model, for one thing only the optimised:
//!   constant offsets are added modulo 2^32, so that `ip[-1]` is the byte before the header.
//! - A test inside `geneve` that is reached by a packet which is not Geneve, as in `geneve or tcp`:
//!   libpcap reads uninitialised memory; here the packet is rejected.
//! - On 802.11, `pppoes` and `geneve`, and tests on headers next to arithmetic, make libpcap
//!   use a wrong header length; here it is right.
//! - BSD loopback: the address family is taken in both byte orders, for which libpcap needs
//!   the file header.
//! - `vlan` works in Linux cooked captures too, where a packet of `-i any` keeps its tag here.
//! - `protochain` follows at most 256 headers; libpcap can be made to loop for ever.
//! - `tcp port ((80 or 81) or 82)`, `len << (32 - 1)` and `len / (0 + 5)` are accepted; an
//!   expression that can match nothing is not refused.
#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]

mod ast;
mod bound;
mod compile;
mod display;
#[allow(
    clippy::arithmetic_side_effects,
    reason = "it parses nothing: offsets are checked to fit an instruction, the rest are constants and registers"
)]
mod ebpf;
mod error;
mod flow_bound;
mod lexer;
mod names;
mod parser;
mod program;
mod protocol;
mod qualifier;

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use strata_wire::LinkType;

pub use ast::{
    AddressScope, Arith, Direction, Expr, Header, IpVersion, Llc, MacAddress, MacDirection, Naming,
    Network, NetworkNames, NetworkSet, Operator, Relation, Test, Transport, Width,
};
pub use bound::FlowFacts;
pub use ebpf::{KernelView, NotInKernel};
pub use error::{CompileError, ParseError};
pub use program::Program;

/// A parsed filter expression.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Filter {
    expr: Expr,
    /// One VLAN tag is looked through.
    through_tag: bool,
}

impl Filter {
    /// Parses an expression. The empty one matches every packet.
    ///
    /// # Errors
    ///
    /// A syntax error, with its position and what to write instead.
    pub fn parse(expression: &str) -> Result<Self, ParseError> {
        Self::parse_with(expression, &ast::NoNames)
    }

    /// As [`Filter::parse`], where names of networks are known.
    ///
    /// # Errors
    ///
    /// Those of [`Filter::parse`], and a name that is unknown.
    pub fn parse_with(expression: &str, names: &dyn NetworkNames) -> Result<Self, ParseError> {
        let expr = parser::parse(expression, names)?;
        // The display adds parentheses. If a filter is nested nearly to the limit, they must not
        // exceed it.
        if expression.len() > parser::DEPTH_MAX && parser::parse(&expr.to_string(), names).is_err()
        {
            let whole = 0..expression.len();
            let message = "the filter is nested too deeply: write it shorter";
            return Err(ParseError::new(expression, whole, message));
        }
        Ok(Self {
            expr,
            through_tag: false,
        })
    }

    /// The same filter for packets of interfaces. There it means what it means to `tcpdump -i` on Linux, where the
    /// kernel takes the outer VLAN tag off a packet before the filter sees it: `tcp` matches tagged packets too, and
    /// lengths and bytes are those without the tag. A filter with `vlan` stays as it is, and has to say on which side of
    /// the tag it looks; so does one that reads bytes of the link layer at a computed place, or across the tag.
    #[must_use]
    pub fn on_interfaces(mut self) -> Self {
        self.through_tag = !sees_tag(&self.expr);
        self
    }

    /// The tree.
    #[must_use]
    pub fn ast(&self) -> &Expr {
        &self.expr
    }

    /// Makes a program for packets of one link type.
    ///
    /// # Errors
    ///
    /// A test that is impossible on this link type, as in libpcap.
    pub fn compile(&self, link: LinkType) -> Result<Program, CompileError> {
        match self.through_tag {
            true => compile::compile_through_tag(&self.expr, link),
            false => compile::compile(&self.expr, link),
        }
    }

    /// Whether the filter may depend on payload: it reads bytes that are not for sure in the fixed part of a header. Who
    /// may not see payload could find it by many such filters.
    #[must_use]
    pub fn may_test_payload(&self) -> bool {
        tests_payload(&self.expr)
    }

    /// Sets of addresses, sorted: every matching packet has at least one of each set. Empty if
    /// nothing is known. For skipping parts of a log by an index of addresses.
    ///
    /// The packet has it as source or destination of an IPv4 or IPv6 header, or as the sender's
    /// or target's address of an ARP or RARP packet: at the bytes where the filter looks (12 and
    /// 16, 8 and 24, 14 and 24 of that header), whatever its version and length fields say. It
    /// may be a header inside VLAN tags, MPLS labels, `PPPoE` or Geneve, if the filter says so:
    /// an index has to hold these as well.
    #[must_use]
    pub fn host_bounds(&self) -> Vec<Vec<IpAddr>> {
        bound::host_bounds(&self.expr)
    }

    /// Flows to which every matching packet belongs, if the filter names addresses, ports and
    /// protocol; `None` if these are too many. For finding a flow by an index of flows.
    ///
    /// The packet belongs to the flow by its outermost IP header, with the ports right after it.
    #[must_use]
    pub fn flow_bound(&self) -> Option<Vec<FlowFacts>> {
        flow_bound::flow_bound(&self.expr)
    }

    /// Whether a packet of this flow may match. False means that none does, provided the facts hold
    /// for each packet: all its IP headers have these addresses, no header is cut short, and no IP
    /// packet is inside another.
    #[must_use]
    pub fn may_match(&self, facts: &FlowFacts) -> bool {
        bound::may_match(&self.expr, facts, &mut 0, &mut 0)
    }
}

fn tests_payload(expr: &Expr) -> bool {
    match expr {
        Expr::Any => false,
        Expr::Test(Test::Compare { left, right, .. }) => {
            reads_payload(left) || reads_payload(right)
        }
        // Whatever is sent to its port is taken for its header, and for headers behind that.
        Expr::Test(Test::Geneve(_)) => true,
        Expr::Test(_) => false,
        Expr::Not(inner) => tests_payload(inner),
        Expr::And(parts) | Expr::Or(parts) => parts.iter().any(tests_payload),
    }
}

fn reads_payload(arith: &Arith) -> bool {
    match arith {
        Arith::Number(_) | Arith::Length => false,
        Arith::Negate(inner) => reads_payload(inner),
        Arith::Binary { left, right, .. } => reads_payload(left) || reads_payload(right),
        Arith::Load {
            header,
            offset,
            bytes,
        } => {
            let width = match bytes {
                Width::Byte => 1,
                Width::Half => 2,
                Width::Word => 4,
            };
            let end = match **offset {
                Arith::Number(at) => at.checked_add(width),
                _ => None,
            };
            end.is_none_or(|end| end > fixed_len(*header))
        }
    }
}

/// Bytes at the start of a header that each packet has which has the header at all.
fn fixed_len(header: Header) -> u32 {
    match header {
        // The shortest headers of links are followed by those of IP.
        Header::Link => 14,
        Header::Radio | Header::Udp | Header::Icmp | Header::Icmp6 | Header::Igmp => 8,
        Header::Ip | Header::Tcp => 20,
        Header::Ip6 => 40,
        Header::Arp | Header::Rarp => 28,
        Header::Sctp => 12,
        _ => 0,
    }
}

/// Whether an expression tells tagged packets from others.
fn sees_tag(expr: &Expr) -> bool {
    match expr {
        Expr::Any => false,
        Expr::Test(Test::Vlan(_)) => true,
        Expr::Test(Test::Compare { left, right, .. }) => reads_tag(left) || reads_tag(right),
        Expr::Test(_) => false,
        Expr::Not(inner) => sees_tag(inner),
        Expr::And(parts) | Expr::Or(parts) => parts.iter().any(sees_tag),
    }
}

fn reads_tag(arith: &Arith) -> bool {
    match arith {
        Arith::Number(_) | Arith::Length => false,
        Arith::Negate(inner) => reads_tag(inner),
        Arith::Binary { left, right, .. } => reads_tag(left) || reads_tag(right),
        Arith::Load {
            header: Header::Link,
            offset,
            bytes,
        } => match (&**offset, bytes) {
            // The tag of Ethernet; that of a cooked header is behind all of it.
            (Arith::Number(9..12), Width::Word) | (Arith::Number(11), Width::Half) => true,
            (Arith::Number(_), _) => false,
            _ => true,
        },
        Arith::Load { offset, .. } => reads_tag(offset),
    }
}

impl FromStr for Filter {
    type Err = ParseError;

    fn from_str(expression: &str) -> Result<Self, ParseError> {
        Self::parse(expression)
    }
}

/// An equivalent expression, which parses to the same tree.
impl fmt::Display for Filter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.expr)
    }
}

/// A filter from a hand-made tree.
impl From<Expr> for Filter {
    fn from(expr: Expr) -> Self {
        Self {
            expr,
            through_tag: false,
        }
    }
}
