//! The page of a comparison of a user's kernel, for real or on modelled hardware.

use std::fmt::Write;

use remora_kernel::Placement;

use super::html::{download, escape, scroll};
use super::{STYLE, plot};
use crate::format::folded;

/// What the page shows.
pub struct KernelPage<'a> {
    /// The kernel's file.
    pub kernel: &'a str,
    /// The command line.
    pub command: &'a str,
    /// By link, or of one platform: a heading, and what came of each place. Those that failed are not there.
    pub groups: Vec<(String, Vec<KernelBar>)>,
    /// What the terminal shows.
    pub text: &'a str,
    /// All figures for programs.
    pub json: &'a serde_json::Value,
}

/// A place's figures.
#[derive(Clone, Copy, Debug)]
pub struct KernelBar {
    /// The place.
    pub place: Placement,
    /// The median latency of one call at a time.
    pub p50_ns: f64,
    /// Calls a second with many under way.
    pub per_s: f64,
}

impl KernelPage<'_> {
    /// The page: needs nothing but itself.
    pub fn html(&self) -> String {
        let kernel = escape(self.kernel);
        let mut page = format!(
            "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
             <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
             <title>Remora: where should {kernel} run?</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n<main>\n\
             <h1>Where should {kernel} run?</h1>\n"
        );
        for (name, bars) in &self.groups {
            let name = escape(name);
            let _ = writeln!(page, "<h2>{name}</h2>\n<figure><div class=\"panels\">");
            let of =
                |figure: fn(&KernelBar) -> f64| bars.iter().map(|bar| (bar.place, figure(bar))).collect::<Vec<_>>();
            let panel = |heading: &str, svg: String| format!("<div class=\"card\"><h3>{heading}</h3>{svg}</div>\n");
            let about = format!("Median latency of one call at a time, {name}");
            page +=
                &panel("Median latency, one at a time: shorter is better", plot::times(&of(|bar| bar.p50_ns), &about));
            let about = format!("Calls a second with 64 under way, {name}");
            page += &panel("Calls a second, 64 at once: longer is better", plot::rates(&of(|bar| bar.per_s), &about));
            page.push_str("</div></figure>\n");
        }
        let _ = writeln!(
            page,
            "<h2>All figures</h2>\n{}<pre>{}</pre></div>\n<p>{}, {}</p>\n\
             <p class=\"soft\"><code>{}</code></p>",
            scroll("All figures"),
            escape(&folded(self.text)),
            download("application/json", "remora-kernel.json", &self.json.to_string()),
            download("text/csv", "remora-kernel.csv", &self.csv()),
            escape(self.command)
        );
        page + "</main>\n</body>\n</html>\n"
    }

    fn csv(&self) -> String {
        let mut out = String::from("group,placement,p50_ns,calls_per_s\n");
        for (name, bars) in &self.groups {
            for KernelBar { place, p50_ns, per_s } in bars {
                let _ = writeln!(out, "\"{}\",{place},{p50_ns},{per_s}", name.replace('"', "\"\""));
            }
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_has_both_winners_and_its_data() {
        let bar = |place, p50_ns, per_s| KernelBar { place, p50_ns, per_s };
        let bars = vec![bar(Placement::Client, 900.0, 1e5), bar(Placement::Nic, 1500.0, 3e5)];
        let json = serde_json::json!({ "format": "remora-compare-kernel/1" });
        let page = KernelPage {
            kernel: "<sum>.c",
            command: "remora compare --kernel '<sum>.c'",
            groups: vec![("over shm".into(), bars)],
            text: "a table",
            json: &json,
        };
        assert_eq!(
            page.csv(),
            "group,placement,p50_ns,calls_per_s\n\"over shm\",client,900,100000\n\"over shm\",nic,1500,300000\n"
        );
        let html = page.html();
        assert!(!html.contains("<sum>") && !html.contains("://"), "{html}");
        assert_eq!((html.matches("<svg").count(), html.matches("class=\"bar ").count()), (2, 4));
        assert!(html.contains("data:application/json") && html.contains("900 ns") && html.contains("300 k/s"));
    }
}
