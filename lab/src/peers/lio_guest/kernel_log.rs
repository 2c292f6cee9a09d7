//! Reports of faults in the log of the guest's kernel.

/// Lines that begin and end a warning of the kernel, with its call trace between them.
const WARNING_BEGIN: &str = "------------[ cut here ]------------";
const WARNING_END: &str = "---[ end trace";
/// Texts that mark a line outside of a warning as the report of a fault.
const MARKS: &[&str] = &[
    "BUG:",
    "kernel BUG at",
    "WARNING:",
    "INFO: task",
    "Oops",
    "general protection fault",
    "Kernel panic",
    "Unable to handle",
    "refcount_t:",
    "list_add corruption",
    "list_del corruption",
    "blocked for more than",
    "detected stall",
    "Out of memory",
    "page allocation failure",
    "Call Trace:",
    // Reports may be among the dropped messages.
    "printk messages dropped",
];

/// A known fault of LIO that does not harm its initiators: a warning that consists of these parts.
struct KnownFault {
    name: &'static str,
    /// First line after the beginning, if it is not the line with the location.
    message: Option<&'static str>,
    /// Source file, and the function that warns.
    file: &'static str,
    function: &'static str,
    /// Functions that must be in the call trace, innermost first.
    callers: &'static [&'static str],
}

/// Known faults: a command is released while its connection still lists it, by the completion of
/// the command, then again by the end of the connection. Each of the two warns.
const KNOWN_FAULTS: &[KnownFault] = &[
    KnownFault {
        name: "release of a listed command",
        message: None,
        file: "drivers/target/iscsi/iscsi_target_util.c",
        function: "iscsit_release_cmd",
        callers: &["target_release_cmd_kref"],
    },
    KnownFault {
        name: "underflow of a released command's refcount",
        message: Some("refcount_t: underflow; use-after-free."),
        file: "lib/refcount.c",
        function: "refcount_warn_saturate",
        callers: &["transport_generic_free_cmd", "iscsit_free_cmd", "iscsit_close_connection"],
    },
];

/// A report of the kernel.
#[derive(Debug, Eq, PartialEq)]
pub struct KernelReport {
    /// Its lines, without times.
    pub lines: Vec<String>,
    /// The name of the known fault that it reports.
    pub known: Option<&'static str>,
    /// True if the end of this warning is missing, or not printed yet.
    pub is_cut_short: bool,
}

/// Returns the names of the known faults.
pub fn known_faults() -> impl Iterator<Item = &'static str> {
    KNOWN_FAULTS.iter().map(|fault| fault.name)
}

/// Returns the reports in `console`, in their order. Only the last one may be incomplete.
pub fn reports(console: &str) -> Vec<KernelReport> {
    let mut reports = Vec::new();
    let mut warning: Option<Vec<String>> = None;
    for line in console.lines().filter_map(message) {
        if line == WARNING_BEGIN {
            // A warning within a warning is not a known fault.
            reports.extend(warning.replace(Vec::new()).map(unknown));
        } else if let Some(lines) = &mut warning {
            lines.push(line.to_owned());
            if line.starts_with(WARNING_END) {
                reports.extend(warning.take().map(check));
            }
        } else if MARKS.iter().any(|mark| line.contains(mark)) {
            reports.push(unknown(vec![line.to_owned()]));
        }
    }
    reports.extend(warning.map(|lines| KernelReport { lines, known: None, is_cut_short: true }));
    reports
}

/// Returns the message of a line of the kernel. The line begins with a time in brackets, unless it
/// reports missing lines.
fn message(line: &str) -> Option<&str> {
    if line.starts_with("** ") {
        return Some(line);
    }
    let (time, message) = line.trim_end().strip_prefix('[')?.split_once("] ")?;
    time.trim_start().parse::<f64>().ok()?;
    Some(message)
}

fn unknown(lines: Vec<String>) -> KernelReport {
    KernelReport { lines, known: None, is_cut_short: false }
}

fn check(lines: Vec<String>) -> KernelReport {
    let known = KNOWN_FAULTS.iter().find(|fault| fault.is_reported_by(&lines));
    KernelReport { known: known.map(|fault| fault.name), lines, is_cut_short: false }
}

impl KnownFault {
    fn is_reported_by(&self, lines: &[String]) -> bool {
        let mut lines = lines.iter().map(String::as_str);
        let mut location = lines.next();
        if let Some(message) = self.message {
            if location != Some(message) {
                return false;
            }
            location = lines.next();
        }
        // WARNING: CPU: 0 PID: 219 at lib/refcount.c:28 refcount_warn_saturate+0xba/0x110
        let warned = location.and_then(|line| line.strip_prefix("WARNING: ")?.split_once(" at "));
        let Some((file, function)) = warned.and_then(|(_, location)| location.split_once(' '))
        else {
            return false;
        };
        if file.rsplit_once(':').is_none_or(|(file, _)| file != self.file)
            || !is_function(function, self.function)
        {
            return false;
        }
        let rest: Vec<_> = lines.collect();
        let mut callers = self.callers.iter().peekable();
        let mut marks = 0;
        for line in &rest {
            callers.next_if(|caller| is_function(line.trim_start(), caller));
            marks += usize::from(MARKS.iter().any(|mark| line.contains(mark)));
        }
        // The only mark is that of the call trace.
        callers.peek().is_none() && marks == 1
    }
}

