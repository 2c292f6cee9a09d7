use super::*;
use crate::Spread;
use std::time::Duration;

/// Goal: a table shows the same figures for people, aligned, and for programs, under their keys.
#[test]
fn text_and_json_show_the_same_figures() {
    let mut table = Table::new([
        Column::text("disk", "disk"),
        Column::number("iops", "IOPS"),
        Column::number("p99_us", "p99"),
    ]);
    let spread = Spread { median: 12.4, least: 9.0, most: 15.0 };
    let time = TableCell::time(Duration::from_nanos(1_234));
    table.row([TableCell::text("a"), TableCell::spread(spread, 1.0, 0), time]);
    table.row([TableCell::text("longer")]);
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

/// Goal: all series share the x values; a series without a point there has null.
#[test]
fn series_share_their_axis() {
    let axis = |label| Axis::new(label, AxisUnit::Count, AxisScale::Log2);
    let line = |label: &str, points: &[(f64, f64)]| Series {
        label: label.to_owned(),
        points: points.to_vec(),
        ..Series::default()
    };
    let series = vec![line("a", &[(4.0, 40.0), (1.0, 10.0)]), line("b", &[(2.0, 5.0)])];
    let plot = Plot { title: "t".into(), x: axis("x"), y: axis("y"), series };
    assert!(plot.has_line());
    assert_eq!(plot.json()["at"], json!([1.0, 2.0, 4.0]));
    assert_eq!(plot.json()["series"][0]["y"], json!([10.0, null, 40.0]));
    assert_eq!(plot.json()["series"][1]["y"], json!([null, 5.0, null]));
    let alone = Plot { series: vec![line("b", &[(2.0, 5.0)])], ..plot };
    assert!(!alone.has_line(), "one point is no line");
}

/// Goal: times have three digits, sizes their unit.
#[test]
fn times_and_sizes_have_units() {
    let times = [1_234, 98_700, 987_000, 12_345_000, 654_321_000, 12_000_000_000]
        .map(|nanos| table::time_text(Duration::from_nanos(nanos)));
    assert_eq!(times, ["1.23 us", "98.7 us", "987 us", "12.3 ms", "654 ms", "12.0 s"]);
    let sizes = [512, 4096, 1536, 1 << 20, 3 << 30].map(table::size_text);
    assert_eq!(sizes, ["512", "4Ki", "1.5Ki", "1Mi", "3Gi"]);
}

/// Goal: a URL or another text is shown on the page as text, whatever it contains: it creates no
/// element, no attribute and no script, in tables, plots, facts and prose.
#[test]
fn no_text_is_taken_for_html() {
    let evil = "</script><img src=x onerror=alert(1)>\"' onload='&amp;<!--";
    let axis = || Axis::new(evil, AxisUnit::Bytes, AxisScale::Log2);
    let series = vec![Series {
        label: evil.to_owned(),
        points: vec![(1.0, 2.0), (2.0, 3.0)],
        ..Series::default()
    }];
    let mut table = Table::new([Column::text("url", evil)]).named("more", evil);
    table.row([TableCell::text(evil)]);
    let section = Section {
        key: "k",
        title: evil.to_owned(),
        prose: vec![evil.to_owned()],
        warnings: vec![evil.to_owned()],
        tables: vec![table],
        plots: vec![Plot { title: evil.to_owned(), x: axis(), y: axis(), series }],
    };
    let report = Report {
        title: evil.to_owned(),
        prose: vec![evil.to_owned()],
        facts: vec![(evil.to_owned(), evil.to_owned())],
        sections: vec![section],
    };
    let html = page(&report);
    assert!(!html.contains("<img"), "taken for HTML");
    let plain = page(&Report { title: "t".into(), ..Report::default() });
    for part in ["</script", "<!--"] {
        assert_eq!(html.matches(part).count(), plain.matches(part).count(), "{part}");
    }
    assert!(html.matches("&lt;/script&gt;&lt;img src=x").count() >= 10, "shown as it is");
    let data = html.split("id=\"plots\">").nth(1).and_then(|rest| rest.split("</script").next());
    let data: Value = serde_json::from_str(data.unwrap_or_default()).unwrap_or_default();
    assert_eq!(data[0]["series"][0]["label"], evil, "and the plot has it as it was");
    for outside in ["src=\"", "href=", "@import", "url("] {
        assert!(!plain.contains(outside), "the page would load something: {outside}");
    }
}

/// Goal: a figure for people has no insignificant digits.
#[test]
fn figures_have_no_insignificant_digits() {
    let figures = [0.0, 4096.0, 12.5, 99.99, 1234.56, 0.1 + 0.2].map(plot::digits);
    assert_eq!(figures, ["0", "4096", "12.5", "99.99", "1235", "0.3"]);
}
