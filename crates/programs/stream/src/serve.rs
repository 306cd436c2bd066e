//! `strata stream serve`.

use std::io::Write;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Result;
use strata_auth::tls::{self, ServerTls, TlsFiles};
use strata_control::api::{Admit, TcpEndpoint};
use strata_stream::Form;
use strata_stream_otlp::{OTLP_PORT, OtlpIntake};
use strata_stream_run::{HostedSpec, STREAM_PORT, StreamIntake, StreamServeSpec, StreamSpec};
use strata_terminal::address::address;
use strata_terminal::log_options::GroupArgs;
use strata_terminal::logging::{self, LoggingArgs};
use strata_terminal::output::{refuse, standard};
use strata_terminal::signals::stop_on_signal;
use strata_terminal::text;
use strata_wire::grouped;

use super::manage::retention;

/// Arguments of `strata stream serve`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  strata stream serve streams/
  strata stream serve streams/ --listen 192.0.2.10 --tls-cert s.crt --tls-key s.key --tls-ca ca.crt
  strata stream tail 192.0.2.10:4793/events -f --tls-cert c.crt --tls-key c.key --tls-ca ca.crt
  strata stream serve --offer-stripe disk1=/disk1/stripe    for another machine's streams
  strata stream serve streams/ --otlp 127.0.0.1             logs of OpenTelemetry agents

Without --listen, only this machine can reach the server. On any address other than loopback,
clients need a certificate from the authorities of --tls-ca; each such client may append to and read
every stream in the directory, and with --create, create streams by appending to them. Several
clients may append to one stream: each record is stored once, and each client's records keep their
order. At most 256 clients are served at a time; a client that does not read its answers is
disconnected after 30 s.

With --offer-stripe, directories on this machine hold pages of streams on other machines (strata
stream create --stripe HOST:PORT/NAME); each stripe is for the streams of one directory. Any client
with a certificate may write and read these pages.

With --otlp, agents send logs by OpenTelemetry's protocol over HTTP (OTLP/HTTP: POST /v1/logs,
protobuf or JSON, plain or gzip). Each log record becomes a record of the stream --otlp-stream, as
JSON. A request is answered with 200 once its records survive a loss of power. The certificates of
--tls-cert also apply here.")]
pub(super) struct Args {
    /// The directory of streams. Without it, only stripes are served.
    #[arg(required_unless_present = "stripe")]
    dir: Option<PathBuf>,

    /// Offer this directory, created if missing, as a stripe under this name, for the streams of
    /// another machine. May be given several times.
    #[arg(long = "offer-stripe", value_name = "NAME=DIR")]
    stripe: Vec<String>,

    /// Limit each offered stripe to this size.
    #[arg(long, value_name = "SIZE", default_value = "100GB", requires = "stripe", value_parser = text::bytes)]
    stripe_max: u64,

    /// Create a stream when a client appends to a name that does not exist; it keeps records up to
    /// this size, age or both, such as 10GB,7d.
    #[arg(long, value_name = "LIMIT", requires = "dir", value_delimiter = ',')]
    create: Vec<String>,

    /// Receive logs of OpenTelemetry agents at this address: TCP port 4318 or the one given. An
    /// address other than loopback needs --tls-cert or --insecure.
    #[arg(long, value_name = "ADDR[:PORT]", requires = "dir")]
    otlp: Option<String>,

    /// Append these logs to this stream, which must exist, unless --create is given.
    #[arg(long, value_name = "NAME", default_value = "logs", requires = "otlp")]
    otlp_stream: String,

    /// Accept clients at this address: TCP port 4793 or the one given. An address other than
    /// loopback needs --tls-cert or --insecure.
    #[arg(long, value_name = "ADDR[:PORT]", default_value = "127.0.0.1:4793")]
    listen: String,

    /// Present this certificate (PEM) to clients, which must then use TLS and present one too.
    #[arg(long, value_name = "FILE", requires_all = ["tls_key", "tls_ca"])]
    tls_cert: Option<PathBuf>,

    /// Read the private key of the certificate (PEM) from this file.
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,

    /// Accept only client certificates from the authorities in this file (PEM).
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_ca: Option<PathBuf>,

