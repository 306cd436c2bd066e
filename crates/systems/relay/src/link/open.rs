//! How a switch connects to a relay: sockets, and what both ends agree on.

use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr, TcpStream, ToSocketAddrs, UdpSocket};
use std::time::{Duration, Instant};

use strata_blocks::SEGMENTS_AT;
use strata_roce::Port;
use strata_roce::raw::RawToPeer;
use strata_roce::shared::SharedToPeer;
use strata_roce::udp::{UdpPort, UdpToPeer};
use strata_wire::roce::{MASK_24, Service, UDP_PORT};

use crate::CONTROL_PORT;
use crate::channel::Channel;
use crate::error::{RelayError, io_error};
use crate::protocol::switch::{ANSWER_LIMIT_NS, Connection, Entry, Path, Resumption};
use crate::protocol::{Begin, Hello, HelloPath, Message, Welcome, WelcomePath};
use crate::random::{nonce, random};

use super::{LinkOptions, Transport, ns};

/// How long connecting to a relay may take.
const CONNECT_LIMIT: Duration = Duration::from_secs(5);
/// Headers of a packet around an RDMA payload: IPv6, UDP, BTH, RETH, ICRC.
const OVERHEAD: usize = 40 + 8 + 12 + 16 + 4;

/// A connection with its sockets.
pub(super) struct Opened {
    pub(super) channel: Channel,
    pub(super) connection: Connection,
    /// The port for packets; none with shared memory.
    port: Option<Box<dyn Port>>,
}

/// `HOST`, `HOST:PORT`, `[ADDRESS]:PORT` as host and port.
fn host_and_port(text: &str) -> (&str, u16) {
    match text.rsplit_once(':') {
        Some((host, port)) if !host.contains(':') || host.ends_with(']') => match port.parse() {
            Ok(port) => (host, port),
            Err(_) => (text, CONTROL_PORT),
        },
        _ => (text, CONTROL_PORT),
    }
}

/// Where a relay's control connections go.
pub(super) fn addresses(relay: &str) -> Result<impl Iterator<Item = SocketAddr>, RelayError> {
    let (host, port) = host_and_port(relay);
    let bare = host.trim_matches(['[', ']']);
    let addresses = (bare, port).to_socket_addrs();
    addresses.map_err(io_error(format!(
        "--relay {relay}: no address is known for this name; write HOST or HOST:PORT"
    )))
}

fn connect(options: &LinkOptions) -> Result<TcpStream, RelayError> {
    let relay = &options.relay;
    let is_protected = options.tls.is_some() || options.secret.is_some() || options.insecure;
    let mut last = None;
    for address in addresses(relay)? {
        if !is_protected && !address.ip().to_canonical().is_loopback() {
            let peer = address.to_string();
            return Err(RelayError::Unprotected { peer });
        }
        match TcpStream::connect_timeout(&address, CONNECT_LIMIT) {
            Ok(stream) => return Ok(stream),
            Err(error) => last = Some(error),
        }
    }
    let none = || ErrorKind::NotFound.into();
    Err(io_error(format!(
        "{relay}: cannot connect; is `strata relay` running there?"
    ))(last.unwrap_or_else(none)))
}

/// The largest RDMA MTU whose packets the path to `relay` takes unfragmented.
fn path_mtu(local: IpAddr, relay: SocketAddr) -> usize {
    let probe = || -> std::io::Result<usize> {
        let socket = UdpSocket::bind((local, 0))?;
        socket.connect(relay)?;
        strata_roce::udp::path_mtu(&socket)
    };
    let bytes = probe().unwrap_or(1500);
    let fits = |mtu: &usize| mtu + OVERHEAD <= bytes;
    [4096, 2048, 1024, 512]
        .into_iter()
        .find(fits)
        .unwrap_or(256)
}

/// A bound UDP socket, and its address.
type Udp = Option<(UdpPort, SocketAddr)>;

