//! The list of waiting LUNs, with a paused clock.

use super::super::pause::{PAUSE_MAX, PAUSE_MIN};
use super::*;
use crate::FailureKind;
use crate::config;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

const TARGET: &str = "iqn.2026-11.org.example:front";

/// A configuration of `count` remote LUNs.
fn configuration(count: u16) -> Configuration {
    let head = format!("[listen]\nportals = [\"127.0.0.1:0\"]\n[[target]]\nname = \"{TARGET}\"\n");
    let lun = |id| {
        let url = format!("iscsi://192.0.2.1/iqn.2026-11.org.example:s/{id}");
        format!("[[target.lun]]\nid = {id}\ndevice = \"{url}\"\n")
    };
    let luns: String = (0..count).map(lun).collect();
    config::parse(&(head + &luns), Path::new("lunar.toml")).unwrap()
}

fn unavailable() -> Failure {
    Failure { kind: FailureKind::Unavailable, ..Failure::new("nobody answers") }
}

/// Puts the LUNs with these numbers on the list.
fn set(waiting: &WaitingLuns, configuration: &Configuration, ids: &[u16]) {
    let failure = unavailable();
    let target = &configuration.targets[0];
    let luns = target.luns.iter().filter(|lun| ids.contains(&lun.id));
    let luns = luns.map(|lun| UnavailableLun { target: TARGET, lun, failure: Some(&failure) });
    waiting.set(configuration, &luns.collect::<Vec<_>>());
}

fn ids(waiting: &WaitingLuns) -> Vec<u16> {
    waiting.all().iter().map(|lun| lun.id).collect()
}

/// Retries for `time`, with `attempt`.
async fn retry<F>(waiting: &WaitingLuns, time: Duration, attempt: impl Fn(WaitingLun) -> F)
where
    F: Future<Output = Result<(), Failure>> + Send + 'static,
{
    let ended = tokio::time::timeout(time, waiting.retry(attempt)).await;
    assert!(ended.is_err(), "it never ends");
}

/// Goal: the pauses between attempts double up to the longest, and vary; a refusal is repeated at
/// the longest pause from the start.
#[tokio::test(start_paused = true)]
async fn attempts_become_rarer() {
    for kind in [FailureKind::Unavailable, FailureKind::Failed] {
        let waiting = WaitingLuns::default();
        set(&waiting, &configuration(1), &[0]);
        let times = Arc::new(Mutex::new(vec![Instant::now()]));
        let failed = |_| {
            times.lock().unwrap().push(Instant::now());
            std::future::ready(Err(Failure { kind, ..Failure::new("not today") }))
        };
        retry(&waiting, Duration::from_secs(3600), failed).await;
        let times = times.lock().unwrap();
        let pauses: Vec<_> = times.windows(2).map(|pair| pair[1] - pair[0]).collect();
        let mut longest = PAUSE_MIN;
        for (index, pause) in pauses.iter().enumerate() {
            // The clock of the timer has a resolution of a millisecond.
            let range = longest / 2..=longest + Duration::from_millis(2);
            assert!(range.contains(pause), "{kind:?}: pause {index} is {pause:?}");
            longest = match kind {
                FailureKind::Unavailable => (longest * 2).min(PAUSE_MAX),
                _ => PAUSE_MAX,
            };
        }
        assert!((120..260).contains(&pauses.len()), "{} attempts in an hour", pauses.len());
        assert!(pauses[20] != pauses[21] || pauses[21] != pauses[22], "they vary");
        let [lun] = &waiting.all()[..] else { panic!("it still waits") };
        assert_eq!((lun.attempts as usize, lun.error.as_str()), (times.len(), "not today"));
    }
}

/// Goal: of two LUNs the one whose storage returns leaves the list, and the other waits on, with
/// its time and attempts.
#[tokio::test(start_paused = true)]
async fn one_of_two_arrives() {
    let waiting = Arc::<WaitingLuns>::default();
    let configuration = configuration(2);
    set(&waiting, &configuration, &[0, 1]);
    let since = waiting.all()[1].since;
    let shared = Arc::clone(&waiting);
    let served = move |lun: WaitingLun| {
        let arrives = lun.id == 0 && lun.attempts == 2;
        if arrives {
            set(&shared, &configuration, &[1]);
        }
        std::future::ready(if arrives { Ok(()) } else { Err(unavailable()) })
    };
    retry(&waiting, Duration::from_secs(60), served).await;
    let [other] = &waiting.all()[..] else { panic!("one waits: {:?}", ids(&waiting)) };
    assert_eq!((other.id, other.since), (1, since));
    assert!(other.attempts > 3, "{} attempts", other.attempts);
}

/// Goal: a LUN that is taken off the list is not tried again, and an attempt that has begun finds
/// its entry gone; one whose settings change is another entry.
#[tokio::test(start_paused = true)]
async fn removed_and_changed_luns() {
    let waiting = WaitingLuns::default();
    let mut configuration = configuration(2);
    set(&waiting, &configuration, &[0, 1]);
    let before = waiting.all();
    assert!(waiting.contains(TARGET, &configuration.targets[0].luns[0]));
    configuration.targets[0].luns[1].unit.options.read_only = true;
    set(&waiting, &configuration, &[1]);
    assert!(!waiting.contains(TARGET, &configuration.targets[0].luns[0]));
    assert!(!waiting.has(&before[0]) && !waiting.has(&before[1]));
    assert_eq!((ids(&waiting), waiting.all()[0].attempts), (vec![1], 1));
    let tried = Mutex::new(Vec::new());
    let failed = |lun: WaitingLun| {
        tried.lock().unwrap().push((lun.id, lun.unit.options.read_only));
        std::future::ready(Err(unavailable()))
    };
    retry(&waiting, Duration::from_secs(5), failed).await;
    let tried = tried.lock().unwrap();
    assert!(!tried.is_empty() && tried.iter().all(|tried| *tried == (1, true)), "{tried:?}");
}

/// Goal: a LUN that is put on the list while nothing is due is tried, and attempts that hang are
/// limited in number and do not hold up the change of the list.
#[tokio::test(start_paused = true)]
async fn attempts_at_the_same_time_are_limited() {
    let waiting = Arc::<WaitingLuns>::default();
    let begun = Arc::new(AtomicUsize::new(0));
    let (list, count) = (Arc::clone(&waiting), Arc::clone(&begun));
    let task = tokio::spawn(async move {
        list.retry(|_| {
            count.fetch_add(1, Ordering::Relaxed);
            std::future::pending()
        })
        .await;
    });
    tokio::time::sleep(Duration::from_secs(10)).await;
    let all: Vec<_> = (0..20).collect();
    set(&waiting, &configuration(20), &all);
    tokio::time::sleep(Duration::from_secs(3600)).await;
    assert_eq!(begun.load(Ordering::Relaxed), ATTEMPTS_MAX);
    set(&waiting, &configuration(20), &[]);
    assert_eq!(ids(&waiting), Vec::<u16>::new());
    task.abort();
    assert!(task.await.unwrap_err().is_cancelled());
}
