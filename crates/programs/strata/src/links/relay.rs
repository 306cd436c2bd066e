//! `strata relay`: memory for switches, written to disk.

use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Result, bail, ensure};
use strata_auth::secret::Secret;
use strata_auth::tls::{ServerTls, TlsFiles};
use strata_record::RelaySpec;
use strata_relay::protocol::{BLOCK_BYTES, BLOCK_UNIT};
use strata_relay::{CONTROL_PORT, RelayOptions};
use strata_terminal::address::address;
use strata_terminal::log_options::{DiskWay, GroupArgs, rotate_bytes};
use strata_terminal::logging::{self, LoggingArgs};
use strata_terminal::output::{refuse, standard};
use strata_terminal::signals::stop_log_on_signal;
use strata_terminal::{bounded, text};
use strata_wire::{grouped, human_bytes};

/// Arguments of `strata relay`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  strata relay -o log/
  strata relay -o log/ --listen 192.0.2.10 --secret-file relay.secret
  strata relay -o log/ --to-stream streams/packets
  strata relay -o log/ -C 256MiB --disk-limit 500GB
  strata relay -o log/ --listen 192.0.2.10 --tls-cert relay.crt --tls-key relay.key --tls-ca ca.crt

Without --listen, only switches on this machine reach the relay. On any address other than loopback,
the relay requires authentication: with --secret-file, both ends prove that they know a secret
(`umask 077; openssl rand -hex 32 >relay.secret`); with --tls-cert, both show certificates, and the
control connection is encrypted. Packets themselves travel unencrypted.

Switches (`strata switch --relay`) connect by TCP, and write packets into the relay's memory by
RDMA: RoCEv2 on UDP port 4791. Full blocks are written to disk unchanged; commands that read the log
assemble the packets. On Ctrl-C, the relay writes the packets in memory to disk, and exits.

While the disk is nearly full or too slow, the relay lets switches that capture interfaces keep
less; afterwards, they return to their modes.")]
pub(crate) struct Args {
    /// Write the log to this directory, created if missing.
    #[arg(short = 'o', long = "output", value_name = "DIR")]
    output: PathBuf,

    /// Listen for switches on this address: TCP port 4791 or the one given, and UDP port 4791. An
    /// address other than loopback needs --secret-file, --tls-cert or --insecure.
    #[arg(long, value_name = "ADDR[:PORT]", default_value = "127.0.0.1:4791")]
    listen: String,

    /// Set the block size: the unit that is written to disk. If both switch and relay fail, at most
    /// one block is lost.
    #[arg(long, value_name = "SIZE", default_value = "8MiB")]
    block_size: String,

    /// Set the number of memory blocks for each worker of a switch: one block is filled while the
    /// others are written.
    #[arg(long = "worker-blocks", value_name = "N", default_value_t = 4, value_parser = bounded::count::<2, 1024>)]
    blocks: usize,

    /// Write blocks to disk with this many threads.
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = bounded::count::<1, 64>)]
    writers: usize,

    /// Choose how blocks are written: direct (bypassing the page cache), buffered (through the page
    /// cache), or auto: the method that is faster in a short test.
    #[arg(long, value_enum, default_value_t = DiskWay::Auto)]
    disk: DiskWay,

    /// Rotate: start a new block file before the current one exceeds this size, in millions of
    /// bytes or with a unit (500MB, 2GiB); 0 means never.
    #[arg(short = 'C', long, value_name = "SIZE", default_value = "1GiB")]
    rotate_size: String,

    /// Keep the log below this size, by deleting the least important data, as `strata prune
    /// --max-size` does. Must be at least four times -C for each worker of a switch.
    #[arg(long, value_name = "SIZE")]
    disk_limit: Option<String>,

    /// Read `[elastic]` in this configuration file: it sets when switches keep less
    /// (disk_space_percent, disk_rate_percent, blocks_percent), and when data is deleted
    /// (remove_percent).
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,

    #[command(flatten)]
    group: GroupArgs,

    /// Give switches on this machine shared memory through this Unix socket. The default is a
    /// socket in /run/strata/relay-PORT or $XDG_RUNTIME_DIR/strata/relay-PORT.
    #[arg(long, value_name = "PATH")]
    memory_socket: Option<PathBuf>,

    /// Accept at most this many connections from switches at a time.
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = bounded::count::<1, 4096>)]
    switches: usize,

    /// Require switches to prove that they know the secret in this file; the relay proves the same
    /// to them. The file must be at least 16 bytes long, and readable by its owner only.
    #[arg(long, value_name = "FILE")]
    secret_file: Option<PathBuf>,

    /// Accept packets from anyone who can reach the --listen address.
    #[arg(long, conflicts_with_all = ["secret_file", "tls_cert"])]
    insecure: bool,

    /// Once a block is on disk, also append its packets to this stream (`strata stream create`
    /// makes one), which other programs can follow (`strata stream tail`). Packets that the stream
    /// cannot accept in time are missing from it, and counted.
    #[arg(long, value_name = "DIR/NAME")]
    to_stream: Option<String>,

    /// Keep all privileges and access to all files, instead of dropping unneeded ones once the
    /// relay listens.
    #[arg(long)]
    no_sandbox: bool,

    /// Use this relay certificate (PEM): switches must then use TLS and show a certificate too.
    #[arg(long, value_name = "FILE", requires_all = ["tls_key", "tls_ca"])]
    tls_cert: Option<PathBuf>,

    /// Read the private key of the certificate (PEM) from this file.
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,

    /// Accept switch certificates from these authorities (PEM).
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_ca: Option<PathBuf>,

    /// Let the NIC of this RDMA device (`rdma link`) write into memory.
    #[arg(long, value_name = "NAME")]
    rdma_device: Option<String>,

    /// Use the GID of the device with this index: it must be a RoCEv2 GID that switches can reach.
    #[arg(long, value_name = "N", default_value_t = 1, requires = "rdma_device")]
    gid_index: u8,

    #[command(flatten)]
    pub(crate) logging: LoggingArgs,
}

