//! The parts of the book that come from the code: `docs/reference`. What reads a file, or says an error, is what describes it.
//!
//! After a change, `REMORA_BOOK=write cargo test -p remora-cli --test book` writes them anew.

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use remora_testing::schema;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn source(path: &str) -> String {
    std::fs::read_to_string(root().join("crates").join(path)).expect("a source")
}

/// Compares a page with what it should be, or writes it.
fn page(name: &str, text: &str) {
    let file = root().join("docs/reference").join(name);
    if std::env::var_os("REMORA_BOOK").is_some_and(|how| how == "write") {
        std::fs::write(&file, text).expect("written");
        return;
    }
    let found = std::fs::read_to_string(&file).unwrap_or_default();
    let line = found.lines().zip(text.lines()).find(|(found, wanted)| found != wanted);
    assert!(found == text, "docs/reference/{name} is stale (see the top of this file): first at {line:?}");
}

/// What a command says of itself, and all below it.
fn commands(words: &[&str], out: &mut String) {
    let output = Command::new(env!("CARGO_BIN_EXE_remora")).args(words).arg("--help").output().expect("it runs");
    let text = String::from_utf8(output.stdout).expect("text");
    let level = "#".repeat(words.len() + 1);
    let name = [&["remora"], words].concat().join(" ");
    let _ = write!(out, "{level} {name}\n\n```text\n{}\n```\n\n", text.trim_end());
    let below = text.split("\nCommands:\n").nth(1).unwrap_or_default();
    for line in below.lines().take_while(|line| line.starts_with("  ")) {
        // Further lines of a description stand further in.
        let Some(name) = line.strip_prefix("  ").filter(|rest| !rest.starts_with(' ')) else { continue };
        let name = name.split_whitespace().next().unwrap_or_default();
        if name != "help" {
            commands(&[words, &[name]].concat(), out);
        }
    }
}

#[test]
fn commands_are_described_by_their_help() {
    let mut out = String::from("# Commands\n\nWhat `--help` says of each.\n\n");
    commands(&[], &mut out);
    assert!(out.contains("## remora compare\n") && out.contains("### remora kernel run\n"), "{out}");
    page("commands.md", &out);
}

#[test]
fn figures_are_described_by_their_schemas() {
    let mut files: Vec<_> = std::fs::read_dir(root().join("docs/schemas")).expect("schemas").flatten().collect();
    files.sort_by_key(|entry| entry.file_name());
    let mut out = String::from(
        "# Figures for programs\n\nThe fields of each format, from its JSON Schema in `docs/schemas`. `*` stands for names that \
         are data, such as a link's.\n\n",
    );
    for entry in files {
        let text = std::fs::read_to_string(entry.path()).expect("a schema");
        let schema: serde_json::Value = serde_json::from_str(&text).expect("JSON");
        let title = schema["title"].as_str().expect("a title");
        let name = entry.file_name();
        let (name, fields) = (name.to_string_lossy(), schema::table(&schema));
        let _ = write!(out, "## {title}\n\n[schemas/{name}](../schemas/{name})\n\n{fields}\n");
    }
    page("schemas.md", &out);
}

/// A field or variant of a source: its name, what stands behind it, its documentation, its attributes.
struct Item {
    name: String,
    rest: String,
    doc: String,
    attributes: String,
}

/// The items between braces after `head`, as `rustfmt` writes them.
fn items(source: &str, head: &str) -> Vec<Item> {
    let at = source.find(head).unwrap_or_else(|| panic!("no {head:?}"));
    let body = &source[at + head.len()..];
    let indent = body.lines().nth(1).map_or(0, |line| line.len() - line.trim_start().len());
    let (mut items, mut doc, mut attributes) = (Vec::new(), Vec::new(), String::new());
    for line in body.lines().skip(1) {
        let (depth, text) = (line.len() - line.trim_start().len(), line.trim());
        if depth < indent && !text.is_empty() {
            break;
        }
        match text {
            _ if text.starts_with("///") && depth == indent => doc.push(text.trim_start_matches('/').trim()),
            _ if text.starts_with("#[") || !attributes.is_empty() && !attributes.ends_with(']') => attributes += text,
            _ if depth == indent && text.starts_with(|c: char| c.is_alphabetic()) => {
                let text = text.strip_prefix("pub ").unwrap_or(text).trim_end_matches([',', '{']).trim_end();
                let end = text.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(text.len());
                let (name, rest) = text.split_at(end);
                let rest = rest.trim_start_matches(':').trim().to_string();
                items.push(Item { name: name.into(), rest, doc: doc.join(" "), attributes: attributes.clone() });
                doc.clear();
                attributes.clear();
            }
            _ => {}
        }
    }
    assert!(!items.is_empty(), "nothing after {head:?}");
    items
}

