//! Remote LUNs whose storages are unreachable.

use crate::common::{Scratch, ask, lun, serve_daemon};
use lunar_block::{BlockDevice, MemoryDevice};
use lunar_control::config::lun::LunSettings;
use lunar_control::config::parse;
use lunar_control::daemon::{
    Applied, ApplyOptions, ConfigOrigin, ConfigSource, Daemon, LimitSettings, LunSelector,
    OpenedConfig, StartOptions, UnavailableStorage,
};
use lunar_control::device_url::{DeviceOptions, DeviceUrl, Opener, RemoteDevice, RemoteOpening};
use lunar_control::http::HttpLimits;
use lunar_control::{Failure, FailureKind};
use lunar_initiator::{Error, ErrorKind, Url};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

const TARGET: &str = "iqn.2026-11.org.example:front";

/// Size of a memory that cannot be opened.
const BROKEN_BYTES: u64 = 13 << 20;

/// Opens memory for each remote LUN: as many MiB as the number of the LUN. Storages are unreachable
/// until they have an answer.
#[derive(Debug, Default)]
struct Storages(Mutex<BTreeMap<u16, Result<(), ErrorKind>>>);

impl Storages {
    fn answer(&self, lun: u16, answer: Result<(), ErrorKind>) {
        self.0.lock().unwrap().insert(lun, answer);
    }
}

impl Opener for Storages {
    fn open(&self, url: &DeviceUrl, _: &DeviceOptions) -> Result<Arc<dyn BlockDevice>, Failure> {
        match url {
            DeviceUrl::Memory { size_bytes } if *size_bytes != BROKEN_BYTES => {
                Ok(Arc::new(MemoryDevice::new(*size_bytes, 512, 4096)?))
            }
            other => Err(Failure::new(format!("{other} cannot be opened"))),
        }
    }

    fn open_remote(
        &self,
        url: &Url,
        _: &DeviceOptions,
        _: RemoteOpening,
    ) -> Result<RemoteDevice, Failure> {
        let lun = url.unit.as_ref().unwrap().lun;
        let answer = self.0.lock().unwrap().get(&lun).cloned();
        answer
            .unwrap_or(Err(ErrorKind::Connect))
            .map_err(|kind| Error::new(kind, format!("no disk behind LUN {lun}")))?;
        let device = Arc::new(MemoryDevice::new(u64::from(lun) << 20, 512, 4096)?);
        Ok(RemoteDevice { device, identity: None })
    }
}

/// A LUN `id` over the remote LUN `remote`.
fn remote(id: u16, remote: u16) -> String {
    lun(id, &format!("iscsi://192.0.2.1/iqn.2026-11.org.example:storage/{remote}"))
}

fn text(luns: &str) -> String {
    format!("[listen]\nportals = [\"127.0.0.1:0\"]\n[[target]]\nname = \"{TARGET}\"\n{luns}")
}

fn start(
    luns: &str,
    storages: &Arc<Storages>,
    storage: UnavailableStorage,
) -> Result<Arc<Daemon>, Failure> {
    let path = "/lunar.toml";
    let read = parse(&text(luns), path.as_ref()).unwrap();
    let origin = ConfigOrigin::File { path: path.into(), api: None };
    let opener = Arc::<Storages>::clone(storages);
    let daemon =
        OpenedConfig::open(read, origin, opener, StartOptions { storage, ..Default::default() })?
            .serve()?;
    Ok(Arc::new(daemon))
}

fn apply(daemon: &Daemon, luns: &str) -> Result<Applied, Failure> {
    let source = ConfigSource::Text { text: text(luns), path: "/other.toml".into() };
    daemon.apply(&source, ApplyOptions::default(), &"a test")
}

/// Numbers and sizes in MiB of the served LUNs.
fn served(daemon: &Daemon) -> Vec<(u16, u64)> {
    let catalogue = daemon.server().catalogue();
    let luns = catalogue.targets[0].luns.iter();
    luns.map(|lun| (lun.id, lun.unit.statistics().size_bytes >> 20)).collect()
}

fn waiting(daemon: &Daemon) -> Vec<u16> {
    daemon.waiting().all().iter().map(|lun| lun.id).collect()
}

/// Numbers of the LUNs of the running configuration.
fn running(daemon: &Daemon) -> Vec<u16> {
    daemon.running().targets[0].luns.iter().map(|lun| lun.id).collect()
}

