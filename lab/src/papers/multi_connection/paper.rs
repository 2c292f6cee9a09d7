//! The findings of the paper beside the new ones.

use lunar_load::report::{Column, Section, Table, TableCell};

/// Results of all parts.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Findings {
    /// Throughput of four connections relative to one, with delay.
    pub(super) far: Option<f64>,
    /// Throughput of four connections relative to one, without delay.
    pub(super) near: Option<f64>,
    /// Throughput of two connections relative to one, without delay.
    pub(super) near_two: Option<f64>,
    /// The maximum of small requests per second, and the knee of the queue.
    pub(super) small: Option<(f64, u16)>,
    /// Throughput in the metropolitan network relative to the laboratory.
    pub(super) metro: Option<f64>,
    /// Throughput of large frames relative to small ones.
    pub(super) frames: Option<f64>,
}

/// Goal for four connections relative to one, with delay.
const FAR_GOAL: f64 = 3.2;
/// Goal for two connections relative to one, without delay, if two cores are free.
const NEAR_GOAL: f64 = 1.2;
/// Goal for the metropolitan network relative to the laboratory.
const METRO_GOAL: f64 = 0.95;

impl Findings {
    /// The figures of the paper beside the new ones.
    pub(super) fn section(&self) -> Section {
        let mut section = Section::new("paper", "Comparison with the paper");
        section.prose.push(
            "Hui Xiong, \"An iSCSI Design and Implementation\", MSST 2004: different machine, \
             different disks, gigabit Ethernet. Compare the shape of its figures, not their \
             absolute values."
                .to_owned(),
        );
        let mut table = Table::new([
            Column::text("what", "what"),
            Column::text("paper", "paper"),
            Column::number("here", "here"),
            Column::text("goal", "goal"),
            Column::text("met", "met"),
        ]);
        let more = |ratio: Option<f64>| {
            ratio.map_or_else(TableCell::none, |ratio| {
                TableCell::new(format!("{:+.0} %", (ratio - 1.0) * 100.0), ratio)
            })
        };
        let times = |ratio: Option<f64>| {
            ratio.map_or_else(TableCell::none, |ratio| {
                TableCell::new(format!("{ratio:.2} times"), ratio)
            })
        };
        let met = |ratio: Option<f64>, goal: f64| {
            ratio.map_or_else(TableCell::none, |ratio| {
                TableCell::new(if ratio >= goal { "yes" } else { "no" }, ratio >= goal)
            })
        };
        let none = TableCell::none;
        let several = TableCell::text("+20 to 60 %");
        table.row([
            TableCell::text("four connections, 2 ms each way, window 256Ki"),
            several.clone(),
            times(self.far),
            TableCell::text(format!("{FAR_GOAL} times")),
            met(self.far, FAR_GOAL),
        ]);
        table.row([
            TableCell::text("two connections, no delay"),
            several.clone(),
            times(self.near_two),
            TableCell::text(format!("{NEAR_GOAL} times, two cores free")),
            met(self.near_two, NEAR_GOAL),
        ]);
        let near = TableCell::text("four connections, no delay");
        table.row([near, several, times(self.near), none(), none()]);
        let (peak, knee) = self.small.unzip();
        let peak = peak.map_or_else(TableCell::none, |peak| TableCell::number(peak, 0));
        let paper = TableCell::text("15000");
        table.row([TableCell::text("small requests per second"), paper, peak, none(), none()]);
        let knee = knee.map_or_else(TableCell::none, |knee| TableCell::count(knee.into()));
        let queue = TableCell::text("largest queue depth with a gain");
        table.row([queue, TableCell::text("8"), knee, none(), none()]);
        table.row([
            TableCell::text("metropolitan network relative to laboratory"),
            TableCell::text("-2 to -5 %"),
            more(self.metro),
            TableCell::text(format!("{METRO_GOAL} of lab")),
            met(self.metro, METRO_GOAL),
        ]);
        let frames = TableCell::text("frames of 9000 bytes relative to 1500, one connection");
        table.row([frames, TableCell::text("larger is faster"), more(self.frames), none(), none()]);
        section.tables.push(table);
        section
    }
}
