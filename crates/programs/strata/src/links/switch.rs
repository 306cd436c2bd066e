//! `strata switch`: the data plane, with its log at a relay.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::ValueEnum;
use strata_auth::secret::Secret;
use strata_auth::tls::{ClientTls, TlsFiles};
use strata_rdma::OnLoss;
use strata_record::DestinationSpec;
use strata_relay::{LinkOptions, MemoryFrom, Transport};
use strata_sandbox::User;
use strata_store::About;
use strata_terminal::bounded;
use strata_terminal::logging::LoggingArgs;
use strata_wire::roce::Service;
use strata_wire::segment::Layout;

use crate::record::{DataPathArgs, run_to};

/// Arguments of `strata switch`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  strata switch --relay 192.0.2.10 --secret-file relay.secret -i eth0
  strata switch --relay relay.example --tls-cert switch.crt --tls-key switch.key \\
      --tls-ca ca.crt -i eth0
  strata switch --relay 192.0.2.10 --insecure --transport raw --raw-interface eth1 -i eth0
  strata switch --relay localhost -r trace.pcapng --mode log-all
  strata switch --relay localhost --transport shared-memory -i eth0

The relay is `strata relay` on the machine with the disks. The switch sends packets as RoCEv2 RDMA
WRITEs (UDP port 4791), and everything else over TCP. If the relay is lost, the switch reconnects by
itself and reports the packets lost in the meantime. A switch that reads files waits for the relay
and resends unconfirmed packets, or ends with an error (--relay-timeout). The traffic between switch
and relay is not captured.")]
pub(crate) struct Args {
    #[command(flatten)]
    link: LinkArgs,

    #[command(flatten)]
    road: DataPathArgs,
}

#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Relay")]
struct LinkArgs {
    /// Send to this relay; port 4791 by default.
    #[arg(long, value_name = "HOST[:PORT]")]
    relay: String,

    /// Choose the transport to the relay.
    #[arg(long, value_enum, default_value_t = Way::Udp)]
    transport: Way,

