//! Who may ask what: login, roles, and what keeps other pages of the same browser out.
//!
//! Without login only programs of this machine reach the server, and a browser's page of another
//! name that resolves to this address (DNS rebinding) shows in its Host header. A change needs a
//! header that other origins cannot send without asking first, and the page's own Origin.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use axum::extract::{Request, State};
use axum::http::uri::Authority;
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, Version, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use ipnet::IpNet;
use serde::Serialize;
use strata_control::api::{Connection, Shown};
use strata_log_views::answers::refused::Refused;
use subtle::ConstantTimeEq as _;
use utoipa::ToSchema;

use crate::access::attempts::{Attempts, Told};
use crate::access::audit::Audit;

/// How long a login lasts.
pub(crate) const SESSION: Duration = Duration::from_secs(12 * 3600);
/// Maximum number of logins at a time; the oldest end.
const SESSIONS_MAX: usize = 256;
/// The cookie of a login.
const COOKIE: &str = "strata_session";
/// Maximum bytes of a user's name from a proxy.
const NAME_BYTES_MAX: usize = 128;

/// The permissions of a user; each role includes the previous ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Look at everything but payload.
    Look,
    /// Look at payload.
    Payload,
    /// Change what recordings do.
    Change,
}

impl Role {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Look, Self::Payload, Self::Change];

    /// Its name in the API and in token files.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Look => "look",
            Self::Payload => "payload",
            Self::Change => "change",
        }
    }
}

/// How people log in.
#[derive(Clone, Debug)]
pub enum Login {
    /// Not at all: anyone who reaches the address may do everything. For loopback.
    None,
    /// With one of these tokens.
    Tokens(Vec<(Role, String)>),
    /// With a certificate that TLS has checked; all have this role.
    Certificate(Role),
    /// A proxy does it.
    Proxy {
        /// Where the proxy connects from.
        networks: Vec<IpNet>,
        /// The header that has the user's name.
        header: String,
        /// What users may do.
        role: Role,
    },
}

/// Who asks.
#[derive(Clone, Debug)]
pub(crate) struct Who {
    pub(crate) name: String,
    pub(crate) role: Role,
    /// When the login ends.
    pub(crate) expires: Option<Instant>,
}

impl Who {
    /// Refuses those who may not.
    pub(crate) fn may(&self, role: Role, read_only: bool) -> Result<(), Refused> {
        if role == Role::Change && read_only {
            let error = "strata serve was started with --read-only: nothing can be changed";
            return Err(Refused::new(StatusCode::FORBIDDEN, "read_only", error));
        }
        if self.role >= role {
            return Ok(());
        }
        let error = format!(
            "{} may {}, and this needs the role {}",
            self.name,
            self.role.name(),
            role.name()
        );
        Err(Refused::new(StatusCode::FORBIDDEN, "role", error))
    }
}

/// What decides who is let in.
pub(crate) struct Gate {
    pub(crate) login: Login,
    /// Where the server listens.
    address: SocketAddr,
    /// Whether it speaks TLS.
    is_secure: bool,
    sessions: Sessions,
    attempts: Attempts,
    audit: Arc<Audit>,
}

impl Gate {
    pub(crate) fn new(
        (login, audit): (Login, Arc<Audit>),
        address: SocketAddr,
        is_secure: bool,
    ) -> Self {
        Self {
            login,
            address,
            is_secure,
            sessions: Sessions::default(),
            attempts: Attempts::default(),
            audit,
        }
    }

    /// Notes a client that TLS refused where certificates are a login. Its address does not wait: tokens of others behind
    /// it are as good as before.
    pub(crate) fn refused_by_tls(&self, peer: SocketAddr, why: &str) {
        if let Some(untold) = self.attempts.seen(Instant::now()) {
            let untold = match untold {
                0 => String::new(),
                untold => format!("{untold} other earlier failures are not listed"),
            };
            let peer = peer.ip().to_canonical().to_string();
            let what = format!("could not log in: TLS: {why}");
            self.audit.note_failed(&peer, &what, &untold);
        }
    }

    /// Looks at what somebody shows to be let in, unless their address has to wait.
    fn attempt<T>(
        &self,
        peer: Option<IpAddr>,
        why: &str,
        look: impl FnOnce() -> Option<T>,
    ) -> Result<T, Refused> {
        // A connection has an address; all without one would be one.
        let peer = peer.map_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED), |peer| {
            peer.to_canonical()
        });
        let now = Instant::now();
        self.attempts.may(peer, now).map_err(Refused::wait)?;
        if let Some(found) = look() {
            return Ok(found);
        }
        if let Some(told) = self.attempts.failed(peer, now) {
            let what = format!("could not log in: {why}");
            self.audit
                .note_failed(&peer.to_string(), &what, &in_words(&told));
        }
        Err(no_login(why))
    }
}

