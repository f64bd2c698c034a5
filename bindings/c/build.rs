//! The shared library's own name, by which programs find it when they start: it changes only with
//! an interface that old programs cannot use.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,librackpool.so.0");
}
