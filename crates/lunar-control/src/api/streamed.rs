//! Answers that are encoded piece by piece, as fast as the client reads them. A connection holds
//! one or two pieces, however long the answer is.

use super::problem::Problem;
use axum::BoxError;
use axum::body::Body;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use hyper::body::Frame;
use serde::Serialize;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use tokio::task::JoinHandle;

/// Size from which a piece is complete. The last fragment of a piece may exceed it.
const PIECE_BYTES: usize = 60 << 10;

/// The text of an answer in fragments, each made when it is needed. Fragments are made on threads
/// for blocking work.
pub(super) type Fragments = Box<dyn Iterator<Item = Result<Vec<u8>, BoxError>> + Send>;

/// A piece, and the fragments that follow; `None`: the text is complete.
type Piece = Result<(Bytes, Option<Fragments>), BoxError>;

/// Answers with `{"name": […]}`. Items that begin or end to exist while the answer is being sent
/// may be missing.
pub(super) async fn list<T: Serialize + 'static>(
    name: &'static str,
    items: impl Iterator<Item = Result<T, BoxError>> + Send + 'static,
) -> Result<Response, Problem> {
    let head = std::iter::once(Ok(format!("{{\"{name}\":[").into_bytes()));
    let end = std::iter::once(Ok(b"]}".to_vec()));
    text(Box::new(head.chain(separated(items)).chain(end))).await
}

/// Encodes items, with a comma between two of them.
pub(super) fn separated<T: Serialize>(
    items: impl Iterator<Item = Result<T, BoxError>> + Send,
) -> impl Iterator<Item = Result<Vec<u8>, BoxError>> + Send {
    items.enumerate().map(|(index, item)| {
        let mut fragment = if index == 0 { Vec::new() } else { b",".to_vec() };
        serde_json::to_writer(&mut fragment, &item?)?;
        Ok(fragment)
    })
}

/// Answers with a JSON text. A text of one piece is sent with its length.
pub(super) async fn text(fragments: Fragments) -> Result<Response, Problem> {
    let first = tokio::task::spawn_blocking(move || piece(fragments)).await;
    let first = first.map_err(BoxError::from).and_then(|first| first);
    let (first, rest) = first.map_err(failed)?;
    Ok(response(match rest {
        None => Body::from(first),
        Some(rest) => Body::new(StreamedBody { first: Some(first), rest: Some(rest), next: None }),
    }))
}

/// The error of a list whose items are no longer what they were when the list began.
#[derive(Debug, thiserror::Error)]
#[error("the listed objects changed during the response")]
pub(super) struct ListChanged;

/// The answer to a request whose answer cannot be made.
pub(super) fn failed(error: BoxError) -> Problem {
    if error.is::<ListChanged>() {
        return Problem::new(StatusCode::CONFLICT, error.to_string()).hint("try again");
    }
    tracing::error!("API request failed by an internal error: {error}");
    Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "the request failed by an internal error")
        .hint("see the log of the server")
}

pub(super) fn response(body: Body) -> Response {
    ([(header::CONTENT_TYPE, "application/json")], body).into_response()
}

fn piece(mut fragments: Fragments) -> Piece {
    let mut piece = Vec::new();
    while piece.len() < PIECE_BYTES {
        let Some(fragment) = fragments.next() else { return Ok((exact(piece), None)) };
        piece.extend_from_slice(&fragment?);
    }
    Ok((exact(piece), Some(fragments)))
}

/// The same bytes in memory of their size, as their size is charged.
fn exact(piece: Vec<u8>) -> Bytes {
    piece.into_boxed_slice().into()
}

/// A body of several pieces.
struct StreamedBody {
    first: Option<Bytes>,
    rest: Option<Fragments>,
    /// The next piece, which is being made.
    next: Option<JoinHandle<Piece>>,
}

impl hyper::body::Body for StreamedBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        if let Some(first) = self.first.take() {
            return Poll::Ready(Some(Ok(Frame::data(first))));
        }
        if let Some(rest) = self.rest.take() {
            self.next = Some(tokio::task::spawn_blocking(move || piece(rest)));
        }
        let Some(next) = &mut self.next else { return Poll::Ready(None) };
        let next = ready!(Pin::new(next).poll(context));
        self.next = None;
        let (bytes, rest) = next.map_err(BoxError::from).and_then(|next| next)?;
        self.rest = rest;
        Poll::Ready(Some(Ok(Frame::data(bytes))))
    }

    fn is_end_stream(&self) -> bool {
        self.first.is_none() && self.rest.is_none() && self.next.is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http_body_util::BodyExt;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    async fn pieces(response: Response) -> Vec<Result<Bytes, axum::Error>> {
        let (mut body, mut pieces) = (response.into_body(), Vec::new());
        while let Some(frame) = body.frame().await {
            pieces.push(frame.map(|frame| frame.into_data().unwrap()));
        }
        pieces
    }

    /// Goal: lists of any length are the JSON that they would be in one piece; a short one has a
    /// length.
    #[tokio::test]
    async fn lists_are_joined_from_pieces() {
        for (count, pieces_of) in [(0, 1), (1, 1), (2, 1), (100, 1), (2000, 4)] {
            let items = (0..count).map(|number| format!("{number:0100}"));
            let whole = serde_json::json!({ "all": items.clone().collect::<Vec<_>>() });
            let response = list("all", items.map(Ok)).await.unwrap();
            let exact = hyper::body::Body::size_hint(response.body()).exact();
            let pieces = pieces(response).await;
            let text: Vec<u8> =
                pieces.iter().flat_map(|one| one.as_ref().unwrap().to_vec()).collect();
            assert_eq!(String::from_utf8(text.clone()).unwrap(), whole.to_string());
            assert_eq!(pieces.len(), pieces_of, "{count}");
            assert_eq!(exact, (pieces_of == 1).then_some(text.len() as u64));
        }
    }

    /// Goal: no item is made before it is needed, and an error ends the answer.
    #[tokio::test]
    async fn list_items_are_created_on_demand() {
        let made = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&made);
        let items = (0..).map(move |number| {
            counted.fetch_add(1, Ordering::Relaxed);
            if number < 200 { Ok("x".repeat(1021)) } else { Err("no more".into()) }
        });
        let mut body = list("all", items).await.unwrap().into_body();
        for pieces in 1..=3 {
            assert!(body.frame().await.unwrap().is_ok());
            assert_eq!(made.load(Ordering::Relaxed), pieces * PIECE_BYTES / 1024);
        }
        assert!(body.frame().await.unwrap().is_err());
        assert!(body.frame().await.is_none());
    }
}