/// The report of a failed login.
fn in_words(told: &Told) -> String {
    let mut words = format!("failure {} from this address", told.count);
    if let Some(wait) = told.wait {
        words.push_str(&format!(", which waits {} s", wait.as_secs()));
    }
    if told.unseen > 0 {
        words.push_str(&format!(
            "; {} earlier attempts were not checked",
            told.unseen
        ));
    }
    if told.untold > 0 {
        words.push_str(&format!(
            "; {} other earlier failures are not listed",
            told.untold
        ));
    }
    words
}

/// Those who are logged in.
#[derive(Debug, Default)]
struct Sessions(Mutex<BTreeMap<String, Who>>);

impl Sessions {
    /// Logs in; returns the cookie's value, and when it ends.
    fn begin(&self, role: Role) -> Result<(String, Who), Refused> {
        let mut bytes = [0_u8; 32];
        getrandom::fill(&mut bytes)
            .map_err(|error| Refused::internal(format!("no random numbers: {error}")))?;
        let id: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        let who = Who {
            name: format!("token ({})", role.name()),
            role,
            expires: Some(Instant::now().checked_add(SESSION).expect("a time")),
        };
        let mut sessions = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        sessions.retain(|_, who| who.expires.is_none_or(|end| end > now));
        while sessions.len() >= SESSIONS_MAX {
            let oldest = sessions.iter().min_by_key(|(_, who)| who.expires);
            let oldest = oldest.map(|(id, _)| id.clone());
            oldest.and_then(|id| sessions.remove(&id));
        }
        sessions.insert(id.clone(), who.clone());
        Ok((id, who))
    }

    fn find(&self, id: &str) -> Option<Who> {
        let sessions = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // All are compared, as with tokens.
        let mut found = None;
        for (known, who) in &*sessions {
            if bool::from(known.as_bytes().ct_eq(id.as_bytes())) {
                found = Some(who);
            }
        }
        let who = found?;
        who.expires
            .is_none_or(|end| end > Instant::now())
            .then(|| who.clone())
    }

    fn end(&self, id: &str) {
        let mut sessions = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        sessions.remove(id);
    }
}

impl Gate {
    /// The login with which a user was let in, if it is one with an end; for [`Self::holds`].
    pub(crate) fn session<'a>(who: &Who, headers: &'a HeaderMap) -> Option<&'a str> {
        who.expires.and_then(|_| cookie(headers))
    }

    /// Whether a login still holds: it ends by logout, after [`SESSION`], or because too many others came later.
    pub(crate) fn holds(&self, session: &str) -> bool {
        self.sessions.find(session).is_some()
    }
}

/// Logs in with a token: the cookie to set, and who it is.
pub(crate) fn log_in(
    gate: &Gate,
    peer: Option<IpAddr>,
    token: &str,
) -> Result<(HeaderValue, Who), Refused> {
    let Login::Tokens(tokens) = &gate.login else {
        let error = "login with a token is not enabled (--token-file)";
        return Err(Refused::invalid("token", error));
    };
    let role = gate.attempt(peer, WRONG, || role_of(tokens, token.trim().as_bytes()))?;
    let (id, who) = gate.sessions.begin(role)?;
    let seconds = SESSION.as_secs();
    let secure = if gate.is_secure { "; Secure" } else { "" };
    let cookie =
        format!("{COOKIE}={id}; HttpOnly; SameSite=Strict; Path=/; Max-Age={seconds}{secure}");
    let cookie = HeaderValue::try_from(cookie);
    let cookie = cookie.map_err(|error| Refused::internal(error.to_string()))?;
    Ok((cookie, who))
}

/// Ends a login; the cookie to set.
pub(crate) fn log_out(gate: &Gate, headers: &HeaderMap) -> HeaderValue {
    if let Some(id) = cookie(headers) {
        gate.sessions.end(id);
    }
    HeaderValue::from_static("strata_session=; HttpOnly; SameSite=Strict; Path=/; Max-Age=0")
}

/// Why a login failed.
const WRONG: &str = "wrong token";
const ELSEWHERE: &str = "only the proxy of --trust-proxy may send requests";

fn role_of(tokens: &[(Role, String)], given: &[u8]) -> Option<Role> {
    // All are compared, so that the time says nothing of which.
    let same = |token: &String| bool::from(given.ct_eq(token.as_bytes()));
    let found = tokens.iter().filter(|(_, token)| same(token));
    found.map(|(role, _)| *role).max()
}

