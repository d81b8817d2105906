//! A compiled kernel source, loaded.

use super::abi::{Entry, Launch, Run, Worker};
use crate::{Mode, ShaderError};
use addr2line::Loader;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

/// Where a kernel source's own files lie according to the debug information (`-fdebug-compilation-dir`).
const SOURCE_ROOT: &str = "/metal/";

/// A `.metal` source compiled for this machine.
pub(crate) struct KernelObject {
    library: libloading::Library,
    pub run: Run,
    pub mode: Mode,
    path: PathBuf,
    /// Where the object's code begins in memory.
    base: usize,
    /// Debug information, read when first asked for a line.
    lines: Mutex<Option<Loader>>,
}

impl std::fmt::Debug for KernelObject {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("KernelObject")
            .field("path", &self.path)
            .field("mode", &self.mode)
            .finish_non_exhaustive()
    }
}

impl KernelObject {
    pub fn load(path: PathBuf, mode: Mode) -> Result<Self, ShaderError> {
        let error = |e: &dyn std::fmt::Display| ShaderError::Tool {
            tool: path.display().to_string(),
            message: e.to_string(),
        };
        // SAFETY: the object was made by our own compiler call from a shim and sources that have no constructors with side
        // effects, and its exported names have the types asked for here.
        let library = unsafe { libloading::Library::new(&path) }.map_err(|e| error(&e))?;
        // SAFETY: as above; `msl_layout` is an array of two `unsigned int`.
        let layout = unsafe { **library.get::<*const [u32; 2]>(b"msl_layout\0").map_err(|e| error(&e))? };
        let expected = [size_of::<Launch>(), size_of::<Worker>()].map(|n| u32::try_from(n).unwrap_or(0));
        if layout != expected {
            return Err(error(&format!(
                "its structures are {layout:?} bytes large, expected {expected:?}"
            )));
        }
        // SAFETY: as above.
        let run = unsafe { *library.get::<Run>(b"msl_run\0").map_err(|e| error(&e))? };
        let base = loaded_object(run as usize).unwrap_or(0);
        Ok(Self {
            library,
            run,
            mode,
            path,
            base,
            lines: Mutex::new(None),
        })
    }

    /// The entry function of a kernel. Valid as long as the object lives.
    pub fn entry(&self, kernel: &str) -> Result<Entry, ShaderError> {
        // SAFETY: every `msl_kernel_` symbol is an entry function.
        let symbol = unsafe { self.library.get::<Entry>(format!("msl_kernel_{kernel}\0").as_bytes()) };
        symbol
            .map(|s| *s)
            .map_err(|_| ShaderError::UnknownKernel(kernel.to_owned()))
    }

    /// Whether `address` lies in the object's code or constants.
    pub fn contains(&self, address: usize) -> bool {
        loaded_object(address) == Some(self.base)
    }

    /// The kernel source lines that return address `pc` belongs to, from the innermost inlined function outwards, without
    /// the shim's own: file, line, column.
    pub fn places(&self, pc: usize) -> Vec<(String, u32, u32)> {
        let mut found = Vec::new();
        let mut lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        if lines.is_none() {
            *lines = Loader::new(&self.path).ok();
        }
        let address = pc.checked_sub(self.base + 1);
        let frames = lines
            .as_ref()
            .zip(address)
            .and_then(|(l, a)| l.find_frames(a as u64).ok());
        let Some(mut frames) = frames else { return found };
        while let Ok(Some(frame)) = frames.next() {
            if let Some(location) = frame.location
                && let Some(file) = location.file.and_then(|f| f.strip_prefix(SOURCE_ROOT))
                && file != "entry-points"
            {
                found.push((
                    file.to_owned(),
                    location.line.unwrap_or(0),
                    location.column.unwrap_or(0),
                ));
            }
        }
        found
    }
}

/// The base address of the loaded object that `address` belongs to.
fn loaded_object(address: usize) -> Option<usize> {
    // SAFETY: all-zero is a valid Dl_info, and dladdr only reads the address as a number.
    let (found, info) = unsafe {
        let mut info: libc::Dl_info = std::mem::zeroed();
        (libc::dladdr(address as *const libc::c_void, &raw mut info), info)
    };
    (found != 0).then_some(info.dli_fbase as usize)
}
