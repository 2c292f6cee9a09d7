//! The page of metrics. Readers that begin within a second of another one share its page, and slow
//! readers keep no more than two pages in memory.

use axum::body::Body;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use hyper::body::{Frame, SizeHint};
use lunar_block::BufferPool;
use prometheus_client::registry::Registry;
use std::collections::VecDeque;
use std::fmt::{self, Write};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::Instant;

/// The format and its version. OpenMetrics 1.0.
const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
/// Age up to which a page that is being read is also given to new readers.
const FRESH_TIME: Duration = Duration::from_secs(1);
/// Maximum number of pages in memory. When there are two, new readers get the newer one.
const PAGES_MAX: usize = 2;
/// Age from which the older of two pages makes room for a new one; its readers are cut off. It is
/// the default of Prometheus' `scrape_timeout`.
const READ_TIME_MIN: Duration = Duration::from_secs(10);
/// Age at which the readers of a page are cut off, however many pages there are.
const READ_TIME_MAX: Duration = Duration::from_secs(60);
/// Size of the chunks of a page. When its readers are cut off, all but the chunks in flight are
/// freed.
const CHUNK_BYTES: usize = 64 << 10;

/// The pages that are in memory.
pub(super) struct Pages {
    registry: Registry,
    /// Account that pages are charged to; `None`: they are not charged.
    account: Option<BufferPool>,
    /// Pages that are being read, the oldest first.
    being_read: Mutex<VecDeque<Weak<Page>>>,
}

struct Page {
    rendered_at: Instant,
    bytes: u64,
    /// `None` once the readers are cut off.
    chunks: Mutex<Option<Vec<Bytes>>>,
    /// Cuts the readers off after [`READ_TIME_MAX`].
    timer: Mutex<JoinSet<()>>,
}

impl Pages {
    pub(super) fn new(registry: Registry, account: Option<BufferPool>) -> Arc<Self> {
        Arc::new(Self { registry, account, being_read: Mutex::default() })
    }

    /// Returns a new page, or the newest one that is being read: if it is less than [`FRESH_TIME`]
    /// old, or if there are [`PAGES_MAX`] and the oldest is less than [`READ_TIME_MIN`] old.
    pub(super) fn response(&self) -> Response {
        match self.page() {
            Ok(page) => {
                let body = PageBody { next: 0, bytes_left: page.bytes, page };
                ([(header::CONTENT_TYPE, CONTENT_TYPE)], Body::new(body)).into_response()
            }
            Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
        }
    }

    fn page(&self) -> Result<Arc<Page>, fmt::Error> {
        let now = Instant::now();
        let mut being_read = lock(&self.being_read);
        being_read.retain(|page| page.upgrade().is_some_and(|page| !page.is_cut_off()));
        let [oldest, newest] =
            [being_read.front(), being_read.back()].map(|page| page.and_then(Weak::upgrade));
        if let (Some(oldest), Some(newest)) = (oldest, newest) {
            let age = |page: &Page| now.duration_since(page.rendered_at);
            let is_full = being_read.len() >= PAGES_MAX;
            if age(&newest) < FRESH_TIME || is_full && age(&oldest) < READ_TIME_MIN {
                return Ok(newest);
            }
            if is_full {
                oldest.cut_off();
                being_read.pop_front();
            }
        }
        let page = Arc::new(self.render(now)?);
        being_read.push_back(Arc::downgrade(&page));
        let timed = Arc::downgrade(&page);
        lock(&page.timer).spawn(async move {
            tokio::time::sleep(READ_TIME_MAX).await;
            timed.upgrade().inspect(|page| page.cut_off());
        });
        Ok(page)
    }

    fn render(&self, rendered_at: Instant) -> Result<Page, fmt::Error> {
        let mut chunks =
            Chunks { account: self.account.as_ref(), full: Vec::new(), last: Vec::new() };
        prometheus_client::encoding::text::encode(&mut chunks, &self.registry)?;
        let chunks = chunks.end();
        let bytes = chunks.iter().map(|chunk| chunk.len() as u64).sum();
        let chunks = Mutex::new(Some(chunks));
        Ok(Page { rendered_at, bytes, chunks, timer: Mutex::default() })
    }
}

impl Page {
    fn is_cut_off(&self) -> bool {
        lock(&self.chunks).is_none()
    }

    fn cut_off(&self) {
        *lock(&self.chunks) = None;
    }
}

/// Collects text in chunks, each charged until its last share is dropped.
struct Chunks<'a> {
    account: Option<&'a BufferPool>,
    full: Vec<Bytes>,
    last: Vec<u8>,
}

impl Chunks<'_> {
    fn push_last(&mut self) {
        let chunk = std::mem::take(&mut self.last);
        self.full.push(match self.account {
            Some(account) => account.charge_vec(chunk),
            None => chunk.into(),
        });
    }

    fn end(mut self) -> Vec<Bytes> {
        self.last.shrink_to_fit();
        if !self.last.is_empty() {
            self.push_last();
        }
        self.full
    }
}