fn cookie(headers: &HeaderMap) -> Option<&str> {
    let cookies = headers.get_all(header::COOKIE).iter();
    let mut pairs = cookies.filter_map(|value| value.to_str().ok());
    pairs.find_map(|pairs| {
        let mut pairs = pairs.split(';').map(str::trim);
        pairs.find_map(|pair| pair.strip_prefix(COOKIE)?.strip_prefix('='))
    })
}

fn no_login(error: &str) -> Refused {
    Refused::new(StatusCode::UNAUTHORIZED, "login", error)
}

/// Who sends a request.
fn who(
    gate: &Gate,
    (peer, shown): (Option<IpAddr>, Option<Shown>),
    headers: &HeaderMap,
) -> Result<Who, Refused> {
    match &gate.login {
        Login::None => Ok(Who {
            name: String::from("local"),
            role: Role::Change,
            expires: None,
        }),
        Login::Tokens(tokens) => {
            if let Some(who) = cookie(headers).and_then(|id| gate.sessions.find(id)) {
                return Ok(who);
            }
            let given = headers.get(header::AUTHORIZATION);
            let given = given.and_then(|value| value.as_bytes().strip_prefix(b"Bearer "));
            // Who shows nothing has tried nothing.
            let given = given.ok_or_else(|| no_login("log in with a token of --token-file"))?;
            let role = gate.attempt(peer, WRONG, || role_of(tokens, given))?;
            Ok(Who {
                name: format!("token ({})", role.name()),
                role,
                expires: None,
            })
        }
        Login::Certificate(role) => {
            let shown = shown.and_then(|Shown(shown)| shown);
            let shown = shown.ok_or_else(|| no_login("show a certificate of --tls-ca"))?;
            let start: String = shown[..8]
                .iter()
                .map(|byte| format!("{byte:02x}"))
                .collect();
            Ok(Who {
                name: format!("certificate {start}"),
                role: *role,
                expires: None,
            })
        }
        Login::Proxy {
            networks,
            header,
            role,
        } => {
            let canonical = peer.map(|peer| peer.to_canonical());
            let is_proxy = canonical
                .is_some_and(|peer| networks.iter().any(|network| network.contains(&peer)));
            let mut given = headers.get_all(header).iter();
            if !is_proxy {
                // A user's name from elsewhere is forged.
                return match given.next() {
                    Some(_) => gate.attempt(peer, ELSEWHERE, || None),
                    None => Err(no_login(ELSEWHERE)),
                };
            }
            let name = given.next().and_then(|name| name.to_str().ok());
            let name = name.filter(|name| !name.is_empty() && name.len() <= NAME_BYTES_MAX);
            match (name, given.next()) {
                (Some(name), None) => Ok(Who {
                    name: name.to_owned(),
                    role: *role,
                    expires: None,
                }),
                _ => Err(no_login(
                    "the proxy names no user, or more than one (--user-header)",
                )),
            }
        }
    }
}

/// The place that a request names: that of its target, if it has one, else of its Host header. RFC
/// 9112, section 3.2: none, or more than one, is refused to every client, since programs between a
/// browser and this one may take another of them.
fn place_of(request: &Request) -> Result<&str, Refused> {
    let mut hosts = request.headers().get_all(header::HOST).iter();
    let host = match (hosts.next(), hosts.next()) {
        (Some(host), None) => Some(host),
        (None, _) if request.version() == Version::HTTP_10 => None,
        (None, _) => return Err(Refused::host("the request has no Host header")),
        (Some(_), Some(_)) => return Err(Refused::host("the request has several Host headers")),
    };
    let named = host.map_or(Ok(""), |host| host.to_str());
    let named = named.ok().filter(|text| is_place(text));
    let named = named.ok_or_else(|| Refused::host("the Host header names no host"))?;
    let target = request.uri();
    if let Some(scheme) = target.scheme_str()
        && !matches!(scheme, "http" | "https")
    {
        return Err(Refused::host(format!(
            "the target of the request has the scheme {scheme}: use http or https"
        )));
    }
    match target.authority() {
        Some(place) if !is_place(place.as_str()) => {
            Err(Refused::host("the request's target names no host"))
        }
        Some(place) if host.is_some() && !place.as_str().eq_ignore_ascii_case(named) => {
            let error = "the request's target and its Host header name different hosts";
            Err(Refused::host(error))
        }
        Some(place) => Ok(place.as_str()),
        None => Ok(named),
    }
}

/// Whether a text is a host with or without a port, or nothing.
fn is_place(text: &str) -> bool {
    text.is_empty() || (!text.contains('@') && text.parse::<Authority>().is_ok())
}