/// The transport from `local` to `relay`, as the switch proposes it.
fn own_path(
    options: &LinkOptions,
    local: SocketAddr,
    relay: SocketAddr,
) -> Result<(HelloPath, Udp), RelayError> {
    let service = match &options.transport {
        Transport::SharedMemory => return Ok((HelloPath::SharedMemory, None)),
        Transport::Udp(service) | Transport::Raw(service, _) => *service,
    };
    // A NIC sends its answers to 4791; our relay to any port.
    let own = SocketAddr::new(local.ip(), UDP_PORT);
    let port = UdpPort::bind(own)
        .or_else(|_| UdpPort::bind(SocketAddr::new(local.ip(), 0)))
        .map_err(io_error(format!(
            "{}: cannot open a UDP socket",
            local.ip()
        )))?;
    let bound = port
        .local_address()
        .map_err(io_error("cannot get the address of the UDP socket"))?;
    let numbers = random()?;
    #[allow(clippy::cast_possible_truncation)]
    let path = HelloPath::Rdma {
        reliable: service == Service::Rc,
        qpn: (numbers as u32 & MASK_24).max(2),
        psn: (numbers >> 32) as u32 & MASK_24,
        port: bound.port(),
        mtu: path_mtu(local.ip(), relay),
    };
    Ok((path, Some((port, bound))))
}

/// The path that both ends have agreed on, and the destination of its packets.
fn agreed(
    options: &LinkOptions,
    welcome: &Welcome,
    ours: &HelloPath,
    udp: Udp,
    relay: SocketAddr,
) -> Result<(Path, Option<Box<dyn Port>>), RelayError> {
    let protocol = |problem: &str| RelayError::Protocol {
        peer: relay.to_string(),
        problem: problem.to_owned(),
    };
    match (&welcome.path, ours, udp) {
        (WelcomePath::SharedMemory { token }, HelloPath::SharedMemory, _) => {
            let (blocks, stride) = (welcome.blocks, welcome.block_stride);
            let len = blocks.checked_mul(stride);
            let len = len.ok_or_else(|| protocol("invalid sizes of blocks"))?;
            let file = options.memory.fetch(relay.port(), token, len as u64)?;
            let memory = SharedToPeer::map(file, blocks, stride, SEGMENTS_AT);
            let memory = memory.map_err(io_error("cannot map the relay's shared memory"))?;
            let messages = 0;
            Ok((Path::Shared { memory, messages }, None))
        }
        (&WelcomePath::Rdma { port, .. }, HelloPath::Rdma { .. }, Some((udp, local))) => {
            let path = Path::rdma(ours, &welcome.path, options.on_loss);
            let path = path.ok_or_else(|| protocol("an invalid RDMA MTU"))?;
            let relay = SocketAddr::new(relay.ip(), port);
            Ok((path, Some(port_to(options, udp, local, relay)?)))
        }
        _ => Err(protocol("a transport other than the requested one")),
    }
}

fn port_to(
    options: &LinkOptions,
    udp: UdpPort,
    local: SocketAddr,
    relay: SocketAddr,
) -> Result<Box<dyn Port>, RelayError> {
    let what = "cannot send RDMA packets";
    let port: Box<dyn Port> = match &options.transport {
        Transport::Raw(_, interface) => {
            Box::new(RawToPeer::new(interface, udp, local, relay).map_err(io_error(what))?)
        }
        Transport::Udp(_) | Transport::SharedMemory => {
            Box::new(UdpToPeer::new(udp, local, relay).map_err(io_error(what))?)
        }
    };
    Ok(match &options.wrap {
        Some(wrap) => wrap(port),
        None => port,
    })
}

/// The relay's next message, which must arrive before `end`.
fn answer(
    channel: &mut Channel,
    options: &LinkOptions,
    end: Instant,
    interrupted: &impl Fn() -> bool,
) -> Result<Message, RelayError> {
    let left = end.saturating_duration_since(Instant::now());
    let is_plain = options.tls.is_none();
    match channel.wait(left, interrupted) {
        Err(RelayError::Closed { peer }) if is_plain => Err(RelayError::HungUp { peer }),
        Err(RelayError::Io { source, .. })
            if is_plain && source.kind() == ErrorKind::ConnectionReset =>
        {
            let peer = channel.peer().to_owned();
            Err(RelayError::HungUp { peer })
        }
        answer => answer,
    }
}