fn at(id: u16) -> LunSelector<'static> {
    LunSelector { target: TARGET, id, device: None }
}

fn end(daemon: &Daemon) {
    daemon.shutdown(Duration::from_secs(1), &mut |_| {});
}

/// Recovers LUN 1, the first one that is served.
fn recover_second(daemon: &Daemon) {
    let catalogue = daemon.server().catalogue();
    let disk = catalogue.targets[0].luns[0].disk().unwrap();
    disk.poison();
    daemon.recover(&at(1), &"a test").unwrap();
    assert!(!disk.is_poisoned(), "the disk of that LUN was recovered");
}

/// Goal: LUNs whose storages are unreachable do not keep others from being served, and are part of
/// the running configuration; changes of other LUNs find the right ones. A LUN is served when its
/// storage returns, while another one waits on, until a configuration without it is applied.
#[test]
fn luns_wait_for_their_storages() {
    let storages = Arc::<Storages>::default();
    let luns = remote(0, 7) + &lun(1, "mem:2M") + &remote(2, 9);
    let daemon = start(&luns, &storages, UnavailableStorage::Waits).unwrap();
    assert_eq!((served(&daemon), waiting(&daemon)), (vec![(1, 2)], vec![0, 2]));
    assert_eq!(running(&daemon), [0, 1, 2]);
    assert!(daemon.toml().contains("storage/9") && daemon.drift().is_empty());

    let settings = |id| LunSettings { id, device: "mem:4M".to_owned(), ..LunSettings::default() };
    let taken = daemon.add_lun(TARGET, &settings(Some(2)), &"a test").unwrap_err();
    assert_eq!(taken.kind, FailureKind::Usage, "{taken}");
    daemon.add_lun(TARGET, &settings(None), &"a test").unwrap();
    assert_eq!((served(&daemon), waiting(&daemon)), (vec![(1, 2), (3, 4)], vec![0, 2]));
    daemon.resize(&at(1), 3 << 20, false, &"a test").unwrap();
    assert_eq!(served(&daemon), [(1, 3), (3, 4)]);
    for refused in [
        daemon.resize(&at(2), 3 << 20, false, &"a test").map(drop),
        daemon.recover(&at(0), &"a test"),
    ] {
        let refused = refused.unwrap_err();
        assert_eq!(refused.kind, FailureKind::Conflict, "{refused}");
        assert!(refused.what.contains("waits for its storage"), "{refused}");
    }
    recover_second(&daemon);
    let limit = LimitSettings { iops: Some(1000), ..LimitSettings::default() };
    daemon.limit(&at(0), &limit, &"a test").unwrap();
    let limited: Vec<_> =
        daemon.running().targets[0].luns.iter().map(|lun| !lun.limit.is_none()).collect();
    assert_eq!(limited, [true, false, false, false], "the waiting LUN");

    let scratch = Scratch::new("waiting");
    let socket = format!("unix:{}", scratch.path("api.sock").display());
    let api = serve_daemon(Arc::clone(&daemon), &socket, None, None, HttpLimits::default());
    let status = || ask(api.address(), "GET", "/api/v1/status", "").1;
    let shown = status();
    assert_eq!(shown["health"], "degraded");
    assert_eq!(shown["waiting"][1]["lun"], 2);
    assert_eq!(shown["waiting"][1]["error"], "no disk behind LUN 9");
    assert!(shown["troubles"][1]["error"].as_str().unwrap().contains("waits for its storage"));

    storages.answer(7, Ok(()));
    std::thread::scope(|scope| {
        let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
        let weak = Arc::downgrade(&daemon);
        scope.spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
            runtime.unwrap().block_on(async {
                tokio::select! {
                    () = Daemon::serve_waiting(weak) => {}
                    _ = stopped => {}
                }
            });
        });
        while served(&daemon).len() < 3 || waiting(&daemon) != [2] {
            std::thread::sleep(Duration::from_millis(10));
        }
        assert_eq!(served(&daemon), [(0, 7), (1, 3), (3, 4)]);
        let unit = Arc::clone(&daemon.server().catalogue().targets[0].luns[0].unit);
        assert!(!unit.common().limit().is_none(), "it has the limit that was set meanwhile");

        apply(&daemon, &(remote(0, 7) + &lun(1, "mem:3M"))).unwrap();
        assert_eq!((served(&daemon), waiting(&daemon)), (vec![(0, 7), (1, 3)], vec![]));
        assert_eq!(status()["health"], "good");
        drop(stop);
    });
    drop(api);
    end(&daemon);
}