    /// Let any client append and read, without authentication or encryption.
    #[arg(long, conflicts_with = "tls_cert")]
    insecure: bool,

    #[command(flatten)]
    group: GroupArgs,

    /// Keep all privileges and access to all files, instead of dropping unneeded ones once the
    /// server listens.
    #[arg(long)]
    no_sandbox: bool,

    #[command(flatten)]
    pub(super) logging: LoggingArgs,
}

/// The stripes that are offered.
fn stripes(args: &Args) -> Result<Vec<HostedSpec>> {
    let mut stripes: Vec<HostedSpec> = Vec::new();
    for text in &args.stripe {
        let (name, path) = text
            .split_once('=')
            .filter(|(_, path)| !path.is_empty())
            .ok_or_else(|| {
                refuse(format!(
                    "--offer-stripe {text}: write NAME=DIR, such as disk1=/disk1/stripe"
                ))
            })?;
        let name = super::name(name)?;
        if stripes.iter().any(|stripe| stripe.name == name) {
            return Err(refuse(format!(
                "--offer-stripe {text}: {name} is given twice"
            )));
        }
        stripes.push(HostedSpec {
            name,
            path: path.into(),
            bytes_max: args.stripe_max,
        });
    }
    Ok(stripes)
}

/// How streams are created for clients.
fn creates(args: &Args) -> Result<Option<StreamSpec>> {
    if args.create.is_empty() {
        return Ok(None);
    }
    let retention = retention("--create", &args.create)?;
    let form = Form::Sealed;
    Ok(Some(StreamSpec { retention, form }))
}

/// Refuses an address that others can reach, unless it was said who may connect.
fn refuse_strangers(args: &Args, option: &str, given: &str, listen: SocketAddr) -> Result<()> {
    if args.tls_cert.is_none() && !args.insecure && !listen.ip().is_loopback() {
        return Err(refuse(format!(
            "{option} {given}: other machines can reach this address, and could fill the disk and read \
             all streams: give --tls-cert, --tls-key and --tls-ca, so that only your clients can; \
             or --insecure to serve anyone"
        )));
    }
    Ok(())
}

/// The receiver of logs, if there is to be one.
fn intake(args: &Args, files: Option<&TlsFiles<'_>>) -> Result<Option<Box<dyn StreamIntake>>> {
    let Some(otlp) = &args.otlp else {
        return Ok(None);
    };
    let address = address("--otlp", otlp, OTLP_PORT)?;
    refuse_strangers(args, "--otlp", otlp, address)?;
    let tls = files.map(|of| tls::server(of.certificate, of.key, Some(of.authority)));
    let tls = tls.transpose()?;
    Ok(Some(Box::new(OtlpIntake {
        endpoint: TcpEndpoint {
            address: address.to_string(),
            admit: match &tls {
                Some(_) => Admit::Certificate,
                None => Admit::Anyone,
            },
            tls,
        },
        stream: super::name(&args.otlp_stream)?,
    })))
}

fn spec(args: &Args) -> Result<StreamServeSpec> {
    let listen = address("--listen", &args.listen, STREAM_PORT)?;
    refuse_strangers(args, "--listen", &args.listen, listen)?;
    let files = match (&args.tls_cert, &args.tls_key, &args.tls_ca) {
        (Some(certificate), Some(key), Some(authority)) => Some(TlsFiles {
            certificate,
            key,
            authority,
        }),
        _ => None,
    };
    Ok(StreamServeSpec {
        dir: args.dir.clone(),
        creates: creates(args)?,
        intake: intake(args, files.as_ref())?,
        stripes: stripes(args)?,
        listen,
        tls: files.as_ref().map(ServerTls::new).transpose()?,
        owner: args.group.owner()?,
        sandboxed: !args.no_sandbox,
    })
}

pub(super) fn run(args: &Args) -> Result<()> {
    let handle = strata_role::start(spec(args)?, stop_on_signal()?, Arc::new(logging::notice))?;
    let outcome = handle.wait()?;
    writeln!(
        standard(),
        "{} of clients, {} refused; {} appended, {} sent",
        text::count_of(outcome.connections, "connection"),
        grouped(outcome.refused),
        text::count_of(outcome.appended, "record"),
        grouped(outcome.read),
    )?;
    Ok(())
}
