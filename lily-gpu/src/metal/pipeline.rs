//! Kernels: sources to libraries, libraries to pipelines.

use std::collections::HashMap;
use std::ffi::c_void;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;

use objc2::rc::{Retained, autoreleasepool};
use objc2::runtime::ProtocolObject;
use objc2_foundation::{NSArray, NSString};
use objc2_metal::{
    MTLCompileOptions, MTLComputePipelineDescriptor, MTLComputePipelineState, MTLDataType, MTLDevice,
    MTLFunctionConstantValues, MTLLanguageVersion, MTLLibrary, MTLMathFloatingPointFunctions, MTLMathMode,
    MTLPipelineOption,
};
use shader_tool::{Library, Options, SourceFile};

use super::archive::Archive;
use super::system::{KernelFamily, System};
use crate::error::GpuError;

/// A kernel with its function constants, ready to run.
pub struct Pipeline {
    state: Retained<ProtocolObject<dyn MTLComputePipelineState>>,
    name: String,
}

impl Pipeline {
    /// Metal's pipeline.
    pub fn metal(&self) -> &ProtocolObject<dyn MTLComputePipelineState> {
        &self.state
    }

    /// Refuses a threadgroup that does not fit the kernel's registers.
    ///
    /// # Errors
    /// More threads than the pipeline takes; a pipeline that takes none does not work on this GPU at all.
    pub fn check_threads(&self, threads: [u32; 3]) -> Result<(), GpuError> {
        let asked: usize = threads.iter().map(|&n| n as usize).product();
        let most = self.state.maxTotalThreadsPerThreadgroup();
        if asked == 0 || asked > most {
            let name = &self.name;
            return Err(GpuError::Device(format!(
                "kernel {name}: {asked} threads to a threadgroup; this GPU takes {most}"
            )));
        }
        Ok(())
    }
}

/// A kernel's name and its function constants.
type Key = (String, Vec<(u32, bool)>);

/// Compiled kernels of one family.
pub struct Kernels {
    /// By source.
    libraries: HashMap<String, Retained<ProtocolObject<dyn MTLLibrary>>>,
    /// The source of each kernel.
    sources: HashMap<String, String>,
    pipelines: HashMap<Key, Arc<Pipeline>>,
    archive: Option<Archive>,
}

impl Kernels {
    /// Compiles all sources, several at once, and tells `progress` how many of how many are done.
    ///
    /// # Errors
    /// What Metal's compiler refuses.
    pub fn compile(
        system: &System,
        sources: &[SourceFile],
        family: KernelFamily,
        archive: Option<Archive>,
        progress: &mut dyn FnMut(usize, usize),
    ) -> Result<Self, GpuError> {
        let read = Library::build(sources, Options::default())?;
        let units: Vec<&SourceFile> = sources.iter().filter(|source| source.is_unit()).collect();
        let texts = units
            .iter()
            .map(|unit| read.flatten(&unit.name).map(|text| with_family(&text, family)))
            .collect::<Result<Vec<_>, _>>()?;

        let (next, workers) = (
            AtomicUsize::new(0),
            thread::available_parallelism().map_or(1, usize::from),
        );
        let (sender, receiver) = mpsc::channel();
        let work = |sender: mpsc::Sender<_>| {
            while let Some(index) = Some(next.fetch_add(1, Ordering::Relaxed)).filter(|&index| index < texts.len()) {
                // The receiver lives until all senders are gone.
                let _ = sender.send((index, compile(system, &units[index].name, &texts[index], family)));
            }
        };
        let mut libraries = HashMap::new();
        thread::scope(|scope| {
            for _ in 0..workers.min(texts.len()) {
                let sender = sender.clone();
                scope.spawn(|| work(sender));
            }
            drop(sender);
            for (done, (index, library)) in receiver.iter().enumerate() {
                progress(done + 1, texts.len());
                libraries.insert(units[index].name.clone(), library?);
            }
            Ok::<_, GpuError>(())
        })?;
        let sources = read
            .manifest()
            .kernels
            .iter()
            .map(|kernel| (kernel.name.clone(), kernel.unit.clone()))
            .collect();
        Ok(Self {
            libraries,
            sources,
            pipelines: HashMap::new(),
            archive,
        })
    }

    /// Whether there is a kernel of this name.
    pub fn has(&self, kernel: &str) -> bool {
        self.sources.contains_key(kernel)
    }

