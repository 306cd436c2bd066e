//! `strata serve`: the operator's page.

use std::io::ErrorKind;
use std::net::{SocketAddr, ToSocketAddrs as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result};
use clap::ValueEnum;
use strata_control::client::ControllerClient;
use strata_role::sandbox;
use strata_serve::{Login, Role, Spec, TlsFiles, serve};
use strata_store::{Log, MANIFEST_NAME};
use strata_terminal::address::networks;
use strata_terminal::confined::{self, SandboxArgs};
use strata_terminal::disk::disk;
use strata_terminal::key::KeyArgs;
use strata_terminal::logging::LoggingArgs;
use strata_terminal::output::refuse;
use strata_terminal::selection::names::NameFiles;
use strata_terminal::signals::{Stopped, end_with_parent};
use strata_wire::Printable;
use tracing::{info, warn};

/// Fewest bytes of a token, as of the API's.
const TOKEN_BYTES_MIN: usize = 16;
/// Maximum bytes of a file of tokens.
const TOKENS_BYTES_MAX: u64 = 64 << 10;

/// Arguments of `strata serve`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  strata serve log/
  strata serve log/ --socket /run/strata/record-4711/control.sock --open
  strata serve log/ --state /var/lib/strata-page
  strata serve log/ --names networks.txt --mmdb GeoLite2-ASN.mmdb
  strata serve --fleet /var/lib/strata/controller
  strata serve log/ --listen 192.0.2.10:9470 --token-file tokens --tls-cert s.crt --tls-key s.key
  strata serve log/ --listen 192.0.2.10:9470 --trust-proxy 192.0.2.1/32 \\
      --user-header X-Forwarded-User

Without --token-file, --tls-ca and --trust-proxy, only a loopback address is accepted, and every
user of this machine may do everything. Each line of a token file has a role and a token of at least
16 bytes:

  change 4f2a...
  look 91c0...

The roles are look (see everything but payload), payload (also see payload) and change (also change
recordings). A token without a role has the role change. HTTP is not encrypted: on a shared network,
give --tls-cert, or put a proxy with TLS in front.")]
pub(crate) struct Args {
    /// Show the logs in these directories.
    #[arg(value_name = "LOG", required_unless_present_any = ["socket", "fleet"])]
    logs: Vec<PathBuf>,

    /// Show and steer the recording that listens on this socket (`strata record --socket`); may be
    /// given several times.
    #[arg(long, value_name = "PATH")]
    socket: Vec<PathBuf>,

    /// Show the agents of a controller: DIR is its --state directory, or the directory of its
    /// socket.
    #[arg(long, value_name = "DIR")]
    fleet: Option<PathBuf>,

    /// Serve on this address and port; with port 0, on any free port.
    #[arg(long, value_name = "ADDR:PORT", default_value = "127.0.0.1:9470")]
    listen: String,

    /// Admit only users with a token from this file, which must be readable by its owner only (mode
    /// 0600).
    #[arg(long, value_name = "FILE", conflicts_with = "trust_proxy")]
    token_file: Option<PathBuf>,

    /// Serve HTTPS with this certificate (PEM).
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    tls_cert: Option<PathBuf>,

    /// Read the private key of the certificate (PEM) from this file, which only its owner and its
    /// group may access.
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,

    /// Admit only browsers with a client certificate that one of the authorities in this file (PEM)
    /// has issued. With --token-file, users must also log in.
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_ca: Option<PathBuf>,

    /// Give users with a client certificate this role, unless --token-file is given.
    #[arg(long, value_enum, default_value = "look", requires = "tls_ca")]
    tls_role: UserRole,

    /// Admit users that a proxy in this network has logged in; may be given several times.
    #[arg(long, value_name = "CIDR", requires = "user_header")]
    trust_proxy: Vec<String>,

    /// Take the user's name from this header. The proxy must set it, and must remove it from the
    /// requests of users.
    #[arg(long, value_name = "NAME", requires = "trust_proxy")]
    user_header: Option<String>,

