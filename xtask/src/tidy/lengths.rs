//! Limits the lengths of files, functions and lines.

use super::{Problem, Source};
use proc_macro2::Span;
use syn::spanned::Spanned;
use syn::visit::{self, Visit};

const FILE_LINES_MAX: usize = 800;
const FUNCTION_LINES_MAX: usize = 70;
const LINE_COLUMNS_MAX: usize = 100;

/// Checks files and lines, in any language.
pub(super) fn check_lines(source: &Source) -> Vec<Problem> {
    let mut problems = Vec::new();
    let lines = source.text.lines().count();
    if lines > FILE_LINES_MAX {
        let what =
            format!("{lines} lines, the maximum is {FILE_LINES_MAX}: move a part to its own file");
        problems.push(source.problem(lines, what));
    }
    for (index, line) in source.text.lines().enumerate() {
        let columns = line.chars().count();
        if columns > LINE_COLUMNS_MAX {
            let what = format!("{columns} columns, the maximum is {LINE_COLUMNS_MAX}");
            problems.push(source.problem(index + 1, what));
        }
    }
    problems
}

/// Checks a Rust source: functions too.
pub(super) fn check(source: &Source) -> Vec<Problem> {
    let mut problems = check_lines(source);
    match syn::parse_file(&source.text) {
        Ok(file) => {
            let mut functions = Functions { source, problems };
            functions.visit_file(&file);
            functions.problems
        }
        Err(error) => {
            problems.push(
                source.problem(error.span().start().line, format!("cannot parse Rust: {error}")),
            );
            problems
        }
    }
}

/// Measures every function that has a body, nested ones too.
struct Functions<'a> {
    source: &'a Source,
    problems: Vec<Problem>,
}

impl Functions<'_> {
    /// Counts from the line of `fn` to the closing brace; attributes and docs do not count.
    fn measure(&mut self, signature: &syn::Signature, body: Span) {
        let first = signature.fn_token.span().start().line;
        let lines = body.end().line - first + 1;
        if lines > FUNCTION_LINES_MAX {
            let name = &signature.ident;
            let what = format!("fn {name} has {lines} lines, the maximum is {FUNCTION_LINES_MAX}");
            self.problems.push(self.source.problem(first, what));
        }
    }
}

impl<'ast> Visit<'ast> for Functions<'_> {
    fn visit_item_fn(&mut self, item: &'ast syn::ItemFn) {
        self.measure(&item.sig, item.block.span());
        visit::visit_item_fn(self, item);
    }

    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        self.measure(&item.sig, item.block.span());
        visit::visit_impl_item_fn(self, item);
    }

    fn visit_trait_item_fn(&mut self, item: &'ast syn::TraitItemFn) {
        if let Some(body) = &item.default {
            self.measure(&item.sig, body.span());
        }
        visit::visit_trait_item_fn(self, item);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn complaints(text: String) -> Vec<String> {
        let source = Source { path: "a.rs".into(), text };
        check(&source).into_iter().map(|problem| problem.to_string()).collect()
    }

    /// Goal: lengths equal to the limits pass, one more is a problem with its line.
    #[test]
    fn limits_are_exact() {
        let function = |lines: usize| {
            let body = "    let _ = 1;\n".repeat(lines - 2);
            format!("struct A;\nimpl A {{\nfn long() {{\n{body}}}\n}}\n")
        };
        assert_eq!(complaints(function(70)), Vec::<String>::new());
        assert_eq!(complaints(function(71)), ["a.rs:3: fn long has 71 lines, the maximum is 70"]);
        assert_eq!(complaints(format!("//{}\n", "x".repeat(98))), Vec::<String>::new());
        assert_eq!(
            complaints(format!("\n//{}\n", "x".repeat(99))),
            ["a.rs:2: 101 columns, the maximum is 100"]
        );
        assert_eq!(complaints("// x\n".repeat(800)), Vec::<String>::new());
        assert_eq!(complaints("// x\n".repeat(801)).len(), 1);
    }
}