/// Refuses codings that are not understood (RFC 9112, section 6.1). `chunked` alone is; with it a
/// Content-Length says nothing, and the connection ends after the answer.
fn check_coding(headers: &HeaderMap) -> Result<(), Refused> {
    let mut codings = headers.get_all(header::TRANSFER_ENCODING).iter();
    let is_known = |value: &HeaderValue| value.as_bytes().eq_ignore_ascii_case(b"chunked");
    if codings.next().is_none_or(is_known) && codings.next().is_none() {
        return Ok(());
    }
    let error = "only 'Transfer-Encoding: chunked' is supported";
    Err(Refused::new(StatusCode::NOT_IMPLEMENTED, "invalid", error))
}

/// Whether a place is this server, without login: this machine's names for itself.
fn is_own_place(gate: &Gate, host: &str) -> bool {
    let port = gate.address.port();
    let (name, given) = match host.rsplit_once(':') {
        Some((name, given)) if !given.ends_with(']') => (name, given.parse::<u16>().ok()),
        _ => (host, Some(80)),
    };
    let name = name.trim_start_matches('[').trim_end_matches(']');
    let is_here = name.eq_ignore_ascii_case("localhost")
        || name
            .parse::<IpAddr>()
            .is_ok_and(|address| address.is_loopback() || address == gate.address.ip());
    is_here && given == Some(port)
}

/// Whether another page sent a request, as far as the browser says.
fn is_of_other_page(request: &Request) -> bool {
    let headers = request.headers();
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    if matches!(text("sec-fetch-site"), Some("cross-site" | "same-site")) {
        // Following a link to a view is no harm; asking for data is.
        return request.uri().path().starts_with("/api/");
    }
    if matches!(*request.method(), Method::GET | Method::HEAD) {
        return false;
    }
    let origin = text("origin");
    let is_own = origin.is_none_or(|origin| {
        let place = origin.split_once("://").map(|(_, place)| place);
        place.is_some() && place == text("host")
    });
    !is_own || text("x-strata").is_none_or(str::is_empty)
}

/// Lets those in who may ask, and says what browsers may do with the answers.
pub(crate) async fn admit(
    State(gate): State<Arc<Gate>>,
    mut request: Request,
    next: Next,
) -> Response {
    let answer = match let_in(&gate, &mut request) {
        Ok(()) => next.run(request).await,
        Err(refused) => refused.into_response(),
    };
    protected(answer)
}

fn let_in(gate: &Gate, request: &mut Request) -> Result<(), Refused> {
    let place = place_of(request)?;
    check_coding(request.headers())?;
    if matches!(gate.login, Login::None) && !is_own_place(gate, place) {
        let error = format!(
            "this page is at {}://{}: the request names another host",
            if gate.is_secure { "https" } else { "http" },
            gate.address
        );
        return Err(Refused::new(StatusCode::MISDIRECTED_REQUEST, "host", error));
    }
    if is_of_other_page(request) {
        let error =
            "another page sent this: a change needs the header X-Strata and this page's Origin";
        return Err(Refused::new(StatusCode::FORBIDDEN, "csrf", error));
    }
    let path = request.uri().path();
    let is_login = path == "/api/v1/session" && *request.method() == Method::POST;
    if !path.starts_with("/api/") || is_login {
        return Ok(());
    }
    let peer = request.extensions().get::<SocketAddr>().map(SocketAddr::ip);
    let shown = request.extensions().get::<Shown>().copied();
    let who = who(gate, (peer, shown), request.headers())?;
    if let Some(connection) = request.extensions().get::<Connection>() {
        connection.prove();
    }
    request.extensions_mut().insert(who);
    Ok(())
}

/// With headers that keep a browser from doing anything but show it.
fn protected(mut answer: Response) -> Response {
    let headers = answer.headers_mut();
    let always = [
        (
            "content-security-policy",
            "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src \
             'self'; font-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; \
             require-trusted-types-for 'script'",
        ),
        ("x-content-type-options", "nosniff"),
        ("referrer-policy", "no-referrer"),
        ("x-frame-options", "DENY"),
        ("cross-origin-resource-policy", "same-origin"),
        ("cross-origin-opener-policy", "same-origin"),
        (
            "permissions-policy",
            "camera=(), microphone=(), geolocation=()",
        ),
    ];
    for (name, value) in always {
        headers.insert(name, HeaderValue::from_static(value));
    }
    let unless_said = HeaderValue::from_static("no-store");
    headers.entry(header::CACHE_CONTROL).or_insert(unless_said);
    answer
}