/// Goal: only a storage that is unreachable lets its LUN wait, and only if that is wanted: a
/// refusal, and a local device that cannot be opened, stop the start.
#[test]
fn other_failures_stop_the_start() {
    let storages = Arc::<Storages>::default();
    let luns = remote(0, 7) + &lun(1, "mem:1M");
    let fails = start(&luns, &storages, UnavailableStorage::Fails).unwrap_err();
    assert_eq!(fails.kind, FailureKind::Unavailable);
    let local = remote(0, 7) + &lun(1, "mem:13M");
    let failure = start(&local, &storages, UnavailableStorage::Waits).unwrap_err();
    assert_eq!(failure.what, "mem:13MiB cannot be opened");
    for kind in [ErrorKind::Authentication, ErrorKind::Login, ErrorKind::Refused] {
        storages.answer(7, Err(kind));
        let refused = start(&luns, &storages, UnavailableStorage::Waits).unwrap_err();
        assert_eq!(refused.what, "no disk behind LUN 7");
    }
    for kind in [ErrorKind::Unavailable, ErrorKind::SessionLost, ErrorKind::TimedOut] {
        storages.answer(7, Err(kind));
        end(&start(&luns, &storages, UnavailableStorage::Waits).unwrap());
    }
}

/// Goal: a configuration is applied although a new LUN has to wait, as it would be at a start; a
/// LUN that is added by itself is refused. A change that fails leaves the waiting LUNs as they are.
#[test]
fn changes_with_unreachable_storages() {
    let storages = Arc::<Storages>::default();
    let local = lun(1, "mem:2M");
    let daemon = start(&local, &storages, UnavailableStorage::Waits).unwrap();
    let device = "iscsi://192.0.2.1/iqn.2026-11.org.example:storage/9".to_owned();
    let settings = LunSettings { device, ..LunSettings::default() };
    let refused = daemon.add_lun(TARGET, &settings, &"a test").unwrap_err();
    assert_eq!((refused.kind, running(&daemon)), (FailureKind::Unavailable, vec![1]));

    let luns = local.clone() + &remote(2, 9);
    let applied = apply(&daemon, &luns).unwrap();
    assert!(applied.warnings[0].contains("waits for its storage"), "{:?}", applied.warnings);
    assert_eq!((served(&daemon), waiting(&daemon)), (vec![(1, 2)], vec![2]));
    assert!(apply(&daemon, &luns).unwrap().difference.is_empty());

    storages.answer(5, Err(ErrorKind::Refused));
    apply(&daemon, &(luns.clone() + &remote(3, 5))).unwrap_err();
    assert_eq!((running(&daemon), waiting(&daemon)), (vec![1, 2], vec![2]));
    assert_eq!(served(&daemon), [(1, 2)]);
    let changed = local + &remote(2, 8);
    apply(&daemon, &changed).unwrap();
    let device = daemon.waiting().all()[0].device().to_string();
    assert!(device.ends_with("storage/8"), "{device}");
    end(&daemon);
}

/// Fault: a LUN whose configuration named another storage kept the old one, although the change was
/// reported as made.
///
/// Goal: it shows the other storage; if that one is unreachable, the change is refused and the old
/// storage is still served; if the old one is unreachable by then, it is waited for.
#[test]
fn a_lun_moves_to_another_storage() {
    let storages = Arc::<Storages>::default();
    for lun in [7, 8] {
        storages.answer(lun, Ok(()));
    }
    let daemon = start(&remote(0, 7), &storages, UnavailableStorage::Waits).unwrap();
    apply(&daemon, &remote(0, 8)).unwrap();
    assert_eq!(served(&daemon), [(0, 8)]);

    let refused = apply(&daemon, &remote(0, 9)).unwrap_err();
    assert_eq!(refused.kind, FailureKind::Unavailable, "{refused}");
    assert_eq!((served(&daemon), waiting(&daemon)), (vec![(0, 8)], vec![]));

    storages.answer(8, Err(ErrorKind::Connect));
    let refused = apply(&daemon, &remote(0, 9)).unwrap_err();
    assert!(refused.what.contains("could not be restored"), "{refused}");
    assert_eq!((running(&daemon), waiting(&daemon)), (vec![0], vec![0]));
    assert!(daemon.waiting().all()[0].device().to_string().ends_with("storage/8"));
    end(&daemon);
}
