//! The version with the commit that it was built of, and with the feature `library` the verbs library inside the command.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

fn main() {
    let version = env::var("CARGO_PKG_VERSION").unwrap_or_default();
    // A package is built without a repository and says itself what it is of.
    println!("cargo:rerun-if-env-changed=REMORA_COMMIT");
    let commit = env::var("REMORA_COMMIT").ok().or_else(commit);
    let version = commit.map_or(version.clone(), |commit| format!("{version} ({commit})"));
    println!("cargo:rustc-env=REMORA_VERSION={version}");
    if env::var_os("CARGO_FEATURE_LIBRARY").is_some() {
        library();
    }
}

fn git(args: &[&str]) -> Option<String> {
    let output = Command::new("git").args(args).output().ok().filter(|output| output.status.success())?;
    Some(String::from_utf8(output.stdout).ok()?.trim().to_string())
}

/// `12 hexadecimal digits, date`; none where there is no git, or no repository.
fn commit() -> Option<String> {
    // Each commit and checkout adds a line there.
    let log = git(&["rev-parse", "--git-path", "logs/HEAD"])?;
    println!("cargo:rerun-if-changed={log}");
    git(&["log", "-1", "--format=%h %cs", "--abbrev=12"])
}

/// Builds the verbs library, which cargo does not install, for the command to carry.
fn library() {
    let here = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").unwrap_or_default());
    let out = PathBuf::from(env::var_os("OUT_DIR").unwrap_or_default());
    let built = out.join("verbs/release/libibverbs.so");
    println!("cargo:rerun-if-changed={}", here.join("../verbs/src").display());
    let cargo = env::var_os("CARGO").unwrap_or("cargo".into());
    let manifest = here.join("../verbs/Cargo.toml");
    let args =
        ["build", "--release", "--config", "profile.release.strip=true", "--manifest-path"].map(std::ffi::OsStr::new);
    let status = Command::new(cargo).args(args).arg(manifest).arg("--target-dir").arg(out.join("verbs")).status();
    assert!(
        status.is_ok_and(|status| status.success()) && Path::new(&built).is_file(),
        "the verbs library is not built"
    );
    println!("cargo:rustc-env=REMORA_LIBRARY={}", built.display());
}
