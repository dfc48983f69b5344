//! Platform files: any text is refused with its file named, or makes a platform whose values lie in their ranges.
#![no_main]

use libfuzzer_sys::fuzz_target;
use remora_model::platform::{Params, Platform, PlatformError};

fuzz_target!(|text: &str| {
    if let Ok(params) = Params::parse("x.toml", text) {
        assert!(params.iter().all(|param| param.range.0 <= param.value && param.value <= param.range.1));
    }
    match Platform::parse("x.toml", text) {
        Ok(platform) => {
            // Every open value may lie at either end of its range, or the file is no description.
            for param in platform.params.open() {
                let _ = platform.with(&[(&param.path, param.range.0)]);
                let _ = platform.with(&[(&param.path, param.range.1)]);
            }
        }
        Err(PlatformError::Read { .. } | PlatformError::NotFound { .. }) => unreachable!("nothing is read"),
        Err(e) => assert!(e.to_string().starts_with("x.toml, line "), "{e}"),
    }
});
