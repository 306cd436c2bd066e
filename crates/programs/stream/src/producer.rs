//! `strata stream append` to a server: from memory, or from a spool.

use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow, bail};
use rustix::system::uname;
use strata_role::sandbox::Reach;
use strata_stream::{Geometry, RECORD_LEN_MAX, StreamName};
use strata_stream_run::{
    Forwarder, Kept, ProducerSpec, Source, StreamAppender, StreamDir, Upkeep, random_id, spool,
};
use strata_terminal::confined::SandboxArgs;
use strata_terminal::output::refuse;
use strata_terminal::text;
use strata_wire::{human_bytes, unix_ns};

use super::append::{Closed, warn_of_stripes};
use super::place::Server;

/// Records without a spool are kept in this memory until the server has confirmed them.
const MEMORY_MAX: usize = 64 << 20;
/// Records of a spool are durable, and then sent, after this time.
const SPOOL_EVERY: Duration = Duration::from_millis(200);
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// How records are kept until a server has them.
#[derive(Debug, clap::Args)]
pub(super) struct ProducerArgs {
    /// Name this producer, as `strata stream tail --json` shows it. The default is the host's name.
    #[arg(long = "name", value_name = "NAME")]
    producer: Option<String>,

    /// Write the records to this directory first, created if missing, and send them from there.
    #[arg(long, value_name = "DIR")]
    spool: Option<PathBuf>,

    /// Limit a new spool to this size.
    #[arg(long, value_name = "SIZE", default_value = "1GB", requires = "spool", value_parser = text::bytes)]
    spool_max: u64,
}

impl ProducerArgs {
    /// Refuses what is for a server only.
    pub(super) fn refuse_here(&self) -> Result<()> {
        if self.spool.is_some() || self.producer.is_some() {
            return Err(refuse(
                "--spool and --name are for a server: write HOST:PORT/NAME",
            ));
        }
        Ok(())
    }

    fn name(&self) -> Result<StreamName> {
        if let Some(name) = &self.producer {
            return name
                .parse()
                .map_err(|error| refuse(format!("--name {name}: {error}")));
        }
        let host = uname().nodename().to_string_lossy().into_owned();
        let allowed = |c: char| match c.is_ascii_alphanumeric() || ".-_".contains(c) {
            true => c,
            false => '-',
        };
        let name: String = host.chars().map(allowed).take(64).collect();
        Ok(name.parse().unwrap_or("unnamed".parse()?))
    }
}

/// A stream of this machine, from which another thread sends.
struct Spool {
    appender: StreamAppender,
    upkeep: Upkeep,
}

/// Records on their way to a server.
pub(super) struct Producer {
    server: String,
    forwarder: Forwarder,
    spool: Option<Spool>,
}

impl Producer {
    /// Opens it, in the sandbox.
    pub(super) fn open(
        server: Server,
        stream: &StreamName,
        args: &ProducerArgs,
        sandbox: &SandboxArgs,
    ) -> Result<Self> {
        let Server { address, tls } = server;
        let spec = |id| -> Result<ProducerSpec> {
            Ok(ProducerSpec {
                server: address.clone(),
                tls: tls.clone(),
                stream: stream.clone(),
                id,
                name: args.name()?,
            })
        };
        let Some(path) = &args.spool else {
            sandbox.confine(&Reach::default())?;
            let forwarder = Forwarder::start(spec(random_id()?)?, Source::Memory(MEMORY_MAX))?;
            return Ok(Self {
                server: address.clone(),
                forwarder,
                spool: None,
            });
        };
        let dir = spool_of(path, stream, args.spool_max)?;
        sandbox.confine(&super::reach(path))?;
        let mut appender = dir.append(stream, unix_ns())?;
        warn_of_stripes(&mut appender);
        let source = Source::Spool(dir, stream.clone(), appender.next_seq());
        let forwarder = Forwarder::start(spec(appender.id())?, source)?;
        forwarder.spooled(appender.end(), appender.next_seq());
        Ok(Self {
            server: address.clone(),
            forwarder,
            spool: Some(Spool {
                appender,
                upkeep: Upkeep::new(Instant::now()),
            }),
        })
    }

