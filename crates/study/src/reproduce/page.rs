//! The figures as one HTML page that needs nothing but itself.

use std::fmt::Write;

use super::checks::{Count, KINDS};
use super::plot::plot;
use super::show::{axis_label, csv, effort, fitted_text, interval, number, said};
use super::{Figure, Reproduction};
use crate::report::{download, escape, scroll};

const STYLE: &str = include_str!("../report/style.css");

/// The page.
pub fn page(all: &Reproduction) -> String {
    let (system, about) = (all.system, escape(all.about));
    let mut out = format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <title>Remora: {system} from the model</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n<main>\n\
         <h1>{system} from the model</h1>\n<p class=\"soft\">{about} Nothing here was read off a figure.</p>\n"
    );
    if let Some(why) = &all.incomplete {
        let _ = writeln!(out, "<p class=\"card remark\">Not complete: {}</p>", escape(why));
    }
    claims(&mut out, all);
    for figure in &all.figures {
        section(&mut out, all, figure);
    }
    basis(&mut out, all);
    let json = all.to_json(env!("CARGO_PKG_VERSION")).to_string();
    let csv: Vec<String> = all.figures.iter().map(csv).collect();
    // One file of all figures: their first column says which.
    let csv = csv.iter().enumerate().map(|(n, text)| match n {
        0 => text.as_str(),
        _ => text.split_once('\n').map_or("", |(_, rows)| rows),
    });
    let _ = writeln!(
        out,
        "<p>All figures: {}, {}.</p>",
        download("application/json", "remora-reproduce.json", &json),
        download("text/csv", "remora-reproduce.csv", &csv.collect::<String>())
    );
    out + "</main>\n</body>\n</html>\n"
}

fn verdict(agrees: Option<bool>) -> &'static str {
    match agrees {
        Some(true) => "pass",
        Some(false) => "<b class=\"nic\">fail</b>",
        None => "",
    }
}

fn claims(out: &mut String, all: &Reproduction) {
    let _ = writeln!(
        out,
        "<h2>What the paper's text says</h2>\n{}<table class=\"said\"><thead><tr>\
         <th class=\"t\">section</th><th class=\"t\">about</th><th class=\"t\">kind</th><th>paper</th><th>model</th>\
         <th class=\"t\"></th></tr></thead>\n<tbody>",
        scroll("What the paper's text says")
    );
    for claim in &all.claims {
        let kind = claim.kind.name();
        let remark = match claim.remark {
            "" => String::new(),
            remark => format!("<br><span class=\"soft\">{}</span>", escape(remark)),
        };
        let _ = writeln!(
            out,
            "<tr><td class=\"t\">{}</td><td class=\"t\">{}: {}{remark}</td><td class=\"t\">{kind}</td><td>{}&nbsp;{}</td>\
             <td>{}</td><td class=\"t\">{}</td></tr>",
            escape(&claim.section),
            escape(&claim.about),
            escape(&claim.metric),
            interval(claim.low, claim.high),
            escape(&claim.unit),
            escape(&said(&claim.model, claim.missing)),
            verdict(claim.agrees()),
        );
    }
    let counts: Vec<String> = Count::of(&all.claims).iter().map(Count::text).collect();
    let _ = writeln!(out, "</tbody></table></div>\n<p>{}: {KINDS}.</p>", escape(&counts.join("; ")));
}

fn section(out: &mut String, all: &Reproduction, figure: &Figure) {
    let _ = writeln!(
        out,
        "<h2 id=\"figure-{0}\">Figure {0}: {1}</h2>\n<figure><div class=\"card\">{2}</div><figcaption>{3}</figcaption>\
         </figure>",
        figure.number,
        escape(&figure.title),
        plot(figure),
        escape(&figure.note),
    );
    let is_about = |figures: &str| figures.split(", ").any(|name| name == figure.number);
    let trends: Vec<_> = all.trends.iter().filter(|trend| is_about(trend.figures)).collect();
    if !trends.is_empty() {
        out.push_str("<ul>\n");
        for trend in trends {
            let _ = writeln!(
                out,
                "<li>{}: {} (section {}): {}</li>",
                verdict(Some(trend.holds)),
                escape(trend.what),
                trend.section,
                escape(&trend.evidence)
            );
        }
        out.push_str("</ul>\n");
    }
    figures_table(out, figure);
}

fn figures_table(out: &mut String, figure: &Figure) {
    let _ = write!(
        out,
        "<details><summary>All figures</summary>{}<table><thead><tr><th>{}</th>",
        scroll(&format!("All figures: {} by {}", figure.y.0, figure.x.0)),
        escape(&axis_label(&figure.x)),
    );
    for line in &figure.lines {
        let _ = write!(out, "<th>{}, {}</th>", escape(&line.name), escape(&figure.y.1));
        figure.details.iter().for_each(|what| {
            let _ = write!(out, "<th>{what}</th>");
        });
    }
    out.push_str("</tr></thead><tbody>\n");
    let rows = figure.lines.first().map_or(0, |line| line.dots.len());
    for row in 0..rows {
        for (column, dot) in figure.lines.iter().filter_map(|line| line.dots.get(row)).enumerate() {
            if column == 0 {
                let _ = write!(out, "<tr><td>{}</td>", dot.x);
            }
            let _ = write!(out, "<td>{}</td>", number(dot.y));
            dot.details.iter().for_each(|detail| {
                let _ = write!(out, "<td>{}</td>", escape(detail));
            });
        }
        out.push_str("</tr>\n");
    }
    out.push_str("</tbody></table></div></details>\n");
}

fn basis(out: &mut String, all: &Reproduction) {
    out.push_str("<h2>What this rests on</h2>\n<ul>\n");
    let fitted = all.fitted.iter().map(|fitted| format!("Fitted: {}", fitted_text(fitted)));
    for line in fitted.chain(all.provenance.iter().cloned()).chain([effort(all)]) {
        let _ = writeln!(out, "<li>{}</li>", escape(&line));
    }
    out.push_str("</ul>\n");
}