    /// The pipeline of a kernel with its function constants; made once.
    ///
    /// # Errors
    /// No such kernel, or Metal cannot make it.
    pub fn pipeline(
        &mut self,
        system: &System,
        kernel: &str,
        constants: &[(u32, bool)],
    ) -> Result<Arc<Pipeline>, GpuError> {
        let key = (kernel.to_owned(), constants.to_vec());
        if let Some(pipeline) = self.pipelines.get(&key) {
            return Ok(pipeline.clone());
        }
        let library = self.sources.get(kernel).and_then(|source| self.libraries.get(source));
        let library = library.ok_or_else(|| GpuError::Device(format!("there is no kernel {kernel}")))?;
        let pipeline = Arc::new(make(system, library, kernel, constants, self.archive.as_mut())?);
        self.pipelines.insert(key, pipeline.clone());
        Ok(pipeline)
    }

    /// Writes new machine code to the archive's file; a failure costs the next start some time and nothing else.
    pub fn save(&mut self) {
        if let Some(archive) = &mut self.archive {
            archive.save();
        }
    }
}

/// The source with the family's tile backend chosen, which `include/tile.h` otherwise chooses itself.
fn with_family(text: &str, family: KernelFamily) -> String {
    let backend = match family {
        KernelFamily::Simdgroup => 1,
        KernelFamily::Tensor => 2,
    };
    format!("#define TILE_BACKEND {backend}\n{text}")
}

fn compile(
    system: &System,
    name: &str,
    text: &str,
    family: KernelFamily,
) -> Result<Retained<ProtocolObject<dyn MTLLibrary>>, GpuError> {
    autoreleasepool(|_| {
        let options = MTLCompileOptions::new();
        options.setLanguageVersion(match family {
            KernelFamily::Simdgroup => MTLLanguageVersion::Version3_1,
            KernelFamily::Tensor => MTLLanguageVersion::Version4_0,
        });
        // Masks are infinities and padding may be anything, so the compiler must not assume finite numbers.
        if system.has_math_modes() {
            options.setMathMode(MTLMathMode::Safe);
            options.setMathFloatingPointFunctions(MTLMathFloatingPointFunctions::Fast);
        } else {
            #[expect(deprecated, reason = "what macOS 14 has instead of math modes")]
            options.setFastMathEnabled(false);
        }
        system
            .device()
            .newLibraryWithSource_options_error(&NSString::from_str(text), Some(&options))
            .map_err(|error| GpuError::Device(format!("kernels/{name} does not compile here: {error}")))
    })
}

fn make(
    system: &System,
    library: &ProtocolObject<dyn MTLLibrary>,
    kernel: &str,
    constants: &[(u32, bool)],
    archive: Option<&mut Archive>,
) -> Result<Pipeline, GpuError> {
    autoreleasepool(|_| {
        let failed = |error| GpuError::Device(format!("Metal cannot make kernel {kernel}: {error}"));
        let name = NSString::from_str(kernel);
        let values = MTLFunctionConstantValues::new();
        for &(index, value) in constants {
            let pointer = NonNull::from(&value).cast::<c_void>();
            // SAFETY: Metal reads one byte, 0 or 1, for a constant of type Bool.
            unsafe { values.setConstantValue_type_atIndex(pointer, MTLDataType::Bool, index as usize) };
        }
        let function = library
            .newFunctionWithName_constantValues_error(&name, &values)
            .map_err(failed)?;
        let descriptor = MTLComputePipelineDescriptor::new();
        descriptor.setLabel(Some(&name));
        descriptor.setComputeFunction(Some(&function));
        let create = |options| {
            system
                .device()
                .newComputePipelineStateWithDescriptor_options_reflection_error(&descriptor, options, None)
        };
        let state = match archive {
            None => create(MTLPipelineOption::None).map_err(failed)?,
            Some(archive) => {
                descriptor.setBinaryArchives(Some(&NSArray::from_slice(&[archive.metal()])));
                match create(MTLPipelineOption::FailOnBinaryArchiveMiss) {
                    Ok(state) => state,
                    Err(_) => {
                        let state = create(MTLPipelineOption::None).map_err(failed)?;
                        archive.add(&descriptor);
                        state
                    }
                }
            }
        };
        Ok(Pipeline {
            state,
            name: kernel.to_owned(),
        })
    })
}