    /// Give users of the proxy this role.
    #[arg(long, value_enum, default_value = "look", requires = "trust_proxy")]
    proxy_role: UserRole,

    /// Permit no changes, not even by users with the role change.
    #[arg(long)]
    read_only: bool,

    /// Store queries (Ask) and labels of flows in this directory, for all users of the page;
    /// `strata train LOG --labels DIR/labels.json` reads the labels. Created if missing. Without a
    /// directory, queries stay in the browser, and the page shows the command that labels a flow.
    #[arg(long, value_name = "DIR")]
    state: Option<PathBuf>,

    #[command(flatten)]
    names: NameFiles,

    /// Open the page in a browser. Implies --no-sandbox.
    #[arg(long)]
    open: bool,

    /// End with the process that started this one, which may still have to make the logs.
    #[arg(long, hide = true, value_name = "PID")]
    end_with_parent: Option<i32>,

    #[command(flatten)]
    key: KeyArgs,

    #[command(flatten)]
    sandbox: SandboxArgs,

    #[command(flatten)]
    pub(crate) logging: LoggingArgs,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum UserRole {
    /// See everything but payload.
    Look,
    /// See payload, too.
    Payload,
    /// Change running recordings, too.
    Change,
}

impl From<UserRole> for Role {
    fn from(role: UserRole) -> Self {
        match role {
            UserRole::Look => Self::Look,
            UserRole::Payload => Self::Payload,
            UserRole::Change => Self::Change,
        }
    }
}

impl Args {
    fn login(&self) -> Result<Login> {
        if let Some(file) = &self.token_file {
            return Ok(Login::Tokens(tokens(file)?));
        }
        let Some(header) = &self.user_header else {
            return Ok(match self.tls_ca {
                Some(_) => Login::Certificate(self.tls_role.into()),
                None => Login::None,
            });
        };
        let is_name = |c: char| c.is_ascii_alphanumeric() || c == '-';
        if header.is_empty() || !header.chars().all(is_name) {
            return Err(refuse(
                "--user-header: write the name of a header, as in X-Forwarded-User",
            ));
        }
        Ok(Login::Proxy {
            networks: networks("--trust-proxy", &self.trust_proxy)?,
            header: header.to_ascii_lowercase(),
            role: self.proxy_role.into(),
        })
    }

    /// Refuses what is no log, and to start if there is nothing to show: a mistyped name is noticed
    /// here, not in the browser. A recording whose socket is given may still have to make its log.
    fn check_sources(&self) -> Result<()> {
        let missing = self.logs.iter().filter_map(|log| not_a_log(log));
        let missing: Vec<String> = missing.collect();
        let silent = self.socket.iter().filter(|socket| !socket.exists());
        let silent = silent.map(|socket| {
            let socket = socket.display();
            format!("{socket}: no recording listens there (strata record --socket {socket})")
        });
        let silent: Vec<String> = silent.collect();
        let absent = self.controller().filter(|client| !is_there(client));
        let absent = absent.map(|client| {
            let socket = client.socket().display();
            format!("{socket}: no controller listens there: strata controller run --state DIR")
        });
        let shows_nothing = missing.len() == self.logs.len()
            && silent.len() == self.socket.len()
            && (self.fleet.is_none() || absent.is_some());
        if shows_nothing || (self.socket.is_empty() && !missing.is_empty()) {
            let all = missing.into_iter().chain(silent).chain(absent);
            return Err(refuse(all.collect::<Vec<_>>().join("; ")));
        }
        for absent in missing.iter().chain(&silent).chain(&absent) {
            warn!("{}; it will be shown once it exists", Printable(absent));
        }
        Ok(())
    }

    fn controller(&self) -> Option<ControllerClient> {
        self.fleet.as_deref().map(ControllerClient::new)
    }

