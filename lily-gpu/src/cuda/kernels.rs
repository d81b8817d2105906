//! The kernels as PTX, and what the driver made of them.

use std::collections::HashMap;
use std::io::Read;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use flate2::read::GzDecoder;
use shader_tool::{Constants, Ptx, PtxArch, PtxParameter};

use super::driver::{Function, Gpu};
use crate::error::GpuError;
use crate::pass::Dispatch;

include!(concat!(env!("OUT_DIR"), "/ptx.rs"));

/// The most bytes of one source's PTX.
const MAX_PTX_BYTES: u64 = 64 << 20;

/// A kernel's name and its function constants.
type Key = (String, Vec<(u32, bool)>);

/// A kernel, ready to be launched.
pub struct Pipeline {
    /// The machine code.
    pub function: Function,
    /// What it takes.
    pub parameters: Vec<PtxParameter>,
}

/// All kernels of one GPU generation.
pub struct Kernels {
    arch: PtxArch,
    sources: Vec<Ptx>,
    /// Source and number of each kernel.
    places: HashMap<String, (usize, usize)>,
    pipelines: HashMap<Key, Arc<Pipeline>>,
}

/// The PTX that the program carries for a generation, one text a source.
pub fn embedded(arch: PtxArch) -> Result<Vec<Ptx>, GpuError> {
    let suffix = format!(".{}.ptx.gz", arch.name());
    let of_arch = EMBEDDED.iter().filter(|(name, _)| name.ends_with(&suffix));
    of_arch
        .map(|(name, packed)| {
            let broken =
                |error: &dyn std::fmt::Display| GpuError::Device(format!("{name} inside the program: {error}"));
            let mut text = String::new();
            let mut unpacked = GzDecoder::new(*packed).take(MAX_PTX_BYTES);
            unpacked.read_to_string(&mut text).map_err(|error| broken(&error))?;
            Ptx::parse(text).map_err(|error| broken(&error))
        })
        .collect()
}

impl Kernels {
    /// The embedded kernels for a GPU.
    pub fn for_gpu(gpu: &Gpu) -> Result<Kernels, GpuError> {
        let arch = if gpu.capability >= (9, 0) {
            PtxArch::Sm90
        } else {
            PtxArch::Sm80
        };
        let mut sources = embedded(arch)?;
        if gpu.capability == (9, 0) {
            sources.extend(embedded(PtxArch::Sm90a)?);
        }
        let mut places = HashMap::new();
        for (source, ptx) in sources.iter().enumerate() {
            places.extend(
                ptx.kernels()
                    .iter()
                    .enumerate()
                    .map(|(index, kernel)| (kernel.name.clone(), (source, index))),
            );
        }
        Ok(Kernels {
            arch,
            sources,
            places,
            pipelines: HashMap::new(),
        })
    }

    /// Whether kernels wait themselves for those that they come after.
    pub fn start_early(&self) -> bool {
        self.arch.starts_early()
    }

