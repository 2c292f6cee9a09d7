//! Parser of the output of `perf script`.

/// Fields that `perf script -F` prints.
pub const FIELDS: &str = "comm,tid,ip,sym,dso";

/// Maximum length of a name: instances of generic functions may have names of kilobytes.
const NAME_MAX: usize = 120;
/// Call in which a Rust thread begins; the calls outside of it are dropped.
const THREAD_BEGINS: &str = "std::sys::backtrace::__rust_begin_short_backtrace";

/// Beginnings of the names of the C library's files.
const LIBRARIES: &[&str] = &["libc.so", "libm.so", "libgcc_s.so", "ld-linux"];

/// Stack of one sample of a thread.
#[derive(Clone, Debug, PartialEq)]
pub struct Stack {
    /// The thread's name.
    pub thread: String,
    /// Calls from the outermost to the code that ran.
    pub frames: Vec<Frame>,
}

/// One call.
#[derive(Clone, Debug, PartialEq)]
pub struct Frame {
    pub name: String,
    pub location: CodeLocation,
}

/// Origin of a call's code.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum CodeLocation {
    Kernel,
    /// The C library, and the code that the kernel provides for it (vDSO).
    Library,
    /// A program or another library, by the name of its file.
    Program(String),
    Unknown,
}

/// Parses all samples that have frames.
pub fn parse(script: &str) -> Vec<Stack> {
    let mut stacks = Vec::new();
    let mut open: Option<Stack> = None;
    for line in script.lines() {
        if line.trim().is_empty() {
            close(open.take(), &mut stacks);
        } else if !line.starts_with(char::is_whitespace) {
            close(open.take(), &mut stacks);
            let thread = line.trim_end().rsplit_once(char::is_whitespace);
            let thread = thread.map_or("?", |(name, _)| name.trim_end()).to_owned();
            open = Some(Stack { thread, frames: Vec::new() });
        } else if let (Some(stack), Some(frame)) = (&mut open, frame(line)) {
            stack.frames.push(frame);
        }
    }
    close(open, &mut stacks);
    stacks
}

/// Finishes a stack, which perf prints from the innermost call on; drops unknown calls at the
/// beginning of the thread.
fn close(stack: Option<Stack>, into: &mut Vec<Stack>) {
    let Some(Stack { thread, mut frames }) = stack.filter(|stack| !stack.frames.is_empty()) else {
        return;
    };
    let known = frames.iter().rposition(|frame| frame.location != CodeLocation::Unknown);
    frames.truncate(known.map_or(1, |at| at + 1));
    let begun = frames.iter().position(|frame| frame.name == THREAD_BEGINS);
    frames.truncate(begun.unwrap_or(frames.len()).max(1));
    frames.reverse();
    into.push(Stack { thread, frames });
}

/// Parses a line such as `ffffffff816badaa vfs_read ([kernel.kallsyms])`.
fn frame(line: &str) -> Option<Frame> {
    let (_, rest) = line.trim().split_once(' ')?;
    // perf marks a file that was replaced meanwhile.
    let rest = rest.trim().trim_end_matches(')').trim_end_matches(" (deleted");
    let (name, file) = rest.rsplit_once(" (")?;
    let location = location(file);
    Some(Frame { name: plain(name, &location), location })
}

fn location(file: &str) -> CodeLocation {
    let name = file.rsplit('/').next().unwrap_or(file);
    let is_library = |prefix: &&str| name.starts_with(*prefix);
    match name {
        "[unknown]" => CodeLocation::Unknown,
        "[vdso]" | "[vsyscall]" => CodeLocation::Library,
        _ if LIBRARIES.iter().any(is_library) => CodeLocation::Library,
        // The kernel and its modules: `[kernel.kallsyms]`, `[ext4]`, `ext4.ko.xz`.
        _ if name.starts_with('[') || name.ends_with(".ko") || name.contains(".ko.") => {
            CodeLocation::Kernel
        }
        _ => CodeLocation::Program(cut(name)),
    }
}

