//! Results by what they came from: a sweep that was broken off goes on where it was.

use std::path::PathBuf;
use std::sync::OnceLock;

use remora_kernel::crc64;
use remora_model::platform::Platform;
use serde::{Deserialize, Serialize};

use super::point::Outcomes;
use super::study::Series;

/// A directory of results.
#[derive(Clone, Debug)]
pub struct Cache {
    directory: PathBuf,
}

/// A result and all that it came from: a file under another's name is none.
#[derive(Serialize, Deserialize)]
struct Entry {
    key: String,
    outcome: Outcomes,
}

impl Cache {
    /// In this directory, which is made when needed.
    pub fn new(directory: PathBuf) -> Self {
        Self { directory }
    }

    /// Where results are kept if nothing else is said: in the user's cache directory, if there is one.
    pub fn default_directory() -> Option<PathBuf> {
        let set = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        let base = set("XDG_CACHE_HOME").filter(|path| path.is_absolute());
        let base = base.or_else(|| Some(set("HOME")?.join(".cache")))?;
        Some(base.join("remora"))
    }

    fn path(&self, key: &str) -> PathBuf {
        self.directory.join(format!("{:016x}.json", crc64(key.as_bytes())))
    }

    /// The result for this key, if it is there and whole.
    pub fn get(&self, key: &str) -> Option<Outcomes> {
        let bytes = std::fs::read(self.path(key)).ok()?;
        let entry: Entry = serde_json::from_slice(&bytes).ok()?;
        (entry.key == key).then_some(entry.outcome)
    }

    /// Keeps a result. A cache that cannot be written is no failure: the next run takes longer.
    pub fn put(&self, key: &str, outcome: &Outcomes) {
        let entry = Entry { key: key.into(), outcome: outcome.clone() };
        let (path, temporary) = (self.path(key), self.path(key).with_extension(format!("{}", std::process::id())));
        let written = std::fs::create_dir_all(&self.directory)
            .and_then(|()| std::fs::write(&temporary, serde_json::to_vec(&entry)?))
            .and_then(|()| std::fs::rename(&temporary, &path));
        if written.is_err() {
            let _ = std::fs::remove_file(&temporary);
        }
    }
}

/// All that a point's result comes from: the code, what is run, the platform's values and the seed.
pub fn key(series: &Series, platform: &Platform, x: u64, seed: u64) -> String {
    let values: Vec<String> = platform.params.iter().map(|param| format!("{}={:?}", param.path, param.value)).collect();
    let series = serde_json::to_string(series).unwrap_or_default();
    format!("{} {series} x={x} seed={seed} {}", code_version(), values.join(" "))
}

/// Names the code by the program's own bytes: a change anywhere makes results new.
fn code_version() -> &'static str {
    static VERSION: OnceLock<String> = OnceLock::new();
    VERSION.get_or_init(|| {
        let program = std::env::current_exe().and_then(std::fs::read).unwrap_or_default();
        format!("{}-{:016x}", env!("CARGO_PKG_VERSION"), crc64(&program))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_found_by_all_that_they_came_from() {
        let directory = tempfile::tempdir().unwrap();
        let cache = Cache::new(directory.path().join("deep/down"));
        let outcome = Outcomes { median_ns: 12.5, ..Outcomes::default() };
        assert_eq!(cache.get("a"), None);
        cache.put("a", &outcome);
        assert_eq!((cache.get("a"), cache.get("b")), (Some(outcome), None));
        std::fs::write(cache.path("b"), std::fs::read(cache.path("a")).unwrap()).unwrap();
        assert_eq!(cache.get("b"), None, "a file under another's name");
        std::fs::write(cache.path("a"), b"{").unwrap();
        assert_eq!(cache.get("a"), None, "a file cut short");
    }
}
