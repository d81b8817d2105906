//! Metal kernels on machines that have no Metal.
//!
//! The kernels ship as Metal Shading Language. This crate takes the very files that ship and
//!
//! 1. reads them ([`Library::build`]): which kernels, buffers, function constants and limits they declare ([`Manifest`]),
//!    and a [lint](mod@lint) for what clang accepts and Apple's compiler does not, or computes differently;
//! 2. translates them to C++ for clang, by in-place edits that keep every line number, on top of a `<metal_stdlib>` of our
//!    own with strict address spaces;
//! 3. runs them on the CPU ([`Emulator`]): every Metal thread is a fiber, 32 of them are a simdgroup, and a SIMD-group
//!    operation is a rendezvous of its lanes;
//! 4. in [`Mode::Checked`] watches every memory access of a dispatch and reports races, missing barriers, accesses outside
//!    a buffer, misaligned accesses, reads of uninitialised threadgroup memory, divergent SIMD operations and barriers, and
//!    hazards between dispatches that no [`Emulator::barrier`] separates, each with its `.metal` file and line ([`Finding`]);
//! 5. compiles them to PTX ([`Ptx`]) for NVIDIA GPUs.
//!
//! clang is needed only where kernels are compiled: `LILY_CLANG`, else clang-19 or newer on the `PATH`. The crate itself
//! builds without it, and so do reading, linting and [`Library::flatten`]. Compiled kernels are cached by the hash of
//! everything that went into them.
//!
//! ```no_run
//! use shader_tool::{Argument, Binding, Buffer, Constants, Dispatch, Emulator, Library, Options, SourceFile};
//!
//! let sources = SourceFile::read_dir("kernels".as_ref())?;
//! let library = Library::build(&sources, Options::default())?;
//! let pipeline = library.pipeline("rmsnorm_bf16", &Constants::new().bool(0, true))?;
//! let (x, out) = (Buffer::new(4096), Buffer::new(4096));
//! let report = Emulator::new().dispatch(&Dispatch {
//!     pipeline: &pipeline,
//!     bindings: &[
//!         Binding::buffer(0, &x),
//!         Binding::buffer(1, &out).offset(256),
//!         Binding { index: 2, argument: Argument::Bytes(&1e-6f32.to_ne_bytes()) },
//!     ],
//!     threadgroups: [1, 1, 1],
//!     threads_per_threadgroup: [256, 1, 1],
//!     threadgroup_memory: &[],
//! })?;
//! assert!(report.findings.is_empty());
//! # Ok::<(), shader_tool::ShaderError>(())
//! ```

mod checker;
mod emulator;
mod error;
mod library;
pub mod lint;
mod manifest;
mod ptx;
mod source;
mod toolchain;

pub use checker::{Finding, FindingKind, RangeSet};
pub use emulator::{Argument, Binding, Buffer, BufferAccess, Dispatch, Emulator, Order, Report};
pub use error::{Diagnostic, ShaderError};
pub use library::{Constants, Library, Mode, Options, Pipeline, PtxArch, TileBackend, Value};
pub use manifest::{Access, BufferInfo, ConstantInfo, KernelInfo, Manifest, ScalarType, ThreadgroupInfo};
pub use ptx::{Ptx, PtxKernel, PtxParameter};
pub use source::SourceFile;
