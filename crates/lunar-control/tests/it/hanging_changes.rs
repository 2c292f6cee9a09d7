//! A change that hangs on a disk leaves the API usable.

use crate::common::{Scratch, TARGET, ask, daemon_of, lun, serve_daemon};
use lunar_block::{BlockDevice, MemoryDevice};
use lunar_control::Failure;
use lunar_control::device_url::{DeviceOptions, DeviceUrl, Opener};
use lunar_control::http::HttpLimits;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};

/// Opens memory: the first device at once, further ones only when released.
#[derive(Debug, Default)]
struct SlowOpener {
    opened: AtomicUsize,
    is_released: Mutex<bool>,
    changed: Condvar,
}

impl Opener for SlowOpener {
    fn open(&self, _: &DeviceUrl, _: &DeviceOptions) -> Result<Arc<dyn BlockDevice>, Failure> {
        if self.opened.fetch_add(1, Ordering::AcqRel) > 0 {
            let is_released = self.is_released.lock().unwrap();
            drop(self.changed.wait_while(is_released, |is_released| !*is_released).unwrap());
        }
        Ok(Arc::new(MemoryDevice::new(1 << 20, 512, 4096)?))
    }
}

/// Goal: while one change hangs and many wait behind it, each waiting change gets an error after a
/// while, and reads are answered.
#[test]
fn a_change_that_hangs_leaves_the_api_to_others() {
    let scratch = Scratch::new("hanging-changes");
    let opener = Arc::new(SlowOpener::default());
    let daemon = daemon_of(&lun(0, "mem:1M"), Arc::<SlowOpener>::clone(&opener));
    let socket = format!("unix:{}", scratch.path("api.sock").display());
    let server = serve_daemon(daemon, &socket, None, None, HttpLimits::default());
    let add = || {
        let body = "Content-Type: application/json\r\n\r\n{\"device\": \"mem:1M\"}";
        ask(server.address(), "POST", &format!("/api/v1/targets/{TARGET}/luns"), body)
    };
    std::thread::scope(|scope| {
        let hangs = scope.spawn(add);
        while opener.opened.load(Ordering::Acquire) < 2 {
            std::thread::yield_now();
        }
        let waiting: Vec<_> = (0..12).map(|_| scope.spawn(add)).collect();
        for thread in waiting {
            let (status, body) = thread.join().unwrap();
            assert_eq!(status, 409, "{body}");
            let error = body["error"].as_str().unwrap();
            assert!(error.contains("another change"), "{body}");
            assert_eq!(ask(server.address(), "GET", "/api/v1/status", "").0, 200);
        }
        *opener.is_released.lock().unwrap() = true;
        opener.changed.notify_all();
        assert_eq!(hangs.join().unwrap().0, 200);
    });
    assert_eq!(add().0, 200, "the slot is free again");
}
