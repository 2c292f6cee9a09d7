//! Reads an answer while it is being produced.

use super::{ANSWER_BYTES_MAX, ANSWER_TIME_MAX, ApiClient, ApiPath, Method};
use crate::Failure;
use bytes::Bytes;
use http_body_util::{BodyExt, Limited};
use hyper::body::Incoming;
use serde::Serialize;
use std::time::Duration;

/// Maximum time without data from the server.
const SILENCE_MAX: Duration = Duration::from_secs(30);

/// An answer whose body arrives in pieces.
#[derive(Debug)]
pub struct ResponseStream {
    body: Incoming,
    /// Name of the server, for error messages.
    server: String,
}

impl ApiClient {
    /// Sends a request whose answer takes a while; returns when the answer begins.
    ///
    /// # Errors
    /// Same as [`Self::get`].
    pub async fn open(
        &self,
        method: Method,
        path: &ApiPath,
        body: &(impl Serialize + Sync),
    ) -> Result<ResponseStream, Failure> {
        let body = serde_json::to_vec(body)
            .map_err(|error| Failure::new(format!("cannot write JSON: {error}")))?;
        let request = self.prepare(method, path, body.into())?;
        let opening = async {
            let stream = self.connect().await?;
            let (mut sender, connection) = self.handshake(stream).await?;
            // The connection ends with the answer or with the runtime.
            tokio::spawn(connection);
            sender.send_request(request).await.map_err(|error| self.invalid_response(&error))
        };
        let response = tokio::time::timeout(ANSWER_TIME_MAX, opening);
        let response = response.await.map_err(|_| self.timed_out(ANSWER_TIME_MAX))??;
        let status = response.status();
        let body = response.into_body();
        if status.is_success() {
            return Ok(ResponseStream { body, server: self.address.to_string() });
        }
        let problem = Limited::new(body, ANSWER_BYTES_MAX).collect();
        let problem = tokio::time::timeout(ANSWER_TIME_MAX, problem);
        let problem = problem.await.map_err(|_| self.timed_out(ANSWER_TIME_MAX))?;
        let problem = problem.map_err(|error| self.invalid_response(&error))?.to_bytes();
        Err(self.refusal(status, &problem))
    }
}

impl ResponseStream {
    /// The next piece; `None` at the end.
    ///
    /// # Errors
    /// Fails if the connection breaks or the server sends nothing for too long.
    pub async fn next(&mut self) -> Result<Option<Bytes>, Failure> {
        loop {
            let frame =
                tokio::time::timeout(SILENCE_MAX, self.body.frame()).await.map_err(|_| {
                    let seconds = SILENCE_MAX.as_secs();
                    Failure::new(format!("{} sent nothing for {seconds} s", self.server))
                })?;
            let Some(frame) = frame else { return Ok(None) };
            let frame = frame.map_err(|error| {
                Failure::new(format!("the response of {} ended early: {error}", self.server))
            })?;
            if let Ok(data) = frame.into_data() {
                return Ok(Some(data));
            }
        }
    }
}
