//! objc2 asks the linker for `libobjc` and `libgnustep-base`. This crate is both, so the linker gets two empty archives.

use std::path::PathBuf;
use std::{env, fs, io};

fn main() -> io::Result<()> {
    let directory = PathBuf::from(env::var_os("OUT_DIR").ok_or(io::ErrorKind::NotFound)?);
    for library in ["objc", "gnustep-base"] {
        fs::write(directory.join(format!("lib{library}.a")), "!<arch>\n")?;
    }
    println!("cargo::rustc-link-search=native={}", directory.display());
    println!("cargo::rerun-if-changed=build.rs");
    Ok(())
}
