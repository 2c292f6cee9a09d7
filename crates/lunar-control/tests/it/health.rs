//! Faults of a unit are reported wherever it is shown, with a remedy.

use crate::common::{Scratch, TARGET, ask, daemon_of, lun, serve_daemon};
use lunar_block::{
    BlockDevice, Effect, ErrorKind, Fault, FaultDevice, FaultOperation, MemoryDevice,
};
use lunar_control::Failure;
use lunar_control::device_url::{DeviceOptions, DeviceUrl, Opener};
use lunar_control::http::HttpLimits;
use serde_json::{Value, json};
use std::sync::{Arc, Mutex};

/// Opens memory that fails on demand.
#[derive(Debug, Default)]
struct Faulty(Mutex<Vec<Arc<FaultDevice>>>);

impl Opener for Faulty {
    fn open(&self, _: &DeviceUrl, _: &DeviceOptions) -> Result<Arc<dyn BlockDevice>, Failure> {
        let memory = MemoryDevice::new(1 << 20, 512, 4096)?;
        let device = FaultDevice::new(Arc::new(memory), 1);
        self.0.lock().unwrap().push(Arc::clone(&device));
        Ok(device)
    }
}

/// Goal: a unit that takes no writes after a failed sync is reported in the status, the targets and
/// the LUNs; the status names the command that recovers it, and is good again afterwards.
#[test]
fn a_failed_sync_is_reported_until_it_is_recovered() {
    let scratch = Scratch::new("health");
    let opener = Arc::new(Faulty::default());
    let luns = lun(0, "mem:1M") + &lun(7, "mem:2M");
    let daemon = daemon_of(&luns, Arc::<Faulty>::clone(&opener));
    let socket = format!("unix:{}", scratch.path("api.sock").display());
    let server = serve_daemon(daemon, &socket, None, None, HttpLimits::default());
    let get = |path: &str| -> Value {
        let (status, body) = ask(server.address(), "GET", &format!("/api/v1{path}"), "");
        assert_eq!(status, 200, "{body}");
        body
    };
    let poisoned = || {
        let poisoned_luns = |list: &Value| -> Vec<bool> {
            list.as_array().unwrap().iter().map(|one| one["poisoned"] == true).collect()
        };
        let (status, targets, luns) = (get("/status"), get("/targets"), get("/luns"));
        [
            poisoned_luns(&status["units"]),
            poisoned_luns(&targets["targets"][0]["luns"]),
            poisoned_luns(&luns["luns"]),
        ]
    };
    let status = get("/status");
    assert_eq!((&status["health"], &status["troubles"]), (&json!("good"), &json!([])));
    assert_eq!(poisoned(), [[false, false], [false, false], [false, false]]);

    let device = Arc::clone(&opener.0.lock().unwrap()[1]);
    device.inject(Fault::new(Effect::Fail(ErrorKind::Medium)).on(FaultOperation::Flush).times(1));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(device.flush()).unwrap_err();
    assert_eq!(poisoned(), [[false, true], [false, true], [false, true]]);
    let status = get("/status");
    assert_eq!(status["health"], "degraded");
    let [trouble] = &status["troubles"].as_array().unwrap()[..] else { panic!("{status}") };
    assert_eq!((&trouble["target"], &trouble["lun"]), (&TARGET.into(), &7.into()));
    assert!(trouble["error"].as_str().unwrap().contains("refuses writes"), "{trouble}");
    let hint = trouble["hint"].as_str().unwrap();
    assert!(hint.ends_with("lunar ctl recover 7 --accept-loss"), "{hint}");

    let recover = format!("/api/v1/targets/{TARGET}/luns/7/recover");
    let body = "Content-Type: application/json\r\n\r\n{\"accept_loss\": true}";
    let (done, answer) = ask(server.address(), "POST", &recover, body);
    assert_eq!(done, 200, "{answer}");
    assert_eq!(get("/status")["health"], "good");
    assert_eq!(poisoned(), [[false, false], [false, false], [false, false]]);
}