/// Removes the additions of compilers and linkers: `::h0123456789abcdef`, `.part.0`,
/// `@@GLIBC_2.17`.
fn plain(name: &str, location: &CodeLocation) -> String {
    let name = match location {
        CodeLocation::Kernel => name.split('.').next(),
        CodeLocation::Library => name.split('@').next(),
        CodeLocation::Program(_) | CodeLocation::Unknown => Some(without_hash(name)),
    };
    let name = name.filter(|name| !name.is_empty()).unwrap_or("?");
    cut(&name.replace("{{", "{").replace("}}", "}"))
}

fn without_hash(name: &str) -> &str {
    let is_hash = |part: &str| part.len() == 16 && part.bytes().all(|one| one.is_ascii_hexdigit());
    match name.rsplit_once("::h") {
        Some((before, hash)) if is_hash(hash) => before,
        _ => name,
    }
}

fn cut(name: &str) -> String {
    match name.char_indices().nth(NAME_MAX) {
        Some((at, _)) => format!("{}…", &name[..at]),
        None => name.to_owned(),
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;

    /// Output of `perf script` for Lunar, 4 KiB random reads over four connections.
    pub const SCRIPT: &str = include_str!("perf-script.txt");

    /// Goal: samples are read from the outermost call inwards, with the names of their threads,
    /// without the calls that begin a thread and without the additions of compilers to names.
    #[test]
    fn samples_are_read() {
        let stacks = parse(SCRIPT);
        assert_eq!(stacks.len(), SCRIPT.split("\n\n").count());
        let read = &stacks[0];
        let names: Vec<&str> = read.frames.iter().map(|frame| frame.name.as_str()).collect();
        assert_eq!((read.thread.as_str(), names[0]), ("core-1", WITH_RING));
        assert_eq!(names.len(), 20, "{names:?}");
        assert_eq!(names[14..16], ["do_syscall_64", "__x64_sys_pread64"]);
        assert_eq!(read.frames.last().unwrap().location, CodeLocation::Kernel);
        let all: Vec<&Frame> = stacks.iter().flat_map(|stack| &stack.frames).collect();
        let has = |name: &str| all.iter().any(|frame| frame.name == name);
        assert!(
            has("do_softirq")
                && has("clock_gettime")
                && has("lunar_target::session::Session::step")
        );
        assert!(!has(THREAD_BEGINS) && !has("start_thread") && !has("[unknown]"));
        let lunar = CodeLocation::Program("lunar".to_owned());
        assert!(all.iter().any(|frame| frame.location == lunar));
    }

    const WITH_RING: &str = "lunar_block::file::ring::with_ring::{closure}";

    /// Goal: malformed lines, samples without frames, threads with spaces in their name, modules,
    /// files that were replaced and overlong names do no harm.
    #[test]
    fn odd_lines() {
        let long = "x".repeat(5000);
        let text = format!(
            "\tffff lost (x)\nempty 1 \n\na b  12 \n\tnonsense\n\t1 ext4_sync ([ext4])\n\
             \t2 a::b::h0123456789abcdef (/opt/x (deleted))\n\t3 {long} (/opt/x)\n\
             \tff [unknown] ([unknown])\n\nalone 3\n\t5 [unknown] ([unknown])"
        );
        let stacks = parse(&text);
        assert_eq!(stacks.len(), 2);
        assert_eq!(stacks[0].thread, "a b");
        let [long, own, module] = &stacks[0].frames[..] else { panic!("{stacks:?}") };
        assert_eq!(long.name.chars().count(), NAME_MAX + 1);
        assert_eq!(
            (own.name.as_str(), &own.location),
            ("a::b", &CodeLocation::Program("x".to_owned()))
        );
        assert_eq!((module.name.as_str(), &module.location), ("ext4_sync", &CodeLocation::Kernel));
        assert_eq!(
            (stacks[1].frames.len(), &stacks[1].frames[0].location),
            (1, &CodeLocation::Unknown)
        );
    }
}
