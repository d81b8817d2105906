//! The binary archive: machine code of the pipelines, kept in the user's cache.
//!
//! It belongs to one GPU, one macOS and one set of sources, which its file's name tells apart. Nothing depends on it: any
//! failure means that pipelines are compiled again.

use std::fs;
use std::path::{Path, PathBuf};

use objc2::rc::{Retained, autoreleasepool};
use objc2::runtime::ProtocolObject;
use objc2_foundation::{NSString, NSURL};
use objc2_metal::{MTLBinaryArchive, MTLBinaryArchiveDescriptor, MTLComputePipelineDescriptor, MTLDevice};
use sha2::{Digest, Sha256};
use shader_tool::SourceFile;

use super::system::{KernelFamily, System};

/// An archive and its file.
pub struct Archive {
    archive: Retained<ProtocolObject<dyn MTLBinaryArchive>>,
    path: PathBuf,
    /// It has pipelines that the file has not.
    changed: bool,
}

// SAFETY: used through the device, which has one owner; Metal only asks that calls do not overlap.
unsafe impl Send for Archive {}

impl Archive {
    /// The archive in `directory` for these sources on this system, or an empty one; `None` where Metal gives none.
    pub fn open(system: &System, sources: &[SourceFile], family: KernelFamily, directory: &Path) -> Option<Self> {
        let path = directory.join(file_name(system, sources, family));
        autoreleasepool(|_| {
            let descriptor = MTLBinaryArchiveDescriptor::new();
            let open = || system.device().newBinaryArchiveWithDescriptor_error(&descriptor).ok();
            if path.exists() {
                let url = url(&path)?;
                descriptor.setUrl(Some(&url));
            }
            let archive = open().or_else(|| {
                // A damaged file is as good as none.
                descriptor.setUrl(None);
                open()
            })?;
            Some(Self {
                archive,
                path,
                changed: false,
            })
        })
    }

    /// Metal's archive.
    pub fn metal(&self) -> &ProtocolObject<dyn MTLBinaryArchive> {
        &self.archive
    }

    /// Adds the machine code of a pipeline that was made from `descriptor`.
    pub fn add(&mut self, descriptor: &MTLComputePipelineDescriptor) {
        self.changed |= self
            .archive
            .addComputePipelineFunctionsWithDescriptor_error(descriptor)
            .is_ok();
    }

    /// Writes the file if there is anything new: beside it first, then in its place, so that no half of it is ever seen.
    pub fn save(&mut self) {
        if !std::mem::take(&mut self.changed) {
            return;
        }
        let beside = self.path.with_extension(format!("{}.part", std::process::id()));
        let written = autoreleasepool(|_| {
            let directory = self
                .path
                .parent()
                .is_some_and(|directory| fs::create_dir_all(directory).is_ok());
            directory && url(&beside).is_some_and(|url| self.archive.serializeToURL_error(&url).is_ok())
        });
        if !written || fs::rename(&beside, &self.path).is_err() {
            // Nothing is lost that the next start cannot make again.
            let _ = fs::remove_file(&beside);
        }
    }
}

fn url(path: &Path) -> Option<Retained<NSURL>> {
    Some(NSURL::fileURLWithPath(&NSString::from_str(path.to_str()?)))
}

fn file_name(system: &System, sources: &[SourceFile], family: KernelFamily) -> String {
    let mut hash = Sha256::new();
    let mut text = |text: &str| {
        hash.update((text.len() as u64).to_le_bytes());
        hash.update(text);
    };
    text(&system.name);
    text(&system.os.to_string());
    text(family.name());
    for source in sources {
        text(&source.name);
        text(&source.text);
    }
    let digest = hash.finalize();
    let hex: String = digest.iter().take(16).map(|byte| format!("{byte:02x}")).collect();
    format!("{hex}.metalarchive")
}