/// Returns whether `location`, such as `iscsit_free_cmd+0x53/0xc0 [iscsi_target_mod]`, is in this
/// function.
fn is_function(location: &str, function: &str) -> bool {
    location.strip_prefix(function).is_some_and(|rest| rest.starts_with('+'))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Console of a guest whose LIO closed a session on a wrong data digest: both known warnings.
    const KNOWN: &str = include_str!("../../../../testdata/lio-known-faults.log");

    fn names(console: &str) -> Vec<Option<&'static str>> {
        reports(console).iter().map(|report| report.known).collect()
    }

    /// Replaces a text that must exist.
    fn with(from: &str, to: &str) -> String {
        assert!(KNOWN.contains(from), "{from}");
        KNOWN.replace(from, to)
    }

    #[test]
    fn known_faults_are_reported_by_name() {
        let known: Vec<_> = known_faults().map(Some).collect();
        assert_eq!(names(KNOWN), known);
        // The log twice, with the line ends of the serial line.
        let twice = format!("{KNOWN}{KNOWN}").replace('\n', "\r\n");
        assert_eq!(names(&twice), [known.clone(), known].concat());
        assert_eq!(names("[    9.584368] Unable to load target_core_iblock\nGUEST: ready\n"), []);
    }

    #[test]
    fn any_other_fault_is_not_known() {
        let first = Some(KNOWN_FAULTS[0].name);
        // Another refcount, another location, another caller, another end of the second warning.
        for (from, to) in [
            ("refcount_t: underflow; use-after-free.", "refcount_t: saturated; leaking memory."),
            ("refcount_t: underflow; use-after-free.", "list_del corruption."),
            ("at lib/refcount.c:28", "at lib/list_debug.c:28"),
            ("refcount_warn_saturate+0xba/0x110\n", "refcount_dec+0xba/0x110\n"),
            (" iscsit_close_connection+", " iscsit_release_sessions+"),
            (" iscsit_close_connection+", " ? iscsit_close_connection+"),
            (" iscsit_free_cmd+", " iscsit_free_cmd_of_another+"),
        ] {
            assert_eq!(names(&with(from, to)), [first, None], "{to}");
        }
        for (from, to) in [
            ("iscsi_target_util.c:702", "iscsi_target.c:702"),
            (":702 iscsit_release_cmd+", ":702 iscsit_add_reject+"),
            (" target_release_cmd_kref+", " target_submit_cmd+"),
        ] {
            let names = names(&with(from, to));
            assert_eq!(names, [None, Some(KNOWN_FAULTS[1].name)], "{to}");
        }
    }

    #[test]
    fn a_fault_next_to_or_within_a_known_one_is_seen() {
        for fault in [
            "BUG: kernel NULL pointer dereference, address: 0000000000000008",
            "general protection fault, probably for non-canonical address 0xdead000000000100",
            "Oops: 0000 [#1] PREEMPT SMP PTI",
            "INFO: task iscsi_np:123 blocked for more than 120 seconds.",
            "list_del corruption. next->prev should be ff11000009054a70",
            "refcount_t: addition on 0; use-after-free.",
        ] {
            let line = format!("[   50.000001] {fault}\n");
            assert_eq!(names(&line), [None], "{fault}");
            assert_eq!(names(&format!("{KNOWN}{line}")).last(), Some(&None), "{fault}");
            let trace = "[   13.567858] Call Trace:\n";
            let within = with(trace, &format!("{line}{trace}"));
            assert_eq!(names(&within).last(), Some(&None), "{fault}");
        }
    }

    #[test]
    fn lost_lines_are_a_report() {
        assert_eq!(names("** 12 printk messages dropped **\n"), [None]);
    }

    #[test]
    fn a_warning_without_its_end_is_not_known() {
        let end = KNOWN.rfind(WARNING_END).unwrap();
        let cut = &KNOWN[..KNOWN[..end].rfind('\n').unwrap()];
        assert_eq!(names(cut), [Some(KNOWN_FAULTS[0].name), None]);
        assert!(reports(cut)[1].is_cut_short);
        // The next one begins before this one has ended.
        let first_end = KNOWN.find(WARNING_END).unwrap();
        let line = KNOWN[..first_end].rfind('\n').unwrap() + 1;
        let after = KNOWN[first_end..].find('\n').unwrap() + first_end + 1;
        let joined = format!("{}{}", &KNOWN[..line], &KNOWN[after..]);
        assert_eq!(names(&joined), [None, Some(KNOWN_FAULTS[1].name)]);
    }
}