fn cell(text: &str) -> String {
    text.replace('|', "\\|")
}

/// `Option<u64>` and the like, as people read it.
fn kind(rust: &str, attributes: &str) -> String {
    let inner =
        |text: &str, outer: &str| text.strip_prefix(outer).and_then(|text| text.strip_suffix('>')).map(String::from);
    let mut kind = rust.to_string();
    let mut optional = attributes.contains("serde(default");
    for _ in 0..3 {
        for outer in ["Option<", "Spanned<"] {
            if let Some(found) = inner(&kind, outer) {
                optional |= outer == "Option<";
                kind = found;
            }
        }
    }
    let kind = match kind.as_str() {
        "String" => "text".to_string(),
        "bool" => "true or false".into(),
        "u16" | "u32" | "u64" | "usize" | "u8" => "whole number".into(),
        "f64" => "number".into(),
        "Vec<u64>" => "list of whole numbers".into(),
        // What stands for types that differ from paper to paper.
        "S" | "M" | "X" | "Vec<S>" | "XAxis<X>" | "YAxis<M>" => "see below".into(),
        other if other.starts_with("Vec<") => "one or more tables: see below".into(),
        _ => "word or table: see below".into(),
    };
    if optional { kind + ", optional" } else { kind }
}

fn fields(out: &mut String, source: &str, head: &str) {
    out.push_str("| key | value | what |\n|---|---|---|\n");
    for Item { name, rest, doc, attributes } in items(source, head) {
        assert!(!doc.is_empty(), "{head}: {name} is not documented");
        let _ = writeln!(out, "| `{name}` | {} | {} |", cell(&kind(&rest, &attributes)), cell(&doc));
    }
    out.push('\n');
}

/// A choice of words, as serde spells them.
fn choices(out: &mut String, source: &str, head: &str, kebab: bool) {
    out.push_str("| word | what |\n|---|---|\n");
    for Item { name, doc, .. } in items(source, head) {
        let mut word = String::new();
        for c in name.chars() {
            if c.is_uppercase() && !word.is_empty() && kebab {
                word.push('-');
            }
            word.extend(c.to_lowercase());
        }
        let _ = writeln!(out, "| `{word}` | {} |", cell(&doc));
    }
    out.push('\n');
}

#[test]
fn operations_are_described_by_what_reads_them() {
    let source = source("study/src/where_/operation.rs");
    let mut out = String::from(
        "# Operations\n\n`remora where FILE` reads TOML of these keys. Sizes and the like are text with a unit, such as \
         `\"512 B\"`: [formats](../formats.md) lists units.\n\n",
    );
    fields(&mut out, &source, "struct File {");
    out.push_str("## [[access]]\n\nOne or more, in order.\n\n");
    fields(&mut out, &source, "struct FileAccess {");
    out.push_str("### Kinds of access\n\n");
    choices(&mut out, &source, "pub enum Kind {", false);
    out.push_str("### Where the state lies\n\n");
    choices(&mut out, &source, "pub enum Memory {", false);
    out.push_str("## Those that come with the program\n\n");
    for (name, text) in remora_study::where_::TEMPLATES {
        let _ = write!(out, "### {name}\n\n```toml\n{}\n```\n\n", text.trim_end());
    }
    out.push_str(
        "## Workloads of racks\n\n`remora where rack FILE` reads TOML of these keys: what the nodes of two racks do.\n\n",
    );
    let workload = self::source("study/src/where_/rack/workload.rs");
    fields(&mut out, &workload, "struct RackFile {");
    out.push_str("### pattern\n\n");
    choices(&mut out, &workload, "pub enum Pattern {", true);
    for (name, text) in remora_study::where_::rack::RACK_TEMPLATES {
        let _ = write!(out, "### {name}\n\n```toml\n{}\n```\n\n", text.trim_end());
    }
    page("operations.md", &out);
}

