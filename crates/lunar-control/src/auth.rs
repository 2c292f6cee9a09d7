//! Authentication and authorization of API requests.

use crate::Failure;
use crate::api::Problem;
use crate::http::Peer;
use crate::slot::Slot;
use crate::small_file::{self, Readable};
use axum::Extension;
use axum::extract::{Request, State};
use axum::http::header::{AUTHORIZATION, CONNECTION, HOST, ORIGIN};
use axum::http::uri::Authority;
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use lunar_target::LogBudget;
use lunar_wire::Time;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;
use subtle::ConstantTimeEq;

/// Minimum length of a token; shorter tokens can be guessed.
const TOKEN_BYTES_MIN: usize = 16;
/// Maximum length of a token file; a longer file is refused, because it is probably another file.
const TOKEN_BYTES_MAX: usize = 1024;
const TOKEN_HINT: &str = "create one with: (umask 077; head -c 32 /dev/urandom | base64 -w0 > \
                          FILE)";

/// The origin of a request, for the log of changes.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Caller {
    /// A user of this machine, at the unix socket.
    User {
        /// User ID, as reported by the kernel.
        uid: u32,
    },
    /// A client that sent the token.
    Token {
        /// Address of the client.
        address: SocketAddr,
    },
    /// A client at a loopback port without a token: may read.
    Anybody {
        /// Address of the client.
        address: SocketAddr,
    },
    /// A signal to the process, not an API request.
    Signal,
}

impl fmt::Display for Caller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::User { uid } => write!(f, "uid {uid}"),
            Self::Token { address } => write!(f, "token from {address}"),
            Self::Anybody { address } => write!(f, "anybody at {address}"),
            Self::Signal => f.write_str("signal"),
        }
    }
}

/// A secret that a client sends with each request.
pub struct Token(Vec<u8>);

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(…)")
    }
}

impl Token {
    /// Reads a token from the first line of a file.
    ///
    /// # Errors
    /// Fails if the file cannot be read or is readable by other users, and if the token is too
    /// short or not valid in a header. The message does not contain the token.
    pub fn read(path: &Path) -> Result<Self, Failure> {
        Self::read_if(path, Readable::Any)
    }

    pub(crate) fn read_if(path: &Path, readable: Readable) -> Result<Self, Failure> {
        let wrong = |why: String| {
            Failure::new(format!("the token file {}: {why}", path.display())).hint(TOKEN_HINT)
        };
        let (bytes, metadata) = small_file::read(path, TOKEN_BYTES_MAX as u64 + 2, readable)
            .map_err(|error| wrong(error.to_string()))?;
        if metadata.is_file() && metadata.mode() & 0o077 != 0 {
            tracing::warn!("{} is readable by other users: run chmod 600 on it", path.display());
        }
        let token = bytes.trim_ascii();
        if token.len() < TOKEN_BYTES_MIN || token.len() > TOKEN_BYTES_MAX {
            let range = format!("a token must have {TOKEN_BYTES_MIN} to {TOKEN_BYTES_MAX} bytes");
            return Err(wrong(range));
        }
        if !token.iter().all(u8::is_ascii_graphic) {
            return Err(wrong(
                "a token must consist of printable ASCII characters without spaces".to_owned(),
            ));
        }
        Ok(Self(token.to_vec()))
    }

    #[cfg(test)]
    pub(crate) fn example() -> Self {
        Self(b"0123456789abcdef".to_vec())
    }

    /// Whether both are the same, compared in constant time.
    pub(crate) fn same(&self, other: &Self) -> bool {
        bool::from(self.0.ct_eq(&other.0))
    }

    /// The value of the `Authorization` header; must not be logged.
    pub(crate) fn header(&self) -> Vec<u8> {
        [b"Bearer ", self.0.as_slice()].concat()
    }

    /// Whether the headers contain the token. The comparison runs in constant time; only the length
    /// of the token can be derived from the time.
    fn is_in(&self, headers: &HeaderMap) -> bool {
        let authorization =
            headers.get(AUTHORIZATION).map(|value| value.as_bytes()).unwrap_or_default();
        let scheme =
            authorization.get(..7).is_some_and(|scheme| scheme.eq_ignore_ascii_case(b"bearer "));
        let same = authorization.get(7..).unwrap_or_default().ct_eq(&self.0);
        scheme && bool::from(same)
    }
}

