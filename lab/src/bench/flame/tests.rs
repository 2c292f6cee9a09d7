//! Tests of trees, boxes and pictures.

use super::stacks::tests::SCRIPT;
use super::stacks::{CodeLocation, Frame};
use super::*;

fn stack(thread: &str, names: &[&str]) -> Stack {
    let location = CodeLocation::Program("lunar".to_owned());
    let frame = |name: &&str| Frame { name: (*name).to_owned(), location: location.clone() };
    Stack { thread: thread.to_owned(), frames: names.iter().map(frame).collect() }
}

/// Describes the first element that is not closed or would make an XML reader fail.
fn fault(svg: &str) -> Option<String> {
    let mut open: Vec<&str> = Vec::new();
    let mut rest = svg;
    while let Some((text, tail)) = rest.split_once('<') {
        let after = |at: usize| &text[at..];
        let is_entity = |at: usize| {
            ["&amp;", "&lt;", "&gt;", "&quot;"].iter().any(|one| after(at).starts_with(one))
        };
        if let Some((at, _)) = text.match_indices('&').find(|(at, _)| !is_entity(*at)) {
            return Some(format!("no entity: {}", after(at)));
        }
        let Some((tag, tail)) = tail.split_once('>') else { return Some(format!("<{tail}")) };
        if tag.matches('"').count() % 2 == 1 {
            return Some(format!("quotes: {tag}"));
        }
        if let Some(name) = tag.strip_prefix('/') {
            if open.pop() != Some(name) {
                return Some(format!("{name} is closed, and was not open"));
            }
        } else if !tag.ends_with('/') {
            open.push(tag.split(' ').next().unwrap_or_default());
        }
        rest = tail;
    }
    (!open.is_empty() || !rest.trim().is_empty()).then(|| format!("open: {open:?}, then {rest}"))
}

/// Goal: samples with the same stack form one box, callees lie within their caller, threads are
/// separate, and each box has the samples of itself and all its callees.
#[test]
fn stacks_fold_to_boxes() {
    let stacks = [
        stack("b", &["net::run", "lunar_iscsi::parse"]),
        stack("a", &["net::run", "lunar_iscsi::parse", "lunar_wire::be"]),
        stack("a", &["net::run", "scsi::plan"]),
        stack("a", &["net::run"]),
    ];
    let tree = fold(&stacks);
    let mut drawn: Vec<(usize, u64, &str, u64)> =
        layout(&tree).iter().map(|one| (one.depth, one.at, one.name, one.samples)).collect();
    drawn.sort_unstable();
    assert_eq!(
        drawn,
        [
            (0, 0, "all samples", 4),
            (1, 0, "a", 3),
            (1, 3, "b", 1),
            (2, 0, "net::run", 3),
            (2, 3, "net::run", 1),
            (3, 0, "lunar_iscsi::parse", 1),
            (3, 1, "scsi::plan", 1),
            (3, 3, "lunar_iscsi::parse", 1),
            (4, 0, "lunar_wire::be", 1),
        ]
    );
}

/// Goal: perf's output becomes a well-formed picture, with tooltips that show samples and percent,
/// in the colours of the legend.
#[test]
fn a_picture_of_real_samples() {
    let svg = svg("a cell & its <setup>", &parse(SCRIPT));
    assert_eq!(fault(&svg), None, "{svg}");
    assert!(svg.contains(">a cell &amp; its &lt;setup&gt;</text>"), "{svg}");
    assert!(svg.contains("<title>all samples: 12 samples, 100.0 %</title>"), "{svg}");
    let shmem = "<title>shmem_file_read_iter: 1 sample, 8.3 %</title>";
    let after = &svg[svg.find(shmem).expect("a box for it")..];
    assert!(after[..after.find("</g>").unwrap()].contains(colour(CodeKind::Files)), "{after}");
    let lunar = "&lt;lunar_block::file::FileDevice as \
                 lunar_block::device::BlockDevice&gt;::read_at_hand: 1 ";
    assert!(svg.contains(lunar), "{svg}");
    for (kind, colour, name) in LEGEND {
        assert!(svg.contains(colour) && svg.contains(&escaped(name)), "{kind:?}");
    }
}

/// Goal: any name is shown as text; no name becomes markup or breaks the file.
#[test]
fn names_are_escaped() {
    let hostile = "</title><script>alert(\"&\")</script>\u{1}\u{ffff}";
    let svg = svg(hostile, &[stack(hostile, &[hostile])]);
    assert_eq!(fault(&svg), None, "{svg}");
    assert!(!svg.contains("<script") && !svg.contains('\u{1}') && !svg.contains('\u{ffff}'));
    assert!(
        fault("<a><b></a>").is_some() && fault("<a>&x</a>").is_some() && fault("<a>").is_some()
    );
}

/// Goal: a picture without samples is valid; thousands of calls, names of any length and stacks of
/// any depth stay within the file's bound; boxes below a thousandth are not drawn, and no box is
/// drawn without its caller.
#[test]
fn pictures_are_bounded() {
    assert_eq!(fault(&svg("nothing", &[])), None);
    let deep: Vec<String> = (0..5000).map(|at| format!("net::deep{at}")).collect();
    let deep: Vec<&str> = deep.iter().map(String::as_str).collect();
    let many = (0..900).map(|at| stack("many", &["a", &format!("net::{at:<<110}"), "b", "c"]));
    let stacks: Vec<Stack> = many.chain([stack("deep", &deep)]).collect();
    let tree = fold(&stacks);
    let drawn = layout(&tree);
    assert_eq!(drawn.len(), BOXES_MAX);
    for one in drawn.iter().filter(|one| one.depth > 0) {
        let holds = |caller: &&Drawn<'_>| {
            caller.depth + 1 == one.depth
                && caller.at <= one.at
                && one.at + one.samples <= caller.at + caller.samples
        };
        assert!(drawn.iter().any(|caller| holds(&caller)), "{one:?} stands alone");
    }
    let svg = svg("many", &stacks);
    assert!(svg.len() < 150_000, "{} bytes", svg.len());
    assert_eq!(fault(&svg), None);
    let rare = (0..1500).map(|_| stack("t", &["net::often"])).chain([stack("t", &["net::rare"])]);
    let rare: Vec<Stack> = rare.collect();
    let tree = fold(&rare);
    let names: Vec<&str> = layout(&tree).iter().map(|one| one.name).collect();
    assert!(names.contains(&"net::often") && !names.contains(&"net::rare"), "{names:?}");
}

/// Goal: a name is cut to the width of its box.
#[test]
fn names_are_clipped() {
    assert_eq!(clipped("target::run", 11), "target::run");
    assert_eq!(clipped("target::run", 5), "targ…");
    assert_eq!(clipped("target::run", 2), "");
    assert_eq!(clipped("ab", 2), "ab");
}
