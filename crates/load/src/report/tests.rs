use super::*;
use crate::Spread;
use std::time::Duration;

/// Goal: one table is the same figures for people, aligned, and for programs, under their keys.
#[test]
fn figures_are_written_once() {
    let mut table = Table::new([
        Column::text("disk", "disk"),
        Column::number("iops", "IOPS"),
        Column::number("p99_us", "p99"),
    ]);
    let spread = Spread { median: 12.4, least: 9.0, most: 15.0 };
    let time = Cell::time(Duration::from_nanos(1_234));
    table.row([Cell::text("a"), Cell::spread(spread, 1.0, 0), time]);
    table.row([Cell::text("longer")]);
    let wanted = "disk            IOPS      p99\n\
                  a       12 (9 to 15)  1.23 us\n\
                  longer             -        -\n";
    assert_eq!(table.text(), wanted);
    let wanted = json!([
        { "disk": "a", "iops": { "median": 12.4, "least": 9.0, "most": 15.0 }, "p99_us": 1.234 },
        { "disk": "longer", "iops": null, "p99_us": null },
    ]);
    assert_eq!(table.json(), wanted);
    let mut section = Section::new("disks", "Disks");
    section.prose.push("word ".repeat(30));
    section.tables.extend([table.clone(), table.named("more", "Others")]);
    let text = section.text();
    assert!(text.lines().all(|line| line.chars().count() <= PROSE_COLUMNS), "{text}");
    assert!(section.json()["rows"] == wanted && section.json()["more"] == wanted);
}

/// Goal: series share the places at the axis; where one has no figure, it has none.
#[test]
fn series_share_their_axis() {
    let axis = |label| Axis::new(label, Unit::Count, Scale::Log2);
    let line = |label: &str, points: &[(f64, f64)]| Series {
        label: label.to_owned(),
        points: points.to_vec(),
    };
    let series = vec![line("a", &[(4.0, 40.0), (1.0, 10.0)]), line("b", &[(2.0, 5.0)])];
    let plot = Plot { title: "t".into(), x: axis("x"), y: axis("y"), series };
    assert!(plot.shows_something());
    assert_eq!(plot.json()["at"], json!([1.0, 2.0, 4.0]));
    assert_eq!(plot.json()["series"][0]["y"], json!([10.0, null, 40.0]));
    assert_eq!(plot.json()["series"][1]["y"], json!([null, 5.0, null]));
    let alone = Plot { series: vec![line("b", &[(2.0, 5.0)])], ..plot };
    assert!(!alone.shows_something(), "one point is no line");
}

/// Goal: times have three digits, sizes their unit.
#[test]
fn figures_for_people() {
    let told = [1_234, 98_700, 987_000, 12_345_000, 654_321_000, 12_000_000_000]
        .map(|nanos| table::time_text(Duration::from_nanos(nanos)));
    assert_eq!(told, ["1.23 us", "98.7 us", "987 us", "12.3 ms", "654 ms", "12.0 s"]);
    let told = [512, 4096, 1536, 1 << 20, 3 << 30].map(table::size_text);
    assert_eq!(told, ["512", "4Ki", "1.5Ki", "1Mi", "3Gi"]);
}