/// Lets requests through to the API, with a [`Caller`] among their extensions, or refuses them.
#[derive(Debug)]
pub(crate) struct Guard {
    token: Arc<Slot<Token>>,
    /// Start of the clock for the log lines about wrong tokens.
    start: Instant,
    log_budget: LogBudget,
}

pub(crate) async fn guard(
    State(guard): State<Arc<Guard>>,
    Extension(peer): Extension<Peer>,
    mut request: Request,
    next: Next,
) -> Response {
    match guard.authorize(&peer, request.method(), request.headers()) {
        Ok(caller) => {
            request.extensions_mut().insert(caller);
            next.run(request).await
        }
        Err(problem) => {
            let mut response = problem.into_response();
            // A client that fails to authenticate keeps no connection: other clients wait for the
            // slot.
            response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
            response
        }
    }
}

impl Guard {
    pub(crate) fn new(token: Arc<Slot<Token>>) -> Self {
        Self { token, start: Instant::now(), log_budget: LogBudget::default() }
    }

    /// Logs a refused token, as somebody may be guessing tokens. Any client can cause these lines,
    /// so their rate is limited.
    fn log_refused_token(&self, address: SocketAddr) {
        let now = Time::ZERO.after(self.start.elapsed());
        if let Some(suppressed) = self.log_budget.take_line(now) {
            let suppressed = (suppressed > 0).then_some(suppressed);
            tracing::warn!(
                peer = %address,
                suppressed,
                "API request refused: the token is missing or wrong"
            );
        }
    }

    fn authorize(
        &self,
        peer: &Peer,
        method: &Method,
        headers: &HeaderMap,
    ) -> Result<Caller, Problem> {
        // Only browsers send `Origin`, and this API serves no web pages.
        if headers.contains_key(ORIGIN) {
            return Err(Problem::new(
                StatusCode::FORBIDDEN,
                "this API refuses requests of web pages",
            )
            .hint("use `lunar ctl`, or a client that sends no Origin header"));
        }
        let (address, tls) = match *peer {
            Peer::Unix { uid } => return Ok(Caller::User { uid }),
            Peer::Tcp { address, tls } => (address, tls),
        };
        if !tls && !names_this_machine(headers) {
            return Err(Problem::new(
                StatusCode::FORBIDDEN,
                "the Host header is neither an IP address nor localhost",
            )
            .hint(
                "use the IP address: a host name is refused because of DNS rebinding attacks by \
                 web pages",
            ));
        }
        match self.token.get() {
            Some(token) if token.is_in(headers) => Ok(Caller::Token { address }),
            Some(_) => {
                self.log_refused_token(address);
                let what = "the token is missing or wrong";
                Err(Problem::new(StatusCode::UNAUTHORIZED, what)
                    .hint("send `Authorization: Bearer TOKEN`; lunar ctl: --token-file FILE"))
            }
            None if method.is_safe() => Ok(Caller::Anybody { address }),
            None => Err(Problem::new(
                StatusCode::FORBIDDEN,
                "this port refuses changes without a token, because every user of the machine can \
                 connect to it",
            )
            .hint("start the server with --api-token-file FILE, or use a unix socket")),
        }
    }
}

/// Whether `Host` is an IP address or localhost. After DNS rebinding, the name of a foreign page
/// leads to this machine, and the browser sends that name.
fn names_this_machine(headers: &HeaderMap) -> bool {
    let mut hosts = headers.get_all(HOST).iter();
    let (Some(host), None) = (hosts.next(), hosts.next()) else { return false };
    let Ok(authority) = Authority::try_from(host.as_bytes()) else { return false };
    let host = authority.host();
    let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    bare.parse::<IpAddr>().is_ok() || host.eq_ignore_ascii_case("localhost")
}

#[cfg(test)]
mod tests {
    use super::*;

    use std::time::Duration;

    const SECRET: &[u8] = b"0123456789abcdef";

