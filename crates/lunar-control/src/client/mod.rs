//! Client of the API: each request uses its own connection.

mod described;
mod find;
mod listening;
mod stream;

use crate::api::{PREFIX, ProblemBody};
use crate::auth::Token;
use crate::http::Address;
use crate::tls;
use crate::{ErrorList, Failure};
use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::client::conn::http1;
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HOST, HeaderValue};
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use rustls_pki_types::ServerName;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::io;
use std::path::PathBuf;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};

pub use described::{DescribedApi, client_address, find_described};
pub use find::find;
pub use hyper::Method;
pub use stream::ResponseStream;

/// Maximum time for connecting, including the TLS handshake.
const CONNECT_TIME_MAX: Duration = Duration::from_secs(10);
/// Maximum time until a response is complete: a change may have to open and sync disks.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(300);
/// Maximum size of a response in bytes; the longest lists 16,384 sessions.
const ANSWER_BYTES_MAX: usize = 64 << 20;

/// Address of a server's API, with certificates and token.
#[derive(Debug)]
pub struct ApiClient {
    /// The address.
    pub address: Address,
    /// File of the trusted certificates (PEM); `None`: without TLS.
    pub trusted: Option<PathBuf>,
    /// The token for TCP; sent to other machines over TLS only.
    pub token: Option<Token>,
}

/// Byte stream that carries requests.
trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}

impl<S: AsyncRead + AsyncWrite + Unpin + Send> Stream for S {}

/// A connection that requests can be sent on, and the future that drives it.
type Handshake =
    (http1::SendRequest<Full<Bytes>>, http1::Connection<TokioIo<Box<dyn Stream>>, Full<Bytes>>);

/// Path of a request, with each segment percent-encoded.
#[derive(Clone, Debug)]
pub struct ApiPath(String);

impl ApiPath {
    /// Joins `/api/v1/` and the segments with slashes.
    pub fn new(segments: &[&str]) -> Self {
        let mut path = PREFIX.to_owned();
        for segment in segments {
            path.push('/');
            push_encoded(&mut path, segment);
        }
        Self(path)
    }

    /// Adds a query parameter.
    #[must_use]
    pub fn query(mut self, key: &str, value: &str) -> Self {
        self.0.push(if self.0.contains('?') { '&' } else { '?' });
        self.0.push_str(key);
        self.0.push('=');
        push_encoded(&mut self.0, value);
        self
    }
}

/// Percent-encodes all bytes that RFC 3986 does not list as unreserved.
fn push_encoded(path: &mut String, text: &str) {
    for byte in text.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' | b':' => {
                path.push(byte.into());
            }
            _ => path.push_str(&format!("%{byte:02X}")),
        }
    }
}

impl ApiClient {
    /// Sends a GET request.
    ///
    /// # Errors
    /// Fails if no server answers, the server refuses, or the answer is invalid.
    pub async fn get<T: DeserializeOwned>(&self, path: &ApiPath) -> Result<T, Failure> {
        self.request(Method::GET, path, Bytes::new()).await
    }