impl Write for Chunks<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let mut rest = text.as_bytes();
        while !rest.is_empty() {
            if self.last.capacity() == 0 {
                self.last.reserve_exact(CHUNK_BYTES);
            }
            let room = CHUNK_BYTES.saturating_sub(self.last.len());
            let (now, later) = rest.split_at(room.min(rest.len()));
            self.last.extend_from_slice(now);
            rest = later;
            if self.last.len() >= CHUNK_BYTES {
                self.push_last();
            }
        }
        Ok(())
    }
}

/// A page on its way to one reader.
struct PageBody {
    page: Arc<Page>,
    next: usize,
    bytes_left: u64,
}

impl hyper::body::Body for PageBody {
    type Data = Bytes;
    type Error = &'static str;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, &'static str>>> {
        let chunk = match &*lock(&self.page.chunks) {
            Some(chunks) => Ok(chunks.get(self.next).cloned()),
            None => Err("the client reads the page too slowly"),
        };
        if let Ok(Some(chunk)) = &chunk {
            self.next += 1;
            self.bytes_left = self.bytes_left.saturating_sub(chunk.len() as u64);
        }
        Poll::Ready(chunk.map(|chunk| chunk.map(Frame::data)).transpose())
    }

    fn is_end_stream(&self) -> bool {
        self.bytes_left == 0
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.bytes_left)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use http_body_util::BodyExt;
    use lunar_block::MemoryKind;
    use prometheus_client::collector::Collector;
    use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
    use prometheus_client::metrics::counter::ConstCounter;
    use std::sync::atomic::{AtomicU64, Ordering};

    /// A large page, another one each time.
    #[derive(Debug, Default)]
    struct Large(AtomicU64);

    impl Collector for Large {
        fn encode(&self, mut encoder: DescriptorEncoder) -> fmt::Result {
            let (help, counter) = ("x".repeat(300_000), ConstCounter::new(1_u64));
            let name = format!("page_{}", self.0.fetch_add(1, Ordering::Relaxed));
            let metric = encoder.encode_descriptor(&name, &help, None, counter.metric_type())?;
            counter.encode(metric)
        }
    }

    struct Rig {
        pages: Arc<Pages>,
        account: BufferPool,
    }

    impl Rig {
        fn new() -> Self {
            let account = BufferPool::default().sibling(MemoryKind::Api);
            let mut registry = Registry::default();
            registry.register_collector(Box::new(Large::default()));
            Self { pages: Pages::new(registry, Some(account.clone())), account }
        }

        /// A reader that has begun to read, and its first chunk.
        async fn read(&self) -> (Body, String) {
            let mut body = self.pages.response().into_body();
            let first = body.frame().await.unwrap().unwrap().into_data().unwrap();
            (body, String::from_utf8(first[..40].to_vec()).unwrap())
        }

        fn held_bytes(&self) -> usize {
            self.account.held_bytes()
        }
    }

    async fn pass(time: Duration) {
        tokio::time::sleep(time).await;
        tokio::task::yield_now().await;
    }

    async fn rest_of(mut body: Body) -> Result<usize, axum::Error> {
        let mut bytes = 0;
        while let Some(frame) = body.frame().await {
            bytes += frame?.into_data().map_or(0, |data| data.len());
        }
        Ok(bytes)
    }

    /// Goal: readers that begin at the same time share one page, which is charged once and freed
    /// when they have ended; a later reader gets a new page. Fault: 16 readers that took a byte in
    /// 29 s each held a page of their own, of tens of MB, and initiators got BUSY because of them.
    #[tokio::test(start_paused = true)]
    async fn readers_share_a_page() {
        let rig = Rig::new();
        let (first, text) = rig.read().await;
        let one_page = rig.held_bytes();
        assert!((300_000..400_000).contains(&one_page), "{one_page}");
        let mut readers = vec![first];
        for _ in 1..16 {
            let (reader, same) = rig.read().await;
            assert_eq!(same, text);
            readers.push(reader);
        }
        assert_eq!(rig.held_bytes(), one_page);
        let whole = rest_of(rig.pages.response().into_body()).await.unwrap();
        for reader in readers {
            assert_eq!(rest_of(reader).await.unwrap(), whole - CHUNK_BYTES);
        }
        assert_eq!(rig.held_bytes(), 0);
        assert_ne!(rig.read().await.1, text);
    }

    /// Goal: slow readers that request the page again and again keep at most two pages in memory,
    /// each for at most a minute, and other readers still get a page that is a few seconds old.
    #[tokio::test(start_paused = true)]
    async fn slow_readers_hold_two_pages_at_most() {
        let rig = Rig::new();
        let (first, _) = rig.read().await;
        let one_page = rig.held_bytes();
        let (mut readers, mut texts) = (Vec::new(), Vec::new());
        for _ in 0..30 {
            pass(FRESH_TIME).await;
            let (reader, text) = rig.read().await;
            assert!(rig.held_bytes() <= 2 * one_page + CHUNK_BYTES, "{}", rig.held_bytes());
            readers.push(reader);
            texts.push(text);
        }
        texts.dedup();
        assert!((5..=7).contains(&texts.len()), "{texts:?}");
        assert!(rest_of(first).await.is_err(), "cut off for a new page");
        assert!(rest_of(readers.pop().unwrap()).await.is_ok());
        pass(READ_TIME_MAX).await;
        assert_eq!(rig.held_bytes(), 0);
        assert!(rest_of(readers.pop().unwrap()).await.is_err());
    }
}