    /// Compiles what these dispatches need and is not there yet, on all cores.
    pub fn prepare(&mut self, gpu: &Gpu, dispatches: &[Dispatch]) -> Result<(), GpuError> {
        let mut missing: Vec<Key> = dispatches
            .iter()
            .map(|dispatch| (dispatch.kernel.clone(), dispatch.constants.clone()))
            .filter(|key| !self.pipelines.contains_key(key))
            .collect();
        missing.sort_unstable();
        missing.dedup();
        let next = AtomicUsize::new(0);
        let workers = std::thread::available_parallelism()
            .map_or(1, usize::from)
            .min(missing.len());
        let work = || {
            let mut made = Vec::new();
            while let Some(key) = missing.get(next.fetch_add(1, Ordering::Relaxed)) {
                made.push((key.clone(), Arc::new(self.compile(gpu, key)?)));
            }
            Ok(made)
        };
        let made = std::thread::scope(|scope| {
            let workers: Vec<_> = (0..workers).map(|_| scope.spawn(work)).collect();
            workers
                .into_iter()
                .map(|worker| worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
                .collect::<Result<Vec<_>, GpuError>>()
        })?;
        self.pipelines.extend(made.into_iter().flatten());
        Ok(())
    }

    fn compile(&self, gpu: &Gpu, (name, constants): &Key) -> Result<Pipeline, GpuError> {
        let place = self.places.get(name);
        let &(source, index) = place.ok_or_else(|| GpuError::Device(format!("there is no kernel {name} for CUDA")))?;
        let ptx = &self.sources[source];
        let values = constants
            .iter()
            .fold(Constants::new(), |all, &(index, value)| all.bool(index, value));
        let text = ptx.specialise(name, &values)?;
        Ok(Pipeline {
            function: Function::compile(gpu, name, &text)?,
            parameters: ptx.kernels()[index].parameters.clone(),
        })
    }

    /// The pipeline of a dispatch, after [`Kernels::prepare`].
    pub fn pipeline(&self, dispatch: &Dispatch) -> Result<Arc<Pipeline>, GpuError> {
        let key = (dispatch.kernel.clone(), dispatch.constants.clone());
        let found = self.pipelines.get(&key).cloned();
        found.ok_or_else(|| GpuError::Device(format!("kernel {} is not compiled", dispatch.kernel)))
    }

    /// Name, constants and [`Function::resources`] of what is compiled so far.
    pub fn compiled(&self) -> impl Iterator<Item = (&Key, &Pipeline)> {
        self.pipelines.iter().map(|(key, pipeline)| (key, pipeline.as_ref()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::emulator::kernel_sources;
    use shader_tool::{Library, Options};

    /// Fails where somebody changed a kernel, and not the PTX.
    #[test]
    fn the_embedded_ptx_is_that_of_the_kernels() {
        let library = Library::build(&kernel_sources(), Options::default()).unwrap();
        for arch in PtxArch::ALL {
            let embedded = embedded(arch).unwrap();
            let units: Vec<&str> = library
                .units()
                .filter(|unit| library.ptx_archs(unit).unwrap().contains(&arch))
                .collect();
            assert_eq!(embedded.len(), units.len());
            for unit in units {
                let key = library.ptx_key(unit, arch).unwrap();
                assert!(
                    embedded.iter().any(|ptx| ptx.key() == key),
                    "{unit} has changed: run `cargo run --release -p shader-tool -- embed-ptx kernels lily-gpu/ptx`"
                );
            }
        }
    }

    /// The embedded text is what the compiler makes, whichever clang that is: the same kernels with the same parameters.
    #[test]
    fn a_kernel_compiled_now_is_launched_in_the_same_way() {
        let library = Library::build(&kernel_sources(), Options::default()).unwrap();
        for &arch in library.ptx_archs("rms_norm.metal").unwrap() {
            let now = Ptx::compile(&library, "rms_norm.metal", arch).unwrap();
            let embedded = embedded(arch).unwrap();
            let then = embedded.iter().find(|ptx| ptx.key() == now.key()).unwrap();
            assert_eq!(then.kernels(), now.kernels());
        }
    }

    #[test]
    fn every_kernel_can_be_specialised() {
        for arch in PtxArch::ALL {
            for ptx in embedded(arch).unwrap() {
                for kernel in ptx.kernels() {
                    let constants = (0..4).fold(Constants::new(), |all, index| all.bool(index, true));
                    let text = ptx.specialise(&kernel.name, &constants).unwrap();
                    assert!(text.contains(&format!(".target {}", arch.name())));
                    assert_eq!(text.matches(".entry ").count(), 1, "{}", kernel.name);
                    assert!(!text.contains("lily_constant") && !text.contains("lily_given"));
                    // a called function would take parameters that are passed by value from the wrong place
                    assert!(!text.contains("call"), "{} calls a function", kernel.name);
                }
            }
        }
    }
}