    /// Drops what reading the logs, asking the recordings and starting children does not take.
    fn confine(&self) -> Result<()> {
        let controller = self.controller();
        let of_controller = controller.iter().map(ControllerClient::socket);
        let of_controller: Vec<&Path> = of_controller.collect();
        let names = self.names.files()?;
        let sockets = self.socket.iter().map(PathBuf::as_path);
        let sockets = sockets.chain(of_controller.iter().copied());
        let sockets = sockets.filter_map(Path::parent);
        let dirs: Vec<&Path> = self
            .logs
            .iter()
            .chain(&self.state)
            .chain(&self.socket)
            .chain(&names)
            .map(PathBuf::as_path)
            .chain(of_controller.iter().copied())
            .chain(sockets)
            .collect();
        // Readers lock a file that cannot be made in the sandbox.
        for log in &self.logs {
            if let Ok(disk) = disk(log) {
                drop(disk.lock_for_reading());
            }
        }
        let write: Vec<PathBuf> = self.state.iter().cloned().collect();
        Ok(sandbox::confine_server(&dirs, &write, &confined::tell())?)
    }

    /// The directory for what users keep, made if it is missing.
    fn state(&self) -> Result<Option<PathBuf>> {
        let Some(dir) = &self.state else {
            return Ok(None);
        };
        let made = std::fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(dir);
        let named = || format!("--state {}: cannot make this directory", dir.display());
        made.with_context(named)?;
        Ok(Some(dir.clone()))
    }

    fn spec(&self) -> Result<Spec> {
        let (key, unlocked) = (self.key.clone(), self.key.read()?.is_some());
        Ok(Spec {
            logs: self.logs.clone(),
            sockets: self.socket.clone(),
            fleet: self.fleet.clone(),
            listen: address(&self.listen)?,
            tls: self
                .tls_cert
                .clone()
                .zip(self.tls_key.clone())
                .map(|(certificate, key)| TlsFiles {
                    certificate,
                    key,
                    authority: self.tls_ca.clone(),
                }),
            login: self.login()?,
            read_only: self.read_only,
            state: self.state()?,
            open: Arc::new(move |dir| words(key.open(dir))),
            open_stored: Arc::new(|dir| words(disk(dir).and_then(|disk| Ok(Log::on(disk)?)))),
            program: std::env::current_exe().context("cannot find this program")?,
            key: self.key.file().filter(|_| unlocked),
            names: Arc::new(self.names.read()?),
            audit: Arc::new(|event| {
                let (who, what) = (Printable(&event.who), Printable(&event.what));
                match event.why.as_str() {
                    "" => info!("audit: {who}: {what}"),
                    why => info!("audit: {who}: {what} ({})", Printable(why)),
                }
            }),
            warn: Box::new(|text| warn!("{}", Printable(&text))),
        })
    }
}

/// What is wrong with a directory that should be a log's.
fn not_a_log(dir: &Path) -> Option<String> {
    let named = dir.display();
    let what = match std::fs::metadata(dir.join(MANIFEST_NAME)) {
        Ok(_) => return None,
        // Its reader reports whether it can be read.
        Err(error) if error.kind() == ErrorKind::PermissionDenied => return None,
        Err(_) if dir.is_dir() => {
            format!("no log is in this directory ({MANIFEST_NAME} is missing)")
        }
        Err(_) if dir.exists() => String::from("a file, not the directory of a log"),
        Err(_) => String::from("this directory does not exist"),
    };
    Some(format!("{named}: {what}: strata record -o DIR makes a log"))
}

/// A socket that this user may not look for is reported when it is asked.
fn is_there(client: &ControllerClient) -> bool {
    !matches!(client.socket().try_exists(), Ok(false))
}

fn words(opened: Result<Log>) -> Result<Log, String> {
    opened.map_err(|error| strata_terminal::text::chain(&error))
}

fn address(text: &str) -> Result<SocketAddr> {
    let found = text.to_socket_addrs().ok().and_then(|mut all| all.next());
    found.ok_or_else(|| {
        refuse(format!(
            "--listen '{text}': write an address and a port, as in 127.0.0.1:9470"
        ))
    })
}

/// The tokens of a file, with their roles.
fn tokens(file: &Path) -> Result<Vec<(Role, String)>> {
    let named = file.display();
    let about = std::fs::metadata(file).with_context(|| format!("{named}: cannot read"))?;
    if about.mode() & 0o077 != 0 {
        return Err(refuse(format!(
            "{named}: others can read this file: run `chmod 600 {named}`"
        )));
    }
    if about.len() > TOKENS_BYTES_MAX {
        return Err(refuse(format!("{named}: too large for a file of tokens")));
    }
    let content = std::fs::read_to_string(file).with_context(|| format!("{named}: cannot read"))?;
    let mut tokens: Vec<(Role, String)> = Vec::new();
    for (number, line) in content.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let (role, token) = match line.split_once(char::is_whitespace) {
            None => (Role::Change, line),
            Some((role, token)) => {
                let known = Role::ALL.into_iter().find(|known| known.name() == role);
                let known = known.ok_or_else(|| {
                    let number = number + 1;
                    refuse(format!(
                        "{named}, line {number}: not a role and a token: write look, payload or \
                         change, then a token"
                    ))
                });
                (known?, token.trim())
            }
        };
        if token.contains(char::is_whitespace) {
            let number = number + 1;
            return Err(refuse(format!(
                "{named}, line {number}: more than a role and a token: write remarks on lines of their own that begin \
                 with #"
            )));
        }
        let known = tokens.iter().find(|(_, known)| known == token);
        if let Some((known, _)) = known.filter(|(known, _)| *known != role) {
            let number = number + 1;
            return Err(refuse(format!(
                "{named}, line {number}: this token has the role {} on an earlier line: give it one role",
                known.name()
            )));
        }
        if token.len() < TOKEN_BYTES_MIN {
            let number = number + 1;
            return Err(refuse(format!(
                "{named}, line {number}: a token must be at least {TOKEN_BYTES_MIN} bytes long: \
                 make one with `openssl rand -hex 32`"
            )));
        }
        tokens.push((role, token.to_owned()));
    }
    if tokens.is_empty() {
        return Err(refuse(format!("{named}: contains no token")));
    }
    Ok(tokens)
}

