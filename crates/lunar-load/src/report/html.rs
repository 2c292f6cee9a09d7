//! A report as one self-contained HTML page: no other file, no network.

use super::{Column, Plot, Report, Section, Table, TableCell};
use serde_json::Value;
use std::fmt::Write;

const UPLOT_SCRIPT: &str = include_str!("../../assets/uPlot.iife.min.js");
const UPLOT_STYLE: &str = include_str!("../../assets/uPlot.min.css");
const UPLOT_LICENSE: &str = include_str!("../../assets/LICENSE-uPlot");
const SCRIPT: &str = include_str!("../../assets/report.js");
const STYLE: &str = include_str!("../../assets/report.css");
/// Prevents the browser from loading anything, whatever the page contains.
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'";
/// Placed first, so that it receives the errors of all scripts; a test reads the result.
const ERROR_RECORDER: &str =
    "addEventListener('error',e=>{document.documentElement.dataset.error=e.message})";

/// Returns the page. All texts of the report are escaped: none is interpreted as HTML.
pub fn page(report: &Report) -> String {
    let title = escaped(&report.title);
    let plots: Vec<&Plot> = report.sections.iter().flat_map(|section| &section.plots).collect();
    let data: Value = plots.iter().map(|plot| plot.json()).collect();
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"{POLICY}\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <title>{title}</title>\n<!-- uPlot:\n{UPLOT_LICENSE}\n-->\n\
         <style>{UPLOT_STYLE}</style>\n<style>{STYLE}</style>\n<script>{ERROR_RECORDER}</script>\n\
         </head>\n<body>\n<header>\n<h1>{title}</h1>\n{prose}{facts}</header>\n<main>\n{main}\
         </main>\n<noscript><p class=\"warning\">Plots require JavaScript; the tables contain all \
         figures.</p></noscript>\n<script type=\"application/json\" id=\"plots\">{data}</script>\n\
         <script>{UPLOT_SCRIPT}</script>\n<script>{SCRIPT}</script>\n</body>\n</html>\n",
        prose = paragraphs(&report.prose),
        facts = facts(&report.facts),
        main = main(&report.sections),
        data = script_safe_json(&data),
    )
}

/// Encodes JSON for a script element: no text in it can end the element or begin a comment.
fn script_safe_json(data: &Value) -> String {
    data.to_string().replace('<', "\\u003c").replace('>', "\\u003e").replace('&', "\\u0026")
}

fn facts(facts: &[(String, String)]) -> String {
    let mut text = String::from("<dl>\n");
    for (name, value) in facts {
        let class = if name == "command" { " class=\"command\"" } else { "" };
        let (name, value) = (escaped(name), escaped(value));
        // Writing to a string does not fail.
        let _ = writeln!(text, "<dt>{name}</dt><dd{class}>{value}</dd>");
    }
    text + "</dl>\n"
}

fn main(sections: &[Section]) -> String {
    let (mut text, mut number) = (String::new(), 0);
    for section in sections {
        let _ = writeln!(text, "<section>\n<h2>{}</h2>", escaped(&section.title));
        text += &paragraphs(&section.prose);
        for warning in &section.warnings {
            let _ = writeln!(text, "<p class=\"warning\">{}</p>", escaped(warning));
        }
        if !section.plots.is_empty() {
            text += "<div class=\"plots\">\n";
            for plot in &section.plots {
                text += &figure(plot, number);
                number += 1;
            }
            text += "</div>\n";
        }
        section.tables.iter().for_each(|table| text += &table_html(table, &section.title));
        text += "</section>\n";
    }
    text
}

fn paragraphs(paragraphs: &[String]) -> String {
    paragraphs.iter().map(|paragraph| format!("<p>{}</p>\n", escaped(paragraph))).collect()
}

/// Returns the element for a plot, with its figures as a table for readers who cannot see it.
fn figure(plot: &Plot, number: usize) -> String {
    let title = escaped(&plot.title);
    let figures = table_html(&figures(plot), &plot.title);
    let y = escaped(&plot.y.label);
    format!(
        "<figure>\n<figcaption>{title}</figcaption>\n<p class=\"axis\">{y}</p>\n\
         <div id=\"plot-{number}\" role=\"img\" aria-label=\"{title}; figures below\"></div>\n\
         <p class=\"values\"></p>\n<details><summary>Figures of \
         this plot</summary>\n{figures}</details>\n</figure>\n"
    )
}

/// Returns a plot's figures: a row for each x, a column for each series.
fn figures(plot: &Plot) -> Table {
    let lines = plot.series.iter().map(|line| Column::number("y", line.label.clone()));
    let x = Column::number("x", format!("{}{}", plot.x.label, plot.x.unit.suffix()));
    let mut table = Table::new(std::iter::once(x).chain(lines));
    table.title = format!("{}{}", plot.y.label, plot.y.unit.suffix());
    let shown = |figure: f64| TableCell::new(crate::report::plot::digits(figure), figure);
    for x_value in plot.x_values() {
        let values =
            plot.series.iter().map(|line| line.at(x_value).map_or_else(TableCell::none, shown));
        table.row(std::iter::once(shown(plot.x.unit.shown(x_value))).chain(values));
    }
    table
}

fn table_html(table: &Table, name: &str) -> String {
    let label = escaped(if table.title.is_empty() { name } else { &table.title });
    let mut text = format!(
        "<div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label=\"{label}\">\
         <table class=\"figures\">\n"
    );
    if !table.title.is_empty() {
        let _ = writeln!(text, "<caption>{label}</caption>");
    }
    let head = table.columns.iter().map(|column| {
        let class = if column.is_number { " class=\"number\"" } else { "" };
        format!("<th scope=\"col\"{class}>{}</th>", escaped(&column.label))
    });
    let _ = writeln!(text, "<thead><tr>{}</tr></thead>\n<tbody>", head.collect::<String>());
    for row in &table.rows {
        let cells = row.iter().zip(&table.columns).map(|(cell, column)| {
            let class = if column.is_number { "number" } else { "name" };
            format!("<td class=\"{class}\">{}</td>", figure_html(&cell.text))
        });
        let _ = writeln!(text, "<tr>{}</tr>", cells.collect::<String>());
    }
    text + "</tbody></table></div>\n"
}

/// Returns a figure; its spread, if it has one, becomes a line of its own.
fn figure_html(text: &str) -> String {
    match text.strip_suffix(')').and_then(|text| text.split_once(" (")) {
        Some((figure, spread)) => {
            format!("{} <span class=\"spread\">({})</span>", escaped(figure), escaped(spread))
        }
        None => escaped(text),
    }
}

/// Escapes text for HTML, in elements and in quoted attributes.
fn escaped(text: &str) -> String {
    text.chars().fold(String::with_capacity(text.len()), |mut text, letter| {
        match letter {
            '&' => text.push_str("&amp;"),
            '<' => text.push_str("&lt;"),
            '>' => text.push_str("&gt;"),
            '"' => text.push_str("&quot;"),
            '\'' => text.push_str("&#39;"),
            other => text.push(other),
        }
        text
    })
}