    /// Sends a request with a JSON body.
    ///
    /// # Errors
    /// Same as [`Self::get`].
    pub async fn send<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &ApiPath,
        body: &(impl Serialize + Sync),
    ) -> Result<T, Failure> {
        let body = serde_json::to_vec(body)
            .map_err(|error| Failure::new(format!("cannot write JSON: {error}")))?;
        self.request(method, path, body.into()).await
    }

    /// Sends a DELETE request.
    ///
    /// # Errors
    /// Same as [`Self::get`].
    pub async fn delete<T: DeserializeOwned>(&self, path: &ApiPath) -> Result<T, Failure> {
        self.request(Method::DELETE, path, Bytes::new()).await
    }

    /// Returns the token if the server requires one: a unix socket does not. Refuses to send the
    /// token over a network without TLS.
    fn token_to_send(&self) -> Result<Option<&Token>, Failure> {
        let (Address::Tcp(address), Some(token)) = (&self.address, &self.token) else {
            return Ok(None);
        };
        if self.trusted.is_none() && !self.address.is_local() {
            let what = format!("the token would be sent to {address} unencrypted");
            return Err(Failure::usage(what).hint(
                "use TLS: --ca-file FILE with the server's certificate, or the certificate that \
                 signed it",
            ));
        }
        Ok(Some(token))
    }

    async fn request<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &ApiPath,
        body: Bytes,
    ) -> Result<T, Failure> {
        let request = self.prepare(method, path, body)?;
        let exchange = async { self.exchange(self.connect().await?, request).await };
        let answer = tokio::time::timeout(ANSWER_TIME_MAX, exchange).await;
        answer.unwrap_or_else(|_| Err(self.timed_out(ANSWER_TIME_MAX)))
    }

    fn prepare(
        &self,
        method: Method,
        path: &ApiPath,
        body: Bytes,
    ) -> Result<Request<Full<Bytes>>, Failure> {
        let mut request = Request::builder().method(method).uri(&path.0);
        let host = match self.address {
            Address::Unix(_) => "localhost".to_owned(),
            Address::Tcp(address) => address.to_string(),
        };
        request = request.header(HOST, host);
        if !body.is_empty() {
            request = request.header(CONTENT_TYPE, "application/json");
        }
        if let Some(token) = self.token_to_send()? {
            let mut value = HeaderValue::from_bytes(&token.header()).map_err(|_| {
                Failure::new("the token contains characters that are not allowed in an HTTP header")
            })?;
            value.set_sensitive(true);
            request = request.header(AUTHORIZATION, value);
        }
        request
            .body(Full::new(body))
            .map_err(|error| Failure::new(format!("cannot build the HTTP request: {error}")))
    }

    async fn connect(&self) -> Result<Box<dyn Stream>, Failure> {
        let address = match &self.address {
            Address::Unix(path) => {
                return Ok(Box::new(self.connected(UnixStream::connect(path)).await?));
            }
            Address::Tcp(address) => address,
        };
        let stream = self.connected(TcpStream::connect(address)).await?;
        let Some(trusted) = &self.trusted else { return Ok(Box::new(stream)) };
        let name = ServerName::from(address.ip());
        let tls = tls::client(trusted)?.connect(name, stream);
        Ok(Box::new(self.connected(tls).await?))
    }

    fn timed_out(&self, time: Duration) -> Failure {
        let seconds = time.as_secs();
        Failure::new(format!("{} did not respond within {seconds} s", self.address))
            .hint("check with `lunar ctl status` whether the change was made")
    }

    fn invalid_response(&self, error: &dyn std::fmt::Display) -> Failure {
        Failure::new(format!("no valid HTTP response from {}: {error}", self.address)).hint(
            "check that this is the address of the lunar API, and that both sides use TLS or \
             neither does",
        )
    }

    async fn handshake(&self, stream: Box<dyn Stream>) -> Result<Handshake, Failure> {
        http1::handshake(TokioIo::new(stream)).await.map_err(|error| self.invalid_response(&error))
    }

    async fn connected<S>(
        &self,
        connect: impl Future<Output = io::Result<S>>,
    ) -> Result<S, Failure> {
        let error = match tokio::time::timeout(CONNECT_TIME_MAX, connect).await {
            Ok(Ok(stream)) => return Ok(stream),
            Ok(Err(error)) => error,
            Err(_) => io::ErrorKind::TimedOut.into(),
        };
        let failure = Failure::new(format!("cannot reach a server at {}: {error}", self.address));
        Err(failure.hint(match error.kind() {
            io::ErrorKind::PermissionDenied => {
                "only its owner may use the socket: run this command as the server's user, or \
                 with sudo"
            }
            io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => {
                "no server is listening there: it may have stopped, or use another --api address"
            }
            _ => tls::hint(&error).unwrap_or(
                "check that this is the address that the server printed, and that both sides use \
                 TLS or neither does",
            ),
        }))
    }

    async fn exchange<T: DeserializeOwned>(
        &self,
        stream: Box<dyn Stream>,
        request: Request<Full<Bytes>>,
    ) -> Result<T, Failure> {
        let (mut sender, connection) = self.handshake(stream).await?;
        let answer = async {
            let response =
                sender.send_request(request).await.map_err(|e| self.invalid_response(&e))?;
            let (head, body) = response.into_parts();
            let body = Limited::new(body, ANSWER_BYTES_MAX).collect().await;
            let body = body.map_err(|e| self.invalid_response(&e))?.to_bytes();
            Ok::<_, Failure>(Response::from_parts(head, body))
        };
        tokio::pin!(answer);
        let response = tokio::select! {
            response = &mut answer => response?,
            // The connection ends once the answer has arrived; either may be ready first.
            _ = connection => answer.await?,
        };
        self.parse_answer(response.status(), response.body())
    }

    fn parse_answer<T: DeserializeOwned>(
        &self,
        status: StatusCode,
        body: &[u8],
    ) -> Result<T, Failure> {
        if !status.is_success() {
            return Err(self.refusal(status, body));
        }
        serde_json::from_slice(body).map_err(|error| {
            self.unexpected_response(status, &format!("with an unexpected document: {error}"))
        })
    }

    fn unexpected_response(&self, status: StatusCode, what: &str) -> Failure {
        Failure::new(format!("{} responded {status} {what}", self.address))
            .hint("check that the server is lunar, and of the same version")
    }

    fn refusal(&self, status: StatusCode, body: &[u8]) -> Failure {
        let Ok(problem) = serde_json::from_slice::<ProblemBody>(body) else {
            return self.unexpected_response(status, "without an error message");
        };
        // The caller that sent the configuration formats its problems for people.
        let parts = problem
            .problems
            .map(|list| Box::new(ErrorList { lines: Vec::new(), list: ("problems", list.into()) }));
        // An invalid file is no usage error of the command, as in `lunar check`.
        let failure = match status {
            StatusCode::UNPROCESSABLE_ENTITY if parts.is_none() => Failure::usage(problem.error),
            _ => Failure::new(problem.error),
        };
        Failure { hint: problem.hint, parts, ..failure }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_keep_their_segments_apart() {
        let path = ApiPath::new(&["targets", "iqn.2026-11.org.example:a/../b c?ä%", "luns"]);
        let expected = "/api/v1/targets/iqn.2026-11.org.example:a%2F..%2Fb%20c%3F%C3%A4%25/luns";
        assert_eq!(path.0, expected);
    }

    /// Goal: the token is sent to this machine or over TLS, and never to a unix socket.
    #[test]
    fn the_token_is_not_sent_in_clear_text() {
        let shown = |address: &str, tls: bool| {
            let address = Address::parse(address).unwrap();
            let trusted = tls.then(|| PathBuf::from("ca.pem"));
            let client = ApiClient { address, trusted, token: Some(Token::example()) };
            client.token_to_send().map(|token| token.is_some()).map_err(|failure| failure.kind)
        };
        assert_eq!(shown("192.0.2.7:9000", false), Err(crate::FailureKind::Usage));
        assert_eq!(shown("[::ffff:192.0.2.7]:9000", false), Err(crate::FailureKind::Usage));
        assert_eq!(shown("192.0.2.7:9000", true), Ok(true));
        assert_eq!(shown("127.0.0.1:9000", false), Ok(true));
        assert_eq!(shown("unix:api.sock", false), Ok(false));
    }

    /// Goal: an invalid request is a usage error, as it is without a server.
    #[test]
    fn invalid_options_are_usage_errors() {
        let address = Address::parse("unix:api.sock").unwrap();
        let client = ApiClient { address, trusted: None, token: None };
        let body = br#"{"error": "no", "hint": null}"#;
        let kind = |status| client.parse_answer::<u8>(status, body).unwrap_err().kind;
        assert_eq!(kind(StatusCode::UNPROCESSABLE_ENTITY), crate::FailureKind::Usage);
        assert_eq!(kind(StatusCode::CONFLICT), crate::FailureKind::Failed);
        let body = br#"{"error": "no", "hint": null, "problems": [{"line": 1}]}"#;
        let file = client.parse_answer::<u8>(StatusCode::UNPROCESSABLE_ENTITY, body).unwrap_err();
        assert_eq!(file.kind, crate::FailureKind::Failed, "it is the file that is wrong");
    }
}
