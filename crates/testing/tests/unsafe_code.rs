//! How much unsafe code there is, crate by crate, as docs/security.md says. That each block has a line why, clippy sees to.
//!
//! `REMORA_BLESS=1 cargo test -p remora-testing --test unsafe_code` writes the table anew.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// Lines of the table stand between these.
const BEGIN: &str = "<!-- counted by crates/testing/tests/unsafe_code.rs -->\n";
const END: &str = "<!-- end -->";

/// Blocks, functions and implementations.
type Counts = [usize; 3];

#[test]
fn unsafe_code_is_what_the_documentation_counts() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut table = String::from("| crate | blocks | functions | implementations |\n|---|---|---|---|\n");
    let mut all = [0; 3];
    for (name, counts) in crates(&root) {
        table += &row(&name, counts);
        (0..3).for_each(|kind| all[kind] += counts[kind]);
    }
    table += &row("all", all);
    println!("{table}");
    let path = root.join("docs/security.md");
    let text = fs::read_to_string(&path).expect("docs/security.md");
    let (before, rest) = text.split_once(BEGIN).expect("the table's beginning");
    let (said, after) = rest.split_once(END).expect("the table's end");
    if std::env::var_os("REMORA_BLESS").is_some() {
        return fs::write(&path, [before, BEGIN, &table, END, after].concat()).expect("written");
    }
    assert_eq!(said, table, "look at what is new, then count again: REMORA_BLESS=1");
}

fn row(name: &str, [blocks, functions, implementations]: Counts) -> String {
    format!("| {name} | {blocks} | {functions} | {implementations} |\n")
}

/// Crates that have any, by name.
fn crates(root: &Path) -> BTreeMap<String, Counts> {
    let crates = fs::read_dir(root.join("crates")).expect("crates").flatten();
    let counted = crates.map(|entry| {
        let mut counts = [0; 3];
        for file in sources(&entry.path().join("src")) {
            let text = fs::read_to_string(&file).expect("a source file");
            text.lines().for_each(|line| count(line, &mut counts));
        }
        (entry.file_name().to_string_lossy().into_owned(), counts)
    });
    counted.filter(|(_, counts)| *counts != [0; 3]).collect()
}

/// All Rust files below a directory.
fn sources(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for path in fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.path()) {
        if path.is_dir() {
            found.extend(sources(&path));
        } else if path.extension().is_some_and(|ext| ext == "rs") {
            found.push(path);
        }
    }
    found
}

/// What a line begins. Types of functions (`unsafe extern "C" fn(..)`) are none.
fn count(line: &str, counts: &mut Counts) {
    let code = line.split("//").next().unwrap_or("");
    for (at, _) in code.match_indices("unsafe ") {
        let rest = &code[at + "unsafe ".len()..];
        let word_before = code[..at].chars().next_back().is_some_and(|c| c.is_alphanumeric() || c == '_');
        let rest = rest.strip_prefix("extern \"C\" ").unwrap_or(rest);
        match rest {
            _ if word_before => {}
            _ if rest.starts_with('{') => counts[0] += 1,
            _ if rest.starts_with("fn ") => counts[1] += 1,
            _ if rest.starts_with("impl") => counts[2] += 1,
            _ => {}
        }
    }
}

#[test]
fn what_counts_is_counted() {
    let mut counts = [0; 3];
    let lines = [
        "    unsafe { a() }; unsafe { b() }",
        "pub unsafe extern \"C\" fn ibv() {",
        "unsafe fn f(g: unsafe extern \"C\" fn(u8)) {}",
        "unsafe impl<T> Send for X<T> {}",
        "// unsafe { nothing }",
        "an_unsafe { word }",
    ];
    lines.iter().for_each(|line| count(line, &mut counts));
    assert_eq!(counts, [2, 2, 1]);
}
