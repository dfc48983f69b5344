//! Results by what they came from: a sweep that was broken off goes on where it was.

use std::path::PathBuf;
use std::sync::OnceLock;

use remora_kernel::crc64;
use remora_model::platform::Platform;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// A directory of results.
#[derive(Clone, Debug)]
pub struct Cache {
    directory: PathBuf,
}

/// A result and all that it came from: a file under another's name is none.
#[derive(Serialize, Deserialize)]
struct Entry<O> {
    key: String,
    outcome: O,
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
    pub fn get<O: DeserializeOwned>(&self, key: &str) -> Option<O> {
        let versioned = versioned(key)?;
        let bytes = std::fs::read(self.path(key)).ok()?;
        let entry: Entry<O> = serde_json::from_slice(&bytes).ok()?;
        (entry.key == versioned).then_some(entry.outcome)
    }

    /// Keeps a result. A cache that cannot be written is no failure: the next run takes longer.
    pub fn put<O: Serialize>(&self, key: &str, outcome: &O) {
        let Some(key_with_code) = versioned(key) else { return };
        let entry = Entry { key: key_with_code, outcome };
        let (path, temporary) = (self.path(key), self.path(key).with_extension(format!("{}", std::process::id())));
        let written = std::fs::create_dir_all(&self.directory)
            .and_then(|()| std::fs::write(&temporary, serde_json::to_vec(&entry)?))
            .and_then(|()| std::fs::rename(&temporary, &path));
        if written.is_err() {
            let _ = std::fs::remove_file(&temporary);
        }
    }
}

/// A result comes from the code too; `None` if nobody can say which code this is.
fn versioned(key: &str) -> Option<String> {
    code_version().map(|version| format!("{version} {key}"))
}

/// All values of a platform, for keys.
pub(crate) fn values(platform: &Platform) -> String {
    let values = platform.params.iter().map(|param| format!("{}={:?}", param.path, param.value));
    let wrong = platform.params.out_of_turn().map(|section| format!("{section} out of turn"));
    values.chain(wrong).collect::<Vec<_>>().join(" ")
}

/// Names the code by the running program's own bytes: a change anywhere makes results new. The link of the process is
/// followed by the kernel, so that these are the bytes that run, even if the file has been replaced or removed since.
fn code_version() -> Option<&'static str> {
    static VERSION: OnceLock<Option<String>> = OnceLock::new();
    let version = VERSION.get_or_init(|| named(&std::fs::read("/proc/self/exe").ok()?));
    version.as_deref()
}

fn named(program: &[u8]) -> Option<String> {
    let there = !program.is_empty();
    there.then(|| format!("{}-{:016x}", env!("CARGO_PKG_VERSION"), crc64(program)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_found_by_all_that_they_came_from() {
        let directory = tempfile::tempdir().unwrap();
        let cache = Cache::new(directory.path().join("deep/down"));
        let get = |key: &str| cache.get::<Vec<f64>>(key);
        assert_eq!(get("a"), None);
        cache.put("a", &vec![12.5]);
        assert_eq!((get("a"), get("b")), (Some(vec![12.5]), None));
        std::fs::write(cache.path("b"), std::fs::read(cache.path("a")).unwrap()).unwrap();
        assert_eq!(get("b"), None, "a file under another's name");
        std::fs::write(cache.path("a"), b"{").unwrap();
        assert_eq!(get("a"), None, "a file cut short");
    }

    #[test]
    fn code_that_cannot_be_read_has_no_name_and_a_removed_program_still_has_its_own() {
        assert_eq!(named(b""), None, "two codes without a name would share results");
        assert_ne!(named(b"a"), named(b"b"));
        assert!(code_version().is_some_and(|version| version.len() > 17));
    }
}