/// The relay that the command line describes.
fn spec(args: &Args) -> Result<RelaySpec> {
    let options = options(args)?;
    let bytes_max = args
        .disk_limit
        .as_deref()
        .map(|text| bounded::bytes(text, "--disk-limit"))
        .transpose()?;
    if let Some(limit) = bytes_max {
        bounded::size(limit, "--disk-limit", &(1..=bounded::BYTES_MAX))?;
    }
    // How many descriptors a NIC's library opens later is unknown.
    let sandboxed = !args.no_sandbox && args.rdma_device.is_none();
    Ok(RelaySpec {
        options,
        dir: args.output.clone(),
        disk: args.disk.into(),
        config: args.config.clone(),
        bytes_max,
        to_stream: args
            .to_stream
            .as_deref()
            .map(strata_terminal::feed::fed)
            .transpose()?,
        sandboxed,
    })
}

/// Its addresses, memory and block files.
fn options(args: &Args) -> Result<RelayOptions> {
    let mut options = RelayOptions::new(address("--listen", &args.listen, CONTROL_PORT)?);
    options.block_bytes = usize::try_from(bounded::bytes(&args.block_size, "--block-size")?)?;
    let bytes = options.block_bytes;
    if !BLOCK_BYTES.contains(&bytes) || !bytes.is_multiple_of(BLOCK_UNIT) {
        return Err(refuse(
            "--block-size must be from 1MiB to 1GiB, in whole pages of 4KiB",
        ));
    }
    options.blocks = args.blocks;
    options.writers = args.writers;
    options.rotate_bytes = rotate_bytes(&args.rotate_size)?;
    options.switches_max = args.switches;
    if let (Some(certificate), Some(key), Some(authority)) =
        (&args.tls_cert, &args.tls_key, &args.tls_ca)
    {
        let files = TlsFiles {
            certificate,
            key,
            authority,
        };
        options.tls = Some(ServerTls::new(&files)?);
    }
    options.secret = args.secret_file.as_deref().map(Secret::read).transpose()?;
    let is_open = options.tls.is_none() && options.secret.is_none() && !args.insecure;
    ensure!(
        !is_open || options.listen.ip().is_loopback(),
        "--listen {}: other machines can reach this address, and could write into the log and \
         fill the disk: give --secret-file, or --tls-cert, --tls-key and --tls-ca, so that only \
         your switches can; or --insecure to accept packets from anyone",
        args.listen
    );
    if let Some(name) = &args.rdma_device {
        use_nic(&mut options, name, args.gid_index)?;
    }
    options.owner = args.group.owner()?;
    options.memory_socket.clone_from(&args.memory_socket);
    Ok(options)
}

#[cfg(feature = "verbs")]
fn use_nic(options: &mut RelayOptions, name: &str, gid_index: u8) -> Result<()> {
    options.device = Some(strata_relay::DeviceOptions {
        name: name.to_owned(),
        gid_index,
    });
    Ok(())
}

#[cfg(not(feature = "verbs"))]
fn use_nic(_options: &mut RelayOptions, name: &str, _gid_index: u8) -> Result<()> {
    bail!(
        "--rdma-device {name}: this strata was built without support for RDMA NICs (`strata \
         --version`): install libibverbs-dev and build it with `--features verbs`"
    )
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let stop = stop_log_on_signal()?;
    let handle = strata_role::start(spec(args)?, stop, Arc::new(logging::notice))?;
    let outcome = handle.wait()?;
    writeln!(
        standard(),
        "{} of switches; {} ({}) written, {} of lost switches",
        text::count_of(outcome.connections, "connection"),
        text::count_of(outcome.totals.blocks, "block"),
        human_bytes(outcome.totals.bytes),
        grouped(outcome.totals.salvaged),
    )?;
    strata_terminal::feed::say_fed(outcome.streamed)?;
    if let Some(failure) = outcome.failure {
        bail!("{failure}; all packets that the relay had confirmed to switches are in the log");
    }
    Ok(())
}
