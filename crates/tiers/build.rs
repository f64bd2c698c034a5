//! Compiles the library that `rackpool tiers run` preloads. It is linked with nothing: what it
//! needs of the C library is in the program that it is loaded into, whatever C library that has.

use std::path::PathBuf;

fn main() {
    println!("cargo::rerun-if-changed=preload");
    let out = PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo sets it"));
    let compiler = cc::Build::new().opt_level(2).debug(false).warnings(true).get_compiler();
    let mut command = compiler.to_command();
    command.args(["-std=gnu11", "-fPIC", "-shared", "-fvisibility=hidden", "-fno-stack-protector"]);
    command.args(["-nostdlib", "-Wl,-z,now,-z,initfirst,-z,noexecstack", "-s"]);
    command.arg("preload/place.c").arg("-o").arg(out.join("place.so"));
    let status = command.status().expect("a C compiler starts");
    assert!(status.success(), "preload/place.c does not compile");
}