    fn headers(list: &[(&'static str, &'static str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in list {
            headers.append(*name, HeaderValue::from_static(value));
        }
        headers
    }

    fn authorize(
        token: bool,
        tls: bool,
        method: Method,
        list: &[(&'static str, &'static str)],
    ) -> Result<Caller, StatusCode> {
        let guard = Guard::new(Slot::new(token.then(|| Token(SECRET.to_vec()))));
        let peer = Peer::Tcp { address: ([127, 0, 0, 1], 9).into(), tls };
        guard.authorize(&peer, &method, &headers(list)).map_err(|problem| problem.status)
    }

    /// Goal: changes over TCP require the token; if there is a token, reading requires it too.
    #[test]
    fn tcp_requires_the_token() {
        const HOST: (&str, &str) = ("host", "127.0.0.1:9");
        let address = ([127, 0, 0, 1], 9).into();
        let right = [HOST, ("authorization", "bearer 0123456789abcdef")];
        assert_eq!(authorize(true, false, Method::POST, &right), Ok(Caller::Token { address }));
        for wrong in [
            "Bearer 0123456789abcdeF",
            "Bearer 0123456789abcde",
            "Bearer 0123456789abcdef0",
            "Bearer ",
            "Basic 0123456789abcdef",
            "0123456789abcdef",
            "",
        ] {
            let list = [HOST, ("authorization", wrong)];
            for method in [Method::GET, Method::POST] {
                let result = authorize(true, false, method, &list);
                assert_eq!(result, Err(StatusCode::UNAUTHORIZED), "{wrong}");
            }
        }
        assert_eq!(authorize(false, false, Method::GET, &[HOST]), Ok(Caller::Anybody { address }));
        for method in [Method::POST, Method::DELETE, Method::PUT] {
            assert_eq!(authorize(false, false, method, &[HOST]), Err(StatusCode::FORBIDDEN));
        }
    }

    /// Goal: requests that browsers send for foreign pages are refused, even with the token.
    #[test]
    fn pages_are_refused() {
        let token = ("authorization", "Bearer 0123456789abcdef");
        for host in ["evil.example", "127.0.0.1.evil.example:9", "localhost.evil.example", "a@b"] {
            let result = authorize(true, false, Method::GET, &[("host", host), token]);
            assert_eq!(result, Err(StatusCode::FORBIDDEN), "{host}");
        }
        let two = [("host", "127.0.0.1"), ("host", "evil.example"), token];
        assert_eq!(authorize(true, false, Method::GET, &two), Err(StatusCode::FORBIDDEN));
        assert_eq!(authorize(true, false, Method::GET, &[token]), Err(StatusCode::FORBIDDEN));
        for host in ["127.0.0.1", "[::1]:9", "LOCALHOST:9"] {
            assert!(
                authorize(true, false, Method::GET, &[("host", host), token]).is_ok(),
                "{host}"
            );
        }
        assert!(authorize(true, true, Method::GET, &[("host", "san.example"), token]).is_ok());
        let page = [("host", "127.0.0.1"), token, ("origin", "null")];
        assert_eq!(authorize(true, false, Method::GET, &page), Err(StatusCode::FORBIDDEN));
        assert_eq!(authorize(true, true, Method::GET, &page), Err(StatusCode::FORBIDDEN));
    }

    /// Goal: guessing many tokens does not fill the disk with log lines: a burst is logged, then a
    /// count.
    #[test]
    fn log_lines_about_refused_tokens_are_limited() {
        let guard = Guard::new(Slot::new(Some(Token(SECRET.to_vec()))));
        let peer = Peer::Tcp { address: ([127, 0, 0, 1], 9).into(), tls: true };
        for _ in 0..10_000 {
            assert!(guard.authorize(&peer, &Method::GET, &HeaderMap::new()).is_err());
        }
        let next_day = Time::ZERO.after(Duration::from_secs(86_400));
        let suppressed = guard.log_budget.take_line(next_day);
        assert!(suppressed.is_some_and(|suppressed| suppressed > 5_000), "{suppressed:?}");
    }

    /// Goal: files that hold no valid token are refused without repeating their contents.
    #[test]
    fn token_files_are_checked() {
        let path = std::env::temp_dir().join(format!("lunar-token-{}", std::process::id()));
        for (content, good) in [
            ("0123456789abcdef\n", true),
            ("  0123456789abcdef  ", true),
            ("0123456789abcde\n", false),
            ("0123456789 abcdef", false),
            ("0123456789abcdef\nsecond", false),
            ("", false),
        ] {
            std::fs::write(&path, content).unwrap();
            let read = Token::read(&path);
            assert_eq!(read.is_ok(), good, "{content:?}");
            assert!(!format!("{read:?}").contains("0123456"), "{read:?}");
        }
        std::fs::write(&path, "x".repeat(2000)).unwrap();
        assert!(Token::read(&path).is_err());
        std::fs::remove_file(&path).unwrap();
        assert!(Token::read(&path).is_err());
    }
}
