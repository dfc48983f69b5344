//! Links the library as `libibverbs.so.1`, with its symbol versions.
//!
//! rustc gives the linker a version script of its own, which has no versions. LLVM's linker, which rustc brings and
//! uses on x86-64, takes a second one beside it; GNU's does not.

fn main() {
    let dir = std::env::var("CARGO_MANIFEST_DIR").expect("cargo sets it");
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed=ibverbs.map");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libibverbs.so.1");
    // It has a thread, and handlers of forks and of the end: a program that closes it again does not take them away.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
    println!("cargo:rustc-cdylib-link-arg=-Wl,--version-script={dir}/ibverbs.map");
    let is = |name: &str, value: &str| std::env::var(name).as_deref() == Ok(value);
    if !is("CARGO_CFG_TARGET_ARCH", "x86_64") || is("CARGO_CFG_TARGET_ENV", "musl") {
        println!("cargo:rustc-cdylib-link-arg=-fuse-ld=lld");
    }
}