    pub(super) fn record_len_max(&self) -> usize {
        match &self.spool {
            Some(spool) => spool.appender.record_len_max(),
            // A server that was not asked yet takes no longer ones than any.
            None => self.forwarder.record_len_max().unwrap_or(RECORD_LEN_MAX),
        }
    }

    pub(super) fn append(&mut self, now_ns: u64, record: &[u8], stop: &AtomicBool) -> Result<()> {
        if let Some(spool) = &mut self.spool {
            return Ok(spool.appender.append(now_ns, record)?);
        }
        if !self.forwarder.put(record, stop) {
            self.look()?;
            bail!(
                "{}: stopped while {} of records were not confirmed: the rest of the input was not read",
                self.server,
                human_bytes(MEMORY_MAX as u64)
            );
        }
        Ok(())
    }

    pub(super) fn appended(&mut self, now: Instant) {
        if let Some(spool) = &mut self.spool {
            spool.upkeep.appended(now);
            spool.upkeep.hurry(now + SPOOL_EVERY);
        }
    }

    pub(super) fn due(&self) -> Instant {
        let look = Instant::now() + LOOK_EVERY;
        match &self.spool {
            Some(spool) => spool.upkeep.due().min(look),
            None => look,
        }
    }

    pub(super) fn keep_up(&mut self) -> Result<()> {
        if let Some(spool) = &mut self.spool {
            let appender = &mut spool.appender;
            let kept = spool.upkeep.run(appender, Instant::now(), unix_ns())?;
            warn_of_stripes(appender);
            if kept == Kept::Synced {
                self.forwarder.spooled(appender.end(), appender.next_seq());
            }
        }
        self.look()
    }

    /// Says what the other thread has to say.
    fn look(&self) -> Result<()> {
        let (warnings, failure) = self.forwarder.take_news();
        for warning in warnings {
            text::warn(&warning);
        }
        failure.map_or(Ok(()), |failure| Err(anyhow!(failure)))
    }

    /// Waits for the server, and says what it has.
    pub(super) fn close(self) -> Result<Closed> {
        let is_spooled = self.spool.is_some();
        let mut spooled = None;
        if let Some(spool) = self.spool {
            let mut appender = spool.appender;
            let synced = appender.sync(unix_ns());
            self.forwarder.spooled(appender.end(), appender.next_seq());
            synced?;
            spooled = Some(appender);
        }
        let forwarded = self.forwarder.finish();
        for warning in &forwarded.warnings {
            text::warn(warning);
        }
        // Not before: the spool is this process's until it has sent what it can.
        if let Some(appender) = spooled {
            appender.close(unix_ns())?;
        }
        let why = forwarded.failure.unwrap_or_default();
        let unconfirmed = text::count_of(forwarded.unconfirmed, "record");
        let is_kept = is_spooled && forwarded.unconfirmed > 0;
        if is_kept {
            text::warn(&format!(
                "{}: {why}: {unconfirmed} not confirmed: the next `strata stream append` with this spool sends them",
                self.server
            ));
        }
        let given_up = forwarded.forwarding.given_up;
        let failure = if given_up > 0 {
            Some(anyhow!(
                "{}: {} left out: deleted from the spool, or lost there, before the server had them, or too long \
                 for its stream",
                self.server,
                text::count_of(given_up, "record")
            ))
        } else if is_kept || (forwarded.unconfirmed == 0 && why.is_empty()) {
            None
        } else {
            Some(anyhow!(
                "{}: {why}: {unconfirmed} not confirmed; some of them may be in the stream",
                self.server
            ))
        };
        Ok(Closed {
            records: forwarded.forwarding.confirmed,
            // The server may have appended more than it could confirm.
            is_least: forwarded.unconfirmed > 0 || !why.is_empty(),
            bytes: None,
            end: forwarded.end,
            lost: 0,
            failure,
        })
    }
}

/// The directory of a spool, with a stream of the name of the one at the server.
fn spool_of(path: &Path, stream: &StreamName, bytes_max: u64) -> Result<StreamDir> {
    let page_bytes = u64::from(Geometry::default().page_bytes);
    if bytes_max < 2 * page_bytes {
        return Err(refuse(format!(
            "--spool-max: a spool keeps whole pages, at least two of them: give {} or more",
            human_bytes(2 * page_bytes)
        )));
    }
    Ok(spool(path, stream, bytes_max)?)
}