    /// Send raw frames from this interface; the relay must be on the same link.
    #[arg(
        long,
        value_name = "NAME",
        required_if_eq("transport", "raw"),
        requires = "transport"
    )]
    raw_interface: Option<String>,

    /// Get shared memory from the relay through this Unix socket. By default, the socket of the
    /// relay on this machine that listens on the port of --relay.
    #[arg(long, value_name = "PATH")]
    memory_socket: Option<PathBuf>,

    /// Trust a shared-memory relay that runs as this user. Relays of root and of the switch's own
    /// user are always trusted.
    #[arg(long, value_name = "USER")]
    relay_user: Option<String>,

    /// Choose the RDMA service: rc is acknowledged; uc is not, so packets lost in the network stay
    /// lost, and are counted when the log is read.
    #[arg(long, value_enum, default_value_t = Connection::Rc)]
    service: Connection,

    /// Choose what rc does about losses: resend the packets, or skip and count them, as a switch
    /// that keeps no copies must do. With resend, a switch that reads files also resends the
    /// packets that a lost relay had not confirmed.
    #[arg(long, value_enum, default_value_t = Loss::Resend)]
    on_loss: Loss,

    /// Choose how packets are divided into RDMA messages: mtu fills each message; switch divides
    /// them into pieces of 128, 64, 32, 16, 8 and 4 bytes, one per message, as a programmable
    /// switch does.
    #[arg(long, value_enum, default_value_t = Cut::Mtu)]
    segments: Cut,

    /// Write a block to disk this many seconds after its first packet, even if it is not full.
    #[arg(long, value_name = "SECONDS", default_value_t = 1.0, value_parser = flush_seconds)]
    flush: f64,

    /// Wait this many seconds for a lost relay, then end with an error: while files are read (60 by
    /// default), or at the end of a live capture (10 by default). Until its end, a live capture
    /// continues without the relay and counts dropped packets.
    #[arg(long, value_name = "SECONDS", value_parser = timeout_seconds)]
    relay_timeout: Option<f64>,

    /// Read the secret shared with the relay from this file, which only its owner may read: before
    /// packets are sent, each end proves to the other that it knows the secret.
    #[arg(long, value_name = "FILE")]
    secret_file: Option<PathBuf>,

    /// Send packets to a relay on another machine without authenticating it.
    #[arg(long, conflicts_with_all = ["secret_file", "tls_cert"])]
    insecure: bool,

    /// Use this switch certificate (PEM), for TLS on the control connection.
    #[arg(long, value_name = "FILE", requires_all = ["tls_key", "tls_ca"])]
    tls_cert: Option<PathBuf>,

    /// Read the private key of the certificate (PEM) from this file.
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,

    /// Accept relay certificates from these authorities (PEM).
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_ca: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Way {
    /// RoCEv2 over UDP sockets.
    Udp,
    /// RoCEv2 in Ethernet frames, through a packet socket.
    Raw,
    /// Shared memory, with a relay on this machine.
    SharedMemory,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Connection {
    /// Reliable connection.
    Rc,
    /// Unreliable connection.
    Uc,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Loss {
    /// Send again from the first lost packet on.
    Resend,
    /// Count, and continue.
    Skip,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Cut {
    /// As much as fits in an RDMA message.
    Mtu,
    /// Powers of two.
    Switch,
}

impl LinkArgs {
    /// The options of links to the relay.
    fn options(&self) -> Result<LinkOptions> {
        let service = match self.service {
            Connection::Rc => Service::Rc,
            Connection::Uc => Service::Uc,
        };
        let session = format!("{:016x}{:016x}", getrandom::u64()?, getrandom::u64()?);
        let mut options = LinkOptions::new(self.relay.clone(), About::default(), session);
        options.transport = match (self.transport, &self.raw_interface) {
            (Way::SharedMemory, _) => Transport::SharedMemory,
            (Way::Raw, Some(interface)) => Transport::Raw(service, interface.clone()),
            _ => Transport::Udp(service),
        };
        options.on_loss = match self.on_loss {
            Loss::Resend => OnLoss::Resend,
            Loss::Skip => OnLoss::Skip,
        };
        options.layout = match self.segments {
            Cut::Mtu => Layout::Mtu,
            Cut::Switch => Layout::PowersOfTwo,
        };
        options.flush_interval = Duration::from_secs_f64(self.flush);
        options.patience = self.relay_timeout.map(Duration::from_secs_f64);
        if let (Some(certificate), Some(key), Some(authority)) =
            (&self.tls_cert, &self.tls_key, &self.tls_ca)
        {
            let files = TlsFiles {
                certificate,
                key,
                authority,
            };
            options.tls = Some(ClientTls::new(&files)?);
        }
        options.secret = self.secret_file.as_deref().map(Secret::read).transpose()?;
        options.insecure = self.insecure;
        let user = self.relay_user.as_deref().map(User::named).transpose();
        options.memory = MemoryFrom {
            socket: self.memory_socket.clone(),
            user: user.context("--relay-user")?.map(|user| user.id()),
        };
        Ok(options)
    }
}

/// A partly filled block goes to disk within an hour.
fn flush_seconds(text: &str) -> Result<f64, String> {
    bounded::within(without_unit(text), 1e-3..=3600.0)
}

/// A relay that is lost is waited for at most a day.
fn timeout_seconds(text: &str) -> Result<f64, String> {
    bounded::within(without_unit(text), 0.0..=86_400.0)
}

/// Seconds may have their unit, as other times have.
fn without_unit(text: &str) -> &str {
    text.strip_suffix('s').unwrap_or(text)
}

impl Args {
    pub(crate) fn logging(&self) -> &LoggingArgs {
        self.road.logging()
    }
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let destination = DestinationSpec::Relay(Box::new(args.link.options()?));
    run_to(&args.road, destination, None)
}
