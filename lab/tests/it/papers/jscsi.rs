//! `lab papers jscsi`.

use super::{report, section};
use anyhow::Result;
use lunar_lab::system::scratch::Scratch;

/// Goal: each row of the paper has a row of the pools, with the number of writes that was asked
/// for, and no file is left.
#[test]
fn writes_to_one_target_and_to_pools_are_reported() -> Result<()> {
    let scratch = Scratch::new("papers-jscsi")?;
    let short = ["jscsi", "--size", "32M", "--runs", "5", "--rounds", "2", "--warm-up", "0"];
    let (document, printed) = report(&scratch, &[], &short)?;
    let rows = section(&document, "writes")["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 6, "{printed}");
    for (at, row) in rows.iter().enumerate() {
        let is_ours = at % 2 == 1;
        assert_eq!(row["runs"], if is_ours { 5 } else { 1000 }, "{row}");
        let figure = |name: &str| row[name].as_f64().unwrap();
        assert!(figure("min_ms") > 0.0 && figure("min_ms") <= figure("max_ms"), "{row}");
    }
    for entry in std::fs::read_dir("/dev/shm")? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        assert!(!name.contains("first-0") && !name.contains("second-0"), "{name} is left");
    }
    Ok(())
}