#[test]
fn platforms_are_described_by_what_reads_them() {
    let source = source("model/src/platform/typed.rs");
    let mut out = String::from(
        "# Platforms\n\nA platform is a TOML file. It has a `name`, a `title`, a section `[placements]` and one section for each \
         piece of hardware. Each value is a table of five fields, none of which may be left out:\n\n\
         ```toml\nlatency = { value = 80, unit = \"ns\", status = \"printed\", range = [60, 80], source = \"where it says so\" }\n\
         ```\n\n`remora platform new NAME > FILE` writes one to start from, `remora platform show FILE` checks and shows it.\n\n\
         ## Status\n\n| word | what |\n|---|---|\n",
    );
    for (status, word) in remora_model::platform::SourceStatus::ALL {
        let params = self::source("model/src/platform/params.rs");
        let all = items(&params, "pub enum SourceStatus {");
        let found = all.iter().find(|item| item.name == format!("{status:?}")).expect("a status");
        let _ = writeln!(out, "| `{word}` | {} |", cell(&found.doc));
    }
    out.push('\n');
    for part in source.split("section! {\n").skip(1) {
        let part = part.split("\n}\n").next().expect("a section");
        let about: Vec<&str> = part
            .lines()
            .map(str::trim)
            .take_while(|line| line.starts_with("///"))
            .map(|line| line[3..].trim())
            .collect();
        let about = about.join(" ");
        let name = part.lines().map(str::trim).find(|line| line.ends_with('{')).expect("a name").trim_end_matches(" {");
        let _ = write!(out, "## {name}\n\n{about}\n\n| key | value | what |\n|---|---|---|\n");
        for Item { name, rest, doc, .. } in items(part, &format!("    {name} {{")) {
            let read = rest.split("= ").nth(1).unwrap_or_default();
            let (how, least) = read.split_once('(').unwrap_or((read, ""));
            let least = least.trim_end_matches([')', ',']);
            let least = if least.is_empty() { String::new() } else { format!(", at least {least}") };
            let _ = writeln!(out, "| `{name}` | {}{least} | {} |", how.replace('_', " "), cell(&doc));
        }
        out.push('\n');
    }
    assert!(out.contains("| `misses` | count, at least 1 |"), "{out}");
    page("platforms.md", &out);
}

#[test]
fn studies_are_described_by_what_reads_them() {
    let [study, strom, minos, point, bluefield] =
        ["reproduce/study.rs", "strom/study.rs", "minos/study.rs", "minos/point.rs", "bluefield/study.rs"]
            .map(|file| source(&format!("study/src/{file}")));
    let mut out = String::from(
        "# Studies\n\nA figure that `remora reproduce` draws is a TOML file below `studies/`: what is run, what varies, what is \
         shown.\n\n",
    );
    fields(&mut out, &study, "pub struct Study<S, M, X = ()> {");
    out.push_str("## [x]\n\n");
    fields(&mut out, &study, "pub struct XAxis<X> {");
    out.push_str("## [y]\n\n");
    fields(&mut out, &study, "pub struct YAxis<M> {");
    out.push_str("## [[series]] of StRoM\n\n");
    fields(&mut out, &strom, "pub struct StromSeries {");
    out.push_str("### run\n\n");
    choices(&mut out, &strom, "pub enum Run {", true);
    out.push_str("### metric\n\n");
    choices(&mut out, &strom, "pub enum Metric {", true);
    out.push_str("## [[series]] of MINOS\n\n");
    fields(&mut out, &minos, "pub struct MinosSeries {");
    out.push_str("### setup\n\n");
    fields(&mut out, &point, "pub struct Setup {");
    out.push_str("### sets\n\n");
    choices(&mut out, &minos, "pub enum Sets {", true);
    out.push_str("### metric\n\n");
    choices(&mut out, &minos, "pub enum Metric {", true);
    out.push_str("## [[series]] of BlueField\n\n");
    fields(&mut out, &bluefield, "pub struct BluefieldSeries {");
    out.push_str("### setup\n\n");
    fields(&mut out, &bluefield, "pub struct Setup {");
    for (heading, list) in [("run", "Run"), ("place", "At"), ("sets", "Sets"), ("metric", "Metric")] {
        let _ = write!(out, "### {heading}\n\n");
        choices(&mut out, &bluefield, &format!("pub enum {list} {{"), true);
    }
    let [rambda, point] = ["study.rs", "point.rs"].map(|file| source(&format!("study/src/rambda/{file}")));
    out.push_str("## [[series]] of RAMBDA\n\n");
    fields(&mut out, &rambda, "pub struct RambdaSeries {");
    out.push_str("### setup\n\n");
    fields(&mut out, &point, "pub struct Setup {");
    out.push_str("### run\n\n");
    choices(&mut out, &point, "pub enum Run {", true);
    out.push_str("### server\n\n");
    choices(&mut out, &point, "pub enum Server {", true);
    out.push_str("### sets\n\n");
    choices(&mut out, &rambda, "pub enum Sets {", true);
    out.push_str("### metric\n\n");
    choices(&mut out, &rambda, "pub enum Metric {", true);
    let [dfabric, point] = ["study.rs", "point.rs"].map(|file| source(&format!("study/src/dfabric/{file}")));
    out.push_str("## [[series]] of DFabric\n\n");
    fields(&mut out, &dfabric, "pub struct DFabricSeries {");
    out.push_str("### setup\n\n");
    fields(&mut out, &point, "pub struct Setup {");
    for (heading, list) in [("run", "Run"), ("system", "System"), ("without", "Without")] {
        let _ = write!(out, "### {heading}\n\n");
        choices(&mut out, &point, &format!("pub enum {list} {{"), true);
    }
    out.push_str("### sets\n\n");
    choices(&mut out, &dfabric, "pub enum Sets {", true);
    out.push_str("### metric\n\n");
    choices(&mut out, &dfabric, "pub enum Metric {", true);
    page("studies.md", &out);
}

