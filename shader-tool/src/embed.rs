//! The files of PTX that the program carries.

use flate2::Compression;
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;
use shader_tool::{Library, Ptx, ShaderError};
use std::collections::HashSet;
use std::io::{Read, Write};
use std::path::Path;

/// Brings the files in `out` up to date, and removes those of sources that are gone.
pub fn embed(library: &Library, out: &Path) -> Result<(), ShaderError> {
    let io = |path: &Path| {
        let path = path.to_path_buf();
        |source| ShaderError::Io { path, source }
    };
    std::fs::create_dir_all(out).map_err(io(out))?;
    let mut wanted = HashSet::new();
    for unit in library.units() {
        for &arch in library.ptx_archs(unit)? {
            let stem = unit.trim_end_matches(".metal").replace('/', "-");
            let path = out.join(format!("{stem}.{}.ptx.gz", arch.name()));
            if key_of(&path).as_deref() != Some(library.ptx_key(unit, arch)?.as_str()) {
                let ptx = Ptx::compile(library, unit, arch)?;
                let mut packed = GzEncoder::new(Vec::new(), Compression::best());
                let packed = packed.write_all(ptx.text().as_bytes()).and_then(|()| packed.finish());
                std::fs::write(&path, packed.map_err(io(&path))?).map_err(io(&path))?;
                println!("{}", path.display());
            }
            wanted.insert(path);
        }
    }
    for entry in std::fs::read_dir(out).map_err(io(out))? {
        let path = entry.map_err(io(out))?.path();
        if path.to_string_lossy().ends_with(".ptx.gz") && !wanted.contains(&path) {
            std::fs::remove_file(&path).map_err(io(&path))?;
        }
    }
    Ok(())
}

/// The key of a file, if it is one of ours.
fn key_of(path: &Path) -> Option<String> {
    let mut text = String::new();
    GzDecoder::new(std::fs::File::open(path).ok()?)
        .read_to_string(&mut text)
        .ok()?;
    Some(Ptx::parse(text).ok()?.key().to_owned())
}