impl Opened {
    /// Connects to the relay, going on from there.
    pub(super) fn open(
        options: &LinkOptions,
        from: Resumption,
        started: Instant,
        interrupted: impl Fn() -> bool,
    ) -> Result<Self, RelayError> {
        let end = Instant::now() + Duration::from_nanos(ANSWER_LIMIT_NS);
        let stream = connect(options)?;
        let what = || format!("{}: connection", options.relay);
        let local = stream.local_addr().map_err(io_error(what()))?;
        let relay = stream.peer_addr().map_err(io_error(what()))?;
        let tls = options.tls.as_ref();
        let tls = tls.map(|tls| tls.connection(host_and_port(&options.relay).0));
        let tls = tls.transpose()?.map(rustls::Connection::Client);
        let mut channel = Channel::new(stream, tls).map_err(io_error(what()))?;
        let (path, udp) = own_path(options, local, relay)?;
        #[allow(clippy::cast_possible_truncation)]
        let key = random()? as u32;
        let begin = (from, key);
        let welcome = enter(&mut channel, options, begin, &path, end, &interrupted)?;
        let numbers = from.numbers(&welcome, key);
        let (path, port) = agreed(options, &welcome, &path, udp, relay)?;
        let peer = channel.peer().to_owned();
        let now = ns(started.elapsed());
        let connection = Connection::new(peer, numbers, welcome, path, options.layout, now);
        Ok(Self {
            channel,
            connection,
            port,
        })
    }

    /// Processes RDMA packets that have arrived.
    pub(super) fn receive_packets(&mut self, now_ns: u64) -> Result<(), RelayError> {
        let Some(port) = &mut self.port else {
            return Ok(());
        };
        if !self.connection.awaits_packets() {
            return Ok(());
        }
        let mut result = Ok(());
        port.receive(&mut |packet| {
            if result.is_ok() {
                result = self.connection.receive_packet(packet, now_ns);
            }
        })
        .map_err(io_error("RDMA packets: cannot receive"))?;
        result
    }

    /// Sends the RDMA packets gathered so far.
    pub(super) fn send_packets(&mut self) -> Result<(), RelayError> {
        if let (Some(packets), Some(port)) = (self.connection.packets(), &mut self.port) {
            let sent = port.send(packets);
            packets.clear();
            sent.map_err(io_error("RDMA packets: cannot send"))?;
        }
        Ok(())
    }

    /// Sends pending messages.
    pub(super) fn say(&mut self) -> Result<(), RelayError> {
        for message in self.connection.messages() {
            self.channel.send(&message)?;
        }
        Ok(())
    }

    /// Waits up to `limit` for something to come back.
    pub(super) fn wait(&mut self, limit: Duration) -> Result<(), RelayError> {
        match &mut self.port {
            Some(port) if self.connection.awaits_packets() => port
                .wait(limit)
                .map_err(io_error("RDMA packets: cannot wait")),
            // Answers come as messages.
            _ => self.channel.wait_ready(limit),
        }
    }
}

/// Sends hello, describes what is recorded, and is admitted.
fn enter(
    channel: &mut Channel,
    options: &LinkOptions,
    (from, key): (Resumption, u32),
    path: &HelloPath,
    end: Instant,
    interrupted: &impl Fn() -> bool,
) -> Result<Welcome, RelayError> {
    let about = &options.about;
    let begin = Begin {
        program: about.program.clone(),
        inputs: about.inputs.clone(),
        filter: about.filter.clone(),
        mode: about.mode.clone(),
        model: about.model.clone(),
        classes: about.classes.clone(),
        hash_seed: about.hash_seed,
        key,
        first_block: from.block,
        first_seq: from.seq,
        unconfirmed_seq: from.unconfirmed_seq,
        resends: from.resends,
        path: path.clone(),
    };
    let hello = Hello {
        session: options.session.clone(),
        worker: options.worker,
        nonce: nonce()?,
        secret: options.secret.is_some(),
    };
    let (peer, model) = (channel.peer().to_owned(), about.model_json.clone());
    let mut out = Vec::new();
    let mut entry = Entry::new(peer, options.secret.clone(), hello, begin, model, &mut out)?;
    loop {
        for message in out.drain(..) {
            // If it cannot be sent, the relay may have said why.
            let _ = channel.send(&message);
        }
        let message = answer(channel, options, end, interrupted)?;
        if let Some(welcome) = entry.receive(message, &mut out)? {
            return Ok(welcome);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn relays_are_named_with_and_without_a_port() {
        assert_eq!(host_and_port("relay"), ("relay", 4791));
        assert_eq!(host_and_port("192.0.2.1:5000"), ("192.0.2.1", 5000));
        assert_eq!(host_and_port("[fd00::1]:5000"), ("[fd00::1]", 5000));
        assert_eq!(host_and_port("fd00::1"), ("fd00::1", 4791));
    }
}
