//! Workspaces apart from the main one (python/, fuzz/) have lock files of their own, and nothing in CI builds them: after a
//! change of a crate's dependencies, `cargo metadata` in such a folder mends its lock file.

use std::fs;
use std::path::Path;

/// What a crate's manifest says that every build of it wants.
fn wanted(manifest: &str) -> Vec<&str> {
    let section = manifest.split("\n[dependencies]\n").nth(1).unwrap_or_default();
    let lines = section.lines().take_while(|line| !line.starts_with('['));
    let lines = lines.filter(|line| !line.contains("optional = true") && !line.starts_with([' ', '#', ']', '}']));
    lines.filter_map(|line| line.split(['.', '=']).next().map(str::trim).filter(|name| !name.is_empty())).collect()
}

/// What a lock file says that a crate depends on; `None` if it knows no such crate.
fn locked<'a>(lock: &'a str, package: &str) -> Option<Vec<&'a str>> {
    let entry = lock.split("[[package]]\n").find(|entry| entry.starts_with(&format!("name = \"{package}\"\n")))?;
    let list = entry.split("dependencies = [\n").nth(1).and_then(|rest| rest.split(']').next()).unwrap_or_default();
    // A version stands behind a name that several packages have.
    Some(list.lines().filter_map(|line| line.trim().trim_matches([',', '"']).split(' ').next()).collect())
}

#[test]
fn lock_files_know_what_crates_depend_on() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let read = |path: &Path| fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    for workspace in ["python", "fuzz"] {
        let (lock, mut known) = (read(&root.join(workspace).join("Cargo.lock")), 0);
        for entry in fs::read_dir(root.join("crates")).expect("crates/").flatten() {
            let manifest = read(&entry.path().join("Cargo.toml"));
            let name = manifest.split("name = \"").nth(1).and_then(|rest| rest.split('"').next()).expect("a name");
            let Some(found) = locked(&lock, name) else { continue };
            known += 1;
            for dependency in wanted(&manifest) {
                let is_there = found.contains(&dependency);
                assert!(
                    is_there,
                    "{workspace}/Cargo.lock: {name} wants {dependency}: run `cargo metadata` in {workspace}/"
                );
            }
        }
        assert!(known > 5, "{workspace}: {known} crates of ours");
    }
}