/// The text of `#[error("...")]`.
fn said(attributes: &str) -> Option<String> {
    let text = attributes.split("#[error(").nth(1)?;
    let text = &text[text.find('"')? + 1..];
    // A quotation mark within it has a backslash before it.
    let end = text.match_indices("\",").map(|(at, _)| at).find(|at| !text[..*at].ends_with('\\'));
    let text = &text[..end.unwrap_or(text.len())];
    let text = text.trim_end_matches([')', ']']).trim_end_matches('"');
    let text = text.replace("\\\"", "\"").replace('\\', "").replace("{{", "{").replace("}}", "}");
    Some(text.split_whitespace().collect::<Vec<_>>().join(" "))
}

#[test]
fn errors_are_described_by_what_says_them() {
    let mut out = String::from(
        "# Errors\n\nWhat nodes, clients and stores say when something cannot be done, and when that is. `{..}` stands for what \
         the message names.\n\n",
    );
    let enums = [
        ("Nodes and clients", "real/src/error.rs", "pub enum Error {"),
        ("The replicated store", "remora/src/store.rs", "pub enum StoreError {"),
        ("Platforms", "model/src/platform/error.rs", "pub enum PlatformError {"),
        ("Values of platforms", "model/src/platform/error.rs", "pub enum Problem {"),
        ("Records and traces", "study/src/records.rs", "pub enum Problem {"),
    ];
    for (title, file, head) in enums {
        let _ = write!(out, "## {title}\n\n| message | when |\n|---|---|\n");
        for Item { doc, attributes, .. } in items(&source(file), head) {
            if let Some(text) = said(&attributes) {
                let _ = writeln!(out, "| {} | {} |", cell(&text).replace('<', "&lt;"), cell(&doc));
            }
        }
        out.push('\n');
    }
    assert!(out.contains("no node answers at {0}"), "{out}");
    out.push_str("## How kernels end\n\n| status | what to do |\n|---|---|\n");
    let error = source("real/src/error.rs");
    let advice = &error[error.find("fn advice").expect("advice")..];
    for arm in advice.split("Status::").skip(2) {
        let name: String = arm.chars().take_while(|c| c.is_alphanumeric()).collect();
        let Some((_, text)) = arm.split_once("=> ") else { continue };
        let Some(text) = text.split('"').nth(1) else { continue };
        let text = text.replace('\\', "").split_whitespace().collect::<Vec<_>>().join(" ");
        let _ = writeln!(out, "| `{name}` | {} |", cell(&text));
    }
    page("errors.md", &out);
}

#[test]
fn every_page_of_the_book_is_there_and_in_its_contents() {
    let docs = root().join("docs");
    let summary = std::fs::read_to_string(docs.join("SUMMARY.md")).expect("contents");
    for link in summary.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
        assert!(docs.join(link).exists(), "docs/SUMMARY.md names {link}, which is not there");
    }
    let mut folders = vec![docs.clone()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).expect("a folder").flatten() {
            let path = entry.path();
            let name = path.strip_prefix(&docs).expect("below").display().to_string();
            match path.is_dir() {
                true => folders.push(path),
                false => assert!(
                    !name.ends_with(".md") || name == "SUMMARY.md" || summary.contains(&format!("]({name})")),
                    "docs/SUMMARY.md does not name {name}"
                ),
            }
        }
    }
}