/// How much more the kernel wants to end this process and its children than others when memory runs out, of 1000.
const OOM_SCORE: i32 = 500;

/// If memory runs out, recordings go on and the page ends: queries of its users take most of its memory.
fn end_before_recordings() {
    const FILE: &str = "/proc/self/oom_score_adj";
    let known = std::fs::read_to_string(FILE).ok();
    let known = known.and_then(|text| text.trim().parse::<i32>().ok());
    if known.is_some_and(|known| known >= OOM_SCORE) {
        return;
    }
    if let Err(error) = std::fs::write(FILE, OOM_SCORE.to_string()) {
        warn!(
            "{FILE}: {error}: if memory runs out, the kernel may kill a recording before `strata \
             serve`"
        );
    }
}

pub(crate) fn run(args: &Args) -> Result<()> {
    match args.end_with_parent {
        Some(parent) => end_with_parent(parent)?,
        None => args.check_sources()?,
    }
    end_before_recordings();
    let spec = args.spec()?;
    let stopped = Stopped::watch()?;
    match args.open || !args.sandbox.is_on() {
        // A browser may need them.
        true => sandbox::unconfined(),
        false => args.confine()?,
    }
    let server = serve(spec)?;
    let scheme = if args.tls_cert.is_some() {
        "https"
    } else {
        "http"
    };
    let page = format!("{scheme}://{}/", server.address());
    info!("the page is at {page}");
    if args.open {
        browse(&page);
    }
    stopped.wait();
    Ok(())
}

/// Opens a page in the user's browser, if there is one.
fn browse(page: &str) {
    let opened = std::process::Command::new("xdg-open").arg(page).spawn();
    match opened {
        // It ends by itself, and is waited for so that nothing is left of it.
        Ok(mut child) => drop(std::thread::spawn(move || child.wait())),
        Err(error) => warn!("cannot open a browser (xdg-open: {error}): go to {page}"),
    }
}
